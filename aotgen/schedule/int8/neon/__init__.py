"""Kernels of 8-bit integers on NEON."""
