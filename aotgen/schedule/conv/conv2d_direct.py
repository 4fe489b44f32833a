"""conv by the direct method: any kernel, stride, padding, dilation and group count, one to three
spatial axes.

The register tile (``schedule.dense.tile``) walks kernel depth, rows, columns and input channels
over the input in place. Zeros around the input come from its view's border, so that no loop tests
bounds and no im2col buffer exists.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from aotgen.ir.graph import Group, Node, Value
from aotgen.ir.types import DType
from aotgen.schedule.base import (
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    Layout,
    Need,
    PackedConst,
    Template,
    View,
    Views,
)
from aotgen.schedule.conv.clipped_rows import clipped_body, clipped_config, clipped_writers
from aotgen.schedule.conv.clipping import can_clip, conv_needs, has_taps, is_clipped
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.dense.blocking import (
    Problem,
    default_config,
    dense_config,
    predicted_seconds,
)
from aotgen.schedule.dense.cache_model import block_loop_seconds
from aotgen.schedule.dense.problem import Axis, Dense, DenseConfig, collapse_reduction
from aotgen.schedule.dense.space import (
    canonical_dense,
    check_dense,
    dense_features,
    dense_space,
)
from aotgen.schedule.dense.tiles import padded
from aotgen.schedule.dense.writer import DenseWriter, dense_kernel
from aotgen.schedule.features import knob_features, work_features
from aotgen.schedule.fused import Fused, make_fused
from aotgen.schedule.group_memo import per_group
from aotgen.schedule.layouts import (
    X_LAYOUT,
    Y_LAYOUT,
    in_layout,
    layout_choices,
    layout_of,
    with_layouts,
)
from aotgen.schedule.packing import pack_panels, pad_channels
from aotgen.target.target import Target


def conv_anchor(group: Group, op: str = "conv") -> Node | None:
    """The group's anchor when it is an f32 ``op`` without prologue and with constant weights."""
    node = group.anchor
    if node is None or node.op != op or group.prologue:
        return None
    if any(v.dtype is not DType.F32 for n in group.nodes for v in [*n.args, *n.outputs]):
        return None
    return node if all(v.is_const for v in node.args[1:]) else None


def why_not(group: Group, target: Target, op: str = "conv") -> str | None:
    """Why no dense convolution template applies, or None."""
    if target.device != "cpu":
        return "needs a CPU"
    node = conv_anchor(group, op)
    if node is None or node.input(0).is_const:
        return f"needs an f32 {op} of an activation with constant weights and no prologue"
    if any(0 in v.shape for v in [*node.args, node.output]):
        return "needs tensors with elements"
    if not 3 <= len(node.input(0).shape) <= 5:
        return "needs one to three spatial axes"
    return None


def alias(group: Group, value: Value) -> Alias:
    """A dense kernel reads an epilogue input where it is about to write, and its anchor's inputs
    all over.
    """
    own = [] if group.anchor is None else group.anchor.args
    if any(v is value for v in own) or value.shape != group.output.shape:
        return "none"
    return "same_index"


