"""softmax and the normalisations. Everything runs in float64 and is rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    broadcasts_to,
    expect_axis,
    expect_float,
    expect_rank,
    expect_shape,
    fail,
    in_float64,
    maybe,
    need,
    optional_type,
    text,
    type_of,
)
from aotgen.ops.reduce import over
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import (
    ComputeRule,
    Tensor,
    broadcast,
    compute,
    inside,
    is_costly,
    keep_row,
    optional,
    present,
    reduce,
    row,
)
from aotgen.te.expr import Expr, call, const, select
from aotgen.te.index import Index, as_index, floordiv, maximum, minimum

ROW_OPS = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm", "lp_norm"})
"""What a row epilogue (``aotgen.te.epilogue``) can run in place on finished rows."""


def _plain(node: Node, x: TensorType) -> list[TensorType]:
    return [x.with_dtype(x.dtype)]


def _infer_axis(node: Node) -> list[TensorType]:
    x = type_of(node)
    expect_float(node, x)
    expect_axis(node, int(node.attrs["axis"]), x.rank)
    return _plain(node, x)


def _softmax(node: Node, arrays: Arrays) -> list[AnyArray]:
    """exp(x) / sum(exp(x)) along ``axis``, the maximum taken out first."""
    axis = int(node.attrs["axis"])

    def softmax(x: AnyArray) -> AnyArray:
        e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
        return np.asarray(e / np.sum(e, axis=axis, keepdims=True))

    return [in_float64(softmax, need(arrays))]


def _log_softmax(node: Node, arrays: Arrays) -> list[AnyArray]:
    axis = int(node.attrs["axis"])

    def log_softmax(x: AnyArray) -> AnyArray:
        shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))

    return [in_float64(log_softmax, need(arrays))]


Statistics = Callable[[Node, Tensor, Sequence[Index | None]], Callable[..., Expr]]


def _is_computed(x: Tensor, outer: Sequence[Index | None]) -> bool:
    return x.buffer is None


def _by_rows(
    axes_of: Callable[[Node, int], Sequence[int]],
    statistics: Statistics,
    keeps: Callable[[Tensor, Sequence[Index | None]], bool] = _is_computed,
) -> ComputeRule:
    """The rule of an op that normalises along axes with numbers computed from each row.

    ``statistics(node, x, outer)`` gives the function that maps an element of the row to its result,
    or the tensor of results over the row. An input that has to be computed first is computed once
    and kept, since rows are read more than once.
    """

    def rule(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        x = present(inputs, 0)
        axes = tuple(axes_of(node, x.rank))
        spare = [optional(inputs, k) for k in (1, 2)]

        @cache
        def row_of(outer: tuple[Index | None, ...]) -> tuple[Tensor, Callable[..., Expr]]:
            kept = keep_row(x, outer) if keeps(x, outer) else x
            return kept, statistics(node, kept, outer)

        def element(*i: Index) -> Expr:
            outer = tuple(None if a in axes else index for a, index in enumerate(i))
            kept, result = row_of(outer)
            value = result(kept(*i), *(i[a] for a in axes))
            if spare[0] is not None:
                value = value * broadcast(spare[0], i, x.shape)
            return value if spare[1] is None else value + broadcast(spare[1], i, x.shape)

        return (compute(x.shape, x.dtype, element),)

    return rule


def _one_axis(node: Node, rank: int) -> Sequence[int]:
    return (int(node.attrs["axis"]),)


def _trailing(node: Node, rank: int) -> Sequence[int]:
    return range(int(node.attrs["axis"]), rank)


def _te_softmax(node: Node, x: Tensor, outer: Sequence[Index | None]) -> Callable[..., Expr]:
    top = over(x, outer, "max")
    axis = int(node.attrs["axis"])

    def exponential(j: Index) -> Expr:
        return call("exp", x(*(j if index is None else index for index in outer)) - top)

    kept = row([("j", x.shape[axis])], exponential)
    total = reduce("sum", [("k", x.shape[axis])], lambda k: kept(k))
    factor = 1.0 / total
    return lambda value, j: kept(j) * factor


def _te_log_softmax(node: Node, x: Tensor, outer: Sequence[Index | None]) -> Callable[..., Expr]:
    top = over(x, outer, "max")
    total = call("log", over(x, outer, "sum", lambda v: call("exp", v - top)))
    return lambda value, j: (value - top) - total


register(
    OpDef(
        "softmax",
        OpPattern.REDUCE,
        _infer_axis,
        _softmax,
        _by_rows(_one_axis, _te_softmax, is_costly),
    )
)
register(
    OpDef(
        "log_softmax",
        OpPattern.REDUCE,
        _infer_axis,
        _log_softmax,
        _by_rows(_one_axis, _te_log_softmax),
    )
)


def _infer_row_norm(node: Node) -> list[TensorType]:
    """layer_norm and rms_norm: scale and bias broadcast to the axes from ``axis`` on."""
    x, axis = type_of(node), int(node.attrs["axis"])
    expect_float(node, x)
    expect_axis(node, axis, x.rank)
    for what, tensor in (("scale", type_of(node, 1)), ("bias", optional_type(node, 2))):
        if tensor is not None and not broadcasts_to(tensor.shape, x.shape):
            fail(node, f"{what} {text(tensor.shape)} does not broadcast to {text(x.shape)}")
    return _plain(node, x)


def _standardise(x: AnyArray, axes: tuple[int, ...], eps: float) -> AnyArray:
    """(x - mean) / sqrt(variance + eps) over ``axes``."""
    centred = x - np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(np.square(centred), axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + eps))


def _affine(node: Node, arrays: Arrays, normalised: AnyArray) -> list[AnyArray]:
    """Times scale (input 1), plus bias (input 2, may be absent), rounded to the type of x."""
    bias = maybe(arrays, 2)
    y = normalised * need(arrays, 1) + (0.0 if bias is None else bias)
    return [y.astype(need(arrays).dtype)]


def _layer_norm(node: Node, arrays: Arrays) -> list[AnyArray]:
    x = need(arrays).astype(np.float64)
    axes = tuple(range(int(node.attrs["axis"]), x.ndim))
    return _affine(node, arrays, _standardise(x, axes, float(node.attrs["eps"])))


def _rms_norm(node: Node, arrays: Arrays) -> list[AnyArray]:
    """x / sqrt(mean(x^2) + eps) * scale over the axes from ``axis`` on."""
    x = need(arrays).astype(np.float64)
    axes = tuple(range(int(node.attrs["axis"]), x.ndim))
    mean = np.mean(np.square(x), axis=axes, keepdims=True)
    return _affine(node, arrays, np.asarray(x / np.sqrt(mean + float(node.attrs["eps"]))))


def te_standardise(x: Tensor, outer: Sequence[Index | None], eps: float) -> Callable[..., Expr]:
    """(x - mean) / sqrt(variance + eps) over the axes whose outer index is None, in two passes."""
    count = float(np.prod([n for n, i in zip(x.shape, outer, strict=True) if i is None]))
    mean = over(x, outer, "sum") / count
    variance = over(x, outer, "sum", lambda v: (v - mean) * (v - mean)) / count
    factor = 1.0 / call("sqrt", variance + eps)
    return lambda value, *inner: (value - mean) * factor


def _te_layer_norm(node: Node, x: Tensor, outer: Sequence[Index | None]) -> Callable[..., Expr]:
    return te_standardise(x, outer, float(node.attrs["eps"]))


def _te_rms_norm(node: Node, x: Tensor, outer: Sequence[Index | None]) -> Callable[..., Expr]:
    count = float(np.prod([n for n, i in zip(x.shape, outer, strict=True) if i is None]))
    mean = over(x, outer, "sum", lambda v: v * v) / count
    factor = 1.0 / call("sqrt", mean + float(node.attrs["eps"]))
    return lambda value, *inner: value * factor


register(
    OpDef(
        "layer_norm",
        OpPattern.REDUCE,
        _infer_row_norm,
        _layer_norm,
        _by_rows(_trailing, _te_layer_norm),
    )
)
register(
    OpDef(
        "rms_norm", OpPattern.REDUCE, _infer_row_norm, _rms_norm, _by_rows(_trailing, _te_rms_norm)
    )
)


def _infer_channel_norm(node: Node) -> list[TensorType]:
    """instance_norm and group_norm: x [N,*S,C], scale [C], bias [C]."""
    x = type_of(node)
    expect_float(node, x)
    expect_rank(node, x, 3 if node.op == "instance_norm" else 2)
    channels = x.max_shape[-1]
    expect_shape(node, "scale", type_of(node, 1), [channels])
    expect_shape(node, "bias", type_of(node, 2), [channels])
    groups = int(node.attrs.get("groups", 1))
    if groups < 1 or channels % groups:
        fail(node, f"{groups} groups do not divide {channels} channels")
    return _plain(node, x)


def _instance_norm(node: Node, arrays: Arrays) -> list[AnyArray]:
    x = need(arrays).astype(np.float64)
    return _affine(node, arrays, _standardise(x, tuple(range(1, x.ndim - 1)), node.attrs["eps"]))


def _group_norm(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, groups = need(arrays).astype(np.float64), int(node.attrs["groups"])
    split = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    axes = (*range(1, x.ndim - 1), x.ndim)
    return _affine(node, arrays, _standardise(split, axes, node.attrs["eps"]).reshape(x.shape))


def _spatial(node: Node, rank: int) -> Sequence[int]:
    return range(1, rank - 1)


def _te_group_norm(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, scale, bias = (present(inputs, i) for i in range(3))
    groups = int(node.attrs["groups"])
    size = x.shape[-1] // groups
    split = compute(
        (*x.shape[:-1], groups, size), x.dtype, lambda *i: x(*i[:-2], i[-2] * size + i[-1])
    )

    @cache
    def normalise(n: Index, group: Index) -> Callable[..., Expr]:
        outer = (n, *[None] * (x.rank - 2), group, None)
        return te_standardise(split, outer, float(node.attrs["eps"]))

    def element(*i: Index) -> Expr:
        normalised = normalise(i[0], floordiv(i[-1], size))(x(*i))
        return normalised * scale(i[-1]) + bias(i[-1])

    return (compute(x.shape, x.dtype, element),)


def _te_group_norm_rows(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """By sums over pixels for each channel, which groups then share: memory is read in its order,
    a vector of channels at a time, however few channels a group has.
    """
    x, scale, bias = (present(inputs, i) for i in range(3))
    groups, channels = int(node.attrs["groups"]), x.shape[-1]
    size = channels // groups
    pixels = x.shape[1:-1]
    count = float(size * np.prod(pixels))

    @cache
    def statistics(n: Index) -> tuple[Tensor, Tensor]:
        """Per channel its group's mean, and what to multiply by."""

        def mean_of(value: Callable[[Expr, Index], Expr]) -> Tensor:
            """Per group the mean of value(x, channel)."""
            axes = [(f"k{a}", extent) for a, extent in enumerate(pixels)]

            def total(c: Index) -> Expr:
                return reduce("sum", axes, lambda *k: value(x(n, *k, c), c))

            sums = row([("c", channels)], total)

            def group(g: Index) -> Expr:
                return reduce("sum", [("j", size)], lambda j: sums(g * size + j)) * (1.0 / count)

            return row([("g", groups)], group)

        def by_channel(value: Callable[[Index, Index], Expr]) -> Tensor:
            """A row over channels from value(group, channel). It is filled group by group and lies
            in memory without gaps, so that element (0, c) is channel c: no division finds a group.
            """
            axes = [("g", groups), ("j", size)]
            split = row(axes, lambda g, j: value(g, g * size + j))
            zero = as_index(0)
            return compute(
                (channels,), x.dtype, lambda c: split(c, zero) if size == 1 else split(zero, c)
            )

        means = mean_of(lambda v, c: v)
        mean = by_channel(lambda g, c: means(g))
        variance = mean_of(lambda v, c: (v - mean(c)) * (v - mean(c)))
        eps = float(node.attrs["eps"])
        deviation = row([("g", groups)], lambda g: 1.0 / call("sqrt", variance(g) + eps))
        factor = by_channel(lambda g, c: scale(c) * deviation(g))
        return mean, factor

    def element(*i: Index) -> Expr:
        mean, factor = statistics(i[0])
        return (x(*i) - mean(i[-1])) * factor(i[-1]) + bias(i[-1])

    return (compute(x.shape, x.dtype, element),)


