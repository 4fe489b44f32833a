"""Convolutions and pools of floats: one module a template, and what several of them share."""
