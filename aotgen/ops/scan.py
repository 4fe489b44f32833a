"""cumsum and cumprod: running sums and products along an axis, in float64 for floats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import TensorType
from aotgen.ops.common import AnyArray, Arrays, expect_axis, need, type_of, wide
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Scan, Tensor, present


def _infer(node: Node) -> list[TensorType]:
    x = type_of(node)
    expect_axis(node, int(node.attrs["axis"]), x.rank)
    return [x.with_dtype(x.dtype)]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    """Sum or product of the elements up to each one.

    Without itself when ``exclusive``, from the end when ``reverse``.
    """
    x, axis = need(arrays), int(node.attrs["axis"])
    ordered = np.flip(x, axis) if node.attrs["reverse"] else x
    join = np.cumprod if node.op == "cumprod" else np.cumsum
    with np.errstate(all="ignore"):
        total = join(wide(ordered), axis=axis, dtype=wide(ordered).dtype)
    if node.attrs["exclusive"]:
        total = np.roll(total, 1, axis=axis)
        total[(slice(None),) * axis + (slice(0, 1),)] = int(node.op == "cumprod")
    return [(np.flip(total, axis) if node.attrs["reverse"] else total).astype(x.dtype)]


def _compute(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, attrs = present(inputs, 0), node.attrs
    exclusive, reverse = bool(attrs["exclusive"]), bool(attrs["reverse"])
    scan = Scan(int(attrs["axis"]), exclusive, reverse, x, product=node.op == "cumprod")
    return (Tensor(x.shape, x.dtype, x.fn, scan=scan),)


register(OpDef("cumsum", OpPattern.OPAQUE, _infer, _numpy, _compute))
register(OpDef("cumprod", OpPattern.OPAQUE, _infer, _numpy, _compute))
