"""conv_transpose by sub-pixel decomposition: one dense kernel a phase (``conv_phase``).

No output is scattered and no zero multiplied. Where the phases of an output row read the same
inputs (kernel = stride) and pixels are dense, they are one convolution with stride times the
channels: a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import Arg, Config, Kernel, Knob, Need, PackedConst, Views
from aotgen.schedule.conv.conv2d_direct import (
    DenseTemplate,
    conv_title,
    inner_steps,
    outermost,
    output_axes,
    why_not,
)
from aotgen.schedule.conv.conv_phase import (
    Phase,
    merge_columns,
    phase_text,
    phases_need,
    transposed_phases,
)
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.dense.blocking import (
    Problem,
    default_config,
    dense_config,
    predicted_seconds,
)
from aotgen.schedule.dense.problem import (
    Axis,
    Dense,
    DenseConfig,
    collapse_reduction,
    kernel_params,
    terms,
)
from aotgen.schedule.dense.space import canonical_dense, dense_space
from aotgen.schedule.dense.tiles import padded
from aotgen.schedule.dense.writer import DenseWriter
from aotgen.schedule.fused import Fused, fused_needs, make_fused
from aotgen.schedule.group_memo import per_group
from aotgen.schedule.packing import pack_panels, pad_channels
from aotgen.target.target import Target


def phases_of(group: Group) -> tuple[ConvShape, list[Phase]]:
    """The shape and the phases of a group that ``transposed_reason`` let through."""
    node = group.nodes[0]
    shape = ConvShape.of(node)
    phases = transposed_phases(node, shape)
    assert phases is not None
    return shape, phases


def transposed_reason(group: Group, target: Target) -> str | None:
    """Why no conv_transpose template applies, or None."""
    reason = why_not(group, target, "conv_transpose")
    if reason is not None:
        return reason
    node = group.nodes[0]
    if transposed_phases(node, ConvShape.of(node)) is None:
        return "needs a tap for every output: the kernel is smaller than the stride"
    return None


class ConvTranspose(DenseTemplate):
    """Transposed convolution, one to three spatial axes, any stride, dilation and group count."""

    name = "conv_transpose"

    def applies(self, group: Group, target: Target) -> str | None:
        return transposed_reason(group, target)

    def problem(self, group: Group, target: Target) -> Problem:
        """Of the phase with the most work."""
        return phase_problems(group, target, False)[0]

    def problem_of(self, group: Group, target: Target, config: Config) -> Problem:
        return _problems(group, target, config)[0]

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        merged = phase_problems(group, target, True)
        found = {k.name: k for k in dense_space(self.problem(group, target), target)}
        for knob in dense_space(merged[0], target) if merged else ():
            values = {*map(int, found[knob.name].values), *map(int, knob.values)}
            found[knob.name] = replace(knob, values=tuple(sorted(values)))
        choices = (False, True) if merged else (False,)
        return (*found.values(), Knob("merge_columns", "boolean", choices))

    def default(self, group: Group, target: Target) -> Config:
        best: tuple[float, Config] | None = None
        for flag in (False, True):
            problems = phase_problems(group, target, flag)
            if not problems:
                continue
            config = default_config(problems[0], target)
            seconds = _seconds(problems, config, target)
            if best is None or seconds < best[0]:
                best = seconds, Config.of(**config.as_dict(), merge_columns=flag)
        assert best is not None
        return best[1]

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """Phases of fewer taps may be cut into passes or not."""
        problem = self.problem_of(group, target, config)
        return canonical_dense(problem, config, target, cuts=False)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        shape, phases = phases_of(group)
        return {**fused_needs(group), group.nodes[0].input(0).name: phases_need(phases, shape)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        return _seconds(_problems(group, target, config), config, target)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        shape, phases = phases_of(group)
        fused = make_fused(group, target, views, shape.groups)
        merged = merge_columns(phases) if config["merge_columns"] else None
        if merged is not None and pixels_are_dense(group, shape, views, fused):
            step = merged[0].y_step[2]
            phases, fused = merged, _widened(fused, step, shape.outputs, target)
        writer = _Writer(group, shape, phases, dense_config(config, target), target, views, fused)
        return writer.kernel()


@per_group
def phase_problems(group: Group, target: Target, merged: bool) -> tuple[Problem, ...]:
    """For the model, the phases with the most work first: one by one, or those of a row as one;
    none where that cannot be.
    """
    shape, phases = phases_of(group)
    found = merge_columns(phases) if merged else phases
    ordered = sorted(found or (), key=lambda p: -p.macs)
    return tuple(phase_problem(shape, p, target) for p in ordered)


def _problems(group: Group, target: Target, config: Config) -> tuple[Problem, ...]:
    merged = phase_problems(group, target, True) if config["merge_columns"] else ()
    return merged or phase_problems(group, target, False)


def phase_problem(shape: ConvShape, phase: Phase, target: Target) -> Problem:
    """A phase for the model of dense kernels."""
    groups, channels, *_, inputs = phase.weights.shape
    return Problem(
        rows=phase.out[1],
        cols=phase.out[2],
        outer=shape.batch * phase.out[0],
        groups=groups,
        channels=channels,
        reduction=phase.reduction,
        inner=inner_steps(inputs, phase.taps[2], phase.dilation[2]),
        passes=outermost(phase.taps, inputs),
        x_bytes=4 * inputs * shape.size[1] * shape.size[2] * min(shape.size[0], phase.taps[0]),
        lane_step=target.has_neon,
    )


def _seconds(problems: Sequence[Problem], config: Config, target: Target) -> float:
    c = dense_config(config, target)
    return sum(predicted_seconds(p, c, target) for p in problems)


def pixels_are_dense(group: Group, shape: ConvShape, views: Views, fused: Fused) -> bool:
    """Whether the pixels of a row are next to each other in y and in all that the epilogue reads
    like y, and nothing else that it reads varies over a row of (phase, channel).
    """
    outputs = [views[group.output].strides]
    for i in fused.loaded:
        if i.kind == "pixel":
            outputs.append(i.strides)
        elif i.kind == "channel" and i.const is None:
            return False
    return all(s[-2] == shape.outputs for s in outputs)


def _widened(fused: Fused, times: int, channels: int, target: Target) -> Fused:
    """Per-channel constants of the epilogue repeated for every phase of a row."""

    def repeated(role: str, value: Value) -> PackedConst:
        assert value.const is not None
        array = np.tile(value.const.reshape(-1), times)
        return PackedConst(role, pad_channels(array, 1, times * channels, target.vl), value)

    return fused.with_channel_constants(repeated)


class _Writer:
    """Context of conv_transpose.c.j2."""

    def __init__(
        self,
        group: Group,
        shape: ConvShape,
        phases: Sequence[Phase],
        config: DenseConfig,
        target: Target,
        views: Views,
        fused: Fused,
    ) -> None:
        self.group, self.shape, self.phases = group, shape, phases
        self.config, self.target, self.fused = config, target, fused
        self.x = views[group.nodes[0].input(0)]
        self.xs = shape.spatial_strides(self.x)
        self.axes = output_axes(group, shape, views, fused)
        self.bias = group.nodes[0].optional(2)
        self.writers: dict[tuple[Any, ...], DenseWriter] = {}
        for phase in phases:
            key = (phase.geometry, phase.weights.shape)
            if key not in self.writers:
                writer = DenseWriter(
                    self.dense(phase), config, target, fused, bias=self.bias is not None
                )
                writer.tag = f"{len(self.writers)}_" if self.writers else ""
                self.writers[key] = writer

    def writer(self, phase: Phase) -> DenseWriter:
        return self.writers[phase.geometry, phase.weights.shape]

    def dense(self, phase: Phase) -> Dense:
        """The loops of a phase."""
        shape, xs = self.shape, self.xs
        batch, *spatial = self.axes
        groups, channels, *_, inputs = phase.weights.shape
        axes = [
            Axis(n, {"x": stride, **{k: v * step for k, v in own.items()}})
            for n, stride, step, own in zip(phase.out, xs, phase.y_step, spatial, strict=True)
        ]
        wide = padded(channels, self.target.vl)
        by_group = {"x": inputs, "w": wide * phase.reduction, "bias": wide, "y": channels}
        for i in self.fused.inputs:
            if i.kind != "scalar":
                constant = i.kind == "channel" and i.const is not None
                by_group[i.name] = wide if constant else channels
        outer = [
            Axis(shape.batch, {**batch, "x": self.x.strides[0]}),
            Axis(groups, by_group),
            axes[0],
        ]
        reduce = [(phase.taps[i], phase.dilation[i] * xs[i]) for i in range(3)]
        return Dense(
            outer=tuple(a for a in outer if a.extent > 1),
            row=axes[1],
            col=axes[2],
            reduce=collapse_reduction([*reduce, (inputs, 1)]),
            channels=channels,
        )

    def args(self, packed: Sequence[np.ndarray]) -> list[Arg]:
        """x, w (``packed`` by phase), bias, the epilogue's inputs, y and scratch."""
        node = self.group.nodes[0]
        w = PackedConst("w", np.concatenate(packed), node.input(1))
        args = [
            Arg("x", "const float *", value=node.input(0)),
            Arg("w", "const float *", const=w),
        ]
        if self.bias is not None and self.bias.const is not None:
            groups, channels = self.phases[0].weights.shape[:2]
            times = groups * channels // self.shape.outputs
            values = np.tile(self.bias.const, times)
            wide = pad_channels(values, groups, channels, self.target.vl)
            args.append(Arg("bias", "const float *", const=PackedConst("bias", wide, self.bias)))
        args += [i.arg for i in self.fused.inputs]
        args.append(Arg("y", "float *", value=self.group.output, is_output=True))
        scratch = max(w.part_bytes for w in self.writers.values())
        if scratch:
            args.append(Arg("part", "float *", scratch_bytes=scratch))
        return args

    def _packed(self, phase: Phase) -> np.ndarray:
        groups, channels = phase.weights.shape[:2]
        flat = phase.weights.reshape(groups, channels, -1)
        return pack_panels(flat, self.writer(phase).panels, self.target.vl)

    def kernel(self) -> Kernel:
        packed = [self._packed(p) for p in self.phases]
        args = self.args(packed)
        found = {self.writer(p): p for p in self.phases}
        functions = []
        for number, writer in enumerate(self.writers.values()):
            body = writer.body()
            if writer.split is None and any(a.scratch_bytes for a in args):
                body = ["(void)part;", *body]
            tiles = [writer.tile_context(t) for t in writer.used.values()]
            title = f"one of {len(self.phases)} phases: {phase_text(found[writer])}"
            functions.append(
                {"name": f"phase{number}", "title": title, "tiles": tiles, "body": body}
            )
        rows = max(self._rows(p) for p in self.phases)
        text = render(
            "kernels/conv_transpose.c.j2",
            epilogue=self.fused.function,
            functions=functions,
            calls=self._calls(args, [w.size for w in packed]),
            title=conv_title(self.shape, "conv_transpose"),
            params=kernel_params(args, self.fused),
        )
        first = next(iter(self.writers.values()))
        name = f"conv_transpose_f32_{len(self.phases)}x{first.tile_text}"
        return Kernel(name, text, tuple(args), rows, self.fused.math)

    def _rows(self, phase: Phase) -> int:
        return sum(r.count for r in self.writer(phase).rows)

    def _calls(self, args: Sequence[Arg], sizes: Sequence[int]) -> list[dict[str, str]]:
        numbers = {key: n for n, key in enumerate(self.writers)}
        rows = [self._rows(p) for p in self.phases]
        given = phase_calls(self.phases, args, self.fused, self.xs, self.axes, sizes, rows)
        return [
            {"name": f"phase{numbers[p.geometry, p.weights.shape]}", "args": text}
            for p, text in zip(self.phases, given, strict=True)
        ]


