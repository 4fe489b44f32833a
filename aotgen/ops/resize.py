"""resize with ONNX's coordinate modes: nearest, linear and cubic, one axis at a time.

Each axis is a table: which input elements an output element reads, and their weights. The numpy
semantics and the compute definition read the same tables. Coordinates are float32, as ONNX defines
scales and as onnxruntime computes them, so that nearest picks the same elements; weighted sums are
float64, rounded once.

Attributes of a node: mode (nearest, linear, cubic); sizes and scales (full rank: output extents and
the factors that coordinates use); coord; nearest_mode; cubic_a; exclude_outside; extrapolation (the
value outside the region of interest); roi (begins, then ends, full rank; only tf_crop_and_resize
reads it); antialias (linear and cubic filters grow where an axis shrinks; absent is false).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import AnyArray, Arrays, fail, need, per_axis, type_of
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, int_range, present, reduce, table
from aotgen.te.expr import Expr, call, cast, const, select
from aotgen.te.index import Index, IndexLike, as_index, floordiv
from aotgen.te.simplify import elem

_MODES = ("nearest", "linear", "cubic")
_COORDS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AxisTable:
    """How one axis is resampled: y[i] is the sum over t of weights[i,t] * x[indices[i,t]].

    Attributes:
        indices: int64 [out, taps], all inside the input.
        weights: float32 [out, taps].
        outside: bool [out]: the coordinate lies outside the input and ``extrapolation`` is the
            result (only tf_crop_and_resize).
        extent: of the input axis.
    """

    indices: npt.NDArray[np.int64]
    weights: FloatArray
    outside: npt.NDArray[np.bool_]
    extent: int

    @property
    def is_identity(self) -> bool:
        """Every output element is the input element of the same index."""
        n = len(self.indices)
        return (
            n == self.extent
            and self.indices.shape[1] == 1
            and not self.outside.any()
            and np.array_equal(self.indices[:, 0], np.arange(n))
        )


def source_coordinates(node: Node, axis: int) -> FloatArray:
    """float32 [out]: where along ``axis`` of the input each output element lies."""
    f = np.float32
    n, out = node.input(0).shape[axis], int(node.attrs["sizes"][axis])
    scale, mode, x = f(node.attrs["scales"][axis]), node.attrs["coord"], np.arange(out, dtype=f)
    if mode == "asymmetric":
        return np.asarray(x / scale, f)
    if mode == "align_corners":
        return np.asarray(x * f(n - 1) / f(max(out - 1, 1)), f)
    if mode == "tf_crop_and_resize":
        roi, rank = node.attrs["roi"], len(node.attrs["sizes"])
        start, end = f(roi[axis]), f(roi[rank + axis])
        if out > 1:
            return np.asarray(start * f(n - 1) + x * (end - start) * f(n - 1) / f(out - 1), f)
        return np.full(out, f(0.5) * (start + end) * f(n - 1), f)
    if mode == "pytorch_half_pixel" and out <= 1:
        return np.zeros(out, f)
    if mode == "half_pixel_symmetric":
        # The extent was rounded down from scale * n: keep the image's centre where it is.
        offset = f(n) / f(2) * (f(1) - f(out) / (scale * f(n)))
        return np.asarray(float(offset) + (x.astype(np.float64) + 0.5) / float(scale) - 0.5, f)
    return np.asarray((x + f(0.5)) / scale - f(0.5), f)


def _nearest_indices(coordinates: FloatArray, rounding: str) -> npt.NDArray[np.int64]:
    c = coordinates.astype(np.float64)
    # A float32 coordinate that should be a tie is a few units in the last place off it, and which
    # side is chance: what the two tie rules say holds for these neighbours as well.
    tie = np.maximum(np.abs(c), 1.0) * 2.0**-21
    if rounding == "floor":
        found = np.floor(c)
    elif rounding == "ceil":
        found = np.ceil(c)
    elif rounding == "round_prefer_floor":
        found = np.ceil(c - 0.5 - tie)
    else:
        found = np.floor(c + 0.5 + tie)
    return found.astype(np.int64)


def _cubic(distance: AnyArray, a: float) -> npt.NDArray[np.float64]:
    """Keys' convolution kernel (IEEE Trans. ASSP 29, 1981)."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0.0)), np.float64)


