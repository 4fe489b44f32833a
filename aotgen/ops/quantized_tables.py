"""Element-wise functions of int16 by tables with interpolation, and integer division that rounds
down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops import fixed_point as fp
from aotgen.ops.broadcast import te_div
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    broadcast_shape,
    expect_same_dtype,
    fail,
    need,
    type_of,
)
from aotgen.ops.fixed_point import Operand
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import broadcasting, elementwise, table
from aotgen.te.expr import Expr, call, cast, const, select
from aotgen.te.simplify import elem

Attributes = dict[str, Any]

INTERPOLATED_ENTRIES = 513
"""Of the table of ``interpolate``: one every 128 values of int16, and the end."""

SIGMOID_STEP = 24
"""Entries of the sigmoid's table in one unit of x."""


ROUNDED_UP = (
    (4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39)
    + (40, 41, 43, 44, 45, 46, 49, 50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116)
    + (135, 255)
)
"""Where the sigmoid's table is one above the nearest integer, found by running the runtimes' TANH
over all of int16.
"""


@cache
def sigmoid_table() -> AnyArray:
    """65536 / (1 + exp(-i / 24)) for i in 0..255 as TFLite's table has it: to nearest, but for
    ``ROUNDED_UP``.
    """
    x = np.arange(256) / SIGMOID_STEP
    values = np.rint(65536.0 / (1.0 + np.exp(-x))).astype(np.int32)
    values[list(ROUNDED_UP)] += 1
    values.setflags(write=False)
    return values


def _infer_i16(node: Node) -> list[TensorType]:
    x = type_of(node)
    if x.dtype is not DType.I16:
        fail(node, f"needs an i16 input, not {x.dtype.value}")
    return [TensorType(DType.I16, x.shape, node.attrs["quant"])]


def _infer_interpolate(node: Node) -> list[TensorType]:
    if len(node.attrs["table"]) != INTERPOLATED_ENTRIES:
        fail(node, f"its table has {len(node.attrs['table'])} entries, needs 513")
    return _infer_i16(node)


def _look(values: AnyArray, name: str, index: Operand, most: int) -> Operand:
    """``values``[``index``] for an index in 0..``most``."""
    if isinstance(index, Expr):
        return table(name, values)(elem(index, (0, most)))
    return values[index]


def _interpolate(attrs: Attributes, x: Operand) -> Operand:
    """Between the entries on both sides of x, one every 128 values, rounded half up. The slope is
    an int16, which wraps around.
    """
    entries = np.asarray(attrs["table"], np.int32)
    index = fp.shift_right(x, 7) + 256
    low = fp.wide(_look(entries.astype(np.int16), "table", index, 511))
    steps = (entries[1:] - entries[:-1]).astype(np.int16)
    step = fp.wide(_look(steps, "steps", index, 511))
    return low + fp.shift_right(step * fp.low_bits(x, 7) + 64, 7)


def _scaled_input(attrs: Attributes, x: Operand) -> Operand:
    """x * multiplier / 2^shift, rounded half up: in units of 2^-12 / 3."""
    shift = attrs["shift"]
    product = x * attrs["multiplier"]
    return fp.shift_right(product + (1 << (shift - 1)), shift) if shift else product


def _sigmoid_value(x: Operand, bits: int) -> tuple[Operand, Operand]:
    """65536 * sigmoid(|x|) with ``bits`` more bits behind the point, and the table's index; the
    index counts units of 2^``bits``.
    """
    size = fp.select(fp.negative(x), fp.negated(x), x)
    values = sigmoid_table()
    steps = np.append(np.diff(values.astype(np.int32)), 0).astype(np.int16)
    index = fp.at_most(fp.shift_right(size, bits), 255)
    low = fp.wide(_look(values, "sigmoid", index, 255))
    step = fp.wide(_look(steps, "steps", index, 255))
    return fp.shift_left(low, bits) + step * fp.low_bits(size, bits), index


