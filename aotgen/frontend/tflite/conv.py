"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D and the transposed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aotgen.frontend.tflite import anchors, hybrid, scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType, Requant


@dataclass(frozen=True)
class Geometry:
    """A window's strides, dilations and pads (begins, then ends), an entry a spatial axis."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    def attributes(self, groups: int = 1) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "groups": groups,
        }


def total_padding(size: int, kernel: int, stride: int, dilation: int, same: bool) -> int:
    """Padding along an axis of ``size`` cells, none for VALID; of SAME's the odd cell goes to the
    end.
    """
    span = (kernel - 1) * dilation + 1
    return max(0, (-(-size // stride) - 1) * stride + span - size) if same else 0


def option_ints(node: TfliteNode, names: Sequence[str]) -> tuple[int, ...]:
    """Options that must be at least 1."""
    values = tuple(int(node.options[name]) for name in names)
    if min(values) < 1:
        node.refuse(f"{dict(zip(names, values, strict=True))} must be at least 1")
    return values


def is_same(node: TfliteNode) -> bool:
    """Whether padding is SAME, else VALID."""
    padding = node.options["padding"]
    if padding not in ("SAME", "VALID"):
        node.refuse(f"padding {padding} is not supported")
    return bool(padding == "SAME")


def geometry(
    node: TfliteNode, size: Sequence[int], kernel: Sequence[int], letters: str = "hw"
) -> Geometry:
    """The window of a convolution whose options have names for the axes ``letters``."""
    strides = option_ints(node, [f"stride_{a}" for a in letters])
    dilations = option_ints(node, [f"dilation_{a}_factor" for a in letters])
    same = is_same(node)
    totals = [
        total_padding(n, k, s, d, same)
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
    ]
    begins = tuple(t // 2 for t in totals)
    ends = tuple(t - b for t, b in zip(totals, begins, strict=True))
    return Geometry(strides, dilations, begins + ends)


def _operands(node: TfliteNode, x_at: int, w_at: int, rank: int) -> tuple[Value, Value]:
    x, w = node.input(x_at), node.input(w_at)
    if len(x.shape) != rank or len(w.shape) != rank:
        node.refuse(f"an input {list(x.shape)} and weights {list(w.shape)} need {rank} axes each")
    return x, w


def _is_wide(node: TfliteNode, x: Value, bias: Value | None) -> bool:
    """Whether the sums are int64: those of int16 activations, but with an int32 bias."""
    if x.dtype is not DType.I16:
        return False
    narrow = bias is not None and bias.dtype is DType.I32
    if narrow and node.op == "DEPTHWISE_CONV_2D":
        node.refuse("int16 activations need a bias of int64 here", "quantize the model again")
    return not narrow


def _convolution(
    node: TfliteNode,
    x: Value,
    w: Value,
    quant_axis: int,
    window: Geometry,
    groups: int,
) -> Value:
    """conv or qconv of ``w`` [O, *K, C/g]; ``quant_axis``: of O in the file's weights."""
    source, channels = node.input(1), w.shape[0]
    kind = anchors.family(node, x, source)
    attrs = window.attributes(groups)
    if kind == "float":
        bias = anchors.float_bias(node, 2, channels)
        return node.activation(node.emit("conv", [x, w, bias], **attrs))
    if kind == "hybrid":
        return hybrid.convolution(node, x, w, quant_axis, window, groups)
    wide = _is_wide(node, x, node.optional(2))
    form = _integer_form(node, x, source, quant_axis, wide)
    bias = anchors.bias_of(node, 2, channels, wide)
    inputs = [x, w, bias, *form.zeros]
    return node.emit("qconv", inputs, **attrs, **_output(node, form.requant))


@dataclass(frozen=True)
class _IntegerForm:
    """Zero points of input and weights, and the requantization, of an integer convolution."""

    zeros: tuple[Value | None, Value | None]
    weight_zero: int
    requant: Requant


def _integer_form(node: TfliteNode, x: Value, w: Value, axis: int, wide: bool) -> _IntegerForm:
    unsigned = x.dtype is DType.U8
    scale, zero = scales.per_tensor(node, x.type.quant, "input")
    factors, w_zero = anchors.weight_quant(node, w, axis, symmetric=not unsigned)
    if len(factors) not in (1, w.shape[axis]) or (unsigned and len(factors) > 1):
        node.refuse(f"{len(factors)} scales do not fit weights {list(w.shape)}")
    if x.dtype is DType.I16:
        scales.expect_symmetric(node, zero, scales.of_output(node)[1])
    zeros = anchors.zero_value(node, zero, x.dtype), anchors.zero_value(node, w_zero, w.dtype)
    requant = anchors.requant(node, (scale, zero), factors, single=unsigned, wide=wide)
    return _IntegerForm(zeros, w_zero, requant)