def phase_calls(
    phases: Sequence[Phase],
    args: Sequence[Arg],
    fused: Fused,
    xs: Triple,
    axes: Sequence[dict[str, int]],
    weights: Sequence[int],
    rows: Sequence[int],
) -> list[str]:
    """The C arguments of each phase's call: its pointers, and the part of [r0, r1) that it has.

    Args:
        xs: strides of x along depth, height and width.
        axes: strides of y and the epilogue's pixel inputs (``output_axes``).
        weights: elements of w, per phase.
        rows: row tiles, per phase.
    """
    pixel = {i.name for i in fused.inputs if i.kind == "pixel"} | {"y"}
    made, before = [], 0
    for phase, size, most in zip(phases, weights, rows, strict=True):
        given = []
        for arg in args:
            offset = 0
            if arg.name == "w":
                offset = before
            elif arg.name == "x":
                offset = sum(a * b for a, b in zip(phase.x_first, xs, strict=True))
            elif arg.name in pixel:
                spatial = zip(phase.y_first, axes[1:], strict=True)
                offset = sum(first * own.get(arg.name, 0) for first, own in spatial)
            given.append(terms(arg.name, offset=offset))
        before += size
        for r in ("r0", "r1"):
            given.append(r if most == max(rows) else f"{r} < {most} ? {r} : {most}")
        made.append(", ".join(given))
    return made
