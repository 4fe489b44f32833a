"""Knobs of ``conv2d_fused_rows``, their default, and the model behind it.

The stages' register tiles cost what they cost in kernels of their own; what differs is where
operands come from. Ring and strip are in L2, if they fit it, and the maps between the stages move
no bytes beyond; but weights that do not stay in L1 pass by once a step, and the rows where two
windows overlap move whenever the ring is full.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from aotgen.ir.graph import Group
from aotgen.schedule.base import Config, Knob, KnobValue
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.depthwise_tile import best_tile, depthwise_tiles, tile_cycles
from aotgen.schedule.conv.fused_rows_chain import EXPAND, PROJECT, Chain, known_chain
from aotgen.schedule.dense.blocking import Problem, dense_config, predicted_seconds
from aotgen.schedule.dense.cache_model import block_loop_seconds, layout_cycles
from aotgen.schedule.dense.problem import DenseConfig
from aotgen.schedule.dense.tiles import (
    L2_SEEN,
    MAX_PIXELS,
    RESIDENT,
    core_model,
    padded,
    registers,
    split_channels,
    split_even,
    usable_registers,
)
from aotgen.schedule.group_memo import per_group
from aotgen.schedule.layouts import X_LAYOUT, layout_of
from aotgen.target.target import Target

STEP_ROWS = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16)
"""Output rows a step that the search tries."""

RING_STEPS = (0, 1, 3)
"""Steps that the ring has room for beside a window: with more, rows move less often."""

RAM_LOSS = 0.05
"""Share of a chain's seconds that less memory may cost when optimising for RAM."""

STEP_CYCLES = 60
"""Of one step beside its stages: calls, bounds."""

RESTREAM = 0.6
"""Share of the time of fetching a panel from L2 again that arithmetic does not hide: other than a
stream of weights it comes in a burst, at each step's begin.
"""

DENSE_KNOBS = ("ow_tile", "nr", "oc_block", "k_unroll")


