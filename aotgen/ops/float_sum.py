"""Sums of two 8-bit tensors in float32, where that provably gives the fixed-point result.

Two operands of 8 bits have 65536 pairs of values. So whether round(a * A + (b * B + C)) is the
reference's sum for every one of them can be tried out while compiling, and where the first A, B
and C are not right, neighbours of them mostly are. Products and sums may be fused or not: both are
tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.ir.types import DType
from aotgen.te.compute import int_range
from aotgen.te.expr import Const, Expr, call, cast, const

F32 = npt.NDArray[np.float32]

_SMALLEST = 2.0**-16
"""Coefficients from it on keep a product and a sum exact in float64, so that one rounding of it is
what a fused operation gives."""

_LARGEST = 64.0
"""Coefficients up to it keep every sum far from where the conversion to an integer ends."""

_STEP = 2.0**-20
"""Distance between the constants that are tried."""

Attributes = Mapping[str, Any]
Rule = Callable[..., Any]
"""Attributes and two int64 arrays to the op's own result, clamped."""

ATTRIBUTES = (
    "zeros",
    "left_shift",
    "multipliers",
    "shifts",
    "multiplier",
    "shift",
    "zero_point",
    "lo",
    "hi",
)
"""The attributes that a rule reads."""


def expression(
    rule: Rule, attrs: Attributes, signs: tuple[int, int], a: Expr, b: Expr
) -> Expr | None:
    """``rule`` of two expressions by float32 operations; None where they or the output are not of 8
    bits, or no constants are found.

    Args:
        rule: of the op.
        attrs: of the node (``aotgen.ops.quantized_elementwise``).
        signs: of the operands in the sum.
    """
    if isinstance(a, Const) or isinstance(b, Const):
        return None
    found = coefficients(rule, attrs, signs, (a.dtype, b.dtype))
    if found is None:
        return None
    first, second, constant = (const(v, DType.F32) for v in found)
    x, y = (cast(DType.F32, cast(DType.I32, v)) for v in (a, b))
    whole = cast(DType.I32, call("round", x * first + (y * second + constant)))
    lo, hi = (const(attrs[k], DType.I32) for k in ("lo", "hi"))
    return cast(attrs["dtype"], call("min", call("max", whole, lo), hi))


def coefficients(
    rule: Rule, attrs: Attributes, signs: tuple[int, int], dtypes: tuple[DType, DType]
) -> tuple[float, float, float] | None:
    """A, B and C, float32 numbers, with which the rounded sum is right for all pairs of operands of
    ``dtypes``, clamped or before the clamp of the output's type; None as ``expression``.
    """
    if any(d not in (DType.I8, DType.U8) for d in (*dtypes, attrs["dtype"])):
        return None
    return _coefficients(rule, tuple((k, attrs[k]) for k in ATTRIBUTES), signs, dtypes)


def ideal(attrs: Attributes, signs: tuple[int, int]) -> tuple[float, float, float]:
    """A, B and C in real numbers."""

    def real(multiplier: int, shift: int) -> float:
        return multiplier * 2.0 ** (shift - 31)

    out = real(attrs["multiplier"], attrs["shift"]) * 2.0 ** attrs["left_shift"]
    triples = zip(signs, attrs["multipliers"], attrs["shifts"], strict=True)
    a, b = (sign * real(m, shift) * out for sign, m, shift in triples)
    return a, b, attrs["zero_point"] - attrs["zeros"][0] * a - attrs["zeros"][1] * b


@lru_cache(maxsize=256)
def _coefficients(
    rule: Rule,
    items: tuple[tuple[str, Any], ...],
    signs: tuple[int, int],
    dtypes: tuple[DType, DType],
) -> tuple[float, float, float] | None:
    """(A, B, C) that are right for all pairs, the attributes as ``items``."""
    attrs = dict(items)
    a, b, constant = ideal(attrs, signs)
    if not all(_SMALLEST <= abs(v) <= _LARGEST for v in (a, b)):
        return None
    x, y = (np.arange(lo, hi + 1, dtype=np.int64) for lo, hi in map(int_range, dtypes))
    x, y = x[:, None], y[None, :]
    want = np.asarray(rule(attrs, x, y), np.int64)
    for first, second, third in _neighbours(a, b, constant):
        if all(
            np.array_equal(np.clip(np.rint(values), attrs["lo"], attrs["hi"]), want)
            for values in _sums(x, y, first, second, third)
        ):
            return float(first), float(second), float(third)
    return None


def _neighbours(
    a: float, b: float, constant: float
) -> Iterator[tuple[np.float32, np.float32, np.float32]]:
    near = (0, 1, -1, 2, -2)
    offsets = (0, 1, -1, 3, -3, 10, -10, 20, -20)
    first, second = np.float32(a), np.float32(b)
    for i, j, k in itertools.product(near, near, offsets):
        moved_a = first + np.float32(i) * np.spacing(first)
        moved_b = second + np.float32(j) * np.spacing(second)
        yield moved_a, moved_b, np.float32((round(constant / _STEP) + k) * _STEP)


def _sums(
    x: npt.NDArray[np.int64],
    y: npt.NDArray[np.int64],
    a: np.float32,
    b: np.float32,
    constant: np.float32,
) -> Iterator[F32]:
    """All pairs' sums, each product fused with its sum and not."""
    inner = [
        y.astype(np.float32) * b + constant,
        (y * np.float64(b) + np.float64(constant)).astype(np.float32),
    ]
    for part in inner:
        yield x.astype(np.float32) * a + part
        yield (x * np.float64(a) + part.astype(np.float64)).astype(np.float32)
