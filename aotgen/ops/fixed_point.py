"""Integer formulas written once, for numpy arrays and for te expressions alike.

An operand is either an int64 array, whose values are those of an int32, or an int32 expression; the
functions here do the same to both, and so do ``+``, ``-`` and ``*``. The arithmetic is gemmlowp's:
Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", CVPR 2018, section 2.2 and appendix B.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgen.ir import requant
from aotgen.ir.types import DType
from aotgen.ops.common import AnyArray
from aotgen.te.compute import int_range
from aotgen.te.expr import Call, Cast, Const, Expr, call, cast, const
from aotgen.te.expr import select as te_select

Operand = Any
"""An int64 array or an int32 expression."""

HALF = 1 << 30
"""The multiplier of a power of two."""

UNIT = (HALF, 1)
"""The multiplier and the shift that leave a value as it is, unless twice it overflows."""


def wide(x: AnyArray | Expr) -> Operand:
    """``x`` in the type that the formulas compute in."""
    return cast(DType.I32, x) if isinstance(x, Expr) else x.astype(np.int64)


def narrow(x: Operand, dtype: DType) -> AnyArray | Expr:
    """``x``, which lies in the range of ``dtype``, as ``dtype``."""
    return cast(dtype, x) if isinstance(x, Expr) else np.asarray(x).astype(dtype.numpy)


def wrapped(x: Operand) -> Operand:
    """``x`` as an int32 holds it; expressions are that already."""
    return x if isinstance(x, Expr) else ((x + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def _literal(x: Const) -> AnyArray:
    return np.asarray(x.value, np.int64)


def minus(x: Operand, number: int) -> Operand:
    """``x`` - ``number``, which wraps around."""
    if number == 0:
        return x
    if isinstance(x, Const):
        return like(x, int(minus(_literal(x), number)))
    return wrapped(x - number)


def shift_left(x: Operand, bits: int) -> Operand:
    """``x`` * 2^``bits``, which wraps around."""
    if bits == 0:
        return x
    if isinstance(x, Const):
        return like(x, int(shift_left(_literal(x), bits)))
    if isinstance(x, Expr):
        return call("shift_left", x, const(bits, DType.I32))
    return wrapped(x << bits)


def scaled(x: Operand, multiplier: int, shift: int) -> Operand:
    """``x`` * ``multiplier`` * 2^(``shift`` - 31) to nearest, rounded twice as the ``tflm`` kind of
    a Requant is: TFLite's MultiplyByQuantizedMultiplier.
    """
    if isinstance(x, Const):
        return like(x, int(scaled(_literal(x), multiplier, shift)))
    if isinstance(x, Expr):
        if (multiplier, shift) == UNIT and _is_short(x):
            return x
        return call("requantize_tflm", x, const(multiplier, DType.I32), const(shift, DType.I32))
    high = requant.doubling_high_mul(shift_left(x, max(shift, 0)), np.int64(multiplier))
    return requant.rounding_divide_by_pot(high, np.int64(max(-shift, 0)))


def _is_short(x: Expr) -> bool:
    """Whether ``x`` is an element of 16 bits or fewer, perhaps less a zero point: doubled, it does
    not leave int32.
    """
    if isinstance(x, Call) and x.fn in ("add", "sub"):
        a, b = x.args
        return _is_short(a) and isinstance(b, Const) and abs(int(b.value)) < 1 << 16
    return isinstance(x, Cast) and x.a.dtype in (DType.I8, DType.U8, DType.I16)


def like(x: Operand, value: int) -> Operand:
    """``value`` as an operand beside ``x``."""
    return const(value, DType.I32) if isinstance(x, Expr) else np.int64(value)


def srdhm(a: Operand, b: Operand) -> Operand:
    """gemmlowp's SaturatingRoundingDoublingHighMul: (a * b + 2^30) >> 31, saturated."""
    return call("srdhm", a, b) if isinstance(a, Expr) else requant.doubling_high_mul(a, b)


def rounding_shift(x: Operand, bits: Operand) -> Operand:
    """gemmlowp's RoundingDivideByPOT: ``x`` / 2^``bits``, ties away from zero; bits in 0..31."""
    if isinstance(x, Expr):
        return call("rounding_shift", x, bits)
    return requant.rounding_divide_by_pot(x, bits)


