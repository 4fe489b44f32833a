"""The canonical ops, a module a family: type rule, numpy semantics and compute definition of each.

Importing this package registers every op; ``aotgen.ops.registry.op_def`` looks one up. The numpy
semantics are the oracle that every pass, template and board is checked against, and what constants
are folded with:

- an op that IEEE 754 rounds correctly (add, mul, max, sqrt ...) runs in the tensor's own type;
- every other float op (exp, pow, sums, convolutions ...) runs in float64 and is rounded once.
"""

from __future__ import annotations

from aotgen.ops import (
    broadcast,
    cast,
    conv,
    coupling,
    delay_line,
    elementwise,
    index,
    matmul,
    movement,
    norm,
    pool,
    pool_index,
    quantized,
    quantized_elementwise,
    quantized_pool,
    quantized_recurrent,
    quantized_reduce,
    quantized_resize,
    quantized_softmax,
    quantized_tables,
    recurrent,
    reduce,
    resize,
    scan,
    svdf,
    top_k,
    trees,
)
from aotgen.ops.registry import OpDef, OpPattern, op_def, op_names, register

__all__ = [
    "OpDef",
    "OpPattern",
    "broadcast",
    "cast",
    "conv",
    "coupling",
    "delay_line",
    "elementwise",
    "index",
    "matmul",
    "movement",
    "norm",
    "op_def",
    "op_names",
    "pool",
    "pool_index",
    "quantized",
    "quantized_elementwise",
    "quantized_pool",
    "quantized_recurrent",
    "quantized_reduce",
    "quantized_resize",
    "quantized_softmax",
    "quantized_tables",
    "recurrent",
    "reduce",
    "register",
    "resize",
    "scan",
    "svdf",
    "top_k",
    "trees",
]
