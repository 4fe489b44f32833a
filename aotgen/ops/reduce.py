"""Reductions over axes, argmax and argmin. Float sums run in float64 and are rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, Shape, TensorType
from aotgen.ops.common import AnyArray, Arrays, expect_axes, expect_axis, fail, need, type_of, wide
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, as_data, compute, is_costly, keep_row, present, reduce
from aotgen.te.expr import Combiner, Expr, call, cast, const, select
from aotgen.te.index import Index

Reduction = Callable[..., Any]


def reduced_shape(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """``shape`` with ``axes`` of extent 1, or without them."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _infer(node: Node) -> list[TensorType]:
    x, axes = type_of(node), tuple(node.attrs["axes"])
    expect_axes(node, axes, x.rank)
    return [TensorType(x.dtype, reduced_shape(x.shape, axes, node.attrs["keepdims"]))]


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return True
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _log_sum_exp(x: AnyArray, axis: tuple[int, ...], keepdims: bool) -> AnyArray:
    """log(sum(exp(x))) with the maximum taken out, so that nothing overflows."""
    x = x.astype(np.float64)
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return np.asarray(total if keepdims else np.squeeze(total, axis=axis))


def _extreme(name: str) -> Reduction:
    largest = name == "max"

    def reduce(x: AnyArray, axis: tuple[int, ...], keepdims: bool) -> Any:
        start = _lowest(x.dtype) if largest else _highest(x.dtype)
        function = np.max if largest else np.min
        return function(x, axis=axis, keepdims=keepdims, initial=start)

    return reduce


def _l2(x: AnyArray, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.sqrt(np.sum(np.square(wide(x)), axis=axis, keepdims=keepdims))


_REDUCTIONS: dict[str, Reduction] = {
    "reduce_sum": lambda x, axis, keepdims: np.sum(wide(x), axis=axis, keepdims=keepdims),
    "reduce_mean": lambda x, axis, keepdims: np.mean(wide(x), axis=axis, keepdims=keepdims),
    "reduce_max": _extreme("max"),
    "reduce_min": _extreme("min"),
    "reduce_prod": lambda x, axis, keepdims: np.prod(wide(x), axis=axis, keepdims=keepdims),
    "reduce_l1": lambda x, axis, keepdims: np.sum(np.abs(wide(x)), axis=axis, keepdims=keepdims),
    "reduce_l2": _l2,
    "reduce_sum_square": lambda x, axis, keepdims: np.sum(
        np.square(wide(x)), axis=axis, keepdims=keepdims
    ),
    "reduce_log_sum_exp": _log_sum_exp,
}


def _rule(reduction: Reduction) -> Callable[[Node, Arrays], list[AnyArray]]:
    def rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        x = need(arrays)
        axes, keepdims = tuple(node.attrs["axes"]), bool(node.attrs["keepdims"])
        with np.errstate(all="ignore"):
            return [np.asarray(reduction(x, axis=axes, keepdims=keepdims)).astype(x.dtype)]

    return rule


Body = Callable[[Expr], Expr]


def surviving_indices(
    node: Node, indices: Sequence[Index], axes: Sequence[int]
) -> list[Index | None]:
    """The input's indices that the output's give; None along the reduced ``axes``."""
    rank = node.input(0).type.rank
    if node.attrs["keepdims"]:
        return [None if a in axes else indices[a] for a in range(rank)]
    rest = iter(indices)
    return [None if a in axes else next(rest) for a in range(rank)]


def over(
    x: Tensor, outer: Sequence[Index | None], combiner: Combiner, body: Body = lambda x: x
) -> Expr:
    """The reduction of ``body(x)`` over every axis whose outer index is None."""
    axes = [a for a, index in enumerate(outer) if index is None]
    names = [("k", "l", "q", "s")[n] if n < 4 else f"k{n}" for n in range(len(axes))]

    def element(*inner: Index) -> Expr:
        rest = iter(inner)
        return body(x(*(next(rest) if index is None else index for index in outer)))

    return reduce(combiner, [(n, x.shape[a]) for n, a in zip(names, axes, strict=True)], element)


def _te_extreme(name: str) -> Callable[[Tensor, Sequence[Index | None], int], Expr]:
    def element(x: Tensor, outer: Sequence[Index | None], count: int) -> Expr:
        if x.dtype is DType.BOOL:
            return over(x, outer, "or" if name == "max" else "and")
        return over(x, outer, "max_nan" if name == "max" else "min_nan")

    return element


def _te_log_sum_exp(x: Tensor, outer: Sequence[Index | None], count: int) -> Expr:
    x = keep_row(x, outer) if is_costly(x, outer) else x
    top = over(x, outer, "max_nan")
    finite = call("less", call("abs", top), const(np.inf, x.dtype))
    top = select(finite, top, const(0, x.dtype))
    return call("log", over(x, outer, "sum", lambda v: call("exp", v - top))) + top


def _te_l2(x: Tensor, outer: Sequence[Index | None], count: int) -> Expr:
    wide_type = x.dtype if x.dtype.is_float else DType.F64
    total = over(x, outer, "sum", lambda v: cast(wide_type, v) * cast(wide_type, v))
    return cast(x.dtype, call("sqrt", total))


_COMPUTE: dict[str, Callable[[Tensor, Sequence[Index | None], int], Expr]] = {
    "reduce_sum": lambda x, outer, count: over(x, outer, "sum"),
    "reduce_mean": lambda x, outer, count: over(x, outer, "sum") / count,
    "reduce_max": _te_extreme("max"),
    "reduce_min": _te_extreme("min"),
    "reduce_prod": lambda x, outer, count: over(x, outer, "prod"),
    "reduce_l1": lambda x, outer, count: over(x, outer, "sum", lambda v: call("abs", v)),
    "reduce_l2": _te_l2,
    "reduce_sum_square": lambda x, outer, count: over(x, outer, "sum", lambda v: v * v),
    "reduce_log_sum_exp": _te_log_sum_exp,
}


def _te_reduce(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, axes = present(inputs, 0), tuple(node.attrs["axes"])
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))

    def element(*indices: Index) -> Expr:
        return _COMPUTE[node.op](x, surviving_indices(node, indices, axes), count)

    return (compute(node.output.shape, x.dtype, element),)


