"""Writes dense kernels: loops around one register tile, rendered by
``templates/kernels/dense.c.j2``.

Python decides tile variants, loop order and every pointer expression; the templates hold the C of
the tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.codegen.environment import render
from aotgen.schedule.base import Arg, Kernel
from aotgen.schedule.dense.problem import (
    LINE_FLOATS,
    Block,
    Calls,
    Dense,
    DenseConfig,
    kernel_params,
    loop,
    terms,
)
from aotgen.schedule.dense.tile import Tile, TileWriter
from aotgen.schedule.dense.tiles import Panels, Run
from aotgen.schedule.fused import Fused
from aotgen.target.target import Target


class DenseWriter(TileWriter):
    """Builds the template's context for one Dense under one config: tiles and loops."""

    def __init__(
        self, dense: Dense, config: DenseConfig, target: Target, fused: Fused, *, bias: bool
    ) -> None:
        super().__init__(dense, config, target, fused, bias=bias)
        self.used: dict[str, Tile] = {}
        self.bases: dict[str, str] = {}
        """C names that replace an operand's own in calls of the tile ("x" read from a scratch
        strip).
        """
        self.extra: dict[str, tuple[tuple[str, int], ...]] = {}
        """Further (C variable, stride) terms of an operand."""
        self.before_tile: list[Block] = []
        """Statements before every call of a tile."""
        self.row_range = ("r0", "r1")
        self.by_panels = False
        """Whether r0, r1 count panels of output channels in place of row tiles."""

    def prefers_panels(self) -> bool:
        """Whether threads share the work better by panels than by row tiles: where rows are few, or
        where the weights are most of what a thread reads and so are shared, too.
        """
        threads, d = self.target.threads, self.dense
        if threads == 1 or self.fused.rows is not None:
            return False
        by_panels = _busiest(self.panel_count, threads)
        by_rows = _busiest(sum(r.count for r in self.rows), threads)
        weights = d.reduction * d.channels
        read = d.row.extent * d.row.stride("x")
        return by_panels < 0.9 * by_rows or (by_panels < 1.1 * by_rows and weights > 2 * read)

    def count_panels(self) -> None:
        """Let r0, r1 count panels."""
        self.by_panels = True
        self.row_range = ("0", str(sum(r.count for r in self.rows)))

    @property
    def panel_count(self) -> int:
        return sum(p.count for p in self.panels)

    @property
    def units(self) -> int:
        """The range of r1."""
        return self.panel_count if self.by_panels else sum(r.count for r in self.rows)

    def _panel_range(self, p: Panels) -> tuple[str, str]:
        """First and end panel of this kind, as C: those of [r0, r1) where that counts panels."""
        if not self.by_panels:
            return "0", str(p.count)
        before = sum(q.count for q in self.panels if q.channel < p.channel)
        last = before + p.count == self.panel_count
        start = f"r0 > {before} ? r0 - {before} : 0" if before else "r0"
        end = f"r1 - {before}" if before else "r1"
        return start, end if last else f"(r1 < {before + p.count} ? {end} : {p.count})"

    def _each_panel(self, p: Panels, inside: list[Block]) -> list[Block]:
        """``inside`` for every panel of this kind: with index p, or for the only one."""
        if p.count > 1:
            return [loop("p", *self._panel_range(p), inside)]
        if not self.by_panels:
            return inside
        at = sum(q.count for q in self.panels if q.channel < p.channel)
        return [{"head": f"if (r0 <= {at} && r1 > {at}) {{", "body": inside}]

    def body(self) -> list[Block]:
        """All loops around the tile."""
        return self.wrap(self.nests())

    def nests(self) -> list[Block]:
        """The loops inside ``Dense.outer``: one nest for all panels, or one per kind of panel."""
        if self.all_panels:
            return self._pixels(self._all_panels, rows=True)
        inside = [b for p in self.panels for b in self._panel_nest(p)]
        start, end = self.row_range
        finish = self._finish(start, end)
        return [*inside, {"head": f"if ({start} < {end}) {{", "body": finish}] if finish else inside

    def wrap(self, inside: list[Block]) -> list[Block]:
        """``inside`` within the loops of ``Dense.outer``."""
        for index in reversed(range(len(self.dense.outer))):
            axis = self.dense.outer[index]
            if axis.extent > 1:
                inside = [loop(f"i{index}", "0", str(axis.extent), inside)]
        return inside

    def _all_panels(self, run: Run, cols: Run, t: str) -> list[Block]:
        made: list[Block] = []
        for p in self.panels:
            made += self._each_panel(p, self._call(p, "p" if p.count > 1 else "0", run, cols, t))
        return made

    def _panel_nest(self, p: Panels) -> list[Block]:
        """All pixels for panels of one kind, ``block`` of them at a time."""
        block = min(max(self.config.block, 1), p.count)
        if block == 1 or self.split is not None:
            var = "p" if p.count > 1 else "0"
            inner = self._passes(
                self._pixels(lambda run, cols, t: self._call(p, var, run, cols, t)), p, var
            )
            if p.count > 1 or self.by_panels:
                return self._each_panel(p, inner)
            return [{"head": "{", "body": inner}] if self.prefetches else inner
        inner = self._pixels(
            lambda run, cols, t: [loop("p", "from", "to", self._call(p, "p", run, cols, t))]
        )
        start, end = self._panel_range(p)
        bound = f"const int32_t to = from + {block};"
        if self.by_panels or p.count % block:
            bound = f"const int32_t to = from + {block} < {end} ? from + {block} : {end};"
        if self.prefetches:
            inner = [f"const float *next = {self._next(p, 'to', 0)};", *inner]
        return [
            {
                "head": f"for (int32_t from = {start}; from < {end}; from += {block}) {{",
                "body": [bound, *inner],
            }
        ]

    def _passes(self, inside: list[Block], p: Panels, var: str) -> list[Block]:
        """The loop over reduction passes, with the pointer to the weights to prefetch."""
        s = self.split
        width = p.vectors * self.vl
        if s is None:
            if not self.prefetches:
                return inside
            return [
                f"const float *next = {self._next(p, var, self.dense.reduction * width)};",
                *inside,
            ]
        extent = self.dense.reduce[s.level][0]
        last = extent - (s.passes - 1) * s.size
        steps = str(s.size) if last == s.size else f"pass == {s.passes - 1} ? {last} : {s.size}"
        lines: list[Block] = [
            f"const int32_t steps = {steps};",
            f"const int32_t mode = (pass == 0 ? 1 : 0) | (pass == {s.passes - 1} ? 2 : 0);",
        ]
        behind = s.size * (self.dense.reduction // extent) * width
        if self.prefetches:
            lines.append(f"const float *next = {self._next(p, var, behind)};")
        return [loop("pass", "0", str(s.passes), lines + inside)]

    def _next(self, p: Panels, var: str, behind: int) -> str:
        """Where the weights ``behind`` elements after the current panel (and pass) begin."""
        parts = [*self._outer_terms("w"), *self._weight_terms(p, var)]
        return terms("w", *parts, offset=self._panel_base(p) + behind)

    def _pixels(self, calls: Calls, rows: bool = False) -> list[Block]:
        """Loops over row tiles and column tiles."""
        heights = [self._columns(run, calls) for run in self.rows]
        inside = heights[0]
        if len(heights) > 1:
            inside = [
                {"head": f"if (r < {self.rows[0].count}) {{", "body": heights[0]},
                {"head": "else {", "body": heights[1]},
            ]
        if rows:
            inside = inside + self._finish("r", "r + 1")
        return [loop("r", *self.row_range, inside)]

    def _columns(self, run: Run, calls: Calls) -> list[Block]:
        """Loops over the column tiles of one row tile."""
        columns: list[Block] = []
        for cols in self.cols:
            if cols.count > 1:
                columns.append(loop("t", "0", str(cols.count), calls(run, cols, "t")))
            else:
                columns += calls(run, cols, "0")
        return columns

    def row(self) -> list[Block]:
        """All panels of row tile r, where row tiles are all of one size, without its end."""
        return self._columns(self.rows[0], self._all_panels)

    def row_end(self) -> list[Block]:
        """What follows the last column of row tile r."""
        return self._finish("r", "r + 1")

    def _finish(self, start: str, end: str) -> list[Block]:
        """Call the row epilogue on finished row tiles [start, end)."""
        row = self.fused.rows
        if row is None:
            return []
        args = "".join(f", {a.name}" for a in self.fused.row_args)
        return [
            f"@KERNEL@_rows({self.pointer('y')}{args}, "
            f"{self._first_row(start)}, {self._first_row(end)});"
        ]

    def _first_row(self, r: str) -> str:
        """The first output row of row tile ``r``, as C."""
        first = self.rows[0]
        unit = f"({r})" if " " in r else r
        if len(self.rows) == 1:
            return f"{unit} * {first.size}"
        return f"{unit} * {self.rows[1].size} + ({r} < {first.count} ? {r} : {first.count})"

    def _call(self, p: Panels, var: str, run: Run, cols: Run, t: str) -> list[Block]:
        """The statements that compute one tile."""
        tile = Tile(run.size, cols.size, p)
        self.used.setdefault(self._name(tile), tile)
        args = [self._tile_arg(name, p, var, run, cols, t) for name in self.names()]
        if self.split is not None:
            args.append(self._part(cols, t))
        if self.prefetches:
            args.append("next")
        if self.split is not None:
            args += ["steps", "mode"]
        if self.dense.counts_taps:
            args.append("taps")
        call: list[Block] = [
            *self.before_tile,
            f"@KERNEL@_{self._name(tile)}({', '.join(args)});",
        ]
        lines = self._lines(tile) if self.prefetches else 0
        return [*call, f"next += {lines};"] if lines else call

    def _tile_arg(self, name: str, p: Panels, var: str, run: Run, cols: Run, t: str) -> str:
        """The pointer to one operand's first element of a tile."""
        d, width = self.dense, p.vectors * self.vl
        kinds = {i.name: i.kind for i in self.fused.inputs}
        base = self.bases.get(name, name)
        parts = [] if name in self.bases else self._outer_terms(name)
        parts += self.extra.get(name, ())
        if name == "w":
            first = 0 if d.taps is None else d.taps.first * width
            offset = self._panel_base(p) + first
            return terms(base, *parts, *self._weight_terms(p, var), offset=offset)
        if name == "bias" or kinds.get(name) == "channel":
            return terms(name, *parts, (var, width), offset=p.channel)
        if kinds.get(name) == "scalar":
            return name
        before = self.rows[0].count if run is not self.rows[0] else 0
        offset = (run.start - before * run.size) * d.row.stride(name) + cols.start * d.col.stride(
            name
        )
        parts += [("r", d.row.stride(name) * run.size), (t, d.col.stride(name) * cols.size)]
        if name == "x":
            offset += d.offset
            if self.split is not None:
                parts.append(("pass", self.split.size * d.reduce[self.split.level][1]))
        else:
            step = d.channel_step(name)
            parts.append((var, width * step))
            offset += p.channel * step
        return terms(base, *parts, offset=offset)

    def _weight_terms(self, p: Panels, var: str) -> list[tuple[str, int]]:
        """Strides of w along panels and reduction passes."""
        d, width = self.dense, p.vectors * self.vl
        parts = [(var, width if d.w_step else d.packed * width)]
        if d.taps is not None:
            parts.append(("tap0", d.taps.row * width))
        if self.split is not None:
            inside = d.reduction // d.reduce[self.split.level][0]
            parts.append(("pass", self.split.size * inside * (d.w_step or width)))
        return parts

    def _lines(self, tile: Tile) -> int:
        """Floats that one tile call prefetches into L2."""
        asm = self.asm(tile)
        if asm is not None:
            return asm.prefetching * self.config.next_lines * LINE_FLOATS
        ctx = self.tile_context(tile)
        if not ctx["prefetch"]["next"]:
            return 0
        inner = self.dense.reduce[-1][0]
        steps = self.dense.reduction
        if self.split is not None:
            extent = self.dense.reduce[self.split.level][0]
            steps = steps // extent * self.split.size
            if self.split.level == len(self.dense.reduce) - 1:
                inner = self.split.size
        rounds = steps // inner * (inner // int(ctx["inner"]["unroll"]))
        return rounds * self.config.next_lines * LINE_FLOATS

    def _part(self, cols: Run, t: str) -> str:
        """Scratch of this tile's partial sums: every tile has room for the largest one."""
        tiles_in_row = sum(c.count for c in self.cols)
        size = self.part_tile_floats
        before = self.cols[0].count if cols is not self.cols[0] else 0
        return terms("part", ("r", tiles_in_row * size), (t, size), offset=before * size)

    @property
    def part_tile_floats(self) -> int:
        return self.rows[0].size * self.cols[0].size * max(p.vectors for p in self.panels) * self.vl

    @property
    def part_bytes(self) -> int:
        """Scratch for the partial sums of one panel over all pixels."""
        if self.split is None:
            return 0
        return (
            sum(r.count for r in self.rows)
            * sum(c.count for c in self.cols)
            * self.part_tile_floats
            * 4
        )

    def _outer_terms(self, name: str) -> list[tuple[str, int]]:
        return [(f"i{n}", a.stride(name)) for n, a in enumerate(self.dense.outer) if a.extent > 1]

    def pointer(self, name: str) -> str:
        """C pointer to an operand's first element at the current outer indices."""
        return terms(name, *self._outer_terms(name))

    def _panel_base(self, p: Panels) -> int:
        """Elements of w before the first panel of this kind."""
        if self.dense.w_step:
            return p.channel
        return p.channel * self.dense.packed

    @property
    def tile_text(self) -> str:
        """The largest tile, for names: pixels x vectors."""
        return f"{self.rows[0].size * self.cols[0].size}x{self.panels[0].vectors}"


def _busiest(parts: int, threads: int) -> float:
    """The share of equal parts that the busiest of some threads has."""
    return -(-parts // threads) / parts


def dense_kernel(
    name: str,
    title: str,
    notes: Sequence[str],
    writer: DenseWriter,
    args: Sequence[Arg],
    *,
    helpers: Sequence[str] = (),
    body: list[Block] | None = None,
    rows: int = 0,
    includes: frozenset[str] = frozenset(),
    others: Sequence[DenseWriter] = (),
) -> Kernel:
    """Render a kernel.

    Args:
        args: pointer arguments, in order; scratch for partial sums is appended here.
        helpers: C functions that ``body`` calls.
        body: what the kernel does, when that is not just ``writer.body()``.
        rows: the range of r1, when it does not count what the writer's does.
        others: further writers whose tiles ``body`` calls; of tiles of one name, all are alike.
    """
    if body is None and writer.prefers_panels():
        writer.count_panels()
        notes = [*notes, "r0, r1 count panels of output channels"]
    nests = writer.body() if body is None else body
    used = {name: (w, t) for w in (writer, *others) for name, t in w.used.items()}
    tiles = [w.tile_context(t) for w, t in used.values()]
    all_args = list(args)
    if writer.split is not None:
        all_args.append(Arg("part", "float *", scratch_bytes=writer.part_bytes))
    text = render(
        "kernels/dense.c.j2",
        epilogue=writer.fused.function,
        rows_function=writer.fused.row_function,
        helpers=list(helpers),
        tiles=tiles,
        title=title,
        notes=list(notes),
        params=kernel_params(all_args, writer.fused),
        body=nests,
    )
    return Kernel(name, text, tuple(all_args), rows or writer.units, writer.fused.math, includes)
