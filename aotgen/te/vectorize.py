"""Which axis may run along the vector lanes, and what borders a loop is split at.

Decisions only, made from a nest's expressions; ``aotgen.te.lower`` writes the loops they ask for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aotgen.ir.types import DType
from aotgen.te.c_printer import INTEGER, INTEGER_COMPARE, SHIFT, VECTOR, VECTOR_COMPARE
from aotgen.te.compute import int_range
from aotgen.te.expr import (
    Call,
    Cast,
    Const,
    Expr,
    InRange,
    Load,
    Param,
    Reduce,
    RowLoad,
    Select,
)
from aotgen.te.index import Axis, Extremum, Index, as_index, atoms_of, of_atom
from aotgen.te.simplify import heavy, walk
from aotgen.te.stage import Nest, Stage, all_indices

MAX_SEGMENTS = 33
"""Most loops that one axis is split into; concatenations have one an input."""

UNIT = frozenset((0, 1))
BYTES = frozenset((DType.I8, DType.U8))
NARROW = BYTES | {DType.I16, DType.U16}
WHOLE = NARROW | {DType.I32}
"""Types whose elements lanes of 32 bits hold."""
HORIZONTAL = {"sum": "vsum", "max": "vmaxr", "min": "vminr", "max_nan": "vmaxr", "min_nan": "vminr"}
"""Combiners that join the lanes of a vector, and the word of simd.h that does."""


def vectorisable(expr: Expr, axis: Axis, strides: frozenset[int], *, stored: bool = True) -> bool:
    """Whether a value can be computed for VL neighbours along ``axis``: floats with loads of these
    strides, or integers in lanes of 32 bits with loads of neighbours.

    ``stored``: the value goes to memory as it is, so that the low bits of a lane are enough.
    """
    known: dict[Expr, bool] = {}
    integers: dict[Expr, bool] = {}

    def flat(offset: Index) -> bool:
        return offset.coefficient(axis) in strides

    def mask(node: Expr) -> bool:
        if axis not in node.free or not isinstance(node, Call):
            return False
        if node.fn in INTEGER_COMPARE and node.args[0].dtype is DType.I32:
            return all(integer(a) for a in node.args)
        if node.fn in VECTOR_COMPARE or node.fn == "isnan":
            return node.args[0].dtype is DType.F32 and all(value(a) for a in node.args)
        return node.fn in ("and", "or", "not") and all(mask(a) for a in node.args)

    def uniform(cond: Expr) -> bool:
        return axis not in cond.free or (mask(cond) and not is_guard(cond))

    def integer(node: Expr) -> bool:
        if node not in integers:
            integers[node] = decide_integer(node)
        return integers[node]

    def decide_integer(node: Expr) -> bool:
        """Whether the value fits lanes of 32 bits."""
        dtype = node.dtype
        if axis not in node.free:
            return dtype in WHOLE
        if dtype not in WHOLE:
            return False
        if isinstance(node, Load):
            return node.indices[0].coefficient(axis) == 1
        if isinstance(node, RowLoad):
            return unit_row(node) and dtype is DType.I32
        if isinstance(node, Cast):
            if dtype is not DType.I32:
                return node.a.dtype in WHOLE and integer(node.a) and within(node.a, dtype)
            return value(node.a) if node.a.dtype is DType.F32 else integer(node.a)
        if isinstance(node, Call):
            if node.fn in SHIFT:
                by = node.args[1]
                return dtype is DType.I32 and integer(node.args[0]) and _is_amount(by)
            exact = dtype is DType.I32 or node.fn in ("max", "min")
            return exact and node.fn in INTEGER and all(map(integer, node.args))
        if isinstance(node, Reduce):
            exact = node.combiner in ("max", "min") or (
                node.combiner == "sum" and dtype is DType.I32
            )
            return exact and bounds_stay(node) and integer(node.body)
        if isinstance(node, Select):
            return integer(node.a) and integer(node.b) and uniform(node.cond)
        return False

    def unit_row(node: RowLoad) -> bool:
        return node.indices[-1].coefficient(axis) == 1 and all(
            axis not in i.free for i in node.indices[:-1]
        )

    def bounds_stay(node: Reduce) -> bool:
        return all(axis not in bound.free for pair in node.bounds for bound in pair)

    def value(node: Expr) -> bool:
        if node not in known:
            known[node] = decide(node)
        return known[node]

    def decide(node: Expr) -> bool:
        if axis not in node.free:
            return node.dtype is DType.F32
        if isinstance(node, Load):
            return node.dtype is DType.F32 and flat(node.indices[0])
        if isinstance(node, RowLoad):
            return node.dtype is DType.F32 and (unit_row(node) or axis in node.row.free)
        if isinstance(node, Param):
            return node.dtype is DType.F32
        if isinstance(node, Call):
            return (
                node.fn in VECTOR and node.dtype is DType.F32 and all(value(a) for a in node.args)
            )
        if isinstance(node, Cast):
            if node.dtype is DType.F32 and node.a.dtype is DType.I32:
                return integer(node.a)
            return node.dtype is DType.F32 and node.a.dtype is DType.BOOL and mask(node.a)
        if isinstance(node, Reduce):  # every lane has a sum of its own
            return node.combiner in HORIZONTAL and bounds_stay(node) and value(node.body)
        if isinstance(node, Select):
            return value(node.a) and value(node.b) and uniform(node.cond)
        return False

    if expr.dtype is DType.F32:
        return value(expr)
    if not stored:
        return integer(expr)
    if isinstance(expr, Cast) and expr.dtype in NARROW and expr.a.dtype in WHOLE:
        return axis in expr.free and integer(expr.a)
    return not isinstance(expr, Load) and integer(expr)


def _is_amount(expr: Expr) -> bool:
    return isinstance(expr, Const) and 1 <= int(expr.value) <= 31


def within(expr: Expr, dtype: DType) -> bool:
    """Whether clamps show that an integer is one of ``dtype``, so that a cast changes nothing."""
    (least, most), (lowest, highest) = int_range(dtype), _interval(expr)
    return least <= lowest and highest <= most


def _interval(expr: Expr) -> tuple[float, float]:
    """Bounds of an integer's value, as far as types, literals and clamps tell."""
    if isinstance(expr, Const):
        return float(expr.value), float(expr.value)
    if expr.dtype in NARROW:
        least, most = int_range(expr.dtype)
        return float(least), float(most)
    if isinstance(expr, Cast) and expr.a.dtype in NARROW:
        return _interval(expr.a)
    if isinstance(expr, Call) and expr.fn in ("max", "min"):
        (a, b), (c, d) = map(_interval, expr.args)
        return (max(a, c), max(b, d)) if expr.fn == "max" else (min(a, c), min(b, d))
    return -math.inf, math.inf


