"""Sums, means and products of quantized integers along axes, as TFLite's SUM, MEAN and REDUCE_PROD.

Attributes: axes and keepdims; zero, the input's zero point; multiplier and shift, which bring the
result to the output's scale; zero_point of the output; dtype and quant of the output. Extremes of
quantized integers are reduce_max and reduce_min: input and output have one scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.requant import reduced_multiplier
from aotgen.ir.types import DType, TensorType
from aotgen.ops import fixed_point as fp
from aotgen.ops.common import AnyArray, Arrays, expect_axes, fail, need, product, type_of
from aotgen.ops.reduce import over, reduced_shape, surviving_indices
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, present
from aotgen.te.expr import Expr, call, cast, const
from aotgen.te.index import Index, as_index

ELEMENTS = (DType.I8, DType.U8, DType.I16)


def _infer(node: Node) -> list[TensorType]:
    x, axes, dtype = type_of(node), tuple(node.attrs["axes"]), node.attrs["dtype"]
    expect_axes(node, axes, x.rank)
    if x.dtype not in ELEMENTS or dtype not in ELEMENTS:
        fail(node, f"needs elements of 8 or 16 bits, not {x.dtype.value} to {dtype.value}")
    if product([x.max_shape[a] for a in axes]) == 0:
        fail(node, "reduces an axis without elements")
    shape = reduced_shape(x.shape, axes, node.attrs["keepdims"])
    return [TensorType(dtype, shape, node.attrs["quant"])]


def _count(node: Node) -> int:
    shape = node.input(0).type.max_shape
    return product([shape[a] for a in node.attrs["axes"]])


def _finished(node: Node, total: fp.Operand) -> Any:
    """The output's element for the sum ``total`` of the elements as they are."""
    attrs = node.attrs
    shift = attrs["zero"] * _count(node)
    sums = fp.wrapped(total - shift) if shift else total
    scaled = fp.scaled(sums, attrs["multiplier"], attrs["shift"])
    if attrs["zero_point"]:
        scaled = fp.wrapped(scaled + attrs["zero_point"])
    return fp.narrow(fp.clamp(scaled, *fp.limits(attrs["dtype"])), attrs["dtype"])


def _sum(node: Node, arrays: Arrays) -> list[AnyArray]:
    """zero_point + (sum of x - zero) * multiplier * 2^(shift - 31), rounded twice."""
    axes, keepdims = tuple(node.attrs["axes"]), bool(node.attrs["keepdims"])
    total = np.sum(fp.wide(need(arrays)), axis=axes, keepdims=keepdims)
    return [np.asarray(_finished(node, fp.wrapped(np.asarray(total))))]


def _te_sum(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, axes = present(inputs, 0), tuple(node.attrs["axes"])

    def element(*i: Index) -> Expr:
        total = over(x, surviving_indices(node, i, axes), "sum", lambda v: cast(DType.I32, v))
        finished: Expr = _finished(node, total)
        return finished

    return (compute(node.output.shape, node.attrs["dtype"], element),)


register(OpDef("qreduce_sum", OpPattern.REDUCE, _infer, _sum, _te_sum))


UNROLLED_FACTORS = 256
"""Most factors of a product: each is a multiplication and a rounding of its own."""


def _infer_product(node: Node) -> list[TensorType]:
    types = _infer(node)
    if _count(node) > UNROLLED_FACTORS:
        fail(node, f"is a product of {_count(node)} factors, at most {UNROLLED_FACTORS} are done")
    return types


def _product_scale(node: Node) -> tuple[int, int]:
    """The multiplier in 16 bits and how far a product moves right."""
    return reduced_multiplier(node.attrs["multiplier"]), 15 - node.attrs["shift"]


def _product(node: Node, arrays: Arrays) -> list[AnyArray]:
    """The factors x - zero one after the other, each product rescaled, and the last one again."""
    x, attrs = need(arrays).astype(np.int64) - node.attrs["zero"], node.attrs
    axes = tuple(attrs["axes"])
    multiplier, right = _product_scale(node)
    rest = [a for a in range(x.ndim) if a not in axes]
    rows = np.transpose(x, (*sorted(axes), *rest)).reshape(-1, *(x.shape[a] for a in rest))
    value = rows[0]
    for factor in [*rows[1:], np.int64(1)]:
        scaled = (value * factor * multiplier + (1 << (right - 1))) >> right
        value = fp.wrapped(scaled)
    clamped = np.clip(value + attrs["zero_point"], *fp.limits(attrs["dtype"]))
    return [clamped.reshape(node.output.type.max_shape).astype(attrs["dtype"].numpy)]


def _te_product(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, attrs = present(inputs, 0), node.attrs
    axes = sorted(attrs["axes"])
    multiplier, right = _product_scale(node)
    i64 = DType.I64

    def element(*i: Index) -> Expr:
        outer = surviving_indices(node, i, axes)
        value: Expr | None = None
        for place in itertools.product(*(range(x.shape[a]) for a in axes)):
            at = dict(zip(axes, place, strict=True))
            where = (as_index(at[a]) if p is None else p for a, p in enumerate(outer))
            factor = cast(i64, x(*where)) - attrs["zero"]
            value = factor if value is None else _rescaled(value * factor)
        assert value is not None
        last = _rescaled(value) + attrs["zero_point"]
        lo, hi = (const(v, i64) for v in fp.limits(attrs["dtype"]))
        return cast(attrs["dtype"], call("min", call("max", last, lo), hi))

    def _rescaled(value: Expr) -> Expr:
        product = value * const(multiplier, i64) + const(1 << (right - 1), i64)
        moved = call("shift_right", product, const(right, i64))
        return cast(i64, cast(DType.I32, moved))

    return (compute(node.output.shape, attrs["dtype"], element),)


register(OpDef("qreduce_prod", OpPattern.REDUCE, _infer_product, _product, _te_product))
