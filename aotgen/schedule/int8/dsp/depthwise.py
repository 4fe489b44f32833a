"""qconv on one input channel an output, int8, on the DSP extension (Cortex-M4, M7).

An output channel reads one input channel, of which several may read the same.

Four channels at a time are widened into planes of int16 in scratch, with their pads, from which an
assembly function (``int8_dsp_depthwise_rows``) computes a channel after the other. A plane has the
input of a band of output rows. Since a band's input is read before its output is written, and later
bands find what they share with it in the plane, a convolution of stride 1 may overwrite its input;
its rows are blocks of channels then.

A dilated kernel of stride 1 is one without dilation for each of the grids of pixels that it falls
into. What is one row is folded in two: its pairs of pixels are the rows of a plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Value
from aotgen.ir.types import Array
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    Need,
    PackedConst,
    Routine,
    Template,
    Views,
)
from aotgen.schedule.int8.dsp.depthwise_assembly import GEOMETRY, STACK_BYTES, instructions
from aotgen.schedule.int8.dsp.depthwise_assembly import text as assembly
from aotgen.schedule.int8.dsp.depthwise_planes import (
    CHANNELS,
    DepthwiseLayer,
    Grid,
    depthwise_shape,
    reads_one_channel,
)
from aotgen.schedule.int8.dsp.depthwise_rows import MOST_ROWS, PARAMETERS, DepthwiseRows
from aotgen.schedule.int8.dsp.operands import (
    Channels,
    channels_of,
    rounding_constant,
    scaling_of,
    why_not_dsp,
)
from aotgen.schedule.int8.quantized import known_zero, title
from aotgen.target.target import Target

PLANE_BYTES = tuple(n << k for k in range(7, 13) for n in (4, 5, 6, 7))
"""Values of the knob of this name: what the planes may take."""

LEAST_PLANE_BYTES = {"speed": 2048, "flash": 2048, "ram": 1024}
MOST_PLANE_BYTES = {"speed": 8192, "flash": 8192, "ram": 1024}
"""By default, within these: a ``_SHARE`` of what input and output take."""

_SHARE = 8

MOST_STRIDE = 8

MOST_LEFT = 7
"""Weights, doubled and shifted left, are int16."""

NO_TAP = 255
"""In the compact form's list of taps."""

FIELDS = {
    "channels": "of the input",
    "multiplier": "output channels that read the same one",
    "planes": "how many channels are widened together",
    "out_rows": "rows of the output",
    "out_width": "columns of the output",
    "x_row": "bytes from row to row",
    "x_pixel": "bytes from pixel to pixel",
    "y_row": "bytes from output row to row",
    "y_pixel": "bytes from output pixel to pixel",
    "width": "columns of pixels in a plane",
    "left": "columns of padding in front of them",
    "row_first": "first row of the padded input that is not padding",
    "row_last": "the row behind the last such one",
    "stride": "rows of a plane from output row to row",
    "kernel": "rows of a plane that an output row reads",
    "block": "output rows that the assembly computes together",
    "columns": "pairs of columns of a plane",
    "plane_rows": "words from one of them to the next",
    "band": "output rows whose input a plane holds",
    "channel_words": "of parameters and weights",
    "taps": "of the kernel",
    "zero": "the input's zero point, which is the padding",
    "half_zero": "2 * output's zero point + 1",
    "lo": "lower clamp",
    "hi": "upper clamp",
}
LINE_FIELDS = {
    "line_left": "pixels of padding in front of the line",
    "line_width": "pixels of the line",
    "half_row": "whether the last pair of outputs is a single one",
}
"""What the fields of the struct of extents mean, all int32. An image of one row that is folded in
two is one with a pair of columns, whose rows are pairs of pixels; it has ``LINE_FIELDS`` too."""

_WIDEN = 5.0
"""Instructions a word of a plane."""


