"""[1x1 conv] -> depthwise conv -> [1x1 conv] as one kernel that streams by rows.

A step computes ``fuse_rows`` output rows: the 1x1 convolution before computes the input rows that
are missing into a ring, the depthwise one reads a window of the ring and writes a strip, and the
1x1 behind multiplies the strip. What lies between the convolutions so stays in L1 and L2 and has
no memory in the arena; in return the weights pass by once a step. That pays where the maps are
larger than L2 (``schedule.conv.fuse_rows`` decides). The stages are the same register tiles that
the convolutions have alone, on views of ring and strip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Value
from aotgen.schedule.base import (
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    Layout,
    Need,
    ScheduleError,
    Template,
    View,
    Views,
)
from aotgen.schedule.conv.conv2d_depthwise import DepthwiseWriter
from aotgen.schedule.conv.conv2d_direct import (
    alias,
    channel_loops,
    channel_steps,
    conv_args,
    conv_title,
    group_weights,
    output_axes,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.depthwise_tile import tile_fits
from aotgen.schedule.conv.fused_rows_chain import (
    DEPTHWISE,
    EXPAND,
    PROJECT,
    Chain,
    chain_of,
    known_chain,
)
from aotgen.schedule.conv.fused_rows_model import (
    chain_knobs,
    chain_seconds,
    default_config,
    dense_stage_config,
    ring_rows,
    stage_problem,
    steps_of,
)
from aotgen.schedule.dense.problem import Axis, Dense, terms
from aotgen.schedule.dense.tiles import check_tile
from aotgen.schedule.dense.writer import DenseWriter, dense_kernel
from aotgen.schedule.fused import Fused, fused_needs, make_fused
from aotgen.schedule.layouts import Y_LAYOUT, in_layout, laid_out, layout_choices, layout_of
from aotgen.target.target import Target


class Conv2dFusedRows(Template):
    """A depthwise convolution with the 1x1 convolution before it, behind it, or both."""

    name = "conv2d_fused_rows"
    streams = False  # its ring begins anew with every call

    def applies(self, group: Group, target: Target) -> str | None:
        if target.device != "cpu":
            return "needs a CPU"
        if chain_of(group, target) is None:
            return "needs a depthwise conv with 1x1 convs around it, all f32 on two spatial axes"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return chain_knobs(group, target)

    def default(self, group: Group, target: Target) -> Config:
        return default_config(group, target)

    def check(self, group: Group, target: Target, config: Config) -> None:
        chain = known_chain(group, target)
        rows, tile = config.int("fuse_rows"), config.int("oh_tile")
        if rows % tile:
            raise ScheduleError(f"{rows} rows a step are no whole tiles of {tile} rows")
        if not tile_fits(chain.window, tile, config.int("ow_tile"), target):
            raise ScheduleError(
                f"a depthwise tile of {tile} x {config.int('ow_tile')} outputs does not fit the "
                "registers"
            )
        for name in (EXPAND, PROJECT):
            if name in chain.stages:
                c = dense_stage_config(config, name, target)
                width = chain.stages[name].output.shape[2]
                problem = stage_problem(chain, name, rows, target)
                check_tile(min(c.ow_tile, width), c.vectors, target, problem.lane_step)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        chain = known_chain(group, target)
        found = {name: need for s in chain.stages.values() for name, need in fused_needs(s).items()}
        x = group.nodes[0].input(0).name
        found[x] = Need(unit_inner=True) if chain.expand else chain.shape.need()
        inner = {stage.output.name for stage in chain.stages.values()}
        needs = {name: need for name, need in found.items() if name not in inner}
        return laid_out(needs, group, config, target)

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        if known_chain(group, target).expand is None:
            return [pair for pair in layout_choices(group, target) if pair[0] == "strided"]
        return layout_choices(group, target)

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return in_layout(Need(unit_inner=True), layout_of(config, Y_LAYOUT), target)

    def may_alias(self, group: Group, value: Value) -> Alias:
        """Only what the last stage's epilogue reads, and no other stage."""
        last = max(i for i, n in enumerate(group.nodes) if n.op == "conv")
        if any(v is value for n in group.nodes[:last] for v in n.args):
            return "none"
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        return chain_seconds(known_chain(group, target), config, target)

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        return _Writer(group, known_chain(group, target), target, config, views).kernel()


