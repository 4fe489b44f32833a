"""Arithmetic, comparisons and logic of two inputs or more: floats, integers, quantized integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgen.frontend.tflite import byte_tables, scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.frontend.tflite.scales import F32
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, Quant
from aotgen.ops.fixed_point import UNIT, limits

MAX_RANK = 6
"""The rank that TFLite broadcasts up to."""

FLOAT_OPS = {
    "ADD": "add",
    "SUB": "sub",
    "MUL": "mul",
    "DIV": "div",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "POW": "pow",
}

COMPARISONS = {
    "EQUAL": "equal",
    "NOT_EQUAL": "not_equal",
    "LESS": "less",
    "LESS_EQUAL": "less_equal",
    "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal",
}


def _pair(node: TfliteNode) -> tuple[Value, Value]:
    """Both inputs, of one element type and no higher rank than TFLite broadcasts."""
    a, b = node.input(0), node.input(1)
    if a.dtype is not b.dtype:
        node.refuse(f"its inputs have element types {a.dtype.value} and {b.dtype.value}")
    if max(len(a.shape), len(b.shape)) > MAX_RANK:
        node.refuse(f"it broadcasts tensors of more than {MAX_RANK} axes")
    return a, b


def activated(node: TfliteNode, value: Value) -> Value:
    """``value`` after the fused activation, a float or a plain integer."""
    if value.dtype.is_float or node.fused == "NONE":
        return node.activation(value)
    low, high = limits(value.dtype)
    bounds = {"RELU": (0, high), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}
    if node.fused not in bounds:
        node.refuse(f"fused activation {node.fused} is not supported on integers")
    lo, hi = bounds[node.fused]
    return node.emit("clip", [value], lo=max(lo, low), hi=hi)


def _plain(node: TfliteNode, a: Value, b: Value) -> Value:
    y = node.emit(FLOAT_OPS[node.op], [a, b])
    if node.op == "ADD" and node.mode == "tflm" and y.dtype is DType.I32:
        return y  # Micro leaves the activation out here
    return activated(node, y)


def _smaller_than_one(reals: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Multipliers and shifts."""
    pairs = [quantize_multiplier(r) for r in reals]
    return tuple(m for m, _ in pairs), tuple(s for _, s in pairs)


@converter("ADD", "SUB")
def add(node: TfliteNode) -> Value:
    a, b = _pair(node)
    if not scales.is_quantized(node):
        return _plain(node, a, b)
    scales.same_type(node, a, b)
    (scale_a, zero_a), (scale_b, zero_b) = scales.of_input(node, 0), scales.of_input(node, 1)
    scale, zero = scales.of_output(node)
    attrs = None
    if a.dtype is DType.I16:
        if node.op == "ADD":
            scales.expect_symmetric(node, zero_a, zero_b, zero)
        # LiteRT's sum that only shifts does not broadcast, its difference does.
        shifts = node.op == "SUB" or a.shape == b.shape
        if node.mode == "litert" and node.options["pot_scale_int16"] and shifts:
            attrs = _power_of_two(node, scale_a, scale_b, scale)
    if attrs is None:
        attrs = _general_sum((scale_a, scale_b), scale, 15 if a.dtype is DType.I16 else 20)
    op = "qadd" if node.op == "ADD" else "qsub"
    return byte_tables.emit(
        node, op, [a, b], zeros=(zero_a, zero_b), **attrs, **scales.output(node)
    )


def _general_sum(
    inputs: tuple[np.float32, ...], scale: np.float32, left_shift: int
) -> dict[str, Any]:
    """Parameters of a sum: the inputs on twice the largest scale, then on the output's."""
    twice_max = 2 * float(max(inputs))
    multipliers, shifts = _smaller_than_one(tuple(float(s) / twice_max for s in inputs))
    multiplier, shift = quantize_multiplier(twice_max / ((1 << left_shift) * float(scale)))
    return {
        "left_shift": left_shift,
        "multipliers": multipliers,
        "shifts": shifts,
        "multiplier": multiplier,
        "shift": shift,
    }


def _power_of_two(
    node: TfliteNode, scale_a: np.float32, scale_b: np.float32, scale: np.float32
) -> dict[str, Any] | None:
    """Parameters of LiteRT's sum of int16 whose scales are all powers of two; None for others.

    It shifts one input to the right, rounded, and adds; here the input is first moved up and
    multiplied by a half so often, which is exact.
    """
    logs = [scales.pot_exponent(s) for s in (scale_a, scale_b, scale)]
    if None in logs:
        return None
    rights = [logs[2] - logs[i] for i in (0, 1)]  # type: ignore[operator]
    if min(rights) < 0 or max(rights) > 16 or 0 not in rights:
        node.refuse(
            "an int16 sum with power-of-two scales shifts one input, to the right",
            "quantize the model again, or use --requant tflm",
        )
    return {
        "left_shift": 15,
        "multipliers": (UNIT[0], UNIT[0]),
        "shifts": tuple(-14 - right for right in rights),
        "multiplier": UNIT[0],
        "shift": UNIT[1],
    }