def _output(node: TfliteNode, requant: Requant) -> dict[str, Any]:
    return {"dtype": node.output_dtype(), "requant": requant, "quant": node.output_quant()}


@converter("CONV_2D")
def conv_2d(node: TfliteNode) -> Value:
    """x [N, H, W, C], filter [O, KH, KW, C/g], bias [O]; the filter's depth implies the groups."""
    x, w = _operands(node, 0, 1, 4)
    channels, depth = x.shape[3], w.shape[3]
    groups = channels // depth if depth else 0
    if not groups or channels % depth or w.shape[0] % groups:
        node.refuse(f"{channels} channels do not fit weights {list(w.shape)}")
    window = geometry(node, x.shape[1:3], w.shape[1:3])
    return _convolution(node, x, w, 0, window, groups)


@converter("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(node: TfliteNode) -> Value:
    """x [N, H, W, C], filter [1, KH, KW, C * multiplier]: output c * multiplier + m reads c."""
    x, w = _operands(node, 0, 1, 4)
    channels, outputs = x.shape[3], w.shape[3]
    if w.shape[0] != 1 or not channels or outputs % channels:
        node.refuse(f"{channels} channels do not fit weights {list(w.shape)}")
    window = geometry(node, x.shape[1:3], w.shape[1:3])
    return _convolution(node, x, node.transpose(w, (3, 1, 2, 0)), 3, window, channels)


@converter("CONV_3D")
def conv_3d(node: TfliteNode) -> Value:
    """x [N, D, H, W, C], filter [KD, KH, KW, C, O]; float only."""
    x, w = _operands(node, 0, 1, 5)
    if anchors.family(node, x, w) != "float":
        node.refuse("CONV_3D of integers is not supported", "keep it in float32")
    if w.shape[3] != x.shape[4]:
        node.refuse(f"{x.shape[4]} channels do not fit weights {list(w.shape)}")
    window = geometry(node, x.shape[1:4], w.shape[:3], "dhw")
    bias = anchors.float_bias(node, 2, w.shape[4])
    inputs = [x, node.transpose(w, (4, 0, 1, 2, 3)), bias]
    return node.activation(node.emit("conv", inputs, **window.attributes()))


# Transposed convolutions


@dataclass(frozen=True)
class _Axis:
    """One axis of a transposed convolution: output i * stride + k - pad sums x[i] * w[k].

    Attributes:
        size, out, kernel, stride, pad: extents of input and output, and the window.
    """

    size: int
    out: int
    kernel: int
    stride: int
    pad: int

    @property
    def taps(self) -> int:
        """Taps of an output at most: kernel positions of one remainder of the stride."""
        return -(-self.kernel // self.stride)

    @property
    def first(self) -> int:
        """First block of ``stride`` cells before cropping that a direct convolution computes."""
        return min(self.pad // self.stride, self.taps - 1)

    @property
    def blocks(self) -> int:
        """Blocks from ``first`` on."""
        return max(-(-(self.pad + self.out) // self.stride), self.size) - self.first

    @property
    def begin(self) -> int:
        return self.taps - 1 - self.first

    @property
    def end(self) -> int:
        """Padding so that the last block is computed too."""
        return self.blocks + self.taps - 1 - self.begin - self.size

    @property
    def crop(self) -> int:
        """Cells before the output begins."""
        return self.pad - self.first * self.stride


def _axes(
    node: TfliteNode, size: Sequence[int], kernel: Sequence[int], letters: str
) -> list[_Axis]:
    """The axes of a transposed convolution; its output's shape is input 0."""
    wanted = node.ints(0, "the output shape")
    spatial = len(letters)
    if len(wanted) != spatial + 2 or min(wanted) < 1:
        node.refuse(f"output shape {list(wanted)} is not supported")
    strides, same = option_ints(node, [f"stride_{a}" for a in letters]), is_same(node)
    return [
        _Axis(n, out, k, s, total_padding(out, k, s, 1, same) // 2)
        for n, out, k, s in zip(size, wanted[1:-1], kernel, strides, strict=True)
    ]


def _float_transpose(
    node: TfliteNode, x: Value, w: Value, bias: Value | None, axes: Sequence[_Axis]
) -> Value:
    """conv_transpose of ``w`` [O, *K, C]."""
    ends = [a.stride * (a.size - 1) + a.kernel - a.pad - a.out for a in axes]
    y = node.emit(
        "conv_transpose",
        [x, w, bias],
        strides=tuple(a.stride for a in axes),
        dilations=(1,) * len(axes),
        pads=(*(a.pad for a in axes), *(max(e, 0) for e in ends)),
        output_padding=tuple(max(-e, 0) for e in ends),
        groups=1,
    )
    return node.activation(y)


@converter("TRANSPOSE_CONV")
def transpose_conv(node: TfliteNode) -> Value:
    """Output shape, filter [O, KH, KW, C], x [N, H, W, C], bias [O]."""
    x, w = _operands(node, 2, 1, 4)
    if w.shape[3] != x.shape[3]:
        node.refuse(f"{x.shape[3]} channels do not fit weights {list(w.shape)}")
    axes = _axes(node, x.shape[1:3], w.shape[1:3], "hw")
    kind = anchors.family(node, x, w)
    if kind == "float":
        return _float_transpose(node, x, w, anchors.float_bias(node, 3, w.shape[0]), axes)
    if kind == "hybrid":
        node.refuse("float activations with integer weights are not supported", "keep both float")
    return _integer_transpose(node, x, w, axes)


@converter("CONV_3D_TRANSPOSE")
def conv_3d_transpose(node: TfliteNode) -> Value:
    """Output shape, filter [KD, KH, KW, O, C], x [N, D, H, W, C], bias [O]; float only."""
    x, w = _operands(node, 2, 1, 5)
    if anchors.family(node, x, w) != "float":
        node.refuse("CONV_3D_TRANSPOSE of integers is not supported", "keep it in float32")
    if w.shape[4] != x.shape[4]:
        node.refuse(f"{x.shape[4]} channels do not fit weights {list(w.shape)}")
    if option_ints(node, [f"dilation_{a}_factor" for a in "dhw"]) != (1, 1, 1):
        node.refuse("dilations other than 1 are not supported")
    axes = _axes(node, x.shape[1:4], w.shape[:3], "dhw")
    bias = anchors.float_bias(node, 3, w.shape[3])
    return _float_transpose(node, x, node.transpose(w, (3, 0, 1, 2, 4)), bias, axes)


def _integer_transpose(node: TfliteNode, x: Value, w: Value, axes: Sequence[_Axis]) -> Value:
    """A direct convolution with an output channel for each remainder of the strides, whose cells
    are put side by side: integer sums do not depend on their order.
    """
    outputs = w.shape[0]
    wide = _is_wide(node, x, node.optional(3))
    form = _integer_form(node, x, w, 0, wide)
    phases = math.prod(a.stride for a in axes)
    kernel = _phase_weights(node.const(1, "the weights"), axes, form.weight_zero)
    sums = anchors.bias_of(node, 3, outputs, wide)
    if sums is not None:
        sums = node.emit("tile", [sums], repeats=(phases,))
    requant = form.requant
    if len(requant.multiplier) > 1:
        requant = replace(
            requant, multiplier=requant.multiplier * phases, shift=requant.shift * phases
        )
    pads = (*(a.begin for a in axes), *(a.end for a in axes))
    window = Geometry((1,) * len(axes), (1,) * len(axes), pads)
    inputs = [x, node.constant(kernel, "phases"), sums, *form.zeros]
    y = node.emit("qconv", inputs, **window.attributes(), **_output(node, requant))
    if phases > 1:
        # [N, H, W, sh, sw, O] -> [N, H, sh, W, sw, O]
        high, wide_cells = axes[0].blocks, axes[1].blocks
        sh, sw = axes[0].stride, axes[1].stride
        y = node.reshape(y, (x.shape[0], high, wide_cells, sh, sw, outputs))
        y = node.transpose(y, (0, 1, 3, 2, 4, 5))
        y = node.reshape(y, (x.shape[0], high * sh, wide_cells * sw, outputs))
    for number, axis in enumerate(axes, start=1):
        if axis.crop or y.shape[number] != axis.out:
            y = node.cut(y, number, axis.crop, axis.crop + axis.out)
    return y


def _phase_weights(w: Array, axes: Sequence[_Axis], zero: int) -> Array:
    """Weights [O, KH, KW, C] as those of the phases [sh * sw * O, taps, taps, C]: phase p has
    positions p + j * stride, the last one first; the weights' zero point fills up.
    """
    rows, cols = axes
    shape = (w.shape[0], rows.taps * rows.stride, cols.taps * cols.stride, w.shape[3])
    full = np.full(shape, zero, w.dtype)
    full[:, : w.shape[1], : w.shape[2]] = w
    split = full.reshape(w.shape[0], rows.taps, rows.stride, cols.taps, cols.stride, w.shape[3])[
        :, ::-1, :, ::-1
    ]
    moved = split.transpose(2, 4, 0, 1, 3, 5)
    return np.ascontiguousarray(moved).reshape(-1, rows.taps, cols.taps, w.shape[3])
