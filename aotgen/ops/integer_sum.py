"""Sums of two 8-bit tensors, and changes of scale of one, by products of int32, where that provably
gives the fixed-point result.

TFLite's sum rounds three times. But two operands of 8 bits have 65536 pairs of values, so whether
(a * A + b * B + C) >> S, clamped, is the reference's sum for every one of them can be tried out
while compiling. For given A and B each pair bounds C from below and above, so no C need be guessed;
and only pairs whose sums lie near the next integer can fail. Cores without a fast path from
integers to float32 (``aotgen.ops.float_sum``) compute it in two multiply-accumulates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.ir.types import DType
from aotgen.ops.float_sum import ATTRIBUTES, ideal
from aotgen.te.compute import int_range

I64 = npt.NDArray[np.int64]

_LARGEST = (1 << 31) - 1
"""What no sum of any pair, and no part of it, may exceed."""

_SHIFTS = range(30, 15, -1)
"""Bits behind the point that are tried, the finest first."""

_OF_SCALE = ("zeros", "multiplier", "shift", "zero_point", "lo", "hi")
"""The attributes that the rule of a change of scale reads."""

_NEIGHBOURS = 3
"""Steps from the ideal coefficients that are tried."""

_NEAR = 2.0**-7
"""Pairs whose sum is farther from an integer than this are right anyway."""


@dataclass(frozen=True)
class IntegerSum:
    """(sum of operand * factor, + constant) >> shift is the result before the clamp, or beyond it
    on the same side; no int32 overflows, in whatever order the products are added.
    """

    factors: tuple[int, ...]
    constant: int
    shift: int


def integer_sum(
    rule: Callable[..., Any],
    attrs: Mapping[str, Any],
    signs: tuple[int, int],
    dtypes: tuple[DType, DType],
) -> IntegerSum | None:
    """The coefficients, or None where the operands or the output are not of 8 bits, or there are
    none.

    Args:
        rule: attributes and two int64 arrays to the op's own result, clamped.
        attrs: of the node (``aotgen.ops.quantized_elementwise``).
        signs: of the operands in the sum.
        dtypes: of the operands.
    """
    if any(d not in (DType.I8, DType.U8) for d in (*dtypes, attrs["dtype"])):
        return None
    return _integer_sum(rule, tuple((k, attrs[k]) for k in ATTRIBUTES), signs, dtypes)


def integer_scale(
    rule: Callable[..., Any], attrs: Mapping[str, Any], dtype: DType
) -> IntegerSum | None:
    """The same for an op of one operand of 8 bits, which it moves to another scale: one factor.

    Where that is below 1/2 the reference rounds whole numbers once more, and mostly there is none.
    """
    if any(d not in (DType.I8, DType.U8) for d in (dtype, attrs["dtype"])):
        return None
    return _integer_scale(rule, tuple((k, attrs[k]) for k in _OF_SCALE), dtype)


@lru_cache(maxsize=256)
def _integer_sum(
    rule: Callable[..., Any],
    items: tuple[tuple[str, Any], ...],
    signs: tuple[int, int],
    dtypes: tuple[DType, DType],
) -> IntegerSum | None:
    attrs = dict(items)
    *ideals, constant = ideal(attrs, signs)
    x, y = (np.arange(lo, hi + 1, dtype=np.int64) for lo, hi in map(int_range, dtypes))
    pairs = [v.reshape(-1) for v in np.broadcast_arrays(x[:, None], y[None, :])]
    return _search(_Problem(pairs, ideals, constant, rule, attrs))


@lru_cache(maxsize=256)
def _integer_scale(
    rule: Callable[..., Any], items: tuple[tuple[str, Any], ...], dtype: DType
) -> IntegerSum | None:
    attrs = dict(items)
    factor = attrs["multiplier"] * 2.0 ** (attrs["shift"] - 31)
    constant = attrs["zero_point"] - attrs["zeros"][0] * factor
    lo, hi = int_range(dtype)
    x = np.arange(lo, hi + 1, dtype=np.int64)
    return _search(_Problem([x], [factor], constant, rule, attrs))


class _Problem:
    """All values of the operands, and what the results are.

    Attributes:
        operands: their values, one array each.
        ideals: their factors in real numbers.
        constant: in real numbers.
    """

    def __init__(
        self,
        operands: Sequence[I64],
        ideals: Sequence[float],
        constant: float,
        rule: Callable[..., Any],
        attrs: Mapping[str, Any],
    ) -> None:
        self.operands, self.ideals, self.constant = operands, ideals, constant
        self.lo, self.hi = attrs["lo"], attrs["hi"]
        self.want = np.asarray(rule(attrs, *operands), np.int64)
        real = sum(x * a for x, a in zip(operands, ideals, strict=True)) + constant
        distance = real + 0.5 - self.want
        self._least = (distance < _NEAR) & (self.want > self.lo)
        self._most = (distance > 1 - _NEAR) & (self.want < self.hi)

    def size(self) -> float:
        """The largest sum of magnitudes, with nothing behind the point."""
        parts = [np.abs(x).max() * abs(a) for x, a in zip(self.operands, self.ideals, strict=True)]
        return float(sum(parts) + abs(self.constant) + 0.5)

    def bounds(self, factors: Sequence[int], shift: int) -> tuple[int, int]:
        """The least and the greatest constant that may be right."""
        products = self._sum(factors)
        middle = round((self.constant + 0.5) * (1 << shift))
        low = ((self.want << shift) - products)[self._least]
        high = (((self.want + 1) << shift) - 1 - products)[self._most]
        return (
            int(low.max()) if low.size else middle - (1 << shift) // 4,
            int(high.min()) if high.size else middle + (1 << shift) // 4,
        )

    def solves(self, found: IntegerSum) -> bool:
        sums = (self._sum(found.factors) + found.constant) >> found.shift
        return np.array_equal(np.clip(sums, self.lo, self.hi), self.want)

    def _sum(self, factors: Sequence[int]) -> I64:
        return np.asarray(sum(x * f for x, f in zip(self.operands, factors, strict=True)))


def _search(problem: _Problem) -> IntegerSum | None:
    if not 0 < max(map(abs, problem.ideals)) <= 64:
        return None
    for shift in _SHIFTS:
        scale = 1 << shift
        if problem.size() * scale + scale > _LARGEST:  # neighbours are nearer than that
            continue
        middle = round((problem.constant + 0.5) * scale)
        for factors in _neighbours([round(a * scale) for a in problem.ideals]):
            low, high = problem.bounds(factors, shift)
            if low <= high:
                found = IntegerSum(factors, min(max(middle, low), high), shift)
                if problem.solves(found):
                    return found
    return None


def _neighbours(factors: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Factors near the given ones, the nearest first."""
    steps = range(-_NEIGHBOURS, _NEIGHBOURS + 1)
    every = itertools.product(steps, repeat=len(factors))
    for near in sorted(every, key=lambda d: (max(map(abs, d)), d)):
        yield tuple(f + d for f, d in zip(factors, near, strict=True))
