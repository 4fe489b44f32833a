"""Grouped conv and conv_transpose with few channels a group: a vector of output channels covers
several groups, and a permutation of an input vector brings each lane its group's input channel.

The register tile is that of a depthwise convolution (rows x columns of one output vector, every
input vector loaded once), run once for each input channel of a group. So a multiplier (one input
channel a group) costs what a depthwise convolution does, and n x n channels a group n times that.
"""

from __future__ import annotations

import math
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
from aotgen.schedule.conv.conv2d_depthwise import Conv2dDepthwise
from aotgen.schedule.conv.conv2d_direct import alias, why_not
from aotgen.schedule.conv.conv_phase import Phase, conv_phase, phases_need
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.conv_transpose import phases_of, transposed_reason
from aotgen.schedule.conv.grouped_tile import (
    Blocks,
    TileKey,
    Window,
    best_tile,
    fits,
    is_held,
    tile_cycles,
    tile_sizes,
)
from aotgen.schedule.conv.phase_writer import PhaseWriter
from aotgen.schedule.conv.window_features import window_features
from aotgen.schedule.dense.problem import terms
from aotgen.schedule.dense.tiles import core_model, split_even
from aotgen.schedule.features import common_features, log2
from aotgen.schedule.fused import fused_needs, make_fused
from aotgen.schedule.group_memo import per_group
from aotgen.schedule.packing import F32
from aotgen.target.target import Target


class _Grouped(Template):
    """What conv and conv_transpose share."""

    def phases(self, group: Group) -> tuple[ConvShape, list[Phase]]:
        raise NotImplementedError

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        found = tile_sizes(_keys(group, self)[0], target)
        return (
            Knob("oh_tile", "ordinal", tuple(sorted({t[0] for t in found})), "rows"),
            Knob("ow_tile", "ordinal", tuple(sorted({t[1] for t in found})), "columns"),
            Knob("hold_weights", "boolean", (False, True)),
        )

    def default(self, group: Group, target: Target) -> Config:
        rows, cols = best_tile(_keys(group, self)[0], target)
        return Config.of(oh_tile=rows, ow_tile=cols, hold_weights=True)

    def check(self, group: Group, target: Target, config: Config) -> None:
        key = _keys(group, self)[0]
        rows, cols = config.int("oh_tile"), config.int("ow_tile")
        if not fits(key, min(rows, key.out[1]), min(cols, key.out[2]), target):
            raise ScheduleError(f"a tile of {rows} x {cols} outputs does not fit the registers")

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """Weights that fit the registers of no tile are held in none."""
        for key in _keys(group, self):
            rows = split_even(key.out[1], config.int("oh_tile"))
            cols = split_even(key.out[2], config.int("ow_tile"))
            window = key.window(rows[0].size, cols[0].size)
            if is_held(window, rows[-1].size * cols[-1].size, target):
                return config
        return Config.of(**{**config.as_dict(), "hold_weights": False})

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape, key = ConvShape.of(group.nodes[0]), _keys(group, self)[0]
        rows, cols = min(config.int("oh_tile"), key.out[1]), min(config.int("ow_tile"), key.out[2])
        window, outputs = key.window(rows, cols), rows * cols
        taps = math.prod(window.kernel)
        held = bool(config["hold_weights"]) and is_held(window, outputs, target)
        inputs = len(window.positions(0, rows)) * len(window.positions(1, cols))
        loads = inputs + (taps if held else outputs * taps)
        operations = outputs * taps + (inputs if key.permuted else 0)
        return {
            **common_features(self, group, target, config),
            **window_features(
                shape,
                target,
                (rows, cols),
                vectors=1,
                live=outputs + (taps if held else 1) + 3,
                operations=operations,
                loads=loads,
            ),
            "log2_trips": log2(math.prod(window.looped) * key.inputs),
            "packed_groups": float(Blocks.of(shape, target.vl).packed),
        }

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        shape, phases = self.phases(group)
        return {**fused_needs(group), group.nodes[0].input(0).name: phases_need(phases, shape)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        shape = ConvShape.of(group.nodes[0])
        blocks, core = Blocks.of(shape, target.vl), core_model(target)
        rows, cols = config.int("oh_tile"), config.int("ow_tile")
        keys = _keys(group, self)
        cycles = sum(tile_cycles(key, rows, cols, target) * key.out[0] for key in keys)
        cycles *= shape.batch * blocks.count
        pixels = math.prod(shape.size) * shape.channels + math.prod(shape.out) * shape.outputs
        moved = 4 * shape.batch * pixels
        cycles += moved / (core.l2 if moved < target.l2_bytes else core.far)
        return cycles / core.ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        shape, phases = self.phases(group)
        arrange = partial(_channels, vl=target.vl)
        fused = make_fused(group, target, views).with_channel_constants(arrange)
        size = config.int("oh_tile"), config.int("ow_tile")
        writer = _Writer(group, shape, phases, target, size, views, fused)
        writer.hold = bool(config["hold_weights"])
        return writer.kernel(writer.method)


@per_group
def _keys(group: Group, template: _Grouped) -> tuple[TileKey, ...]:
    """Of every phase, those with the most work first."""
    phases = sorted(template.phases(group)[1], key=lambda p: -p.macs)
    return tuple(TileKey.of(p) for p in phases)


class ConvGrouped(_Grouped):
    """Grouped convolution, one to three spatial axes, at least two groups a vector."""

    name = "conv_grouped"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target) or _unpackable(ConvShape.of(group.nodes[0]), target)
        if reason is None and Conv2dDepthwise().applies(group, target) is None:
            return "a depthwise convolution has a template of its own"
        return reason

    def phases(self, group: Group) -> tuple[ConvShape, list[Phase]]:
        node = group.nodes[0]
        shape = ConvShape.of(node)
        return shape, [conv_phase(node, shape)]


