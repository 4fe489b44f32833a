"""Depthwise conv (one filter per channel): register tiles with row reuse, vectors over channels.

An input vector is loaded once for all outputs of the tile that it touches; the filter stays in
registers where it fits. On AArch64 a tile slides down its rows: an output is stored as soon as it
has its last product, so that only those of a few rows take registers. Where the input lies in
blocks of channels, the loop over channels goes around all pixels instead of into each tile, and
neighbouring tiles find their rows in L1; channels-last, the knob c_block does that by some cache
lines of channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

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
    PackedConst,
    ScheduleError,
    Template,
    Views,
)
from aotgen.schedule.conv.clipping import (
    BORDER,
    CLIPPED,
    Strip,
    can_clip,
    conv_needs,
    has_taps,
    is_clipped,
    strips,
)
from aotgen.schedule.conv.conv2d_direct import (
    alias,
    channel_steps,
    conv_title,
    output_axes,
    why_not,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.depthwise_tile import (
    MAX_TAPS,
    Window,
    accumulators,
    best_tile,
    depthwise_tiles,
    is_held,
    tile_cycles,
    tile_fits,
    tile_slides,
    window_of,
)
from aotgen.schedule.conv.window_features import window_features
from aotgen.schedule.dense.cache_model import layout_cycles
from aotgen.schedule.dense.problem import LINE_FLOATS, Axis, Block, kernel_params, loop, terms
from aotgen.schedule.dense.tiles import Run, core_model, padded, split_even, split_rest
from aotgen.schedule.features import common_features
from aotgen.schedule.fused import Fused, make_fused
from aotgen.schedule.layouts import (
    Y_LAYOUT,
    in_layout,
    layout_of,
    planewise_layouts,
)
from aotgen.schedule.packing import pad_channels
from aotgen.target.target import Target


class Conv2dDepthwise(Template):
    """Depthwise convolution, one or two spatial axes, channel multiplier 1."""

    name = "conv2d_depthwise"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target)
        if reason is not None:
            return reason
        shape = ConvShape.of(group.nodes[0])
        if not shape.is_depthwise or shape.axes == 3 or shape.taps > MAX_TAPS:
            return f"needs groups == channels, at most two axes and {MAX_TAPS} taps"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        shape = ConvShape.of(group.nodes[0])
        found = depthwise_tiles(window_of(shape), shape.out[1], shape.out[2], target)
        least = max(target.vl, LINE_FLOATS)
        blocks = [least << n for n in range(12) if least << n < shape.channels]
        return (
            Knob("oh_tile", "ordinal", tuple(sorted({t[0] for t in found})), "rows"),
            Knob("ow_tile", "ordinal", tuple(sorted({t[1] for t in found})), "columns"),
            Knob("c_block", "ordinal", (0, *blocks), "channels a pass over the map, 0: all"),
            Knob("hold_weights", "boolean", (False, True)),
        )

    def default(self, group: Group, target: Target) -> Config:
        shape = ConvShape.of(group.nodes[0])
        rows, cols = best_tile(window_of(shape), shape.out[1], shape.out[2], target)
        return Config.of(oh_tile=rows, ow_tile=cols, c_block=0, hold_weights=True)

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """A filter that fits the registers of no tile is held in none."""
        shape = ConvShape.of(group.nodes[0])
        window = window_of(shape)
        sizes = [
            (r.size, c.size)
            for r in split_even(shape.out[1], config.int("oh_tile"))
            for c in split_even(shape.out[2], config.int("ow_tile"))
        ]
        if any(is_held(window, *size, target) for size in sizes):
            return config
        return Config.of(**{**config.as_dict(), "hold_weights": False})

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape = ConvShape.of(group.nodes[0])
        window = window_of(shape)
        config = self.canonical(group, target, config)
        rows, cols = (
            min(config.int("oh_tile"), shape.out[1]),
            min(config.int("ow_tile"), shape.out[2]),
        )
        held = bool(config["hold_weights"]) and is_held(window, rows, cols, target)
        operations = rows * cols * window.taps
        loads = len(window.positions(0, rows)) * len(window.positions(1, cols))
        sums = accumulators(window, rows, cols, target)
        return {
            **common_features(self, group, target, config),
            **window_features(
                shape,
                target,
                (rows, cols),
                vectors=1,
                live=sums + (window.taps if held else 1) + 1,
                operations=operations,
                loads=loads + (window.taps if held else operations),
                channels=config.int("c_block"),
            ),
        }

    def check(self, group: Group, target: Target, config: Config) -> None:
        shape = ConvShape.of(group.nodes[0])
        tile = min(config.int("oh_tile"), shape.out[1]), min(config.int("ow_tile"), shape.out[2])
        if not tile_fits(window_of(shape), tile[0], tile[1], target):
            raise ScheduleError(
                f"a depthwise tile of {tile[0]} x {tile[1]} outputs does not fit the registers"
            )

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return conv_needs(group, target, config)

    def clipped(self, group: Group, target: Target, config: Config) -> Config | None:
        shape = ConvShape.of(group.nodes[0])
        if is_clipped(config) or not can_clip(shape, config):
            return None
        rows = max(s.extent for s in strips(shape, 1))
        return _clipped_config(shape, rows, config, target)

    def by_rows(self, group: Group, target: Target, config: Config) -> Config | None:
        shape = ConvShape.of(group.nodes[0])
        if not has_taps(shape, config):
            return None
        made = _clipped_config(shape, 1, config, target)
        return None if made == config else made

    def layouts(self, group: Group, target: Target) -> list[tuple[Layout, Layout]]:
        return planewise_layouts(group, target)

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return in_layout(Need(unit_inner=True), layout_of(config, Y_LAYOUT), target)

    def may_alias(self, group: Group, value: Value) -> Alias:
        return alias(group, value)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        shape = ConvShape.of(group.nodes[0])
        core = core_model(target)
        rows, cols = config.int("oh_tile"), config.int("ow_tile")
        cycles = tile_cycles(window_of(shape), shape.out[1], shape.out[2], rows, cols, target)
        cycles *= shape.batch * padded(shape.channels, target.vl) / target.vl
        moved = (
            4
            * shape.channels
            * shape.batch
            * (shape.size[1] * shape.size[2] + shape.out[1] * shape.out[2])
        )
        cycles += moved / (core.l2 if moved < target.l2_bytes else core.far)
        cycles += layout_cycles(shape, rows, cols, target, config)
        return cycles / core.ghz * 1e-9

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        shape = ConvShape.of(group.nodes[0])
        fused = make_fused(group, target, views)
        return DepthwiseWriter(group, shape, target, config, views, fused).kernel()


def _clipped_config(shape: ConvShape, rows: int, config: Config, target: Target) -> Config:
    """The config with clipped windows and the best tile for so many rows and the widest strip of
    columns.
    """
    cols = max(s.extent for s in strips(shape, 2))
    tile = best_tile(window_of(shape), rows, cols, target)
    knobs = {**config.as_dict(), "oh_tile": tile[0], "ow_tile": tile[1], "c_block": 0}
    return Config.of(**{**knobs, BORDER: CLIPPED})


class DepthwiseWriter:
    """Context of conv2d_depthwise.c.j2.

    Args:
        by_rows: r0, r1 count output rows in place of tiles: any number of whole tiles, behind which
            may stand the rows that are left of the map.
    """

    def __init__(
        self,
        group: Group,
        shape: ConvShape,
        target: Target,
        config: Config,
        views: Views,
        fused: Fused,
        by_rows: bool = False,
    ) -> None:
        self.group, self.shape, self.fused, self.vl = group, shape, fused, target.vl
        self.target, self.by_rows = target, by_rows
        node = group.nodes[0]
        self.x = views[node.input(0)]
        self.xs = shape.spatial_strides(self.x)
        self.window = window_of(shape)
        batch, _, row, col = output_axes(group, shape, views, fused)
        self.batch = Axis(shape.batch, {**batch, "x": self.x.strides[0]})
        self.row = Axis(shape.out[1], {**row, "x": self.xs[1] * shape.stride[1]})
        self.col = Axis(shape.out[2], {**col, "x": self.xs[2] * shape.stride[2]})
        cut = split_rest if by_rows else split_even
        self.rows = cut(shape.out[1], config.int("oh_tile"))
        self.cols = split_even(shape.out[2], config.int("ow_tile"))
        self.clips: dict[tuple[int, Run], Strip] = {}
        """By axis and run: which taps the windows take that are clipped."""
        if is_clipped(config):
            self.rows = self._cut(1, config.int("oh_tile"))
            self.cols = self._cut(2, config.int("ow_tile"))
        self.outside = self.x.layout == "nchwc"
        block = 0 if self.outside else int(config.get("c_block", 0))
        self.block = block if block < shape.channels else 0
        """Channels of a pass over the map; 0 where every tile goes through all."""
        self.hold = bool(config.get("hold_weights", True))
        self.steps = {"x": self.x.channel_step, **channel_steps(group, views, fused)}
        self.wide = padded(shape.channels, target.vl)
        self.bias = node.optional(2)
        self.used = list({self._name(r, c): (r, c) for r in self.rows for c in self.cols}.values())

    def _cut(self, axis: int, most: int) -> tuple[Run, ...]:
        """Runs of tiles along an axis, none across two strips."""
        runs: list[Run] = []
        for strip in strips(self.shape, axis):
            for run in split_even(strip.extent, most):
                runs.append(replace(run, start=run.start + strip.start))
                if strip.taps < self.shape.kernel[axis]:
                    self.clips[axis, runs[-1]] = strip
        return tuple(runs)

    def _taken(self, axis: int, run: Run) -> range:
        """The taps along an axis that a run's windows have inside."""
        strip = self.clips.get((axis, run))
        if strip is None:
            return range(self.shape.kernel[axis])
        return range(strip.first, strip.first + strip.taps)

    def _name(self, rows: Run, cols: Run) -> str:
        """Of the tile of a run of rows and one of columns, behind @KERNEL@_."""
        name = f"tile_{rows.size}x{cols.size}"
        for axis, run, word in ((1, rows, "rows"), (2, cols, "columns")):
            if (axis, run) in self.clips:
                taken = self._taken(axis, run)
                name += f"_{word}_{taken.start}_{taken.stop - 1}"
        return name

    def kernel(self) -> Kernel:
        """Render the kernel."""
        shape, target, fused = self.shape, self.target, self.fused
        body = self.body()
        args = self.args()
        text = render(
            "kernels/conv2d_depthwise.c.j2",
            epilogue=fused.function,
            tiles=[self.tile(rows, cols) for rows, cols in self.used],
            full=0 if self.outside else shape.channels // target.vl * target.vl,
            lanes=shape.channels % target.vl,
            outside=self.outside,
            block=self.block,
            channels=shape.channels,
            vl=target.vl,
            barrier=target.has_neon or target.has_dsp,
            title="depthwise " + conv_title(shape),
            params=kernel_params(args, fused),
            body=body,
        )
        tile = f"{self.rows[0].size}x{self.cols[0].size}"
        name = f"conv2d_f32_depthwise_{shape.kernel[1]}x{shape.kernel[2]}_{tile}"
        return Kernel(name, text, tuple(args), sum(r.count for r in self.rows), fused.math)

    def args(self) -> list[Arg]:
        node, shape = self.group.nodes[0], self.shape
        w = node.input(1).const
        assert w is not None
        packed = np.zeros((shape.taps, self.wide), np.float32)
        packed[:, : shape.channels] = w.reshape(shape.channels, shape.taps).T
        args = [
            Arg("x", "const float *", value=node.input(0)),
            Arg("w", "const float *", const=PackedConst("w", packed.reshape(-1), node.input(1))),
        ]
        if self.bias is not None and self.bias.const is not None:
            wide = pad_channels(self.bias.const, 1, shape.channels, self.vl)
            args.append(Arg("bias", "const float *", const=PackedConst("bias", wide, self.bias)))
        args += [i.arg for i in self.fused.inputs]
        args.append(Arg("y", "float *", value=self.group.output, is_output=True))
        return args

    def names(self) -> list[str]:
        return self.fused.tile_operands(self.bias is not None)

    def tile(self, row_run: Run, col_run: Run) -> dict[str, Any]:
        """What the template prints of the tile of a run of rows and one of columns."""
        window, xs = self.window, self.xs
        rows, cols = row_run.size, col_run.size
        taken = [
            ky * window.kernel[1] + kx
            for ky in self._taken(1, row_run)
            for kx in self._taken(2, col_run)
        ]
        held = self.hold and is_held(window, rows, cols, self.target)
        w = "w" if self.outside else "w + c"
        weight = [f"vload({terms(w, offset=t * self.wide)})" for t in range(window.taps)]
        bias = "vload(bias)" if self.outside else "vload(bias + c)"
        outputs = []
        for i in range(rows * cols):
            at = {
                n: i // cols * self.row.stride(n) + i % cols * self.col.stride(n)
                for n in self.names()
            }
            outputs.append(
                {
                    "i": i,
                    "init": bias if self.bias is not None else "vzero()",
                    "store": self._store(i, at, 0),
                    "tail": self._store(i, at, self.shape.channels % self.vl),
                }
            )
        inputs = []
        for iy in window.positions(0, rows):
            for ix in window.positions(1, cols):
                uses = [
                    {"i": i, "weight": f"k{tap}" if held else weight[tap]}
                    for i in range(rows * cols)
                    for tap in _taps(window, iy, ix, i // cols, i % cols)
                    if tap in taken
                ]
                if uses:
                    x = terms("x" if self.outside else "x + c", offset=iy * xs[1] + ix * xs[2])
                    inputs.append({"x": x, "uses": uses, "starts": [], "ends": []})
        slides = tile_slides(self.target)
        if slides:
            self._slide(outputs, inputs)
        return {
            "slides": slides,
            "name": self._name(row_run, col_run),
            "rows": rows,
            "cols": cols,
            "params": self._params(),
            "held": [(tap, weight[tap]) for tap in taken] if held else [],
            "outputs": outputs,
            "inputs": inputs,
        }

    @staticmethod
    def _slide(outputs: list[dict[str, Any]], inputs: list[dict[str, Any]]) -> None:
        """Note at every input the outputs that it starts and those that it finishes."""
        for o in outputs:
            own = [p for p in inputs if any(u["i"] == o["i"] for u in p["uses"])]
            own[0]["starts"].append(o)
            own[-1]["ends"].append(o)

    def _params(self) -> str:
        part = ["int32_t from", "int32_t to"] if self.block else []
        return ", ".join([*self.fused.tile_params(self.bias is not None), *part])

    def _store(self, i: int, at: dict[str, int], lanes: int) -> str:
        pointers = {name: terms(name, offset=offset) for name, offset in at.items()}
        channel = self._channel(self.steps["y"])
        y = terms("y" if channel == "0" else f"y + {channel}", offset=at["y"])
        return self.fused.store(f"acc{i}", y, pointers, self._channel, lanes)

    def _channel(self, step: int) -> str:
        """C offset of the tile's channels in an operand with this channel step."""
        if self.outside:
            return "0"
        return "c" if step == 1 else f"(ptrdiff_t)c * {step}"

    def body(self) -> list[Block]:
        heights: list[list[Block]] = []
        for run in self.rows:
            columns: list[Block] = []
            for cols in self.cols:
                call: list[Block] = [self._call(run, cols, "t" if cols.count > 1 else "0")]
                columns += [loop("t", "0", str(cols.count), call)] if cols.count > 1 else call
            heights.append(columns)
        nest = self._row_loop(heights)
        if self.outside:
            head = f"for (int32_t c = 0; c < {self.shape.channels}; c += {self.vl}) {{"
            nest = [{"head": head, "body": nest}]
        if self.block:
            channels = self.shape.channels
            end = f"from + {self.block}"
            if channels % self.block:
                end = f"from + {self.block} < {channels} ? from + {self.block} : {channels}"
            head = f"for (int32_t from = 0; from < {channels}; from += {self.block}) {{"
            nest = [{"head": head, "body": [f"const int32_t to = {end};", *nest]}]
        return [loop("i0", "0", str(self.batch.extent), nest)] if self.batch.extent > 1 else nest

    def _row_loop(self, heights: list[list[Block]]) -> list[Block]:
        """The loop over r; ``heights``: what a tile of each of ``rows`` does."""
        if self.by_rows:
            step = self.rows[0].size
            head = f"for (; r + {step} <= r1; r += {step}) {{"
            nest: list[Block] = ["int32_t r = r0;", {"head": head, "body": heights[0]}]
            return nest + [{"head": "if (r < r1) {", "body": rest} for rest in heights[1:]]
        inside = heights[0]
        if len(heights) > 1:
            inside, before = [], 0
            for run, body in zip(self.rows[:-1], heights[:-1], strict=True):
                before += run.count
                word = "else if" if inside else "if"
                inside.append({"head": f"{word} (r < {before}) {{", "body": body})
            inside.append({"head": "else {", "body": heights[-1]})
        return [loop("r", "r0", "r1", inside)]

    def _call(self, run: Run, cols: Run, t: str) -> str:
        kinds = {i.name: i.kind for i in self.fused.inputs}
        before = sum(r.count for r in self.rows[: self.rows.index(run)])
        start = 0 if self.by_rows else run.start - before * run.size
        step = 1 if self.by_rows else run.size
        args = []
        for name in self.names():
            if name in ("w", "bias") or kinds.get(name) in ("channel", "scalar"):
                moves = self.outside and kinds.get(name) != "scalar"
                args.append(f"{name} + c" if moves else name)
                continue
            row, col = self.row.stride(name), self.col.stride(name)
            offset = start * row + cols.start * col
            if name == "x":
                offset -= self.shape.begin[1] * self.xs[1] + self.shape.begin[2] * self.xs[2]
            parts = [("i0", self.batch.stride(name))] if self.batch.extent > 1 else []
            if self.outside:
                parts.append(("c", self.steps.get(name, 1)))
            args.append(terms(name, *parts, ("r", row * step), (t, col * cols.size), offset=offset))
        args += ["from", "to"] if self.block else []
        return f"@KERNEL@_{self._name(run, cols)}({', '.join(args)});"


def _taps(window: Window, iy: int, ix: int, oy: int, ox: int) -> list[int]:
    """Taps through which input (iy, ix) of the tile's window reaches output (oy, ox)."""
    dy, dx = iy - oy * window.stride[0], ix - ox * window.stride[1]
    if dy < 0 or dx < 0 or dy % window.dilation[0] or dx % window.dilation[1]:
        return []
    ky, kx = dy // window.dilation[0], dx // window.dilation[1]
    if ky >= window.kernel[0] or kx >= window.kernel[1]:
        return []
    return [ky * window.kernel[1] + kx]
