"""Element-wise ops of several inputs with numpy broadcasting, batch_norm included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    broadcast_shape,
    broadcasts_to,
    expect_axis,
    expect_float,
    expect_same_dtype,
    expect_shape,
    fail,
    in_float64,
    need,
    text,
    type_of,
)
from aotgen.ops.registry import InferRule, NumpyRule, OpDef, OpPattern, register
from aotgen.te.compute import Tensor, broadcasting, compute, present
from aotgen.te.expr import Const, Expr, Load, call, cast, const, select
from aotgen.te.index import Index

Binary = Callable[[AnyArray, AnyArray, dict[str, Any]], Any]


def _binary(node: Node) -> TensorType:
    """Type of a binary op's output before the op changes the element type."""
    a, b = type_of(node, 0), type_of(node, 1)
    dtype = expect_same_dtype(node, [a, b])
    return TensorType(dtype, broadcast_shape(node, [a.shape, b.shape]))


def _infer_arithmetic(node: Node) -> list[TensorType]:
    out = _binary(node)
    if out.dtype is DType.BOOL:
        fail(node, "needs numbers, not bool")
    return [out]


def _infer_compare(node: Node) -> list[TensorType]:
    return [_binary(node).with_dtype(DType.BOOL)]


def _infer_logic(node: Node) -> list[TensorType]:
    out = _binary(node)
    if out.dtype is not DType.BOOL:
        fail(node, f"needs bool inputs, not {out.dtype.value}")
    return [out]


def _infer_bits(node: Node) -> list[TensorType]:
    out = _binary(node)
    if not out.dtype.is_int:
        fail(node, f"needs integer inputs, not {out.dtype.value}")
    return [out]


def _native(fn: Binary) -> NumpyRule:
    """``fn`` in the tensors' own type."""

    def rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        with np.errstate(all="ignore"):
            return [np.asarray(fn(need(arrays, 0), need(arrays, 1), node.attrs))]

    return rule


