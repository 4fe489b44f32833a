"""Register tiles: which sizes fit the vector registers, and how extents are cut into them.

A tile is ``pixels`` output pixels x ``vectors`` vectors of output channels. It needs pixels *
vectors accumulators, one register per weight vector and one for the broadcast pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgen.schedule.base import ScheduleError
from aotgen.schedule.dense import cortex_m_tile, neon_tile_cost
from aotgen.target.target import Target

MAX_PIXELS = 16


@dataclass(frozen=True)
class Run:
    """``count`` pieces of ``size`` elements, the first of which starts at ``start``."""

    start: int
    size: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.size * self.count


def split_even(extent: int, most: int) -> tuple[Run, ...]:
    """Cut ``extent`` into the fewest pieces of at most ``most``, as equal as possible: at most two
    sizes, larger first.
    """
    pieces = -(-extent // most)
    size = -(-extent // pieces)
    larger = extent - pieces * (size - 1)
    runs = [Run(0, size, larger)]
    if larger < pieces:
        runs.append(Run(size * larger, size - 1, pieces - larger))
    return tuple(runs)


def split_rest(extent: int, size: int) -> tuple[Run, ...]:
    """Cut ``extent`` into pieces of ``size``, the last of which has what is left."""
    size = min(size, extent)
    count, rest = divmod(extent, size)
    runs = [Run(0, size, count)]
    if rest:
        runs.append(Run(count * size, rest, 1))
    return tuple(runs)


@dataclass(frozen=True)
class Panels:
    """Output-channel panels of one width, in execution order.

    Attributes:
        vectors: vectors a panel.
        count: panels.
        channel: first output channel (a multiple of VL).
        lanes: valid lanes of the last vector; 0 when all are.
    """

    vectors: int
    count: int
    channel: int
    lanes: int


def split_channels(channels: int, vl: int, most: int) -> tuple[Panels, ...]:
    """Cut output channels into panels of at most ``most`` vectors; at most two widths, and one
    masked last panel.
    """
    found: list[Panels] = []
    rest = channels % vl
    for run in split_even(-(-channels // vl), most):
        found.append(Panels(run.size, run.count, run.start * vl, 0))
    if rest:
        last = found.pop()
        if last.count > 1:
            found.append(Panels(last.vectors, last.count - 1, last.channel, 0))
        first = last.channel + (last.count - 1) * last.vectors * vl
        found.append(Panels(last.vectors, 1, first, rest))
    return tuple(found)


def padded(channels: int, vl: int) -> int:
    """``channels`` rounded up to whole vectors."""
    return -(-channels // vl) * vl


def registers(pixels: int, vectors: int, target: Target, lane_step: bool = False) -> int:
    """Vector registers that a tile keeps live in its reduction loop."""
    if lane_step and target.isa == "neon_armv7":  # a step of one pixel is brought into all lanes
        return pixels * vectors + vectors + pixels + 1
    if lane_step:
        return neon_tile_cost.registers(pixels, vectors)
    if target.has_dsp:
        return cortex_m_tile.registers(pixels, vectors, target)
    return pixels * vectors + vectors + (1 if vectors > 1 or target.isa != "avx512" else 0)


def usable_registers(target: Target) -> int:
    """Registers that compilers manage to use without a spill; a scalar build keeps a few for
    itself.
    """
    return 14 if target.isa == "scalar" else target.vector_registers


def check_tile(pixels: int, vectors: int, target: Target, lane_step: bool = False) -> None:
    """Raise ScheduleError when a tile does not fit the registers."""
    need = registers(pixels, vectors, target, lane_step)
    if pixels < 1 or vectors < 1 or pixels > MAX_PIXELS:
        raise ScheduleError(
            f"a register tile of {pixels} pixels x {vectors} vectors is not supported"
        )
    if need > usable_registers(target):
        raise ScheduleError(
            f"a tile of {pixels} pixels x {vectors} vectors needs {need} registers"
            f" of {usable_registers(target)}"
        )


def tiles(target: Target, lane_step: bool = False) -> list[tuple[int, int]]:
    """All (pixels, vectors) that fit, with at most 8 vectors; one pixel wide tiles included."""
    found = []
    for vectors in range(1, 9):
        for pixels in range(1, MAX_PIXELS + 1):
            if registers(pixels, vectors, target, lane_step) <= usable_registers(target):
                found.append((pixels, vectors))
    return found


@dataclass(frozen=True)
class CoreModel:
    """Throughputs of a core that schedules are compared with, per cycle.

    Attributes:
        fma: vector FMAs.
        loads: vector or scalar loads.
        issue: instructions.
        latency: cycles of one FMA.
        l1, l2, far: bytes a cycle that a stream from L1, L2 and from behind L2 sustains.
        ghz: clock, for seconds.
    """

    fma: float
    loads: float
    issue: float
    latency: float
    l1: float
    l2: float
    far: float
    ghz: float


RESIDENT = 0.6
"""Share of a cache that a working set may take and still be found there."""

L2_SEEN = 0.3
"""Share of the time of a stream from L2 that arithmetic does not hide."""

FAR_SEEN, FAR_PREFETCHED = 0.5, 0.15
"""The same of weights from behind L2, without and with prefetching."""

_X86 = CoreModel(2.0, 2.0, 6.0, 4.0, 100.0, 48.0, 8.0, 3.0)
_MODELS = {
    "avx512": _X86,
    "avx2": CoreModel(2.0, 2.0, 6.0, 4.0, 64.0, 40.0, 8.0, 3.0),
    "scalar": CoreModel(2.0, 2.0, 6.0, 4.0, 16.0, 12.0, 6.0, 3.0),
    "neon": CoreModel(1.0, 1.0, 3.0, 7.0, 16.0, 8.0, 2.0, 1.8),
    "neon_armv7": CoreModel(1.0, 1.0, 2.0, 7.0, 16.0, 8.0, 2.0, 1.2),
    "dsp": CoreModel(1.0, 1.0, 1.0, 3.0, 4.0, 4.0, 4.0, 0.1),
    "mve": CoreModel(1.0, 1.0, 1.0, 3.0, 4.0, 4.0, 4.0, 0.1),
}
_BIG_CORES = ("a76", "a78", "neoverse", "x1")


def core_model(target: Target) -> CoreModel:
    """The throughputs of a target's core."""
    if target.has_neon and any(name in target.core for name in _BIG_CORES):
        return CoreModel(2.0, 2.0, 4.0, 4.0, 32.0, 16.0, 4.0, 2.4)
    return _MODELS[target.isa]


def step_cycles(
    pixels: int, vectors: int, target: Target, lane_step: bool = False, blocks: bool = False
) -> float:
    """Cycles of one reduction step of a tile whose operands are in L1.

    Args:
        lane_step, blocks: as in ``blocking.Problem``.
    """
    core = core_model(target)
    fmas = pixels * vectors
    if lane_step and target.isa == "neon":
        steps = neon_tile_cost.step_instructions(pixels, vectors, blocks)
        return max(steps / core.fma, core.latency)
    if target.has_dsp:
        return cortex_m_tile.step_instructions(pixels, vectors, target)
    loads = vectors + (pixels / 4 if lane_step else pixels)
    if target.isa == "neon_armv7":  # splats take the FMAs' unit; loads of pixels need an address
        return max((fmas + (pixels if lane_step else 0) + loads) / core.fma, core.latency)
    if target.has_neon:  # narrow cores: every instruction beside the FMAs costs something
        return max((fmas + 0.5 * loads) / core.fma, core.latency)
    issue = (fmas + loads + 1) / core.issue
    return max(fmas / core.fma, loads / core.loads, issue, core.latency)
