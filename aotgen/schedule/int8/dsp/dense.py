"""qconv and qmatmul of int8 on the DSP extension (Cortex-M4, M7): patches of four pixels, widened
to int16, times a stream of packed weights.

One routine in assembly computes the products of all convolutions; what gathers its patches is C
whose extents are fields of a struct, so that layers of a kind are one function however a project is
optimised, and a patch is all the scratch there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Arg,
    Config,
    Kernel,
    Knob,
    Need,
    PackedConst,
    Routine,
    View,
    Views,
)
from aotgen.schedule.conv.conv_shape import ConvShape, Triple
from aotgen.schedule.int8.dsp.operands import (
    I32,
    Channels,
    Scaling,
    channels_of,
    scaling_of,
    why_not_dsp,
)
from aotgen.schedule.int8.dsp.tiles import (
    QUAD,
    Products,
    biases_fit,
    clamp_words,
    expand,
    gemm1,
    gemm1_instructions,
    gemm4,
    gemm4_instructions,
    gemv,
    gemv_instructions,
    pairs_fit,
    stream,
    vector_scale,
    vector_stream,
    vector_unroll,
)
from aotgen.schedule.int8.quantized import (
    ConstantWeights,
    as_conv,
    group_count,
    known_zero,
    reduction,
)
from aotgen.target.target import Target

Method = Literal["rows", "words", "band", "vector"]
"""How pixels become patches, see templates/kernels/int8_dsp_dense.c.j2."""

PIXELS = 4
"""Of a patch."""

UNROLL = (4, 8)
"""Pairs of reduction steps in a loop."""

WIDENED_BYTES = 2048
"""Most scratch for a widened vector; longer ones are widened in the loop, for each four outputs."""

FIELDS = {
    "band_rows": "rows of the band",
    "channels": "of the input, of a group",
    "columns": "of the input in a row of the band",
    "constant": "2^(shift - 1) + (zero point << shift)",
    "depth": "reduction steps of a patch",
    "dilation_h": "rows between taps",
    "dilation_w": "columns between taps",
    "end_h": "first row of outputs below those",
    "end_w": "first column of outputs behind those",
    "even": "whether output pixels lie at one distance",
    "first_h": "first row of outputs whose windows lie inside the input",
    "first_w": "first column of outputs whose windows do",
    "groups": "of channels",
    "half_zero": "2 * output's zero point + 1",
    "high": "upper clamp, four times",
    "in_h": "rows of the input",
    "in_w": "columns of the input",
    "kernel_h": "taps along the height",
    "kernel_w": "taps along the width",
    "left": "columns of padding before the input",
    "line_step": "bytes from the runs of one call to the next ones",
    "lines": "calls that widen a window",
    "low": "lower clamp, four times",
    "multiplier": "of 2^31",
    "out_h": "rows of the output",
    "out_w": "columns of the output",
    "outputs": "output channels of a group",
    "pad": "the input's zero point",
    "pitch": "bytes of a row of the band",
    "rest": "whether the steps leave a remainder by the loop of one pixel",
    "run": "bytes that lie next to each other in a window, whole words",
    "run_step": "bytes from a run to the next one",
    "runs": "of a call",
    "shift": "to the right, less 1; or several, see the routine",
    "size": "reduction steps",
    "skip": "pairs of steps that the loop of four pixels leaves out in its first round",
    "stride_h": "rows from window to window",
    "stride_w": "columns from window to window",
    "top": "rows of padding above the input",
    "w_group": "words of weights of a group",
    "x_image": "bytes from image to image",
    "x_pixel": "bytes from pixel to pixel",
    "x_row": "bytes from row to row",
    "y_image": "bytes from output image to image",
    "y_pixel": "bytes from output pixel to pixel",
    "y_row": "bytes from output row to row",
}
"""What the fields of the kernels' structs mean, all int32."""


