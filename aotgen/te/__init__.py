"""Tensor expressions: what an op computes, apart from how.

compute     what op authors write: tensors as functions of indices, reductions, rows
expr, index the nodes: data, and index arithmetic that simplifies while it is built
simplify    substitution of axes, which is all the rewriting there is
stage       a Nest: outer axes and stages, with flat offsets, split and merged axes
vectorize   which axis runs along the lanes, where borders are split
lower, emit the loops, and the expressions inside them
c_printer, cl_printer  the text of single operations in C99 and OpenCL C 1.2
kernel      a Nest as a Kernel with its arguments
epilogue    the same definitions as functions of an anchor's register tile or finished rows
"""