register(
    OpDef(
        "instance_norm",
        OpPattern.REDUCE,
        _infer_channel_norm,
        _instance_norm,
        _by_rows(_spatial, _te_layer_norm),
    )
)
register(
    OpDef(
        "group_norm",
        OpPattern.REDUCE,
        _infer_channel_norm,
        _group_norm,
        _te_group_norm,
        compute_rows=_te_group_norm_rows,
    )
)


def _infer_lp_norm(node: Node) -> list[TensorType]:
    if node.attrs["p"] not in (1, 2):
        fail(node, f"p is {node.attrs['p']}, must be 1 or 2")
    return _infer_axis(node)


def _lp_norm(node: Node, arrays: Arrays) -> list[AnyArray]:
    """x divided by its p-norm along ``axis``; zero where the norm is zero."""
    axis, p = int(node.attrs["axis"]), int(node.attrs["p"])

    def normalise(x: AnyArray) -> AnyArray:
        total = np.sum(np.abs(x) ** p, axis=axis, keepdims=True)
        norm = np.sqrt(total) if p == 2 else total
        return np.asarray(np.where(norm == 0, 0.0, x / norm))

    return [in_float64(normalise, need(arrays))]


def _te_lp_norm(node: Node, x: Tensor, outer: Sequence[Index | None]) -> Callable[..., Expr]:
    if int(node.attrs["p"]) == 2:
        norm = call("sqrt", over(x, outer, "sum", lambda v: v * v))
    else:
        norm = over(x, outer, "sum", lambda v: call("abs", v))
    zero = const(0, x.dtype)
    return lambda value, j: select(call("equal", norm, zero), zero, value / norm)


