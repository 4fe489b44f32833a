"""Functions of one input: activations, roots, logarithms, rounding.

Of 8-bit integers they are all tables of 256 entries, computed here as the reference fills its own;
of int16 they are interpolated between 513 entries, or have a formula in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aotgen.frontend.tflite import byte_tables, scales
from aotgen.frontend.tflite.hard_swish import hard_swish_steps
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.frontend.tflite.scales import EIGHT_BITS, F32, rounded
from aotgen.frontend.tflite.sigmoid_tables import sigmoid_steps, tanh_steps
from aotgen.ir.graph import Node, Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import Array, DType
from aotgen.ops import fixed_point as fp
from aotgen.ops.fixed_point import UNIT, limits
from aotgen.ops.quantized_softmax import inverse_root
from aotgen.ops.registry import op_def

Function = Callable[[Array], Array]
"""Of float32 values as float64; its results are rounded to float32."""


def table_8bit(node: TfliteNode, steps: Array) -> Value:
    """A look-up of the output's integers, one for each value of the 8-bit input from the lowest
    on.
    """
    out = scales.output(node)
    values = tuple(int(v) for v in np.clip(steps, out["lo"], out["hi"]))
    return byte_tables.emit(
        node, "lookup", [node.input()], table=values, dtype=out["dtype"], quant=out["quant"]
    )


def inputs_8bit(node: TfliteNode) -> Array:
    """All values of the 8-bit input less its zero point, from the lowest on."""
    lo, hi = limits(node.input().dtype)
    return np.arange(lo, hi + 1, dtype=np.int64) - scales.of_input(node)[1]


def _table_of(node: TfliteNode, fn: Function) -> Value:
    """The table of ``fn`` as TFLite's LUTPopulate fills it, in float32."""
    scale_x, _ = scales.of_input(node)
    scale, zero = scales.of_output(node)
    steps = _float32(fn, scale_x * inputs_8bit(node).astype(F32)) * (F32(1.0) / scale)
    return table_8bit(node, np.nan_to_num(rounded(steps), nan=0.0) + zero)


