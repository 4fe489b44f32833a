"""softmax, log_softmax and the L2 norm along the last axis in integers, as TFLite's kernels.

Formulas are written once for numpy and te (``fixed_point``). Inputs of 8 bits have a difference
from their row's maximum in 0..255, so exponentials are tables made while compiling; what is left
for the run is a sum and its reciprocal, logarithm or inverse square root.

Attributes: dtype and quant of the output, and

    qsoftmax, qlog_softmax    multiplier, shift and lowest of ``exp_tables.difference_scale``
    qlog_softmax              reverse_multiplier, reverse_shift: from scaled differences back to
                              elements
    qsoftmax_i16              multiplier, shift: to units of 10 / 65535; exp and reciprocal: tables
    ql2_norm                  zero: of the input
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops import exp_tables
from aotgen.ops import fixed_point as fp
from aotgen.ops.common import AnyArray, Arrays, expect_rank, fail, need, type_of
from aotgen.ops.fixed_point import Operand
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, present, reduce, table
from aotgen.te.expr import Expr, call, cast
from aotgen.te.index import Index
from aotgen.te.simplify import elem

MOST_TERMS = 4095
"""Most exponentials with 19 bits behind the point that an int32 adds up."""

MOST_TERMS_I16 = 65535
"""Most exponentials with 15 bits behind the point that an int32 adds up."""

EIGHT_BITS = (DType.I8, DType.U8)


class Row:
    """One row of the input, or all rows at once: what the formulas are written with.

    Attributes:
        extent: elements of the row.
    """

    extent: int

    def map(self, function: Callable[[Operand], Operand]) -> Row:
        """Every element through ``function``."""
        raise NotImplementedError

    def sum(self) -> Operand:
        raise NotImplementedError

    def max(self) -> Operand:
        raise NotImplementedError


class _NumpyRow(Row):
    """All rows of an array along its last axis."""

    def __init__(self, x: AnyArray) -> None:
        self.x, self.extent = x, x.shape[-1]

    def map(self, function: Callable[[Operand], Operand]) -> Row:
        return _NumpyRow(function(self.x))

    def sum(self) -> Operand:
        return fp.wrapped(np.sum(self.x, axis=-1, keepdims=True))

    def max(self) -> Operand:
        return np.max(self.x, axis=-1, keepdims=True)


class _TeRow(Row):
    """The row of a tensor at given outer indices."""

    def __init__(self, element: Callable[[Index], Expr], extent: int) -> None:
        self.element, self.extent = element, extent

    def map(self, function: Callable[[Operand], Operand]) -> Row:
        return _TeRow(lambda j: function(self.element(j)), self.extent)

    def sum(self) -> Operand:
        return reduce("sum", [("k", self.extent)], self.element)

    def max(self) -> Operand:
        return reduce("max", [("k", self.extent)], self.element)


Formula = Callable[[dict[str, Any], Row], Callable[[Operand], Operand]]
"""Attributes and a row to the function that maps an element of it to its result."""


class _Table:
    """Constant int32 numbers that are read at an index within them; te stores them once."""

    def __init__(self, name: str, values: Sequence[int] | AnyArray) -> None:
        self.array = np.asarray(values, np.int32)
        self.tensor = table(name, self.array)

    def __call__(self, index: Operand) -> Operand:
        if isinstance(index, Expr):
            return self.tensor(elem(index, (0, len(self.array) - 1)))
        return self.array.astype(np.int64)[index]


class _Interpolated:
    """Between the entries of a table on both sides of an int16, one every 128 values, rounded half
    up.
    """

    def __init__(self, name: str, entries: Sequence[int]) -> None:
        values = np.asarray(entries, np.int32)
        self.low = _Table(name, values[:-1])
        self.steps = _Table(f"{name}_steps", values[1:] - values[:-1])

    def __call__(self, x: Operand) -> Operand:
        index = fp.shift_right(x, 7) + 256
        return self.low(index) + fp.shift_right(self.steps(index) * fp.low_bits(x, 7) + 64, 7)


def _once(word: str, formula: Callable[[Operand], Operand], x: Operand) -> Operand:
    """``formula`` of something that a row has one of. It is long, so te has a call of ``word``,
    whose C text is templates/simd/fixed_math_functions.j2.
    """
    return call(word, x) if isinstance(x, Expr) else formula(x)


def _spare_bits(x: Operand) -> Operand:
    return _once("spare_bits", lambda x: fp.normalised(x)[1], x)


def _one_over(x: Operand) -> Operand:
    return _once("one_over", fp.one_over, x)


def _sum_of_powers(row: Row, top: Operand, powers: _Table) -> Operand:
    """The sum of ``powers``(x - top + 255) over a row, with 19 bits behind the point."""

    def term(x: Operand) -> Operand:
        return fp.rounding_shift(powers((x + 255) - top), fp.like(x, 12))

    return row.map(term).sum()


def _quotient(value: Operand, bits: Operand, most: int) -> Operand:
    """``value`` / 2^``bits`` to nearest; ``most`` is the largest ``bits`` that can occur. Below
    2^31, a value moved by more than 31 bits is 0.
    """
    if most <= 31:
        return fp.rounding_shift(value, bits)
    beyond = fp.compare("greater", bits, fp.like(bits, 31))
    return fp.select(beyond, fp.like(value, 0), fp.rounding_shift(value, fp.at_most(bits, 31)))


def _softmax(attrs: dict[str, Any], row: Row) -> Callable[[Operand], Operand]:
    """exp(x - max) / sum: the sum with 19 bits behind the point, its reciprocal by Newton's method,
    and the quotient in the steps of the output's type, 2^-8 or 2^-16.
    """
    scale = attrs["multiplier"], attrs["shift"]
    powers = _Table("exp", exp_tables.exp_of_differences(*scale, attrs["lowest"]))
    top = row.max()
    total = _sum_of_powers(row, top, powers)
    room = _spare_bits(total)
    inverse = _one_over(fp.shift_left_by(total, room))
    dtype = attrs["dtype"]
    lo, hi = fp.limits(dtype)
    bits = 42 - 8 * dtype.size - room

    def result(x: Operand) -> Operand:
        product = fp.srdhm(inverse, powers((x + 255) - top))
        # A sum of n terms leaves at least this much room.
        least = max(12 - row.extent.bit_length(), 0)
        return fp.at_most(_quotient(product, bits, 42 - 8 * dtype.size - least) + lo, hi)

    return result


def _log_at_least_one(x: Operand) -> Operand:
    """log of ``x`` >= 1 with 19 bits behind the point, with 26 of them.

    x is brought near 2^(-1/4) by halves of powers of two, where a quotient of polynomials is near
    enough.
    """
    log_2, root_half, fourth_root, quarter = 1488522236, 1518500250, 1805811301, 1 << 23
    normal, room = fp.normalised(x)
    first = fp.saturating_shift_left(fp.srdhm(normal, fp.like(x, root_half)), 1)
    power_a = fp.shift_left(11 - room, 25) + quarter
    _, room_b = fp.normalised(fp.srdhm(x, fp.like(x, root_half)))
    moved = fp.shift_left_by(x, room_b)
    # Where the second power has more room than x itself, x moves out of range and saturates.
    fits = fp.compare("less_equal", room_b, room)
    second = fp.select(fits, moved, fp.like(x, (1 << 31) - 1))
    power_b = fp.shift_left(12 - room_b, 25) - quarter
    smaller = fp.compare("less", first, second)
    near = fp.select(smaller, first, second)
    higher = fp.compare("less", power_b, power_a)
    power = fp.select(higher, power_a, power_b)

    # Half the sum with a constant that is odd, and not below 0: rounded up.
    mean = fp.shift_right(near, 1) + ((fourth_root >> 1) + 1)
    apart = near - fourth_root
    apart = apart + apart
    square = fp.srdhm(apart, apart)
    cube = fp.srdhm(apart, square)
    above = fp.srdhm(apart, near) + fp.srdhm(cube, fp.like(x, 117049297))
    inner = fp.srdhm(square, fp.like(x, 127690142)) + apart + 1057819769
    below = fp.srdhm(mean, inner) + fp.srdhm(apart, fp.like(x, 638450708))
    half = fp.shift_right(below, 1) + (1 << 30)
    scaled = fp.rounding_shift(above, fp.like(x, 6))
    rest = fp.srdhm(scaled, fp.one_over(half))
    return fp.saturating_shift_left(fp.srdhm(power, fp.like(x, log_2)) + rest, 1)


def _log_softmax(attrs: dict[str, Any], row: Row) -> Callable[[Operand], Operand]:
    """(x - max) - log(sum of exp(x - max)) in steps of 1/16 below the highest value."""
    scale = attrs["multiplier"], attrs["shift"]
    powers = _Table("exp", exp_tables.exp_of_differences(*scale, attrs["lowest"]))
    scaled = _Table("scaled", exp_tables.scaled_differences(*scale))
    top = row.max()
    total = _sum_of_powers(row, top, powers)
    log = _once("log_at_least_one", _log_at_least_one, total)
    lo, hi = fp.limits(attrs["dtype"])
    far = fp.scaled(log + fp.like(log, -(1 << 31)), *(attrs[f"reverse_{n}"] for n in SCALE))
    limit = fp.at_least(far, attrs["lowest"] - 1)

    def result(x: Operand) -> Operand:
        steps = fp.wrapped(scaled((x + 255) - top) - log)
        value = fp.clamp(fp.rounding_shift(steps, fp.like(steps, 22)) + hi, lo, hi)
        return fp.select(fp.compare("greater", x - top, limit), value, fp.like(value, lo))

    return result


SCALE = ("multiplier", "shift")


def _softmax_i16(attrs: dict[str, Any], row: Row) -> Callable[[Operand], Operand]:
    """exp and the sum's reciprocal from tables with linear interpolation."""
    exp = _Interpolated("exp", attrs["exp"])
    inverse = _Interpolated("reciprocal", attrs["reciprocal"])
    top = row.max()

    def power(x: Operand) -> Operand:
        difference = fp.scaled(x - top, attrs["multiplier"], attrs["shift"])
        return exp(fp.clamp(difference + 32767, -32768, 32767))

    total = row.map(power).sum()
    room = _spare_bits(total)
    normal = fp.shift_left_by(total, room)
    fraction = fp.shift_right(normal, 14) + fp.low_bits(fp.shift_right(normal, 13), 1)
    factor = inverse(fp.at_most(fraction - (3 << 15), 32767))
    bits = 30 - room
    half = fp.shift_left_by(fp.like(bits, 1), bits - 1)

    def result(x: Operand) -> Operand:
        return fp.clamp(fp.shift_right_by(power(x) * factor + half, bits), 0, 32767)

    return result


