"""gemmlowp's 16-bit fixed point: sigmoid and tanh as TFLite's integer LSTM computes them.

From Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, appendix B: exp of a negative number as a Taylor
polynomial around -1/8 for its fraction of a quarter and a product of constants for the rest; 1 / (1
+ x) by three steps of Newton and Raphson. A number with n integer bits has 15 - n bits behind the
point. Values are int64 arrays in the range of int16; sums that leave it wrap around, products and
shifts to the left saturate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.ir import requant

Int64 = npt.NDArray[np.int64]

ONE = 32767
"""1 with no integer bits, as near as int16 comes."""


def _constant(real: float, integer_bits: int = 0) -> int:
    """``real`` to nearest, first with 31 bits and then rounded to 15, as gemmlowp has it."""
    wide = round(real * 2.0 ** (31 - integer_bits))
    return int(requant.rounding_divide_by_pot(np.asarray(wide), np.asarray(16)))


@dataclass(frozen=True)
class Constants:
    """What the formulas multiply by and add, as int16."""

    exp_eighth: int = _constant(math.exp(-1 / 8))
    third: int = _constant(1 / 3)
    estimate: int = _constant(48 / 17, 2)
    slope: int = _constant(-32 / 17, 2)


CONSTANTS = Constants()

EXPONENTS = tuple((e, _constant(math.exp(-(2.0**e)))) for e in range(-2, 5))
"""(e, exp(-2^e)): the factors of exp for the bits of its argument."""


def wrap(x: Int64) -> Int64:
    """``x`` as an int16 register holds it."""
    return ((x + 32768) & 0xFFFF) - 32768


def multiply(a: Int64, b: Int64 | int) -> Int64:
    """a * b / 2^15 to nearest, ties upwards; -1 times -1 saturates."""
    return np.asarray(np.minimum((a * b + (1 << 14)) >> 15, 32767))


def shift(x: Int64, bits: int) -> Int64:
    """x * 2^bits: saturated upwards, rounded to nearest with ties away from zero downwards."""
    if bits >= 0:
        return np.asarray(np.clip(x << bits, -32768, 32767))
    return requant.rounding_divide_by_pot(x, np.asarray(-bits))


def _exp(x: Int64, integer_bits: int) -> Int64:
    """exp(x), 0 integer bits, for x <= 0 with ``integer_bits``."""
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    # x modulo a quarter, less a quarter: the polynomial is for [-1/4, 0).
    rest = (x & (quarter - 1)) - quarter
    a = shift(rest, integer_bits) + (1 << 12)
    a2 = multiply(a, a)
    a3, a4 = multiply(a2, a), multiply(a2, a2)
    high = shift(multiply(shift(a4, -2) + a3, CONSTANTS.third) + a2, -1)
    eighth = CONSTANTS.exp_eighth
    result = np.minimum(eighth + multiply(wrap(a + high), eighth), ONE)
    steps = wrap(rest - x)
    for exponent, factor in EXPONENTS:
        if integer_bits > exponent:
            bit = 1 << (fraction + exponent)
            result = np.where(steps & bit, multiply(result, factor), result)
    if integer_bits > 5:
        result = np.where(x < -32 << fraction, 0, result)
    return np.where(x == 0, ONE, result)


def _newton(x: Int64) -> Int64:
    """1 / ((1 + x) / 2) with 2 integer bits, for x in [0, 1] without any."""
    half = (x + ONE + 1) >> 1
    found = wrap(CONSTANTS.estimate + multiply(half, CONSTANTS.slope))
    for _ in range(3):
        error = (1 << 13) - multiply(half, found)
        found = wrap(found + shift(multiply(found, error), 2))
    return found


def sigmoid(x: Int64) -> Int64:
    """32768 * sigmoid(x / 4096)."""
    size = wrap(np.abs(x))
    positive = shift(_newton(_exp(wrap(-size), 3)), 1)
    return np.where(x == 0, 1 << 14, np.where(x > 0, positive, ONE - positive))


def tanh(x: Int64, power: int) -> Int64:
    """32768 * tanh(x * 2^``power``), for ``power`` in -15..-9."""
    integer_bits = 15 + power
    positive = shift(wrap(_newton(_exp(-np.abs(x), integer_bits + 1)) - (1 << 13)), 2)
    return np.where(x == 0, 0, np.where(x > 0, positive, wrap(-positive)))