for _name, _reduction in _REDUCTIONS.items():
    register(OpDef(_name, OpPattern.REDUCE, _infer, _rule(_reduction), _te_reduce))


def _infer_arg(node: Node) -> list[TensorType]:
    x, axis = type_of(node), int(node.attrs["axis"])
    expect_axis(node, axis, x.rank)
    if x.max_shape[axis] == 0:
        fail(node, f"axis {axis} has no elements to choose from")
    return [TensorType(DType.I64, reduced_shape(x.shape, (axis,), node.attrs["keepdims"]))]


def _arg(function: Callable[..., Any]) -> Callable[[Node, Arrays], list[AnyArray]]:
    def rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        x, axis, keepdims = need(arrays), int(node.attrs["axis"]), bool(node.attrs["keepdims"])
        if node.attrs["select_last"]:
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=keepdims)
        else:
            found = function(x, axis=axis, keepdims=keepdims)
        return [np.asarray(found).astype(np.int64)]

    return rule


def _te_arg(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The extreme value, then the first or last position that holds it; a NaN counts as extreme."""
    x, axis = present(inputs, 0), int(node.attrs["axis"])
    last, extent = bool(node.attrs["select_last"]), x.shape[axis]
    extreme: Combiner = "max_nan" if node.op == "argmax" else "min_nan"
    miss = const(0 if last else extent - 1, DType.I32)

    def element(*indices: Index) -> Expr:
        outer = surviving_indices(node, indices, (axis,))
        kept = keep_row(x, outer) if is_costly(x, outer) else x
        best = over(kept, outer, extreme)

        def position(k: Index) -> Expr:
            v = kept(*(k if index is None else index for index in outer))
            hit = call("equal", v, best)
            if x.dtype.is_float:
                hit = call("or", hit, call("isnan", v))
            return select(hit, as_data(k, DType.I32), miss)

        return cast(DType.I64, reduce("max" if last else "min", [("k", extent)], position))

    return (compute(node.output.shape, DType.I64, element),)


register(OpDef("argmax", OpPattern.REDUCE, _infer_arg, _arg(np.argmax), _te_arg))
register(OpDef("argmin", OpPattern.REDUCE, _infer_arg, _arg(np.argmin), _te_arg))