def inverse_root(x: Operand) -> tuple[Operand, Operand]:
    """1 / sqrt(x) of a whole number as a multiplier and a shift to the right; of 0 as of 1.

    Five steps of Newton's method on x brought to [1/4, 1), as TFLite's
    GetInvSqrtQuantizedMultiplierExp.
    """
    big = fp.compare("greater_equal", x, fp.like(x, 1 << 29))
    value = fp.select(big, fp.shift_right(x, 2), x)
    small = fp.compare("less_equal", x, fp.like(x, 1))
    value = fp.select(small, fp.like(x, 2), value)
    _, room = fp.normalised(value)
    pairs = fp.shift_right(room, 1) - 1
    shift = fp.select(big, fp.like(x, 12), fp.like(x, 11)) - pairs
    value = fp.shift_right(fp.shift_left_by(value, fp.shift_left(pairs, 1)), 1)
    half = fp.rounding_shift(value, fp.like(x, 1))
    root = fp.like(x, 1 << 28)
    for _ in range(5):
        cube = fp.saturating_shift_left(fp.srdhm(fp.srdhm(root, root), root), 6)
        step = fp.srdhm(root, fp.like(x, 3 << 27)) - fp.srdhm(half, cube)
        root = fp.saturating_shift_left(step, 3)
    root = fp.srdhm(root, fp.like(x, 1518500250))
    root = fp.shift_left_by(root, fp.at_least(fp.negated(shift), 0))
    return (
        fp.select(small, fp.like(x, (1 << 31) - 1), root),
        fp.select(small, fp.like(x, 0), fp.at_least(shift, 0)),
    )


