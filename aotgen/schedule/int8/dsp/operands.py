"""What the templates of 8-bit integers on the DSP extension (Cortex-M4, M7) share: when they apply,
and their constants.

Sums become outputs as TFLite Micro has it, in three or four instructions instead of two roundings:

- SRDHM, the saturating rounding doubling high multiply, is SMMULR(2 acc, m) where 2 acc does not
  overflow: its two nudges round ties up, as does a half added before the floor.
- A right shift by r >= 1 with ties away from zero is (x + 2^(r - 1) - (x < 0)) >> r. With the zero
  point, the constant C = 2^(r - 1) + (zero << r) = (2 zero + 1) << (r - 1) rides on SMMLAR: the
  output is SSAT((SMMLAR(2 acc, m, C - (acc < 0)) >> (r - 1)) >> 1), where the last shift is part of
  SSAT. That the sign is acc's and not x's matters for x = 0 alone, which gives 0 either way.
- The sign matters only for ties of negative values, which a clamp at the zero point hides.

The arithmetic is Jacob et al., CVPR 2018, section 2.2 and appendix B (``aotgen.ir.requant``).
A channel whose sums cannot overflow in it is proven to from its weights and bias; one whose output
is proven to be constant, as of huge biases or tiny scales, becomes one without weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Group, Node
from aotgen.ir.requant import apply
from aotgen.ir.types import Requant
from aotgen.schedule.int8.quantized import operands_of, why_not_tflm
from aotgen.target.target import Target

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

ScaleKind = Literal["relu", "linear", "any"]
"""``relu``: all shifts go right by 1 at least, the lower clamp is the zero point, -128, and there
is no upper one. ``linear``: such shifts, and no clamp but the type's. ``any``: all else."""


@dataclass(frozen=True)
class Scaling:
    """What the requantization of a node is for all of its channels.

    Attributes:
        kind: which of the three ways above.
        zero: zero point of the output.
        lo, hi: the clamp.
    """

    kind: ScaleKind
    zero: int
    lo: int
    hi: int

    @property
    def half_zero(self) -> int:
        """C of a shift by 1; of a shift by r it is this << (r - 1)."""
        return 2 * self.zero + 1


@dataclass(frozen=True)
class Channels:
    """A node's constants, channels of all groups in order.

    Attributes:
        weights: int8 [channels, reduction], less their zero point; all 0 in channels whose output
            is constant.
        bias: with the share of the activations' zero point, which pads hold.
        multiplier: 2^30 at least, or 0.
        right, left: shifts; one of them is 0.
        low, high: least and greatest sum, whatever the activations.
    """

    weights: npt.NDArray[np.int8]
    bias: I32
    multiplier: I32
    right: I32
    left: I32
    low: I64
    high: I64


def rounding_constant(right: I32, zero: int) -> I32:
    """C of shifts by ``right``: 2^(r - 1) + (zero << r), and the zero point where r is 0."""
    half = (2 * zero + 1) * (np.int64(1) << np.maximum(right.astype(np.int64) - 1, 0))
    return np.where(right > 0, half, zero).astype(np.int32)


def why_not_dsp(group: Group, target: Target) -> str | None:
    """Why no template of 8-bit integers on the DSP extension applies to a group, or None."""
    if not target.has_dsp:
        return "needs the DSP extension"
    reason = why_not_tflm(group, target)
    if reason is not None:
        return reason
    node = group.nodes[0]
    return _why_not_exact(channels_of(node), scaling_of(node))


def scaling_of(node: Node) -> Scaling:
    """How the node's sums become outputs; of its channels as ``channels_of`` has them."""
    requant: Requant = node.attrs["requant"]
    free = requant.lo == -128 and requant.hi == 127
    constant = _constant(_plain(node), requant)
    right = np.broadcast_to(-np.asarray(requant.shift, np.int64), constant.shape)
    kind: ScaleKind = "any"
    if free and (constant | (right > 0)).all():
        kind = "relu" if requant.zero_point == requant.lo else "linear"
    return Scaling(kind, requant.zero_point, requant.lo, requant.hi)


def channels_of(node: Node) -> Channels:
    """The node's constants.

    Of a channel whose output is a constant v the weights are 0 and the bias is one of its sums;
    where that or the shift is large, bias, multiplier and shift are others that give v:
    4 (v - zero), 2^30 and 1 to the right.
    """
    requant: Requant = node.attrs["requant"]
    found = _plain(node)
    constant = _constant(found, requant)
    value = apply(requant, _int32(found.low)[None], 1).astype(np.int64)[0]
    small = np.int64(0).clip(found.low, found.high)  # of the sums the nearest to 0
    handy = (found.right > 0) & (found.right <= 16) & (np.abs(small) < 1 << 22)
    other = constant & ~handy
    bias = np.where(constant, small, found.bias)
    bias = np.where(other, 4 * (value - requant.zero_point), bias)
    return Channels(
        np.where(constant[:, None], 0, found.weights).astype(np.int8),
        bias.astype(np.int32),
        np.where(other, 1 << 30, found.multiplier).astype(np.int32),
        np.where(other, 1, found.right).astype(np.int32),
        np.where(other, 0, found.left).astype(np.int32),
        np.where(constant, bias, found.low),
        np.where(constant, bias, found.high),
    )


def _plain(node: Node) -> Channels:
    """The constants as the node has them."""
    requant: Requant = node.attrs["requant"]
    operands = operands_of(node, fold=True)
    weights = operands.weights
    count = len(weights)
    bias = np.zeros(count, np.int64)
    if operands.bias is not None:
        bias = bias + operands.bias
    wide = weights.astype(np.int64)
    most, least = wide.clip(min=0).sum(axis=1), wide.clip(max=0).sum(axis=1)
    shift = np.broadcast_to(np.asarray(requant.shift, np.int32), (count,))
    return Channels(
        weights,
        bias.astype(np.int32),
        np.broadcast_to(np.asarray(requant.multiplier, np.int32), (count,)),
        np.maximum(-shift, 0),
        np.maximum(shift, 0),
        bias - 128 * most + 127 * least,
        bias + 127 * most - 128 * least,
    )


def _int32(sums: I64) -> I32:
    return sums.clip(-(1 << 31), (1 << 31) - 1).astype(np.int32)


def _constant(found: Channels, requant: Requant) -> npt.NDArray[np.bool_]:
    """Channels whose output is proven to be constant: it is a monotonic function of the sum, as far
    as nothing wraps around."""
    ends = np.stack([_int32(found.low), _int32(found.high)])
    outputs = apply(requant, ends, 1)
    largest = np.maximum(-found.low, found.high) << found.left.astype(np.int64)
    return np.asarray((outputs[0] == outputs[1]) & (largest < (1 << 31)))


def _why_not_exact(found: Channels, scaling: Scaling) -> str | None:
    """Why a channel's requantization may overflow, or None."""
    largest = np.maximum(-found.low, found.high) << found.left.astype(np.int64)
    if (largest >= (1 << 30)).any():
        return "needs sums, shifted left, below 2^30"
    right = found.right.astype(np.int64)
    half = np.int64(abs(scaling.half_zero)) << np.maximum(right - 1, 0)
    if (half + largest + 1 >= (1 << 31)).any():
        return "needs right shifts that leave room for the zero point"
    return None
