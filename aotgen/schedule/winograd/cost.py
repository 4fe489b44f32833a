"""The modelled time of a Winograd convolution and the config with the least."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.blocking import FEWEST_LINES
from aotgen.schedule.dense.problem import LINE_FLOATS, DenseConfig
from aotgen.schedule.dense.tiles import (
    FAR_PREFETCHED,
    FAR_SEEN,
    L2_SEEN,
    MAX_PIXELS,
    RESIDENT,
    CoreModel,
    core_model,
    registers,
    split_channels,
    split_even,
    step_cycles,
    usable_registers,
)
from aotgen.schedule.winograd.tiling import Tiling
from aotgen.target.target import Target

MAX_VECTORS = 6
"""Vectors of output channels of a register tile."""

SCRATCH_SEEN = 0.25
"""Share of the time of scratch beyond L2 that arithmetic does not hide: it is written and read in
order.
"""

MOST_SCRATCH = 8
"""Scratch of a block, in L2 caches; large ones pay where weights are larger still."""

TILE_BLOCKS = (4, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 49, 56, 64, 98, 128)
DEPTH_BLOCKS = (1, 2, 4, 8, 16)
"""Tiles of a frame, and frames, that blocks are cut to about."""

INPUT_OPERATIONS = {2: 32 + 32, 4: 144 + 132}
OUTPUT_OPERATIONS = {2: 24 + 28, 4: 90 + 86}
"""Instructions that one vector of a tile's transform takes: sums, then loads, stores and spills."""