class Int8DspDense(ConstantWeights):
    """Convolutions and matrix products of int8 with constant weights on the DSP extension."""

    name = "int8_dsp_dense"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not_dsp(group, target)
        if reason is not None:
            return reason
        node = group.nodes[0]
        if node.op == "qconv" and ConvShape.of(as_conv(node)).axes > 2:
            return "needs at most two spatial axes"
        if not biases_fit(channels_of(node)):
            return "needs biases of 24 bits"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (Knob("unroll", "ordinal", UNROLL, "pairs of reduction steps"),)

    def default(self, group: Group, target: Target) -> Config:
        return Config.of(unroll=UNROLL[0] if target.optimize == "flash" else UNROLL[1])

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        node = group.nodes[0]
        return {node.input(0).name: Need(unit_inner=True, even_rows=node.op == "qmatmul")}

    def products(self, target: Target) -> float:
        return 1.0

    def cost(self, group: Group, target: Target, config: Config) -> float:
        node = group.nodes[0]
        dense = tuple(View.dense(v.shape, v.dtype) for v in (node.input(0), node.output))
        return _Layer.of(node, target, config, *dense).instructions() * INSTRUCTION_SECONDS

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        layer = _Layer.of(node, target, config, views[node.input(0)], views[group.output])
        fields = layer.fields()
        shape = np.array(list(fields.values()), np.int64).astype(np.int32)
        args = [
            Arg("x", "const int8_t *", value=node.input(0)),
            Arg("w", "const int32_t *", const=PackedConst("w", layer.weights, node.input(1))),
            Arg("shape", "const int32_t *", const=PackedConst("shape", shape)),
        ]
        if layer.scratch_bytes:
            args.append(Arg("patch", "int32_t *", scratch_bytes=layer.scratch_bytes))
        args.append(Arg("y", "int8_t *", value=group.output, is_output=True))
        text = render(
            "kernels/int8_dsp_dense.c.j2",
            method=layer.method,
            fields=[(name, FIELDS[name]) for name in fields],
            scale=layer.products.scale,
            direct=layer.direct,
            four=layer.pixels >= PIXELS,
            grouped=layer.groups > 1,
            params=", ".join([*(f"{a.ctype}{a.name}" for a in args), "int32_t r0", "int32_t r1"]),
        )
        return Kernel(
            f"{node.op}_i8_dsp_{layer.method}_{layer.products.suffix}",
            text,
            tuple(args),
            layer.rows,
            includes=frozenset({"string.h"} if layer.method == "band" else ()),
            grain=PIXELS if layer.method == "rows" else 1,
            routines=layer.routines(),
        )


