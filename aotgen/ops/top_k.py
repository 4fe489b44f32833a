"""top_k: the k largest or smallest elements along an axis, in order, and where they stood."""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import AnyArray, Arrays, expect_axis, fail, need, type_of
from aotgen.ops.registry import OpDef, OpPattern, register


def _infer(node: Node) -> list[TensorType]:
    """Values in the type of x and int64 positions, both with k elements along ``axis``."""
    x, axis, k = type_of(node), int(node.attrs["axis"]), int(node.attrs["k"])
    expect_axis(node, axis, x.rank)
    if x.dtype is DType.BOOL:
        fail(node, "needs numbers, not bool")
    if not 0 <= k <= x.max_shape[axis]:
        fail(node, f"k is {k}, but axis {axis} has {x.max_shape[axis]} elements")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [TensorType(x.dtype, shape), TensorType(DType.I64, shape)]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    """Of equal elements the first ones come first; a NaN counts as larger than all numbers."""
    x, axis, k = need(arrays), int(node.attrs["axis"]), int(node.attrs["k"])
    if node.attrs["largest"]:  # a stable sort from behind leaves equal ones in reverse
        order = x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = np.flip(order, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis=axis).astype(np.int64)
    return [np.take_along_axis(x, order, axis=axis), order]


register(OpDef("top_k", OpPattern.OPAQUE, _infer, _numpy))
