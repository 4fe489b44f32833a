"""qconv on one input channel an output, int8, few outputs and no pads, on the DSP extension.

Four channels of an output are summed tap by tap: a word of the input has them, which two SXTB16
turn into pairs of int16, and SMLABB and SMLATT multiply each with its weight. That is 2.3 to 2.8
instructions a product with nothing to prepare. ``int8_dsp_depthwise`` needs fewer where it computes
many outputs of a channel, whose widening into planes they share; the steps of a stream
(``aotgen.streaming``) have one or two.
"""

from __future__ import annotations

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import Array
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Arg,
    Config,
    Kernel,
    Knob,
    Need,
    PackedConst,
    Template,
    Views,
)
from aotgen.schedule.int8.dsp.depthwise_planes import depthwise_shape, reads_one_channel
from aotgen.schedule.int8.dsp.operands import (
    Channels,
    channels_of,
    rounding_constant,
    scaling_of,
    why_not_dsp,
)
from aotgen.schedule.int8.quantized import title
from aotgen.target.target import Target

CHANNELS = 4
"""Of an input word."""

_TAP = {True: 9.5, False: 11}
"""Instructions a tap of four channels, by whether weights are stored as int16."""

_LINE, _PIXEL = 8, 12
_BLOCK = {"speed": 51, "ram": 51, "flash": 95}
"""Instructions around a line of taps, an output pixel, four channels and their output: more where
extents come from memory."""


class Int8DspTaps(Template):
    """Depthwise convolutions of int8 whose windows lie inside the input."""

    name = "int8_dsp_depthwise_taps"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if node.op != "qconv" or len(node.input(0).shape) > 4:
            return "needs a convolution with one or two spatial axes"
        shape = depthwise_shape(node)
        if not reads_one_channel(shape) or shape.outputs != shape.channels:
            return "needs an output channel of each input channel"
        if shape.channels < CHANNELS:
            return f"needs {CHANNELS} channels"
        if any((*shape.begin, *shape.end)):
            return "needs windows inside the input"
        return why_not_dsp(group, target)

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return ()

    def default(self, group: Group, target: Target) -> Config:
        return Config()

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        return {group.nodes[0].input(0).name: Need(unit_inner=True)}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True)

    def cost(self, group: Group, target: Target, config: Config) -> float:
        shape = depthwise_shape(group.nodes[0])
        lines, taps = _lines(group.nodes[0])
        block = _BLOCK[target.optimize] + lines * (_LINE + taps * _TAP[_is_wide(target)])
        pixels = shape.batch * shape.out[1] * shape.out[2]
        return pixels * (_PIXEL + -(-shape.channels // CHANNELS) * block) * INSTRUCTION_SECONDS

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y, wide = node.input(0), group.output, _is_wide(target)
        flash = target.optimize == "flash"
        channels, scaling = channels_of(node), scaling_of(node)
        weights = _packed(channels, wide)
        wtype = "const uint32_t *" if wide else "const int8_t *"
        extents = _extents(node, views, scaling.kind == "any", (scaling.lo, scaling.hi))
        args = [
            Arg("x", "const int8_t *", value=x),
            Arg("weights", wtype, const=PackedConst("w", weights, node.input(1))),
            Arg("table", "const int32_t *", const=PackedConst("table", _table(node, channels))),
        ]
        if flash:
            values = np.asarray([value for _, value, _ in extents], np.int32)
            args.append(Arg("shape", "const int32_t *", const=PackedConst("shape", values)))
        args.append(Arg("y", "int8_t *", value=y, is_output=True))
        body = render(
            "kernels/int8_dsp_depthwise_taps.c.j2",
            title="A depthwise convolution with constant weights" if flash else title(group),
            params=", ".join([*(f"{a.ctype}{a.name}" for a in args), "int32_t r0", "int32_t r1"]),
            extents=extents,
            flash=flash,
            wide=wide,
            any=scaling.kind == "any",
            relu=scaling.kind == "relu",
        )
        shape = depthwise_shape(node)
        return Kernel("qconv_i8_dsp_taps", body, tuple(args), shape.batch * shape.out[1])


def _is_wide(target: Target) -> bool:
    """Whether weights are stored as int16, which saves two instructions of eleven."""
    return target.optimize == "speed"


def _lines(node: Node) -> tuple[int, int]:
    """(lines of a window, taps of one): a window of one column is one line."""
    _, high, wide = depthwise_shape(node).kernel
    return (1, high) if wide == 1 else (high, wide)


def _extents(
    node: Node, views: Views, clamps: bool, limits: tuple[int, int]
) -> list[tuple[str, int, str]]:
    """The kernel's extents in their order: name, value, meaning."""
    shape = depthwise_shape(node)
    x, y = views[node.input(0)], views[node.output]
    _, x_row, x_pixel = shape.spatial_strides(x)
    _, y_row, y_pixel = shape.spatial_strides(y)
    lines, taps = _lines(node)
    column = shape.kernel[2] == 1
    down, along = x_row * shape.dilation[1], x_pixel * shape.dilation[2]
    found = [
        ("channels", shape.channels, "of input and output"),
        ("out_rows", shape.out[1], "rows of the output"),
        ("out_width", shape.out[2], "columns of the output"),
        ("lines", lines, "of a window"),
        ("taps", taps, "of a line"),
        ("step", down if column else along, "bytes from tap to tap"),
        ("x_line", 0 if column else down, "bytes from line to line"),
        ("x_down", x_row * shape.stride[1], "bytes from window to window, downwards"),
        ("x_along", x_pixel * shape.stride[2], "and along a row"),
        ("x_batch", x.strides[0], "bytes from image to image"),
        ("y_row", y_row, "bytes from output row to row"),
        ("y_pixel", y_pixel, "bytes from output pixel to pixel"),
        ("y_batch", y.strides[0], "bytes from output image to image"),
    ]
    if clamps:
        found += [("lo", limits[0], "lower clamp"), ("hi", limits[1], "upper clamp")]
    return found


def _blocks(count: int) -> list[int]:
    """The first channel of each block of four; the last block ends with the last channel."""
    return [min(c, count - CHANNELS) for c in range(0, count, CHANNELS)]


def _packed(channels: Channels, wide: bool) -> Array:
    """int8 [block][tap][4], or of each tap the words of channels 0 and 2, 1 and 3."""
    taps = np.stack([channels.weights[c : c + CHANNELS].T for c in _blocks(len(channels.weights))])
    if not wide:
        return np.ascontiguousarray(taps).reshape(-1)
    pairs = taps.astype(np.int16)[..., [0, 2, 1, 3]]
    return np.ascontiguousarray(pairs).reshape(-1).view(np.uint32)


def _table(node: Node, channels: Channels) -> Array:
    """int32 [block][4][4]: bias, multiplier, C, and the shifts: of sums that only go right and are
    clamped by their type the right shift - 1, else the right one and (1 + the left one) << 8.
    """
    scaling = scaling_of(node)
    right = channels.right.astype(np.int64)
    shifts = right | (1 + channels.left.astype(np.int64)) << 8
    rows = np.stack(
        [
            channels.bias,
            channels.multiplier,
            rounding_constant(channels.right, scaling.zero),
            shifts if scaling.kind == "any" else right - 1,
        ],
        axis=1,
    ).astype(np.int32)
    return np.stack([rows[c : c + CHANNELS] for c in _blocks(len(rows))]).reshape(-1)
