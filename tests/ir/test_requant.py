"""Requantization against values computed by hand and against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from aotgen.ir.requant import apply, doubling_high_mul, rounding_divide_by_pot
from aotgen.ir.types import DType, Requant

MIN, MAX = -(1 << 31), (1 << 31) - 1


def fixed(kind: str, multiplier: int, shift: int, zero_point: int = 0) -> Requant:
    return Requant(kind, (multiplier,), (shift,), (), zero_point, -128, 127)  # type: ignore[arg-type]


def acc(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (MIN, MIN, MAX),  # the one product that does not fit saturates
        (MIN, MAX, -MAX),  # -(2^31 - 1) exactly
        (1 << 30, 1 << 30, 1 << 29),
        (1, 1 << 30, 1),  # 0.5 goes up
        (-1, 1 << 30, 0),  # -0.5 goes up
        (3, 1 << 30, 2),  # 1.5
        (-3, 1 << 30, -1),  # -1.5
        (1, (1 << 30) - 1, 0),
        (-1, (1 << 30) + 1, -1),
    ],
)
def test_doubling_high_mul(a: int, b: int, want: int) -> None:
    assert int(doubling_high_mul(np.int64(a).reshape(1), np.int64(b).reshape(1))[0]) == want


@pytest.mark.parametrize(
    ("x", "exponent", "want"),
    [
        (5, 1, 3),  # 2.5 goes away from zero
        (-5, 1, -3),
        (4, 3, 1),
        (-4, 3, -1),
        (3, 3, 0),
        (-3, 3, 0),
        (-7, 0, -7),
        (MIN, 31, -1),
        (MAX, 31, 1),
    ],
)
def test_rounding_divide_by_pot(x: int, exponent: int, want: int) -> None:
    got = rounding_divide_by_pot(np.int64(x).reshape(1), np.int64(exponent).reshape(1))
    assert int(got[0]) == want


def test_double_and_single_rounding_differ_where_they_must() -> None:
    # multiplier 0.75, shift -1: x * 0.375.
    m = 3 << 29
    x = acc(1, 3, 4, -3, -4, 12, -12)
    # double: round(0.75 x) goes up at ties, then halves away from zero:
    #   1 -> 1 -> 1; 3 -> 2 -> 1; 4 -> 3 -> 2; -3 -> -2 -> -1; -4 -> -3 -> -2; 12 -> 9 -> 5
    np.testing.assert_array_equal(apply(fixed("tflm", m, -1), x), [1, 1, 2, -1, -2, 5, -5])
    # single: round(0.375 x), ties up: 0.375, 1.125, 1.5, -1.125, -1.5, 4.5, -4.5
    np.testing.assert_array_equal(apply(fixed("litert", m, -1), x), [0, 1, 2, -1, -1, 5, -4])


def test_left_shift_zero_point_and_clamp() -> None:
    m = 1 << 30  # 0.5, shift 2: times 2
    for kind in ("tflm", "litert"):
        got = apply(fixed(kind, m, 2, zero_point=-10), acc(0, 7, -7, 1000, -1000))
        assert got.dtype == np.int8
        np.testing.assert_array_equal(got, [-10, 4, -24, 127, -128])


def test_extreme_accumulators() -> None:
    for kind in ("tflm", "litert"):
        low, high = apply(fixed(kind, MAX, -24), acc(MIN, MAX))
        assert (int(low), int(high)) == (-128, 127)
        low, high = apply(fixed(kind, 1 << 30, -30), acc(MIN, MAX))
        # -2^31 / 2^31 = -1 exactly; MAX / 2^31 is a little below 1.
        assert (int(low), int(high)) == (-1, 1)


def test_per_channel() -> None:
    r = Requant("tflm", (1 << 30, 1 << 30), (1, 0), (), 0, -128, 127)
    got = apply(r, acc(10, 10, -6, -6).reshape(2, 2), axis=1)
    np.testing.assert_array_equal(got, [[10, 5], [-6, -3]])
    got = apply(r, acc(10, 10, -6, -6).reshape(2, 2), axis=0)
    np.testing.assert_array_equal(got, [[10, 10], [-3, -3]])
    with pytest.raises(ValueError, match="2 parameters"):
        apply(r, acc(1, 2, 3), axis=0)


def test_onnx_rounds_half_to_even() -> None:
    r = Requant("onnx", (), (), (0.5,), 3, 0, 255)
    got = apply(r, acc(1, 3, 5, -1, -3, 600, MIN, MAX), dtype=DType.U8)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, [3, 5, 5, 3, 1, 255, 0, 255])


def test_onnx_multiplies_in_float32() -> None:
    # 16777217 is not a float32: it becomes 16777216 before the product.
    r = Requant("onnx", (), (), (1.0,), 0, MIN, MAX)
    assert int(apply(r, acc(16777217), dtype=DType.I32)[0]) == 16777216


def test_single_rounding_against_exact_fractions() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-(1 << 20), 1 << 20, 300).astype(np.int32)
    for m, shift in [((1 << 30) + 12345, -9), (1999999999, -13), (1 << 30, 0)]:
        exact = [floor(Fraction(int(v) * m, 1 << (31 - shift)) + Fraction(1, 2)) for v in x]
        got = apply(Requant("litert", (m,), (shift,), (), 0, MIN, MAX), x, dtype=DType.I32)
        np.testing.assert_array_equal(got, exact)


def test_double_rounding_against_exact_fractions() -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-(1 << 20), 1 << 20, 300).astype(np.int32)
    for m, shift in [((1 << 30) + 12345, -9), (1999999999, -13), (1 << 30, 3)]:
        want = []
        for v in x:
            scaled = int(v) << max(shift, 0)
            high = floor(Fraction(scaled * m, 1 << 31) + Fraction(1, 2))
            part = Fraction(abs(high), 1 << max(-shift, 0))
            want.append(floor(part + Fraction(1, 2)) * (1 if high >= 0 else -1))
        got = apply(Requant("tflm", (m,), (shift,), (), 0, MIN, MAX), x, dtype=DType.I32)
        np.testing.assert_array_equal(got, want)