def is_guard(cond: Expr) -> bool:
    """Whether a condition protects memory accesses: it tests an index."""
    return any(isinstance(n, InRange) for n in walk(cond))


def choose_outer_lane(nest: Nest, vl: int) -> Axis | None:
    """An outer axis along which every stage can work on vectors: contiguous in all memory, absent
    from loop bounds.
    """
    if vl == 1 or len(nest.stages) == 1:
        return None
    rows_kept = all(s.row is None or s.row == nest.row_in_output for s in nest.stages)
    for axis in reversed(nest.outer):
        if nest.store.coefficient(axis) != 1 or not rows_kept:
            continue
        bounds = [
            i
            for s in nest.stages
            if isinstance(s.expr, Reduce)
            for pair in s.expr.bounds
            for i in pair
        ]
        if any(axis in b.free for b in bounds):
            continue
        if nest.dtype is not DType.F32 and nest.dtype not in WHOLE:
            continue
        if all(_stage_fits(s, axis) for s in nest.stages):
            return axis
    return None


def _stage_fits(stage: Stage, axis: Axis) -> bool:
    """Whether a stage can work on vectors along an outer ``axis``."""
    expr = stage.expr
    if not isinstance(expr, Reduce):
        return vectorisable(expr, axis, UNIT)
    if expr.dtype is DType.F32:
        return vectorisable(expr.body, axis, UNIT)
    return expr.combiner in ("sum", "max", "min") and vectorisable(expr, axis, UNIT, stored=False)