def _l2_norm(attrs: dict[str, Any], row: Row) -> Callable[[Operand], Operand]:
    """(x - zero) / sqrt(sum of (x - zero)^2) in steps of 1/128."""
    zero, dtype = attrs["zero"], attrs["dtype"]
    lo, hi = fp.limits(dtype)
    total = row.map(lambda x: (x - zero) * (x - zero)).sum()
    factor = _once("inverse_root", lambda x: inverse_root(x)[0], total)
    shift = _once("inverse_root_shift", lambda x: inverse_root(x)[1], total)

    def result(x: Operand) -> Operand:
        if dtype is DType.U8:
            product = fp.srdhm((x - zero) * 128, factor)
            return fp.clamp(fp.rounding_shift(product, shift) + 128, lo, hi)
        left, right = fp.at_least(7 - shift, 0), fp.at_least(shift - 7, 0)
        product = fp.srdhm(fp.shift_left_by(x - zero, left), factor)
        return fp.clamp(fp.rounding_shift(product, right), lo, hi)

    return result


def _infer(
    inputs: Sequence[DType], outputs: Sequence[DType], most: int
) -> Callable[[Node], list[TensorType]]:
    def infer(node: Node) -> list[TensorType]:
        x, dtype = type_of(node), node.attrs["dtype"]
        expect_rank(node, x, 1)
        if x.dtype not in inputs or dtype not in outputs:
            fail(node, f"does not map {x.dtype.value} to {dtype.value}")
        if not 0 < x.max_shape[-1] <= most:
            fail(node, f"has rows of {x.max_shape[-1]} elements, at most {most} are exact")
        return [TensorType(dtype, x.shape, node.attrs["quant"])]

    return infer


