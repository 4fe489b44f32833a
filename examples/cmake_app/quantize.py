#!/usr/bin/env python3
"""Write digits_int8.tflite: ../digits/digits.onnx in int8, as TFLite's converter does it.

Weights: symmetric, one scale a channel in convolutions, one in all in the linear layer.
Activations: one scale and zero point a tensor, of the range that the training images span (Jacob et
al., 2018).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import numpy_helper
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from tflite_builder import ModelBuilder  # noqa: E402

TRAINING_IMAGES = 1347  # those that ../digits/train.py trains with
SEED = 7


def training_images() -> np.ndarray:
    """[N, 8, 8, 1], fp32 in 0..1."""
    images = load_digits().images
    order = np.random.default_rng(SEED).permutation(len(images))
    return (images[order[:TRAINING_IMAGES], :, :, None] / 16).astype(np.float32)


def scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of int8 for numbers from ``low`` to ``high``; 0 is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255))
    return scale, round(-128 - low / scale)


def symmetric(weight: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """int8 weights in -127..127 and their scales, one for each index of ``axis`` or one in all."""
    others = None if axis is None else tuple(a for a in range(weight.ndim) if a != axis)
    largest = np.abs(weight).max(axis=others, keepdims=True)
    scale = (largest / 127).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale.ravel()


def conv_relu(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3x3, padded by 1; ``x`` is [N, H, W, C], ``weight`` [out, 3, 3, C]."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = sliding_window_view(padded, (3, 3), (1, 2))  # [N, H, W, C, 3, 3]
    return np.maximum(np.einsum("nhwcij,oijc->nhwo", windows, weight, optimize=True) + bias, 0)


def max_pool(x: np.ndarray) -> np.ndarray:
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def convert(model: onnx.ModelProto, images: np.ndarray) -> bytes:
    """The .tflite file.

    Args:
        model: convolutions with ReLU, max pools, one flatten and linear layer.
        images: that activations are measured with, [N, 8, 8, 1].
    """
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    b = ModelBuilder("the digits example in int8")
    scale, zero = scale_and_zero(0.0, 1.0)
    x, value = images, b.input("input", (1, *images.shape[1:]), "int8", scale, zero)
    for node in model.graph.node:
        name = node.output[0]
        if node.op_type == "Conv":
            weight = constants[node.input[1]].transpose(0, 2, 3, 1)
            bias = constants[node.input[2]]
            x = conv_relu(x, weight, bias)
            quantized, scales = symmetric(weight, 0)
            biases = np.rint(bias / (scale * scales)).astype(np.int32)
            w = b.const(f"{name}.weight", quantized, scales, None, 0)
            c = b.const(f"{name}.bias", biases, scale * scales, None, 0)
            scale, zero = scale_and_zero(0.0, float(x.max()))
            options = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
            options["fused_activation_function"] = "RELU"
            out = (name, (1, *x.shape[1:]), "int8", scale, zero)
            value = b.op("CONV_2D", [value, w, c], out=out, options=options, version=3)
        elif node.op_type == "MaxPool":
            x = max_pool(x)
            options = {"padding": "VALID", "stride_w": 2, "stride_h": 2}
            options |= {"filter_width": 2, "filter_height": 2}
            out = (name, (1, *x.shape[1:]), "int8", scale, zero)
            value = b.op("MAX_POOL_2D", [value], out=out, options=options, version=2)
        elif node.op_type == "Gemm":
            _, h, w, channels = x.shape
            weight, bias = (constants[i] for i in node.input[1:3])
            # ONNX flattens [C, H, W], TFLite [H, W, C].
            weight = weight.reshape(-1, channels, h, w).transpose(0, 2, 3, 1).reshape(len(bias), -1)
            x = x.reshape(len(x), -1) @ weight.T + bias
            quantized, (weight_scale,) = symmetric(weight, None)
            biases = np.rint(bias / (scale * weight_scale)).astype(np.int32)
            inputs = [
                value,
                b.const(f"{name}.weight", quantized, weight_scale, 0),
                b.const(f"{name}.bias", biases, scale * weight_scale, 0),
            ]
            scale, zero = scale_and_zero(float(x.min()), float(x.max()))
            out = (name, (1, len(bias)), "int8", scale, zero)
            value = b.op("FULLY_CONNECTED", inputs, out=out, version=4)
    b.output(value)
    return b.finish()


def main() -> None:
    model = onnx.load(str(HERE.parent / "digits" / "digits.onnx"))
    (HERE / "digits_int8.tflite").write_bytes(convert(model, training_images()))


if __name__ == "__main__":
    main()
