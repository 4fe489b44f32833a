"""Operators of two and more inputs with numpy broadcasting."""

from __future__ import annotations

from functools import reduce

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

_BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Equal": "equal",
    "Less": "less",
    "Greater": "greater",
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
}


@converts(*_BINARY)
def binary(n: OnnxNode) -> Value:
    return n.emit(_BINARY[n.op], [n.x(0), n.x(1)])


@converts("Pow")
def power(n: OnnxNode) -> Value:
    """The result has the base's type; from opset 12 on the exponent's may differ."""
    base, exponent = n.x(0), n.x(1)
    if base.dtype is exponent.dtype:
        return n.emit("pow", [base, exponent])
    if base.dtype.is_float or not exponent.dtype.is_float:
        return n.emit("pow", [base, n.cast(exponent, base.dtype)])
    result = n.emit("pow", [n.cast(base, exponent.dtype), exponent])
    return n.cast(result, base.dtype)


@converts("Mod", since=10)
def modulo(n: OnnxNode) -> Value:
    fmod = bool(n.get_int("fmod", 0))
    if n.x(0).dtype.is_float and not fmod and n.opset < 28:
        n.refuse("fmod=0 is not defined for floats", "set fmod=1")
    return n.emit("mod", [n.x(0), n.x(1)], fmod=fmod)


@converts("BitShift", since=11)
def bit_shift(n: OnnxNode) -> Value:
    direction = n.get_str("direction")
    if direction not in ("LEFT", "RIGHT"):
        n.refuse(f"direction={direction!r} is not known", "use LEFT or RIGHT")
    return n.emit("shift_left" if direction == "LEFT" else "shift_right", [n.x(0), n.x(1)])


@converts("PRelu")
def prelu(n: OnnxNode) -> Value:
    """From opset 7 on the slope broadcasts towards x; before, a 1-D slope was one per channel."""
    x, slope = n.x(0), n.x(1)
    if n.is_converted and slope.shape == x.shape[1:2]:
        slope = n.reshape(slope, (*slope.shape, *(1,) * (len(x.shape) - 2)))
    return n.emit("prelu", [x, slope])


@converts("Where", since=9)
def where(n: OnnxNode) -> Value:
    return n.emit("where", [n.x(0), n.x(1), n.x(2)])


_CHAINS = {"Max": "maximum", "Min": "minimum", "Sum": "add", "Mean": "add"}


@converts(*_CHAINS)
def chain(n: OnnxNode) -> Value:
    """Any number of inputs, from the left."""
    values = [n.x(i) for i in range(len(n.inputs))]
    total = reduce(lambda a, b: n.emit(_CHAINS[n.op], [a, b]), values[1:], n.x(0))
    if n.op == "Mean" and len(values) > 1:
        return n.emit("div", [total, n.scalar(len(values), total)])
    return total


@converts("Hardmax")
def hardmax(n: OnnxNode) -> Value:
    """1 at the first maximum along an axis, else 0; below opset 13 of the matrix flattened at
    ``axis``.
    """
    x = n.x()
    rank = len(x.shape)
    if n.opset >= 13:
        return _hardmax(n, x, n.axis("axis", -1, rank))
    axis = n.axis("axis", 1, rank)
    rows = int(np.prod(x.shape[:axis]))
    flat = n.reshape(x, (rows, int(np.prod(x.shape[axis:]))))
    return n.reshape(_hardmax(n, flat, 1), x.shape)


def _hardmax(n: OnnxNode, x: Value, axis: int) -> Value:
    best = n.emit("argmax", [x], axis=axis, keepdims=True, select_last=False)
    shape = [1] * len(x.shape)
    shape[axis] = x.shape[axis]
    positions = n.constant(np.arange(x.shape[axis], dtype=np.int64).reshape(shape), "positions")
    return n.cast(n.emit("equal", [best, positions]), x.dtype)


@converts("OneHot", since=9)
def one_hot(n: OnnxNode) -> Value:
    """Values are [off, on]; an index outside [-depth, depth) gives all off."""
    depth = n.need_ints(1, "depth")[0]
    if depth < 1:
        n.refuse(f"its depth is {depth}", "use at least 1")
    axis = n.axis("axis", -1, len(n.x(0).shape) + 1)
    return n.emit("one_hot", [n.cast(n.x(0), DType.I64), n.x(2)], axis=axis, depth=depth)
