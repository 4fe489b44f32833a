"""How grouped convolutions are cut: groups into vectors, outputs into register tiles, and the model
that picks the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from aotgen.schedule.conv.conv_phase import Phase
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.dense.tiles import core_model, split_even
from aotgen.target.target import Target

MAX_FMAS = 400
"""FMAs printed in one step of a tile: beyond it code size costs more than reuse gains."""


@dataclass(frozen=True)
class Blocks:
    """How groups are packed into vectors.

    Attributes:
        groups: of the convolution.
        inputs, outputs: channels a group.
        packed: groups a vector.
    """

    groups: int
    inputs: int
    outputs: int
    packed: int

    @classmethod
    def of(cls, shape: ConvShape, vl: int) -> Blocks:
        inputs, outputs = shape.channels // shape.groups, shape.outputs // shape.groups
        return cls(shape.groups, inputs, outputs, min(shape.groups, vl // max(inputs, outputs)))

    @property
    def count(self) -> int:
        return -(-self.groups // self.packed)

    def lanes(self, vl: int) -> list[int]:
        """Per lane the first input channel of its group, relative to the block's first; empty for
        one channel a group, which needs no permutation.
        """
        if self.inputs == self.outputs == 1:
            return []
        used = self.packed * self.outputs
        return [min(lane, used - 1) // self.outputs * self.inputs for lane in range(vl)]

    def runs(self, vl: int) -> list[dict[str, int]]:
        """Blocks that load and store alike: first input and output channel, how many, and the lanes
        to load and store, 0 for all. A block loads whole vectors while those stay within the pixel.
        """
        channels = self.groups * self.inputs
        runs: list[dict[str, int]] = []
        for block in range(self.count):
            groups = min(self.packed, self.groups - block * self.packed)
            x = block * self.packed * self.inputs
            load = 0 if x + vl <= channels else groups * self.inputs
            last = int(groups < self.packed)
            if runs and (runs[-1]["load"], runs[-1]["last"]) == (load, last):
                runs[-1]["count"] += 1
                continue
            y = block * self.packed * self.outputs
            runs.append({"x": x, "y": y, "count": 1, "load": load, "last": last})
        return runs

    def stored(self, vl: int) -> tuple[int, int]:
        """Lanes that whole blocks store (0 for all), and a last one with fewer groups."""
        used = self.packed * self.outputs
        rest = self.groups % self.packed * self.outputs
        return (0 if used == vl else used), rest


@dataclass(frozen=True)
class Window:
    """The taps of a phase as a tile of one kind of height sees them: the last ``unrolled`` of the
    three axes are printed one by one, the others are loops.
    """

    taps: Triple
    stride: Triple
    dilation: Triple
    unrolled: int

    @property
    def kernel(self) -> tuple[int, int]:
        """Unrolled taps (rows, columns)."""
        rows = self.taps[1] if self.unrolled == 2 else 1
        return rows, self.taps[2] if self.unrolled else 1

    @property
    def looped(self) -> tuple[int, ...]:
        return self.taps[: 3 - self.unrolled]

    def positions(self, axis: int, outputs: int) -> list[int]:
        """Input offsets along unrolled axis 0 or 1 that neighbouring outputs read, ascending."""
        step, dilation = self.stride[1 + axis], self.dilation[1 + axis]
        return sorted(
            {o * step + k * dilation for o in range(outputs) for k in range(self.kernel[axis])}
        )

    def tap(self, axis: int, position: int, output: int) -> int | None:
        """The tap through which an input position reaches an output."""
        offset, dilation = position - output * self.stride[1 + axis], self.dilation[1 + axis]
        k = offset // dilation
        return k if offset % dilation == 0 and 0 <= k < self.kernel[axis] else None


@dataclass(frozen=True)
class TileKey:
    """What the choice of a tile depends on."""

    out: Triple
    taps: Triple
    stride: Triple
    dilation: Triple
    inputs: int
    permuted: bool

    @classmethod
    def of(cls, phase: Phase) -> TileKey:
        inputs, outputs = phase.weights.shape[-1], phase.weights.shape[1]
        permuted = (inputs, outputs) != (1, 1)
        return cls(phase.out, phase.taps, phase.stride, phase.dilation, inputs, permuted)

    def window(self, rows: int, cols: int) -> Window:
        """Rows are unrolled where a tile has several, so that they share inputs."""
        unrolled = 2 if rows > 1 else 1
        if unrolled == 1 and cols * self.taps[2] > MAX_FMAS:
            unrolled = 0
        return Window(self.taps, self.stride, self.dilation, unrolled)


def is_held(window: Window, outputs: int, target: Target) -> bool:
    """Whether the unrolled taps' weights stay in registers beside the accumulators."""
    return math.prod(window.kernel) + outputs + 3 <= target.vector_registers


def fits(key: TileKey, rows: int, cols: int, target: Target) -> bool:
    taps = math.prod(key.window(rows, cols).kernel)
    if rows * cols > 1 and rows * cols * taps > MAX_FMAS:
        return False
    return rows * cols + 4 <= target.vector_registers


def tile_sizes(key: TileKey, target: Target) -> list[tuple[int, int]]:
    found: dict[tuple[int, int], None] = {}
    for h in range(1, 5):
        for w in range(1, 25):
            tile = split_even(key.out[1], h)[0].size, split_even(key.out[2], w)[0].size
            if fits(key, *tile, target):
                found.setdefault(tile)
    return list(found)


def tile_cycles(key: TileKey, h: int, w: int, target: Target) -> float:
    """Modelled cycles of one block of groups over a map of one depth."""
    core = core_model(target)
    total = 0.0
    for r in split_even(key.out[1], h):
        for c in split_even(key.out[2], w):
            window, outputs = key.window(r.size, c.size), r.size * c.size
            taps = math.prod(window.kernel)
            fmas = outputs * taps
            inputs = len(window.positions(0, r.size)) * len(window.positions(1, c.size))
            loads = inputs + (taps if is_held(window, outputs, target) else fmas)
            permutes = inputs if key.permuted else 0
            issue = (fmas + loads + permutes + 4) / core.issue
            chain = taps * core.latency
            step = max((fmas + permutes) / core.fma, loads / core.loads, issue, chain)
            steps = math.prod(window.looped) * key.inputs
            total += r.count * c.count * (steps * step + 1.5 * outputs + 6)
    return total


@lru_cache(maxsize=4096)
def best_tile(key: TileKey, target: Target) -> tuple[int, int]:
    return min(
        tile_sizes(key, target),
        key=lambda t: (tile_cycles(key, t[0], t[1], target), -t[0] * t[1], t),
    )
