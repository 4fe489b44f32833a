"""Loops over vector lanes, and reductions: what the stages of a nest are written with.

A vector loop runs in steps of several vectors, of one vector, and ends with the lanes that are
left. A reduction keeps vector accumulators where its results or its own axis lie along the lanes.
"""

from __future__ import annotations

from collections.abc import Callable

from aotgen.ir.types import DType
from aotgen.te.c_printer import CPrinter
from aotgen.te.compute import identity
from aotgen.te.emit import Emitter, Lanes, Place, bare, narrow
from aotgen.te.expr import Buffer, Call, Cast, Expr, Reduce, Row
from aotgen.te.index import Axis, Index
from aotgen.te.stage import Stage
from aotgen.te.vectorize import HORIZONTAL, WHOLE, reduction_lane, zero_beyond

JOIN = {"sum": "add", "or": "or", "and": "and", "prod": "mul"}
"""The function that joins two partial results of a combiner, where it has another name."""

Bound = int | str


class LaneEmitter(Emitter):
    """An Emitter that writes loops over lanes, and reductions.

    Attributes:
        vl: vector length; 1 gives scalar C.
        unroll: most vectors of accumulators.
    """

    def __init__(
        self, printer: CPrinter, pointers: dict[Buffer, str], vl: int, unroll: int
    ) -> None:
        super().__init__(printer, pointers)
        self.vl = vl
        self.unroll = unroll

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
            if expr.dtype is DType.F32:
                self.store_vector(place, self.vector(expr))
            else:
                self.store_integers(place, expr)
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

    def store_integers(self, place: Place, expr: Expr) -> None:
        """Write one vector of integers: the low bits of lanes of 32 bits."""
        assert self.lanes is not None
        self.printer.math.add("int8")
        narrowing = isinstance(expr, Cast) and expr.a.dtype in WHOLE
        text = self.integers(expr.a if isinstance(expr, Cast) and narrowing else expr)
        word = f"vistore{8 * expr.dtype.size}"
        where = f"&{place.pointer}[{self.index(place.offset)}]"
        stride = place.offset.coefficient(self.lanes.axis)
        if stride != 1:
            self.line(f"{word}_stride({where}, {text}, {stride});")
        elif self.lanes.tail is None:
            self.line(f"{word}({where}, {text});")
        else:
            self.line(f"{word}_n({where}, {text}, {self.lanes.tail});")

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
            place = None if row is None else self.places[row_of(row)].offset
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
            place = self.places[row_of(row)]
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
        first = identity(reduce.combiner, reduce.dtype)
        if reduce.dtype is DType.F32:
            ctype, start = "vf", self.printer.vector_literal(first)
        else:
            ctype, start = "vi", f"viset1({bare(self.printer.literal(first))})"
        for acc in names:
            self.line(f"{ctype} {acc} = {start};")
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
        if reduce.dtype is not DType.F32:
            assert row is None and lanes.axis not in reduce.axes
            fn = JOIN.get(reduce.combiner, reduce.combiner)
            self.line(f"{acc} = {self.printer.integer_call(fn, [acc, self.integers(body)])};")
            return
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
            self.store_vector(self.places[row_of(row)], text)
        if masked:
            start = self.printer.vector_literal(identity(reduce.combiner, reduce.dtype))
            text = f"vsel(vilt(viota(), viset1({lanes.tail})), {text}, {start})"
        fn = JOIN.get(reduce.combiner, reduce.combiner)
        self.line(f"{acc} = {self.printer.vector_call(fn, [acc, text])};")

    def _lane_reduction(self, reduce: Reduce, name: str, lane: Axis, row: Stage | None) -> None:
        """Vector accumulators along a reduction axis, joined into one number at the end."""
        units = min(self.unroll, max(1, lane.extent // self.vl))
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


def row_of(stage: Stage) -> Row:
    """The row that a stage fills."""
    assert stage.row is not None
    return stage.row
