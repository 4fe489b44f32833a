"""The register tile of dense kernels: what ``templates/kernels/tile.c.j2`` prints for one size.

Python decides the size, offsets and names; the template holds the C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aotgen.schedule.dense import cortex_m_tile
from aotgen.schedule.dense.asm_tile import AsmTile, Reduction, context
from aotgen.schedule.dense.neon_tile import asm_tile
from aotgen.schedule.dense.problem import Dense, DenseConfig, split_reduction, terms
from aotgen.schedule.dense.tiles import Panels, split_channels, split_even
from aotgen.schedule.fused import Fused, constant_channel
from aotgen.schedule.intrinsics import (
    F32_BROADCAST,
    F32_BY_ELEMENT,
    intrinsics_for,
    tile_steps,
)
from aotgen.target.target import Target


@dataclass(frozen=True)
class Tile:
    """A size that the kernel calls: rows x cols pixels of one kind of panel."""

    rows: int
    cols: int
    panels: Panels


class TileWriter:
    """Builds the tiles' context for one Dense under one config."""

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
        self.prefetches = (
            config.next_lines > 0
            and not target.bare
            and not self.all_panels
            and dense.w_step == 0
            and self._unroll()[1] > 1
        )
        self.tag = ""
        """Begins tiles' names, where one kernel has several writers."""

    def names(self) -> list[str]:
        """Operands a tile gets pointers to, in order."""
        return self.fused.tile_operands(self.bias)

    def tile_params(self) -> str:
        parts = self.fused.tile_params(self.bias)
        if self.split is not None:
            parts.append("float *restrict part")
        if self.prefetches:
            parts.append("const float *next")
        if self.split is not None:
            parts += ["int32_t steps", "int32_t mode"]
        if self.dense.counts_taps:
            parts.append("int32_t taps")
        return ", ".join(parts)

    def tile_context(self, tile: Tile) -> dict[str, Any]:
        d, c, vl = self.dense, self.config, self.vl
        vectors = list(range(tile.panels.vectors))
        masked = {tile.panels.vectors - 1: tile.panels.lanes} if tile.panels.lanes else {}
        inner_extent, inner_stride = d.reduce[-1]
        variable = self.split is not None and self.split.level == len(d.reduce) - 1
        lane_step, unroll = self._unroll()
        asm = self.asm(tile)
        offsets = self._offsets(tile)
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
        moves = self.by_element is not None and self.by_element.moves_b and not d.w_step
        if moves:
            loads = ["vload_next(&w)" for _ in vectors]
        outer = []
        for level, (extent, stride) in enumerate(d.reduce[:-1]):
            split_here = self.split is not None and self.split.level == level
            counted = level == 0 and d.counts_taps
            if extent > 1 or split_here or counted:
                outer.append(
                    {
                        "var": f"k{level}",
                        "extent": "steps" if split_here else "taps" if counted else str(extent),
                        "stride": stride,
                        "skipped": self._skipped(tile) if level == 0 else 0,
                    }
                )
        extent_text = "steps" if variable else str(inner_extent)
        full = f"steps / {unroll} * {unroll}" if variable else str(inner_extent // unroll * unroll)
        return {
            "name": self._name(tile),
            "function": "AOT_INLINE" if asm and not self.target.bare else "static AOT_NOINLINE",
            "asm": context(asm) if asm else None,
            "title": self._tile_title(tile),
            "params": self.tile_params(),
            "pixels": pixels,
            "vectors": vectors,
            "vl": vl,
            "loads": loads,
            "w_step": 0 if moves else d.w_step or tile.panels.vectors * vl,
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
                "next": c.next_lines if self.prefetches else 0,
                "ahead": 0 if self.target.bare else c.ahead,
            },
        }

    def _skipped(self, tile: Tile) -> int:
        """Floats of weights that a round of the outermost loop leaves out."""
        taps = self.dense.taps
        return 0 if taps is None else taps.skipped * tile.panels.vectors * self.vl

    def _offsets(self, tile: Tile) -> list[int]:
        """Floats from a tile's first input to each pixel's."""
        d = self.dense
        return [
            r * d.row.stride("x") + col * d.col.stride("x")
            for r in range(tile.rows)
            for col in range(tile.cols)
        ]

    def asm(self, tile: Tile) -> AsmTile | None:
        """The tile's reduction as one asm statement, where the target has that."""
        d = self.dense
        if d.w_step or not (self.by_element is F32_BY_ELEMENT or self.target.has_dsp):
            return None
        if d.taps is not None and not self.target.has_dsp:
            return None
        level = None if self.split is None else self.split.level
        kept = (level, 0 if d.counts_taps else level, len(d.reduce) - 1)
        used = [i for i, (n, _) in enumerate(d.reduce) if n > 1 or i in kept]
        sizes: tuple[int, ...] = ()
        if self.split is not None:
            last = d.reduce[self.split.level][0] - (self.split.passes - 1) * self.split.size
            sizes = (self.split.size, last)
        reduction = Reduction(
            offsets=tuple(self._offsets(tile)),
            vectors=tile.panels.vectors,
            levels=tuple(d.reduce[i] for i in used),
            split=None if level is None else used.index(level),
            sizes=sizes,
            unroll=max(4, self.config.k_unroll),
            overread=d.overread,
            bias=self.bias,
            lines=self.config.next_lines if self.prefetches else 0,
            ahead=self.config.ahead,
            counted=d.counts_taps,
            skipped=self._skipped(tile) if d.reduce[0][0] > 1 or d.counts_taps else 0,
        )
        if self.target.has_dsp:
            return cortex_m_tile.asm_tile(reduction, self.target)
        return asm_tile(reduction)

    def _unroll(self) -> tuple[bool, int]:
        """Whether the innermost loop multiplies by element, and how many steps a round takes."""
        extent, stride = self.dense.reduce[-1]
        most = self.config.k_unroll
        if self.by_element is not None and stride == 1 and extent >= 4:
            unroll = max(4, most // 4 * 4)
            return True, unroll if extent >= unroll else 4
        return False, most if extent >= 2 * most or extent % most == 0 else 1

    def _lane_rounds(self) -> list[int]:
        """By element, x readable beyond its end: the innermost loop as lane steps; else empty."""
        extent, stride = self.dense.reduce[-1]
        if self.by_element is None or stride != 1 or not self.dense.overread or extent == 1:
            return []
        return [min(4, extent - at) for at in range(0, extent, 4)]

    def _name(self, tile: Tile) -> str:
        flat = self.dense.col.extent == 1 or self.rows[0].size == 1
        pixels = str(tile.rows * tile.cols) if flat else f"{tile.rows}x{tile.cols}"
        tail = f"_{tile.panels.lanes}" if tile.panels.lanes else ""
        return f"tile_{self.tag}{pixels}x{tile.panels.vectors}{tail}"

    def _tile_title(self, tile: Tile) -> str:
        what = f"{tile.rows} x {tile.cols} pixels, {tile.panels.vectors} vectors of output channels"
        return what + (f", the last one of {tile.panels.lanes}" if tile.panels.lanes else "")

    def _store(self, i: int, n: int, at: Mapping[str, int], lanes: int) -> str:
        pointers = {name: terms(name, offset=offset) for name, offset in at.items()}
        channel = n * self.vl
        y = terms("y", offset=at["y"] + channel * self.dense.channel_step("y"))
        return self.fused.store(f"acc{i}_{n}", y, pointers, constant_channel(channel), lanes)

    def _spilled(self, tile: Tile, masked: Mapping[int, int]) -> dict[str, Any]:
        """The epilogue of one pixel, for the loop over sums in memory."""
        d = self.dense

        def at(name: str) -> str:
            return terms(name, ("i", d.row.stride(name)), ("j", d.col.stride(name)))

        pointers = {name: at(name) for name in [*(e.name for e in self.fused.inputs), "y"]}
        stores = []
        for n in range(tile.panels.vectors):
            lanes = masked.get(n, 0)
            channel = constant_channel(n * self.vl)
            loads = self.fused.load(pointers, channel, lanes)
            value = f"@KERNEL@_epilogue(vload({terms('sum', offset=n * self.vl)}){loads})"
            pointer = f"{at('y')} + {channel(d.channel_step('y'))}" if n else at("y")
            end = f", {lanes});" if lanes else ");"
            stores.append(f"{'vstore_n' if lanes else 'vstore'}({pointer}, {value}{end}")
        return {"rows": tile.rows, "cols": tile.cols, "stores": stores}
