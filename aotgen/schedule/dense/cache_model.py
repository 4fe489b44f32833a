"""What channels-last activations and blocks of channels cost a kernel.

A dense kernel hardly cares. One that slides a window over a map without summing over channels
(depthwise convolution, pooling) makes L1 fetch lines again.
Channels-last, a tile of outputs reads whole pixels, C floats each, so that windows overlap in L1
only where a window of whole pixels fits it; and the lines of one vector of channels lie a pixel
apart. Where that distance is a multiple of a large power of two they share few sets of L1 and push
one another out (conflict misses). In blocks of channels the kernel finishes one block's plane at a
time: a few rows of it fit L1, and neighbouring pixels are neighbouring lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aotgen.schedule.base import Config
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.blocking import Problem
from aotgen.schedule.dense.problem import DenseConfig
from aotgen.schedule.dense.tiles import RESIDENT, core_model
from aotgen.schedule.layouts import X_LAYOUT, Y_LAYOUT, layout_of
from aotgen.target.target import Target

LINE = 64
"""Bytes of a cache line."""

OVERLAP = 0.5
"""Share of the time of fetching lines from L2 that arithmetic does not hide."""


STORES = 48
"""Stores to different lines that a core has in flight."""

STORE_MISS = 24
"""Cycles of a store whose line was pushed out of L1 before it got there (measured on Zen 5)."""

LOOP_START = 4
"""Instructions around a loop over the channels of one block."""


@dataclass(frozen=True)
class _Walk:
    """A tile's window: rows and columns of tiles, input and output pixels of one."""

    tile_rows: int
    tile_cols: int
    in_rows: int
    in_cols: int
    outputs: int

    @property
    def window(self) -> int:
        return self.in_rows * self.in_cols


def layout_cycles(shape: ConvShape, rows: int, cols: int, target: Target, config: Config) -> float:
    """Cycles of one call that the layouts of a sliding window's input and output cost beside
    arithmetic and the first touch of every line.

    Args:
        shape: of the convolution or pool.
        rows, cols: of a tile of outputs.
        config: with the layouts.
    """
    blocked = layout_of(config, X_LAYOUT) == "nchwc"
    cycles = _refill_cycles(shape, rows, cols, target, blocked)
    if blocked and layout_of(config, Y_LAYOUT) == "strided":
        cycles += _scattered_stores(shape, target)
    return cycles


def _scattered_stores(shape: ConvShape, target: Target) -> float:
    """Writing one vector of channels of every pixel, pixel after pixel: the stores in flight push
    one another out of L1 where pixels share few sets; and where a map of lines does not fit L1,
    every vector but the first of a line fetches it, and writes it back, once more.
    """
    core = core_model(target)
    pixels = shape.out[0] * shape.out[1] * shape.out[2]
    vectors = shape.batch * shape.outputs / target.vl
    stall = _crowded_out(STORES, shape.outputs * 4, target) * STORE_MISS
    if pixels * LINE > RESIDENT * target.l1_bytes:
        again = max(0.0, 1 - target.vl * 4 / LINE)
        rate = core.l2 if pixels * LINE <= RESIDENT * target.l2_bytes else core.far
        stall += again * 2 * LINE / rate
    return pixels * vectors * stall


def _refill_cycles(shape: ConvShape, rows: int, cols: int, target: Target, blocked: bool) -> float:
    """Fetching lines of the input again."""
    walk = _walk(shape, rows, cols)
    room = RESIDENT * target.l1_bytes
    core = core_model(target)
    if blocked:
        plane = walk.in_rows * (shape.size[2] + shape.out[2]) * target.vl * 4
        if plane <= room:
            return 0.0
        again = (walk.tile_rows * walk.in_rows - shape.size[1]) * shape.size[2]
        return shape.batch * max(0, again) * shape.channels * 4 * OVERLAP / core.l2
    pixel = shape.channels * 4
    if shape.size[1] * shape.size[2] * pixel <= room:
        return 0.0
    if (walk.window + walk.outputs) * pixel <= room:
        fetched = walk.tile_rows * walk.in_rows * shape.size[2]
    else:
        fetched = walk.tile_rows * walk.tile_cols * walk.window
    lost = walk.tile_rows * walk.tile_cols * walk.window * _evicted(walk, pixel, target)
    return shape.batch * (fetched * OVERLAP + 2 * lost) * pixel / core.l2


def block_loop_seconds(problem: Problem, c: DenseConfig, target: Target) -> float:
    """What a dense tile pays for reading blocks of channels: its innermost loop starts again for
    each of them. (Its operands come through the caches as they do channels-last.)
    """
    core = core_model(target)
    pixels = -(-problem.rows // c.oh_tile) * -(-problem.cols // c.ow_tile) * problem.outer
    panels = -(-problem.channels // (c.vectors * target.vl))
    starts = pixels * panels * (problem.reduction // target.vl)
    return starts * LOOP_START / core.issue / core.ghz * 1e-9


def _walk(shape: ConvShape, rows: int, cols: int) -> _Walk:
    rows, cols = min(rows, shape.out[1]), min(cols, shape.out[2])
    return _Walk(
        -(-shape.out[1] // rows),
        -(-shape.out[2] // cols),
        min(shape.reach(1, rows), shape.size[1]),
        min(shape.reach(2, cols), shape.size[2]),
        rows * cols,
    )


def _evicted(walk: _Walk, pixel: int, target: Target) -> float:
    """How often, on average, a line of a tile is pushed out of its set before all its vectors were
    used: the lines in flight, one for each pixel, against the ways of the sets that they map to.
    """
    vectors = max(1, LINE // (target.vl * 4))
    return vectors * _crowded_out(walk.window + walk.outputs, pixel, target)


def _crowded_out(lines: int, pixel: int, target: Target) -> float:
    """Share of ``lines`` lines, ``pixel`` bytes apart, that do not fit the sets they map to."""
    period = target.l1_bytes // target.l1_ways
    sets = max(1, min(period // math.gcd(pixel, period), period // LINE))
    return max(0.0, 1 - sets * target.l1_ways / lines)