def lane_of(axes: Sequence[Axis], expr: Expr, store: Index, vl: int) -> Axis | None:
    """The axis of a row or output stage that can run along the lanes."""
    if vl == 1 or not axes or (expr.dtype is not DType.F32 and expr.dtype not in WHOLE):
        return None
    axis = axes[-1]
    strides = UNIT
    if heavy(expr) and axis.extent >= vl:
        strides = load_strides(expr, axis) | UNIT
    plain = strides == UNIT and not (expr.dtype in WHOLE and heavy(expr))
    allowed = {1} if plain else {1, store.coefficient(axis)} - {0, None}
    if store.coefficient(axis) not in allowed:
        return None
    return axis if vectorisable(expr, axis, strides) else None


def few_channels_outside(
    axes: tuple[Axis, ...], expr: Expr, store: Index, vl: int
) -> tuple[Axis, ...]:
    """``axes`` with an inner one of fewer elements than lanes outside the one before it, where
    8-bit results can then be computed in vectors: an image that is read plane by plane.
    """
    if vl == 1 or len(axes) < 2 or expr.dtype not in BYTES or axes[-1].extent >= vl:
        return axes
    *front, wide, few = axes
    if not heavy(expr) or lane_of((few, wide), expr, store, vl) is None:
        return axes
    return (*front, few, wide)


def reduction_lane(reduce: Reduce, row: Index | None, vl: int) -> Axis | None:
    """The axis of a reduction that can run along the lanes; ``row`` is the offset of a row that is
    filled on the way.
    """
    if vl == 1 or reduce.combiner not in HORIZONTAL or reduce.dtype is not DType.F32:
        return None
    for axis, (lo, hi) in zip(reversed(reduce.axes), reversed(reduce.bounds), strict=True):
        constant = lo.is_const and hi.is_const
        if not constant or axis.extent < min(8, vl):
            continue
        if row is not None and row.coefficient(axis) != 1:
            continue
        if vectorisable(reduce.body, axis, UNIT):
            return axis
    return None


def load_strides(expr: Expr, axis: Axis) -> frozenset[int]:
    """The strides along ``axis`` of everything an expression loads."""
    found = set()
    for node in walk(expr, rows=False):
        if isinstance(node, Load):
            stride = node.indices[0].coefficient(axis)
            if stride is not None:
                found.add(stride)
    return frozenset(found)


def zero_beyond(expr: Expr, axis: Axis) -> bool:
    """Whether lanes that do not exist compute 0, because loads give 0 there."""
    if axis not in expr.free:
        return False
    if isinstance(expr, Load | RowLoad):
        return True
    return (
        isinstance(expr, Call) and expr.fn == "mul" and all(zero_beyond(a, axis) for a in expr.args)
    )


def sum_of_row(stage: Stage, follower: Stage | None) -> Reduce | None:
    """The reduction of the next stage over the row being filled, in terms of the row's own axes."""
    if follower is None or not isinstance(follower.expr, Reduce) or stage.row is None:
        return None
    reduce = follower.expr
    whole = all(
        b == (as_index(0), as_index(a.extent))
        for a, b in zip(reduce.axes, reduce.bounds, strict=True)
    )
    here = tuple(of_atom(a) for a in reduce.axes)
    body = reduce.body
    if not whole or not isinstance(body, RowLoad) or body.row != stage.row or body.indices != here:
        return None
    bounds = tuple((as_index(0), as_index(a.extent)) for a in stage.axes)
    return Reduce(reduce.combiner, stage.axes, bounds, stage.expr)


def split_points(expr: Expr, axes: tuple[Axis, ...]) -> dict[Axis, list[int]]:
    """Where conditions on a single axis change: inner ends of segments, for the two innermost axes
    that have any.
    """
    found: dict[Axis, set[int]] = {a: set() for a in axes}

    def root(index: Index) -> None:
        if len(index.terms) == 1 and isinstance(index.terms[0][0], Axis):
            axis, c = index.terms[0]
            if axis in found:
                # c v + k >= 0 changes at v = ceil(-k / c), or behind floor(k / -c)
                point = -(index.const // c) if c > 0 else index.const // -c + 1
                if axis.lo < point < axis.hi:
                    found[axis].add(point)

    for node in walk(expr, rows=False):
        if isinstance(node, InRange):
            root(node.index)
    for index in all_indices(expr):
        for atom in atoms_of(index):
            if isinstance(atom, Extremum):
                root(atom.a - atom.b)
    chosen = [a for a in reversed(axes) if 0 < len(found[a]) < MAX_SEGMENTS][:2]
    return {a: sorted(found[a]) for a in chosen}