def _scaled(
    node: TfliteNode, op: str, inputs: list[Value], zeros: tuple[int, int], real: float
) -> Value:
    """``op`` of the inputs less their zero points, whose result is times ``real``."""
    multiplier, shift = quantize_multiplier(real)
    attrs = {"zeros": zeros, "multiplier": multiplier, "shift": shift, **scales.output(node)}
    return byte_tables.emit(node, op, inputs, **attrs)


@converter("MUL")
def mul(node: TfliteNode) -> Value:
    a, b = _pair(node)
    if not scales.is_quantized(node):
        return _plain(node, a, b)
    (scale_a, zero_a), (scale_b, zero_b) = scales.of_input(node, 0), scales.of_input(node, 1)
    scale, _ = scales.of_output(node)
    if a.dtype is DType.I16:
        scales.expect_symmetric(node, zero_a, zero_b)
    if node.output_dtype() is not a.dtype:
        node.refuse(f"a product of {a.dtype.value} in {node.output_dtype().value} is not supported")
    if scales.is_micro(node, DType.I8, DType.I16):
        real = float(scale_a) * float(scale_b) / float(scale)
    else:
        real = float(scale_a * scale_b / scale)
    return _scaled(node, "qmul", [a, b], (zero_a, zero_b), real)


@converter("DIV")
def div(node: TfliteNode) -> Value:
    """Floats do not become infinite: TFLite clamps to the largest one."""
    a, b = _pair(node)
    if not scales.is_quantized(node):
        y = _plain(node, a, b)
        most = float(np.finfo(np.float32).max)
        return node.emit("clip", [y], lo=-most, hi=most) if y.dtype is DType.F32 else y
    scales.same_type(node, a, b)
    (scale_a, zero_a), (scale_b, zero_b) = scales.of_input(node, 0), scales.of_input(node, 1)
    scale, _ = scales.of_output(node)
    if scales.is_micro(node, DType.I8):
        real = float(scale_a) / (float(scale_b) * float(scale))
    else:
        real = float(scale_a / (scale_b * scale))
    return _scaled(node, "qdiv", [a, b], (zero_a, zero_b), real)


@converter("SQUARED_DIFFERENCE")
def squared_difference(node: TfliteNode) -> Value:
    a, b = _pair(node)
    if not scales.is_quantized(node):
        difference = node.emit("sub", [a, b])
        return node.emit("mul", [difference, difference])
    scales.same_type(node, a, b)
    (scale_a, zero_a), (scale_b, zero_b) = scales.of_input(node, 0), scales.of_input(node, 1)
    scale, _ = scales.of_output(node)
    left_shift = 0 if a.dtype is DType.I16 else 7
    twice_max = 2.0 * float(max(scale_a, scale_b))
    multipliers, shifts = _smaller_than_one(
        (float(scale_a) / twice_max, float(scale_b) / twice_max)
    )
    real = twice_max * twice_max / ((1 << left_shift * 2) * float(scale))
    multiplier, shift = quantize_multiplier(real)
    return byte_tables.emit(
        node,
        "qsquared_difference",
        [a, b],
        zeros=(zero_a, zero_b),
        left_shift=left_shift,
        multipliers=multipliers,
        shifts=shifts,
        multiplier=multiplier,
        shift=shift,
        **scales.output(node),
    )


@converter("MAXIMUM", "MINIMUM")
def extremum(node: TfliteNode) -> Value:
    """Of the stored integers, whatever their scales: TFLite does not rescale here."""
    a, b = _pair(node)
    return byte_tables.emit(node, FLOAT_OPS[node.op], [a, b])


@converter("POW")
def power(node: TfliteNode) -> Value:
    a, b = _pair(node)
    if not a.dtype.is_float and a.dtype is not DType.I32:
        node.refuse(f"powers of {a.dtype.value} are not supported")
    return node.emit("pow", [a, b])


@converter("PRELU")
def prelu(node: TfliteNode) -> Value:
    """The slopes of int16 are int8: LiteRT reads them as such."""
    x, slope = node.input(0), node.input(1)
    if not scales.is_quantized(node):
        return node.emit("prelu", [x, slope])
    scales.same_type(node, x)
    wanted = DType.I8 if x.dtype is DType.I16 else x.dtype
    if slope.dtype is not wanted:
        node.refuse(f"its slopes are {slope.dtype.value}, must be {wanted.value}")
    (scale_x, zero_x), (scale_s, zero_s) = scales.of_input(node, 0), scales.of_input(node, 1)
    scale, _ = scales.of_output(node)
    if scales.is_micro(node, DType.I8, DType.I16):
        above = float(scale_x) / float(scale)
        below = float(scale_x) * float(scale_s) / float(scale)
    else:
        above, below = float(scale_x / scale), float(scale_x * scale_s / scale)
    multipliers, shifts = _smaller_than_one((above, below))
    return byte_tables.emit(
        node,
        "qprelu",
        [x, slope],
        zeros=(zero_x, zero_s),
        multipliers=multipliers,
        shifts=shifts,
        **scales.output(node),
    )


