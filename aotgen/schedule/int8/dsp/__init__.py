"""Kernels of 8-bit integers on the DSP extension of Cortex-M4, M7 and M33."""
