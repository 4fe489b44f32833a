"""1x1 conv as a matrix product: pixels x input channels times input channels x output channels, in
place.

Where every operand steps evenly from pixel to pixel, all pixels form one long axis and a tile may
span image rows; else (a bordered output, a stride) tiles stay within rows, or span whole narrow
rows.
"""

from __future__ import annotations

from aotgen.ir.graph import Group
from aotgen.schedule.base import Config, Kernel, Layout, Need, Views
from aotgen.schedule.conv.conv2d_direct import (
    DenseTemplate,
    channel_loops,
    channel_steps,
    conv_args,
    conv_title,
    group_weights,
    output_axes,
    why_not,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.blocking import Problem, best_shape, dense_config
from aotgen.schedule.dense.problem import Axis, Dense, collapse
from aotgen.schedule.dense.writer import DenseWriter, dense_kernel
from aotgen.schedule.fused import fused_needs, make_fused
from aotgen.schedule.layouts import X_LAYOUT, laid_out, layout_choices, layout_of
from aotgen.target.target import Target

WITHIN_ROWS = "within_rows"


class Conv2dPointwise(DenseTemplate):
    """1x1 convolution, one group, any stride, no padding."""

    name = "conv2d_pointwise"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target)
        if reason is not None:
            return reason
        shape = ConvShape.of(group.nodes[0])
        if not shape.is_pointwise or shape.groups != 1 or any(shape.begin) or any(shape.end):
            return "needs a 1x1 kernel, one group and no padding"
        return None

    def problem(self, group: Group, target: Target) -> Problem:
        shape = ConvShape.of(group.nodes[0])
        pixels = shape.batch * shape.out[0] * shape.out[1] * shape.out[2]
        return Problem(
            rows=pixels,
            cols=1,
            outer=1,
            groups=1,
            channels=shape.outputs,
            reduction=shape.channels,
            inner=shape.channels,
            passes=shape.channels,
            x_bytes=4 * shape.channels * pixels,
            lane_step=target.has_neon,
        )

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        needs = {**fused_needs(group), group.nodes[0].input(0).name: Need(unit_inner=True)}
        return laid_out(needs, group, config, target)

    def by_rows(self, group: Group, target: Target, config: Config) -> Config | None:
        """Tiles stay within rows of the map: the knob ``within_rows``."""
        shape = ConvShape.of(group.nodes[0])
        alone = shape.batch * shape.out[0] == 1 and shape.out[1] > 1
        if not alone or config.get(WITHIN_ROWS, False) or layout_of(config, X_LAYOUT) != "strided":
            return None
        return Config.of(**config.as_dict(), **{WITHIN_ROWS: True})

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        return layout_choices(group, target)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        shape = ConvShape.of(node)
        fused = make_fused(group, target, views)
        x = views[node.input(0)]
        xs = shape.spatial_strides(x)
        batch, depth, row, col = output_axes(group, shape, views, fused)
        axes = [
            Axis(shape.batch, {**batch, "x": x.strides[0]}),
            Axis(shape.out[0], {**depth, "x": xs[0] * shape.stride[0]}),
            Axis(shape.out[1], {**row, "x": xs[1] * shape.stride[1]}),
            Axis(shape.out[2], {**col, "x": xs[2] * shape.stride[2]}),
        ]
        merged = collapse(axes)
        cfg = dense_config(config, target)
        outer: list[Axis]
        if config.get(WITHIN_ROWS, False):
            outer, rows, cols = [], axes[2], axes[3]
            cfg = best_shape(self.problem(group, target), 1, cols.extent, cfg, target)
        elif len(merged) == 1:
            outer, rows, cols = [], merged[0], Axis(1, {})
        else:
            outer, rows, cols = merged[:-2], merged[-2], merged[-1]
            cfg = best_shape(self.problem(group, target), rows.extent, cols.extent, cfg, target)
        blocks, block = channel_loops(x, shape.channels)
        dense = Dense(
            tuple(outer),
            rows,
            cols,
            (*blocks, block),
            shape.outputs,
            channel_steps=channel_steps(group, views, fused),
        )
        writer = DenseWriter(dense, cfg, target, fused, bias=node.optional(2) is not None)
        args = conv_args(group, shape, writer, group_weights(node, shape))
        return dense_kernel(
            f"conv2d_f32_pointwise_{writer.tile_text}", conv_title(shape), [], writer, args
        )