COMPARE_SHIFT = 8
"""Bits that TFLite's comparisons move both sides up."""


@converter(*COMPARISONS)
def compare(node: TfliteNode) -> Value:
    a, b = _pair(node)
    fn = COMPARISONS[node.op]
    if scales.is_quantized(node) and (a.dtype is not DType.I16 or _rescales_int16(node)):
        (scale_a, zero_a), (scale_b, zero_b) = scales.of_input(node, 0), scales.of_input(node, 1)
        multipliers, shifts = _smaller_than_one((float(scale_a), float(scale_b)))
        return node.emit(
            "qcompare",
            [a, b],
            fn=fn,
            zeros=(zero_a, zero_b),
            left_shift=COMPARE_SHIFT,
            multipliers=multipliers,
            shifts=shifts,
        )
    if fn == "not_equal":
        return node.emit("not", [node.emit("equal", [a, b])])
    return node.emit(fn, [a, b])


def _rescales_int16(node: TfliteNode) -> bool:
    """LiteRT rescales int16 where it tests for equality, and compares it as it is elsewhere. Micro
    has no proper kernels for int16.
    """
    return node.op in ("EQUAL", "NOT_EQUAL")


@converter("LOGICAL_AND", "LOGICAL_OR")
def logical(node: TfliteNode) -> Value:
    a, b = _pair(node)
    if a.dtype is not DType.BOOL:
        node.refuse(f"logic on {a.dtype.value} is not supported", "use bool tensors")
    return node.emit("and" if node.op == "LOGICAL_AND" else "or", [a, b])


@converter("BITWISE_XOR", "RIGHT_SHIFT")
def bits(node: TfliteNode) -> Value:
    a, b = _pair(node)
    return node.emit("bit_xor" if node.op == "BITWISE_XOR" else "shift_right", [a, b])


@converter("FLOOR_DIV")
def floor_div(node: TfliteNode) -> Value:
    a, b = _pair(node)
    if a.dtype.is_float:
        return node.emit("floor", [node.emit("div", [a, b])])
    return node.emit("floor_div", [a, b])


@converter("FLOOR_MOD")
def floor_mod(node: TfliteNode) -> Value:
    a, b = _pair(node)
    return node.emit("mod", [a, b], fmod=False)


ADD_N_SHIFT = 20


@converter("ADD_N")
def add_n(node: TfliteNode) -> Value:
    xs = [node.input(i) for i in range(len(node.inputs))]
    if len(xs) < 2:
        node.refuse(f"it has {len(xs)} inputs, needs two")
    if not scales.is_quantized(node):
        total = xs[0]
        for x in xs[1:]:
            total = node.emit("add", [total, x])
        return total
    first = scales.of_input(node, 0)
    if xs[0].dtype is not DType.I8 or any(
        scales.of_input(node, i) != first for i in range(len(xs))
    ):
        node.refuse("its inputs must be int8 with the same scale", "use ADD")
    scales.same_type(node, *xs)
    scale, _ = scales.of_output(node)
    # Micro's sum starts with one more input, whose integers are 0: it has always been so.
    xs.append(node.constant(np.array(0, np.int8), "start"))
    attrs = _general_sum((first[0],) * len(xs), scale, ADD_N_SHIFT)
    return node.emit("qadd", xs, zeros=(first[1],) * len(xs), **attrs, **scales.output(node))


@converter("CONCATENATION")
def concatenation(node: TfliteNode) -> Value:
    xs = [node.input(i) for i in range(len(node.inputs))]
    if not xs:
        node.refuse("it has no inputs")
    axis = node.axis(int(node.options["axis"]), len(xs[0].shape))
    if xs[0].dtype is DType.U8 and node.output_quant() is not None:
        out = scales.of_output(node)
        xs = [_rescaled_u8(node, x, i, out) for i, x in enumerate(xs)]
    return activated(node, node.concat(xs, axis))


def _rescaled_u8(node: TfliteNode, x: Value, index: int, out: tuple[np.float32, int]) -> Value:
    """``x`` on the output's scale, in float32 as LiteRT's concatenation of uint8 does it."""
    scale, zero = scales.of_input(node, index)
    if (scale, zero) == out:
        return x
    ratio = scale * (F32(1.0) / out[0])
    bias = F32(-zero) * ratio
    steps = scales.rounded(np.arange(256, dtype=F32) * ratio + bias) + out[1]
    values = tuple(int(v) for v in np.clip(steps, 0, 255))
    quant = Quant((float(out[0]),), (out[1],))
    return node.emit("lookup", [x], table=values, dtype=DType.U8, quant=quant)
