"""Element-wise operators of one input, and casts."""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.frontend.onnx.tensors import element_type, type_name, type_remedy
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

_PLAIN = {
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Neg": "neg",
    "Abs": "abs",
    "Erf": "erf",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sign": "sign",
    "Not": "not",
    "Relu": "relu",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "IsNaN": "isnan",
    "HardSwish": "hard_swish",
    "Mish": "mish",
    "BitwiseNot": "bit_not",
}

_UNCHANGED_FOR_INT = ("Floor", "Ceil", "Round")


@converts(*_PLAIN)
def plain(n: OnnxNode) -> Value:
    """Operators without attributes that have a canonical op of the same meaning."""
    if n.op in _UNCHANGED_FOR_INT and n.x().dtype.is_int:
        return n.x()
    return n.emit(_PLAIN[n.op], [n.x()])


@converts("Identity")
def identity(n: OnnxNode) -> Value:
    return n.x()


@converts("Dropout")
def dropout(n: OnnxNode) -> list[Value]:
    """The identity when it infers; the mask is all true.

    Opset 7 to 11: always inference. From 12 on input 2 (training_mode) decides.
    """
    x = n.x()
    if n.opset >= 12 and n.optional(2) is not None and bool(n.need(2, "training_mode").any()):
        n.refuse("it is in training mode", "export the model in evaluation mode")
    if not n.is_used(1):
        return [x]
    dtype = DType.BOOL if n.opset >= 10 else x.dtype
    one = n.constant(np.ones((), dtype.numpy))
    return [x, n.emit("expand", [one], shape=x.shape)]


@converts("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")
def with_alpha(n: OnnxNode) -> Value:
    op = {"LeakyRelu": "leaky_relu", "ThresholdedRelu": "thresholded_relu"}.get(n.op, n.op.lower())
    alpha = n.get_float("alpha", 0.01 if n.op == "LeakyRelu" else 1.0)
    return n.emit(op, [n.x()], alpha=alpha)


@converts("Selu")
def selu(n: OnnxNode) -> Value:
    alpha = n.get_float("alpha", 1.67326319217681884765625)
    return n.emit(
        "selu", [n.x()], alpha=alpha, gamma=n.get_float("gamma", 1.05070102214813232421875)
    )


@converts("HardSigmoid")
def hard_sigmoid(n: OnnxNode) -> Value:
    return n.emit(
        "hard_sigmoid", [n.x()], alpha=n.get_float("alpha", 0.2), beta=n.get_float("beta", 0.5)
    )


@converts("Gelu", since=20)
def gelu(n: OnnxNode) -> Value:
    kind = n.get_str("approximate", "none")
    if kind not in ("none", "tanh"):
        n.refuse(f"approximate={kind!r} is not known", "use 'none' or 'tanh'")
    return n.emit("gelu", [n.x()], approximate=kind)


@converts("Gelu", domain="com.microsoft")
def microsoft_gelu(n: OnnxNode) -> Value:
    return n.emit("gelu", [n.x()], approximate="none")


@converts("Swish", since=24)
def swish(n: OnnxNode) -> Value:
    """x * sigmoid(alpha * x)."""
    x = n.x()
    alpha = n.get_float("alpha", 1.0)
    inner = x if alpha == 1.0 else n.emit("mul", [x, n.scalar(alpha, x)])
    return n.emit("mul", [x, n.emit("sigmoid", [inner])])


@converts("Shrink", since=9)
def shrink(n: OnnxNode) -> Value:
    """x + bias below -lambd, x - bias above lambd, else 0."""
    x = n.x()
    lambd, bias = n.get_float("lambd", 0.5), n.get_float("bias", 0.0)
    if not x.dtype.is_float and not (lambd.is_integer() and bias.is_integer()):
        n.refuse(
            "a fractional lambd or bias on integers is not supported", "cast its input to float"
        )
    below = n.emit("less", [x, n.scalar(-lambd, x)])
    above = n.emit("less", [n.scalar(lambd, x), x])
    low = n.emit("add", [x, n.scalar(bias, x)])
    high = n.emit("where", [above, n.emit("sub", [x, n.scalar(bias, x)]), n.scalar(0, x)])
    return n.emit("where", [below, low, high])


@converts("IsInf", since=10)
def isinf(n: OnnxNode) -> Value:
    x = n.x()
    positive, negative = n.get_int("detect_positive", 1), n.get_int("detect_negative", 1)
    if positive and negative:
        return n.emit("isinf", [x])
    if not positive and not negative:
        return n.emit("expand", [n.constant(np.zeros((), bool))], shape=x.shape)
    return n.emit("equal", [x, n.scalar(math.inf if positive else -math.inf, x)])


@converts("Clip")
def clip_by_attributes(n: OnnxNode) -> Value:
    """Opset 6 to 10: bounds are attributes, by default the range of float32."""
    top = float(np.finfo(np.float32).max)
    lo, hi = n.get_float("min", -top), n.get_float("max", top)
    lo = lo if n.has("min") else -math.inf
    hi = hi if n.has("max") else math.inf
    return n.emit("clip", [n.x()], lo=lo, hi=hi)


@converts("Clip", since=11)
def clip_by_inputs(n: OnnxNode) -> Value:
    """From opset 11 on: optional scalar inputs, which need not be constant."""
    x = n.x()
    bounds: list[float] = []
    for index, default in ((1, -math.inf), (2, math.inf)):
        value, known = n.optional(index), n.known(index)
        if value is not None and (known is None or not _exact(known)):
            return _clip_by_values(n, x)
        if value is not None and known is not None and known.size != 1:
            n.refuse(f"its bound (input {index}) has {known.size} elements", "use a scalar")
        bounds.append(default if known is None else float(known.reshape(())))
    return n.emit("clip", [x], lo=bounds[0], hi=bounds[1])


def _exact(array: np.ndarray) -> bool:
    """Whether every element survives a trip through a Python float."""
    return array.dtype.kind == "f" or all(int(float(v)) == int(v) for v in array.reshape(-1))


def _clip_by_values(n: OnnxNode, x: Value) -> Value:
    """min(max(x, lo), hi), so that hi wins when lo > hi, as ONNX says."""
    for index, op in ((1, "maximum"), (2, "minimum")):
        bound = n.optional(index)
        if bound is not None:
            x = n.emit(op, [x, n.reshape(bound, ())])
    return x


@converts("Cast")
def cast(n: OnnxNode) -> Value:
    return n.cast(n.x(), target_type(n, n.get_int("to")))


@converts("CastLike", since=15)
def cast_like(n: OnnxNode) -> Value:
    return n.cast(n.x(0), n.x(1).dtype)


def target_type(n: OnnxNode, elem_type: int) -> DType:
    """The DType of an ONNX element type number, refused when the IR has none."""
    dtype = element_type(elem_type)
    if dtype is None:
        reason = f"element type {type_name(elem_type)} is not supported"
        n.refuse(reason, type_remedy(elem_type))
    return dtype
