"""Operators of onnxruntime's own domain that its optimizer writes into float models."""

from __future__ import annotations

from aotgen.frontend.onnx.linear import conv, gemm, matmul
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value

DOMAIN = "com.microsoft"


@converts("FusedConv", domain=DOMAIN)
def fused_conv(n: OnnxNode) -> Value:
    """Conv, plus an optional tensor (input 3), then an activation."""
    y = conv(n)
    addend = n.optional(3)
    if addend is not None:
        y = n.emit("add", [y, addend])
    return _activation(n, y) if n.has("activation") else y


def _activation(n: OnnxNode, x: Value) -> Value:
    kind = n.get_str("activation")
    parameters = n.get_floats("activation_params")
    plain = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}
    if kind in plain:
        return n.emit(plain[kind], [x])
    if kind == "LeakyRelu" and len(parameters) == 1:
        return n.emit("leaky_relu", [x], alpha=parameters[0])
    if kind == "Clip" and len(parameters) == 2:
        return n.emit("clip", [x], lo=parameters[0], hi=parameters[1])
    if kind == "HardSigmoid" and len(parameters) == 2:
        return n.emit("hard_sigmoid", [x], alpha=parameters[0], beta=parameters[1])
    n.refuse(f"activation {kind!r} with {len(parameters)} parameters is not supported")


@converts("FusedGemm", domain=DOMAIN)
def fused_gemm(n: OnnxNode) -> Value:
    """Gemm, then an activation with ``activation_alpha``, ``activation_beta``."""
    y = gemm(n)
    kind = n.get_str("activation", "")
    if kind == "":
        return y
    alpha, beta = n.get_float("activation_alpha", 0.0), n.get_float("activation_beta", 0.0)
    if kind == "LeakyRelu":
        return n.emit("leaky_relu", [y], alpha=alpha)
    if kind == "HardSigmoid":
        return n.emit("hard_sigmoid", [y], alpha=alpha, beta=beta)
    return _activation(n, y)


@converts("FusedMatMul", domain=DOMAIN)
def fused_matmul(n: OnnxNode) -> Value:
    """alpha * A' * B', each operand's last two axes exchanged on demand."""
    if n.get_int("transBatchA", 0) or n.get_int("transBatchB", 0):
        n.refuse("transBatchA and transBatchB are not supported")
    for index, name in enumerate(("transA", "transB")):
        value = n.x(index)
        rank = len(value.shape)
        if n.get_int(name, 0) and rank > 1:
            n.inputs[index] = n.transpose(value, (*range(rank - 2), rank - 1, rank - 2))
    y = matmul(n)
    alpha = n.get_float("alpha", 1.0)
    return y if alpha == 1.0 else n.emit("mul", [y, n.scalar(alpha, y)])


@converts("BiasGelu", domain=DOMAIN)
def bias_gelu(n: OnnxNode) -> Value:
    return n.emit("gelu", [n.emit("add", [n.x(0), n.x(1)])], approximate="none")


@converts("FastGelu", domain=DOMAIN)
def fast_gelu(n: OnnxNode) -> Value:
    bias = n.optional(1)
    x = n.x(0) if bias is None else n.emit("add", [n.x(0), bias])
    return n.emit("gelu", [x], approximate="tanh")


@converts("QuickGelu", domain=DOMAIN)
def quick_gelu(n: OnnxNode) -> Value:
    """x * sigmoid(alpha * x)."""
    x = n.x()
    scaled = n.emit("mul", [x, n.scalar(n.get_float("alpha", 1.702), x)])
    return n.emit("mul", [x, n.emit("sigmoid", [scaled])])


@converts("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(n: OnnxNode) -> list[Value | None]:
    """layer_norm(input + skip + bias) with gamma (2), beta (3); the sum itself is output 3."""
    return _skip_norm(n, "layer_norm", n.optional(3), n.optional(4))


@converts("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(n: OnnxNode) -> list[Value | None]:
    """rms_norm(input + skip + bias) with gamma (2); the sum itself is output 3."""
    return _skip_norm(n, "rms_norm", None, n.optional(3))


def _skip_norm(n: OnnxNode, op: str, beta: Value | None, bias: Value | None) -> list[Value | None]:
    total = n.emit("add", [n.x(0), n.x(1)])
    if bias is not None:
        total = n.emit("add", [total, bias])
    if n.is_used(1) or n.is_used(2):
        n.refuse("its outputs mean and inverse deviation are not supported")
    y = n.emit(
        op,
        [total, n.x(2), beta],
        axis=len(total.shape) - 1,
        eps=n.get_float("epsilon", 1e-12),
    )
    return [y, None, None, total]


@converts("SimplifiedLayerNormalization")
@converts("SimplifiedLayerNormalization", domain=DOMAIN)
def simplified_layer_normalization(n: OnnxNode) -> list[Value | None]:
    """rms_norm; the further output, 1 / root mean square, is not supported."""
    if n.is_used(1):
        n.refuse("its output inverse deviation is not supported")
    x = n.x(0)
    axis = n.axis("axis", -1, len(x.shape))
    return [n.emit("rms_norm", [x, n.x(1), None], axis=axis, eps=n.get_float("epsilon", 1e-5))]
