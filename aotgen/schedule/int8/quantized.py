"""What the templates of qconv and qmatmul with constant weights share: their constants.

Zero points cost nothing in the inner loop. With a' = x's integers as int16, w' int8 weights and z
their zero points, sum (a' - za)(w' - zw) = sum a' w' - zw sum a' + (K za zw - za sum w'): the last
term is part of the bias, and the middle one exists only where weights less their zero point are no
int8 (``share``). Pads hold za. A zero point known only at run time is subtracted from x instead.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen import literals
from aotgen.ir.graph import Group, Node
from aotgen.ir.requant import reduced_multiplier
from aotgen.ir.types import DType
from aotgen.ops.quantized import accumulator
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Arg,
    Config,
    Need,
    PackedConst,
    Template,
    View,
)
from aotgen.schedule.conv.conv2d_direct import conv_title
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.target.target import Target

Ints = npt.NDArray[np.int64]

BYTES = frozenset({DType.I8, DType.U8})

_PORTABLE_INSTRUCTIONS = 8
"""Of a product in portable C on a microcontroller, about."""


@dataclass(frozen=True)
class Operands:
    """What a node's constants are to its kernel; channels of all groups in order.

    Attributes:
        weights: int8 [channels, reduction].
        bias: [channels], of the accumulator's type; None where all are 0.
        share: int32 [channels]; None where all are 0.
        pad: what lies where the input is padded, as int16; 0 with a zero point of run time.
        offset: what is subtracted from x to give int16.
    """

    weights: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32] | Ints | None
    share: npt.NDArray[np.int32] | None
    pad: int
    offset: int

    @property
    def centred(self) -> Ints:
        """The weights less their zero points, [channels, reduction]."""
        wide = self.weights.astype(np.int64)
        return wide if self.share is None else wide + self.share[:, None]


def known_zero(node: Node, index: int) -> Ints:
    """A constant zero point, flat; [0] when absent."""
    value = node.optional(index)
    if value is None or value.const is None:
        return np.zeros(1, np.int64)
    return value.const.reshape(-1).astype(np.int64)


def group_count(node: Node) -> int:
    """Groups of a convolution; a product of matrices is one."""
    return int(node.attrs["groups"]) if node.op == "qconv" else 1


def reduction(node: Node) -> int:
    """Products summed per output."""
    w: tuple[int, ...] = node.input(1).shape
    if node.op == "qconv":
        return math.prod(w[1:])
    return w[-1] if node.attrs["trans_b"] else w[-2]


def _matrix(node: Node) -> npt.NDArray[Any]:
    """The weights as [channels, reduction]."""
    w = node.input(1).const
    assert w is not None
    if node.op == "qconv":
        return w.reshape(w.shape[0], -1)
    return w if node.attrs["trans_b"] else np.ascontiguousarray(w.T)


def operands_of(node: Node, *, fold: bool) -> Operands:
    """``fold``: whether x's zero point is part of the bias; else the kernel subtracts it."""
    w = _matrix(node).astype(np.int64)
    zero = np.broadcast_to(known_zero(node, 4), (len(w),))[:, None]
    centred = w - zero
    share: Ints = np.zeros(len(w), np.int64)
    if centred.min(initial=0) < -128 or centred.max(initial=0) > 127:
        middle = 0 if node.input(1).dtype is DType.I8 else 128
        share = middle - zero[:, 0]
        stored = w - middle
    else:
        stored = centred
    offset = 32768 if node.input(0).dtype is DType.U16 else 0
    pad = int(known_zero(node, 3)[0]) - offset if fold else 0
    # sum (a - pad)(stored + share) with a from the kernel
    bias = -pad * centred.sum(axis=1)
    given = node.optional(2)
    if given is not None and given.const is not None:
        bias = bias + given.const
    return Operands(
        np.ascontiguousarray(stored.astype(np.int8)),
        bias.astype(accumulator(node.attrs["requant"]).numpy) if bias.any() else None,
        share.astype(np.int32) if share.any() else None,
        pad,
        offset,
    )


