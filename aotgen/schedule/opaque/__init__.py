"""Kernels of one operator alone, whose loops are written out in a template: sorting, trees,
recurrences, moves of memory."""
