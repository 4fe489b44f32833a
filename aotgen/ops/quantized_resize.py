"""resize_bilinear_int: bilinear resizing of 8- and 16-bit images as TFLite's reference kernels.

Signed elements are weighted in fixed point with 10 bits behind the point an axis, unsigned ones in
float32. Attributes: sizes (height, width), align_corners, half_pixel. Everything else that is
resized is the op resize.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import AnyArray, Arrays, expect_rank, fail, need, per_axis, type_of
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, present, table
from aotgen.te.expr import Expr, call, cast, const, select
from aotgen.te.index import Index
from aotgen.te.simplify import elem

BITS = 10
"""Bits behind the point of a position along one axis."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Taps:
    """How one axis is resized: y[i] is near[i] * x[low[i]] + far[i] * x[high[i]].

    Attributes:
        low, high: int32 [out].
        near, far: weights [out], int32 with ``BITS`` behind the point, or float32.
    """

    low: Ints
    high: Ints
    near: AnyArray
    far: AnyArray


def fixed_taps(n: int, out: int, align_corners: bool, half_pixel: bool) -> Taps:
    """Taps of an axis of ``n`` elements in fixed point; a position before the first element has
    weights above 1 and below 0, of the same element.
    """
    scale = ((n << BITS) + out // 2) // out
    if align_corners and out > 1:
        scale = (((n - 1) << BITS) + (out - 1) // 2) // (out - 1)
    place = np.arange(out, dtype=np.int64) * scale
    if half_pixel:
        place += scale // 2 - (1 << (BITS - 1))
    one = 1 << BITS
    low = np.maximum(place // one, 0)
    # Rounded toward zero, which differs before the first element alone.
    high = np.minimum(np.maximum(place + one - 1, 0) // one, n - 1)
    far = place - low * one
    return Taps(*(v.astype(np.int32) for v in (low, high, one - far, far)))


def float_taps(n: int, out: int, align_corners: bool, half_pixel: bool) -> Taps:
    """Taps of an axis of ``n`` elements in float32."""
    f = np.float32
    scale = f(n - 1) / f(out - 1) if align_corners and out > 1 else f(n) / f(out)
    position = np.arange(out, dtype=f)
    place = (position + f(0.5)) * scale - f(0.5) if half_pixel else position * scale
    low = np.maximum(np.floor(place), f(0)).astype(np.int32)
    high = np.minimum(np.ceil(place), f(n - 1)).astype(np.int32)
    far = np.asarray(place - low.astype(f), f)
    return Taps(low, high, np.asarray(f(1) - far, f), far)


def nearest_positions(n: int, out: int, align_corners: bool, half_pixel: bool) -> Ints:
    """int32 [out]: the elements that RESIZE_NEAREST_NEIGHBOR takes along an axis of ``n``."""
    f = np.float32
    scale = f(n - 1) / f(out - 1) if align_corners and out > 1 else f(n) / f(out)
    place = (np.arange(out, dtype=f) + f(0.5 if half_pixel else 0.0)) * scale
    # A float32 plus 0.5 is exact in float64: TfLiteRound, of values that are not negative.
    whole = np.floor(place.astype(np.float64) + (0.5 if align_corners else 0.0))
    return np.clip(whole, 0, n - 1).astype(np.int32)


def _infer(node: Node) -> list[TensorType]:
    x = type_of(node)
    expect_rank(node, x, 4, 4)
    if x.dtype not in (DType.I8, DType.U8, DType.I16):
        fail(node, f"needs elements of 8 or 16 bits, not {x.dtype.value}")
    height, width = per_axis(node, "sizes", 2)
    if min(height, width, *x.max_shape) < 1:
        fail(node, f"cannot resize {x.max_shape} to {height}x{width}")
    return [x.with_shape((x.shape[0], height, width, x.shape[3]))]


def _taps(node: Node) -> tuple[Taps, Taps]:
    """Of the rows and the columns."""
    x, attrs = node.input(0), node.attrs
    make = float_taps if x.dtype is DType.U8 else fixed_taps
    how = bool(attrs["align_corners"]), bool(attrs["half_pixel"])
    shape = x.type.max_shape
    rows, columns = (make(shape[1 + k], attrs["sizes"][k], *how) for k in (0, 1))
    return rows, columns


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    x = need(arrays)
    rows, columns = _taps(node)
    exact = x.dtype != np.uint8
    values = x.astype(np.int64 if exact else np.float32)

    def corner(row: str, column: str) -> tuple[AnyArray, AnyArray, AnyArray]:
        at = {"near": "low", "far": "high"}
        cells = values[:, getattr(rows, at[row])][:, :, getattr(columns, at[column])]
        return cells, getattr(rows, row)[:, None, None], getattr(columns, column)[None, :, None]

    total: AnyArray | None = None
    for row, column in _CORNERS:
        cells, a, b = corner(row, column)
        part = cells * a * b
        total = part if total is None else total + part
    assert total is not None
    if not exact:
        return [np.trunc(total + np.float32(0.5)).astype(x.dtype)]
    half = 1 << (2 * BITS - 1)
    return [(np.sign(total) * ((np.abs(total) + half) >> (2 * BITS))).astype(x.dtype)]


_CORNERS = (("near", "near"), ("far", "near"), ("near", "far"), ("far", "far"))
"""(row, column) in the order in which the products of float32 are added up."""


def _te(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x = present(inputs, 0)
    taps = dict(zip(("row", "column"), _taps(node), strict=True))
    extents = {"row": x.shape[1], "column": x.shape[2]}
    dtype = {DType.U8: DType.F32, DType.I8: DType.I32, DType.I16: DType.I64}[x.dtype]
    places = {
        (axis, end): table(f"{axis}_{end}", getattr(t, end))
        for axis, t in taps.items()
        for end in ("low", "high")
    }
    weights = {
        (axis, end): table(f"{axis}_{end}", getattr(t, end).astype(dtype.numpy))
        for axis, t in taps.items()
        for end in ("near", "far")
    }

    def place(axis: str, weight: str, i: Index) -> Index:
        end = "low" if weight == "near" else "high"
        return elem(places[axis, end](i), (0, extents[axis] - 1))

    def element(n: Index, i: Index, j: Index, c: Index) -> Expr:
        def cell(row: str, column: str) -> Expr:
            return cast(dtype, x(n, place("row", row, i), place("column", column, j), c))

        if dtype is DType.F32:
            parts = [
                cell(r, k) * weights["row", r](i) * weights["column", k](j) for r, k in _CORNERS
            ]
            total = ((parts[0] + parts[1]) + parts[2]) + parts[3]
            return cast(x.dtype, cast(DType.I32, total + 0.5))

        def line(row: str) -> Expr:
            near = cell(row, "near") * weights["column", "near"](j)
            return (near + cell(row, "far") * weights["column", "far"](j)) * weights["row", row](i)

        total = line("near") + line("far")
        if dtype is DType.I32:
            return cast(x.dtype, call("rounding_shift", total, const(2 * BITS, DType.I32)))
        half, zero = const(1 << (2 * BITS - 1), dtype), const(0, dtype)
        away = select(call("less", total, zero), total - half, total + half)
        return cast(x.dtype, call("div", away, const(1 << (2 * BITS), dtype)))

    return (compute(node.output.shape, x.dtype, element),)


register(OpDef("resize_bilinear_int", OpPattern.INJECTIVE, _infer, _numpy, _te))