def why_not(group: Group, target: Target) -> str | None:
    """Why no integer template applies to a group, or None."""
    node = group.nodes[0]
    if target.device != "cpu":
        return "needs a CPU"
    if len(group.nodes) != 1 or node.op not in ("qconv", "qmatmul"):
        return "needs a qconv or qmatmul alone"
    x, w, bias, x_zero, w_zero = (node.optional(i) for i in range(5))
    if x is None or x.is_const or w is None or not w.is_const:
        return "needs an activation and constant weights"
    if w.dtype not in BYTES:
        return "needs 8-bit weights"
    if any(v is not None and not v.is_const for v in (bias, w_zero)):
        return "needs a constant bias and constant zero points of the weights"
    if x_zero is not None and not x_zero.is_const and x.dtype not in BYTES:
        return "16-bit inputs need a constant zero point"
    if any(0 in v.shape for v in (*node.args, node.output)):
        return "needs tensors with elements"
    if is_wide(node) and (x_zero is not None and not x_zero.is_const):
        return "64-bit sums need a constant zero point"
    if is_wide(node) and operands_of(node, fold=True).share is not None:
        return "64-bit sums need weights that are int8 less their zero point"
    if node.op == "qmatmul" and len(w.shape) != 2:
        return "needs one matrix of weights"
    if node.op == "qconv" and not 3 <= len(x.shape) <= 5:
        return "needs one to three spatial axes"
    return None


def why_not_bytes(group: Group, target: Target) -> str | None:
    """Why no template for 8-bit activations, their sums of 32 bits scaled, applies to a group."""
    reason = why_not(group, target)
    if reason is not None:
        return reason
    node = group.nodes[0]
    requant = node.attrs["requant"]
    if node.input(0).dtype not in BYTES or node.output.dtype not in BYTES:
        return "needs 8-bit activations"
    if requant is None or requant.wide:
        return "needs a requantization of 32-bit sums"
    zero = node.optional(3)
    if zero is not None and not zero.is_const:
        return "needs a constant zero point"
    return None


def why_not_tflm(group: Group, target: Target) -> str | None:
    """Why no template for int8 in TFLite Micro's arithmetic, weights as they are products', applies
    to a group, or None.
    """
    reason = why_not_bytes(group, target)
    if reason is not None:
        return reason
    node = group.nodes[0]
    if node.input(0).dtype is not DType.I8 or node.output.dtype is not DType.I8:
        return "needs int8 activations"
    if node.attrs["requant"].kind != "tflm":
        return "needs TFLite Micro's requantization"
    if operands_of(node, fold=True).share is not None:
        return "needs weights that are int8 less their zero point"
    return None


def is_wide(node: Node) -> bool:
    """Whether the sums are of 64 bits."""
    return accumulator(node.attrs["requant"]) is DType.I64


def requant_text(node: Node) -> dict[str, str | int] | None:
    """What the templates print of the requantization; see templates/kernels/requantize.c.j2.

    ``kind`` ("onnx", "tflm", "litert", "real"; "wide" for fixed point of 64-bit sums), ``low`` and
    ``high`` (clamp before the zero point is added), ``zero``, and of scale, multiplier and shift
    those that are one for all channels.
    """
    requant = node.attrs["requant"]
    if requant is None:
        return None
    low, high = requant.lo - requant.zero_point, requant.hi - requant.zero_point
    text: dict[str, str | int] = {"zero": requant.zero_point}
    text["kind"] = "wide" if requant.wide and requant.kind != "real" else requant.kind
    if requant.kind == "onnx":
        text |= {"low": literals.f32(float(low)), "high": literals.f32(float(high))}
    else:
        text |= {"low": low, "high": high}
    for role, (_, values) in _scaling(node).items():
        if len(set(values.tolist())) == 1:
            text[role] = _literal(values[0])
    return text


def _literal(value: np.generic) -> str | int:
    if value.dtype == np.float32:
        return literals.f32(float(value))
    return literals.f64(float(value)) if value.dtype == np.float64 else int(value)


