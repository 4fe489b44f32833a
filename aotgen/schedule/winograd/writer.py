"""Writes Winograd convolutions (``templates/kernels/conv2d_winograd.c.j2``): the loops over blocks
of tiles, both transforms, and between them the dense register tile, once for every point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.schedule.base import Arg, Kernel, PackedConst, Views
from aotgen.schedule.conv.conv2d_direct import channel_steps, conv_title, output_axes
from aotgen.schedule.dense.problem import (
    Axis,
    Block,
    Dense,
    DenseConfig,
    kernel_params,
    loop,
    terms,
)
from aotgen.schedule.dense.tiles import Run
from aotgen.schedule.dense.writer import DenseWriter
from aotgen.schedule.fused import Fused, make_fused
from aotgen.schedule.packing import F32, pack_panels, pad_channels
from aotgen.schedule.winograd.tiling import Tiling
from aotgen.schedule.winograd.transform import FAR, NEAR
from aotgen.target.target import Target


class WinogradWriter:
    """Builds the template's context for one convolution."""

    def __init__(
        self, group: Group, target: Target, tiling: Tiling, config: DenseConfig, views: Views
    ) -> None:
        self.group, self.target, self.tiling, self.views = group, target, tiling, views
        self.node, self.shape = group.nodes[0], tiling.shape
        self.fused = make_fused(group, target, views)
        self.bias = self.node.optional(2)
        self.x = views[self.node.input(0)]
        self.axes = output_axes(group, self.shape, views, self.fused)
        self.steps = channel_steps(group, views, self.fused)
        self.writer = self._products(config)
        self.by_panels = self._prefers_panels()
        if self.by_panels:
            self.writer.count_panels()
        else:
            self.writer.row_range = ("0", str(sum(r.count for r in self.writer.rows)))

    def _products(self, config: DenseConfig) -> DenseWriter:
        """The register tile over a block, in a loop over the points."""
        t = self.tiling
        dense = Dense(
            outer=(Axis(t.points, {"w": t.steps * t.outputs}),),
            row=Axis(t.rows, {"x": t.v_tile, "y": t.outputs}),
            col=Axis(1, {}),
            reduce=t.reduction(),
            channels=t.outputs,
        )
        writer = DenseWriter(dense, config, self.target, Fused(), bias=False)
        writer.bases = {"x": "v", "y": "sums"}
        writer.extra = {"x": (("i0", t.v_point),), "y": (("i0", t.sum_point),)}
        return writer

    def _prefers_panels(self) -> bool:
        """Whether threads should share panels of output channels, and each transform all inputs,
        in place of blocks of tiles: where those are few.
        """
        threads = self.target.threads
        if threads == 1:
            return False
        t, panels = self.tiling, self.writer.panel_count
        products, transforms = t.steps * t.outputs / t.vl, 3 * t.channels / t.vl
        by_blocks = -(-t.blocks // threads) / t.blocks * (products + transforms)
        return -(-panels // threads) / panels * products + transforms < by_blocks

    def kernel(self, weights: F32) -> Kernel:
        """Render the kernel. ``weights``: [points, outputs, steps] without channels that pad."""
        t, writer = self.tiling, self.writer
        body = self._body()
        args = self._args(weights)
        text = render(
            "kernels/conv2d_winograd.c.j2",
            epilogue=self.fused.function,
            m=t.m,
            a=NEAR,
            b=FAR,
            bias=self.bias is not None,
            points=t.m + 2,
            vl=t.vl,
            names=_names(t.m),
            transform=self._transform(),
            tiles=[writer.tile_context(tile) for tile in writer.used.values()],
            outputs=self._outputs(),
            title=conv_title(self.shape),
            notes=[self._note()],
            params=kernel_params(args, self.fused),
            body=body,
        )
        name = f"conv2d_f32_winograd{t.m}_{writer.tile_text}"
        rows = writer.panel_count if self.by_panels else t.blocks
        return Kernel(name, text, tuple(args), rows, self.fused.math)

    def _note(self) -> str:
        if self.by_panels:
            return "r0, r1 count panels of output channels"
        what = f"{self.tiling.tiles} tiles"
        if self.shape.axes == 3:
            what += f" x {self.tiling.frames} frames"
        return f"r0, r1 count blocks of {what}"

    def _args(self, weights: F32) -> list[Arg]:
        t, fused = self.tiling, self.fused
        packed = pack_panels(self._padded(weights), self.writer.panels, t.vl)
        args = [
            Arg("x", "const float *", value=self.node.input(0)),
            Arg("w", "const float *", const=PackedConst("w", packed, self.node.input(1))),
        ]
        if self.bias is not None and self.bias.const is not None:
            wide = pad_channels(self.bias.const, 1, self.shape.outputs, t.vl)
            args.append(Arg("bias", "const float *", const=PackedConst("bias", wide, self.bias)))
        args += [i.arg for i in fused.inputs]
        args.append(Arg("y", "float *", value=self.group.output, is_output=True))
        args.append(Arg("v", "float *", scratch_bytes=4 * t.points * t.v_point))
        args.append(Arg("sums", "float *", scratch_bytes=4 * t.points * t.sum_point))
        if self.writer.split is not None:
            args.append(Arg("part", "float *", scratch_bytes=self.writer.part_bytes))
        return args

    def _padded(self, weights: F32) -> F32:
        """The weights with zeros for channels that fill the last vector of interleaved inputs."""
        t = self.tiling
        points, outputs, steps = weights.shape
        if steps == t.steps:
            return weights
        wide = np.zeros((points, outputs, self.shape.kernel[0], t.channels), np.float32)
        wide[..., : self.shape.channels] = weights.reshape(*wide.shape[:3], -1)
        return wide.reshape(points, outputs, t.steps)

    def _transform(self) -> dict[str, Any]:
        """The input transform's numbers."""
        t = self.tiling
        _, row, col = self.shape.spatial_strides(self.x)
        span = range(t.m + 2)
        return {
            "x": [[i * row + j * col for j in span] for i in span],
            "point": t.v_point,
            "x_step": t.vl * self.x.channel_step,
            "v_step": t.v_vector,
            "vectors": self.shape.channels // t.vl,
            "lanes": self.shape.channels % t.vl,
        }

    @property
    def _variants(self) -> list[bool]:
        """Output transforms that are needed, by whether they go through memory."""
        whole = [n % self.tiling.m == 0 for n in self.shape.out[1:]]
        if self.fused.long or any(n < self.tiling.m for n in self.shape.out[1:]):
            return [True]
        return [False] if all(whole) else [False, True]

    def _outputs(self) -> list[dict[str, Any]]:
        return [self._output(buffered) for buffered in self._variants]

    def _output(self, buffered: bool) -> dict[str, Any]:
        """One output transform."""
        t, fused = self.tiling, self.fused
        lanes = self.shape.outputs % t.vl
        whole = self.shape.outputs - lanes
        row, col = self.axes[2], self.axes[3]
        names = ["y", *(i.name for i in fused.inputs if i.kind == "pixel")]

        def store(i: int, j: int, lanes: int) -> str:
            at = {n: terms(n, offset=i * row[n] + j * col[n]) for n in names}
            return self._store(f"t{i}_{j}", at, lanes)

        def looped(lanes: int) -> str:
            at = {n: terms(n, ("i", row[n]), ("j", col[n])) for n in names}
            return self._store(f"vload(values + (i * {t.m} + j) * {t.vl})", at, lanes)

        has_bias = self.bias is not None
        params = ["const float *restrict sums", *fused.tile_params(has_bias)[2:]]
        if buffered:
            params += ["int32_t h", "int32_t w"]
        if self.by_panels:
            params += ["int32_t from", "int32_t to"]
        title = f"y = A^T M A of one tile, {t.m} x {t.m} outputs"
        if buffered:
            title += ", of which the map has h x w"
        end = f"(to < {whole} ? to : {whole})" if self.by_panels and lanes else str(whole)
        span = range(t.m)
        return {
            "name": "output_part" if buffered else "output",
            "title": title,
            "params": ", ".join(params),
            "point": t.sum_point,
            "whole": whole,
            "first": "from" if self.by_panels else "0",
            "end": "to" if self.by_panels and not lanes else end,
            "lanes": lanes,
            "tail_head": f"if (to > {whole}) {{" if self.by_panels else "{",
            "buffered": buffered,
            "stores": [] if buffered else [[store(i, j, 0) for j in span] for i in span],
            "tail_stores": [] if buffered else [[store(i, j, lanes) for j in span] for i in span],
            "store": looped(0),
            "tail": looped(lanes),
        }

    def _store(self, value: str, at: dict[str, str], lanes: int) -> str:
        """The epilogue and store of channels from c on of the pixel that ``at`` points to."""
        channel: Callable[[int], str] = lambda step: "c" if step == 1 else f"c * {step}"  # noqa: E731
        y = f"{at['y']} + {channel(self.steps.get('y', 1))}"
        return self.fused.store(value, y, at, channel, lanes)

    def _body(self) -> list[Block]:
        """The kernel's loop over blocks."""
        t = self.tiling
        x = self._calls_input()
        y = self._calls_output()
        inside = [*self._block_lines(), *x, *self.writer.body(), *y]
        ends = ("0", str(t.blocks)) if self.by_panels else ("r0", "r1")
        made: list[Block] = inside if t.blocks == 1 else [loop("b", *ends, inside)]
        if t.blocks == 1 or self.by_panels:  # no panels: nothing to transform, nor a last one
            made = [{"head": "if (r0 < r1) {", "body": made}]
        return [*(self._panel_channels() if self.by_panels else []), *made]

    def _panel_channels(self) -> list[Block]:
        """The channels of panels [r0, r1)."""
        first = self.writer.panels[0]
        rest = self.writer.panels[1:]
        width = first.vectors * self.tiling.vl

        def channel(panel: str) -> str:
            if not rest:
                return f"{panel} * {width}"
            narrow = rest[0].vectors * self.tiling.vl
            text = f"{panel} * {narrow} + ({panel} < {first.count} ? {panel} : {first.count})"
            return f"{text} * {width - narrow}"

        return [
            f"const int32_t from = {channel('r0')};",
            f"const int32_t to = {channel('r1')};",
        ]

    def _block_lines(self) -> list[Block]:
        """Which tiles and frames block b has."""
        t = self.tiling
        tile_blocks = sum(r.count for r in t.tile_runs)
        b = "0" if t.blocks == 1 else "b"
        lines: list[Block] = []
        frame_blocks = t.blocks // tile_blocks
        across, deep = b, "0"
        if frame_blocks > 1:
            across = "0" if tile_blocks == 1 else f"({b} / {frame_blocks})"
            deep = b if tile_blocks == 1 else f"({b} % {frame_blocks})"
        lines += _run_lines("first", "tiles", across, t.tile_runs)
        if self.shape.axes == 3:
            lines += _run_lines("frame", "frames", deep, t.frame_runs)
        return lines

    @property
    def _frame(self) -> str:
        """Frame ``f`` of a block, as C."""
        return "f" if self.tiling.frames == self.shape.out[0] else "(frame + f)"

    def _tile_place(self) -> tuple[list[Block], list[tuple[str, int]]]:
        """Statements that find image, row and column of tile ``first + t``, and their names with
        the axis of each: 0 image, 2 row, 3 column.
        """
        down, across = self.tiling.grid
        lines: list[Block] = []
        at = "t"
        if len(self.tiling.tile_runs) > 1 or self.tiling.tile_runs[0].count > 1:
            lines.append("const int32_t at = first + t;")
            at = "at"
        places: list[tuple[str, int]] = []
        if self.shape.batch > 1:
            lines.append(f"const int32_t image = {at} / {down * across};")
            places.append(("image", 0))
        if down > 1:
            row = f"{at} / {across} % {down}" if self.shape.batch > 1 else f"{at} / {across}"
            lines.append(f"const int32_t row = {row};")
            places.append(("row", 2))
        if across > 1:
            lines.append(f"const int32_t column = {at} % {across};")
            places.append(("column", 3))
        return lines, places

    def _each_tile(self, frames: str, inside: list[Block]) -> list[Block]:
        made = [loop("t", "0", "tiles", inside)]
        return [loop("f", "0", frames, made)] if self.shape.axes == 3 else made

    def _calls_input(self) -> list[Block]:
        t, shape = self.tiling, self.shape
        strides = (self.x.strides[0], *shape.spatial_strides(self.x))
        lines, places = self._tile_place()
        parts = [(n, strides[a] * (t.m if a > 1 else 1)) for n, a in places]
        v: list[tuple[str, int]] = [("t", t.v_tile)]
        if shape.axes == 3:
            parts.append((self._frame, strides[1]))
            v.append(("f", t.tiles * t.v_tile))
        begin = -sum(p * s for p, s in zip(shape.begin, strides[1:], strict=True))
        call = f"@KERNEL@_input({terms('x', *parts, offset=begin)}, {terms('v', *v)});"
        taps = shape.kernel[0] - 1
        return self._each_tile(f"frames + {taps}" if taps else "frames", [*lines, call])

    def _calls_output(self) -> list[Block]:
        t, shape = self.tiling, self.shape
        lines, places = self._tile_place()
        sums: list[tuple[str, int]] = [("t", t.outputs)]
        if shape.axes == 3:
            sums.append(("f", t.tiles * t.outputs))

        def pointer(name: str) -> str:
            strides = [axis.get(name, 0) for axis in self.axes]
            parts = [(n, strides[a] * (t.m if a > 1 else 1)) for n, a in places]
            if shape.axes == 3:
                parts.append((self._frame, strides[1]))
            return terms(name, *parts)

        has_bias = self.bias is not None
        names = self.fused.tile_operands(has_bias)[2:]
        args = ", ".join([terms("sums", *sums), *map(pointer, names)])
        ends = ", from, to" if self.by_panels else ""
        sides = ", ".join(self._side(axis, places) for axis in (2, 3))
        whole: Block = f"@KERNEL@_output({args}{ends});"
        part: Block = f"@KERNEL@_output_part({args}, {sides}{ends});"
        if len(self._variants) == 1:
            return self._each_tile("frames", [*lines, part if self._variants[0] else whole])
        tests = [
            f"{name} < {shape.out[axis - 1] // t.m}"
            for name, axis in places
            if axis > 1 and shape.out[axis - 1] % t.m
        ]
        choice: list[Block] = [
            {"head": f"if ({' && '.join(tests)}) {{", "body": [whole]},
            {"head": "else {", "body": [part]},
        ]
        return self._each_tile("frames", [*lines, *choice])

    def _side(self, axis: int, places: list[tuple[str, int]]) -> str:
        """Rows or columns that the map has of a tile, as C."""
        extent, m = self.shape.out[axis - 1], self.tiling.m
        name = next((n for n, a in places if a == axis), None)
        if name is None:
            return str(min(extent, m))
        if extent % m == 0:
            return str(m)
        return f"{name} < {extent // m} ? {m} : {extent % m}"


def _run_lines(first: str, count: str, index: str, runs: tuple[Run, ...]) -> list[Block]:
    """C of the first element and the number of elements of piece ``index``."""
    size = runs[0].size
    if len(runs) == 1:
        start = [f"const int32_t {first} = {index} * {size};"] if runs[0].count > 1 else []
        return [*start, f"const int32_t {count} = {size};"]
    larger = runs[0].count
    before = f"({index} < {larger} ? {index} : {larger})"
    return [
        f"const int32_t {first} = {index} * {size - 1} + {before};",
        f"const int32_t {count} = {index} < {larger} ? {size} : {size - 1};",
    ]


def _names(m: int) -> dict[str, Any]:
    """C variables of the transforms."""
    points, outputs = range(m + 2), range(m)

    def listed(form: str, indices: range, fixed: int = 0) -> str:
        return ", ".join(form.format(n, fixed) for n in indices)

    return {
        "parameters": listed("vf d{0}", points),
        "results": listed("vf *o{0}", points),
        "part_results": listed("vf *o{0}", outputs),
        "row": [listed("t{1}_{0}", points, i) for i in points],
        "to_row": [listed("&t{1}_{0}", points, i) for i in points],
        "to_column": [listed("&t{0}_{1}", points, j) for j in points],
        "to_part_row": [listed("&t{1}_{0}", outputs, i) for i in outputs],
        "to_part_column": [listed("&t{0}_{1}", outputs, j) for j in points],
    }