def steps_of(chain: Chain, rows: int) -> int:
    """Steps of ``rows`` output rows."""
    return -(-chain.shape.out[1] // rows)


def dense_stage_config(config: Config, name: str, target: Target) -> DenseConfig:
    """The register tile of a 1x1 stage: within one row, the reduction in one pass."""
    knobs = {k: config[f"{name}_{k}"] for k in DENSE_KNOBS}
    fixed: dict[str, KnobValue] = {"oh_tile": 1, "kc": 0, "next_lines": 0, "prefetch_bytes": 0}
    return dense_config(Config.of(**fixed, **knobs), target)


def stage_problem(chain: Chain, name: str, rows: int, target: Target) -> Problem:
    """A 1x1 stage for the dense model: one step's rows, as many times as there are steps."""
    shape = ConvShape.of(chain.stages[name].nodes[0])
    many = rows * chain.shape.stride[1] if name == EXPAND else rows
    many = min(many, shape.out[1])
    steps = -(-shape.out[1] // many)
    return Problem(
        rows=many,
        cols=shape.out[2],
        outer=steps * shape.batch,
        groups=1,
        channels=shape.outputs,
        reduction=shape.channels,
        inner=shape.channels,
        passes=shape.channels,
        x_bytes=4 * shape.channels * shape.out[2] * many,
        lane_step=target.has_neon,
    )


def _weight_bytes(problem: Problem, target: Target) -> int:
    return 4 * problem.reduction * padded(problem.channels, target.vl)


def _dense_seconds(
    problem: Problem, c: DenseConfig, target: Target, *, blocks: bool = False, kept: bool = True
) -> float:
    """Of a 1x1 stage whose input is in L2. A panel that stays in L1 for a step comes from L2 in
    the next one.

    Args:
        kept: L2 holds what a step touches, weights included; else they come from behind it.
        blocks: the input lies in blocks of channels.
    """
    seconds = predicted_seconds(replace(problem, blocks=blocks), c, target)
    if blocks and target.isa != "neon":
        seconds += block_loop_seconds(problem, c, target)
    weights = _weight_bytes(problem, target)
    if weights > RESIDENT * target.l1_bytes and (c.block or not kept):
        core = core_model(target)
        rate = core.l2 if kept else core.far
        seconds += RESTREAM * problem.outer * weights / rate / core.ghz * 1e-9
    return seconds


@lru_cache(maxsize=4096)
def _best_dense(problem: Problem, target: Target) -> DenseConfig:
    """The register tile of least modelled time."""
    best: tuple[float, int, DenseConfig] | None = None
    unroll = 8 if target.has_neon else 4
    most = -(-problem.channels // target.vl)
    for ow in dict.fromkeys(split_even(problem.cols, n)[0].size for n in range(1, MAX_PIXELS + 1)):
        for vectors in range(1, min(8, most) + 1):
            if registers(ow, vectors, target, problem.lane_step) > usable_registers(target):
                continue
            if split_channels(problem.channels, target.vl, vectors)[0].vectors != vectors:
                continue
            for block in (0, 1) if most > vectors else (0,):
                c = DenseConfig(1, ow, vectors, block, 0, unroll)
                entry = (_dense_seconds(problem, c, target), -ow * vectors, c)
                if best is None or entry[:2] < best[:2]:
                    best = entry
    assert best is not None
    return best[2]


def ring_rows(chain: Chain, config: Config) -> int:
    """Rows of the ring: a window of one step and the rows that ``ring_steps`` more steps add, at
    most the whole map.
    """
    rows = config.int("fuse_rows")
    window, advance = chain.window_rows(rows), rows * chain.shape.stride[1]
    whole = sum(chain.shape.border()[1]) + chain.shape.size[1]
    return max(window, min(window + config.int("ring_steps") * advance, whole))


def _dense_values(name: str, problem: Problem, target: Target) -> dict[str, KnobValue]:
    c = _best_dense(problem, target)
    nr = c.vectors * target.vl
    values = (c.ow_tile, nr, c.block * nr, c.k_unroll)
    return {f"{name}_{k}": v for k, v in zip(DENSE_KNOBS, values, strict=True)}


@per_group
def default_config(group: Group, target: Target) -> Config:
    """The config of least modelled time of a Group that is a chain; when optimising for RAM that of
    least scratch among those that take little more.
    """
    chain = known_chain(group, target)
    found: list[tuple[float, int, Config]] = []
    for rows in STEP_ROWS:
        if rows > max(1, chain.shape.out[1] // target.threads):
            continue
        tile = best_tile(chain.window, rows, chain.shape.out[2], target, whole=True)
        knobs: dict[str, KnobValue] = {"fuse_rows": rows, "oh_tile": tile[0], "ow_tile": tile[1]}
        for name in (EXPAND, PROJECT):
            if name in chain.stages:
                problem = stage_problem(chain, name, rows, target)
                knobs.update(_dense_values(name, problem, target))
        rings: list[dict[str, KnobValue]] = [{}]
        if chain.expand is not None:
            rings = [{"ring_steps": n} for n in RING_STEPS]
        for ring in rings:
            config = Config.of(**knobs, **ring)
            found.append(
                (chain_seconds(chain, config, target), scratch_bytes(chain, config), config)
            )
    least = min(seconds for seconds, _, _ in found)
    if target.optimize == "ram":
        near = [f for f in found if f[0] <= least * (1 + RAM_LOSS)]
        return min(near, key=lambda f: (f[1], f[0]))[2]
    return min(found, key=lambda f: f[:2])[2]


def chain_knobs(group: Group, target: Target) -> tuple[Knob, ...]:
    """All knobs of a Group that is a chain, with their legal values."""
    chain = known_chain(group, target)
    out = chain.shape.out
    default = default_config(group, target)
    tiles = depthwise_tiles(chain.window, out[1], out[2], target)
    steps = [r for r in STEP_ROWS if r <= out[1]]
    knobs: list[tuple[str, set[int], str]] = [
        ("fuse_rows", set(steps), "output rows"),
        ("oh_tile", {t[0] for t in tiles}, "rows"),
        ("ow_tile", {t[1] for t in tiles}, "columns"),
    ]
    if chain.expand is not None:
        knobs.append(("ring_steps", set(RING_STEPS), "steps of room behind a window"))
    for name in (EXPAND, PROJECT):
        if name not in chain.stages:
            continue
        problem = stage_problem(chain, name, 1, target)
        sizes = {split_even(problem.cols, n)[0].size for n in range(1, MAX_PIXELS + 1)}
        most = min(8, -(-problem.channels // target.vl))
        limit = usable_registers(target)
        widths = {
            v * target.vl
            for v in range(1, most + 1)
            if registers(1, v, target, problem.lane_step) <= limit
        }
        knobs += [
            (f"{name}_ow_tile", sizes, "columns"),
            (f"{name}_nr", widths, "channels"),
            (f"{name}_oc_block", {0, *widths}, "channels, 0: all"),
            (f"{name}_k_unroll", {4, 8}, "steps"),
        ]
    return tuple(
        Knob(name, "ordinal", tuple(sorted(values | {default.int(name)})), unit)
        for name, values, unit in knobs
    )


def scratch_bytes(chain: Chain, config: Config) -> int:
    """Ring and strip of one thread."""
    floats = 0
    if chain.expand is not None:
        floats += chain.ring_row * ring_rows(chain, config)
    if chain.project is not None:
        floats += chain.strip_row * config.int("fuse_rows")
    return 4 * floats


def chain_seconds(chain: Chain, config: Config, target: Target) -> float:
    """Modelled seconds of one call."""
    rows, shape = config.int("fuse_rows"), chain.shape
    core = core_model(target)
    seconds, kept = 0.0, _fits_l2(chain, config, target)
    for name in (EXPAND, PROJECT):
        if name not in chain.stages:
            continue
        problem = stage_problem(chain, name, rows, target)
        blocks = name == EXPAND and layout_of(config, X_LAYOUT) == "nchwc"
        c = dense_stage_config(config, name, target)
        found = _dense_seconds(problem, c, target, blocks=blocks, kept=kept)
        if name == EXPAND:  # each thread begins with the rows of a window that another has, too
            overlap = max(0, chain.reach - shape.stride[1])
            found *= 1 + (target.threads - 1) * overlap / shape.size[1]
        seconds += found
    cycles = _depthwise_cycles(chain, config, target, kept)
    cycles += shape.batch * steps_of(chain, rows) * STEP_CYCLES
    return seconds + cycles / core.ghz * 1e-9


def _fits_l2(chain: Chain, config: Config, target: Target) -> bool:
    """Whether all that one step touches after another stays in L2, which ARM's cores share."""
    rows = config.int("fuse_rows")
    names = [name for name in (EXPAND, PROJECT) if name in chain.stages]
    weights = sum(_weight_bytes(stage_problem(chain, n, rows, target), target) for n in names)
    sharers = target.threads if target.has_neon else 1
    return scratch_bytes(chain, config) * sharers + weights <= RESIDENT * target.l2_bytes


def _depthwise_cycles(chain: Chain, config: Config, target: Target, kept: bool) -> float:
    """The depthwise stage, with what ring and strip cost, and the maps that it reads from and
    writes to the arena. Other maps of the arena cost a 1x1 convolution what they cost it alone.
    """
    shape, core = chain.shape, core_model(target)
    rows, h, w = (config.int(k) for k in ("fuse_rows", "oh_tile", "ow_tile"))
    tiles = tile_cycles(chain.window, rows, shape.out[2], h, w, target) * shape.out[1] / rows
    cycles = tiles * shape.batch * padded(shape.channels, target.vl) / target.vl
    cycles += layout_cycles(shape, h, w, target, Config())
    read, written = _map_bytes(shape, shape.size), _map_bytes(shape, shape.out)
    near = core.l2 if kept else core.far
    arena = core.l2 if read + written < target.l2_bytes else core.far
    cycles += read / (near if chain.expand is not None else arena)
    cycles += written / (near if chain.project is not None else arena)
    if chain.expand is not None:
        x = ConvShape.of(chain.expand.nodes[0])
        if _map_bytes(x, x.size) > RESIDENT * target.l2_bytes:
            cycles += _map_bytes(x, x.size) * (1 / core.far - L2_SEEN / core.l2)
        window, overlap = chain.window_rows(rows), max(0, chain.reach - shape.stride[1])
        apart = 1 + (ring_rows(chain, config) - window) // (rows * shape.stride[1])
        moves = shape.batch * steps_of(chain, rows) / apart
        cycles += 2 * moves * overlap * 4 * chain.ring_row / near
    return cycles


def _map_bytes(shape: ConvShape, extents: tuple[int, int, int]) -> int:
    """Of a map with a convolution's input channels."""
    return 4 * shape.batch * shape.channels * extents[1] * extents[2]