def requant_words(node: Node) -> frozenset[str]:
    """The parts of simd.h that a kernel of the node uses."""
    requant = node.attrs["requant"]
    fixed = requant is not None and requant.kind in ("tflm", "litert") and not requant.wide
    return frozenset({"int8", "requantize"} if fixed else {"int8"})


def _scaling(node: Node) -> dict[str, tuple[str, npt.NDArray[Any]]]:
    """(C type, values) of the requantization's parameters: one, or one a channel."""
    requant = node.attrs["requant"]
    if requant is None:
        return {}
    if requant.kind == "onnx":
        return {"scale": ("float", np.asarray(requant.scale, np.float32))}
    if requant.kind == "real":
        return {"scale": ("double", np.asarray(requant.scale, np.float64))}
    multiplier, shift = requant.multiplier, requant.shift
    if requant.wide:
        multiplier = tuple(reduced_multiplier(m) for m in multiplier)
        shift = tuple(15 - s for s in shift)
    return {
        "multiplier": ("int32_t", np.asarray(multiplier, np.int32)),
        "shift": ("int32_t", np.asarray(shift, np.int32)),
    }


class ConstantWeights(Template):
    """What the templates of qconv and qmatmul with constant weights have in common."""

    @abstractmethod
    def products(self, target: Target) -> float:
        """Products of a lane in a cycle, about."""

    def needs(self, group: Group, target: Target, config: Config) -> dict[str, Need]:
        node = group.nodes[0]
        return {node.input(0).name: Need(unit_inner=True, even_rows=node.op == "qmatmul")}

    def output_need(self, group: Group, target: Target, config: Config) -> Need:
        return Need(unit_inner=True, even_rows=group.nodes[0].op == "qmatmul")

    def cost(self, group: Group, target: Target, config: Config) -> float:
        node = group.nodes[0]
        macs = node.output.type.numel * reduction(node)
        if target.bare:
            return macs * _PORTABLE_INSTRUCTIONS * INSTRUCTION_SECONDS
        return macs / (1.5e9 * target.vl * self.products(target))


def title(group: Group) -> str:
    node = group.nodes[0]
    if node.op == "qconv":
        return conv_title(ConvShape.of(as_conv(node)), node.op)
    x, y = (str(v.type).split(" ")[0] for v in (node.input(0), node.output))
    return f"{node.op}: {x} to {y}"


def as_conv(node: Node) -> Node:
    """The node as the float conv whose geometry it has."""
    return Node("conv", node.inputs, node.outputs, node.attrs, node.name, node.origin)


def tiled_pixels(node: Node) -> int:
    """Pixels that tiles can divide among themselves: a row, or all of a product of matrices."""
    pixels = math.prod(node.output.shape[:-1])
    if node.op == "qmatmul":
        return pixels
    shape = ConvShape.of(as_conv(node))
    return pixels if shape.maps_pixels and shape.groups == 1 else shape.out[2]


def is_flat(node: Node, x: View, y: View) -> bool:
    """Whether a kernel may take all pixels of both tensors as one row: those of a product of
    matrices, evenly apart.
    """
    if node.op == "qmatmul":
        return True
    shape = ConvShape.of(as_conv(node))
    return shape.maps_pixels and shape.groups == 1 and x.has_even_rows and y.has_even_rows


def channel_args(node: Node, operands: Operands, groups: int, wide: int) -> list[Arg]:
    """bias, share and the requantization's parameters as far as they exist and differ by channel,
    every group padded to ``wide`` channels.
    """
    sums = accumulator(node.attrs["requant"]).c
    tables: list[tuple[str, str, npt.NDArray[Any] | None]] = [
        ("bias", sums, operands.bias),
        ("share", "int32_t", operands.share),
    ]
    tables += [
        (role, ctype, values)
        for role, (ctype, values) in _scaling(node).items()
        if len(set(values.tolist())) > 1
    ]
    args = []
    for role, ctype, array in tables:
        if array is not None:
            made = np.zeros((groups, wide), array.dtype)
            made[:, : array.size // groups] = array.reshape(groups, -1)
            args.append(Arg(role, f"const {ctype} *", const=PackedConst(role, made.reshape(-1))))
    return args
