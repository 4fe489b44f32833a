"""matmul with numpy batch broadcasting.

Floats are accumulated in float64 and rounded once; integers in their own type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    broadcast_shape,
    expect_rank,
    expect_same_dtype,
    expect_shape,
    fail,
    maybe,
    need,
    optional_type,
    text,
    type_of,
    wide,
)
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, optional, present, reduce
from aotgen.te.expr import Expr
from aotgen.te.index import Index, as_index

_WIDE_ELEMENTS = 1 << 23
"""Most elements of a weight matrix that are widened at a time (64 MiB of float64)."""


def _infer(node: Node) -> list[TensorType]:
    a, b, bias = type_of(node, 0), type_of(node, 1), optional_type(node, 2)
    expect_rank(node, a, 2)
    expect_rank(node, b, 2)
    expect_same_dtype(node, [a, b] if bias is None else [a, b, bias])
    k_axis, n_axis = (-1, -2) if node.attrs["trans_b"] else (-2, -1)
    if a.max_shape[-1] != b.max_shape[k_axis]:
        transposed = " transposed" if node.attrs["trans_b"] else ""
        fail(
            node,
            f"cannot multiply {text(a.shape)} by {text(b.shape)}{transposed}: "
            f"{a.max_shape[-1]} columns against {b.max_shape[k_axis]} rows",
        )
    if bias is not None:
        expect_shape(node, "the bias", bias, [b.max_shape[n_axis]])
    batch = broadcast_shape(node, [a.shape[:-2], b.shape[:-2]]) if a.rank + b.rank > 4 else ()
    return [TensorType(a.dtype, (*batch, a.shape[-2], b.shape[n_axis]))]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    a, b, bias = need(arrays, 0), need(arrays, 1), maybe(arrays, 2)
    right = np.swapaxes(b, -1, -2) if node.attrs["trans_b"] else b
    with np.errstate(all="ignore"):
        y = _product(wide(a), right)
        if bias is not None:
            y = y + bias
        return [y.astype(a.dtype)]


def _product(a: AnyArray, b: AnyArray) -> AnyArray:
    """a @ b in a's type; a large matrix b is widened a block of columns at a time."""
    columns = max(1, _WIDE_ELEMENTS // max(1, b.shape[-2]))
    if b.ndim > 2:
        columns = b.shape[-1]
    blocks = range(0, max(1, b.shape[-1]), max(1, columns))
    parts: list[AnyArray] = [np.matmul(a, wide(b[..., i : i + columns])) for i in blocks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _macs(node: Node) -> int:
    return node.output.type.numel * node.input(0).type.max_shape[-1]


def _compute(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    a, b, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
    shape, depth = node.output.shape, a.shape[-1]

    def batch(t: Tensor, i: Sequence[Index]) -> list[Index]:
        """The batch indices of an operand: those of the output, 0 where it is broadcast."""
        outer = i[len(shape) - t.rank : len(shape) - 2]
        return [as_index(0) if n == 1 else k for n, k in zip(t.shape[:-2], outer, strict=True)]

    def element(*i: Index) -> Expr:
        m, n = i[-2], i[-1]

        def product(k: Index) -> Expr:
            right = (n, k) if node.attrs["trans_b"] else (k, n)
            return a(*batch(a, i), m, k) * b(*batch(b, i), *right)

        total = reduce("sum", [("k", depth)], product)
        return total if bias is None else total + bias(n)

    names = (*(f"b{d}" for d in range(len(shape) - 2)), "m", "n")
    return (compute(shape, a.dtype, element, names),)


register(OpDef("matmul", OpPattern.ANCHOR, _infer, _numpy, _compute, macs=_macs))