@dataclass(frozen=True)
class _Layer:
    """A node on views, and how it is computed.

    Attributes:
        channels, scaling: the node's constants.
        conv: a product of matrices as a convolution of one column.
        products: which variants of the routines.
        groups: of channels.
        run: steps that lie next to each other and are filled up to what is widened together.
        depth: reduction of a group with all runs filled up.
        direct: whether a vector is widened in the loop.
    """

    node: Node
    x: View
    y: View
    channels: Channels
    scaling: Scaling
    conv: ConvShape
    method: Method
    products: Products
    groups: int
    run: int
    depth: int
    direct: bool

    @classmethod
    def of(cls, node: Node, target: Target, config: Config, x: View, y: View) -> _Layer:
        conv = _geometry(node)
        channels, scaling = channels_of(node), scaling_of(node)
        groups, depth = group_count(node), reduction(node)
        scale = scaling.kind
        if scale == "relu" and target.optimize == "flash":
            scale = "linear"  # one instruction an output more, and one function for both
        packed = scale != "any" and pairs_fit(channels, groups)
        products = Products(packed, scale, config.int("unroll"))
        method = _method(node, conv, channels, x, y)
        multiple = 2 * QUAD if method == "vector" else QUAD
        run = depth
        if method in ("words", "band"):
            per_pixel = depth // conv.taps
            apart = conv.dilation[2] > 1 or (method == "words" and x.strides[-2] != per_pixel)
            run = per_pixel if apart else per_pixel * conv.kernel[2]
        rounded = depth // run * (-(-run // multiple) * multiple)
        lean = target.optimize != "speed" or 2 * rounded > WIDENED_BYTES
        direct = method == "vector" and rounded == depth and lean
        return cls(
            node, x, y, channels, scaling, conv, method, products, groups, run, rounded, direct
        )  # fmt: skip

    @property
    def pixels(self) -> int:
        return math.prod(self.node.output.shape[:-1])

    @property
    def outputs(self) -> int:
        """Of a group."""
        return self.node.output.shape[-1] // self.groups

    @property
    def rows(self) -> int:
        """Units of the kernel: pixels, or rows of a convolution's output."""
        if self.method in ("rows", "vector"):
            return self.pixels
        return self.conv.batch * self.conv.out[1]

    @property
    def scratch_bytes(self) -> int:
        if self.method == "vector":
            return 0 if self.direct else 2 * self.depth
        patch = 2 * self.depth * (PIXELS if self.pixels >= PIXELS else 1)
        if self.method == "rows":
            return patch
        more = self._band_rows * self._pitch if self.method == "band" else self._channels
        return 2 * self.depth * PIXELS + more

    @property
    def _channels(self) -> int:
        """Input channels of a group."""
        return self.node.input(0).shape[-1] // self.groups

    @property
    def _width(self) -> int:
        """Columns that a row of outputs reads."""
        return self.conv.reach(2, self.conv.out[2])

    @property
    def _pitch(self) -> int:
        """Bytes of a row of a band: whole words, of which the last run may read one too far."""
        size = self._width * self._channels + QUAD - 1
        return -(-size // QUAD) * QUAD

    @property
    def _band_rows(self) -> int:
        """Rows of input that four pixels read, which may lie in several rows of the output."""
        width = self.conv.out[2]
        crosses = self.y.has_even_rows and width % PIXELS != 0
        return self.conv.reach(1, 1 + (-(-(PIXELS - 1) // width) if crosses else 0))

    @cached_property
    def weights(self) -> I32:
        """The stream of all groups."""
        channels = self.channels
        if self.method == "band" and self.run % QUAD:
            count, depth = channels.weights.shape
            runs = np.zeros((count, depth // self.run, -(-self.run // QUAD) * QUAD), np.int8)
            runs[:, :, : self.run] = channels.weights.reshape(count, -1, self.run)
            channels = replace(channels, weights=runs.reshape(count, -1))
        if self.method == "vector":
            return vector_stream(channels, self.products)
        zero, n = self.scaling.zero, self.outputs
        groups = [slice(g * n, (g + 1) * n) for g in range(self.groups)]
        return np.concatenate([stream(channels, own, self.products, zero) for own in groups])

    def routines(self) -> tuple[Routine, ...]:
        if self.method == "vector":
            product = gemv(self.products, direct=self.direct)
            return (product,) if self.direct else (expand(1), product)
        one = (expand(1), gemm1(self.products))
        if self.method == "rows" and self.pixels < PIXELS:
            return one
        return (expand(4), gemm4(self.products), *one)

    def fields(self) -> dict[str, int]:
        """The struct that the kernel's C declares, in order."""
        scaling = self.scaling
        low, high = clamp_words(scaling.lo, scaling.hi)
        clamp = {"low": low, "high": high} if self.products.any_scale else {}
        if self.method == "vector":
            scale = vector_scale(self.channels, self.products, scaling.zero)
            multiplier, constant, shift = scale
            rounds = self.depth // (2 * QUAD)
            return {
                "size": reduction(self.node),
                "depth": self.depth,
                "outputs": self.outputs,
                "multiplier": multiplier,
                "constant": constant,
                "shift": shift,
                "rest": rounds % vector_unroll(self.products),
                **clamp,
            }
        steps = self.depth // 2
        common = {
            "depth": self.depth,
            "half_zero": scaling.half_zero,
            "skip": -steps % self.products.unroll,
            "rest": steps // 2 % 2,
            **clamp,
        }
        if self.method == "rows":
            return {
                "x_pixel": self.x.row_stride,
                "y_pixel": self.y.row_stride,
                "outputs": self.outputs,
                **common,
            }
        return {**common, **self._window()}

    def _window(self) -> dict[str, int]:
        """Fields of a convolution's window: ``lines`` of ``runs`` each are what is widened."""
        conv = self.conv
        xs, ys = self._strides(self.x, conv.size), self._strides(self.y, conv.out)
        zero = int(known_zero(self.node, 3)[0])
        channels = self._channels
        window = {
            "channels": channels,
            "outputs": self.outputs,
            "x_image": xs[0],
            "x_row": xs[1],
            "x_pixel": xs[2],
            "y_image": ys[0],
            "y_row": ys[1],
            "y_pixel": ys[2],
            "even": int(self.y.has_even_rows),
            "in_h": conv.size[1],
            "out_h": conv.out[1],
            "out_w": conv.out[2],
            "stride_h": conv.stride[1],
            "stride_w": conv.stride[2],
            "top": conv.begin[1],
            "left": conv.begin[2],
        }
        if self.groups > 1:
            window |= {"groups": self.groups, "w_group": len(self.weights) // self.groups}
        row, pixel = xs[1], xs[2]
        if self.method == "band":
            row, pixel = self._pitch, channels
            window |= {
                "columns": max(0, min(conv.size[2], self._width - conv.begin[2])),
                "band_rows": self._band_rows,
                "pitch": self._pitch,
                "pad": clamp_words(zero, zero)[0],
            }
        else:
            first_h, end_h = conv.inside(1)
            first_w, end_w = conv.inside(2)
            window |= {
                "in_w": conv.size[2],
                "kernel_h": conv.kernel[1],
                "kernel_w": conv.kernel[2],
                "dilation_h": conv.dilation[1],
                "dilation_w": conv.dilation[2],
                "first_h": first_h,
                "end_h": end_h,
                "first_w": first_w,
                "end_w": end_w,
                "pad": zero,
            }
        row, pixel = row * conv.dilation[1], pixel * conv.dilation[2]
        merged = self.run != channels or conv.kernel[2] == 1
        return window | {
            "run": -(-self.run // QUAD) * QUAD,
            "runs": conv.kernel[1] if merged else conv.kernel[2],
            "run_step": row if merged else pixel,
            "lines": 1 if merged else conv.kernel[1],
            "line_step": 0 if merged else row,
        }

    def _strides(self, view: View, size: Triple) -> Triple:
        """From image to image, row to row and pixel to pixel of (depth, height, width); of pixels
        that lie evenly as their distance has it, whatever the stride of an axis of one element.
        """
        if self.node.op == "qmatmul" or view.has_even_rows:
            pixel = view.row_stride
            return size[1] * size[2] * pixel, size[2] * pixel, pixel
        _, row, pixel = self.conv.spatial_strides(view)
        return view.strides[0], row, pixel

    def instructions(self) -> float:
        """Executed by all rows, about."""
        if self.method == "vector":
            return gemv_instructions(self.products, self.depth, self.outputs, direct=self.direct)
        tiles, left = divmod(self.pixels, PIXELS)
        four = gemm4_instructions(self.products, self.depth, self.outputs)
        one = gemm1_instructions(self.products, self.depth, self.outputs)
        four += 18 * self.depth // QUAD + 30
        one += 7 * self.depth // QUAD + 30
        if self.method != "rows":
            runs = self.depth // (-(-self.run // QUAD) * QUAD)
            four, one = four + 10 * runs + 60, one + 20 * runs + 60
        copied = 0
        if self.method == "band":
            filled = 1 + (self.conv.kernel[1] - 1) // self.conv.stride[1]
            apart = self._width * (14 + self._channels) if self.groups > 1 else 0
            rows = filled * self.conv.batch * self.conv.out[1]
            copied = rows * (2 * self._pitch + apart)
        return self.groups * (tiles * four + left * one + copied)


def _geometry(node: Node) -> ConvShape:
    if node.op == "qconv":
        return ConvShape.of(as_conv(node))
    column = (1, math.prod(node.output.shape[:-1]), 1)
    ones, none = (1, 1, 1), (0, 0, 0)
    channels, outputs = node.input(0).shape[-1], node.output.shape[-1]
    return ConvShape(1, column, column, ones, ones, ones, none, none, channels, outputs, 1, 2)


def _method(node: Node, conv: ConvShape, channels: Channels, x: View, y: View) -> Method:
    depth, pixels = reduction(node), math.prod(node.output.shape[:-1])
    if node.op == "qmatmul" and pixels == 1:
        # Two channels alone are half of a round, but one needs its vector widened as a whole.
        few = node.output.shape[-1] <= 2 and 2 * depth <= WIDENED_BYTES and depth % QUAD == 0
        if not few and _have_one_scale(channels):
            return "vector"
    flat = conv.maps_pixels and conv.groups == 1
    even = node.op == "qmatmul" or (x.has_even_rows and y.has_even_rows)
    if flat and even and depth % QUAD == 0:
        return "rows"
    return "band" if depth // conv.taps % QUAD else "words"


def _have_one_scale(channels: Channels) -> bool:
    columns = (channels.multiplier, channels.right, channels.left)
    return all(len(set(column.tolist())) == 1 for column in columns)
