"""Default tile and blocking of a dense kernel, computed from the target's facts, and the model
behind the choice.

The model counts cycles of the register tile (FMA, load and issue throughput) and bytes from each
cache level. Its two orders of loops: all panels a tile (pixels stay in L1, weights stream past;
large maps) or one panel over all pixels (weights stay, pixels stream past; 14x14 and 7x7 maps),
where the reduction may be cut into passes whose weights fit L2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from aotgen.schedule.base import Config, KnobValue
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
from aotgen.target.target import Target

FEWEST_LINES = 0.2
"""Cache lines of the next panel a round below which fetching them ahead does not pay."""


@dataclass(frozen=True)
class Problem:
    """What the model needs to know about a dense kernel.

    Attributes:
        rows, cols: output rows and columns (a matrix product has rows M and one column).
        outer: how often the whole runs with the same weights (batch, depth).
        groups: how often it runs with other weights.
        channels: output channels of a group.
        reduction: products an output.
        inner: extent of the innermost reduction loop.
        passes: most passes the reduction can be cut into.
        x_bytes: bytes of input of a group and an outer step.
        lane_step: the tile uses by-element FMAs on four steps at once.
        packed: weights are packed in panels (else read in place).
        blocks: input lies in blocks of channels, pixels of a tile next to each other.
    """

    rows: int
    cols: int
    outer: int
    groups: int
    channels: int
    reduction: int
    inner: int
    passes: int
    x_bytes: int
    lane_step: bool = False
    packed: bool = True
    blocks: bool = False


def dense_config(config: Config, target: Target) -> DenseConfig:
    """Knobs as the kernel writer wants them; ``mr`` stands for rows of a single column."""
    knobs = config.as_dict()
    nr = config.int("nr")
    block = config.int("oc_block")
    return DenseConfig(
        oh_tile=int(knobs.get("mr", knobs.get("oh_tile", 1))),
        ow_tile=int(knobs.get("ow_tile", 1)),
        vectors=max(1, nr // target.vl),
        block=-(-block // nr) if block else 0,
        kc=config.int("kc"),
        k_unroll=config.int("k_unroll"),
        next_lines=config.int("next_lines"),
        ahead=config.int("prefetch_bytes") // 4,
    )


def config_of(problem: Problem, c: DenseConfig, target: Target) -> Config:
    """The knobs that say ``c``."""
    nr = c.vectors * target.vl
    pixels: dict[str, KnobValue] = {"oh_tile": c.oh_tile, "ow_tile": c.ow_tile}
    if problem.cols == 1:
        pixels = {"mr": c.oh_tile}
    return Config.of(
        **pixels,
        nr=nr,
        oc_block=c.block * nr,
        kc=c.kc,
        k_unroll=c.k_unroll,
        next_lines=c.next_lines,
        prefetch_bytes=c.ahead * 4,
    )


def tile_shapes(problem: Problem) -> list[tuple[int, int]]:
    """(rows, columns) a tile may span: pieces of one row, or whole narrow rows."""
    found: dict[tuple[int, int], None] = {}
    if problem.cols == 1:
        for n in range(1, MAX_PIXELS + 1):
            found.setdefault((split_even(problem.rows, n)[0].size, 1))
        return list(found)
    for n in range(1, MAX_PIXELS + 1):
        size = split_even(problem.cols, n)[0].size
        found.setdefault((1, size))
        if size == problem.cols:
            for rows in range(2, MAX_PIXELS // size + 1):
                found.setdefault((split_even(problem.rows, rows)[0].size, size))
    return list(found)


def cut(value: int, limit: int) -> int:
    """The fewest equal pieces of at most ``limit``: the size of one."""
    pieces = max(1, -(-value // limit))
    return -(-value // pieces)


def pass_steps(problem: Problem, pixels: int, vectors: int, target: Target) -> int:
    """Reduction steps whose weights (one panel wide) should stay in cache; 0 when all do, none is
    read twice, or memory for partial sums is dear.
    """
    if target.bare or problem.rows * problem.cols <= pixels:
        return 0
    width = vectors * target.vl * 4
    if target.has_neon:
        limit = max(64, target.l1_bytes * 5 // 8 // (width + 32))
    else:
        limit = max(64, target.l2_bytes // 6 // width)
    if problem.reduction <= limit * 5 // 4:
        return 0
    return cut(problem.reduction, limit)


def next_lines(problem: Problem, c: DenseConfig, target: Target) -> int:
    """Lines a round prefetches so that the next panel is in L2 when this one is done; 0 where
    pixels outnumber weights, or there is no L2.
    """
    if (
        target.bare
        or not problem.packed
        or c.block == 0
        or problem.channels * problem.reduction * 4 < 65536
    ):
        return 0
    tiles = tile_calls(problem, c)
    lines = c.vectors * target.vl / LINE_FLOATS * c.k_unroll / max(1, tiles)
    if lines < FEWEST_LINES:
        return 0
    return min(c.k_unroll, max(1, round(lines)))


def tile_calls(problem: Problem, c: DenseConfig) -> int:
    """Register tiles of one panel of output channels."""
    rows = -(-problem.rows // c.oh_tile)
    return rows * -(-problem.cols // c.ow_tile) * problem.outer


@lru_cache(maxsize=4096)
def default_config(problem: Problem, target: Target) -> Config:
    """The config with the least modelled time."""
    most = -(-problem.channels // target.vl)
    best: tuple[float, int, DenseConfig] | None = None
    for oh, ow in tile_shapes(problem):
        for vectors in range(1, min(8, most) + 1):
            if registers(oh * ow, vectors, target, problem.lane_step) > usable_registers(target):
                continue
            if split_channels(problem.channels, target.vl, vectors)[0].vectors != vectors:
                continue
            for c in _orders(problem, oh, ow, vectors, target):
                seconds = predicted_seconds(problem, c, target)
                seconds *= size_factor(tile_sizes(problem, c, target), target)
                entry = (seconds, -oh * ow * vectors, c)
                if best is None or entry[:2] < best[:2]:
                    best = entry
    assert best is not None
    return config_of(problem, best[2], target)


def tile_sizes(problem: Problem, c: DenseConfig, target: Target) -> int:
    """How many sizes of tile a kernel has."""
    sizes = len(split_even(problem.rows, c.oh_tile)) * len(split_even(problem.cols, c.ow_tile))
    return sizes * len(split_channels(problem.channels, target.vl, c.vectors))


def size_factor(sizes: int, target: Target) -> float:
    """What the code of several sizes of tile counts, beside their time: much where flash is what is
    optimised, hardly anything where it is just dear.
    """
    if target.optimize != "flash" and not target.bare:
        return 1.0
    return 1 + (sizes - 1) * (0.1 if target.optimize == "flash" else 0.05)


def best_shape(
    problem: Problem, rows: int, cols: int, c: DenseConfig, target: Target
) -> DenseConfig:
    """``c`` with its tile re-cut for pixels of rows x cols that cannot be one long axis."""
    flat = replace(problem, rows=rows, cols=cols)
    most = c.oh_tile * c.ow_tile
    shapes = [s for s in tile_shapes(flat) if s[0] * s[1] <= most] or [(1, 1)]
    made = [replace(c, oh_tile=oh, ow_tile=ow) for oh, ow in shapes]
    return min(made, key=lambda m: (predicted_seconds(flat, m, target), -m.oh_tile * m.ow_tile))


def _orders(problem: Problem, oh: int, ow: int, vectors: int, target: Target) -> list[DenseConfig]:
    """Both loop orders of a tile."""
    unroll = 8 if target.has_neon else 4
    found = [DenseConfig(oh, ow, vectors, 0, 0, unroll)]
    if -(-problem.channels // (vectors * target.vl)) > 1:
        kc = pass_steps(problem, oh * ow, vectors, target) if problem.packed else 0
        one = DenseConfig(oh, ow, vectors, 1, kc, unroll)
        found.append(DenseConfig(oh, ow, vectors, 1, kc, unroll, next_lines(problem, one, target)))
    return found


def predicted_seconds(problem: Problem, c: DenseConfig, target: Target) -> float:
    """Modelled seconds of one call."""
    core = core_model(target)
    cycles = tile_cycles(problem, c, target) + memory_cycles(problem, c, target, core)
    return cycles / core.ghz * 1e-9


def tile_cycles(problem: Problem, c: DenseConfig, target: Target) -> float:
    """Register tiles with all operands in L1, with what a tile costs around its reduction."""
    k = problem.reduction
    passes = -(-k // c.kc) if c.kc else 1
    short = k // max(1, problem.inner) * passes
    total = 0.0
    for r in split_even(problem.rows, c.oh_tile):
        for col in split_even(problem.cols, c.ow_tile):
            for p in split_channels(problem.channels, target.vl, c.vectors):
                pixels = r.size * col.size
                step = step_cycles(pixels, p.vectors, target, problem.lane_step, problem.blocks)
                around = (
                    pixels * p.vectors * (1.0 + passes) / core_model(target).fma
                    + 12 * passes
                    + 2 * short
                )
                total += r.count * col.count * p.count * (k * step + around)
    return total * problem.outer * problem.groups


def memory_cycles(problem: Problem, c: DenseConfig, target: Target, core: CoreModel) -> float:
    """Cycles that operands from beyond L1 add; streams from L2 overlap with arithmetic, those from
    behind it hardly. None on a microcontroller, whose instructions alone are counted.
    """
    if target.bare:
        return 0.0
    vl, k = target.vl, problem.reduction
    panel = k * c.vectors * vl * 4
    panels = -(-problem.channels // (c.vectors * vl))
    weights = panel * panels
    tiles = tile_calls(problem, c)
    pixels = c.oh_tile * c.ow_tile

    def read(volume: float, resident: float) -> float:
        if resident <= RESIDENT * target.l1_bytes:
            return 0.0
        if resident <= RESIDENT * target.l2_bytes:
            return L2_SEEN * volume / core.l2
        return volume / core.far

    tile_x = min(problem.x_bytes, pixels * (c.kc or k) * 4)
    x_total = problem.x_bytes * problem.outer
    first_touch = weights / core.far * (FAR_PREFETCHED if c.next_lines else FAR_SEEN)
    if c.block == 0:
        stream = read(tiles * weights, weights + tile_x)
        again = read(tiles * (panels - 1) * tile_x, tile_x + panel)
        return (first_touch + stream + again + read(x_total, problem.x_bytes)) * problem.groups
    together = 1 if c.kc else c.block
    held = (c.kc or k) * c.vectors * vl * 4 * together
    stream = read(tiles * weights, held + tile_x)
    again = read(-(-panels // together) * x_total, problem.x_bytes)
    return (first_touch + stream + again) * problem.groups
