"""Quantized operators: ONNX's own, and those of onnxruntime's domain.

Integer convolutions and matrix products become qconv and qmatmul; everything else is computed as it
is defined, between dequantize and quantize. Scales must be known while compiling, but for those of
the dynamic operators, which are composed of float ops.
"""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.onnx.elementwise import target_type
from aotgen.frontend.onnx.linear import conv_attributes, matrix_product
from aotgen.frontend.onnx.microsoft import DOMAIN as MICROSOFT
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.pool import average_pool
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType, Quant, Requant
from aotgen.ops.quantized import QUANTIZED
from aotgen.te.compute import int_range

# Parameters


def _zero(n: OnnxNode, index: int) -> Array | None:
    """The zero point at input ``index``, None when absent; refused when known only at run time."""
    return None if n.optional(index) is None else n.need(index, "the zero point").reshape(-1)


def _expect_zero_type(n: OnnxNode, index: int, x: Value) -> None:
    """Refuse a zero point of another type than the values ``x`` that it belongs to."""
    zero = n.optional(index)
    if zero is not None and zero.dtype is not x.dtype:
        n.refuse(
            f"a zero point of type {zero.dtype.value} does not fit values of type {x.dtype.value}",
            "quantize the model again",
        )


def _scale(n: OnnxNode, index: int) -> Array:
    scale = n.need(index, "the scale")
    if scale.dtype != np.float32:
        n.refuse(f"a scale of type {scale.dtype} is not supported", "use float32 scales")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        n.refuse("a scale is not a positive number", "quantize the model again")
    return scale.reshape(-1)


def _quant(n: OnnxNode, scale_at: int, zero_at: int, axis: int | None = None) -> Quant:
    """Scale and zero point as constants; ``axis`` None where only one of each is allowed."""
    scale, zero = _scale(n, scale_at), _zero(n, zero_at)
    if zero is None:
        zero = np.zeros(scale.size, np.int32)
    if axis is None and (scale.size != 1 or zero.size != 1):
        n.refuse(f"{scale.size} scales and {zero.size} zero points where one is expected")
    zero = np.broadcast_to(zero, scale.shape) if zero.size == 1 else zero
    if zero.size != scale.size:
        n.refuse(f"{scale.size} scales and {zero.size} zero points do not fit together")
    one = scale.size == 1
    return Quant(tuple(float(s) for s in scale), tuple(int(z) for z in zero), None if one else axis)


def _axis_of(n: OnnxNode, x: Value) -> int | None:
    """The quantized axis; None for one scale. Blocks are refused."""
    scale = n.x(1)
    if n.get_int("block_size", 0):
        n.refuse("blocked quantization is not supported", "quantize per tensor or per axis")
    if scale.type.numel == 1:
        return None
    axis = n.axis("axis", 1, len(x.shape))
    if scale.shape != (x.shape[axis],):
        n.refuse(f"scales of shape {list(scale.shape)} do not fit axis {axis} of {list(x.shape)}")
    return axis


def _along(n: OnnxNode, value: Value, axis: int | None, rank: int) -> Value:
    """A scale or zero point shaped to broadcast along ``axis``."""
    if axis is None or value.type.numel == 1:
        return n.reshape(value, ())
    return n.reshape(value, [value.type.numel if a == axis else 1 for a in range(rank)])


def dequantize(n: OnnxNode, x: Value, quant: Quant) -> Value:
    return n.emit("dequantize", [x], quant=quant)


def quantize(n: OnnxNode, x: Value, quant: Quant, dtype: DType) -> Value:
    return n.emit("quantize", [x], quant=quant, dtype=dtype)


# Quantize and dequantize


