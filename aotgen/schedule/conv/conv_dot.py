"""conv and conv_transpose to few output channels (heads, masks, the last layer of a decoder):
vectors run along the reduction, since output channels would leave most lanes empty.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import (
    Alias,
    Config,
    Kernel,
    Knob,
    Need,
    PackedConst,
    ScheduleError,
    Template,
    Views,
)
from aotgen.schedule.conv.conv2d_direct import alias, inner_steps, why_not
from aotgen.schedule.conv.conv_phase import Phase, conv_phase, merge_columns, phases_need
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.conv.conv_transpose import phases_of, pixels_are_dense, transposed_reason
from aotgen.schedule.conv.phase_writer import PhaseWriter
from aotgen.schedule.dense.problem import collapse_reduction, terms
from aotgen.schedule.dense.tiles import Run, core_model, padded
from aotgen.schedule.features import common_features, log2, resident, tile_features, waste
from aotgen.schedule.fused import fused_needs, make_fused
from aotgen.schedule.group_memo import per_group
from aotgen.schedule.packing import F32
from aotgen.target.target import Target

JOIN = 4.0
"""Instructions an output costs beside its products: pairwise sums, bias, store."""


class _Dot(Template):
    """What conv and conv_transpose share."""

    @abstractmethod
    def phases(self, group: Group, target: Target) -> tuple[ConvShape, list[Phase]]:
        """The phases, those of a row as one where that may be."""

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        phase = _largest(group, self, target)
        sizes = tile_sizes(phase.outputs, target)
        unrolls = tuple(n for n in (1, 2, 4, 8) if n == 1 or 2 * n <= phase.run // target.vl)
        return (
            Knob("ow_tile", "ordinal", sizes, "pixels"),
            Knob("k_unroll", "ordinal", unrolls, "vectors of inputs"),
        )

    def default(self, group: Group, target: Target) -> Config:
        phase = _largest(group, self, target)
        return Config.of(ow_tile=tile_sizes(phase.outputs, target)[-1], k_unroll=1)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        phase = _largest(group, self, target)
        outputs, pixels = phase.outputs, config.int("ow_tile")
        products = phase.steps * pixels * outputs
        tiles = -(-phase.out[2] // pixels)
        return {
            **common_features(self, group, target, config),
            **tile_features(
                pixels,
                outputs,
                pixels * outputs + outputs + 1,
                target,
                config.int("k_unroll") * (pixels + outputs + pixels * outputs),
            ),
            **waste({"cols": (tiles * pixels, phase.out[2])}),
            **resident(4 * pixels * phase.reduction, 4 * outputs * phase.reduction, 0.0, target),
            "log2_tiles": log2(tiles * phase.out[0] * phase.out[1]),
            "log2_trips": log2(phase.run / target.vl),
            "inner_rest": phase.run % target.vl / phase.run,
            "log2_tile_cycles": log2(products),
        }

    def check(self, group: Group, target: Target, config: Config) -> None:
        most = tile_sizes(_largest(group, self, target).outputs, target)[-1]
        if not 1 <= config.int("ow_tile") <= most:
            raise ScheduleError(f"a tile of more than {most} pixels does not fit the registers")

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        shape, phases = self.phases(group, target)
        return {**fused_needs(group), group.nodes[0].input(0).name: phases_need(phases, shape)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        shape = ConvShape.of(group.nodes[0])
        core = core_model(target)
        cycles = 0.0
        for p in _work(group, self, target):
            outputs = math.prod(p.out) * p.outputs
            products = p.steps
            loads = products * (1 / p.outputs + 1 / config.int("ow_tile"))
            per_output = max(
                products / core.fma, loads / core.loads, (products + loads) / core.issue
            )
            cycles += outputs * (per_output + JOIN / core.fma)
        cycles *= shape.batch
        pixels = math.prod(shape.size) * shape.channels + math.prod(shape.out) * shape.outputs
        moved = 4 * shape.batch * pixels
        cycles += moved / (core.l2 if moved < target.l2_bytes else core.far)
        return cycles / core.ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        shape, phases = self.phases(group, target)
        fused = make_fused(group, target, views)
        merged = phases[0].weights.shape[1] != shape.outputs
        if merged and not pixels_are_dense(group, shape, views, fused):
            phases = self.separate(group)
        fused = fused.with_channel_constants(partial(_pattern, vl=target.vl))
        size = 1, config.int("ow_tile")
        writer = _Writer(group, shape, phases, target, size, views, fused)
        writer.unroll = config.int("k_unroll")
        return writer.kernel(f"dot_{shape.outputs}")

    @abstractmethod
    def separate(self, group: Group) -> list[Phase]:
        """The phases one by one."""


@dataclass(frozen=True)
class _Work:
    """What the model needs to know of a phase.

    Attributes:
        out: extents of its outputs (depth, height, width).
        outputs: channels of one.
        reduction: products an output.
        run: neighbouring inputs that it multiplies, if pixels are dense.
        steps: vector products an output.
    """

    out: Triple
    outputs: int
    reduction: int
    run: int
    steps: int

    @property
    def macs(self) -> int:
        return math.prod(self.out) * self.outputs * self.reduction


@per_group
def _work(group: Group, template: _Dot, target: Target) -> tuple[_Work, ...]:
    return tuple(
        _Work(p.out, int(p.weights.shape[1]), p.reduction, _run(p), steps(p, target))
        for p in template.phases(group, target)[1]
    )


def _largest(group: Group, template: _Dot, target: Target) -> _Work:
    return max(_work(group, template, target), key=lambda p: p.macs)


class ConvDot(_Dot):
    """Convolution of one group to at most half a vector of output channels."""

    name = "conv_dot"

    def applies(self, group: Group, target: Target) -> str | None:
        return why_not(group, target) or _pointless(*self.phases(group, target), target)

    def phases(self, group: Group, target: Target) -> tuple[ConvShape, list[Phase]]:
        shape = ConvShape.of(group.nodes[0])
        return shape, [conv_phase(group.nodes[0], shape)]

    def separate(self, group: Group) -> list[Phase]:
        return [conv_phase(group.nodes[0], ConvShape.of(group.nodes[0]))]


class ConvTransposeDot(_Dot):
    """Transposed convolution of one group to few output channels, by phases."""

    name = "conv_transpose_dot"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = transposed_reason(group, target)
        return reason or _pointless(*self.phases(group, target), target)

    def phases(self, group: Group, target: Target) -> tuple[ConvShape, list[Phase]]:
        shape, phases = phases_of(group)
        merged = merge_columns(phases)
        few = merged is not None and merged[0].weights.shape[1] * 2 <= target.vl
        return shape, merged if merged is not None and few else phases

    def separate(self, group: Group) -> list[Phase]:
        return phases_of(group)[1]


def _pointless(shape: ConvShape, phases: Sequence[Phase], target: Target) -> str | None:
    """Why vectors along output channels are as good, or None."""
    outputs = max(p.weights.shape[1] for p in phases)
    if shape.groups != 1 or target.vl == 1 or 2 * outputs > target.vl:
        return "needs one group and at most half a vector of output channels"
    vectors = padded(outputs, target.vl) // target.vl
    across = sum(math.prod(p.out) * vectors * p.reduction for p in phases)
    along = sum(math.prod(p.out) * outputs * (steps(p, target) + JOIN) for p in phases)
    return None if along <= 0.7 * across else "the reduction is too short"


def steps(phase: Phase, target: Target) -> int:
    """Vector products an output takes, if pixels are dense."""
    run = _run(phase)
    return phase.reduction // run * (-(-run // target.vl))


def _run(phase: Phase) -> int:
    return inner_steps(int(phase.weights.shape[-1]), phase.taps[2], phase.dilation[2])


def tile_sizes(outputs: int, target: Target) -> tuple[int, ...]:
    """Pixels of a tile, ascending: whole vectors of (pixel, channel), at most 16 accumulators."""
    per_vector = target.vl // outputs
    free = min(16, target.vector_registers - outputs - 2)
    vectors = max(1, free // (per_vector * outputs))
    return tuple(per_vector * n for n in range(1, vectors + 1))


def _pattern(role: str, value: Value, vl: int) -> PackedConst:
    """A constant per channel for a vector of (pixel, channel)."""
    assert value.const is not None
    flat = np.asarray(value.const, np.float32).reshape(-1)
    return PackedConst(role, np.resize(flat, vl), value)


class _Writer(PhaseWriter):
    """Context of conv_dot.c.j2."""

    template = "kernels/conv_dot.c.j2"
    unroll = 1
    """Vectors of inputs in one round of the innermost loop."""

    @property
    def outputs(self) -> int:
        """Channels of a pixel of a phase; of all phases of a row where those are one."""
        return int(self.phases[0].weights.shape[1])

    def context(self) -> dict[str, Any]:
        return {"outputs": self.outputs, "unroll": self.unroll}

    def channels(self, role: str, value: Value) -> PackedConst:
        return _pattern(role, value, self.vl)

    def runs(self, phase: Phase) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        """Whole tiles, then what is left: an output beyond the last one costs nothing."""
        pixels = min(self.tile_size[1], phase.out[2])
        count = phase.out[2] // pixels
        cols = [Run(0, pixels, count)]
        if phase.out[2] > pixels * count:
            cols.append(Run(pixels * count, phase.out[2] - pixels * count, 1))
        return (Run(0, 1, phase.out[1]),), tuple(cols)

    def _reduction(self, phase: Phase) -> tuple[tuple[int, int], ...]:
        """Loops (extent, stride of x), the last one over neighbouring inputs."""
        inputs = int(phase.weights.shape[-1])
        taps = [(phase.taps[i], phase.dilation[i] * self.xs[i]) for i in range(3)]
        loops = collapse_reduction([*taps, (inputs, 1)])
        return loops if loops[-1][1] == 1 else (*loops, (1, 1))

    def packed(self, phase: Phase) -> F32:
        run = self._reduction(phase)[-1][0]
        outputs = self.outputs
        vectors = -(-run // self.vl)
        flat = phase.weights.reshape(outputs, -1, run)
        wide = np.zeros((outputs, flat.shape[1], vectors * self.vl), np.float32)
        wide[:, :, :run] = flat
        cut = wide.reshape(outputs, -1, vectors, self.vl)
        return np.ascontiguousarray(cut.transpose(1, 2, 0, 3)).reshape(-1)

    def tile(self, phase: Phase, rows: int, cols: int, name: str) -> dict[str, Any]:
        *loops, (run, _) = self._reduction(phase)
        step = self.strides(phase, 2, "x")
        per_vector = self.vl // self.outputs
        joins: list[str] = []
        stores: list[str] = []
        for vector, first in enumerate(range(0, cols, per_vector)):
            pixels = min(per_vector, cols - first)
            accs = [f"acc{first + p}_{n}" for p in range(pixels) for n in range(self.outputs)]
            joins += self._joined(f"sum{vector}", accs)
            stores += self._stores(phase, f"sum{vector}", first, pixels)
        return {
            "name": name,
            "cols": cols,
            "params": self.params(),
            "pixels": [{"i": i, "x": terms("", offset=i * step)} for i in range(cols)],
            "loops": [
                {"var": f"k{i}", "extent": extent, "stride": stride}
                for i, (extent, stride) in enumerate(loops)
            ],
            "full": run // self.vl * self.vl,
            "rest": run % self.vl,
            "joins": joins,
            "stores": stores,
        }

    def _joined(self, name: str, accs: Sequence[str]) -> list[str]:
        """Pairwise sums of accumulators, lane i the whole sum of the i-th."""
        lines: list[str] = []
        level = [*accs, *["vzero()"] * (self.vl - len(accs))]
        while len(level) > 1:
            joined = []
            for k in range(0, len(level), 2):
                a, b = level[k : k + 2]
                if a == b == "vzero()":
                    joined.append(a)
                    continue
                text = f"{name}_{len(lines)}"
                lines.append(f"const vf {text} = vpairs({a}, {b});")
                joined.append(text)
            level = joined
        last = level[0] if self.bias is None else f"vadd({level[0]}, vload(bias))"
        return [*lines, f"const vf {name} = {last};"]

    def _is_dense(self, phase: Phase) -> bool:
        """Whether pixels are next to each other wherever the epilogue reads and writes."""
        for i in self.fused.loaded:
            if i.kind == "channel" and i.const is None:
                return False
        pixel = [i.name for i in self.fused.inputs if i.kind == "pixel"]
        return all(self.strides(phase, 2, n) == self.outputs for n in [*pixel, "y"])

    def _stores(self, phase: Phase, value: str, first: int, pixels: int) -> list[str]:
        """Write a vector of (pixel, channel): at once, or else pixel by pixel."""
        if self._is_dense(phase):
            lanes = pixels * self.outputs
            return [self._store(phase, value, first, 0 if lanes == self.vl else lanes)]
        if pixels == 1:
            return [self._store(phase, value, first, self.outputs)]
        buffer = f"t{first}"
        lines = [f"float {buffer}[VL];", f"vstore({buffer}, {value});"]
        for p in range(pixels):
            source = terms(buffer, offset=p * self.outputs)
            loaded = f"vload_n({source}, {self.outputs})"
            lines.append(self._store(phase, loaded, first + p, self.outputs))
        return lines

    def _store(self, phase: Phase, value: str, pixel: int, lanes: int) -> str:
        at = {n: terms(n, offset=pixel * self.strides(phase, 2, n)) for n in self.names()}
        return self.fused.store(value, at["y"], at, lambda step: "0", lanes)
