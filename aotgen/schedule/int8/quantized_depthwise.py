"""qconv on one input channel an output: a vector of channels at a time, no scratch."""

from __future__ import annotations

import math

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Config, Kernel, Knob, PackedConst, Views
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.int8.quantized import (
    ConstantWeights,
    as_conv,
    channel_args,
    is_wide,
    known_zero,
    operands_of,
    requant_text,
    requant_words,
    title,
    why_not,
)
from aotgen.target.target import Target

_LOADS = {DType.I8: "s8", DType.U8: "u8", DType.I16: "s16"}
"""What the words that load a vector of each type end in."""


def _is_depthwise(node: Node) -> bool:
    if node.op != "qconv" or len(node.input(0).shape) > 4:
        return False
    channels = node.input(0).shape[-1]
    return bool(node.attrs["groups"] == channels == node.output.shape[-1] and channels > 1)


class QuantizedDepthwise(ConstantWeights):
    """Depthwise convolutions of 8- and 16-bit integers with one or two spatial axes."""

    name = "quantized_depthwise"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not(group, target)
        if reason is not None:
            return reason
        node = group.nodes[0]
        if not _is_depthwise(node) or node.input(0).dtype not in _LOADS:
            return "needs a depthwise convolution of int8, uint8 or int16"
        zero = node.optional(3)
        if zero is not None and not zero.is_const:
            return "needs a constant zero point"
        largest = (32768 + abs(int(known_zero(node, 3)[0]))) * 128
        if is_wide(node) and math.prod(node.input(1).shape[1:-1]) * largest >= 1 << 31:
            return "int32 does not hold the sum of so many taps"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return ()

    def default(self, group: Group, target: Target) -> Config:
        return Config()

    def products(self, target: Target) -> float:
        return 0.25

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        shape = ConvShape.of(as_conv(node))
        xs, ys = shape.spatial_strides(x), shape.spatial_strides(y)
        # x less its zero point is taken in the kernel, where pads add nothing.
        operands = operands_of(node, fold=False)
        channels = shape.channels
        wide = max(channels, target.vl)
        weights = np.zeros((shape.taps, wide), np.int8)
        weights[:, :channels] = operands.weights.T
        inside = [shape.inside(i) for i in (1, 2)]
        taps = [
            (h * shape.dilation[1], w * shape.dilation[2])
            for h in range(shape.kernel[1])
            for w in range(shape.kernel[2])
        ]
        fits = len(taps) + 8 <= target.vector_registers or len(taps) <= 9
        fits = fits and all(first < end for first, end in inside)  # else all windows have pads
        args = [
            Arg("x_", f"const {x.dtype.c} *", value=node.input(0)),
            Arg("w", "const int8_t *", const=PackedConst("w", weights.reshape(-1), node.input(1))),
        ]
        args += channel_args(node, operands, 1, wide)
        args.append(Arg("y_", f"{y.dtype.c} *", value=group.output, is_output=True))
        parameters = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/quantized_depthwise.c.j2",
            title=title(group),
            params=", ".join([*parameters, "int32_t r0", "int32_t r1"]),
            load=_LOADS[x.dtype],
            wide=is_wide(node),
            bias=operands.bias is not None,
            share=operands.share is not None,
            requant=requant_text(node),
            bits=y.dtype.size * 8,
            xtype=x.dtype.c,
            ytype=y.dtype.c,
            zero=int(known_zero(node, 3)[0]),
            kernel=shape.kernel[1:],
            stride=shape.stride[1:],
            dilation=shape.dilation[1:],
            begin=shape.begin[1:],
            size=shape.size[1:],
            out=shape.out[1:],
            inside=inside,
            unrolled=taps if fits else [],
            channels=channels,
            padded=wide,
            few=channels < target.vl,
            x_batch=x.strides[0],
            x_row=xs[1],
            x_pixel=xs[2],
            y_batch=y.strides[0],
            y_row=ys[1],
            y_position=f"ow * {ys[2]}",
        )
        name = f"{node.op}_{x.dtype.value}_depthwise"
        units = shape.batch * shape.out[1]
        return Kernel(name, text, tuple(args), units, requant_words(node))
