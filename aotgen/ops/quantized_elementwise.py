"""Element-wise ops of quantized tensors in integers: TFLite's sums, products, comparisons.

Every op subtracts its inputs' zero points, scales by fixed-point multipliers (``fixed_point``),
adds the output's zero point and clamps. The frontend computes the parameters, which are attributes:

    zeros        of the inputs, one each
    left_shift   bits that the inputs move up before they are scaled, against rounding errors
    multipliers  and ``shifts``: of the inputs, one each, after that
    multiplier   and ``shift``: of the result
    zero_point   of the output
    lo, hi       the output's range after its activation
    dtype, quant of the output
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops import fixed_point as fp
from aotgen.ops import float_sum
from aotgen.ops.common import AnyArray, Arrays, broadcast_shape, fail, need, type_of
from aotgen.ops.fixed_point import Operand
from aotgen.ops.integer_sum import IntegerSum, integer_scale, integer_sum
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import broadcasting
from aotgen.te.expr import Const, Expr, cast, const

Attributes = Mapping[str, Any]
Formula = Callable[..., Any]
"""Attributes and operands to the result's operand, within the range of the output's type."""

INTEGERS = (DType.I8, DType.U8, DType.I16, DType.U16, DType.I32)


def _check_inputs(node: Node, dtypes: Sequence[DType] = INTEGERS) -> list[TensorType]:
    types = [type_of(node, i) for i in range(len(node.inputs))]
    for t in types:
        if t.dtype not in dtypes:
            fail(node, f"has an input of type {t.dtype.value}, needs one of {_names(dtypes)}")
    return types


def _names(dtypes: Sequence[DType]) -> str:
    return ", ".join(d.value for d in dtypes)


def _infer(node: Node) -> list[TensorType]:
    """The broadcast shape of integer inputs; element type and quantization by attributes."""
    types, dtype = _check_inputs(node), node.attrs["dtype"]
    if dtype not in INTEGERS:
        fail(node, f"cannot give {dtype.value}")
    lo, hi = fp.limits(dtype)
    if not (lo <= node.attrs["lo"] and node.attrs["hi"] <= hi):
        fail(node, f"its clamp is beyond the range of {dtype.value}")
    shape = broadcast_shape(node, [t.shape for t in types])
    return [TensorType(dtype, shape, node.attrs["quant"])]


_SUMS: dict[str, tuple[Formula, tuple[int, int]]] = {}
"""Rule and signs of the ops that are sums."""

_SCALES: dict[str, Formula] = {}
"""Rule of the ops that move one operand to another scale."""


def sum_coefficients(node: Node) -> tuple[float, float, float] | None:
    """A, B and C of float32 that make the node, a sum of two 8-bit tensors, clamp(round(a A + (b B
    + C))); None where there are none (``float_sum``).
    """
    if node.op not in _SUMS or len(node.inputs) != 2:
        return None
    rule, signs = _SUMS[node.op]
    return float_sum.coefficients(
        rule, node.attrs, signs, (node.input(0).dtype, node.input(1).dtype)
    )


def integer_coefficients(node: Node) -> IntegerSum | None:
    """The same by two products of int32 (``integer_sum``)."""
    if node.op not in _SUMS or len(node.inputs) != 2:
        return None
    rule, signs = _SUMS[node.op]
    return integer_sum(rule, node.attrs, signs, (node.input(0).dtype, node.input(1).dtype))


def scale_coefficients(node: Node) -> IntegerSum | None:
    """Of a ``requantize`` of 8 bits: the same by one product (``integer_sum``)."""
    return integer_scale(_SCALES[node.op], node.attrs, node.input(0).dtype)


def _by_one_product(rule: Formula, attrs: Attributes, x: Expr) -> Expr | None:
    """A change of scale by ``integer_scale``, where it can be."""
    found = None if isinstance(x, Const) else integer_scale(rule, attrs, x.dtype)
    if found is None:
        return None
    product = fp.wide(x) * const(found.factors[0], DType.I32)
    moved = fp.shift_right(product + const(found.constant, DType.I32), found.shift)
    return cast(attrs["dtype"], fp.clamp(moved, attrs["lo"], attrs["hi"]))


def _register(
    name: str,
    pattern: OpPattern,
    formula: Formula,
    signs: tuple[int, int] | None = None,
    scales: bool = False,
) -> None:
    """An op with integer inputs whose numpy and te definitions are both ``formula``.

    Args:
        signs: of a sum of so many operands, which a few float operations may give as well
            (``float_sum``).
        scales: whether it moves one operand to another scale, which one product may do
            (``integer_sum``).
    """

    def rule(attrs: Attributes, *operands: Operand) -> Any:
        return _finished(attrs, formula(attrs, *operands))

    if signs is not None:
        _SUMS[name] = (rule, signs)
    if scales:
        _SCALES[name] = rule

    def numpy_rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        operands = [fp.wide(need(arrays, i)) for i in range(len(arrays))]
        return [np.asarray(fp.narrow(rule(node.attrs, *operands), node.attrs["dtype"]))]

    def te_rule(attrs: Attributes, *elements: Expr) -> Any:
        short = None
        if signs is not None and len(elements) == len(signs):
            short = float_sum.expression(rule, attrs, signs, elements[0], elements[1])
        elif scales:
            short = _by_one_product(rule, attrs, elements[0])
        if short is not None:
            return short
        return fp.narrow(rule(attrs, *map(fp.wide, elements)), attrs["dtype"])

    register(OpDef(name, pattern, _infer, numpy_rule, broadcasting(te_rule)))


def _finished(attrs: Attributes, x: Operand) -> Operand:
    """``x`` + the zero point, clamped."""
    if attrs["zero_point"]:
        x = fp.wrapped(x + attrs["zero_point"])
    if (attrs["lo"], attrs["hi"]) == fp.limits(DType.I32):
        return x
    return fp.clamp(x, attrs["lo"], attrs["hi"])


def _minus_zero(attrs: Attributes, index: int, x: Operand) -> Operand:
    return fp.minus(x, attrs["zeros"][index])


def _input(attrs: Attributes, index: int, x: Operand) -> Operand:
    """Input ``index`` on the scale that it shares with the other."""
    value, left = _minus_zero(attrs, index, x), attrs["left_shift"]
    multiplier, shift = attrs["multipliers"][index], attrs["shifts"][index]
    # A power of two, as one input of a sum always has, is a shift alone: nothing is rounded.
    whole = left - 1 + shift
    if multiplier == fp.HALF and left > 0 and 0 <= whole <= left:
        return fp.shift_left(value, whole)
    return fp.scaled(fp.shift_left(value, left), multiplier, shift)


def _result(attrs: Attributes, x: Operand) -> Operand:
    return fp.scaled(x, attrs["multiplier"], attrs["shift"])


def _requantize(attrs: Attributes, x: Operand) -> Operand:
    """(x - zero) on another scale."""
    return _result(attrs, _minus_zero(attrs, 0, x))


def _add(attrs: Attributes, *xs: Operand) -> Operand:
    """The sum of two inputs or more."""
    total = _input(attrs, 0, xs[0])
    for index, x in enumerate(xs[1:], start=1):
        total = total + _input(attrs, index, x)
    return _result(attrs, fp.wrapped(total))


def _sub(attrs: Attributes, a: Operand, b: Operand) -> Operand:
    return _result(attrs, fp.wrapped(_input(attrs, 0, a) - _input(attrs, 1, b)))


def _mul(attrs: Attributes, a: Operand, b: Operand) -> Operand:
    return _result(attrs, fp.wrapped(_minus_zero(attrs, 0, a) * _minus_zero(attrs, 1, b)))


def _squared_difference(attrs: Attributes, a: Operand, b: Operand) -> Operand:
    difference = _input(attrs, 0, a) - _input(attrs, 1, b)
    return _result(attrs, fp.wrapped(difference * difference))


def _prelu(attrs: Attributes, x: Operand, slope: Operand) -> Operand:
    """x, or x times the slope where x is below 0: each has a multiplier (``multipliers``)."""
    value = _minus_zero(attrs, 0, x)
    product = fp.wrapped(value * _minus_zero(attrs, 1, slope))
    above = fp.scaled(value, attrs["multipliers"][0], attrs["shifts"][0])
    below = fp.scaled(product, attrs["multipliers"][1], attrs["shifts"][1])
    return fp.select(fp.negative(value), below, above)


def _div(attrs: Attributes, a: Operand, b: Operand) -> Operand:
    """a / b by a reciprocal in fixed point; by 0 it is the zero point.

    TFLite's DivElementwise: the divisor is made positive, both are moved up as far as they go, and
    all shifts are made good at once.
    """
    a, b = _minus_zero(attrs, 0, a), _minus_zero(attrs, 1, b)
    below = fp.negative(b)
    a, b = fp.select(below, fp.negated(a), a), fp.select(below, fp.negated(b), b)
    normal, room = fp.normalised(b)
    inverse = fp.one_over(normal)
    spare = fp.leading_sign_bits(a)
    quotient = fp.srdhm(fp.shift_left_by(a, spare), inverse)
    # What normalising b divided by is 2^(30 - room).
    right = spare - room + (30 - attrs["shift"])
    high = fp.srdhm(quotient, fp.like(quotient, attrs["multiplier"]))
    value = fp.rounding_shift(high, fp.clamp(right, 0, 31))
    # Beyond 31 bits TFLite's shift is one by 32 bits less, and its rounding adds 1 from 0 on.
    beyond = fp.shift_right_by(high, fp.clamp(right - 32, 0, 31))
    beyond = beyond + fp.select(fp.negative(high), fp.like(high, 0), fp.like(high, 1))
    value = fp.select(fp.compare("greater", right, fp.like(right, 31)), beyond, value)
    return fp.select(fp.compare("equal", b, fp.like(b, 0)), fp.like(b, 0), value)


_register("requantize", OpPattern.ELEMENTWISE, _requantize, scales=True)
_register("qadd", OpPattern.BROADCAST, _add, (1, 1))
_register("qsub", OpPattern.BROADCAST, _sub, (1, -1))
_register("qmul", OpPattern.BROADCAST, _mul)
_register("qsquared_difference", OpPattern.BROADCAST, _squared_difference)
_register("qprelu", OpPattern.BROADCAST, _prelu)
_register("qdiv", OpPattern.BROADCAST, _div)


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _infer_compare(node: Node) -> list[TensorType]:
    types = _check_inputs(node)
    if node.attrs["fn"] not in COMPARISONS:
        fail(node, f"does not know the comparison {node.attrs['fn']!r}")
    return [TensorType(DType.BOOL, broadcast_shape(node, [t.shape for t in types]))]


def _compare(attrs: Attributes, a: Any, b: Any) -> Any:
    """Attribute ``fn`` of the inputs on one scale."""
    return fp.compare(attrs["fn"], _input(attrs, 0, fp.wide(a)), _input(attrs, 1, fp.wide(b)))


def _numpy_compare(node: Node, arrays: Arrays) -> list[AnyArray]:
    return [np.asarray(_compare(node.attrs, need(arrays, 0), need(arrays, 1)))]


register(
    OpDef("qcompare", OpPattern.BROADCAST, _infer_compare, _numpy_compare, broadcasting(_compare))
)
