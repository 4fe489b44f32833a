"""Kernels of 8-bit integers on MVE (Helium, Cortex-M55)."""
