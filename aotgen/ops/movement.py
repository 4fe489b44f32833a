"""Ops that move elements without computing.

plan makes reshape, transpose, concat, slice and split zero-copy where it can; pad, expand, tile and
trilu are copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, Sym, TensorType, dim_max
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    broadcasts_to,
    expect_axis,
    expect_rank,
    expect_same_dtype,
    fail,
    need,
    per_axis,
    product,
    text,
    type_of,
)
from aotgen.ops.registry import InferRule, NumpyRule, OpDef, OpPattern, register
from aotgen.te.compute import (
    ComputeRule,
    Tensor,
    broadcast,
    compute,
    inside,
    present,
)
from aotgen.te.expr import Expr, both, const, in_range, select
from aotgen.te.index import (
    Index,
    as_index,
    flatten,
    floormod,
    maximum,
    minimum,
    unflatten,
)
from aotgen.te.simplify import choose


def _infer_reshape(node: Node) -> list[TensorType]:
    x, shape = type_of(node), tuple(node.attrs["shape"])
    if product([dim_max(d) for d in shape]) != x.numel:
        fail(node, f"cannot reshape {text(x.shape)} ({x.numel} elements) to {text(shape)}")
    return [x.with_shape(shape)]


def _reshape(node: Node, arrays: Arrays) -> list[AnyArray]:
    # A symbolic extent is whatever the array leaves for it.
    shape = tuple(-1 if isinstance(d, Sym) else d for d in node.attrs["shape"])
    return [need(arrays).reshape(shape)]


def _infer_transpose(node: Node) -> list[TensorType]:
    x, perm = type_of(node), tuple(node.attrs["perm"])
    if sorted(perm) != list(range(x.rank)):
        fail(node, f"perm {perm} is not a permutation of the axes of {text(x.shape)}")
    return [x.with_shape(tuple(x.shape[p] for p in perm))]


def _transpose(node: Node, arrays: Arrays) -> list[AnyArray]:
    # not ascontiguousarray, which gives a scalar an axis
    return [np.asarray(need(arrays).transpose(node.attrs["perm"]), order="C")]


def _infer_concat(node: Node) -> list[TensorType]:
    types = [type_of(node, i) for i in range(len(node.inputs))]
    if not types:
        fail(node, "has no inputs")
    axis, first = int(node.attrs["axis"]), types[0]
    expect_axis(node, axis, first.rank)
    dtype = expect_same_dtype(node, types)
    for t in types:
        same = t.rank == first.rank and all(
            i == axis or d == e
            for i, (d, e) in enumerate(zip(t.max_shape, first.max_shape, strict=True))
        )
        if not same:
            fail(node, f"cannot join {text(first.shape)} and {text(t.shape)} along axis {axis}")
    extent = first.shape[axis] if len(types) == 1 else sum(t.max_shape[axis] for t in types)
    quant = first.quant if all(t.quant == first.quant for t in types) else None
    return [TensorType(dtype, (*first.shape[:axis], extent, *first.shape[axis + 1 :]), quant)]


def _concat(node: Node, arrays: Arrays) -> list[AnyArray]:
    return [np.concatenate([need(arrays, i) for i in range(len(arrays))], axis=node.attrs["axis"])]


def _slice_ranges(node: Node, rank: int) -> list[range]:
    starts, ends = per_axis(node, "starts", rank), per_axis(node, "ends", rank)
    steps = per_axis(node, "steps", rank)
    return [range(s, e, t) for s, e, t in zip(starts, ends, steps, strict=True)]


def _infer_slice(node: Node) -> list[TensorType]:
    x = type_of(node)
    if 0 in tuple(node.attrs["steps"]):
        fail(node, "a step is 0")
    shape: list[Any] = []
    for axis, r in enumerate(_slice_ranges(node, x.rank)):
        n = x.max_shape[axis]
        if len(r) and not (0 <= r[0] < n and 0 <= r[-1] < n):
            fail(node, f"reads {r[0]}..{r[-1]} along axis {axis} of {text(x.shape)}")
        shape.append(x.shape[axis] if r == range(n) else len(r))
    return [x.with_shape(tuple(shape))]


def _slice(node: Node, arrays: Arrays) -> list[AnyArray]:
    """x[start:end:step] along every axis, as Python's range reads starts, ends and steps.

    So an end of -1 with a negative step includes element 0.
    """
    x = need(arrays)
    where = tuple(
        slice(r.start, None if r.stop < 0 else r.stop, r.step) if len(r) else slice(0, 0)
        for r in _slice_ranges(node, x.ndim)
    )
    return [np.ascontiguousarray(x[where]).reshape(x[where].shape)]


def _infer_split(node: Node) -> list[TensorType]:
    x, axis, sizes = type_of(node), int(node.attrs["axis"]), tuple(node.attrs["sizes"])
    expect_axis(node, axis, x.rank)
    if sum(sizes) != x.max_shape[axis] or min(sizes, default=-1) < 0:
        fail(node, f"sizes {sizes} do not add up to axis {axis} of {text(x.shape)}")
    return [x.with_shape((*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in sizes]


def _split(node: Node, arrays: Arrays) -> list[AnyArray]:
    cuts = np.cumsum(node.attrs["sizes"])[:-1]
    return [np.ascontiguousarray(p) for p in np.split(need(arrays), cuts, axis=node.attrs["axis"])]


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _infer_pad(node: Node) -> list[TensorType]:
    x = type_of(node)
    pads, mode = per_axis(node, "pads", 2 * x.rank), node.attrs["mode"]
    if mode not in _PAD_MODES:
        fail(node, f"mode is {mode!r}, must be one of {', '.join(_PAD_MODES)}")
    shape: list[Any] = []
    for axis, n in enumerate(x.max_shape):
        before, after = pads[axis], pads[x.rank + axis]
        extent = n + before + after
        if extent < 0 or n + min(before, 0) + min(after, 0) < 0:
            fail(node, f"pads {pads} cut more than there is of {text(x.shape)}")
        if mode != "constant" and n == 0 and (before > 0 or after > 0):
            fail(node, f"mode {mode!r} has nothing to copy along axis {axis} of {text(x.shape)}")
        shape.append(x.shape[axis] if before == after == 0 else extent)
    return [x.with_shape(tuple(shape))]


def _pad(node: Node, arrays: Arrays) -> list[AnyArray]:
    """Negative pads crop, then the positive ones extend."""
    x, pads, mode = need(arrays), node.attrs["pads"], node.attrs["mode"]
    begins, ends = pads[: x.ndim], pads[x.ndim :]
    crop = [
        slice(max(-b, 0), n - max(-e, 0)) for b, e, n in zip(begins, ends, x.shape, strict=True)
    ]
    width = [(max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)]
    if x.ndim == 0:
        return [x]
    if mode == "constant":
        value = np.asarray(node.attrs["value"]).astype(x.dtype)
        return [np.pad(x[tuple(crop)], width, constant_values=value)]
    return [np.asarray(np.pad(x[tuple(crop)], width, mode=mode))]


def _infer_expand(node: Node) -> list[TensorType]:
    x, shape = type_of(node), tuple(node.attrs["shape"])
    if not broadcasts_to(x.shape, shape):
        fail(node, f"cannot expand {text(x.shape)} to {text(shape)}")
    return [x.with_shape(shape)]


def _expand(node: Node, arrays: Arrays) -> list[AnyArray]:
    shape = tuple(dim_max(d) for d in node.attrs["shape"])
    return [np.broadcast_to(need(arrays), shape).copy()]


def _infer_tile(node: Node) -> list[TensorType]:
    x = type_of(node)
    repeats = per_axis(node, "repeats", x.rank)
    if min(repeats, default=1) < 0:
        fail(node, f"repeats {repeats} has a negative entry")
    pairs = zip(x.shape, repeats, strict=True)
    return [x.with_shape(tuple(d if r == 1 else dim_max(d) * r for d, r in pairs))]


def _tile(node: Node, arrays: Arrays) -> list[AnyArray]:
    return [np.tile(need(arrays), node.attrs["repeats"])]


def _infer_trilu(node: Node) -> list[TensorType]:
    x = type_of(node)
    expect_rank(node, x, 2)
    return [x]


def _trilu(node: Node, arrays: Arrays) -> list[AnyArray]:
    """The ``upper`` (else lower) triangle that diagonal ``k`` bounds, zeros elsewhere."""
    function = np.triu if node.attrs["upper"] else np.tril
    return [function(need(arrays), int(node.attrs["k"]))]


Inputs = Sequence[Tensor | None]


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(product(shape[axis + 1 :]) for axis in range(len(shape)))


def _te_reshape(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, shape = present(inputs, 0), node.output.shape

    def element(*i: Index) -> Expr:
        return x(*unflatten(flatten(i, dense(shape)), x.shape))

    return (compute(shape, x.dtype, element),)


def _te_transpose(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, perm = present(inputs, 0), tuple(node.attrs["perm"])
    return (
        compute(
            node.output.shape, x.dtype, lambda *i: x(*(i[perm.index(a)] for a in range(x.rank)))
        ),
    )


def _te_concat(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    """A choice along the axis, which the lowering turns into one loop an input."""
    axis, tensors = int(node.attrs["axis"]), [t for t in inputs if t is not None]

    def element(*i: Index) -> Expr:
        end = sum(t.shape[axis] for t in tensors)
        value: Expr | None = None
        for t in reversed(tensors):
            start = end - t.shape[axis]
            if t.shape[axis]:
                part = t(*i[:axis], i[axis] - start, *i[axis + 1 :])
                value = part if value is None else select(in_range(end - 1 - i[axis]), part, value)
            end = start
        return const(0, node.output.dtype) if value is None else value

    return (compute(node.output.shape, node.output.dtype, element),)


def _te_slice(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, starts, steps = present(inputs, 0), node.attrs["starts"], node.attrs["steps"]

    def element(*i: Index) -> Expr:
        return x(*(k * step + start for k, start, step in zip(i, starts, steps, strict=True)))

    return (compute(node.output.shape, x.dtype, element),)


def _te_split(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, axis, outputs = present(inputs, 0), int(node.attrs["axis"]), []
    start = 0
    for value in node.outputs:

        def element(*i: Index, start: int = start) -> Expr:
            return x(*i[:axis], i[axis] + start, *i[axis + 1 :])

        outputs.append(compute(value.shape, x.dtype, element))
        start += value.shape[axis]
    return tuple(outputs)


def _reflected(position: Index, n: int, before: int, after: int) -> Index:
    """``position`` mirrored into 0..n-1 about the first and the last element."""
    if n == 1:
        return as_index(0)
    if max(before, after) < n:
        end = choose(in_range(position - n), 2 * (n - 1) - position, position)
        return choose(in_range(-1 - position), -position, end)
    around = floormod(position, 2 * (n - 1))
    return minimum(around, 2 * (n - 1) - around)


def _wrapped(position: Index, n: int, before: int, after: int) -> Index:
    if max(before, after) <= n:
        end = choose(in_range(position - n), position - n, position)
        return choose(in_range(-1 - position), position + n, end)
    return floormod(position, n)


def _te_pad(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, pads, mode = present(inputs, 0), tuple(node.attrs["pads"]), node.attrs["mode"]
    begins, ends = pads[: x.rank], pads[x.rank :]
    fill = const(node.attrs["value"], x.dtype) if mode == "constant" else None

    def element(*i: Index) -> Expr:
        where: list[Index] = []
        cond: Expr = const(True, DType.BOOL)
        for index, before, after, extent in zip(i, begins, ends, x.shape, strict=True):
            cut = max(-before, 0)
            n = extent - cut - max(-after, 0)
            position = index - max(before, 0)
            if mode == "constant":
                cond = both(cond, inside(position, n))
            elif mode == "edge":
                position = maximum(0, minimum(position, n - 1))
            elif mode == "reflect":
                position = _reflected(position, n, before, after)
            else:
                position = _wrapped(position, n, before, after)
            where.append(position + cut)
        value = x(*where)
        return value if fill is None else select(cond, value, fill)

    return (compute(node.output.shape, x.dtype, element),)


def _te_expand(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, shape = present(inputs, 0), node.output.shape
    return (compute(shape, x.dtype, lambda *i: broadcast(x, i, shape)),)


def _te_tile(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x = present(inputs, 0)

    def element(*i: Index) -> Expr:
        return x(*(floormod(k, n) for k, n in zip(i, x.shape, strict=True)))

    return (compute(node.output.shape, x.dtype, element),)


def _te_trilu(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, k, upper = present(inputs, 0), int(node.attrs["k"]), bool(node.attrs["upper"])

    def element(*i: Index) -> Expr:
        right = i[-1] - i[-2] - k
        kept = in_range(right) if upper else in_range(-right)
        return select(kept, x(*i), const(0, x.dtype))

    return (compute(x.shape, x.dtype, element),)


_COMPUTE: dict[str, ComputeRule] = {
    "reshape": _te_reshape,
    "transpose": _te_transpose,
    "concat": _te_concat,
    "slice": _te_slice,
    "split": _te_split,
    "pad": _te_pad,
    "expand": _te_expand,
    "tile": _te_tile,
    "trilu": _te_trilu,
}

_OPS: dict[str, tuple[InferRule, NumpyRule]] = {
    "reshape": (_infer_reshape, _reshape),
    "transpose": (_infer_transpose, _transpose),
    "concat": (_infer_concat, _concat),
    "slice": (_infer_slice, _slice),
    "split": (_infer_split, _split),
    "pad": (_infer_pad, _pad),
    "expand": (_infer_expand, _expand),
    "tile": (_infer_tile, _tile),
    "trilu": (_infer_trilu, _trilu),
}

for _name, (_infer, _numpy) in _OPS.items():
    register(OpDef(_name, OpPattern.INJECTIVE, _infer, _numpy, _COMPUTE[_name]))
