"""Float activations with integer weights: LiteRT quantizes the activations while the model runs.

Each row (or image) gets a scale of its own, so that its range fits int8; the sums are scaled back
to float. tflite-micro has no such kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aotgen.frontend.tflite import anchors
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

if TYPE_CHECKING:
    from aotgen.frontend.tflite.conv import Geometry

_SMALLEST = 1e-30
"""Least range of a row, so that a row of zeros has a scale too."""


def _weights(node: TfliteNode, w: Value) -> Value:
    """The weights as int8; LiteRT takes the bytes of uint8 weights for int8."""
    if w.dtype is DType.I8:
        return w
    bytes_ = node.evaluate(w)
    if bytes_ is None:
        node.refuse("uint8 weights are known only at run time", "make them constants")
    return node.constant(np.ascontiguousarray(bytes_).view(np.int8), "weights")


def _quantized(node: TfliteNode, x: Value, asymmetric: bool) -> tuple[Value, Value, Value | None]:
    """``x`` [..., n] in rows as int8, the rows' scales [..., 1], and their int32 zero points.

    As TFLite's SymmetricQuantizeFloats and AsymmetricQuantizeFloats, in float32; by experiment the
    latter rounds before it adds the zero point.
    """
    last = (len(x.shape) - 1,)
    low = node.emit("reduce_min", [x], axes=last, keepdims=True)
    high = node.emit("reduce_max", [x], axes=last, keepdims=True)
    if not asymmetric:
        size = node.emit("maximum", [node.emit("neg", [low]), high])
        size = node.emit("maximum", [size, node.scalar(_SMALLEST, x)])
        scale = node.emit("div", [size, node.scalar(127.0, x)])
        steps = node.emit("mul", [x, node.emit("div", [node.scalar(127.0, x), size])])
        return _within(node, _nearest(node, steps), DType.I8, -127.0), scale, None
    zero = node.scalar(0.0, x)
    low = node.emit("minimum", [low, zero])
    # Not a division by 255 of its own, which passes would round otherwise.
    scale = node.emit("range_scale", [low, node.emit("maximum", [high, zero])])
    origin = node.emit("sub", [node.scalar(-128.0, x), node.emit("div", [low, scale])])
    point = _within(node, _nearest(node, origin), DType.I32, -128.0)
    inverse = node.emit("div", [node.scalar(1.0, x), scale])
    steps = _nearest(node, node.emit("mul", [x, inverse]))
    steps = node.emit("add", [steps, node.cast(point, DType.F32)])
    return _within(node, steps, DType.I8, -128.0), scale, point


def _nearest(node: TfliteNode, x: Value) -> Value:
    """The nearest whole number, ties away from zero."""
    size = node.emit("abs", [x])
    whole = node.emit("floor", [node.emit("add", [size, node.scalar(0.5, x)])])
    return node.emit("mul", [node.emit("sign", [x]), whole])


def _within(node: TfliteNode, x: Value, dtype: DType, lowest: float) -> Value:
    return node.cast(node.emit("clip", [x], lo=lowest, hi=127.0), dtype)


def _scaled(
    node: TfliteNode, sums: Value, scale: Value, weights: Value, bias: Value | None
) -> Value:
    """int32 ``sums`` times the rows' and the weights' scales, plus ``bias``, activated."""
    y = node.emit("mul", [node.cast(sums, DType.F32), node.emit("mul", [scale, weights])])
    if bias is not None:
        y = node.emit("add", [y, bias])
    return node.activation(y)


def _less_offset(node: TfliteNode, sums: Value, point: Value, totals: Value) -> Value:
    """Sums of (x - point) from those of x: less point times the weights' totals."""
    return node.emit("sub", [sums, node.emit("mul", [point, totals])])