def _float32(fn: Function, x: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(fn(np.asarray(x, np.float64))).astype(F32)


def _interpolated(node: TfliteNode, fn: Function) -> Value:
    """``fn`` of int16 between 513 samples, each moved by half the error in the middle of its
    interval, as TFLite's LUTPopulate of int16.
    """
    (scale_x, zero_x), (scale, zero) = scales.of_input(node), scales.of_output(node)
    scales.expect_symmetric(node, zero_x, zero)
    low, high = scale_x * F32(-32768), scale_x * F32(32767)
    per_step = F32(65536.0) / (scale * F32(32767) - scale * F32(-32768))
    step = (high - low) / F32(512)
    start = low + np.arange(512, dtype=F32) * step
    following = low + np.arange(1, 513, dtype=F32) * step
    sample = rounded(_float32(fn, start) * per_step)
    ahead = _float32(fn, following) * per_step
    between = rounded((ahead + sample.astype(F32)) / F32(2))
    middle = rounded(_float32(fn, start + step / F32(2)) * per_step)
    bias = rounded((between - middle) / 2)
    last = rounded(_float32(fn, high) * per_step)
    entries = np.clip(np.nan_to_num(np.append(sample - bias, last)), -32768, 32767)
    table = tuple(int(v) for v in entries)
    return node.emit("interpolate", [node.input()], table=table, quant=node.output_quant())


def _sigmoid(x: Array) -> Array:
    """As float32 computes it: the exponential is rounded before it is used."""
    return np.asarray(F32(1.0) / (F32(1.0) + _float32(np.exp, -x)))


def _elu(x: Array) -> Array:
    return np.asarray(np.where(x < 0.0, np.expm1(np.minimum(x, 0.0)), x))


def _gelu(x: Array) -> Array:
    """x * erfc(-x / sqrt(2)) / 2, every step in float32."""
    v = x.astype(F32)
    argument = v * F32(-math.sqrt(0.5))
    erfc = [math.erfc(t) for t in argument.ravel().tolist()]
    return np.asarray(F32(0.5) * v * np.asarray(erfc, F32).reshape(v.shape))


def _gelu_tanh(x: Array) -> Array:
    """By tanh, every step in float32."""
    v = x.astype(F32)
    inner = F32(math.sqrt(2.0 / math.pi)) * (v + F32(0.044715) * v * v * v)
    return np.asarray(F32(0.5) * v * (F32(1.0) + _float32(np.tanh, inner)))


def _float_only(node: TfliteNode, op: str, **attrs: Any) -> Value:
    x = node.input()
    if not x.dtype.is_float:
        node.refuse(f"{node.op} of {x.dtype.value} is not supported", "keep it in float32")
    return node.emit(op, [x], **attrs)


def _by_type(node: TfliteNode, op: str, fn: Function, **attrs: Any) -> Value:
    """The float op, a table of 8-bit integers, or samples of int16."""
    x = node.input()
    if x.dtype in EIGHT_BITS:
        scales.same_type(node, x)
        return _table_of(node, fn)
    if x.dtype is DType.I16:
        scales.same_type(node, x)
        return _interpolated(node, fn)
    return _float_only(node, op, **attrs)


@converter("LOGISTIC")
def logistic(node: TfliteNode) -> Value:
    if node.input().dtype is DType.I16:
        return _sigmoid_i16(node, "sigmoid_i16", (0,))
    if node.input().dtype is DType.I8 and node.mode == "tflm":
        scales.same_type(node, node.input())
        return table_8bit(node, sigmoid_steps(inputs_8bit(node), float(scales.of_input(node)[0])))
    return _by_type(node, "sigmoid", _sigmoid)


@converter("TANH")
def tanh(node: TfliteNode) -> Value:
    if node.input().dtype is DType.I16:
        return _sigmoid_i16(node, "tanh_i16", (0, 1))
    if node.input().dtype is DType.I8 and node.mode == "tflm":
        scales.same_type(node, node.input())
        return table_8bit(node, tanh_steps(inputs_8bit(node), float(scales.of_input(node)[0])))
    return _by_type(node, "tanh", np.tanh)


def _sigmoid_i16(node: TfliteNode, op: str, exact: tuple[int, ...]) -> Value:
    """sigmoid or tanh of int16 through the table that has 24 entries a unit.

    An input scale of 2^-12 (for tanh also 2^-11) needs a multiplication by 3 alone; any other one
    gets a multiplier of 15 bits.
    """
    (scale_x, zero_x), (scale, zero) = scales.of_input(node), scales.of_output(node)
    scales.expect_symmetric(node, zero_x, zero)
    scales.same_type(node, node.input())
    if scales.pot_exponent(scale) != -15:
        node.refuse(f"its int16 output has scale {scale}, must be 1/32768")
    exponent = scales.pot_exponent(scale_x)
    left = None if exponent is None else 12 + exponent
    if left in exact:
        multiplier, shift = 3 << left, 0
    else:
        real, shift = float(scale_x) * 4096.0 * 3.0, 0
        while real <= 32767.0 / 2.0 and shift <= 30:
            real, shift = real * 2.0, shift + 1
        multiplier = int(real)
        if multiplier > 32767 * 2:
            node.refuse(f"its int16 input has scale {scale_x}, which is too large")
    return node.emit(
        op, [node.input()], multiplier=multiplier, shift=shift, quant=node.output_quant()
    )


@converter("EXP")
def exponential(node: TfliteNode) -> Value:
    return _by_type(node, "exp", np.exp)


@converter("LOG")
def logarithm(node: TfliteNode) -> Value:
    """Of a quantized value that is not above 0, the lowest that the output can be."""

    def log(x: Array) -> Array:
        scale, zero = scales.of_output(node)
        lowest = F32(limits(node.output_dtype())[0] - zero) * scale
        return np.asarray(np.where(x <= 0, lowest, np.log(np.maximum(x, 1e-45))))

    return _by_type(node, "log", log)


@converter("GELU")
def gelu(node: TfliteNode) -> Value:
    if node.options["approximate"]:
        return _by_type(node, "gelu", _gelu_tanh, approximate="tanh")
    return _by_type(node, "gelu", _gelu, approximate="none")


@converter("ELU")
def elu(node: TfliteNode) -> Value:
    return _by_type(node, "elu", _elu, alpha=1.0)


@converter("RSQRT")
def reciprocal_root(node: TfliteNode) -> Value:
    x = node.input()
    if x.dtype is DType.I8:
        return _rsqrt_8bit(node)
    if x.dtype is DType.I16 and node.mode == "litert":
        return _interpolated(node, _rsqrt_or_most(scales.of_output(node)[0]))
    return _float_only(node, "rsqrt")


def _rsqrt_or_most(scale: np.float32) -> Function:
    """1 / sqrt, and for what is not above 0 the largest value of int16."""

    def rsqrt(x: Array) -> Array:
        roots = np.sqrt(np.maximum(x, 0).astype(F32))
        return np.asarray(np.where(x <= 0, F32(32767) * scale, F32(1.0) / roots))

    return rsqrt


RSQRT_SHIFT = 20
"""Bits that TFLite's reciprocal root is moved up by between its two scalings."""


def _rsqrt_8bit(node: TfliteNode) -> Value:
    """1 / sqrt in fixed point; the largest value for 0, and for what is below, which has none."""
    scale_x, _ = scales.of_input(node)
    scale, zero = scales.of_output(node)
    multiplier, shift = quantize_multiplier(1.0 / float(np.sqrt(scale_x) * scale))
    _, most = limits(DType.I8)
    steps = []
    for x in inputs_8bit(node).tolist():
        if x <= 0:
            steps.append(most)
            continue
        inverse, right = (int(v) for v in inverse_root(np.int64(x)))
        root = fp.scaled(np.int64(1), inverse, RSQRT_SHIFT - right)
        steps.append(int(fp.scaled(root, multiplier, shift - RSQRT_SHIFT)) + zero)
    return table_8bit(node, np.asarray(steps))


@converter("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(node: TfliteNode) -> Value:
    x = node.input()
    bounds = {"RELU": (0, None), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}
    lo, hi = bounds[node.op]
    if x.dtype.is_float:
        if hi is None:
            return node.emit("relu", [x])
        return node.emit("clip", [x], lo=float(lo), hi=float(hi))
    if not scales.is_quantized(node):
        node.refuse(f"{node.op} of {x.dtype.value} is not supported")
    scales.same_type(node, x)
    (scale_x, zero_x), (scale, zero) = scales.of_input(node), scales.of_output(node)
    if x.dtype is DType.I16:
        scales.expect_symmetric(node, zero_x, zero)
    micro = node.op in ("RELU", "RELU6") and scales.is_micro(node, DType.I8, DType.I16)
    if node.op == "RELU6" and micro:
        # It clamps in the input's scale and does not look at the output's.
        scale, zero, real = scale_x, zero_x, 1.0
    elif micro:
        real = float(scale_x) / float(scale)
    else:
        real = float(scale_x / scale)
    least, most = limits(x.dtype)
    low = max(least, zero + int(rounded(F32(lo) / scale)))
    high = most if hi is None else min(most, zero + int(rounded(F32(hi) / scale)))
    if zero == zero_x and quantize_multiplier(real) == UNIT:
        return byte_tables.emit(node, "clip", [x], lo=low, hi=high)
    return scales.requantized(node, x, real, lo=low, hi=high, zero_point=zero)


@converter("LEAKY_RELU")
def leaky_relu(node: TfliteNode) -> Value:
    x, alpha = node.input(), F32(node.options["alpha"])
    if not scales.is_quantized(node):
        return _float_only(node, "leaky_relu", alpha=float(alpha))
    scales.same_type(node, x)
    (scale_x, zero_x), (scale, zero) = scales.of_input(node), scales.of_output(node)
    if x.dtype is DType.I16:
        scales.expect_symmetric(node, zero_x, zero)
    sign = -1 if alpha < 0 else 1
    size = abs(alpha)
    if scales.is_micro(node, DType.I8, DType.I16):
        reals = float(scale_x) / float(scale), float(scale_x) * float(size) / float(scale)
    else:
        reals = float(scale_x / scale), float(scale_x * size / scale)
    pairs = [quantize_multiplier(r) for r in reals]
    attrs = {
        **scales.output(node),
        "zeros": (zero_x, 0),
        "multipliers": (pairs[0][0], sign * pairs[1][0]),
        "shifts": (pairs[0][1], pairs[1][1]),
    }
    one = node.constant(np.array(1, x.dtype.numpy), "one")
    if x.dtype is DType.I16:
        return node.emit("qprelu", [x, one], **attrs)
    lo, hi = limits(x.dtype)
    every = np.arange(lo, hi + 1).astype(x.dtype.numpy)
    rule = op_def("qprelu").numpy
    return table_8bit(node, rule(_bare("qprelu", attrs), [every, np.asarray(1, x.dtype.numpy)])[0])


def _bare(op: str, attrs: dict[str, Any]) -> Node:
    """A node to call the numpy rule of ``op`` with."""
    return Node(op, [], [], attrs)


@converter("HARD_SWISH")
def hard_swish(node: TfliteNode) -> Value:
    if node.input().dtype in EIGHT_BITS:
        scales.same_type(node, node.input())
        steps = hard_swish_steps(inputs_8bit(node), scales.of_input(node)[0], node)
        return table_8bit(node, steps + scales.of_output(node)[1])
    return _float_only(node, "hard_swish")


@converter("ABS")
def absolute(node: TfliteNode) -> Value:
    x = node.input()
    if not scales.is_quantized(node):
        return node.emit("abs", [x])
    scales.same_type(node, x)
    (scale_x, zero_x), (scale, zero) = scales.of_input(node), scales.of_output(node)
    # Micro divides in double.
    ratio = float(scale_x) / float(scale) if node.mode == "tflm" else float(scale_x / scale)
    real = 1.0 if scale_x == scale else ratio
    multiplier, shift = quantize_multiplier(real)
    if x.dtype is DType.I16:
        scales.expect_symmetric(node, zero_x, zero)
        wide = node.emit("abs", [node.cast(x, DType.I32)])
        return scales.requantized(node, wide, real)
    size = np.abs(inputs_8bit(node))
    return table_8bit(node, fp.scaled(size, multiplier, shift) + zero)


@converter("NEG")
def negative(node: TfliteNode) -> Value:
    """Of the stored integers, whatever their scales, as LiteRT does it; the lowest stays."""
    return node.emit("neg", [node.input()])


@converter("SQRT")
def square_root(node: TfliteNode) -> Value:
    """LiteRT cuts the digits of a quantized root, where other functions are rounded."""
    x = node.input()
    if x.dtype.is_float:
        return node.emit("sqrt", [x])
    if not scales.is_quantized(node):
        node.refuse(f"SQRT of {x.dtype.value} is not supported")
    scales.same_type(node, x)
    scale, zero = scales.of_output(node)
    if x.dtype in EIGHT_BITS:
        scale_x, _ = scales.of_input(node)
        real = scale_x * np.maximum(inputs_8bit(node), 0).astype(F32)
        return table_8bit(node, np.trunc(np.sqrt(real) / scale) + zero)
    scale_x, zero_x = scales.of_input(node)
    scales.expect_symmetric(node, zero_x, zero)
    return node.emit(
        "sqrt_i16", [x], scale=float(scale_x), scale_y=float(scale), quant=node.output_quant()
    )


FLOAT_FUNCTIONS = {
    "SIN": "sin",
    "COS": "cos",
    "FLOOR": "floor",
    "CEIL": "ceil",
    "ROUND": "round",
}


@converter(*FLOAT_FUNCTIONS)
def float_function(node: TfliteNode) -> Value:
    return _float_only(node, FLOAT_FUNCTIONS[node.op])


@converter("SIGN")
def sign(node: TfliteNode) -> Value:
    return node.emit("sign", [node.input()])


@converter("SQUARE")
def square(node: TfliteNode) -> Value:
    x = node.input()
    if not x.dtype.is_float:
        node.refuse(f"SQUARE of {x.dtype.value} is not supported", "use MUL")
    return node.emit("mul", [x, x])


@converter("LOGICAL_NOT")
def logical_not(node: TfliteNode) -> Value:
    return node.emit("not", [node.input()])
