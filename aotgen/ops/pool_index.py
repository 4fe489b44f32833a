"""max_pool_index: where max_pool found each maximum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_rank,
    expect_same_dtype,
    need,
    pad_spatial,
    per_axis,
    taps,
    type_of,
)
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, as_data, compute, present, reduce, window
from aotgen.te.expr import Expr, call, cast, const, select
from aotgen.te.index import Index, as_index

_NOWHERE = 2**31 - 1


def _infer(node: Node) -> list[TensorType]:
    """x [N, *S, C] and y [N, *O, C] = max_pool(x), with max_pool's attributes and ``strides_of``:
    what a step along each axis of x, channels last, adds to the result. Gives i64, y's shape.
    """
    x, y = type_of(node, 0), type_of(node, 1)
    expect_rank(node, x, 3)
    expect_rank(node, y, x.rank, x.rank)
    expect_same_dtype(node, [x, y])
    per_axis(node, "strides_of", x.rank)
    return [y.with_dtype(DType.I64)]


def _places(node: Node) -> AnyArray:
    """Of each cell [1, *S, 1] what the spatial axes add to the result."""
    shape, steps = node.input(0).shape, node.attrs["strides_of"]
    grids = np.indices(shape[1:-1], dtype=np.int64)
    total = sum(g * s for g, s in zip(grids, steps[1:-1], strict=True))
    return np.asarray(total)[None, ..., None]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    """The first cell of the window, in row-major order, that holds the maximum."""
    x, y, a = need(arrays, 0), need(arrays, 1), node.attrs
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    inside = pad_spatial(np.ones((1, *x.shape[1:-1], 1), bool), a["pads"], False)
    places = pad_spatial(_places(node), a["pads"], 0)
    padded = pad_spatial(x, a["pads"], lowest)
    out = y.shape[1:-1]
    windows = [taps(t, a["kernel"], a["strides"], a["dilations"], out) for t in (padded, places)]
    mask = taps(inside, a["kernel"], a["strides"], a["dilations"], out)
    best = np.full(y.shape, _NOWHERE, np.int64)
    for (_, cells), (_, place), (_, real) in zip(*windows, mask, strict=True):
        hit = (cells == y) & real & (best == _NOWHERE)
        best = np.where(hit, place, best)
    best = np.minimum(best, places.max())
    n, c = np.arange(x.shape[0]), np.arange(x.shape[-1])
    steps = a["strides_of"]
    shape = (-1,) + (1,) * (x.ndim - 1)
    return [best + (n * steps[0]).reshape(shape) + c * steps[-1]]


def _te(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, y, a = present(inputs, 0), present(inputs, 1), node.attrs
    spatial, steps = x.rank - 2, tuple(a["strides_of"])
    begins = a["pads"][:spatial]
    last = math.prod(x.shape[1:-1]) - 1
    rows = strides_in_file(x.shape, column_major=False)[1:-1]

    def element(*i: Index) -> Expr:
        axes = []
        for k in range(spatial):
            bounds = window(
                i[1 + k],
                a["strides"][k],
                begins[k],
                a["dilations"][k],
                a["kernel"][k],
                x.shape[1 + k],
            )
            axes.append((f"k{k}", bounds))

        def tap(*t: Index) -> Expr:
            where = [
                i[1 + k] * a["strides"][k] - begins[k] + t[k] * a["dilations"][k]
                for k in range(spatial)
            ]
            place = as_index(0)
            for position, step in zip(where, rows, strict=True):
                place = place + position * step
            hit = call("equal", x(i[0], *where, i[-1]), y(*i))
            return select(hit, as_data(place, DType.I32), const(_NOWHERE, DType.I32))

        # The first cell is that of the least row-major place, however places are counted.
        first = call("min", const(last, DType.I32), reduce("min", axes, tap))
        if rows != steps[1:-1]:
            first = _recounted(first, rows, steps[1:-1])
        rest = as_data(i[0] * steps[0] + i[-1] * steps[-1], DType.I64)
        return cast(DType.I64, first) + rest

    return (compute(node.output.shape, DType.I64, element),)


def _recounted(place: Expr, old: Sequence[int], new: Sequence[int]) -> Expr:
    """A place counted with strides ``old``, the last one 1, in strides ``new``."""
    total: Expr = const(0, DType.I32)
    for before, after in zip(old, new, strict=True):
        total = total + call("div", place, const(before, DType.I32)) * after
        place = call("rem", place, const(before, DType.I32))
    return total


def strides_in_file(shape: Sequence[int], column_major: bool) -> tuple[int, ...]:
    """``strides_of`` for positions in a file's [N, C, *S], from the channels-last ``shape``;
    ``column_major`` counts within the spatial axes with the first one fastest.
    """
    spatial = shape[1:-1]
    plane = math.prod(spatial)
    steps = [1] * len(spatial)
    order = range(1, len(spatial)) if column_major else range(len(spatial) - 2, -1, -1)
    for k in order:
        before = k - 1 if column_major else k + 1
        steps[k] = steps[before] * spatial[before]
    return (plane * shape[-1], *steps, plane)


register(OpDef("max_pool_index", OpPattern.OPAQUE, _infer, _numpy, _te))