def _cubic_weights(fraction: FloatArray, a: float) -> npt.NDArray[np.float64]:
    """Weights at distances 1+t, t, 1-t, 2-t."""
    t = fraction.astype(np.float64)
    return np.stack([_cubic(d, a) for d in (1 + t, t, 1 - t, 2 - t)], axis=-1)


def _antialiased(node: Node, axis: int, c: FloatArray) -> AxisTable:
    """An axis that shrinks by a filter stretched to the distance of output elements. What it reads
    outside the input is the element at the edge, or nothing with ``exclude_outside``.
    """
    n, attrs = node.input(0).shape[axis], node.attrs
    scale = float(np.float32(attrs["scales"][axis]))
    linear = attrs["mode"] == "linear"
    support = (1.0 if linear else 2.0) / scale
    centre = c.astype(np.float64)
    first = np.floor(centre - support).astype(np.int64) + 1
    indices = first[:, None] + np.arange(int(np.ceil(2 * support)) + 1)
    distance = (indices - centre[:, None]) * scale
    if linear:
        weights = np.clip(1 - np.abs(distance), 0, 1)
    else:
        weights = _cubic(distance, float(attrs["cubic_a"]))
    if attrs["exclude_outside"]:
        weights = np.where((indices < 0) | (indices >= n), 0.0, weights)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    while not weights[:, -1].any():
        indices, weights = indices[:, :-1], weights[:, :-1]
    nothing = np.zeros(len(c), bool)
    return AxisTable(np.clip(indices, 0, n - 1), weights.astype(np.float32), nothing, n)


def axis_table(node: Node, axis: int) -> AxisTable:
    """The table of ``axis`` (0 <= axis < rank) of a resize node."""
    n, out, attrs = node.input(0).shape[axis], int(node.attrs["sizes"][axis]), node.attrs
    nothing = np.zeros(out, bool)
    crops = attrs["coord"] == "tf_crop_and_resize"
    if n == out and attrs["scales"][axis] == 1 and not crops:
        return AxisTable(np.arange(n)[:, None], np.ones((n, 1), np.float32), nothing, n)
    c = source_coordinates(node, axis)
    outside = (c < 0) | (c > n - 1) if crops else nothing
    if attrs["mode"] == "nearest":
        indices = np.clip(_nearest_indices(c, attrs["nearest_mode"]), 0, n - 1)
        return AxisTable(indices[:, None], np.ones((out, 1), np.float32), outside, n)
    if attrs.get("antialias") and attrs["scales"][axis] < 1 and not crops:
        return _antialiased(node, axis, c)
    if attrs["mode"] == "linear":
        c = np.clip(c, 0, n - 1).astype(np.float32)
        low = np.floor(c).astype(np.int64)
        fraction = c - low.astype(np.float32)
        indices = np.stack([low, np.minimum(low + 1, n - 1)], axis=-1)
        weights = np.stack([np.float32(1) - fraction, fraction], axis=-1)
        return AxisTable(indices, weights.astype(np.float32), outside, n)
    base = np.floor(c)
    indices = base.astype(np.int64)[:, None] + np.arange(-1, 3)
    cubic = _cubic_weights(c - base, float(attrs["cubic_a"]))
    if attrs["exclude_outside"]:
        cubic = np.where((indices < 0) | (indices >= n), 0.0, cubic)
        cubic = cubic / cubic.sum(axis=-1, keepdims=True)
    return AxisTable(np.clip(indices, 0, n - 1), cubic.astype(np.float32), outside, n)


def _infer(node: Node) -> list[TensorType]:
    x = type_of(node)
    sizes = per_axis(node, "sizes", x.rank)
    per_axis(node, "scales", x.rank)
    for name, allowed in (("mode", _MODES), ("coord", _COORDS), ("nearest_mode", _NEAREST)):
        if node.attrs[name] not in allowed:
            fail(node, f"{name} is {node.attrs[name]!r}, must be one of {', '.join(allowed)}")
    if min(sizes, default=1) < 1 or min(x.max_shape, default=1) < 1:
        fail(node, f"cannot resize {x.max_shape} to {sizes}")
    if node.attrs["coord"] == "tf_crop_and_resize":
        per_axis(node, "roi", 2 * x.rank)
    pairs = zip(x.shape, x.max_shape, sizes, strict=True)
    return [x.with_shape(tuple(d if n == size else size for d, n, size in pairs))]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    x = need(arrays)
    exact = node.attrs["mode"] == "nearest"
    y: AnyArray = x if exact else x.astype(np.float64)
    outside = np.zeros((1,) * x.ndim, bool)
    for axis in range(x.ndim):
        table = axis_table(node, axis)
        if table.is_identity:
            continue
        shape = [1] * x.ndim
        shape[axis] = len(table.indices)
        outside = outside | table.outside.reshape(shape)
        if exact:
            y = np.take(y, table.indices[:, 0], axis=axis)
            continue
        y = np.asarray(
            sum(
                np.take(y, table.indices[:, t], axis=axis) * table.weights[:, t].reshape(shape)
                for t in range(table.indices.shape[1])
            )
        )
    if outside.any():
        y = np.where(outside, y.dtype.type(node.attrs["extrapolation"]), y)
    if not exact and x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        y = np.clip(np.trunc(y), info.min, info.max)
    return [y.astype(x.dtype)]


