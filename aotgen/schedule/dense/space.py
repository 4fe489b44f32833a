"""Knobs of the dense kernels: their values, which configs make sense, which are the same kernel,
and what a learned model sees of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from aotgen.schedule.base import Config, Knob, KnobValue, ScheduleError
from aotgen.schedule.dense.blocking import (
    Problem,
    cut,
    default_config,
    dense_config,
    memory_cycles,
    predicted_seconds,
    tile_calls,
    tile_cycles,
    tile_shapes,
)
from aotgen.schedule.dense.problem import DenseConfig
from aotgen.schedule.dense.tiles import (
    check_tile,
    core_model,
    padded,
    registers,
    split_channels,
    split_even,
    step_cycles,
    usable_registers,
)
from aotgen.schedule.features import log2, log2_seconds, resident, tile_features, waste
from aotgen.target.target import Target

SLOWEST = 12.0
"""Configs of a modelled time beyond so many times the best one's are not tried: a bad tile alone,
or reading everything from behind L2, costs less; the model is wrong by a factor of two at most.
"""

_UNROLLS = (1, 2, 4, 8, 16)
_AHEAD = (0, 256, 512, 1024, 2048)
_STEPS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


@lru_cache(maxsize=1024)
def dense_space(problem: Problem, target: Target) -> tuple[Knob, ...]:
    """Every knob with its values. ``mr`` stands for both tile axes where rows are the only one."""
    shapes = tile_shapes(problem)
    columns = Knob("ow_tile", "ordinal", _ordered(s[1] for s in shapes), "columns")
    pixels: tuple[Knob, ...] = (
        Knob("oh_tile", "ordinal", _ordered(s[0] for s in shapes), "rows"),
        columns,
    )
    if problem.cols == 1:
        pixels = (Knob("mr", "ordinal", _ordered(s[0] for s in shapes), "rows"),)
    several = problem.packed and problem.channels > target.vl and not target.bare
    knobs = (
        *pixels,
        Knob("nr", "ordinal", _widths(problem, target), "channels"),
        Knob("oc_block", "ordinal", _blocks(problem, target), "channels, 0: all"),
        Knob("kc", "ordinal", (0,) if target.bare else _cuts(problem), "steps, 0: all"),
        Knob("k_unroll", "ordinal", _unrolls(problem), "steps"),
        Knob("next_lines", "ordinal", (0, 1, 2, 4) if several else (0,), "cache lines a round"),
        Knob("prefetch_bytes", "ordinal", (0,) if target.bare else _AHEAD, "bytes"),
    )
    default = default_config(problem, target).as_dict()
    return tuple(
        replace(k, values=_ordered([*map(int, k.values), int(default[k.name])])) for k in knobs
    )


def _ordered(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


def _widths(problem: Problem, target: Target) -> tuple[int, ...]:
    """Channels of a panel, those alone that panels are cut to."""
    limit = usable_registers(target)
    return tuple(
        v * target.vl
        for v in range(1, min(8, -(-problem.channels // target.vl)) + 1)
        if registers(1, v, target, problem.lane_step) <= limit
        and split_channels(problem.channels, target.vl, v)[0].vectors == v
    )


def _blocks(problem: Problem, target: Target) -> tuple[int, ...]:
    """One panel of every width, and doublings up to half of the channels."""
    wide = padded(problem.channels, target.vl)
    doubled = [target.vl << n for n in range(16) if target.vl << n < wide]
    return _ordered([0, *_widths(problem, target), *doubled])


def _cuts(problem: Problem) -> tuple[int, ...]:
    """Steps of a pass: whole kernel rows where there are several, else equal pieces of about as
    many steps as L1 or a part of L2 hold.
    """
    k = problem.reduction
    if k == problem.inner:
        return _ordered([0, *(cut(k, n) for n in _STEPS if n < k)])
    return _ordered([0, *(k // n for n in range(2, problem.passes + 1) if problem.passes % n == 0)])


def _unrolls(problem: Problem) -> tuple[int, ...]:
    """Rounds that the innermost loop really runs (``TileWriter``); by element, four at least."""
    inner = problem.inner
    if problem.lane_step:
        return _ordered([4, *(u for u in _UNROLLS if 4 <= u <= inner)])
    return _ordered([1, *(u for u in _UNROLLS if inner >= 2 * u or inner % u == 0)])


def check_dense(problem: Problem, config: Config, target: Target) -> None:
    """Reject what cannot work or is far from useful.

    Raises:
        ScheduleError: the tile does not fit the registers, panels would be narrower than ``nr``,
            a pass of the reduction does not fit L2, or the modelled time is ``SLOWEST`` times the
            best one.
    """
    c = dense_config(config, target)
    pixels = min(c.oh_tile, problem.rows) * min(c.ow_tile, problem.cols)
    check_tile(pixels, c.vectors, target, problem.lane_step)
    if c.kc and 4 * c.kc * c.vectors * target.vl > target.l2_bytes:
        raise ScheduleError(f"{c.kc} steps of {c.vectors} vectors of weights do not fit L2")
    if 4 * c.ahead > target.l1_bytes // 2:
        raise ScheduleError(f"{4 * c.ahead} bytes fetched ahead push what is in use out of L1")
    seconds = predicted_seconds(problem, _effective(problem, c, target), target)
    best = _best_seconds(problem, target)
    if seconds > SLOWEST * best:
        raise ScheduleError(f"modelled {seconds / best:.0f} times as slow as the default")


@lru_cache(maxsize=4096)
def _best_seconds(problem: Problem, target: Target) -> float:
    c = dense_config(default_config(problem, target), target)
    return predicted_seconds(problem, c, target)


def _splits(problem: Problem, c: DenseConfig) -> bool:
    """Whether the reduction is cut for certain, whatever the strides of the input are."""
    if not 0 < c.kc < problem.reduction:
        return False
    size = -(-problem.reduction // -(-problem.reduction // c.kc))
    return -(-size // c.k_unroll) * c.k_unroll < problem.inner or problem.inner < problem.reduction


def _effective(problem: Problem, c: DenseConfig, target: Target) -> DenseConfig:
    """``c`` as the writer takes it: passes run a panel at a time, a block of all panels is no
    block, and where there is none no next panel is fetched.
    """
    if _splits(problem, c):
        return replace(c, block=1, kc=_whole_rows(problem, c.kc))
    panels = sum(p.count for p in split_channels(problem.channels, target.vl, c.vectors))
    if c.block == 0 or c.block >= panels:
        return replace(c, block=0, next_lines=0, kc=0 if c.kc >= problem.reduction else c.kc)
    return c


def _whole_rows(problem: Problem, kc: int) -> int:
    """Steps of a pass of whole kernel rows (``split_reduction``), where a pass has such for
    certain: where rows of the input are longer than the kernel's.
    """
    k, rows = problem.reduction, problem.passes
    if k == problem.inner or min(problem.rows, problem.cols) == 1:
        return kc
    passes = min(rows, -(-k // kc))
    while rows % passes:
        passes += 1
    return k // passes


def canonical_dense(problem: Problem, config: Config, target: Target, cuts: bool = True) -> Config:
    """The config that stands for those of equal effect.

    Args:
        cuts: the whole kernel has ``problem``'s reduction: where that is cut into passes,
            ``oc_block`` has no effect.
    """
    knobs = config.as_dict()
    c = dense_config(config, target)
    if c.kc and not (cuts and _splits(problem, c)):
        return config
    made = _effective(problem, c, target)
    found: dict[str, KnobValue] = {"next_lines": made.next_lines, "kc": made.kc}
    if made.block == 0:
        found["oc_block"] = 0
    else:
        width = made.vectors * target.vl
        same = [b for b in _blocks(problem, target) if b and -(-b // width) == made.block]
        if same:
            found["oc_block"] = max(same)
    return Config.of(**{**knobs, **{k: v for k, v in found.items() if k in knobs}})


def step_features(
    pixels: int,
    vectors: int,
    unroll: int,
    inner: int,
    target: Target,
    *,
    lane_step: bool,
    blocks: bool,
) -> dict[str, float]:
    """Of a tile's innermost loop.

    Args:
        inner: its steps.
        unroll: those of a round.
        lane_step, blocks: as in ``blocking.Problem``.
    """
    core, fmas = core_model(target), pixels * vectors
    step = step_cycles(pixels, vectors, target, lane_step, blocks)
    return {
        "log2_trips": log2(inner / unroll),
        "inner_rest": inner % unroll / inner,
        "log2_unroll": math.log2(unroll),
        "log2_step_cycles": math.log2(step),
        "step_by_fma": step * core.fma / fmas,
        "step_latency": core.latency * core.fma / fmas,
        "step_loads": (vectors + pixels / (4 if lane_step else 1)) / fmas,
    }


def dense_features(problem: Problem, config: Config, target: Target) -> dict[str, float]:
    """Of a register tile and the loops around it (``aotgen.schedule.features``)."""
    c = _effective(problem, dense_config(config, target), target)
    core, vl, k = core_model(target), target.vl, problem.reduction
    rows, cols = min(c.oh_tile, problem.rows), min(c.ow_tile, problem.cols)
    pixels, vectors = rows * cols, c.vectors
    live = registers(pixels, vectors, target, problem.lane_step)
    passes = -(-k // c.kc) if c.kc else 1
    panel = 4 * (c.kc or k) * vectors * vl
    panels = -(-problem.channels // (vectors * vl))
    together = c.block or panels
    calls = tile_calls(problem, c)
    tile_x = min(problem.x_bytes, 4 * pixels * (c.kc or k))
    held = tile_x + (panel * panels if c.block == 0 else panel * together)
    stream = calls * panel * panels if c.block == 0 else problem.x_bytes * -(-panels // together)
    unroll = max(4, c.k_unroll) if problem.lane_step else c.k_unroll
    fmas = pixels * vectors
    instructions = unroll * (fmas + vectors + pixels) + 3 * fmas
    tiles_s = tile_cycles(problem, c, target) / core.ghz * 1e-9
    memory_s = memory_cycles(problem, c, target, core) / core.ghz * 1e-9
    heights, widths = split_even(problem.rows, c.oh_tile), split_even(problem.cols, c.ow_tile)
    return {
        **tile_features(pixels, vectors, live, target, instructions),
        **waste(
            {
                "rows": (sum(r.count for r in heights) * rows, problem.rows),
                "cols": (sum(r.count for r in widths) * cols, problem.cols),
                "channels": (padded(problem.channels, vl), problem.channels),
            }
        ),
        **resident(tile_x + panel, held, stream, target),
        "waste_panels": panels * vectors * vl / padded(problem.channels, vl),
        "tile_rows": float(rows),
        "tile_sizes": float(len(heights) * len(widths)),
        "log2_tiles": log2(calls * panels * passes * problem.groups),
        "log2_panels": log2(panels),
        "panels_together": together / panels,
        "log2_panel_bytes": log2(panel),
        "log2_tile_x_bytes": log2(tile_x),
        "log2_passes": log2(passes),
        "log2_part_bytes": log2(4 * pixels * calls * vectors * vl) if passes > 1 else 0.0,
        **step_features(
            pixels,
            vectors,
            unroll,
            problem.inner,
            target,
            lane_step=problem.lane_step,
            blocks=problem.blocks,
        ),
        "lines_a_step": c.next_lines / unroll,
        "log2_ahead_bytes": log2(4 * c.ahead),
        "log2_tile_seconds": log2_seconds(tiles_s),
        "log2_memory_seconds": log2_seconds(memory_s),
        "log2_model_seconds": log2_seconds(tiles_s + memory_s),
    }
