"""What convolutions and matrix products share: which arithmetic they ask for, and its parameters.

How the oracles scale sums, found by experiment with accumulators next to ties:

- convolutions of int8 and int16: the multiplier of each channel is a product of doubles;
- those of uint8, and LiteRT's BATCH_MATMUL: input scale * weight scale is rounded to float32;
- LiteRT's FULLY_CONNECTED: no multiplier, one double product, halves away from zero;
- int16 with int64 sums: a multiplier of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.scales import F32
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, Quant, Requant

Family = Literal["float", "integer", "hybrid"]

_WIDEST_SHIFT = 14
"""Left shifts beyond it leave the 64-bit arithmetic no bit to round."""


def family(node: TfliteNode, x: Value, w: Value) -> Family:
    """Which kernels an operator on input ``x`` and weights ``w`` asks for; refused when TFLite has
    none.
    """
    y, eight = node.output_dtype(), (DType.I8, DType.U8)
    if x.dtype is w.dtype is y is DType.F32:
        return "float"
    if x.dtype is y is DType.F32 and w.dtype in eight:
        return "hybrid"
    if x.dtype is y and (x.dtype is w.dtype in eight or (x.dtype, w.dtype) == _WIDE):
        return "integer"
    node.refuse(
        f"input {x.dtype.value}, weights {w.dtype.value} and output {y.value} do not go together",
        "use float32, int8, uint8, or int16 activations with int8 weights",
    )


_WIDE = (DType.I16, DType.I8)


def weight_quant(
    node: TfliteNode, w: Value, axis: int, *, symmetric: bool
) -> tuple[list[np.float32], int]:
    """Scales of the weights, one or one for each index along ``axis``, and their zero point."""
    quant: Quant | None = w.type.quant
    if quant is None or len(quant.scale) == 1:
        scale, zero = scales.per_tensor(node, quant, "weights")
        found = [scale]
    else:
        if quant.axis != axis:
            node.refuse(
                f"its weights have scales along axis {quant.axis}, not {axis}",
                "quantize its weights per output channel",
            )
        if any(quant.zero_point):
            node.refuse("its weights have zero points that differ from 0", "quantize again")
        found, zero = [F32(s) for s in quant.scale], 0
        if not all(s >= 0 and np.isfinite(s) for s in found):
            node.refuse("a scale of its weights is no positive number", "quantize the model again")
    if zero and symmetric:
        node.refuse(
            f"its weights have zero point {zero}, which its kernels take for 0",
            "quantize its weights symmetrically",
        )
    return found, zero


def zero_value(node: TfliteNode, zero: int, dtype: DType) -> Value | None:
    """A zero point as an input of qconv or qmatmul; None for 0."""
    return node.constant(np.asarray(zero, dtype.numpy), "zero") if zero else None


def requant(
    node: TfliteNode,
    x: tuple[np.float32, int],
    weights: Sequence[np.float32],
    *,
    single: bool,
    real: bool = False,
    wide: bool = False,
) -> Requant:
    """From sums of ``x`` times ``weights`` to output 0.

    Args:
        node: whose output and fused activation it is.
        x: scale and zero point of the input.
        weights: their scales, one or one a channel.
        single: whether the product of both scales is rounded to float32.
        real: whether the sums are scaled in double.
        wide: whether they are of 64 bits.
    """
    scale, zero = scales.of_output(node)
    lo, hi = node.clamp()
    reals = [float(x[0] * w if single else float(x[0]) * float(w)) / float(scale) for w in weights]
    if real:
        return Requant("real", (), (), tuple(reals), zero, lo, hi, wide)
    pairs = [quantize_multiplier(r) for r in reals]
    if wide and max(s for _, s in pairs) > _WIDEST_SHIFT:
        node.refuse(f"its scales multiply sums by {max(reals):g}", "quantize the model again")
    multiplier, shift = tuple(m for m, _ in pairs), tuple(s for _, s in pairs)
    return Requant("tflm", multiplier, shift, (), zero, lo, hi, wide)


def bias_of(node: TfliteNode, index: int, channels: int, wide: bool) -> Value | None:
    """The bias of integer sums, as int64 where they are wide."""
    bias = node.optional(index)
    if bias is None:
        return None
    if bias.dtype is not DType.I32 and not (wide and bias.dtype is DType.I64):
        node.refuse(f"a bias of element type {bias.dtype.value} is not supported")
    if bias.type.numel != channels:
        node.refuse(f"a bias of shape {list(bias.shape)} does not fit {channels} channels")
    bias = node.reshape(bias, (channels,))
    return node.cast(bias, DType.I64) if wide else bias


def float_bias(node: TfliteNode, index: int, channels: int) -> Value | None:
    """The bias of float sums."""
    bias = node.optional(index)
    if bias is None:
        return None
    if bias.dtype is not DType.F32:
        node.refuse(f"a bias of element type {bias.dtype.value} is not supported")
    if bias.type.numel != channels:
        node.refuse(f"a bias of shape {list(bias.shape)} does not fit {channels} channels")
    return node.reshape(bias, (channels,))