def _te_positions(found: AxisTable, name: str) -> Callable[[Index, IndexLike], Index]:
    """(output index, tap) -> input index; regular patterns need no table."""
    columns = found.indices
    out, taps = columns.shape
    for factor in range(1, out + 1):
        if taps == 1 and np.array_equal(columns[:, 0], np.arange(out) // factor):
            return lambda i, t: floordiv(i, factor)
    step = int(columns[1, 0] - columns[0, 0]) if out > 1 else 1
    if taps == 1 and np.array_equal(columns[:, 0], columns[0, 0] + step * np.arange(out)):
        return lambda i, t: i * step + int(columns[0, 0])
    rows = table(f"{name}_index", columns.astype(np.int32))
    return lambda i, t: elem(rows(i, as_index(t)), (0, found.extent - 1))


_UNROLLED = 4
"""Most taps of an axis that are printed one by one."""


def _te_resize(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, exact = present(inputs, 0), node.attrs["mode"] == "nearest"
    dtype = x.dtype if exact or x.dtype.is_float else DType.F64
    found = [axis_table(node, axis) for axis in range(x.rank)]
    changed = [axis for axis, t in enumerate(found) if not t.is_identity]
    positions = {a: _te_positions(found[a], f"axis{a}") for a in changed}
    weights = {
        a: table(f"axis{a}_weight", found[a].weights.astype(dtype.numpy))
        for a in changed
        if not exact
    }
    crops = [a for a in changed if found[a].outside.any()]
    outside = {a: table(f"axis{a}_outside", found[a].outside) for a in crops}

    filters = [a for a in changed if found[a].indices.shape[1] > _UNROLLED]
    short = [a for a in changed if a not in filters]

    def filtered(i: tuple[Index, ...]) -> Expr:
        """The sum over the taps of the axes that have many."""

        def product(*taps: Index) -> Expr:
            where, value = list(i), None
            for axis, t in zip(filters, taps, strict=True):
                weight = weights[axis](i[axis], t)
                where[axis] = positions[axis](i[axis], t)
                value = weight if value is None else value * weight
            inner = blend(tuple(where), short)
            return inner if value is None else inner * value

        axes = [(f"t{a}", found[a].indices.shape[1]) for a in filters]
        return reduce("sum", axes, product) if axes else blend(i, short)

    def blend(i: tuple[Index, ...], todo: Sequence[int]) -> Expr:
        """The weighted sum over the taps of every axis in ``todo``, the first one outermost."""
        if not todo:
            return cast(dtype, x(*i))
        axis, total = todo[0], None
        for t in range(found[axis].indices.shape[1]):
            where = (*i[:axis], positions[axis](i[axis], t), *i[axis + 1 :])
            value = blend(where, todo[1:])
            if not exact:
                value = value * weights[axis](i[axis], as_index(t))
            total = value if total is None else total + value
        assert total is not None
        return total

    def element(*i: Index) -> Expr:
        value = filtered(i)
        for axis in crops:
            fill = const(node.attrs["extrapolation"], dtype)
            value = select(outside[axis](i[axis]), fill, value)
        if dtype is not x.dtype:
            low, high = (const(bound, dtype) for bound in int_range(x.dtype))
            value = call("min", high, call("max", low, value))
        return cast(x.dtype, value)

    return (compute(node.output.shape, x.dtype, element),)


register(OpDef("resize", OpPattern.INJECTIVE, _infer, _numpy, _te_resize))
