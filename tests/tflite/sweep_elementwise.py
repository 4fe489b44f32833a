"""Cases of the op sweep: element-wise operators, binary and unary, and changes of quantization."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tests.tflite.sweep_models import Array, Case, Draw, Entry, Operand, Shape, limits

FIXED = {
    "LOGISTIC": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (1 / 32768, 0)},
    "TANH": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (1 / 32768, 0)},
}
"""The output quantization that an operator insists on, by element type."""


def _broadcast(d: Draw) -> tuple[Shape, Shape, Shape]:
    """Two shapes and what they give together; often equal, sometimes of another rank."""
    rank = d.among(1, 2, 3, 4, 4, 4)
    out = tuple(d.among(1, 2, 3, 5, 8, 9, 16, 17) for _ in range(rank))
    if d.chance(0.5):
        return out, out, out
    first, second = list(out), list(out)
    for axis in range(rank):
        which = d.between(0, 3)
        if which == 0:
            first[axis] = 1
        elif which == 1:
            second[axis] = 1
    if d.chance(0.3):
        second = second[d.between(0, rank - 1) :]
    a, b = tuple(first), tuple(second)
    return (a, b, np.broadcast_shapes(a, b)) if d.chance(0.7) else (b, a, np.broadcast_shapes(a, b))


def _operands(d: Draw, kind: str, scale: float | None = None) -> tuple[list[Operand], Shape]:
    a, b, out = _broadcast(d)
    x, y = d.tensor(a, kind, scale), d.tensor(b, kind, scale)
    if d.chance(0.25):
        y = d.made_constant(y)
    return [x, y], out


def _sum(d: Draw, kind: str, *, op: str) -> Case:
    """ADD and SUB."""
    options = {"fused_activation_function": d.activation()}
    scale = None
    if kind == "int16":
        options["pot_scale_int16"] = False
    inputs, shape = _operands(d, kind, scale)
    y = Operand(shape, kind)
    if kind not in ("float32", "int32"):
        total = (inputs[0].scale + inputs[1].scale) * d.among(0.2, 0.5, 1.0, 1.7)
        y = Operand(shape, kind, *d.quant(kind, total))
    if kind == "int32":
        options["fused_activation_function"] = "NONE"
    return Case(op, kind, inputs, [y], options)


def _product(d: Draw, kind: str, *, op: str) -> Case:
    """MUL and SQUARED_DIFFERENCE."""
    inputs, shape = _operands(d, kind)
    y = Operand(shape, kind)
    if kind not in ("float32", "int32"):
        highest = {"int8": 128, "uint8": 128, "int16": 32768}[kind]
        total = inputs[0].scale * inputs[1].scale * highest * d.among(0.1, 0.5, 1.0)
        y = Operand(shape, kind, *d.quant(kind, total))
    options = {} if op == "SQUARED_DIFFERENCE" else {"fused_activation_function": d.activation()}
    if kind == "int32" and options:
        options["fused_activation_function"] = "NONE"
    return Case(op, kind, inputs, [y], options)


def _division(d: Draw, kind: str) -> Case:
    a, b, shape = _broadcast(d)
    x, y = d.tensor(a, kind), d.tensor(b, kind)
    options = {"fused_activation_function": d.activation()}
    if kind == "float32":
        away = partial(_away_from_zero, b)
        return Case(
            "DIV", kind, [x, Operand(b, kind, values=away)], [Operand(shape, kind)], options
        )
    zero = int(y.zero)
    divisor = Operand(b, kind, y.scale, zero, values=partial(_unlike, b, zero, kind))
    scale = x.scale / (y.scale * d.among(8, 30, 100))
    return Case("DIV", kind, [x, divisor], [Operand(shape, kind, *d.quant(kind, scale))], options)


def _away_from_zero(shape: Shape, rng: np.random.Generator, step: int) -> Array:
    return rng.uniform(0.2, 3.0, shape) * rng.choice([-1.0, 1.0], shape)


def _unlike(shape: Shape, zero: int, kind: str, rng: np.random.Generator, step: int) -> Array:
    """Anything but the zero point, which would be a division by 0."""
    lo, hi = limits(kind)
    values = rng.integers(lo, hi + 1, shape)
    return np.where(values == zero, hi if zero < hi else lo, values)


def _extremum(d: Draw, kind: str, *, op: str) -> Case:
    """MAXIMUM and MINIMUM: one quantization for all three tensors."""
    a, b, shape = _broadcast(d)
    scale, zero = d.quant(kind)
    inputs = [Operand(a, kind, scale, zero), Operand(b, kind, scale, zero)]
    return Case(op, kind, inputs, [Operand(shape, kind, scale, zero)])


def _comparison(d: Draw, kind: str) -> Case:
    op = d.among("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
    a, b, shape = _broadcast(d)
    scale = d.scale() if d.chance(0.5) else None
    inputs = [d.tensor(a, kind, scale), d.tensor(b, kind, scale)]
    return Case(op, kind, inputs, [Operand(shape, "bool")])


def _logical(d: Draw, kind: str) -> Case:
    op = d.among("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT")
    a, b, shape = _broadcast(d)
    inputs = [Operand(a, "bool"), Operand(b, "bool")]
    if op == "LOGICAL_NOT":
        return Case(op, "bool", inputs[:1], [Operand(a, "bool")])
    return Case(op, "bool", inputs, [Operand(shape, "bool")])


def _prelu(d: Draw, kind: str) -> Case:
    x = d.tensor(d.image(), kind)
    alpha = d.made_constant(d.tensor((1, 1, x.shape[3]), kind, 0.01))
    y = Operand(x.shape, kind)
    if kind != "float32":
        y = Operand(x.shape, kind, *d.quant(kind, x.scale * d.among(0.5, 1.0, 2.0)))
    return Case("PRELU", kind, [x, alpha], [y])


def _unary_shape(d: Draw) -> Shape:
    return d.shape(d.among(1, 2, 3, 4), 9)


def _activation(d: Draw, kind: str, *, op: str) -> Case:
    """Operators of one tensor whose output has a scale of its own."""
    x = d.tensor(_unary_shape(d), kind, d.scale(5e-3, 0.3))
    if kind == "int16" and op in ("LOGISTIC", "TANH") and d.chance(0.5):
        x = Operand(x.shape, kind, 2.0 ** -d.among(11, 12, 13), 0)
    options = {}
    if op == "LEAKY_RELU":
        options["alpha"] = float(np.float32(d.among(0.01, 0.1, 0.3, 0.5, 1.5, 0.0)))
    if op == "GELU":
        options["approximate"] = d.chance(0.5)
    if kind == "float32":
        return Case(op, kind, [x], [Operand(x.shape, kind)], options)
    if op in FIXED:
        return Case(op, kind, [x], [Operand(x.shape, kind, *FIXED[op][kind])], options)
    scale, zero = d.quant(kind, x.scale * d.among(0.3, 0.7, 1.0, 1.6))
    if d.chance(0.2):
        scale, zero = x.scale, x.zero
    return Case(op, kind, [x], [Operand(x.shape, kind, scale, zero)], options)


def _float_math(d: Draw, kind: str) -> Case:
    op = d.among("FLOOR", "CEIL", "ROUND", "SIN", "COS", "SQUARE", "EXP", "NEG", "ABS")
    x = Operand(_unary_shape(d), "float32")
    if op == "ROUND":
        x = Operand(x.shape, "float32", values=partial(_halves, x.shape))
    return Case(op, "float32", [x], [Operand(x.shape, "float32")])


def _halves(shape: Shape, rng: np.random.Generator, step: int) -> Array:
    return rng.integers(-9, 10, shape) / 2


def _positive_math(d: Draw, kind: str) -> Case:
    op = d.among("SQRT", "RSQRT", "LOG")
    shape = _unary_shape(d)
    if kind == "float32":
        x = Operand(shape, kind, values=lambda rng, step: rng.uniform(0.01, 9, shape))
        return Case(op, kind, [x], [Operand(shape, kind)])
    x = Operand(shape, "int8", d.scale(5e-3, 0.1), -128, values=partial(_above, shape, -128))
    highest = {"SQRT": 255 * x.scale, "RSQRT": 1 / x.scale, "LOG": 4.0}[op]
    y = Operand(shape, "int8", float(np.float32(highest**0.5 / 255)), d.zero("int8"))
    return Case(op, "int8", [x], [y])


def _above(shape: Shape, zero: int, rng: np.random.Generator, step: int) -> Array:
    return rng.integers(zero + 1, 128, shape)


def _integer_math(d: Draw, kind: str) -> Case:
    op = d.among("FLOOR_DIV", "FLOOR_MOD")
    a, b, shape = _broadcast(d)
    divisor = Operand(b, kind, values=partial(_away_from_zero, b))
    if kind == "int32":
        divisor = Operand(b, kind, values=lambda rng, step: rng.choice([-7, -2, 1, 3, 10], b))
    return Case(op, kind, [Operand(a, kind), divisor], [Operand(shape, kind)])


def _quantize(d: Draw, kind: str) -> Case:
    """Floats, half of them at ties, or integers of another quantization."""
    source, target = kind.split(" to ")
    shape = _unary_shape(d)
    scale, zero = d.quant(target, d.scale(1e-3, 0.3))
    if target == "int32":
        scale, zero = d.scale(1e-3, 0.3), 0
    y = Operand(shape, target, scale, zero)
    if source == "float32":
        lo, hi = limits(target)
        x = Operand(shape, source, values=partial(_ties, shape, scale, lo - zero, hi - zero))
        return Case("QUANTIZE", kind, [x], [y])
    x = d.tensor(shape, source, scale * d.among(0.1, 0.5, 1.0, 1.0, 2.0, 5.0))
    if source == target and d.chance(0.3):
        x = Operand(shape, source, scale, d.zero(source))
    return Case("QUANTIZE", kind, [x], [y])


def _ties(
    shape: Shape, scale: float, low: int, high: int, rng: np.random.Generator, step: int
) -> Array:
    steps = rng.integers(low - 3, high + 4, shape) + rng.choice([0.0, 0.5, -0.5, 0.25], shape)
    return (steps * np.float32(scale)).astype(np.float32)


def _dequantize(d: Draw, kind: str) -> Case:
    x = d.tensor(_unary_shape(d), kind)
    if kind == "float16":
        return Case("DEQUANTIZE", kind, [x], [Operand(x.shape, "float32")], version=3)
    return Case("DEQUANTIZE", kind, [x], [Operand(x.shape, "float32")])


def _cast(d: Draw, kind: str) -> Case:
    source, target = kind.split(" to ")
    shape = _unary_shape(d)
    low = 0 if "uint" in kind else -100
    x = Operand(shape, source, values=lambda rng, step: rng.integers(low, 100, shape))
    return Case("CAST", kind, [x], [Operand(shape, target)])


def _add_n(d: Draw, kind: str) -> Case:
    shape, count = _unary_shape(d), d.between(2, 4)
    if kind == "int8":
        x = d.tensor(shape, kind)
        y = Operand(shape, kind, *d.quant(kind, x.scale * count * d.among(0.5, 1.0)))
        return Case("ADD_N", kind, [x] * count, [y])
    return Case("ADD_N", kind, [Operand(shape, kind)] * count, [Operand(shape, kind)])


def _select(d: Draw, kind: str) -> Case:
    a, b, shape = _broadcast(d)
    scale, zero = d.quant(kind)
    inputs = [
        Operand(shape, "bool"),
        Operand(a, kind, scale, zero),
        Operand(b, kind, scale, zero),
    ]
    return Case("SELECT_V2", kind, inputs, [Operand(shape, kind, scale, zero)])


def _named(function: Callable[..., Case], op: str, *kinds: str) -> Entry:
    return Entry(op, kinds, partial(function, op=op))


ELEMENTWISE = [
    _named(_sum, "ADD", "int8", "int8", "uint8", "int16", "float32", "int32"),
    _named(_sum, "SUB", "int8", "uint8", "int16", "float32", "int32"),
    _named(_product, "MUL", "int8", "int8", "uint8", "int16", "float32", "int32"),
    _named(_product, "SQUARED_DIFFERENCE", "int8", "float32", "int32"),
    Entry("DIV", ("float32", "uint8", "int8"), _division),
    _named(_extremum, "MAXIMUM", "int8", "uint8", "int16", "float32", "int32"),
    _named(_extremum, "MINIMUM", "int8", "uint8", "int16", "float32", "int32"),
    Entry("EQUAL", ("int8", "float32", "uint8", "int32"), _comparison),
    Entry("LOGICAL_AND", ("bool",), _logical),
    Entry("PRELU", ("int8", "uint8", "float32"), _prelu),
    _named(_activation, "LEAKY_RELU", "int8", "uint8", "int16", "float32"),
    _named(_activation, "HARD_SWISH", "int8", "uint8", "float32"),
    _named(_activation, "LOGISTIC", "int8", "uint8", "int16", "float32"),
    _named(_activation, "TANH", "int8", "uint8", "int16", "float32"),
    _named(_activation, "RELU", "int8", "uint8", "int16", "float32"),
    _named(_activation, "RELU6", "int8", "uint8", "float32"),
    _named(_activation, "ELU", "int8", "float32"),
    _named(_activation, "GELU", "int8", "uint8", "float32"),
    _named(_activation, "ABS", "int8", "int16", "float32"),
    Entry("FLOOR", ("float32",), _float_math),
    Entry("SQRT", ("float32", "int8"), _positive_math),
    Entry("FLOOR_DIV", ("int32", "float32"), _integer_math),
    Entry(
        "QUANTIZE",
        (
            *("float32 to int8", "float32 to uint8", "float32 to int16", "int8 to int8"),
            *("int8 to uint8", "uint8 to int8", "int16 to int8", "int8 to int16"),
            *("int16 to int16", "uint8 to uint8", "int8 to int32", "int16 to int32"),
        ),
        _quantize,
    ),
    Entry("DEQUANTIZE", ("int8", "uint8", "int16", "float16"), _dequantize),
    Entry(
        "CAST",
        (
            "float32 to int32",
            "int32 to float32",
            "int8 to float32",
            "uint8 to float32",
            "float32 to int8",
            "int32 to int64",
            "bool to float32",
        ),
        _cast,
    ),
    Entry("ADD_N", ("float32", "int8", "int32"), _add_n),
    Entry("SELECT_V2", ("int8", "float32", "int16", "int32"), _select),
]