def tile_blocks(shape: ConvShape, m: int) -> list[int]:
    """Tiles a block may have: sizes that cut all tiles into even blocks."""
    total = shape.batch * -(-shape.out[1] // m) * -(-shape.out[2] // m)
    return sorted({split_even(total, n)[0].size for n in TILE_BLOCKS})


def depth_blocks(shape: ConvShape) -> list[int]:
    """Output frames a block may have."""
    return sorted({split_even(shape.out[0], n)[0].size for n in DEPTH_BLOCKS})


def predicted_seconds(tiling: Tiling, config: DenseConfig, target: Target) -> float:
    """Modelled seconds of one call: no less than weights from behind L2 take to arrive."""
    return max(_cycles(tiling, config, target)) / core_model(target).ghz * 1e-9


def _cycles(t: Tiling, c: DenseConfig, target: Target) -> tuple[float, float]:
    """Cycles by throughput of the core, and by that of the memory."""
    core = core_model(target)
    streamed = _streamed_bytes(t, target) / core.far
    cycles = _product_cycles(t, c, target) + _transform_cycles(t, core)
    cycles += streamed * (FAR_PREFETCHED if c.next_lines else FAR_SEEN)
    return cycles + _near_cycles(t, c, target, core), streamed


def _product_cycles(t: Tiling, c: DenseConfig, target: Target) -> float:
    """Register tiles with their operands in L1, and what stands around their reductions."""
    core = core_model(target)
    passes = -(-t.steps // c.kc) if c.kc else 1
    total = 0.0
    for rows in split_even(t.rows, c.oh_tile):
        for p in split_channels(t.outputs, t.vl, c.vectors):
            step = step_cycles(rows.size, p.vectors, target, target.has_neon, t.interleaved)
            around = rows.size * p.vectors * (1.0 + passes) / core.fma + 12 * passes
            total += rows.count * p.count * (t.steps * step + around)
    return total * t.points * t.blocks


def _transform_cycles(t: Tiling, core: CoreModel) -> float:
    """Both transforms, of operands in L1."""
    tiles = t.total * sum(r.count for r in t.frame_runs)
    read = tiles * t.read_frames * t.channels / t.vl * INPUT_OPERATIONS[t.m]
    written = tiles * t.frames * t.outputs / t.vl * OUTPUT_OPERATIONS[t.m]
    return (read + written) / core.fma


def fits(t: Tiling, target: Target) -> bool:
    """Whether a block is small enough to be worth a try."""
    return t.rows <= TILE_BLOCKS[0] or t.scratch_bytes <= MOST_SCRATCH * target.l2_bytes


def _weight_bytes(t: Tiling) -> int:
    return 4 * t.points * t.steps * t.outputs


def _streamed_bytes(t: Tiling, target: Target) -> float:
    """Weights from behind L2: all of them once, or for every block where L2 does not hold them."""
    weights = _weight_bytes(t)
    held = weights + t.scratch_bytes <= RESIDENT * target.l2_bytes
    return weights if held else weights * t.blocks


def _near_cycles(t: Tiling, c: DenseConfig, target: Target, core: CoreModel) -> float:
    """Cycles that operands from L2 add, and scratch beyond it."""
    cycles = 0.0
    again = _weight_bytes(t) * t.blocks - _streamed_bytes(t, target)
    cycles += L2_SEEN * again / core.l2
    moved = 2 * t.scratch_bytes * t.blocks
    near = t.scratch_bytes <= RESIDENT * target.l2_bytes
    cycles += L2_SEEN * moved / core.l2 if near else SCRATCH_SEEN * moved / core.far
    if c.block:
        read, volume = 4 * t.rows * t.steps, -(-t.outputs // (c.vectors * t.vl))
    else:
        read, volume = 4 * t.steps * t.outputs, -(-t.rows // c.oh_tile) - 1
    if read > RESIDENT * target.l1_bytes:
        cycles += L2_SEEN * t.points * t.blocks * volume * read / core.l2
    return cycles


def _orders(t: Tiling, mr: int, vectors: int, target: Target) -> Iterator[DenseConfig]:
    """Loop orders of a register tile, with and without prefetching."""
    unroll = 8 if target.has_neon else 4
    yield DenseConfig(mr, 1, vectors, 0, 0, unroll)
    if -(-t.outputs // (vectors * t.vl)) == 1:
        return
    yield DenseConfig(mr, 1, vectors, 1, 0, unroll)
    tiles = -(-t.rows // mr)
    lines = vectors * t.vl / LINE_FLOATS * unroll / tiles
    if lines >= FEWEST_LINES and 4 * t.steps * t.outputs * t.points > target.l2_bytes // 2:
        yield DenseConfig(mr, 1, vectors, 1, 0, unroll, _power(lines))


def _power(lines: float) -> int:
    """The power of two nearest to ``lines``, 1 to 4."""
    return 1 if lines < 1.5 else 2 if lines < 3 else 4


@lru_cache(maxsize=1024)
def best(shape: ConvShape, target: Target, sizes: tuple[int, ...]) -> tuple[Tiling, DenseConfig]:
    """The tiling and the register tile with the least modelled time.

    Args:
        sizes: outputs of a tile along an axis to choose from, at least one.
    """
    found: tuple[tuple[float, float], Tiling, DenseConfig] | None = None
    for m in sizes:
        for tile_block in tile_blocks(shape, m):
            for depth_block in depth_blocks(shape):
                t = Tiling(shape, m, tile_block, depth_block, target.vl, target.has_neon)
                if not fits(t, target):
                    continue
                for c in _register_tiles(t, target):
                    core, memory = _cycles(t, c, target)
                    cycles = max(core, memory), core
                    if found is None or cycles < found[0]:
                        found = cycles, t, c
    assert found is not None
    return found[1], found[2]


def _register_tiles(t: Tiling, target: Target) -> Iterator[DenseConfig]:
    """Configs of register tiles that fit; of each width and number of pieces the most even one."""
    limit = usable_registers(target)
    sizes = sorted({split_even(t.rows, n)[0].size for n in range(1, MAX_PIXELS + 1)})
    for vectors in range(1, MAX_VECTORS + 1):
        if split_channels(t.outputs, t.vl, vectors)[0].vectors != vectors:
            continue
        fitting = [n for n in sizes if registers(n, vectors, target, target.has_neon) <= limit]
        for mr in fitting[-4:]:
            yield from _orders(t, mr, vectors, target)
