"""What the NEON templates of 8-bit integers share: when they apply, and their constants.

Activations are int8 in the kernels: uint8 ones are taken less 128 (one exclusive or of the sign
bit), which moves their zero point along. The zero point of the activations is part of the bias,
and pads hold it.

Every vector of four channels has its parameters next to each other, int32, in the order the
kernels load them:

- ``tflm``: multipliers, shifts (negative: to the right). All shifts go right by at least one bit,
  so that a rounding shift with ties away from zero is ssra (subtract one from negative values) and
  srshl: three instructions a vector with sqrdmulh.
- ``tflm_any``: left shifts, multipliers, right shifts, for all other multipliers.
- ``litert``: multipliers, then shifts of the 64-bit products as two vectors of int64.
- ``real``: scales, the bits of their float64, as two vectors.
- ``onnx``: scales, the bits of their float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType, Requant
from aotgen.schedule.int8.quantized import known_zero, operands_of, why_not_bytes
from aotgen.target.target import Target

LANES = 4
"""Sums in a vector."""

ScaleKind = Literal["tflm", "tflm_any", "litert", "real", "onnx"]

PARAMETER_VECTORS: dict[str, int] = {"tflm": 2, "tflm_any": 3, "litert": 3, "real": 2, "onnx": 1}
"""Vectors of parameters beside a vector of four channels."""

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Scaling:
    """The requantization of a node as its kernel reads it.

    Attributes:
        kind: see the module's text.
        zero: zero point of the output.
        lo, hi: the clamp, None where the type's own range is the clamp.
        unsigned: whether the output is uint8.
    """

    kind: ScaleKind
    zero: int
    lo: int | None
    hi: int | None
    unsigned: bool

    @property
    def vectors(self) -> int:
        return PARAMETER_VECTORS[self.kind]


def why_not_neon(group: Group, target: Target) -> str | None:
    """Why no NEON template of 8-bit integers applies to a group, or None."""
    if not target.has_neon:
        return "needs NEON"
    return why_not_bytes(group, target)


def input_zero(node: Node) -> int:
    """The zero point of the activations as the kernel sees them, int8."""
    return int(known_zero(node, 3)[0]) - (128 if node.input(0).dtype is DType.U8 else 0)


@dataclass(frozen=True)
class Weights:
    """A node's constants as NEON kernels use them, channels of all groups in order.

    Attributes:
        stored: int8 [channels, reduction]; plus ``share`` they are the weights less their zero
            point.
        share: int32 [channels], None where all are 0: what unsigned weights far from their zero
            point leave to a product with the sum of a pixel's patch.
        bias: int32 [channels], with the share of the activations' zero point.
    """

    stored: npt.NDArray[np.int8]
    share: I32 | None
    bias: I32

    @property
    def centred(self) -> npt.NDArray[np.int64]:
        """The weights less their zero point."""
        wide = self.stored.astype(np.int64)
        return wide if self.share is None else wide + self.share[:, None]


def weights_of(node: Node) -> Weights:
    """The node's weights and bias."""
    operands = operands_of(node, fold=False)
    found = Weights(operands.weights, operands.share, np.zeros(0, np.int32))
    bias = -input_zero(node) * found.centred.sum(axis=1)
    if operands.bias is not None:
        bias = bias + operands.bias
    wrapped = (bias & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    return replace(found, bias=wrapped)


def scaling(node: Node) -> Scaling:
    """How the node's sums become outputs."""
    requant: Requant = node.attrs["requant"]
    kind: ScaleKind
    if requant.kind == "tflm":
        kind = "tflm" if max(requant.shift) < 0 else "tflm_any"
    else:
        kind = requant.kind
    unsigned = node.output.dtype is DType.U8
    low, high = (0, 255) if unsigned else (-128, 127)
    return Scaling(
        kind,
        requant.zero_point,
        requant.lo if requant.lo > low else None,
        requant.hi if requant.hi < high else None,
        unsigned,
    )


def parameters(node: Node, count: int, first: int = 0) -> I32:
    """The requantization's parameters [count / 4, vectors, 4] of ``count`` channels from ``first``
    on, in order; the last vector is filled up with zeros.
    """
    requant: Requant = node.attrs["requant"]
    kind = scaling(node).kind
    wide = -(-count // LANES) * LANES

    def lanes(values: npt.NDArray[np.generic]) -> I32:
        full = np.zeros(wide, values.dtype)
        full[:count] = values if values.size == 1 else values[first : first + count]
        return full.view(np.int32).reshape(wide // LANES, -1, LANES)

    if kind == "onnx":
        return lanes(np.asarray(requant.scale, np.float32))
    if kind == "real":
        return lanes(np.asarray(requant.scale, np.float64))
    multiplier = lanes(np.asarray(requant.multiplier, np.int32))
    shift = np.asarray(requant.shift, np.int64)
    if kind == "litert":
        return np.concatenate([multiplier, lanes(shift - 31)], axis=1)
    right = lanes(np.minimum(shift, 0).astype(np.int32))
    if kind == "tflm":
        return np.concatenate([multiplier, right], axis=1)
    left = lanes(np.maximum(shift, 0).astype(np.int32))
    return np.concatenate([left, multiplier, right], axis=1)
