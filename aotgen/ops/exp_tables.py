"""Exponentials of 8-bit differences in fixed point, and tables of int16 functions: what quantized
softmax reads.

The arithmetic is that of gemmlowp's fixed-point functions (Jacob et al., CVPR 2018, appendix B) and
of TFLite's reference kernels; everything here is computed while compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aotgen.ir.requant import doubling_high_mul as srdhm
from aotgen.ir.requant import rounding_divide_by_pot as rounding_shift
from aotgen.ops import fixed_point as fp

Int64 = npt.NDArray[np.int64]

_LOW, _HIGH = -(1 << 31), (1 << 31) - 1

FACTORS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
"""exp(-2^k) for k in -2..4, with 31 bits behind the point."""

INTEGER_BITS = 5
"""Bits before the point of a scaled difference: exp(-32) is nothing."""


def real_multiplier(real: float) -> tuple[int, int]:
    """``real`` > 0 as (multiplier, shift) with multiplier * 2^(shift - 31), for shifts up to 31."""
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * (1 << 31) + 0.5)
    return (multiplier >> 1, shift + 1) if multiplier == 1 << 31 else (multiplier, shift)


def difference_scale(scale: float) -> tuple[int, int, int]:
    """How differences of elements with float32 ``scale`` (times beta, a double) are brought to 26
    bits behind the point.

    Returns:
        (multiplier, left shift, lowest difference that counts): smaller ones are beyond the range.
    """
    fraction_bits = 31 - INTEGER_BITS
    multiplier, shift = real_multiplier(min(scale * (1 << fraction_bits), float(_HIGH)))
    most = ((1 << INTEGER_BITS) - 1) * 2.0 ** (fraction_bits - shift)
    return multiplier, shift, -math.floor(most)


def scaled_differences(multiplier: int, shift: int) -> Int64:
    """int64 [256]: the differences -255 .. 0 with 26 bits behind the point."""
    return np.asarray(fp.scaled(np.arange(-255, 1, dtype=np.int64), multiplier, shift))


def exp_of_differences(multiplier: int, shift: int, lowest: int) -> Int64:
    """int64 [256]: exp of the scaled differences -255 .. 0 with 31 bits behind the point; 0 below
    ``lowest``.
    """
    counts = np.arange(-255, 1) >= lowest
    scaled = np.where(counts, scaled_differences(multiplier, shift), 0)
    return np.where(counts, exp_of_negative(scaled), 0)


def exp_of_negative(a: Int64, integer_bits: int = INTEGER_BITS) -> Int64:
    """exp of ``a`` <= 0, which has ``integer_bits`` bits before the point, with 31 behind it.

    A Taylor polynomial about -1/8 of what lies within a quarter below 0, times a factor for each
    higher bit that is set.
    """
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    low = (a & (quarter - 1)) - quarter
    rest = low - a
    x = (low << integer_bits) + (1 << 28)
    square = srdhm(x, x)
    cube = srdhm(square, x)
    fourth = rounding_shift(srdhm(square, square), np.int64(2))
    third = srdhm(fourth + cube, np.int64(715827883))
    base = np.int64(1895147668)
    result = base + srdhm(x + rounding_shift(third + square, np.int64(1)), base)
    for k, factor in enumerate(FACTORS[: integer_bits + 2], start=fraction_bits - 2):
        product = srdhm(result, np.int64(factor))
        result = np.where((rest >> k) & 1, product, result)
    return np.asarray(np.where(a == 0, _HIGH, result))


def _interpolation_table(
    function: Callable[[Any], Any], low: float, high: float, real: type[np.floating[Any]]
) -> tuple[int, ...]:
    """513 entries of ``function`` over [low, high] in units of 2^-15, each moved by half of what
    linear interpolation to the next is off in the middle; computed in ``real``.
    """
    steps = 512
    step = (real(high) - real(low)) / real(steps)
    x = real(low) + np.arange(steps + 1).astype(real) * step
    values = np.asarray(function(x), real) * real(32768)
    middles = np.asarray(function(x[:-1] + step / real(2)), real) * real(32768)
    between = _nearest((values[1:] + _nearest(values[:-1])) / real(2))
    bias = _nearest((between - _nearest(middles)) / real(2))
    entries = np.append(_nearest(values[:-1]) - bias, _nearest(np.asarray([values[-1]])))
    return tuple(int(v) for v in np.clip(entries, -32768, 32767))


def _nearest(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """x to the nearest whole number, ties away from zero, in its own type."""
    half = x.dtype.type(0.5)
    return np.asarray(np.where(x >= 0, np.floor(x + half), np.ceil(x - half)))


@cache
def softmax_tables(
    mode: Literal["tflm", "litert"],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tables of int16 softmax, exp over [-10, 0] and 1 / (1 + x) over [0, 1]: TFLite Micro
    computes them in float32, LiteRT in double.
    """
    real: type[np.floating[Any]] = np.float32 if mode == "tflm" else np.float64
    # In double and rounded once: numpy's float32 exp is not the same on every core.
    exp = _interpolation_table(lambda x: np.exp(x.astype(np.float64)), -10.0, 0.0, real)
    return exp, _interpolation_table(lambda x: 1 / (1 + x), 0.0, 1.0, real)