def channel_axes(shape: ConvShape, target: Target, fused: Fused, weights: int) -> dict[str, int]:
    """Strides of operands from one group to the next; ``weights`` is a group's packed weights."""
    wide = padded(shape.outputs // shape.groups, target.vl)
    strides = {
        "x": shape.channels // shape.groups,
        "w": weights,
        "bias": wide,
        "y": shape.outputs // shape.groups,
    }
    for i in fused.inputs:
        if i.kind == "channel":
            strides[i.name] = wide if i.const is not None else shape.outputs // shape.groups
        elif i.kind == "pixel":
            strides[i.name] = shape.outputs // shape.groups
    return strides


def output_axes(
    group: Group, shape: ConvShape, views: Views, fused: Fused
) -> tuple[dict[str, int], ...]:
    """Strides of y and the epilogue's pixel inputs along (batch, depth, row, column)."""
    made: tuple[dict[str, int], ...] = ({}, {}, {}, {})
    operands = [("y", views[group.output].strides)]
    operands += [(i.name, i.strides) for i in fused.inputs if i.kind == "pixel"]
    for name, strides in operands:
        spatial = (0,) * (3 - shape.axes) + tuple(strides[1 : 1 + shape.axes])
        for made_axis, stride in zip(made, (strides[0], *spatial), strict=True):
            made_axis[name] = stride
    return made


def conv_dense(group: Group, shape: ConvShape, target: Target, views: Views, fused: Fused) -> Dense:
    """The loops of a direct convolution over these views."""
    node = group.nodes[0]
    x = views[node.input(0)]
    xs = shape.spatial_strides(x)
    batch, depth, row, col = output_axes(group, shape, views, fused)
    inputs = shape.channels // shape.groups
    per_group = padded(shape.outputs // shape.groups, target.vl) * shape.reduction
    outer = [
        Axis(shape.batch, {**batch, "x": x.strides[0]}),
        Axis(shape.groups, channel_axes(shape, target, fused, per_group)),
        Axis(shape.out[0], {**depth, "x": xs[0] * shape.stride[0]}),
    ]
    reduce = [(shape.kernel[i], shape.dilation[i] * xs[i]) for i in range(3)]
    blocks, block = channel_loops(x, inputs)
    return Dense(
        outer=tuple(a for a in outer if a.extent > 1),
        row=Axis(shape.out[1], {**row, "x": xs[1] * shape.stride[1]}),
        col=Axis(shape.out[2], {**col, "x": xs[2] * shape.stride[2]}),
        reduce=collapse_reduction([*blocks, *reduce, block]),
        channels=shape.outputs // shape.groups,
        offset=-sum(p * s for p, s in zip(shape.begin, xs, strict=True)),
        channel_steps=channel_steps(group, views, fused),
    )


def channel_loops(x: View, channels: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """(loops over blocks of input channels, loop over the channels of one), each (extent, stride):
    outermost and innermost in a reduction.
    """
    if x.layout != "nchwc":
        return [], (channels, 1)
    return [(channels // x.block, x.block_stride)], (x.block, 1)


def channel_steps(group: Group, views: Views, fused: Fused) -> dict[str, int]:
    """``Dense.channel_steps`` of the output and the epilogue's pixel inputs."""
    steps = {i.name: i.channel_step for i in fused.inputs if i.kind == "pixel"}
    return {**steps, "y": views[group.output].channel_step}


def conv_args(
    group: Group, shape: ConvShape, writer: DenseWriter, weights: np.ndarray
) -> list[Arg]:
    """x, w, bias, the epilogue's inputs and y. ``weights``: [groups, channels, reduction]."""
    node = group.nodes[0]
    vl = writer.vl
    packed = pack_panels(weights, writer.panels, vl)
    args = [
        Arg("x", "const float *", value=node.input(0)),
        Arg("w", "const float *", const=PackedConst("w", packed, node.input(1))),
    ]
    bias = node.optional(2)
    if bias is not None and bias.const is not None:
        wide = pad_channels(bias.const, shape.groups, shape.outputs // shape.groups, vl)
        args.append(Arg("bias", "const float *", const=PackedConst("bias", wide, bias)))
    args += [i.arg for i in writer.fused.inputs]
    args.append(Arg("y", "float *", value=group.output, is_output=True))
    return args


def group_weights(node: Node, shape: ConvShape, block: int = 0) -> np.ndarray:
    """The node's weights as [groups, channels a group, reduction in (kd, kh, kw, ic) order]; with
    ``block`` blocks of so many input channels are the outermost part of the reduction.
    """
    w = node.input(1).const
    assert w is not None
    made = np.asarray(w, np.float32)
    if block:
        cut = made.reshape(shape.outputs, shape.taps, -1, block)
        made = np.ascontiguousarray(cut.swapaxes(1, 2))
    return made.reshape(shape.groups, shape.outputs // shape.groups, -1)


def conv_title(shape: ConvShape, op: str = "conv") -> str:
    """What a convolution's kernel computes: attributes that are not the usual ones, and shapes."""
    first = 3 - shape.axes

    def triple(values: Triple) -> str:
        return "x".join(map(str, values[first:]))

    attributes = [f"{op} {triple(shape.kernel)}"]
    if set(shape.stride) != {1}:
        attributes.append(f"stride {triple(shape.stride)}")
    if set(shape.dilation) != {1}:
        attributes.append(f"dilation {triple(shape.dilation)}")
    if any((*shape.begin, *shape.end)):
        attributes.append(f"pads {triple(shape.begin)} before, {triple(shape.end)} behind")
    if shape.groups > 1:
        attributes.append(f"{shape.groups} groups")
    size, out = triple(shape.size), triple(shape.out)
    return (
        f"{', '.join(attributes)}: x {shape.batch}x{size}x{shape.channels} -> "
        f"y {shape.batch}x{out}x{shape.outputs}"
    )


def inner_steps(channels: int, taps: int, dilation: int) -> int:
    """Steps of the innermost reduction loop: over the taps of a row, too, where those read
    neighbouring pixels (``dense.collapse_reduction``, if pixels are dense).
    """
    return channels * taps if dilation == 1 else channels


def outermost(taps: Triple, inputs: int) -> int:
    """Steps of the outermost loop of a reduction over taps and input channels."""
    return next((n for n in taps if n > 1), inputs)


class DenseTemplate(Template):
    """What the templates around the dense register tile share: knobs, defaults, checks and cost
    come from a Problem.
    """

    @abstractmethod
    def problem(self, group: Group, target: Target) -> Problem:
        """Extents for the model."""

    def problem_of(self, group: Group, target: Target, config: Config) -> Problem:
        """The extents under a config: where knobs change what the dense kernel is."""
        return known_problem(group, self, target)

    def knobs_of(self, config: Config) -> Config:
        """A config with all knobs of dense kernels: those that the template fixes, too."""
        return config

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return dense_space(known_problem(group, self, target), target)

    def default(self, group: Group, target: Target) -> Config:
        return default_config(known_problem(group, self, target), target)

    def check(self, group: Group, target: Target, config: Config) -> None:
        check_dense(self.problem_of(group, target, config), self.knobs_of(config), target)

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        own = config.as_dict()
        problem = self.problem_of(group, target, config)
        found = canonical_dense(problem, self.knobs_of(config), target).as_dict()
        return Config.of(**{name: found[name] for name in own})

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        problem = self.problem_of(group, target, config)
        return {
            **work_features(group, target),
            **knob_features(self.canonical(group, target, config)),
            **dense_features(problem, self.knobs_of(config), target),
        }

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return in_layout(Need(unit_inner=True), layout_of(config, Y_LAYOUT), target)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def default_in(
        self, group: Group, target: Target, config: Config, x: Layout, y: Layout
    ) -> Config:
        if x == "nchwc" and target.isa == "neon":
            config = default_config(self._problem_in(group, target, x), target)
        return with_layouts(config, x, y)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        x = layout_of(config, X_LAYOUT)
        problem, knobs = self._problem_in(group, target, x), dense_config(config, target)
        seconds = predicted_seconds(problem, knobs, target)
        if x == "nchwc" and target.isa != "neon":
            seconds += block_loop_seconds(problem, knobs, target)
        return seconds

    def _problem_in(self, group: Group, target: Target, x: Layout) -> Problem:
        """``problem`` where the input has this layout."""
        problem = known_problem(group, self, target)
        if x == "strided":
            return problem
        shape = ConvShape.of(group.nodes[0])
        return replace(problem, blocks=shape.stride[2] == 1)


@per_group
def known_problem(group: Group, template: DenseTemplate, target: Target) -> Problem:
    """``DenseTemplate.problem``."""
    return template.problem(group, target)


class Conv2dDirect(DenseTemplate):
    """Direct convolution on channels-last activations."""

    name = "conv2d_direct"

    def applies(self, group: Group, target: Target) -> str | None:
        return why_not(group, target)

    def problem(self, group: Group, target: Target) -> Problem:
        shape = ConvShape.of(group.nodes[0])
        return Problem(
            rows=shape.out[1],
            cols=shape.out[2],
            outer=shape.batch * shape.out[0],
            groups=shape.groups,
            channels=shape.outputs // shape.groups,
            reduction=shape.reduction,
            inner=inner_steps(shape.channels // shape.groups, shape.kernel[2], shape.dilation[2]),
            passes=outermost(shape.kernel, shape.channels // shape.groups),
            x_bytes=4
            * shape.channels
            // shape.groups
            * shape.size[1]
            * shape.size[2]
            * min(shape.size[0], shape.kernel[0]),
            lane_step=target.has_neon,
        )

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return conv_needs(group, target, config)

    def clipped(self, group: Group, target: Target, config: Config) -> Config | None:
        shape = ConvShape.of(group.nodes[0])
        if is_clipped(config) or not can_clip(shape, config):
            return None
        return clipped_config(shape, known_problem(group, self, target), config, target)

    def by_rows(self, group: Group, target: Target, config: Config) -> Config | None:
        shape = ConvShape.of(group.nodes[0])
        if is_clipped(config) or not has_taps(shape, config):
            return None
        return clipped_config(shape, known_problem(group, self, target), config, target)

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        shape = ConvShape.of(group.nodes[0])
        return layout_choices(group, target) if shape.groups == 1 else []

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = ConvShape.of(node)
        fused = make_fused(group, target, views, shape.groups)
        dense = conv_dense(group, shape, target, views, fused)
        cfg = dense_config(config, target)
        if is_clipped(config):
            return self._clipped_kernel(group, shape, dense, cfg, target, fused, views)
        return conv_kernel(group, shape, dense, cfg, target, fused, views, "direct")

    def _clipped_kernel(
        self,
        group: Group,
        shape: ConvShape,
        dense: Dense,
        config: DenseConfig,
        target: Target,
        fused: Fused,
        views: Views,
    ) -> Kernel:
        node = group.nodes[0]
        xs = shape.spatial_strides(views[node.input(0)])
        bias = node.optional(2) is not None
        writers = clipped_writers(shape, dense, xs, config, target, fused, bias=bias)
        widest = writers[0]
        return dense_kernel(
            f"conv2d_f32_clipped_{widest.tile_text}",
            conv_title(shape),
            ["windows are clipped to the input"],
            widest,
            conv_args(group, shape, widest, group_weights(node, shape)),
            body=clipped_body(shape, writers),
            rows=shape.out[1],
            others=writers[1:],
        )


def conv_kernel(
    group: Group,
    shape: ConvShape,
    dense: Dense,
    config: DenseConfig,
    target: Target,
    fused: Fused,
    views: Views,
    method: str,
) -> Kernel:
    """Render a convolution whose weights are walked in the order of ``group_weights``."""
    node = group.nodes[0]
    writer = DenseWriter(dense, config, target, fused, bias=node.optional(2) is not None)
    block = views[node.input(0)].block
    args = conv_args(group, shape, writer, group_weights(node, shape, block))
    return dense_kernel(
        f"conv2d_f32_{method}_{writer.tile_text}", conv_title(shape), [], writer, args
    )
