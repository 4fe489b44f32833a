"""Sigmoid and tanh of int8 in fixed point, as TFLite Micro computes them: gemmlowp's logistic and
tanh (Jacob et al., CVPR 2018, appendix B). Their output scales are 1/256 and 1/128 always.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from aotgen.ir.requant import quantize_multiplier, rounding_divide_by_pot
from aotgen.ops import fixed_point as fp
from aotgen.ops.exp_tables import exp_of_negative

Int64 = npt.NDArray[np.int64]

INTEGER_BITS = 4
"""Bits before the point of the scaled input."""

_ONE = (1 << 31) - 1


def sigmoid_steps(x: Int64, scale: float) -> Int64:
    """int8 of 256 * sigmoid - 128, for inputs ``x`` less their zero point, of ``scale``."""
    a, radius = _scaled(x, scale)
    value = _one_over_one_plus(exp_of_negative(-np.abs(a), INTEGER_BITS))
    value = np.where(a > 0, value, _ONE - value)
    value = np.where(a == 0, 1 << 30, value)
    steps = np.minimum(_to_bits(value, 8) - 128, 127)
    return np.where(x <= -radius, -128, np.where(x >= radius, 127, steps))


def tanh_steps(x: Int64, scale: float) -> Int64:
    """int8 of 128 * tanh, for inputs ``x`` less their zero point, of ``scale``."""
    a, radius = _scaled(x, scale)
    # Of twice the input: the same integer with a bit more before the point.
    e = exp_of_negative(-np.abs(a), INTEGER_BITS + 1)
    value = fp.saturating_shift_left(fp.inverse_estimate((e >> 1) + (1 << 30)) - (1 << 29), 2)
    value = np.where(a == 0, 0, np.where(a < 0, -value, value))
    steps = np.clip(_to_bits(value, 7), -128, 127)
    return np.where(x <= -radius, -128, np.where(x >= radius, 127, steps))


def _scaled(x: Int64, scale: float) -> tuple[Int64, int]:
    """``x`` with 27 bits behind the point, and where it leaves the range."""
    real = scale * (1 << (31 - INTEGER_BITS))
    multiplier, shift = quantize_multiplier(real)
    # Not ``shift``, which ends at 30: from a scale of 8 on nothing is inside, 0 itself included.
    exponent = math.frexp(real)[1]
    radius = math.floor(((1 << INTEGER_BITS) - 1) * 2.0 ** (31 - INTEGER_BITS - exponent))
    inside = np.clip(x, -radius, radius)
    return fp.scaled(inside, multiplier, shift), radius


def _one_over_one_plus(x: Int64) -> Int64:
    """1 / (1 + x) for x in 0..1, both with 31 bits behind the point."""
    result: Int64 = fp.one_over((x >> 1) + (1 << 30))
    return result


def _to_bits(x: Int64, bits: int) -> Int64:
    return rounding_divide_by_pot(x, np.asarray(31 - bits, np.int64))
