"""Softmax, log-softmax and normalisations along the last axis."""

from __future__ import annotations

import numpy as np

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType
from aotgen.ops.exp_tables import difference_scale, real_multiplier, softmax_tables

_SOFTMAX_OUTPUT = {
    DType.I8: (2.0**-8, -128),
    DType.U8: (2.0**-8, 0),
    DType.I16: (2.0**-15, 0),
}
"""Scale and zero point that both runtimes give softmax's output whatever the file says."""

_LOG_OUTPUT = {DType.I8: (2.0**-4, 127), DType.U8: (2.0**-4, 255)}
_L2_OUTPUT = {DType.I8: (2.0**-7, 0), DType.U8: (2.0**-7, 128)}


def _expect_output(node: TfliteNode, scale: float, zero_point: int) -> None:
    """Refuse an output quantized otherwise than the operator defines it."""
    real, zero = scales.of_output(node)
    if zero != zero_point or abs(float(real) - scale) > 1e-3 * scale:
        node.refuse(
            f"its output has scale {real:.9g} and zero point {zero}, must have {scale:.9g} and "
            f"{zero_point}",
            "quantize the model again",
        )


def _last_axis(x: Value) -> int:
    return len(x.shape) - 1


@converter("SOFTMAX")
def softmax(node: TfliteNode) -> Value:
    x, beta = node.input(), float(node.options["beta"])
    if not x.shape:
        node.refuse("softmax of a scalar is not defined")
    if x.dtype.is_float:
        scaled = x if beta == 1.0 else node.emit("mul", [x, node.scalar(beta, x)])
        return node.emit("softmax", [scaled], axis=_last_axis(x))
    scale, _ = scales.of_input(node)
    if not beta > 0:
        node.refuse(f"beta is {beta}, must be above 0 on integers")
    if x.dtype is DType.I16:
        return _softmax_i16(node, x, scale, beta)
    dtype = node.output_dtype()
    if x.dtype is DType.I8 and dtype is DType.I16:
        _expect_output(node, 2.0**-16, -32768)
    elif x.dtype is dtype and dtype in scales.EIGHT_BITS:
        _expect_output(node, *_SOFTMAX_OUTPUT[dtype])
    else:
        node.refuse(f"softmax of {x.dtype.value} to {dtype.value} is not supported")
    multiplier, shift, lowest = _differences(node, beta * float(scale))
    return node.emit(
        "qsoftmax",
        [x],
        multiplier=multiplier,
        shift=shift,
        lowest=lowest,
        dtype=dtype,
        quant=node.output_quant(),
    )


def _differences(node: TfliteNode, scale: float) -> tuple[int, int, int]:
    if scale * 2.0**26 <= 1.0:
        node.refuse(f"its input has scale {scale:.9g}, which is too small", "quantize it again")
    return difference_scale(scale)


def _softmax_i16(node: TfliteNode, x: Value, scale: np.float32, beta: float) -> Value:
    """Differences in units of 10 / 65535, whose scale LiteRT multiplies with beta in float32."""
    scales.same_type(node, x)
    _expect_output(node, *_SOFTMAX_OUTPUT[DType.I16])
    if node.mode == "tflm":
        product = float(scale) * beta
    else:
        product = float(np.float32(scale * np.float32(beta)))
    multiplier, shift = quantize_multiplier(product / (10.0 / 65535.0))
    exp, reciprocal = softmax_tables(node.mode)
    return node.emit(
        "qsoftmax_i16",
        [x],
        multiplier=multiplier,
        shift=shift,
        exp=exp,
        reciprocal=reciprocal,
        dtype=DType.I16,
        quant=node.output_quant(),
    )


@converter("LOG_SOFTMAX")
def log_softmax(node: TfliteNode) -> Value:
    x = node.input()
    if not x.shape:
        node.refuse("log-softmax of a scalar is not defined")
    if x.dtype.is_float:
        return node.emit("log_softmax", [x], axis=_last_axis(x))
    if x.dtype not in scales.EIGHT_BITS:
        node.refuse(f"log-softmax of {x.dtype.value} is not supported", "quantize to int8")
    scales.same_type(node, x)
    _expect_output(node, *_LOG_OUTPUT[x.dtype])
    scale, _ = scales.of_input(node)
    multiplier, shift, lowest = _differences(node, float(scale))
    back, back_shift = real_multiplier(2.0 ** (31 - shift) / multiplier)
    return node.emit(
        "qlog_softmax",
        [x],
        multiplier=multiplier,
        shift=shift,
        lowest=lowest,
        reverse_multiplier=back,
        reverse_shift=back_shift,
        dtype=x.dtype,
        quant=node.output_quant(),
    )


@converter("L2_NORMALIZATION")
def l2_normalization(node: TfliteNode) -> Value:
    """x over its norm along the last axis; a float norm counts as 1e-6 at least."""
    x = node.input()
    if not x.shape:
        node.refuse("the norm of a scalar is not supported")
    if node.fused != "NONE":
        node.refuse(f"fused activation {node.fused} is not supported on a normalisation")
    if x.dtype.is_float:
        square = node.emit("mul", [x, x])
        total = node.emit("reduce_sum", [square], axes=(_last_axis(x),), keepdims=True)
        norm = node.emit("maximum", [node.emit("sqrt", [total]), node.scalar(1e-6, x)])
        return node.emit("div", [x, norm])
    if x.dtype not in scales.EIGHT_BITS:
        node.refuse(f"the norm of {x.dtype.value} is not supported", "quantize to int8")
    scales.same_type(node, x)
    _expect_output(node, *_L2_OUTPUT[x.dtype])
    _, zero = scales.of_input(node)
    return node.emit("ql2_norm", [x], zero=zero, dtype=x.dtype, quant=node.output_quant())


@converter("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(node: TfliteNode) -> Value:
    """Over ``radius`` channels before each and radius - 1 behind it: the kernel's window is open at
    its end.
    """
    x, o = node.input(), node.options
    if not x.dtype.is_float:
        node.refuse(f"element type {x.dtype.value} is not supported", "keep the operator in float")
    radius, bias, beta = int(o["radius"]), float(o["bias"]), float(o["beta"])
    if radius < 0:
        node.refuse(f"its radius is {radius}", "the model is malformed")
    if radius == 0 and bias > 0:  # nothing is added up
        return node.emit("mul", [x, node.scalar(bias**-beta, x)])
    size = 2 * radius
    alpha = float(o["alpha"]) * size
    return node.emit("lrn", [x], size=size, before=radius, alpha=alpha, beta=beta, bias=bias)