class ConvTransposeGrouped(_Grouped):
    """Grouped transposed convolution by phases."""

    name = "conv_transpose_grouped"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = transposed_reason(group, target)
        return reason or _unpackable(ConvShape.of(group.nodes[0]), target)

    def phases(self, group: Group) -> tuple[ConvShape, list[Phase]]:
        return phases_of(group)


def _unpackable(shape: ConvShape, target: Target) -> str | None:
    if shape.groups == 1 or Blocks.of(shape, target.vl).packed < 2:
        return "needs at least two groups in a vector"
    return None


def _channels(role: str, value: Value, vl: int) -> PackedConst:
    """A constant per channel in the order of the channels, readable a vector beyond the last."""
    assert value.const is not None
    flat = np.asarray(value.const, np.float32).reshape(-1)
    return PackedConst(role, np.concatenate([flat, np.zeros(vl, np.float32)]), value)


class _Writer(PhaseWriter):
    """Context of conv_grouped.c.j2."""

    template = "kernels/conv_grouped.c.j2"
    hold = True
    """Whether weights of unrolled taps stay in registers where they fit."""

    @property
    def blocks(self) -> Blocks:
        return Blocks.of(self.shape, self.vl)

    def context(self) -> dict[str, Any]:
        b = self.blocks
        return {
            "lanes": b.lanes(self.vl),
            "inputs": b.inputs,
            "runs": b.runs(self.vl),
            "x_block": b.packed * b.inputs,
            "y_block": b.packed * b.outputs,
        }

    @property
    def method(self) -> str:
        kernel = "x".join(str(k) for k in self.shape.kernel[3 - self.shape.axes :])
        return f"grouped_{self.blocks.inputs}to{self.blocks.outputs}_{kernel}"

    def channels(self, role: str, value: Value) -> PackedConst:
        return _channels(role, value, self.vl)

    def packed(self, phase: Phase) -> F32:
        """[block][taps][inputs][VL]: looped taps stand outside of inputs, unrolled ones inside."""
        b, vl = self.blocks, self.vl
        wide = np.zeros((b.count * b.packed, *phase.weights.shape[1:]), np.float32)
        wide[: b.groups] = phase.weights
        taps, inputs = math.prod(phase.taps), b.inputs
        lanes = wide.reshape(b.count, b.packed * b.outputs, taps, inputs)
        packed = np.zeros((b.count, vl, taps, inputs), np.float32)
        packed[:, : b.packed * b.outputs] = lanes
        unrolled = self._unrolled_taps(phase)
        cut = packed.reshape(b.count, vl, taps // unrolled, unrolled, inputs)
        return np.ascontiguousarray(cut.transpose(0, 2, 4, 3, 1)).reshape(-1)

    def _unrolled_taps(self, phase: Phase) -> int:
        """Unrolled taps, the same for all tiles of a phase."""
        return math.prod(self._phase_window(phase).kernel)

    def _phase_window(self, phase: Phase) -> Window:
        rows, cols = self.runs(phase)
        return TileKey.of(phase).window(rows[0].size, cols[0].size)

    def tile(self, phase: Phase, rows: int, cols: int, name: str) -> dict[str, Any]:
        window = self._phase_window(phase)
        outputs = rows * cols
        taps = math.prod(window.kernel)
        held = self.hold and is_held(window, outputs, self.target)
        weight = [f"vload({terms('w', offset=t * self.vl)})" for t in range(taps)]
        made = []
        for i in range(outputs):
            at = {
                n: i // cols * self.strides(phase, 1, n) + i % cols * self.strides(phase, 2, n)
                for n in self.names()
            }
            whole, rest = self.blocks.stored(self.vl)
            made.append(
                {
                    "i": i,
                    "init": "vload(bias + c)" if self.bias is not None else "vzero()",
                    "store": self._store(i, at, whole),
                    "tail": self._store(i, at, rest),
                }
            )
        inputs = []
        for iy in window.positions(0, rows):
            for ix in window.positions(1, cols):
                uses = []
                for i in range(outputs):
                    ky, kx = window.tap(0, iy, i // cols), window.tap(1, ix, i % cols)
                    if ky is None or kx is None:
                        continue
                    t = ky * window.kernel[1] + kx
                    uses.append({"i": i, "weight": f"k{t}" if held else weight[t]})
                if uses:
                    offset = iy * self.xs[1] + ix * self.xs[2]
                    inputs.append({"x": terms("", offset=offset), "uses": uses})
        loops = [
            {"var": "k" + "dhw"[i], "extent": n, "stride": self.xs[i] * phase.dilation[i]}
            for i, n in enumerate(window.looped)
            if n > 1
        ]
        return {
            "name": name,
            "rows": rows,
            "cols": cols,
            "params": self.params(),
            "held": weight if held else [],
            "outputs": made,
            "inputs": inputs,
            "loops": loops,
            "step": taps * self.vl,
        }

    def _store(self, i: int, at: dict[str, int], lanes: int) -> str:
        pointers = {name: terms(name, offset=offset) for name, offset in at.items()}
        y = terms("y + c", offset=at["y"])
        return self.fused.store(f"acc{i}", y, pointers, lambda step: "c", lanes)