def _div(a: AnyArray, b: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    """Division; integers truncate toward zero, and by 0 they give 0."""
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & (b != 0)
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def _mod(a: AnyArray, b: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    """Remainder with the divisor's sign, or the dividend's when ``fmod``."""
    return np.fmod(a, b) if attrs["fmod"] else np.mod(a, b)


def _pow(a: AnyArray, b: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    if a.dtype.kind != "f" and not (b < 0).any():
        return np.power(a, b)
    return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)


_BINARY: dict[str, tuple[InferRule, NumpyRule]] = {
    "add": (_infer_arithmetic, _native(lambda a, b, _: a + b)),
    "sub": (_infer_arithmetic, _native(lambda a, b, _: a - b)),
    "mul": (_infer_arithmetic, _native(lambda a, b, _: a * b)),
    "div": (_infer_arithmetic, _native(_div)),
    "pow": (_infer_arithmetic, _native(_pow)),
    "maximum": (_infer_arithmetic, _native(lambda a, b, _: np.maximum(a, b))),
    "minimum": (_infer_arithmetic, _native(lambda a, b, _: np.minimum(a, b))),
    "mod": (_infer_arithmetic, _native(_mod)),
    "equal": (_infer_compare, _native(lambda a, b, _: a == b)),
    "less": (_infer_compare, _native(lambda a, b, _: a < b)),
    "greater": (_infer_compare, _native(lambda a, b, _: a > b)),
    "less_equal": (_infer_compare, _native(lambda a, b, _: a <= b)),
    "greater_equal": (_infer_compare, _native(lambda a, b, _: a >= b)),
    "and": (_infer_logic, _native(lambda a, b, _: a & b)),
    "or": (_infer_logic, _native(lambda a, b, _: a | b)),
    "xor": (_infer_logic, _native(lambda a, b, _: a ^ b)),
    "bit_and": (_infer_bits, _native(lambda a, b, _: a & b)),
    "bit_or": (_infer_bits, _native(lambda a, b, _: a | b)),
    "bit_xor": (_infer_bits, _native(lambda a, b, _: a ^ b)),
    "shift_left": (_infer_bits, _native(lambda a, b, _: np.left_shift(a, b))),
    "shift_right": (_infer_bits, _native(lambda a, b, _: np.right_shift(a, b))),
}

Attributes = Mapping[str, Any]


def _te_pow(attrs: Attributes, a: Expr, b: Expr) -> Expr:
    """Small constant exponents are products; 0.5 is a square root."""
    power = b.value if isinstance(b, Const) else None
    if power in (1, 2, 3, 4):
        square = a * a
        return {1: a, 2: square, 3: square * a, 4: square * square}[int(power)]
    if power == 0.5 and a.dtype.is_float:
        return call("sqrt", a)
    if power == -1 and a.dtype.is_float:
        return 1.0 / a
    return call("pow", a, b)


def _may_be(x: Expr, value: int) -> bool:
    """Whether an integer can be ``value``, as far as constants tell."""
    if isinstance(x, Const):
        return int(x.value) == value
    array = x.buffer.const if isinstance(x, Load) else None
    return array is None or bool((array == value).any())


def te_div(attrs: Attributes, a: Expr, b: Expr) -> Expr:
    """Integers by 0 give 0, and the least one by -1 itself, as numpy has it; C leaves both
    undefined, and processors stop at them.
    """
    if a.dtype.is_float:
        return call("div", a, b)
    quotient = call("div", a, _divisor(b))
    if _may_be(b, -1) and not b.dtype.c.startswith("u"):
        quotient = select(call("equal", b, const(-1, b.dtype)), call("neg", a), quotient)
    if _may_be(b, 0):
        quotient = select(call("equal", b, const(0, b.dtype)), const(0, a.dtype), quotient)
    return quotient


def _divisor(b: Expr) -> Expr:
    """``b`` where C defines a division by it for every dividend, else 1."""
    safe = b
    for value in (0,) if b.dtype.c.startswith("u") else (0, -1):
        if _may_be(b, value):
            safe = select(call("equal", b, const(value, b.dtype)), const(1, b.dtype), safe)
    return safe


def _te_mod(attrs: Attributes, a: Expr, b: Expr) -> Expr:
    """C's remainder has the dividend's sign; numpy's mod has the divisor's. By 0 it is 0."""
    rest = call("fmod", a, b) if a.dtype.is_float else call("rem", a, _divisor(b))
    if attrs["fmod"] or a.dtype.c.startswith("u"):
        return rest
    zero = const(0, a.dtype)
    differ = call("xor", call("less", rest, zero), call("less", b, zero))
    return select(call("and", call("not_equal", rest, zero), differ), rest + b, rest)


_CALLS = {"maximum": "max_nan", "minimum": "min_nan"}


def _te_call(name: str) -> Callable[[Attributes, Expr, Expr], Expr]:
    return lambda attrs, a, b: call(_CALLS.get(name, name), a, b)


def _te_extreme(name: str) -> Callable[[Attributes, Expr, Expr], Expr]:
    """Short integers are compared as int32, of which there are vectors."""
    of_floats, of_integers = _te_call(name), name[:3]

    def extreme(attrs: Attributes, a: Expr, b: Expr) -> Expr:
        if a.dtype in (DType.I8, DType.U8, DType.I16, DType.U16):
            wide = call(of_integers, cast(DType.I32, a), cast(DType.I32, b))
            return cast(a.dtype, wide)
        return of_floats(attrs, a, b)

    return extreme


def _te_shift(name: str) -> Callable[[Attributes, Expr, Expr], Expr]:
    """A count below 0 or of the whole width shifts everything out, as numpy has it; C leaves it
    undefined.
    """

    def shift(attrs: Attributes, a: Expr, b: Expr) -> Expr:
        bits = 8 * a.dtype.size
        if isinstance(b, Const) and 0 <= int(b.value) < bits:
            return call(name, a, b)
        fits = call("less", b, const(bits, b.dtype))
        signed = not b.dtype.c.startswith("u")
        if signed:
            fits = call("and", fits, call("greater_equal", b, const(0, b.dtype)))
        shifted = call(name, a, select(fits, b, const(bits - 1, b.dtype)))
        if name == "shift_right" and signed:
            return shifted  # all bits are the sign
        return select(fits, shifted, const(0, a.dtype))

    return shift


_COMPUTE = {
    "div": te_div,
    "pow": _te_pow,
    "mod": _te_mod,
    "maximum": _te_extreme("maximum"),
    "minimum": _te_extreme("minimum"),
    "shift_left": _te_shift("shift_left"),
    "shift_right": _te_shift("shift_right"),
}

for _name, (_infer, _numpy) in _BINARY.items():
    _compute = broadcasting(_COMPUTE.get(_name) or _te_call(_name))
    register(OpDef(_name, OpPattern.BROADCAST, _infer, _numpy, _compute))


def _infer_prelu(node: Node) -> list[TensorType]:
    x, slope = type_of(node, 0), type_of(node, 1)
    expect_same_dtype(node, [x, slope])
    if not broadcasts_to(slope.shape, x.shape):
        fail(node, f"slope {text(slope.shape)} does not broadcast to the input {text(x.shape)}")
    return [x.with_dtype(x.dtype)]


def _prelu(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, slope = need(arrays, 0), need(arrays, 1)
    with np.errstate(all="ignore"):
        return [np.asarray(np.where(x < 0, x * slope, x))]


def _te_prelu(attrs: Attributes, x: Expr, slope: Expr) -> Expr:
    return select(call("less", x, const(0, x.dtype)), x * slope, x)


register(OpDef("prelu", OpPattern.BROADCAST, _infer_prelu, _prelu, broadcasting(_te_prelu)))


def _infer_where(node: Node) -> list[TensorType]:
    cond, a, b = (type_of(node, i) for i in range(3))
    if cond.dtype is not DType.BOOL:
        fail(node, f"the condition must be bool, not {cond.dtype.value}")
    dtype = expect_same_dtype(node, [a, b])
    return [TensorType(dtype, broadcast_shape(node, [cond.shape, a.shape, b.shape]))]


def _where(node: Node, arrays: Arrays) -> list[AnyArray]:
    return [np.asarray(np.where(need(arrays, 0), need(arrays, 1), need(arrays, 2)))]


_te_where = broadcasting(lambda attrs, cond, a, b: select(cond, a, b))

register(OpDef("where", OpPattern.BROADCAST, _infer_where, _where, _te_where))


def _infer_batch_norm(node: Node) -> list[TensorType]:
    x, axis = type_of(node), int(node.attrs["axis"])
    expect_float(node, x)
    expect_axis(node, axis, x.rank)
    for index, what in enumerate(("scale", "bias", "mean", "variance"), start=1):
        expect_shape(node, what, type_of(node, index), [x.max_shape[axis]])
    return [x.with_dtype(x.dtype)]


def _batch_norm(node: Node, arrays: Arrays) -> list[AnyArray]:
    """(x - mean) / sqrt(var + eps) * scale + bias along ``axis``."""
    x, axis, eps = need(arrays), int(node.attrs["axis"]), float(node.attrs["eps"])
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    parameters = [need(arrays, i).reshape(shape) for i in range(1, 5)]

    def normalise(
        x: AnyArray, scale: AnyArray, bias: AnyArray, mean: AnyArray, var: AnyArray
    ) -> AnyArray:
        return (x - mean) * (scale / np.sqrt(var + eps)) + bias

    return [in_float64(normalise, x, *parameters)]


def _te_batch_norm(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, scale, bias, mean, var = (present(inputs, i) for i in range(5))
    axis, eps = int(node.attrs["axis"]), float(node.attrs["eps"])

    def element(*i: Index) -> Expr:
        c = i[axis]
        factor = scale(c) / call("sqrt", var(c) + eps)
        return (x(*i) - mean(c)) * factor + bias(c)

    return (compute(x.shape, x.dtype, element),)


register(OpDef("batch_norm", OpPattern.BROADCAST, _infer_batch_norm, _batch_norm, _te_batch_norm))
