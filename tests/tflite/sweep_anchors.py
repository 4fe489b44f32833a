"""Cases of the op sweep: convolutions and matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.tflite.sweep_models import Array, Case, Draw, Entry, Operand, Shape, constant, int32s

WEIGHTS = {"int8": "int8", "uint8": "uint8", "int16": "int8", "float32": "float32"}
SPREAD = {"int8": 74.0, "uint8": 74.0, "int16": 18900.0, "float32": 1.0}
"""Standard deviation of what a uniform distribution over all values gives."""


def window(size: int, kernel: int, stride: int, dilation: int, padding: str) -> int:
    """Output positions along one axis; less than 1 where VALID leaves none."""
    if padding == "SAME":
        return -(-size // stride)
    return (size - (kernel - 1) * dilation - 1 + stride) // stride


class Anchor:
    """Quantized operands of a sum of ``depth`` products with ``channels`` outputs."""

    def __init__(self, d: Draw, kind: str, depth: int, channels: int, per_channel: bool) -> None:
        self.d, self.kind, self.channels = d, kind, channels
        self.weight_type = WEIGHTS[kind]
        self.x_scale, self.x_zero = d.quant(kind)
        if kind == "float32":
            self.w_scale, self.w_zero = None, None
            self.sums = float(np.sqrt(depth))
        else:
            self.w_scale = np.float32(d.scale())
            self.w_zero = d.zero("uint8") if kind == "uint8" else 0
            if per_channel and kind != "uint8":
                factors = np.exp(d.rng.uniform(np.log(0.2), np.log(3.0), channels))
                self.w_scale = (self.w_scale * factors).astype(np.float32)
                self.w_zero = np.zeros(channels, np.int64)
            self.sums = float(np.sqrt(depth)) * SPREAD[kind] * SPREAD[self.weight_type]

    def x(self, shape: Shape) -> Operand:
        return Operand(shape, self.kind, self.x_scale, self.x_zero)

    def weights(self, shape: Shape, axis: int = 0) -> Operand:
        if self.kind == "float32":
            return constant(self.d.rng.standard_normal(shape).astype(np.float32))
        return constant(self.d.integers(self.weight_type, shape), self.w_scale, self.w_zero, axis)

    def bias(self, share: float = 0.85) -> Operand | None:
        if not self.d.chance(share):
            return None
        if self.kind == "float32":
            return constant(self.d.rng.standard_normal(self.channels).astype(np.float32))
        wide = "int64" if self.kind == "int16" else "int32"
        values = self.d.rng.uniform(-2, 2, self.channels) * self.sums
        scale = np.float32(self.x_scale) * np.asarray(self.w_scale, np.float32)
        return constant(values.astype(wide), scale, np.zeros_like(self.w_zero))

    def operands(self, x: Shape, w: Operand) -> list[Operand]:
        """Input, weights, and mostly a bias, which LiteRT's CONV_2D insists on; the other reference
        knows no uint8.
        """
        bias = self.bias(1.0 if self.kind == "uint8" else 0.9)
        return [self.x(x), w] if bias is None else [self.x(x), w, bias]

    def y(self, shape: Shape) -> Operand:
        """The output: from few steps in use to most of them saturated."""
        if self.kind == "float32":
            return Operand(shape, "float32")
        product = float(self.x_scale) * float(np.mean(self.w_scale))
        if self.d.chance(0.08):
            scale = product * self.d.among(0.3, 1.0, 7.0)  # a multiplier about or above 1
        else:
            steps = SPREAD[self.kind] * self.d.among(0.1, 0.4, 1.0, 3.0)
            scale = product * self.sums / steps
        if self.d.chance(0.2):
            scale = 2.0 ** np.round(np.log2(scale))
        return Operand(shape, self.kind, *self.d.quant(self.kind, scale))


def _geometry(d: Draw, x: Shape) -> tuple[dict[str, Any], tuple[int, int], Shape]:
    """(options, kernel, output rows and columns) of a convolution that fits ``x``."""
    kernel = d.among(1, 1, 2, 3, 3, 3, 4, 5), d.among(1, 1, 2, 3, 3, 3, 4, 5)
    dilated = d.chance(0.2)
    stride = (1, 1) if dilated else (d.among(1, 1, 2, 2, 3), d.among(1, 1, 2, 2, 3))
    dilation = (d.between(1, 3), d.between(1, 3)) if dilated else (1, 1)
    padding = d.among("SAME", "VALID")
    sizes = [window(x[1 + a], kernel[a], stride[a], dilation[a], padding) for a in (0, 1)]
    if min(sizes) < 1:
        padding = "SAME"
        sizes = [window(x[1 + a], kernel[a], stride[a], dilation[a], padding) for a in (0, 1)]
    options = {
        "padding": padding,
        "stride_h": stride[0],
        "stride_w": stride[1],
        "dilation_h_factor": dilation[0],
        "dilation_w_factor": dilation[1],
        "fused_activation_function": d.activation(),
    }
    return options, kernel, (sizes[0], sizes[1])


def _conv2d(d: Draw, kind: str) -> Case:
    channels = d.among(1, 2, 3, 4, 6, 8, 9, 15, 16, 17, 24, 33)
    x = d.image()
    options, kernel, out = _geometry(d, x)
    a = Anchor(d, kind, kernel[0] * kernel[1] * x[3], channels, d.chance(0.7))
    w = a.weights((channels, *kernel, x[3]))
    return Case("CONV_2D", kind, a.operands(x, w), [a.y((x[0], *out, channels))], options)


def _grouped_conv2d(d: Draw, kind: str) -> Case:
    groups, per_group = d.among(2, 3, 4), d.among(1, 2, 4)
    x = d.image(groups * d.among(1, 2, 4))
    options, kernel, out = _geometry(d, x)
    channels = groups * per_group
    a = Anchor(d, kind, kernel[0] * kernel[1] * x[3] // groups, channels, d.chance(0.7))
    w = a.weights((channels, *kernel, x[3] // groups))
    return Case("CONV_2D", kind, a.operands(x, w), [a.y((x[0], *out, channels))], options)


def _depthwise(d: Draw, kind: str) -> Case:
    x = d.image()
    multiplier = d.among(1, 1, 1, 2, 3) if x[3] > 1 else d.among(1, 2, 8)
    options, kernel, out = _geometry(d, x)
    channels = x[3] * multiplier
    a = Anchor(d, kind, kernel[0] * kernel[1], channels, d.chance(0.7))
    w = a.weights((1, *kernel, channels), 3)
    options = {**options, "depth_multiplier": multiplier}
    y = a.y((x[0], *out, channels))
    return Case("DEPTHWISE_CONV_2D", kind, a.operands(x, w), [y], options)


def _transpose_conv(d: Draw, kind: str) -> Case:
    n, h, w, c = d.image()
    h, w = min(h, 5), min(w, 5)
    channels = d.among(1, 2, 3, 5, 8, 12)
    kernel = d.between(1, 4), d.between(1, 4)
    stride = d.between(1, 3), d.between(1, 3)
    padding = d.among("SAME", "VALID")
    if padding == "SAME":
        out = h * stride[0], w * stride[1]
    else:
        out = tuple((s - 1) * t + k for s, t, k in zip((h, w), stride, kernel, strict=True))
    a = Anchor(d, kind, kernel[0] * kernel[1] * c // (stride[0] * stride[1]) + 1, channels, True)
    weights = a.weights((channels, *kernel, c))
    bias = a.bias(0.6)
    inputs = [int32s(n, *out, channels), weights, a.x((n, h, w, c))]
    options = {"padding": padding, "stride_h": stride[0], "stride_w": stride[1]}
    if bias is not None:
        inputs.append(bias)
    return Case(
        "TRANSPOSE_CONV",
        kind,
        inputs,
        [a.y((n, *out, channels))],
        options,
        version=3 if bias is not None else 1,
    )


def _fully_connected(d: Draw, kind: str) -> Case:
    depth, units = d.among(1, 3, 4, 8, 15, 16, 17, 32, 61, 130), d.among(1, 2, 3, 8, 10, 16, 33)
    lead = d.shape(d.among(1, 1, 2), 4)
    keep = d.chance(0.3)
    x = (*lead, depth)
    rows = int(np.prod(lead))
    a = Anchor(d, kind, depth, units, kind == "int8" and d.chance(0.3))
    y = a.y((*lead, units) if keep else (rows, units))
    options = {"keep_num_dims": keep, "fused_activation_function": d.activation()}
    w = a.weights((units, depth))
    return Case("FULLY_CONNECTED", kind, [a.x(x), w, a.bias()], [y], options)


def _batch_matmul(d: Draw, kind: str) -> Case:
    m, k, n = d.among(1, 2, 5, 8, 17), d.among(1, 3, 8, 16, 31), d.among(1, 2, 7, 8, 18)
    batch = d.shape(d.among(0, 1, 1, 2), 3)
    adj_x, adj_y = d.chance(0.3), d.chance(0.4)
    x = d.tensor((*batch, *((k, m) if adj_x else (m, k))), kind)
    y = d.tensor((*batch, *((n, k) if adj_y else (k, n))), kind)
    out = Operand((*batch, m, n), kind)
    if kind != "float32":
        sums = float(np.sqrt(k)) * SPREAD[kind] ** 2
        scale = x.scale * y.scale * sums / (SPREAD[kind] * d.among(0.3, 1.0, 2.0))
        out = Operand(out.shape, kind, *d.quant(kind, scale))
    return Case("BATCH_MATMUL", kind, [x, y], [out], {"adj_x": adj_x, "adj_y": adj_y})


def _hybrid(d: Draw, kind: str) -> Case:
    """Float activations and integer weights: LiteRT quantizes the input when it runs."""
    case = _fully_connected(d, "float32") if kind == "fully connected" else _conv2d(d, "float32")
    x, w, *rest = case.inputs
    assert w is not None and w.data is not None
    highest = float(np.abs(w.data).max(initial=1e-6))
    scale = np.float32(highest / 127)
    data: Array = np.clip(np.rint(w.data / scale), -127, 127).astype(np.int8)
    zero: Any = 0
    if case.op == "CONV_2D":  # its hybrid kernel takes a scale a channel
        scale, zero = np.full(w.shape[0], scale), np.zeros(w.shape[0], np.int64)
    options = dict(case.options)
    if case.op == "FULLY_CONNECTED":
        options["asymmetric_quantize_inputs"] = d.chance(0.5)
    version = 5 if case.op == "CONV_2D" else 9
    inputs = [x, constant(data, scale, zero), *rest]
    return Case(case.op, f"hybrid {kind}", inputs, case.outputs, options, version=version)


ALL = ("int8", "uint8", "int8", "int16", "float32")

ANCHORS = [
    Entry("CONV_2D", ALL, _conv2d),
    Entry("DEPTHWISE_CONV_2D", ALL, _depthwise),
    Entry("FULLY_CONNECTED", ALL, _fully_connected),
    Entry("CONV_2D", ("int8", "int8", "float32"), _grouped_conv2d),
    Entry("TRANSPOSE_CONV", ALL, _transpose_conv),
    Entry("BATCH_MATMUL", ("int8", "float32", "int16"), _batch_matmul),
    Entry("FULLY_CONNECTED", ("fully connected", "convolution"), _hybrid),
]
