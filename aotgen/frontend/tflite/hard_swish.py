"""HARD_SWISH of 8-bit integers: x * relu6(x + 3) / 6 in 16-bit fixed point, as TFLite's reference
computes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.scales import F32
from aotgen.ir import requant
from aotgen.ir.requant import quantize_multiplier, reduced_multiplier

Int64 = npt.NDArray[np.int64]

HIRES_BITS = 7
"""Bits that the input is moved up by; it then fills 16."""

_I16_MIN, _I16_MAX = -(1 << 15), (1 << 15) - 1


def hard_swish_steps(x: Int64, scale_x: np.float32, node: TfliteNode) -> Any:
    """The output's integers less its zero point, for inputs ``x`` less theirs."""
    scale, _ = scales.of_output(node)
    fine = F32(1.0 / 128.0) * scale_x
    multiplier, exponent = quantize_multiplier(float(fine / scale))
    if exponent > 0:
        node.refuse(
            f"its output's scale {scale} is too small for its input's {scale_x}",
            "quantize the model again",
        )
    ramp_multiplier, ramp_exponent = quantize_multiplier(float(fine / F32(3.0 / 32768.0)))
    hires = x << HIRES_BITS
    scaled = _high_mul(hires, reduced_multiplier(multiplier), rounded=True)
    # relu6(x + 3) / 6 as (y + 1) / 2, y = x / 3 between -1 and 1: shifted up, where that is needed,
    # before and after the product so that it saturates only where y does.
    ramp = hires
    if ramp_exponent > 0:
        ramp = _shift_up(ramp, ramp_exponent - 1)
    ramp = _high_mul(ramp, reduced_multiplier(ramp_multiplier), rounded=True)
    if ramp_exponent > 0:
        ramp = _shift_up(ramp, 1)
    elif ramp_exponent < 0:
        ramp = _round_shift(ramp, -ramp_exponent)
    ramp = (ramp + (1 << 15)) >> 1
    return _round_shift(_high_mul(ramp, scaled, rounded=False), -exponent)


def _high_mul(a: Int64, b: Int64 | int, *, rounded: bool) -> Int64:
    """2 a b / 2^16 of 16-bit values, to nearest or towards zero."""
    product = np.asarray(a * np.asarray(b, np.int64))
    if rounded:
        product = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    high = np.sign(product) * (np.abs(product) >> 15)
    return np.asarray(np.minimum(high, _I16_MAX))  # -1 times -1


def _shift_up(x: Int64, bits: int) -> Int64:
    return np.asarray(np.clip(x << bits, _I16_MIN, _I16_MAX))


def _round_shift(x: Int64, bits: int) -> Int64:
    return requant.rounding_divide_by_pot(x, np.asarray(bits, np.int64))