def sigmoid_i16(attrs: Attributes, x: Operand) -> Operand:
    """32768 * sigmoid."""
    scaled = _scaled_input(attrs, x)
    value, index = _sigmoid_value(scaled, 9)
    full = fp.compare("equal", index, fp.like(index, 255))
    value = fp.select(full, fp.like(value, 0x7FFF << 10), value)
    mirrored = ((1 << 25) + (1 << 9) - 1) - value
    return fp.shift_right(fp.select(fp.negative(scaled), mirrored, value + (1 << 9)), 10)


def tanh_i16(attrs: Attributes, x: Operand) -> Operand:
    """32768 * tanh, as 2 sigmoid(2 x) - 1."""
    scaled = _scaled_input(attrs, x)
    value, index = _sigmoid_value(scaled, 8)
    full = fp.compare("equal", index, fp.like(index, 255))
    value = fp.select(full, fp.like(value, 0xFFFF << 8), value) - (1 << 23)
    mirrored = ((1 << 7) - 1) - value
    return fp.shift_right(fp.select(fp.negative(scaled), mirrored, value + (1 << 7)), 8)


def _register(
    name: str,
    infer: Callable[[Node], list[TensorType]],
    formula: Callable[[Attributes, Operand], Operand],
) -> None:
    def numpy_rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        return [np.asarray(fp.narrow(formula(node.attrs, fp.wide(need(arrays))), DType.I16))]

    def te_rule(x: Expr, attrs: Any) -> Any:
        return fp.narrow(formula(attrs, fp.wide(x)), DType.I16)

    register(OpDef(name, OpPattern.ELEMENTWISE, infer, numpy_rule, elementwise(te_rule)))


_register("interpolate", _infer_interpolate, _interpolate)
_register("sigmoid_i16", _infer_i16, sigmoid_i16)
_register("tanh_i16", _infer_i16, tanh_i16)


def _sqrt_steps(node: Node, arrays: Arrays) -> list[AnyArray]:
    """sqrt(x * scale) / output's scale without its digits, in float32; 0 where x is below 0."""
    scale, per_step = (np.float32(node.attrs[name]) for name in ("scale", "scale_y"))
    real = np.maximum(need(arrays), 0).astype(np.float32) * scale
    return [np.minimum(np.trunc(np.sqrt(real) / per_step), 32767).astype(np.int16)]


def _te_sqrt_steps(x: Expr, attrs: Any) -> Expr:
    scale, per_step = (const(attrs[name], DType.F32) for name in ("scale", "scale_y"))
    real = cast(DType.F32, call("max", cast(DType.I32, x), const(0, DType.I32))) * scale
    steps = call("min", call("sqrt", real) / per_step, const(32767, DType.F32))
    return cast(DType.I16, cast(DType.I32, call("trunc", steps)))


register(
    OpDef("sqrt_i16", OpPattern.ELEMENTWISE, _infer_i16, _sqrt_steps, elementwise(_te_sqrt_steps))
)


def _infer_floor_div(node: Node) -> list[TensorType]:
    types = [type_of(node, 0), type_of(node, 1)]
    dtype = expect_same_dtype(node, types)
    if not dtype.is_int:
        fail(node, f"needs integers, not {dtype.value}")
    return [TensorType(dtype, broadcast_shape(node, [t.shape for t in types]))]


def _floor_div(node: Node, arrays: Arrays) -> list[AnyArray]:
    """floor(a / b); 0 where b is 0."""
    with np.errstate(all="ignore"):
        return [np.asarray(np.floor_divide(need(arrays, 0), need(arrays, 1)))]


def _te_floor_div(attrs: Any, a: Expr, b: Expr) -> Expr:
    quotient = te_div(attrs, a, b)
    zero = const(0, a.dtype)
    if a.dtype.c.startswith("u"):
        return quotient
    inexact = call("not_equal", quotient * b, a)
    differ = call("xor", call("less", a, zero), call("less", b, zero))
    down = call("and", call("and", inexact, differ), call("not_equal", b, zero))
    return select(down, quotient - 1, quotient)


register(
    OpDef(
        "floor_div",
        OpPattern.BROADCAST,
        _infer_floor_div,
        _floor_div,
        broadcasting(_te_floor_div),
    )
)
