"""What the templates of qconv and qmatmul with constant weights share: their constants.

Zero points cost nothing in the inner loop. With a' = x's integers as int16, w' int8 weights and z
their zero points, sum (a' - za)(w' - zw) = sum a' w' - zw sum a' + (K za zw - za sum w'): the last
term is part of the bias, and the middle one exists only where weights less their zero point are no
int8 (``share``). Pads hold za. A zero point known only at run time is subtracted from x instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen import literals
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, PackedConst
from aotgen.schedule.conv2d_direct import conv_title
from aotgen.schedule.conv_shape import ConvShape
from aotgen.target.target import Target

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Operands:
    """What a node's constants are to its kernel; channels of all groups in order.

    Attributes:
        weights: int8 [channels, reduction].
        bias, share: int32 [channels]; None where all are 0.
        pad: what lies where the input is padded, as int16; 0 with a zero point of run time.
        offset: what is subtracted from x to give int16.
    """

    weights: npt.NDArray[np.int8]
    bias: npt.NDArray[np.int32] | None
    share: npt.NDArray[np.int32] | None
    pad: int
    offset: int


def known_zero(node: Node, index: int) -> Ints:
    """A constant zero point, flat; [0] when absent."""
    value = node.optional(index)
    if value is None or value.const is None:
        return np.zeros(1, np.int64)
    return value.const.reshape(-1).astype(np.int64)


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
        # Only unsigned weights can be that far from their zero point.
        share = 128 - zero[:, 0]
        stored = w - 128
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
        bias.astype(np.int32) if bias.any() else None,
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
    if w.dtype not in (DType.I8, DType.U8):
        return "needs 8-bit weights"
    if any(v is not None and not v.is_const for v in (bias, w_zero)):
        return "needs a constant bias and constant zero points of the weights"
    if x_zero is not None and not x_zero.is_const and x.dtype not in (DType.I8, DType.U8):
        return "16-bit inputs need a constant zero point"
    if any(0 in v.shape for v in (*node.args, node.output)):
        return "needs tensors with elements"
    requant = node.attrs["requant"]
    if requant is not None and requant.kind != "onnx":
        return f"requantization of kind {requant.kind} is not implemented"
    if node.op == "qmatmul" and len(w.shape) != 2:
        return "needs one matrix of weights"
    if node.op == "qconv" and not 3 <= len(x.shape) <= 5:
        return "needs one to three spatial axes"
    return None


def requant_text(node: Node) -> dict[str, str | int] | None:
    """Numbers of the requantization as C text; ``scale`` where it is one for all channels."""
    requant = node.attrs["requant"]
    if requant is None:
        return None
    return {
        "low": literals.f32(float(requant.lo - requant.zero_point)),
        "high": literals.f32(float(requant.hi - requant.zero_point)),
        "zero": requant.zero_point,
        "scale": literals.f32(requant.scale[0]),
    }


def channel_scales(node: Node) -> npt.NDArray[np.float32] | None:
    """The requantization's scales where they differ by channel."""
    requant = node.attrs["requant"]
    if requant is None or len(set(requant.scale)) == 1:
        return None
    return np.asarray(requant.scale, np.float32)


def modelled_seconds(node: Node, target: Target, per_step: float) -> float:
    macs: int = node.output.type.numel * int(_matrix(node).shape[1])
    return macs / (1.5e9 * target.vl * per_step)


def title(group: Group) -> str:
    node = group.nodes[0]
    if node.op == "qconv":
        return conv_title(ConvShape.of(as_conv(node)), node.op)
    x, y = (str(v.type).split(" ")[0] for v in (node.input(0), node.output))
    return f"{node.op}: {x} to {y}"


def as_conv(node: Node) -> Node:
    """The node as the float conv whose geometry it has."""
    return Node("conv", node.inputs, node.outputs, node.attrs, node.name, node.origin)


def channel_args(node: Node, operands: Operands, groups: int, wide: int) -> list[Arg]:
    """bias, share and scale as far as they exist, every group padded to ``wide`` channels."""
    args = []
    for role, ctype, array in (
        ("bias", "int32_t", operands.bias),
        ("share", "int32_t", operands.share),
        ("scale", "float", channel_scales(node)),
    ):
        if array is not None:
            made = np.zeros((groups, wide), array.dtype)
            made[:, : array.size // groups] = array.reshape(groups, -1)
            args.append(Arg(role, f"const {ctype} *", const=PackedConst(role, made.reshape(-1))))
    return args
