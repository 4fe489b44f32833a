"""qavg_pool: averages of 8- and 16-bit windows in integers, as TFLite's AVERAGE_POOL_2D.

Attributes as of avg_pool (kernel, strides, dilations, pads), then lo and hi, the output's range
after its activation. Input and output have one scale; maximums need no op of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops import fixed_point as fp
from aotgen.ops.common import AnyArray, Arrays, fail, need, pad_spatial, type_of
from aotgen.ops.pool import infer_pool, te_window_sum, windows
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, present
from aotgen.te.expr import Const, Expr, call, cast, select
from aotgen.te.index import Index

ELEMENTS = (DType.I8, DType.U8, DType.I16)


def _infer(node: Node) -> list[TensorType]:
    x = type_of(node)
    if x.dtype not in ELEMENTS:
        fail(node, f"needs elements of 8 or 16 bits, not {x.dtype.value}")
    types = infer_pool(node)
    spatial = x.rank - 2
    for i, pad in enumerate(node.attrs["pads"]):
        if pad >= node.attrs["kernel"][i % spatial] * node.attrs["dilations"][i % spatial]:
            fail(node, f"a window may lie within its {pad} pads alone")
    return types


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    """The sum over the window's cells inside the input, by their number, ties away from zero."""
    x, attrs = need(arrays), node.attrs
    total = np.asarray(sum(windows(node, pad_spatial(x.astype(np.int64), attrs["pads"], 0))))
    ones = np.ones((1, *x.shape[1:-1], 1), np.int64)
    count = np.asarray(sum(windows(node, pad_spatial(ones, attrs["pads"], 0))))
    mean = np.sign(total) * ((np.abs(total) + count // 2) // np.maximum(count, 1))
    return [np.clip(mean, attrs["lo"], attrs["hi"]).astype(x.dtype)]


def _te(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, attrs = present(inputs, 0), node.attrs
    wide = compute(x.shape, DType.I32, lambda *i: cast(DType.I32, x(*i)), x.names)
    signed = not x.dtype.c.startswith("u")

    def element(*i: Index) -> Expr:
        total, count = te_window_sum(node, wide, i)
        half = fp.shift_right(count, 1)
        if isinstance(count, Const):
            half = fp.like(count, int(count.value) // 2)
        up = total + half
        if signed:
            up = select(call("less", total, fp.like(total, 0)), total - half, up)
        return cast(x.dtype, fp.clamp(call("div", up, count), attrs["lo"], attrs["hi"]))

    return (compute(node.output.shape, x.dtype, element, ("n", "oh", "ow", "c")[-x.rank :]),)


register(OpDef("qavg_pool", OpPattern.ANCHOR, _infer, _numpy, _te))
