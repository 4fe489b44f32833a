"""Exact arithmetic of ``Requant``: from an int32 accumulator to a quantized output.

What generated integer kernels must reproduce bit for bit, in the kinds that a model can ask for:

- ``tflm``: gemmlowp's fixed point (Jacob et al., CVPR 2018, section 2.2 and appendix B), which
  rounds twice: a saturating rounding doubling high multiply, then a rounding shift;
- ``litert``: one 64-bit product and one rounding shift, as TFLite built with single rounding;
- ``real``: one float64 product, rounded half away from zero, as LiteRT's FULLY_CONNECTED (found by
  experiment: version 2.3 is exact in it with accumulators of 44 bits next to ties);
- ``onnx``: a float32 scale, rounded half to even.

A ``wide`` accumulator is an int64: both fixed-point kinds then multiply by the upper 16 bits of the
multiplier, rounded, and shift once (TFLite's MultiplyByQuantizedMultiplier of an int64).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.ir.types import Array, DType, Requant

Int64 = npt.NDArray[np.int64]

_I32_MIN, _I32_MAX = -(1 << 31), (1 << 31) - 1


def apply(
    requant: Requant,
    acc: npt.NDArray[np.int32] | Int64,
    axis: int | None = None,
    dtype: DType = DType.I8,
) -> Array:
    """The output elements for accumulators ``acc``, in ``dtype``.

    Args:
        requant: its parameters hold for all channels, or one for each index along ``axis``.
        acc: int32, or int64 where ``requant.wide``; any shape.
        axis: the channel axis; needed when there are several multipliers or scales.
        dtype: of the output; ``requant.lo`` and ``hi`` must lie in its range.
    """
    if requant.kind == "onnx":
        # The product is a float32; rint rounds half to even. The clamp comes before the cast to
        # int64 so that a product beyond int64 saturates too.
        scaled = np.rint(acc.astype(np.float32) * _along(requant.scale, np.float32, acc, axis))
        wide = np.clip(scaled.astype(np.float64) + requant.zero_point, requant.lo, requant.hi)
        return np.asarray(wide).astype(dtype.numpy)
    if requant.kind == "real":
        nearest = round_half_away(acc * _along(requant.scale, np.float64, acc, axis))
        wide = np.clip(nearest + requant.zero_point, requant.lo, requant.hi)
        return np.asarray(wide).astype(dtype.numpy)
    multiply = _double_rounding if requant.kind == "tflm" else _single_rounding
    if requant.wide:
        multiply = _wide_rounding
    multiplier = _along(requant.multiplier, np.int64, acc, axis)
    shift = _along(requant.shift, np.int64, acc, axis)
    wide_int = multiply(acc.astype(np.int64), multiplier, shift) + requant.zero_point
    return np.asarray(np.clip(wide_int, requant.lo, requant.hi)).astype(dtype.numpy)


def round_half_away(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """x rounded to nearest, ties away from zero, as C's round: x + 0.5 would round itself."""
    size = np.abs(x)
    whole = np.floor(size)
    return np.asarray(np.copysign(whole + (size - whole >= 0.5), x))


def quantize_multiplier(real: float) -> tuple[int, int]:
    """``real`` >= 0 as (multiplier, shift), multiplier * 2^(shift - 31), the first >= 2^30.

    Half goes away from zero; 0 and what is below 2^-32 is (0, 0), as TFLite's QuantizeMultiplier
    has it.
    """
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * (1 << 31) + 0.5)
    if multiplier == 1 << 31:
        multiplier, shift = 1 << 30, shift + 1
    if shift < -31:
        return 0, 0
    if shift > 30:  # single rounding has no room for more, and no model needs it
        return _I32_MAX, 30
    return multiplier, shift


def _along(
    values: tuple[Any, ...], dtype: npt.DTypeLike, acc: Array, axis: int | None
) -> npt.NDArray[Any]:
    """Parameters shaped to broadcast along ``axis`` of ``acc``."""
    array = np.asarray(values, dtype)
    if len(values) == 1:
        return array.reshape(())
    if axis is None or acc.shape[axis] != len(values):
        raise ValueError(f"{len(values)} parameters do not fit axis {axis} of {acc.shape}")
    shape = [1] * acc.ndim
    shape[axis] = len(values)
    return array.reshape(shape)


def _wrap32(x: Int64) -> Int64:
    """x as a 32-bit register holds it, which is where both references keep their results."""
    return ((x - _I32_MIN) & 0xFFFFFFFF) + _I32_MIN


def _double_rounding(acc: Int64, multiplier: Int64, shift: Int64) -> Int64:
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    return rounding_divide_by_pot(doubling_high_mul(_wrap32(acc << left), multiplier), right)


def doubling_high_mul(a: Int64, b: Int64 | np.int64) -> Int64:
    """(2 a b + 2^31) >> 32 for int32 values: ties go up, INT32_MIN^2 saturates."""
    product = a * b
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    total = product + nudge
    # C's division truncates toward zero.
    high = np.sign(total) * (np.abs(total) >> 31)
    return np.asarray(np.where((a == b) & (a == _I32_MIN), _I32_MAX, high))


def rounding_divide_by_pot(x: Int64, exponent: Int64 | np.int64) -> Int64:
    """x / 2^exponent rounded to nearest, ties away from zero; 0 <= exponent <= 31."""
    mask = (np.int64(1) << exponent) - 1
    threshold = (mask >> 1) + (x < 0)
    return np.asarray((x >> exponent) + ((x & mask) > threshold))


def _single_rounding(acc: Int64, multiplier: Int64, shift: Int64) -> Int64:
    """(acc * multiplier + 2^(30 - shift)) >> (31 - shift): one rounding, ties go up."""
    total = 31 - shift
    product = acc * multiplier + (np.int64(1) << (total - 1))
    return _wrap32(product >> total)


def reduced_multiplier(multiplier: int) -> int:
    """The upper 16 bits of a Q31 multiplier, rounded: what scales an int64 accumulator."""
    return (multiplier + (1 << 15)) >> 16 if multiplier < 0x7FFF0000 else 0x7FFF


def _wide_rounding(acc: Int64, multiplier: Int64, shift: Int64) -> Int64:
    """(acc * reduced multiplier + 2^(14 - shift)) >> (15 - shift), the product within int64."""
    reduced = np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)
    total = 15 - shift
    with np.errstate(over="ignore"):
        product = acc * reduced + (np.int64(1) << (total - 1))
    return _wrap32(product >> total)