def saturating_shift_left(x: Operand, bits: int) -> Operand:
    """``x`` * 2^``bits`` within int32: gemmlowp's SaturatingRoundingMultiplyByPOT."""
    most = ((1 << 31) - 1) >> bits
    lowest, highest = like(x, -(1 << 31)), like(x, (1 << 31) - 1)
    inside = shift_left(clamp(x, -most - 1, most), bits)
    low = compare("less", x, like(x, -most - 1))
    high = compare("greater", x, like(x, most))
    return select(low, lowest, select(high, highest, inside))


def normalised(x: Operand) -> tuple[Operand, Operand]:
    """(``x`` * 2^n, n) with the largest n that keeps it below 2^31, for ``x`` >= 0; 31 for 0."""
    bits = like(x, 0)
    for step in (16, 8, 4, 2, 1):
        small = compare("less", x, like(x, 1 << (31 - step)))
        x = select(small, shift_left(x, step), x)
        bits = select(small, bits + step, bits)
    return x, bits


def leading_sign_bits(x: Operand) -> Operand:
    """How many bits ``x`` can move up before it overflows, at most 31."""
    return normalised(select(negative(x), -1 - x, x))[1]


def shift_left_by(x: Operand, bits: Operand) -> Operand:
    """``x`` * 2^``bits``, which wraps around; bits in 0..31."""
    return call("shift_left", x, bits) if isinstance(x, Expr) else wrapped(x << bits)


def shift_right_by(x: Operand, bits: Operand) -> Operand:
    """floor(``x`` / 2^``bits``); bits in 0..31."""
    return call("shift_right", x, bits) if isinstance(x, Expr) else x >> bits


def negated(x: Operand) -> Operand:
    return call("neg", x) if isinstance(x, Expr) else wrapped(-x)


def one_over(x: Operand) -> Operand:
    """2^61 / ``x`` for ``x`` in [2^30, 2^31], as gemmlowp's one_over_one_plus_x_for_x_in_0_1."""
    return saturating_shift_left(inverse_estimate(x), 1)


def inverse_estimate(x: Operand) -> Operand:
    """2^60 / ``x`` for ``x`` in [2^30, 2^31], by three steps of Newton and Raphson as gemmlowp
    takes them.
    """
    # x is half the denominator with 31 bits behind the point; the estimate has 29.
    estimate = 1515870810 + srdhm(x, like(x, -1010580540))
    for _ in range(3):
        rest = (1 << 29) - srdhm(x, estimate)
        estimate = estimate + saturating_shift_left(srdhm(estimate, rest), 2)
    return estimate


def shift_right(x: Operand, bits: int) -> Operand:
    """floor(``x`` / 2^``bits``)."""
    return call("shift_right", x, const(bits, DType.I32)) if isinstance(x, Expr) else x >> bits


def low_bits(x: Operand, bits: int) -> Operand:
    """``x`` modulo 2^``bits``."""
    mask = (1 << bits) - 1
    return call("bit_and", x, const(mask, DType.I32)) if isinstance(x, Expr) else x & mask


def at_least(x: Operand, low: int) -> Operand:
    return call("max", x, const(low, DType.I32)) if isinstance(x, Expr) else np.maximum(x, low)


def at_most(x: Operand, high: int) -> Operand:
    return call("min", x, const(high, DType.I32)) if isinstance(x, Expr) else np.minimum(x, high)


def clamp(x: Operand, lo: int, hi: int) -> Operand:
    """``x`` within [``lo``, ``hi``]; ``hi`` where ``lo`` is above it."""
    return at_most(at_least(x, lo), hi)


def negative(x: Operand) -> Operand:
    """Whether ``x`` is below 0."""
    return call("less", x, const(0, DType.I32)) if isinstance(x, Expr) else x < 0


def compare(fn: str, a: Operand, b: Operand) -> AnyArray | Expr:
    """``fn`` of te's comparisons as bool."""
    if isinstance(a, Expr):
        return call(fn, a, b)
    return np.asarray(getattr(np, fn)(a, b))


def select(cond: Operand, a: Operand, b: Operand) -> Operand:
    """``a`` where ``cond``, else ``b``; both are computed."""
    if isinstance(a, Expr):
        return te_select(cond, a, b)
    return np.where(cond, a, b)


def limits(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    return int_range(dtype)
