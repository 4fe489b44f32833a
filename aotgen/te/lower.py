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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aotgen.te.c_printer import CPrinter
from aotgen.te.compute import identity
from aotgen.te.emit import (
    Block,
    Emitter,
    Lanes,
    Place,
    bare,
    narrow,
)
from aotgen.te.expr import Buffer, Call, Expr, Reduce, Row
from aotgen.te.index import Axis, Index, of_atom
from aotgen.te.simplify import Rewriter, substitute
from aotgen.te.stage import Nest, Stage, merge_axes
from aotgen.te.vectorize import (
    HORIZONTAL,
    UNIT,
    choose_outer_lane,
    lane_of,
    load_strides,
    reduction_lane,
    split_points,
    sum_of_row,
    zero_beyond,
)

UNROLL = 4
"""Vectors of accumulators: enough to cover the latency of an addition on every core we know."""

JOIN = {"sum": "add", "or": "or", "and": "and", "prod": "mul"}

Bound = int | str


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


class Lowering(Emitter):
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
        super().__init__(printer, pointers)
        self.nest = nest
        self.options = options
        self.vl = options.vl
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

    # ---- the lane axis

    # ---- the nest

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
                    self._fill(stage.axes, stage.expr, self.places[_row(stage)], None)
            else:
                self._output(stage, None)

    def _output(self, stage: Stage, rows: Axis | None) -> None:
        self._fill(stage.axes, stage.expr, self.output_place, rows)

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
        lane = lane_of(axes, expr, place.offset, self.vl) if self.lanes is None else None
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
            if axis is lane:
                self.count_uses(narrowed)
                strided = load_strides(narrowed, part) | {here.offset.coefficient(part)}
                self.lane_loop(
                    part,
                    first,
                    end,
                    1,
                    not strided <= UNIT,
                    lambda e=narrowed, p=here: self.store(p, e),  # type: ignore[misc]
                )
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

    def store(self, place: Place, expr: Expr) -> None:
        """Write one element, or one vector per unrolled unit, and leave the value's text to later
        readers.
        """
        if self.lanes is None or self.lanes.axis not in place.offset.free:
            text = bare(narrow(self.printer, expr, self.scalar(expr)))
            self.line(f"{place.pointer}[{self.index(place.offset)}] = {text};")
            return
        for unit in range(self.lanes.unroll):
            self.unit = unit
            self.store_vector(place, self.vector(expr))
        self.unit = 0

    def store_vector(self, place: Place, text: str) -> None:
        assert self.lanes is not None
        stride = place.offset.coefficient(self.lanes.axis)
        where = f"&{place.pointer}[{self.index(place.offset)}]"
        if stride != 1:
            self.line(f"vstore_stride({where}, {text}, {stride});")
        elif self.lanes.tail is None:
            self.line(f"vstore({where}, {text});")
        else:
            self.line(f"vstore_n({where}, {text}, {self.lanes.tail});")

    # ---- vector loops

    def lane_loop(
        self,
        axis: Axis,
        lo: Bound,
        hi: Bound,
        unroll: int,
        scalar_tail: bool,
        body: Callable[[], None],
    ) -> None:
        """Loops over ``axis`` in steps of ``unroll`` vectors, of one vector, and what is left."""
        name = axis.name
        runtime = isinstance(lo, str) or isinstance(hi, str)
        if runtime:
            self.line(f"int32_t {name} = {lo};")
        at = lo
        for width in sorted({unroll, 1}, reverse=True):
            step = "VL" if width == 1 else f"{width} * VL"
            lanes = width * self.vl
            if runtime:
                header = f"for (; {name} + {step} <= {hi}; {name} += {step})"
            else:
                assert isinstance(at, int) and isinstance(hi, int)
                end = at + (hi - at) // lanes * lanes
                if end == at:
                    continue
                header = f"for (int32_t {name} = {at}; {name} < {end}; {name} += {step})"
                once = at if end - at == lanes else None
                at = end
                if once is not None:
                    self._in_lanes("", axis, Lanes(axis, width), body, once)
                    continue
            self._in_lanes(header, axis, Lanes(axis, width), body)
        if not runtime and at == hi:
            return
        if scalar_tail:
            start = "" if runtime else f"int32_t {name} = {at}"
            self.open(f"for ({start}; {name} < {hi}; {name}++)", (axis,))
            body()
            self.close()
            return
        if runtime:
            self._in_lanes(f"if ({name} < {hi})", axis, Lanes(axis, 1, f"{hi} - {name}"), body)
        else:
            assert isinstance(at, int) and isinstance(hi, int)
            self._in_lanes("", axis, Lanes(axis, 1, str(hi - at)), body, at)

    def _in_lanes(
        self,
        header: str,
        axis: Axis,
        lanes: Lanes,
        body: Callable[[], None],
        once: int | None = None,
    ) -> None:
        """A block of the vector loop; ``once``: the axis's value where it runs only once."""
        self.open(header, (axis,))
        if once is not None:
            self.line(f"const int32_t {axis.name} = {once};")
        self.lanes = lanes
        body()
        self.lanes = None
        self.close()

    # ---- reductions

    def reduction(self, reduce: Reduce, name: str, row: Stage | None = None) -> None:
        """Declare ``name`` (one per unrolled vector in a lane loop) and compute it; fill ``row`` on
        the way.
        """
        free = reduce.free
        home = self.home(free, True)
        saved, lanes = self.scopes, self.lanes
        self.scopes = saved[: home + 1]
        if lanes is not None and lanes.axis not in free:
            self.lanes = None
        uses = self.uses
        self.count_uses(reduce.body)
        if self.lanes is not None:
            self._vector_accumulators(reduce, name, row)
        else:
            place = None if row is None else self.places[_row(row)].offset
            lane = reduction_lane(reduce, place, self.vl)
            if lane is None:
                self._scalar_reduction(reduce, name, row)
            else:
                self._lane_reduction(reduce, name, lane, row)
        self.scopes, self.lanes, self.uses = saved, lanes, uses

    def inline_reduce(self, expr: Reduce) -> str:
        name = self.fresh("acc")
        unit, self.unit = self.unit, 0
        self.reduction(expr, name)
        self.unit = unit
        home = self.home(expr.free, True)
        lanes = self.lanes
        if lanes is not None and lanes.axis in expr.free:
            for k in range(lanes.unroll):
                self.scopes[home].names[(expr, k)] = name if lanes.unroll == 1 else f"{name}{k}"
            return self.scopes[home].names[(expr, unit)]
        self.scopes[home].names[expr] = name
        return name

    def _loop_header(self, axis: Axis, lo: Index, hi: Index) -> str:
        first, end = self._bound(axis, lo, "lo"), self._bound(axis, hi, "hi")
        name = axis.name
        return f"for ({self.printer.int_type} {name} = {first}; {name} < {end}; {name}++)"

    def _bound(self, axis: Axis, index: Index, suffix: str) -> str:
        if index.is_const or (len(index.terms) == 1 and isinstance(index.terms[0][0], Axis)):
            return self.index(index)
        key = (index, suffix)
        found = self.known(key)
        if found is None:
            home = self.home(index.free, True)
            if len(index.terms) == 1 and index.terms[0][1] == 1 and not index.const:
                text = self.atom_expression(index.terms[0][0])
            else:
                text = self.index(index)
            found = self.declare(home, key, self.printer.int_type, f"{axis.name}_{suffix}", text)
        return found

    def _open_loops(self, reduce: Reduce, skip: Axis | None = None) -> int:
        depth = 0
        for axis, (lo, hi) in zip(reduce.axes, reduce.bounds, strict=True):
            if axis is not skip:
                self.open(self._loop_header(axis, lo, hi), (axis,))
                depth += 1
        return depth

    def _close(self, depth: int) -> None:
        for _ in range(depth):
            self.close()

    def _scalar_reduction(self, reduce: Reduce, name: str, row: Stage | None) -> None:
        ctype = self.printer.ctype(reduce.dtype)
        start = self.printer.literal(identity(reduce.combiner, reduce.dtype))
        self.line(f"{ctype} {name} = {bare(start)};")
        depth = self._open_loops(reduce)
        if row is not None:
            place = self.places[_row(row)]
            value = self.named(reduce.body)
            self.line(f"{place.pointer}[{self.index(place.offset)}] = {value};")
        else:
            value = self.scalar(reduce.body)
        self.line(self._accumulate(reduce, name, value))
        self._close(depth)

    def _accumulate(self, reduce: Reduce, name: str, value: str) -> str:
        if reduce.combiner == "sum" and reduce.dtype.is_float:
            return f"{name} += {bare(value)};"
        fn = JOIN.get(reduce.combiner, reduce.combiner)
        if fn == reduce.combiner and not value.replace("_", "").isalnum():
            value = self.declare(
                len(self.scopes) - 1, ("value", reduce), self.printer.ctype(reduce.dtype), "t",
                narrow(self.printer, reduce.body, value),
            )  # fmt: skip
        text = self.printer.call(fn, reduce.dtype, reduce.dtype, [name, value])
        return f"{name} = {bare(narrow(self.printer, reduce, text))};"

    def _vector_accumulators(self, reduce: Reduce, name: str, row: Stage | None) -> None:
        """A vector of results for each unrolled unit of the lane loop."""
        assert self.lanes is not None
        units = range(self.lanes.unroll)
        names = [name if len(units) == 1 else f"{name}{u}" for u in units]
        start = self.printer.vector_literal(identity(reduce.combiner, reduce.dtype))
        for acc in names:
            self.line(f"vf {acc} = {start};")
        depth = self._open_loops(reduce)
        for unit in units:
            self.unit = unit
            self._accumulate_vector(reduce, names[unit], row)
        self.unit = 0
        self._close(depth)

    def _accumulate_vector(self, reduce: Reduce, acc: str, row: Stage | None) -> None:
        """Join one vector of the body to ``acc``; lanes that do not exist count as the identity."""
        assert self.lanes is not None
        body, lanes = reduce.body, self.lanes
        partial = lanes.tail is not None and lanes.axis in reduce.axes
        masked = partial and not (reduce.combiner == "sum" and zero_beyond(body, lanes.axis))
        product = isinstance(body, Call) and body.fn == "mul" and reduce.combiner == "sum"
        if isinstance(body, Call) and product and row is None and not masked:
            a, b = (self.vector(x) for x in body.args)
            self.line(f"{acc} = vfma({a}, {b}, {acc});")
            return
        text = self.vector(body)
        if row is not None:
            if not text.isalnum():
                key = ("row", body, self.unit)
                text = self.declare(len(self.scopes) - 1, key, "vf", "v", text)
            self.store_vector(self.places[_row(row)], text)
        if masked:
            start = self.printer.vector_literal(identity(reduce.combiner, reduce.dtype))
            text = f"vsel(vilt(viota(), viset1({lanes.tail})), {text}, {start})"
        fn = JOIN.get(reduce.combiner, reduce.combiner)
        self.line(f"{acc} = {self.printer.vector_call(fn, [acc, text])};")

    def _lane_reduction(self, reduce: Reduce, name: str, lane: Axis, row: Stage | None) -> None:
        """Vector accumulators along a reduction axis, joined into one number at the end."""
        units = min(self.options.unroll, max(1, lane.extent // self.vl))
        accs = [self.fresh("acc") for _ in range(units)]
        start = self.printer.vector_literal(identity(reduce.combiner, reduce.dtype))
        self.line(f"vf {', '.join(f'{a} = {start}' for a in accs)};")
        depth = self._open_loops(reduce, lane)

        def body() -> None:
            assert self.lanes is not None
            for unit in range(self.lanes.unroll):
                self.unit = unit
                self._accumulate_vector(reduce, accs[unit], row)
            self.unit = 0

        lo, hi = next(b for a, b in zip(reduce.axes, reduce.bounds, strict=True) if a is lane)
        self.lane_loop(lane, lo.const, hi.const, units, False, body)
        self._close(depth)
        fn = JOIN.get(reduce.combiner, reduce.combiner)
        while len(accs) > 1:
            pairs = [accs[k : k + 2] for k in range(0, len(accs), 2)]
            accs = [self.printer.vector_call(fn, p) if len(p) == 2 else p[0] for p in pairs]
        self.line(f"const float {name} = {HORIZONTAL[reduce.combiner]}({accs[0]});")


def _row(stage: Stage) -> Row:
    assert stage.row is not None
    return stage.row


def _narrow(expr: Expr, axis: Axis, part: Axis) -> Expr:
    return expr if part is axis else substitute(expr, {axis: of_atom(part)})
