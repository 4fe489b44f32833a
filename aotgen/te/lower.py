"""From a Nest to the loops of a kernel.

The axis that runs along the vector lanes is chosen once for the nest:

- an outer axis that is contiguous everywhere (global average pool, a norm over other axes): all
  stages work on vectors, several at a time, and reductions keep a vector accumulator each;
- otherwise each stage has its own: a reduction over a contiguous axis keeps up to four vector
  accumulators and joins their lanes at the end, a row or output stage runs along its last axis;
- where values are not floats, or memory is strided, a stage stays scalar.

Ranges in which a condition on an index has one value become loops of their own (border splits, at
most two axes), so that inner loops hold no test.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.te.c_printer import CPrinter
from aotgen.te.emit import Block, Place
from aotgen.te.expr import Buffer, Expr, Reduce
from aotgen.te.index import Axis, Index, of_atom
from aotgen.te.lane_loops import Bound, LaneEmitter, row_of
from aotgen.te.simplify import Rewriter, substitute
from aotgen.te.stage import Nest, Stage, merge_axes
from aotgen.te.vectorize import (
    UNIT,
    choose_outer_lane,
    few_channels_outside,
    lane_of,
    load_strides,
    split_points,
    sum_of_row,
)

UNROLL = 4
"""Vectors of accumulators: enough to cover the latency of an addition on every core we know."""


@dataclass(frozen=True)
class Options:
    """How to lower.

    Attributes:
        vl: vector length; 1 gives scalar C.
        split: whether borders are split off into loops of their own.
        whole: whether the whole first axis is computed instead of [r0, r1).
        unroll: most vectors of accumulators.
    """

    vl: int
    split: bool = True
    whole: bool = False
    unroll: int = UNROLL


class Lowering(LaneEmitter):
    """Writes the loops of one nest into a block."""

    def __init__(
        self,
        nest: Nest,
        options: Options,
        printer: CPrinter,
        pointers: dict[Buffer, str],
        output: str = "y",
        scratch: Sequence[str] = (),
    ) -> None:
        super().__init__(printer, pointers, options.vl, options.unroll)
        self.nest = nest
        self.options = options
        self.output = output
        self.output_place = Place(output, nest.store)
        self.outer_lane = choose_outer_lane(nest, options.vl)
        names = iter(scratch)
        for stage in nest.stages:
            if stage.row is None:
                continue
            if stage.row == nest.row_in_output:
                own = nest.stages[-1].axes
                table = {a: of_atom(b) for a, b in zip(own, stage.row.axes, strict=True)}
                self.places[stage.row] = Place(output, Rewriter(table).index(nest.store))
            else:
                self.places[stage.row] = Place(next(names), nest.row_store[stage.row])

    # ---- the nest

    @property
    def rows_are_elements(self) -> bool:
        """Whether [r0, r1) are elements along the vector lanes."""
        outer = self.nest.outer
        return not outer or (self.outer_lane is not None and outer[0] is self.outer_lane)

    def emit(self) -> Block:
        """All loops, with the outermost one over [r0, r1)."""
        outer = list(self.nest.outer)
        lane = self.outer_lane
        if lane is not None:
            rows = outer[0]
            outer.remove(lane)
            outer.append(lane)
            self._outer_loops(outer, rows)
        elif outer:
            self._outer_loops(outer, outer[0])
        elif len(self.nest.stages) == 1 and self.nest.stages[0].axes:
            self._output(self.nest.stages[0], self.nest.stages[0].axes[0])
        else:
            self._stages()
        return self.scopes[0].block

    def _outer_loops(self, axes: list[Axis], rows: Axis) -> None:
        if not axes:
            self._stages()
            return
        axis = axes[0]
        lo, hi = self.range_of(axis, axis is rows)
        if axis is self.outer_lane:
            unroll = min(self.options.unroll, max(1, axis.extent // self.vl))
            self.lane_loop(axis, lo, hi, unroll, False, self._stages)
            return
        self.open(f"for (int32_t {axis.name} = {lo}; {axis.name} < {hi}; {axis.name}++)", (axis,))
        self._outer_loops(axes[1:], rows)
        self.close()

    def range_of(self, axis: Axis, is_rows: bool) -> tuple[Bound, Bound]:
        """First and end value of a loop over ``axis``; the row axis runs over the part of it in
        [r0, r1).
        """
        if not is_rows or self.options.whole:
            return axis.lo, axis.hi
        return "r0", "r1"

    def _stages(self) -> None:
        stages = list(self.nest.stages)
        while stages:
            stage = stages.pop(0)
            if stage.kind == "scalar":
                assert isinstance(stage.expr, Reduce)
                self.reduction(stage.expr, stage.name)
            elif stage.kind == "row":
                follower = stages[0] if stages else None
                joined = sum_of_row(stage, follower)
                if joined is not None and follower is not None:
                    stages.pop(0)
                    self.reduction(joined, follower.name, stage)
                else:
                    self._fill(stage.axes, stage.expr, self.places[row_of(stage)], None)
            else:
                self._output(stage, None)

    def _output(self, stage: Stage, rows: Axis | None) -> None:
        axes = few_channels_outside(stage.axes, stage.expr, self.output_place.offset, self.vl)
        self._fill(axes, stage.expr, self.output_place, rows)

    # ---- rows and output

    def _fill(self, axes: tuple[Axis, ...], expr: Expr, place: Place, rows: Axis | None) -> None:
        splits = frozenset(split_points(expr, axes)) if self.options.split else frozenset()
        self._fill_loops(axes, expr, place, rows, splits)

    def _fill_loops(
        self,
        axes: tuple[Axis, ...],
        expr: Expr,
        place: Place,
        rows: Axis | None,
        splits: frozenset[Axis],
    ) -> None:
        """Loops over ``axes``; those in ``splits`` fall into segments where the expression still
        has conditions.
        """
        if axes and axes[0] is not rows and self.nest.row_in_output is None:
            axes, expr, (offset,) = merge_axes(axes, expr, (place.offset,))
            place = Place(place.pointer, offset)
        if not axes:
            self.count_uses(expr)
            self.store(place, expr)
            return
        axis = axes[0]
        cuts = split_points(expr, axes).get(axis, []) if axis in splits else []
        points = [axis.lo, *cuts, axis.hi]
        for lo, hi in itertools.pairwise(points):
            part = axis if (lo, hi) == (axis.lo, axis.hi) else Axis(axis.name, hi - lo, lo)
            fixed = part.extent == 1 and axis is not rows
            table = (
                {} if part is axis else {axis: of_atom(part) if fixed else Index(((part, 1),), 0)}
            )
            narrowed = _narrow(expr, axis, part)
            here = Place(
                place.pointer, Rewriter(table).index(place.offset) if table else place.offset
            )
            if fixed:
                self._fill_loops(axes[1:], narrowed, here, rows, splits)
                continue
            first, end = self._segment(part, axis if axis is rows else None, lo, hi)
            if (
                self.lanes is None
                and len(axes) == 1
                and lane_of((part,), narrowed, here.offset, self.vl)
            ):
                self.count_uses(narrowed)
                strided = load_strides(narrowed, part) | {here.offset.coefficient(part)}
                # A loop over part of the rows declares its counter in front of it.
                apart = axis is rows and part is not axis
                if apart:
                    self.open("")
                self.lane_loop(
                    part,
                    first,
                    end,
                    1,
                    not strided <= UNIT,
                    lambda e=narrowed, p=here: self.store(p, e),  # type: ignore[misc]
                )
                if apart:
                    self.close()
                continue
            name = part.name
            self.open(
                f"for ({self.printer.int_type} {name} = {first}; {name} < {end}; {name}++)", (part,)
            )
            self._fill_loops(axes[1:], narrowed, here, rows, splits)
            self.close()

    def _segment(self, part: Axis, rows: Axis | None, lo: int, hi: int) -> tuple[Bound, Bound]:
        if rows is None or self.options.whole:
            return lo, hi
        first, end = "r0", "r1"
        if lo > rows.lo:
            first = self.fresh("from")
            self.line(f"const int32_t {first} = r0 > {lo} ? r0 : {lo};")
        if hi < rows.hi:
            end = self.fresh("to")
            self.line(f"const int32_t {end} = r1 < {hi} ? r1 : {hi};")
        return first, end


def _narrow(expr: Expr, axis: Axis, part: Axis) -> Expr:
    return expr if part is axis else substitute(expr, {axis: of_atom(part)})