class Int8DspDepthwise(Template):
    """Depthwise convolutions of int8 with one or two spatial axes."""

    name = "int8_dsp_depthwise"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if node.op != "qconv" or len(node.input(0).shape) > 4:
            return "needs a convolution with one or two spatial axes"
        if not reads_one_channel(depthwise_shape(node)):
            return "needs outputs that read one input channel"
        reason = why_not_dsp(group, target)
        if reason is not None:
            return reason
        layer = DepthwiseLayer.of(node, target)
        shape = layer.shape
        if layer.rows.high > MOST_ROWS or layer.rows.columns > MOST_ROWS:
            return f"needs a kernel of at most {MOST_ROWS} x {2 * MOST_ROWS}"
        if max(shape.stride) > MOST_STRIDE:
            return f"needs a stride of at most {MOST_STRIDE}"
        if max(shape.stride) > 1 and max(shape.dilation) > 1:
            return "needs stride 1 where the kernel is dilated"
        if channels_of(node).left.max() > MOST_LEFT:
            return f"needs shifts to the left by at most {MOST_LEFT}"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (Knob("plane_bytes", "ordinal", PLANE_BYTES, "bytes"),)

    def default(self, group: Group, target: Target) -> Config:
        node = group.nodes[0]
        wanted = (node.input(0).type.nbytes + group.output.type.nbytes) // _SHARE
        least, most = LEAST_PLANE_BYTES[target.optimize], MOST_PLANE_BYTES[target.optimize]
        size = min(max(wanted, least), most)
        return Config.of(plane_bytes=max(n for n in PLANE_BYTES if n <= size))

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        """The smallest bound that gives the same planes."""
        layer, size = DepthwiseLayer.of(group.nodes[0], target), config.int("plane_bytes")
        planes = layer.planes(size)
        same = next(n for n in PLANE_BYTES if n == size or layer.planes(n) == planes)
        return Config.of(plane_bytes=same)

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {group.nodes[0].input(0).name: Need(unit_inner=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def may_alias(self, group: Group, value: Value) -> Alias:
        node = group.nodes[0]
        shape = depthwise_shape(node)
        stays = max(*shape.stride, *shape.dilation) == 1 and shape.size == shape.out
        stays = stays and shape.outputs == shape.channels
        return "same_index" if value is node.input(0) and stays else "none"

    def cost(self, group: Group, target: Target, config: Config) -> float:
        layer = DepthwiseLayer.of(group.nodes[0], target)
        shape, rows = layer.shape, layer.rows
        total = 0.0
        for grid, planes in zip(layer.grids, layer.planes(config.int("plane_bytes")), strict=True):
            high, wide = (-(-grid.out[1] // 2), 2) if rows.folded else grid.out
            for first in range(0, high, planes.band):
                band = min(planes.band, high - first)
                words = planes.columns * ((band - 1) * rows.down + rows.high)
                total += shape.channels * words * _WIDEN + shape.outputs * instructions(
                    rows, band, wide
                )
        return shape.batch * total * INSTRUCTION_SECONDS

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        return _Writer(group, target, config, views).kernel()


class _Writer:
    """Renders one kernel."""

    def __init__(self, group: Group, target: Target, config: Config, views: Views) -> None:
        self.group, self.config = group, config
        self.node = group.nodes[0]
        self.views = views
        self.x, self.y = views[self.node.input(0)], views[group.output]
        self.layer = DepthwiseLayer.of(self.node, target)
        self.shape, self.rows = self.layer.shape, self.layer.rows
        self.grids, self.planes = self.layer.grids, self.layer.planes(config.int("plane_bytes"))
        self.flash = target.optimize == "flash"
        self.channels = channels_of(self.node)
        self.compact = self.flash and is_compact(self.channels)
        self.inplace = views.inplace is not None
        self.by_channels = self.inplace or self.rows.folded
        self.fields = fields(self.rows.folded)

    def kernel(self) -> Kernel:
        args = self.args()
        blocks = -(-self.shape.channels // CHANNELS)
        text = render(
            "kernels/int8_dsp_depthwise.c.j2",
            title="A depthwise convolution with constant weights"
            if self.flash
            else title(self.group),
            params=", ".join([*(f"{a.ctype}{a.name}" for a in args), "int32_t r0", "int32_t r1"]),
            fields=self.fields,
            shapes=None if self.flash else [self.extents(i) for i in range(len(self.grids))],
            grids=[self.call(g) for g in self.grids],
            dilation=self.shape.dilation[1],
            batch=self.shape.batch,
            x_batch=self.x.strides[0],
            y_batch=self.y.strides[0],
            out_rows=self.shape.out[1],
            out_rows_field=list(FIELDS).index("out_rows"),
            rows=self.rows_routine().name,
            in_place=self.inplace,
            by_channels=self.by_channels,
            taps=self.tap_list() if self.compact else None,
            driver=self.driver().name,
        )
        rows = blocks if self.by_channels else self.shape.batch * self.shape.out[1]
        return Kernel(
            "qconv_i8_dsp_depthwise",
            text,
            tuple(args),
            rows,
            by_rows=not self.by_channels,
            routines=(widen(), self.rows_routine(), self.driver()),
        )

    def args(self) -> list[Arg]:
        scratch = max(p.bytes for p in self.planes)
        if self.compact:
            scratch += 4 * self.rows.parameter_words
        ctype = "const int32_t *" if self.compact else "const uint32_t *"
        made = [Arg("channels", ctype, const=PackedConst("channels", self.packed()))]
        if self.compact:
            weights = self.channels.weights.reshape(-1)
            made.append(
                Arg("w", "const int8_t *", const=PackedConst("w", weights, self.node.input(1)))
            )
        if self.flash:
            table = [list(self.extents(i).values()) for i in range(len(self.grids))]
            array = np.asarray(table, np.int32).reshape(-1)
            made.append(Arg("shape", "const int32_t *", const=PackedConst("shape", array)))
        if not self.inplace:
            made.insert(0, Arg("x", "const int8_t *", value=self.node.input(0)))
        name = "io" if self.inplace else "y"
        made.append(Arg(name, "int8_t *", value=self.group.output, is_output=True))
        made.append(Arg("planes", "uint32_t *", scratch_bytes=scratch))
        return made

    def packed(self) -> Array:
        return pack_compact(self.channels) if self.compact else pack(
            self.channels, self.rows, scaling_of(self.node).zero
        )  # fmt: skip

    def tap_list(self) -> list[int]:
        return [NO_TAP if t is None else t for pair in self.rows.pairs for t in pair]

    def call(self, grid: Grid) -> dict[str, int]:
        """Where a grid begins in the tensors and among the rows."""
        (x_row, x_pixel), (y_row, y_pixel) = map(self.layer.strides, (self.x, self.y))
        lone = grid.begin[1] % 2 if self.rows.folded else 0
        return {
            "x": grid.x[0] * x_row + (grid.x[1] + lone * self.shape.dilation[2]) * x_pixel,
            "y": grid.first[0] * y_row + grid.first[1] * y_pixel,
            "first": grid.first[0],
        }

    def extents(self, index: int) -> Mapping[str, int]:
        """The struct of a grid, in the order of ``fields``."""
        grid, planes, rows = self.grids[index], self.planes[index], self.rows
        (x_row, x_pixel), (y_row, y_pixel) = map(self.layer.strides, (self.x, self.y))
        down, along = self.shape.dilation[1:]
        left = grid.begin[1]
        width = grid.size[1] if rows.folded else min(grid.size[1], 2 * planes.columns - left)
        if min(width, grid.size[0]) <= 0:  # all pads
            left = width = 0
        scaling = scaling_of(self.node)
        values = {
            "channels": self.shape.channels,
            "multiplier": self.shape.outputs // self.shape.channels,
            "planes": planes.count,
            "out_rows": grid.out[0],
            "out_width": grid.out[1],
            "x_row": x_row * down,
            "x_pixel": x_pixel * along,
            "y_row": y_row * down,
            "y_pixel": y_pixel * along,
            "width": width,
            "left": left,
            "row_first": grid.begin[0],
            "row_last": grid.begin[0] + (grid.size[0] if width else 0),
            "stride": rows.down,
            "kernel": rows.high,
            "block": rows.rows,
            "columns": planes.columns,
            "plane_rows": planes.rows,
            "band": planes.band,
            "channel_words": rows.parameter_words,
            "taps": self.shape.taps,
            "zero": int(known_zero(self.node, 3)[0]),
            "half_zero": scaling.half_zero,
            "lo": scaling.lo,
            "hi": scaling.hi,
        }
        if rows.folded:
            values |= {
                "out_rows": -(-grid.out[1] // 2),
                "out_width": 2,
                "x_row": 2 * x_pixel * along,
                "y_row": 2 * y_pixel * along,
                "width": 2,
                "left": 0,
                "row_first": (left + 1) // 2,
                "row_last": (left + width) // 2,
                "line_left": left,
                "line_width": width,
                "half_row": grid.out[1] % 2,
            }
        assert list(values) == list(self.fields)
        return values

    def rows_routine(self) -> Routine:
        return rows_routine(self.rows)

    def driver(self) -> Routine:
        return driver(self.compact, self.rows.folded)


def fields(line: bool) -> dict[str, str]:
    """Of the struct of extents, in order, and what they mean."""
    return FIELDS | LINE_FIELDS if line else FIELDS


def is_compact(channels: Channels) -> bool:
    """Whether a channel is 8 bytes and its weights."""
    fits = np.abs(channels.bias.astype(np.int64)).max() < 1 << 23
    plain = not channels.left.any() and channels.right.min() > 0
    return bool(fits and plain and channels.weights.shape[1] < NO_TAP)


def pack(
    channels: Channels, rows: DepthwiseRows, zero: int
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A channel's ``PARAMETERS``, then its words of weights. Sums are doubled, and shifted left."""
    scale = 2 << channels.left.astype(np.int64)
    taps = np.concatenate(
        [channels.weights * scale[:, None], np.zeros((len(scale), 1), np.int64)], axis=1
    )
    none = taps.shape[1] - 1
    lows = [none if low is None else low for low, _ in rows.pairs]
    highs = [none if high is None else high for _, high in rows.pairs]
    pairs = taps[:, lows] & 0xFFFF | (taps[:, highs] & 0xFFFF) << 16
    head = [
        channels.bias * scale,
        channels.multiplier.astype(np.int64),
        rounding_constant(channels.right, zero).astype(np.int64),
        channels.right.astype(np.int64),
    ]
    words = np.concatenate([np.stack(head, axis=1), pairs], axis=1)
    return (words & 0xFFFFFFFF).astype(np.uint32).reshape(-1)


def pack_compact(channels: Channels) -> np.ndarray[Any, np.dtype[np.int32]]:
    """bias << 8 | shift - 1, multiplier."""
    first = channels.bias.astype(np.int64) << 8 | (channels.right.astype(np.int64) - 1)
    words = np.stack([first, channels.multiplier.astype(np.int64)], axis=1)
    return words.astype(np.int32).reshape(-1)


@cache
def rows_routine(rows: DepthwiseRows) -> Routine:
    high, wide = rows.kernel
    prototype = (
        "void @ROUTINE@(const uint32_t *plane, const uint32_t *channel, int8_t *y, "
        "const void *geometry)"
    )
    text = render(
        "kernels/int8_dsp_depthwise_rows.c.j2",
        kernel=f"{high}x{wide}",
        stride=f"{rows.stride[0]}x{rows.stride[1]}",
        weights="in registers" if rows.is_resident else "loaded for each block of outputs",
        stack_bytes=STACK_BYTES,
        text=assembly(rows),
    )
    name = f"dsp_depthwise_{high}x{wide}_s{rows.stride[0]}{rows.stride[1]}_{rows.kind}"
    if rows.folded:
        name = f"dsp_depthwise_line{wide}_s{rows.stride[1]}_{rows.kind}"
    return Routine(name, prototype, text)


@cache
def widen() -> Routine:
    prototype = "void @ROUTINE@(uint32_t *planes, const int8_t *x, const void *extents)"
    text = render("kernels/int8_dsp_depthwise_widen.c.j2")
    return Routine("dsp_depthwise_widen", prototype, text)


@cache
def driver(compact: bool, line: bool) -> Routine:
    params = [
        "const int8_t *x", f"const {'int32_t' if compact else 'uint32_t'} *channels", "int8_t *y",
        "uint32_t *planes",
        "const int32_t *shape",
        "void (*rows)(const uint32_t *, const uint32_t *, int8_t *, const void *)",
        *(["const int8_t *w", "const uint8_t *taps"] if compact else []),
        "int32_t q0", "int32_t q1", "int32_t y0", "int32_t y1",
    ]  # fmt: skip
    prototype = f"void @ROUTINE@({', '.join(params)})"
    text = render(
        "kernels/int8_dsp_depthwise_planes.c.j2",
        prototype=prototype,
        fields=fields(line),
        geometry=GEOMETRY,
        compact=compact,
        line=line,
        no_tap=NO_TAP,
        parameters=len(PARAMETERS),
    )
    name = f"dsp_depthwise{'_line' if line else ''}{'_compact' if compact else ''}"
    return Routine(name, prototype, text, frozenset({"string.h"}))