def _register(name: str, infer: Callable[[Node], list[TensorType]], formula: Formula) -> None:
    """A row op whose numpy and te definitions are both ``formula``."""

    def numpy_rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        x = need(arrays)
        wide = fp.wide(x)
        result = formula(node.attrs, _NumpyRow(wide))(wide)
        return [np.asarray(fp.narrow(result, node.attrs["dtype"]))]

    def te_rule(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        x = present(inputs, 0)
        rows: dict[tuple[Index, ...], Callable[[Operand], Operand]] = {}

        def element(*i: Index) -> Expr:
            outer = i[:-1]
            if outer not in rows:
                row = _TeRow(lambda j: fp.wide(x(*outer, j)), x.shape[-1])
                rows[outer] = formula(node.attrs, row)
            return cast(node.attrs["dtype"], rows[outer](fp.wide(x(*i))))

        return (compute(x.shape, node.attrs["dtype"], element),)

    register(OpDef(name, OpPattern.REDUCE, infer, numpy_rule, te_rule))


_register("qsoftmax", _infer(EIGHT_BITS, (*EIGHT_BITS, DType.I16), MOST_TERMS), _softmax)
_register("qlog_softmax", _infer(EIGHT_BITS, EIGHT_BITS, MOST_TERMS), _log_softmax)
_register("qsoftmax_i16", _infer((DType.I16,), (DType.I16,), MOST_TERMS_I16), _softmax_i16)
_register("ql2_norm", _infer(EIGHT_BITS, EIGHT_BITS, 1 << 15), _l2_norm)