register(
    OpDef("lp_norm", OpPattern.REDUCE, _infer_lp_norm, _lp_norm, _by_rows(_one_axis, _te_lp_norm))
)


def _infer_lrn(node: Node) -> list[TensorType]:
    x = type_of(node)
    expect_float(node, x)
    expect_rank(node, x, 2)
    if int(node.attrs["size"]) < 1:
        fail(node, f"size is {node.attrs['size']}, must be at least 1")
    return _plain(node, x)


def lrn_window(node: Node) -> tuple[int, int]:
    """How many channels before and after its own lrn sums: attribute ``before``, by default
    floor of (size - 1) / 2, and what is left of ``size``.
    """
    size = int(node.attrs["size"])
    before = int(node.attrs.get("before", (size - 1) // 2))
    return before, size - 1 - before


def _lrn(node: Node, arrays: Arrays) -> list[AnyArray]:
    """x / (bias + alpha / size * sum of x^2 over ``size`` channels around) ^ beta; x [N,*S,C]."""
    a, size = node.attrs, int(node.attrs["size"])

    def normalise(x: AnyArray) -> AnyArray:
        width: Sequence[tuple[int, int]] = [(0, 0)] * (x.ndim - 1) + [lrn_window(node)]
        square = np.pad(np.square(x), width)
        total = sum(square[..., i : i + x.shape[-1]] for i in range(size))
        return np.asarray(x / np.power(a["bias"] + a["alpha"] / size * total, a["beta"]))

    return [in_float64(normalise, need(arrays))]


def _te_lrn(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """A row of sums over channels first, so that only additions stop at the first and last
    channel: the powers run on whole vectors.
    """
    x, attrs = present(inputs, 0), node.attrs
    size, channels = int(attrs["size"]), x.shape[-1]
    before, _ = lrn_window(node)

    @cache
    def bases_of(pixel: tuple[Index, ...]) -> Tensor:
        def square(c: Index) -> Expr:
            v = x(*pixel, c)
            return v * v

        def base(c: Index) -> Expr:
            first = c - before
            if size <= _LRN_UNROLLED:
                zero, total = const(0, x.dtype), None
                for k in range(size):
                    part = select(inside(first + k, channels), square(first + k), zero)
                    total = part if total is None else total + part
                assert total is not None
            else:
                bounds = (maximum(0, -first), minimum(size, as_index(channels) - first), size)
                total = reduce("sum", [("k", bounds)], lambda k: square(first + k))
            return total * (float(attrs["alpha"]) / size) + float(attrs["bias"])

        return row([("c", channels)], base)

    def element(*i: Index) -> Expr:
        return x(*i) / _power(bases_of(i[:-1])(i[-1]), float(attrs["beta"]))

    return (compute(x.shape, x.dtype, element),)


_LRN_UNROLLED = 16
"""Widest window whose additions are printed one by one."""


def _power(base: Expr, exponent: float) -> Expr:
    """base ^ exponent; the usual exponents by square roots."""
    if exponent == 0.5:
        return call("sqrt", base)
    if exponent == 0.75:
        root = call("sqrt", base)
        return root * call("sqrt", root)
    return base if exponent == 1 else call("pow", base, const(exponent, base.dtype))


register(OpDef("lrn", OpPattern.REDUCE, _infer_lrn, _lrn, _te_lrn))