@dataclass(frozen=True)
class _Stage:
    """A stage's function, the epilogue that it runs, and the names of its constants and further
    inputs as parameters of the whole.
    """

    kernel: Kernel
    fused: Fused
    names: Mapping[str, str]


class _Writer:
    """Context of conv2d_fused_rows.c.j2."""

    def __init__(
        self, group: Group, chain: Chain, target: Target, config: Config, views: Views
    ) -> None:
        self.group, self.chain, self.target, self.config = group, chain, target, config
        self.shape = chain.shape
        self.step = config.int("fuse_rows")
        self.views = Views({**views.by_name, **self._inner_views()}, views.inplace)
        self.stages = {name: self._stage(name) for name in chain.stages}

    def _inner_views(self) -> dict[str, View]:
        """Views of what lies between the stages: one image, any number of rows."""
        shape, found = self.shape, {}
        c = shape.channels

        def rows_of(value: Value, row: int) -> View:
            return View(value.shape, (0, row, c, 1), value.dtype)

        if self.chain.expand is not None:
            value = self.chain.expand.output
            found[value.name] = rows_of(value, self.chain.ring_row)
        if self.chain.project is not None:
            value = self.chain.depthwise.output
            found[value.name] = rows_of(value, self.chain.strip_row)
        return found

    def _stage(self, name: str) -> _Stage:
        group = self.chain.stages[name]
        fused = make_fused(group, self.target, self.views)
        shape = replace(ConvShape.of(group.nodes[0]), batch=1)
        if name == DEPTHWISE:
            kernel = DepthwiseWriter(
                group, shape, self.target, self.config, self.views, fused, by_rows=True
            ).kernel()
        else:
            kernel = self._dense(name, group, shape, fused)
        names = {
            arg.name: f"{name}_{arg.name}"
            for arg in kernel.args
            if arg.const is not None or arg.name not in ("x", "y")
        }
        return _Stage(kernel, fused, names)

    def _dense(self, name: str, group: Group, shape: ConvShape, fused: Fused) -> Kernel:
        """A 1x1 convolution of some rows of one image."""
        node = group.nodes[0]
        x = self.views[node.input(0)]
        xs = shape.spatial_strides(x)
        blocks, block = channel_loops(x, shape.channels)
        _, _, row, col = output_axes(group, shape, self.views, fused)
        dense = Dense(
            outer=(),
            row=Axis(shape.out[1], {**row, "x": xs[1]}),
            col=Axis(shape.out[2], {**col, "x": xs[2]}),
            reduce=(*blocks, block),
            channels=shape.outputs,
            channel_steps=channel_steps(group, self.views, fused),
        )
        config = dense_stage_config(self.config, name, self.target)
        bias = node.optional(2) is not None
        writer = DenseWriter(dense, config, self.target, fused, bias=bias)
        args = conv_args(group, shape, writer, group_weights(node, shape))
        return dense_kernel(name, conv_title(shape), [], writer, args, body=writer.body())

    def kernel(self) -> Kernel:
        shape, chain = self.shape, self.chain
        args = self._args()
        calls = {name: self._call(name) for name in self.stages}
        tiles = f"{self.config.int('oh_tile')}x{self.config.int('ow_tile')}"
        last = self.stages[next(reversed(self.stages))].fused
        text = render(
            "kernels/conv2d_fused_rows.c.j2",
            stages=[
                s.kernel.body.strip("\n").replace("@KERNEL@", f"@KERNEL@_{name}")
                for name, s in self.stages.items()
            ],
            title=" -> ".join(chain.stages),
            params=self._params(args, last),
            images=shape.batch,
            step=self.step,
            height=shape.out[1],
            ring=self._ring(),
            calls={**dict.fromkeys((EXPAND, PROJECT), ""), **calls},
        )
        joined = "_".join(self.stages)
        return Kernel(
            f"conv2d_f32_{joined}_{shape.kernel[1]}x{shape.kernel[2]}_{tiles}",
            text,
            tuple(args),
            steps_of(chain, self.step),
            frozenset().union(*(s.fused.math for s in self.stages.values())),
            frozenset({"string.h"}) if chain.expand is not None else frozenset(),
        )

    def _ring(self) -> dict[str, int] | None:
        shape, chain = self.shape, self.chain
        if chain.expand is None:
            return None
        (_, bottom), (left, right) = shape.border()[1:3]
        return {
            "rows": ring_rows(self.chain, self.config),
            "row": chain.ring_row,
            "left": left * shape.channels,
            "right": right * shape.channels,
            "begin": shape.begin[1],
            "bottom": bottom,
            "height": shape.size[1],
            "stride": shape.stride[1],
            "advance": shape.stride[1] * self.step,
            "reach": chain.reach,
        }

    def _args(self) -> list[Arg]:
        """x, each stage's constants and further inputs, scratch, y."""
        chain = self.chain
        x = next(iter(self.stages.values())).kernel.args[0]
        found = [replace(x, name="x")]
        for stage in self.stages.values():
            for arg in stage.kernel.args:
                if arg.name not in stage.names:
                    continue
                name, const = stage.names[arg.name], arg.const
                made = None if const is None else replace(const, role=name)
                found.append(replace(arg, name=name, const=made))
        if chain.expand is not None:
            size = 4 * chain.ring_row * ring_rows(self.chain, self.config)
            found.append(Arg("ring", "float *", scratch_bytes=size))
        if chain.project is not None:
            size = 4 * chain.strip_row * min(self.step, self.shape.out[1])
            found.append(Arg("strip", "float *", scratch_bytes=size))
        return [*found, Arg("y", "float *", value=self.group.output, is_output=True)]

    def _params(self, args: list[Arg], last: Fused) -> str:
        """C parameters: restrict except where the output may be written over an input."""
        shared = {"y"} if last.aliased else set()
        for stage in self.stages.values():
            shared |= {stage.names[i.name] for i in stage.fused.inputs if i.kind == "pixel"}
        parts = [f"{a.ctype}{'' if a.name in shared else 'restrict '}{a.name}" for a in args]
        return ", ".join([*parts, "int32_t r0", "int32_t r1"])

    def _call(self, name: str) -> str:
        """Arguments of a stage's function, but for its range of rows."""
        stage, pixels = self.stages[name], {}
        for i in stage.fused.inputs:
            if i.kind == "pixel":
                pixels[i.name] = i.strides
        made = []
        for arg in stage.kernel.args:
            if arg.name == "x":
                made.append(self._input(name))
            elif arg.name == "y":
                made.append(self._output(name))
            elif arg.name in pixels:
                made.append(self._pointer(stage.names[arg.name], pixels[arg.name], name))
            else:
                made.append(stage.names[arg.name])
        return ", ".join(made)

    def _pointer(self, base: str, strides: tuple[int, ...], name: str) -> str:
        """Where the rows of a stage's output begin in an operand of that shape."""
        parts = [("i0", strides[0])] if self.shape.batch > 1 else []
        return terms(base, *parts, ("end" if name == EXPAND else "first", strides[1]))

    def _input(self, name: str) -> str:
        """A stage's first input row of a step, behind the rows of padding."""
        if name == PROJECT:
            return "strip"
        chain, shape = self.chain, self.shape
        if name == DEPTHWISE and chain.expand is not None:
            left = shape.border()[2][0]
            skip = shape.begin[1] * chain.ring_row + left * shape.channels
            return terms("ring", ("(low - top)", chain.ring_row), offset=skip)
        strides = self.views[self.group.nodes[0].input(0)].strides
        parts = [("i0", strides[0])] if shape.batch > 1 else []
        if name == EXPAND:
            return terms("x", *parts, ("end", strides[1]))
        return terms("x", *parts, ("first", strides[1] * shape.stride[1]))

    def _output(self, name: str) -> str:
        """A stage's first output row of a step."""
        chain, shape = self.chain, self.shape
        if name == EXPAND:
            left = shape.border()[2][0] * shape.channels
            return terms("ring", ("(end - top)", chain.ring_row), offset=left)
        if name == DEPTHWISE and chain.project is not None:
            return "strip"
        return self._pointer("y", self.views[self.group.output].strides, name)
