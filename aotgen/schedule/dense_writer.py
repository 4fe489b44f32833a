"""Writes dense kernels: loops around one register tile, rendered by
``templates/kernels/dense.c.j2``.

Python decides tile variants, loop order and every pointer expression; the templates hold the C of
the tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotgen.codegen.environment import render
from aotgen.schedule.base import Arg, Kernel
from aotgen.schedule.dense import (
    LINE_FLOATS,
    Block,
    Calls,
    Dense,
    DenseConfig,
    kernel_params,
    loop,
    split_reduction,
    terms,
)
from aotgen.schedule.fused import Fused
from aotgen.schedule.intrinsics import F32_BROADCAST, intrinsics_for, tile_steps
from aotgen.schedule.tiles import Panels, Run, split_channels, split_even
from aotgen.target.target import Target


@dataclass(frozen=True)
class _Tile:
    rows: int
    cols: int
    panels: Panels


class DenseWriter:
    """Builds the template's context for one Dense under one config."""

    def __init__(
        self, dense: Dense, config: DenseConfig, target: Target, fused: Fused, *, bias: bool
    ) -> None:
        self.dense, self.config, self.target, self.fused, self.bias = (
            dense,
            config,
            target,
            fused,
            bias,
        )
        self.vl = target.vl
        self.panels = split_channels(dense.channels, self.vl, config.vectors)
        self.rows = split_even(dense.row.extent, config.oh_tile)
        self.cols = split_even(dense.col.extent, config.ow_tile)
        self.split = split_reduction(dense, config.kc, config.k_unroll)
        self.by_element = next(
            (i for i in intrinsics_for(target, F32_BROADCAST.dtypes) if i.steps == 4), None
        )
        """The target's FMA that multiplies by an element of a loaded vector, where it has one."""
        count = sum(p.count for p in self.panels)
        self.all_panels = self.split is None and (config.block == 0 or config.block >= count)
        self.prefetches = config.next_lines > 0 and not self.all_panels and dense.w_step == 0
        self.used: dict[str, _Tile] = {}
        self.bases: dict[str, str] = {}
        """C names that replace an operand's own in calls of the tile ("x" read from a scratch
        strip).
        """
        self.extra: dict[str, tuple[tuple[str, int], ...]] = {}
        """Further (C variable, stride) terms of an operand."""
        self.row_range = ("r0", "r1")

    # Parameters.

    def names(self) -> list[str]:
        """Operands a tile gets pointers to, in order."""
        own = ["x", "w"] + (["bias"] if self.bias else [])
        return own + [i.name for i in self.fused.inputs] + ["y"]

    def tile_params(self) -> str:
        parts = ["const float *restrict x", "const float *restrict w"]
        if self.bias:
            parts.append("const float *restrict bias")
        for i in self.fused.inputs:
            parts.append(f"const float *{'' if i.kind == 'pixel' else 'restrict '}{i.name}")
        parts.append("float *y" if self.fused.aliased else "float *restrict y")
        if self.split is not None:
            parts.append("float *restrict part")
        if self.prefetches:
            parts.append("const float *next")
        if self.split is not None:
            parts += ["int32_t steps", "int32_t mode"]
        return ", ".join(parts)

    # The register tile.

    def tile_context(self, tile: _Tile) -> dict[str, Any]:
        d, c, vl = self.dense, self.config, self.vl
        vectors = list(range(tile.panels.vectors))
        masked = {tile.panels.vectors - 1: tile.panels.lanes} if tile.panels.lanes else {}
        inner_extent, inner_stride = d.reduce[-1]
        variable = self.split is not None and self.split.level == len(d.reduce) - 1
        unroll = (
            c.k_unroll if inner_extent >= 2 * c.k_unroll or inner_extent % c.k_unroll == 0 else 1
        )
        lane_step = self.by_element is not None and inner_stride == 1 and inner_extent >= 4
        if lane_step:
            unroll = max(4, c.k_unroll // 4 * 4)
            unroll = unroll if inner_extent >= unroll else 4
        offsets = [
            r * d.row.stride("x") + col * d.col.stride("x")
            for r in range(tile.rows)
            for col in range(tile.cols)
        ]
        pixels = []
        for r in range(tile.rows):
            for col in range(tile.cols):
                at = {n: r * d.row.stride(n) + col * d.col.stride(n) for n in self.names()}
                i = r * tile.cols + col
                pixels.append(
                    {
                        "i": i,
                        "x": at["x"],
                        "init": [
                            f"vload(bias + {n * vl})" if self.bias else "vzero()" for n in vectors
                        ],
                        "stores": [self._store(i, n, at, masked.get(n, 0)) for n in vectors],
                    }
                )
        loads = [
            f"vload_n(w + {n * vl}, {masked[n]})"
            if d.w_step and n in masked
            else f"vload(w + {n * vl})"
            for n in vectors
        ]
        outer = []
        for level, (extent, stride) in enumerate(d.reduce[:-1]):
            split_here = self.split is not None and self.split.level == level
            if extent > 1 or split_here:
                outer.append(
                    {
                        "var": f"k{level}",
                        "extent": "steps" if split_here else str(extent),
                        "stride": stride,
                    }
                )
        extent_text = "steps" if variable else str(inner_extent)
        full = f"steps / {unroll} * {unroll}" if variable else str(inner_extent // unroll * unroll)
        return {
            "name": self._name(tile),
            "inline": "AOT_NOINLINE",
            "title": self._tile_title(tile),
            "params": self.tile_params(),
            "pixels": pixels,
            "vectors": vectors,
            "vl": vl,
            "loads": loads,
            "w_step": d.w_step or tile.panels.vectors * vl,
            "outer": outer,
            "inner": {
                "extent": extent_text,
                "stride": inner_stride,
                "unroll": unroll,
                "full": full,
                "rest": inner_extent % unroll != 0,
                "lanes": self._lane_rounds(),
            },
            **tile_steps(self.by_element, offsets, len(vectors)),
            "lane_step": lane_step,
            "part": self.split is not None,
            "spilled": self._spilled(tile, masked) if self.fused.long else None,
            "prefetch": {
                "next": c.next_lines if self.prefetches and unroll > 1 else 0,
                "ahead": c.ahead,
            },
        }

    def _lane_rounds(self) -> list[int]:
        """By element, x readable beyond its end: the innermost loop as lane steps; else empty."""
        extent, stride = self.dense.reduce[-1]
        if self.by_element is None or stride != 1 or not self.dense.overread or extent == 1:
            return []
        return [min(4, extent - at) for at in range(0, extent, 4)]

    def _name(self, tile: _Tile) -> str:
        flat = self.dense.col.extent == 1 or self.rows[0].size == 1
        pixels = str(tile.rows * tile.cols) if flat else f"{tile.rows}x{tile.cols}"
        tail = f"_{tile.panels.lanes}" if tile.panels.lanes else ""
        return f"tile_{pixels}x{tile.panels.vectors}{tail}"

    def _tile_title(self, tile: _Tile) -> str:
        what = f"{tile.rows} x {tile.cols} pixels, {tile.panels.vectors} vectors of output channels"
        return what + (f", the last one of {tile.panels.lanes}" if tile.panels.lanes else "")

    def _store(self, i: int, n: int, at: Mapping[str, int], lanes: int) -> str:
        value = f"acc{i}_{n}"
        if self.fused.function:
            names = [*(e.name for e in self.fused.inputs), "y"]
            pointers = {name: terms(name, offset=at[name]) for name in names}
            loads = self.fused.load(pointers, str(n * self.vl), lanes)
            value = f"@KERNEL@_epilogue({value}{loads})"
        pointer = terms("y", offset=at["y"] + n * self.vl)
        return (
            f"vstore_n({pointer}, {value}, {lanes});" if lanes else f"vstore({pointer}, {value});"
        )

    def _spilled(self, tile: _Tile, masked: Mapping[int, int]) -> dict[str, Any]:
        """The epilogue of one pixel, for the loop over sums in memory."""
        d = self.dense

        def at(name: str) -> str:
            return terms(name, ("i", d.row.stride(name)), ("j", d.col.stride(name)))

        pointers = {name: at(name) for name in [*(e.name for e in self.fused.inputs), "y"]}
        stores = []
        for n in range(tile.panels.vectors):
            lanes = masked.get(n, 0)
            loads = self.fused.load(pointers, str(n * self.vl), lanes)
            value = f"@KERNEL@_epilogue(vload({terms('sum', offset=n * self.vl)}){loads})"
            pointer = f"{at('y')} + {n * self.vl}" if n else at("y")
            end = f", {lanes});" if lanes else ");"
            stores.append(f"{'vstore_n' if lanes else 'vstore'}({pointer}, {value}{end}")
        return {"rows": tile.rows, "cols": tile.cols, "stores": stores}

    # The loops around it.

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
            if p.count > 1:
                made.append(loop("p", "0", str(p.count), self._call(p, "p", run, cols, t)))
            else:
                made += self._call(p, "0", run, cols, t)
        return made

    def _panel_nest(self, p: Panels) -> list[Block]:
        """All pixels for panels of one kind, ``block`` of them at a time."""
        block = min(max(self.config.block, 1), p.count)
        if block == 1 or self.split is not None:
            var = "p" if p.count > 1 else "0"
            inner = self._passes(
                self._pixels(lambda run, cols, t: self._call(p, var, run, cols, t)), p, var
            )
            if p.count > 1:
                return [loop("p", "0", str(p.count), inner)]
            return [{"head": "{", "body": inner}] if self.prefetches else inner
        inner = self._pixels(
            lambda run, cols, t: [loop("p", "from", "to", self._call(p, "p", run, cols, t))]
        )
        bound = f"const int32_t to = from + {block};"
        if p.count % block:
            bound = f"const int32_t to = from + {block} < {p.count} ? from + {block} : {p.count};"
        if self.prefetches:
            inner = [f"const float *next = {self._next(p, 'to', 0)};", *inner]
        return [
            {
                "head": f"for (int32_t from = 0; from < {p.count}; from += {block}) {{",
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
        heights: list[list[Block]] = []
        for run in self.rows:
            columns: list[Block] = []
            for cols in self.cols:
                if cols.count > 1:
                    columns.append(loop("t", "0", str(cols.count), calls(run, cols, "t")))
                else:
                    columns += calls(run, cols, "0")
            heights.append(columns)
        inside = heights[0]
        if len(heights) > 1:
            inside = [
                {"head": f"if (r < {self.rows[0].count}) {{", "body": heights[0]},
                {"head": "else {", "body": heights[1]},
            ]
        if rows:
            inside = inside + self._finish("r", "r + 1")
        return [loop("r", *self.row_range, inside)]

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
        tile = _Tile(run.size, cols.size, p)
        self.used.setdefault(self._name(tile), tile)
        args = [self._tile_arg(name, p, var, run, cols, t) for name in self.names()]
        if self.split is not None:
            args.append(self._part(cols, t))
        if self.prefetches:
            args.append("next")
        if self.split is not None:
            args += ["steps", "mode"]
        call: list[Block] = [f"@KERNEL@_{self._name(tile)}({', '.join(args)});"]
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
            return terms(base, *parts, *self._weight_terms(p, var), offset=self._panel_base(p))
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
            parts.append((var, width))
            offset += p.channel
        return terms(base, *parts, offset=offset)

    def _weight_terms(self, p: Panels, var: str) -> list[tuple[str, int]]:
        """Strides of w along panels and reduction passes."""
        d, width = self.dense, p.vectors * self.vl
        parts = [(var, width if d.w_step else d.reduction * width)]
        if self.split is not None:
            inside = d.reduction // d.reduce[self.split.level][0]
            parts.append(("pass", self.split.size * inside * (d.w_step or width)))
        return parts

    def _lines(self, tile: _Tile) -> int:
        """Floats that one tile call prefetches into L2."""
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
        return p.channel * self.dense.reduction

    @property
    def tile_text(self) -> str:
        """The largest tile, for names: pixels x vectors."""
        return f"{self.rows[0].size * self.cols[0].size}x{self.panels[0].vectors}"


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
) -> Kernel:
    """Render a kernel.

    Args:
        args: pointer arguments, in order; scratch for partial sums is appended here.
        helpers: C functions that ``body`` calls.
        body: what the kernel does, when that is not just ``writer.body()``.
        rows: the range of r1, when it does not count the writer's row tiles.
    """
    nests = writer.body() if body is None else body
    tiles = [writer.tile_context(t) for t in writer.used.values()]
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
    count = rows or sum(r.count for r in writer.rows)
    return Kernel(name, text, tuple(all_args), count, writer.fused.math, includes)
