"""What the templates of 8-bit integers on MVE (Helium, Cortex-M55) share: when they apply, and
their constants.

Sums become outputs as TFLite Micro has it (Jacob et al., CVPR 2018, section 2.2 and appendix B;
``aotgen.ir.requant``), on vectors of four:

- the saturating rounding doubling high multiply is VQRDMULH;
- the right shift by r, which rounds ties away from zero, is VRSHL by -r, which rounds them up, of
  x - (x < 0). That correction matters for ties of negative values alone, which a clamp at the zero
  point hides, and must not be made where r is 0;
- the type's own clamp is the saturation of the narrowing moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Group, Node
from aotgen.ir.types import Requant
from aotgen.schedule.int8.quantized import operands_of, why_not_tflm
from aotgen.target.target import Target

I32 = npt.NDArray[np.int32]

LANES = 4
"""Sums in a vector."""

ScaleKind = Literal["relu", "linear", "any"]
"""``relu``: all shifts go right by 1 at least, and ties of negative values do not matter.
``linear``: such shifts, ties away from zero. ``any``: also shifts to the left and by 0."""

KINDS: tuple[ScaleKind, ...] = ("relu", "linear", "any")
"""Each does what those before it do, with more instructions."""


@dataclass(frozen=True)
class Scaling:
    """How the sums of a node become outputs.

    Attributes:
        kind: which arithmetic its channels need.
        zero: zero point of the output.
        lo, hi: the clamp.
    """

    kind: ScaleKind
    zero: int
    lo: int
    hi: int

    @property
    def clamps(self) -> bool:
        """Whether the clamp is narrower than int8, so that saturation is not enough."""
        return self.lo > -128 or self.hi < 127


@dataclass(frozen=True)
class Channels:
    """A node's constants, channels of all groups in order.

    Attributes:
        weights: int8 [channels, reduction], less their zero point; the reduction in the weights'
            own order (taps, then channels of a group).
        bias: int32 [channels], with the share of the activations' zero point, which pads hold.
        multiplier: int32 [channels], for VQRDMULH.
        left: int32 [channels], at least 0: for VSHL of the sum, which wraps around.
        right: int32 [channels], at most 0: for VRSHL of the product.
    """

    weights: npt.NDArray[np.int8]
    bias: I32
    multiplier: I32
    left: I32
    right: I32

    @property
    def ties(self) -> I32:
        """int32 [channels]: the logical shift that makes 1 of a negative int32 where ``right`` is
        not 0, and else 0 of all: subtracted before VRSHL it rounds ties away from zero.
        """
        return np.where(self.right < 0, -31, -32).astype(np.int32)

    @property
    def is_uniform(self) -> bool:
        """Whether all channels have one multiplier and shift."""
        return all(len(set(v.tolist())) == 1 for v in (self.multiplier, self.left, self.right))


def why_not_mve(group: Group, target: Target) -> str | None:
    """Why no MVE template of qconv and qmatmul applies to a group, or None."""
    if target.isa != "mve":
        return "needs MVE"
    return why_not_tflm(group, target)


def channels_of(node: Node) -> Channels:
    """The node's constants.

    A multiplier of 0 gives 0 whatever its shift, so such channels (which the readers make of tiny
    scales) have one to the right and do not ask for the ``any`` arithmetic.
    """
    requant: Requant = node.attrs["requant"]
    operands = operands_of(node, fold=True)
    count = len(operands.weights)
    multiplier = np.broadcast_to(np.asarray(requant.multiplier, np.int32), (count,))
    shift = np.broadcast_to(np.asarray(requant.shift, np.int32), (count,))
    shift = np.where(multiplier == 0, -1, shift).astype(np.int32)
    bias = np.zeros(count, np.int32)
    if operands.bias is not None:
        bias = operands.bias.astype(np.int32)
    return Channels(operands.weights, bias, multiplier, np.maximum(shift, 0), np.minimum(shift, 0))


def scaling_of(node: Node) -> Scaling:
    """How the node's sums become outputs, channels as ``channels_of`` has them."""
    requant: Requant = node.attrs["requant"]
    pairs = zip(requant.multiplier, requant.shift, strict=True)
    kind: ScaleKind = "any"
    if all(m == 0 or s < 0 for m, s in pairs):
        kind = "relu" if requant.lo >= requant.zero_point else "linear"
    return Scaling(kind, requant.zero_point, requant.lo, requant.hi)


def input_zero(node: Node) -> int:
    """The zero point of the activations, int8: what pads hold."""
    return operands_of(node, fold=True).pad
