"""Kernels of 8-bit integers on AVX2, AVX-512 and VNNI."""
