"""Register tiles of depthwise convolutions: which fit, and the model that picks one.

On AArch64 a tile slides down its rows: an output is stored as soon as it has its last product, so
that only those of a few rows take registers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache

from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.tiles import core_model, split_even
from aotgen.target.target import Target

MAX_TAPS = 81
"""Taps of the largest filter, 9 x 9: all of them are printed."""

MAX_FMAS = 512
"""FMAs printed in one tile: beyond it code size costs more than reuse gains."""


@dataclass(frozen=True)
class Window:
    """Taps and steps of a filter, as the tile sees them."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    def positions(self, axis: int, outputs: int) -> list[int]:
        """Input offsets along an axis that ``outputs`` neighbouring outputs read, ascending."""
        step, dilation = self.stride[axis], self.dilation[axis]
        return sorted(
            {o * step + k * dilation for o in range(outputs) for k in range(self.kernel[axis])}
        )


def window_of(shape: ConvShape) -> Window:
    """Of a convolution with one or two spatial axes."""
    return Window(shape.kernel[1:], shape.stride[1:], shape.dilation[1:])


def tile_slides(target: Target) -> bool:
    """Whether outputs are stored while the tile's inputs pass, not all at its end."""
    return target.isa == "neon"


@lru_cache(maxsize=4096)
def _live(window: Window, rows: int, cols: int) -> int:
    """Most outputs of a sliding tile that have some of their products and not all."""
    first = [[_reads(window, 0, oy, ox) for ox in range(cols)] for oy in range(rows)]
    last = [[_reads(window, -1, oy, ox) for ox in range(cols)] for oy in range(rows)]
    starts = sorted(at for row in first for at in row)
    ends = sorted(at for row in last for at in row)
    return max(bisect_right(starts, at) - bisect_left(ends, at) for at in starts)


def _reads(window: Window, which: int, oy: int, ox: int) -> tuple[int, int]:
    """The first (0) or last (-1) input that an output of a tile reads."""
    taps = window.kernel if which else (1, 1)
    y, x = (
        o * s + (k - 1) * d
        for o, s, k, d in zip((oy, ox), window.stride, taps, window.dilation, strict=True)
    )
    return y, x


def accumulators(window: Window, rows: int, cols: int, target: Target) -> int:
    """Accumulators that a tile keeps in registers."""
    outputs = rows * cols
    return min(outputs, _live(window, rows, cols) + 2) if tile_slides(target) else outputs


def is_held(window: Window, rows: int, cols: int, target: Target) -> bool:
    """Whether the filter stays in registers beside the accumulators."""
    return window.taps + accumulators(window, rows, cols, target) + 2 <= target.vector_registers


def tile_fits(window: Window, rows: int, cols: int, target: Target) -> bool:
    """Whether a tile of rows x cols outputs fits the registers, and its code is not too long."""
    outputs = rows * cols
    if outputs > 1 and outputs * window.taps > MAX_FMAS:
        return False
    return accumulators(window, rows, cols, target) + 3 <= target.vector_registers


def depthwise_tiles(window: Window, rows: int, cols: int, target: Target) -> list[tuple[int, int]]:
    """Tiles (rows, columns) to choose from for a map of rows x cols outputs."""
    found: dict[tuple[int, int], None] = {}
    most = min(16, -(-rows // target.threads)) if tile_slides(target) else 4
    for h in range(1, max(most, 4) + 1):
        for w in range(1, 9):
            tile = split_even(rows, h)[0].size, split_even(cols, w)[0].size
            if tile_fits(window, *tile, target):
                found.setdefault(tile)
    return list(found)


def tile_cycles(window: Window, rows: int, cols: int, h: int, w: int, target: Target) -> float:
    """Modelled cycles of one channel vector over the map."""
    core = core_model(target)
    total = 0.0
    for r in split_even(rows, h):
        for c in split_even(cols, w):
            outputs = r.size * c.size
            fmas = outputs * window.taps
            loads = float(len(window.positions(0, r.size)) * len(window.positions(1, c.size)))
            loads += window.taps if is_held(window, r.size, c.size, target) else fmas
            chain = window.taps * core.latency
            issue = (fmas + loads + 3 * outputs + 8) / core.issue
            around = 1.5 * outputs + 6
            if tile_slides(target):
                around += 0.5 * loads / core.fma
            total += (
                r.count
                * c.count
                * (max(fmas / core.fma, loads / core.loads, issue, chain) + around)
            )
    return total


@lru_cache(maxsize=4096)
def best_tile(
    window: Window, rows: int, cols: int, target: Target, *, whole: bool = False
) -> tuple[int, int]:
    """The tile (rows, columns) of least modelled time for a map of rows x cols outputs.

    Args:
        whole: only tiles that divide the rows: one of a single output always does.
    """
    return min(
        (t for t in depthwise_tiles(window, rows, cols, target) if not whole or rows % t[0] == 0),
        key=lambda t: (tile_cycles(window, rows, cols, t[0], t[1], target), -t[0] * t[1], t),
    )