def product(node: TfliteNode, rows: Value, w: Value) -> Value:
    """FULLY_CONNECTED of ``rows`` [B, K] and weights [O, K]."""
    outputs = w.shape[0]
    factors, _ = anchors.weight_quant(node, w, 0, symmetric=True)
    weights = _weights(node, w)
    asymmetric = bool(node.options["asymmetric_quantize_inputs"])
    q, scale, point = _quantized(node, rows, asymmetric)
    sums = _sums(node, q, weights, trans_b=True)
    if point is not None:
        sums = _less_offset(node, sums, point, _totals(node, weights, 1))
    bias = anchors.float_bias(node, 2, outputs)
    return _scaled(node, sums, scale, node.constant(np.asarray(factors), "scale"), bias)


def batch_product(node: TfliteNode, x: Value, w: Value, trans_b: bool) -> Value:
    """BATCH_MATMUL of ``x`` [..., M, K] and int8 ``w``."""
    factors, _ = anchors.weight_quant(node, w, -1, symmetric=True)
    if len(factors) > 1:
        node.refuse("scales per channel are not supported", "quantize the operand per tensor")
    asymmetric = bool(node.options["asymmetric_quantize_inputs"])
    q, scale, point = _quantized(node, x, asymmetric)
    sums = _sums(node, q, w, trans_b=trans_b)
    if point is not None:
        totals = _totals(node, w, len(w.shape) - (1 if trans_b else 2))
        shape = (*w.shape[:-2], 1, totals.shape[-1])
        sums = _less_offset(node, sums, point, node.reshape(totals, shape))
    return _scaled(node, sums, scale, node.constant(np.asarray(factors[0]), "scale"), None)


def convolution(
    node: TfliteNode, x: Value, w: Value, quant_axis: int, window: Geometry, groups: int
) -> Value:
    """CONV_2D and DEPTHWISE_CONV_2D of ``x`` by ``w`` [O, *K, C/g]; each image is quantized by
    itself, with a zero point by DEPTHWISE_CONV_2D and where the weights' scales differ.
    """
    source, outputs = node.input(1), w.shape[0]
    factors, _ = anchors.weight_quant(node, source, quant_axis, symmetric=True)
    if len(factors) not in (1, outputs):
        node.refuse(f"{len(factors)} scales do not fit {outputs} output channels")
    weights = _weights(node, w)
    depthwise = node.op == "DEPTHWISE_CONV_2D"
    asymmetric = depthwise or len(set(factors)) > 1
    if asymmetric and w.dtype is DType.U8:
        node.refuse("float activations with uint8 weights are not supported", "use int8 weights")
    attrs = window.attributes(groups)
    if asymmetric and any(window.pads):
        # Padded before, so that pads hold the zero point like every other 0.
        spatial = len(window.strides)
        begins, ends = window.pads[:spatial], window.pads[spatial:]
        pads = (0, *begins, 0, 0, *ends, 0)
        x = node.emit("pad", [x], pads=pads, mode="constant", value=0.0)
        attrs["pads"] = (0,) * (2 * spatial)
    images = node.reshape(x, (x.shape[0], x.type.numel // x.shape[0]))
    q, scale, point = _quantized(node, images, asymmetric)
    inputs = [node.reshape(q, x.shape), weights, None, None, None]
    sums = node.emit("qconv", inputs, **attrs, dtype=DType.I32, requant=None, quant=None)
    ones = (x.shape[0], *(1,) * (len(x.shape) - 1))
    if point is not None:
        matrix = node.reshape(weights, (outputs, weights.type.numel // outputs))
        sums = _less_offset(node, sums, node.reshape(point, ones), _totals(node, matrix, 1))
    bias = anchors.float_bias(node, 2, outputs)
    factor = node.constant(np.asarray(factors), "scale")
    return _scaled(node, sums, node.reshape(scale, ones), factor, bias)


def _sums(node: TfliteNode, q: Value, w: Value, *, trans_b: bool) -> Value:
    inputs = [q, w, None, None, None]
    attrs = {"dtype": DType.I32, "requant": None, "quant": None}
    return node.emit("qmatmul", inputs, trans_b=trans_b, **attrs)


def _totals(node: TfliteNode, w: Value, axis: int) -> Value:
    """The weights' sums along ``axis``, as int32."""
    wide = node.cast(w, DType.I32)
    return node.emit("reduce_sum", [wide], axes=(axis,), keepdims=False)