@converts("QuantizeLinear", since=10)
@converts("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(n: OnnxNode) -> Value:
    """saturate(round(x / scale) + zero point), ties to even."""
    x, zero = n.x(0), n.optional(2)
    if x.dtype not in (DType.F32, DType.I32):
        n.refuse(f"an input of type {x.dtype.value} is not supported", "cast its input to float")
    if zero is not None:
        dtype = zero.dtype
    else:
        wanted = n.get_int("output_dtype", 0)
        dtype = target_type(n, wanted) if wanted else DType.U8
    if dtype not in QUANTIZED:
        n.refuse(f"element type {dtype.value} is not supported", "quantize to 8 or 16 bits")
    axis = _axis_of(n, x)
    x = n.cast(x, DType.F32)
    if n.known(1) is not None and (zero is None or n.known(2) is not None):
        return quantize(n, x, _quant(n, 1, 2, axis), dtype)
    return _quantize_by(n, x, n.x(1), zero, axis, dtype)


def _quantize_by(
    n: OnnxNode, x: Value, scale: Value, zero: Value | None, axis: int | None, dtype: DType
) -> Value:
    """quantize with a scale and zero point known only at run time."""
    rank, (lo, hi) = len(x.shape), int_range(dtype)
    steps = n.emit("round", [n.emit("div", [x, _along(n, scale, axis, rank)])])
    if zero is not None:
        steps = n.emit("add", [steps, n.cast(_along(n, zero, axis, rank), DType.F32)])
    return n.cast(n.emit("clip", [steps], lo=float(lo), hi=float(hi)), dtype)


@converts("DequantizeLinear", since=10)
@converts("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(n: OnnxNode) -> Value:
    """(x - zero point) * scale."""
    x, zero = n.x(0), n.optional(2)
    if x.dtype not in QUANTIZED and x.dtype is not DType.I32:
        n.refuse(f"element type {x.dtype.value} is not supported", "quantize to 8 or 16 bits")
    _expect_zero_type(n, 2, x)
    wanted = n.get_int("output_dtype", 0)
    if n.x(1).dtype is not DType.F32 or (wanted and target_type(n, wanted) is not DType.F32):
        n.refuse("a result other than float32 is not supported", "use float32 scales")
    axis = _axis_of(n, x)
    if n.known(1) is not None and (zero is None or n.known(2) is not None):
        quant = _quant(n, 1, 2, axis)
        if x.dtype is DType.I32 and any(quant.zero_point):
            n.refuse("int32 values with a zero point are not supported", "use zero point 0")
        return dequantize(n, x, quant)
    rank = len(x.shape)
    wide = n.cast(x, DType.I32)
    if zero is not None:
        wide = n.emit("sub", [wide, n.cast(_along(n, zero, axis, rank), DType.I32)])
    return n.emit("mul", [n.cast(wide, DType.F32), _along(n, n.x(1), axis, rank)])


@converts("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(n: OnnxNode) -> list[Value]:
    return list(dynamic_quantize(n, n.x()))


def dynamic_quantize(n: OnnxNode, x: Value) -> tuple[Value, Value, Value]:
    """x as uint8 over its own range, which includes 0: (values, scale, zero point)."""
    n.need_float(x)
    if x.dtype is not DType.F32:
        n.refuse(f"element type {x.dtype.value} is not supported", "use float32")
    axes = tuple(range(len(x.shape)))
    flat, zero = n.reshape(x, (x.type.numel,)) if axes else n.reshape(x, (1,)), n.scalar(0, x)
    low = n.emit("minimum", [n.emit("reduce_min", [flat], axes=(0,), keepdims=False), zero])
    high = n.emit("maximum", [n.emit("reduce_max", [flat], axes=(0,), keepdims=False), zero])
    scale = n.emit("range_scale", [low, high])
    origin = n.emit("sub", [zero, n.emit("div", [low, scale])])
    nearest = n.emit("round", [n.emit("clip", [origin], lo=0.0, hi=255.0)])
    point = n.cast(nearest, DType.U8)
    return _quantize_by(n, x, scale, point, None, DType.U8), scale, point


# Integer convolution and matrix product


def _zero_value(n: OnnxNode, index: int, x: Value) -> Value | None:
    """The zero point of ``x`` as an input of qconv or qmatmul: [1] or [channels]; None when it
    is 0.
    """
    _expect_zero_type(n, index, x)
    value, known = n.optional(index), n.known(index)
    if value is None or (known is not None and not known.any()):
        return None
    if known is not None and (known == known.reshape(-1)[0]).all():
        return n.constant(known.reshape(-1)[:1].reshape(()), "zero")
    return n.reshape(value, (value.type.numel,))


def _requant(
    a: Quant, b_scale: Array, y: Quant, dtype: DType, alpha: float = 1.0
) -> tuple[Requant, Quant]:
    """From sums of scale a * b to ``y``; the factors in float32, as onnxruntime has them."""
    scale = np.float32(a.scale[0]) * b_scale.astype(np.float32)
    if alpha != 1.0:
        scale = np.float32(alpha) * np.float32(a.scale[0]) * b_scale
    lo, hi = int_range(dtype)
    factors = tuple(float(s) for s in (scale / np.float32(y.scale[0])).reshape(-1))
    return Requant("onnx", (), (), factors, y.zero_point[0], lo, hi), y


@converts("ConvInteger", since=10)
def conv_integer(n: OnnxNode) -> Value:
    """The int32 sums of (x - x_zero) * (w - w_zero)."""
    x, weight = n.x(0), n.x(1)
    attrs = conv_attributes(n, x, weight)
    inputs = [n.to_channels_last(x), n.to_channels_last(weight), None]
    zeros = [_zero_value(n, 2, x), _zero_value(n, 3, weight)]
    y = n.emit("qconv", [*inputs, *zeros], dtype=DType.I32, requant=None, quant=None, **attrs)
    return n.to_channels_first(y)


@converts("QLinearConv", since=10)
@converts("QLinearConv", domain=MICROSOFT)
def qlinear_conv(n: OnnxNode) -> Value:
    """Conv of quantized tensors, requantized to (y_scale, y_zero_point)."""
    channels_last = bool(n.get_int("channels_last", 0))
    x, weight, dtype = n.x(0), n.x(3), n.x(7).dtype
    if channels_last:
        x = n.to_channels_first(x)
    attrs = conv_attributes(n, x, weight)
    requant, y = _requant(_quant(n, 1, 2), _scale(n, 4), _quant(n, 6, 7), dtype)
    if len(requant.scale) not in (1, weight.shape[0]):
        n.refuse(f"{len(requant.scale)} weight scales for {weight.shape[0]} output channels")
    operands = [n.to_channels_last(x), n.to_channels_last(weight), n.optional(8)]
    inputs = [*operands, _zero_value(n, 2, x), _zero_value(n, 5, weight)]
    out = n.emit("qconv", inputs, dtype=dtype, requant=requant, quant=y, **attrs)
    return out if channels_last else n.to_channels_first(out)


def _integer_product(
    n: OnnxNode, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None
) -> Value:
    """The int32 sums of (a - a_zero) * (b - b_zero)."""
    if a_zero is not None and a_zero.type.numel != 1:
        n.refuse("a zero point for each row of A is not supported", "quantize A per tensor")
    return matrix_product(
        n,
        a,
        b,
        lambda p, q: n.emit(
            "qmatmul",
            [p, q, None, a_zero, b_zero],
            trans_b=False,
            dtype=DType.I32,
            requant=None,
            quant=None,
        ),
    )


@converts("MatMulInteger", since=10)
@converts("MatMulInteger16", domain=MICROSOFT)
def matmul_integer(n: OnnxNode) -> Value:
    a, b = n.x(0), n.x(1)
    return _integer_product(n, a, b, _zero_value(n, 2, a), _zero_value(n, 3, b))


@converts("QLinearMatMul", since=10)
def qlinear_matmul(n: OnnxNode) -> Value:
    """MatMul of quantized tensors, requantized to (y_scale, y_zero_point)."""
    a, b, dtype = n.x(0), n.x(3), n.x(7).dtype
    requant, y = _requant(_quant(n, 1, 2), _scale(n, 4), _quant(n, 6, 7), dtype)
    columns = b.shape[-1] if len(b.shape) > 1 else 1
    if len(requant.scale) not in (1, columns):
        n.refuse(f"{len(requant.scale)} scales of B for {columns} columns")
    zeros = [_zero_value(n, 2, a), _zero_value(n, 5, b)]
    attrs = {"trans_b": False, "dtype": dtype, "requant": requant, "quant": y}
    return matrix_product(n, a, b, lambda p, q: n.emit("qmatmul", [p, q, None, *zeros], **attrs))


@converts("QGemm", domain=MICROSOFT)
def qgemm(n: OnnxNode) -> Value:
    """alpha * A' * B' + C, requantized; a float result when there is no y_scale."""
    a, b, c = n.x(0), n.x(3), n.optional(6)
    if len(a.shape) != 2 or len(b.shape) != 2:
        n.refuse(f"operands of shape {list(a.shape)} and {list(b.shape)} are not matrices")
    if n.get_int("transA", 0):
        a = n.transpose(a, (1, 0))
    trans_b, alpha = bool(n.get_int("transB", 0)), n.get_float("alpha", 1.0)
    width = b.shape[0 if trans_b else 1]
    if c is not None:
        if c.type.numel != width:
            n.refuse(f"a bias of shape {list(c.shape)} is not supported", "use one row")
        c = n.reshape(c, (width,))
    first, factors = _quant(n, 1, 2), _scale(n, 4)
    if factors.size not in (1, width):
        n.refuse(f"{factors.size} scales of B for {width} columns")
    inputs = [a, b, c, _zero_value(n, 2, a), _zero_value(n, 5, b)]
    if n.optional(7) is not None:
        dtype = n.x(8).dtype if n.optional(8) is not None else n.x(0).dtype
        requant, y = _requant(first, factors, _quant(n, 7, 8), dtype, alpha)
        return n.emit("qmatmul", inputs, trans_b=trans_b, dtype=dtype, requant=requant, quant=y)
    acc = n.emit("qmatmul", inputs, trans_b=trans_b, dtype=DType.I32, requant=None, quant=None)
    real = np.float32(alpha) * np.float32(first.scale[0]) * factors
    axis = None if real.size == 1 else 1
    return dequantize(n, acc, Quant(tuple(float(s) for s in real), (0,) * real.size, axis))


@converts("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(n: OnnxNode) -> Value:
    """(A - a_zero) * (B - b_zero) * (a_scale * b_scale) + bias."""
    a, b = n.x(0), n.x(1)
    acc = _integer_product(n, a, b, _zero_value(n, 4, a), _zero_value(n, 5, b))
    return _scaled_sums(n, acc, n.x(2), n.x(3), n.optional(6))


@converts("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(n: OnnxNode) -> Value:
    """A quantized over its own range, times B, as float, plus bias."""
    a, scale, zero = dynamic_quantize(n, n.x(0))
    b = n.x(1)
    acc = _integer_product(n, a, b, n.reshape(zero, (1,)), _zero_value(n, 3, b))
    return _scaled_sums(n, acc, scale, n.x(2), n.optional(4))


def _scaled_sums(
    n: OnnxNode, acc: Value, a_scale: Value, b_scale: Value, bias: Value | None
) -> Value:
    if a_scale.type.numel != 1:
        n.refuse("a scale for each row of A is not supported", "quantize A per tensor")
    columns = n.reshape(b_scale, (b_scale.type.numel,) if b_scale.type.numel > 1 else ())
    factor = n.emit("mul", [n.reshape(a_scale, ()), columns])
    y = n.emit("mul", [n.cast(acc, DType.F32), factor])
    return y if bias is None else n.emit("add", [y, bias])


# Operators that are computed between dequantize and quantize


def _real(n: OnnxNode, first: int) -> Value:
    """Inputs ``first`` .. ``first`` + 2 (tensor, scale, zero point) as float32."""
    return dequantize(n, n.x(first), _quant(n, first + 1, first + 2))


def _quantized_like(n: OnnxNode, y: Value, scale_at: int, dtype: DType) -> Value:
    return quantize(n, y, _quant(n, scale_at, scale_at + 1), dtype)


@converts("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_arithmetic(n: OnnxNode) -> Value:
    op = {"QLinearAdd": "add", "QLinearMul": "mul"}[n.op]
    return _quantized_like(n, n.emit(op, [_real(n, 0), _real(n, 3)]), 6, n.x(0).dtype)


@converts("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(n: OnnxNode) -> Value:
    x = _real(n, 0)
    if n.op == "QLinearSigmoid":
        y = n.emit("sigmoid", [x])
    else:
        y = n.emit("leaky_relu", [x], alpha=n.get_float("alpha", 0.01))
    return _quantized_like(n, y, 3, n.x(0).dtype)


@converts("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(n: OnnxNode) -> Value:
    """Inputs: y_scale, y_zero_point, then a tensor, its scale and its zero point, repeatedly."""
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        n.refuse(f"{len(n.inputs)} inputs are no list of quantized tensors")
    y, dtype = _quant(n, 0, 1), n.x(2).dtype
    parts = []
    for first in range(2, len(n.inputs), 3):
        own = _quant(n, first + 1, first + 2)
        x = n.x(first)
        parts.append(x if own == y else quantize(n, dequantize(n, x, own), y, dtype))
    axis = n.axis("axis", None, len(n.x(2).shape))
    return n.emit("concat", parts, axis=axis)


@converts("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(n: OnnxNode) -> Value:
    """Softmax; onnxruntime multiplies the result by the whole part of 1 / y_scale."""
    x, old = n.x(0), n.get_int("opset") < 13
    axis = n.axis("axis", 1 if old else -1, len(x.shape))
    real = _real(n, 0)
    if old:  # everything from the axis on is one row
        real = n.reshape(real, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    y = n.emit("softmax", [real], axis=1 if old else axis)
    out = _quant(n, 3, 4)
    steps = float(np.floor(np.float32(1.0) / np.float32(out.scale[0])))
    y = n.emit("mul", [y, n.scalar(steps, y)])
    counted = quantize(n, y, Quant((1.0,), out.zero_point), x.dtype)
    return n.reshape(counted, x.shape)


@converts("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(n: OnnxNode) -> Value:
    dtype, quant = n.x(0).dtype, _quant(n, 3, 4)
    last = bool(n.get_int("channels_last", 0))
    x = _real(n, 0)
    n.inputs = [n.to_channels_first(x) if last else x]
    y = quantize(n, average_pool(n), quant, dtype)
    return n.to_channels_last(y) if last else y


@converts("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(n: OnnxNode) -> Value:
    x, rank = _real(n, 0), len(n.x(0).shape)
    if rank < 3:
        n.refuse(f"an input of rank {rank} has no spatial axes")
    last = bool(n.get_int("channels_last", 0))
    y = n.emit(
        "reduce_mean",
        [x if last else n.to_channels_last(x)],
        axes=tuple(range(1, rank - 1)),
        keepdims=True,
    )
    y = _quantized_like(n, y, 3, n.x(0).dtype)
    return y if last else n.to_channels_first(y)


@converts("QLinearWhere", domain=MICROSOFT)
def qlinear_where(n: OnnxNode) -> Value:
    y = n.emit("where", [n.x(0), _real(n, 1), _real(n, 4)])
    return _quantized_like(n, y, 7, n.x(1).dtype)
