#!/usr/bin/env python3
"""Train a small CNN on scikit-learn's digits with numpy; write digits.onnx and digits_test.npz.

    conv 3x3 (16), ReLU, conv 3x3 (24), ReLU, max pool, conv 3x3 (32), ReLU, flatten, linear (10)

Adam (Kingma and Ba, 2014) on softmax cross-entropy, images shifted at random by up to one pixel.
Forward and backward passes are written out below: each layer's `forward` keeps what its `backward`
needs, and a convolution is one matrix product over the 3x3 windows of its input.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
SEED = 7
Parameters = list[np.ndarray]


class Conv3x3:
    """3x3 convolution, stride 1, padding 1, on [N, C, H, W]; weight [out, in, 3, 3], bias [out]."""

    def __init__(self, rng: np.random.Generator, cin: int, cout: int) -> None:
        std = (2 / (9 * cin)) ** 0.5
        weight = std * rng.standard_normal((cout, cin, 3, 3), np.float32)
        self.parameters: Parameters = [weight, np.zeros(cout, np.float32)]
        self.gradients: Parameters = []

    @staticmethod
    def windows(x: np.ndarray) -> np.ndarray:
        """[N, C, H, W] -> [N*H*W, C*9]."""
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = sliding_window_view(padded, (3, 3), (2, 3)).transpose(0, 2, 3, 1, 4, 5)
        return windows.reshape(-1, x.shape[1] * 9)

    def forward(self, x: np.ndarray) -> np.ndarray:
        n, _, h, w = x.shape
        weight, bias = self.parameters
        self.columns = self.windows(x)
        y = self.columns @ weight.reshape(len(bias), -1).T + bias
        return y.reshape(n, h, w, -1).transpose(0, 3, 1, 2)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        n, cout, h, w = dy.shape
        weight = self.parameters[0]
        rows = dy.transpose(0, 2, 3, 1).reshape(-1, cout)
        self.gradients = [(rows.T @ self.columns).reshape(weight.shape), rows.sum(0)]
        # The gradient of the input is the correlation of dy with the kernel turned by 180 degrees.
        turned = weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3).reshape(weight.shape[1], -1)
        return (self.windows(dy) @ turned.T).reshape(n, h, w, -1).transpose(0, 3, 1, 2)


class Linear:
    """[N, in] -> [N, out]; weight [out, in], bias [out]."""

    def __init__(self, rng: np.random.Generator, cin: int, cout: int) -> None:
        weight = cin**-0.5 * rng.standard_normal((cout, cin), np.float32)
        self.parameters: Parameters = [weight, np.zeros(cout, np.float32)]
        self.gradients: Parameters = []

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.parameters[0].T + self.parameters[1]

    def backward(self, dy: np.ndarray) -> np.ndarray:
        self.gradients = [dy.T @ self.x, dy.sum(0)]
        return dy @ self.parameters[0]


class Relu:
    parameters: tuple[()] = ()

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.positive = x > 0
        return x * self.positive

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy * self.positive


class MaxPool2x2:
    parameters: tuple[()] = ()

    def forward(self, x: np.ndarray) -> np.ndarray:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
        y = blocks.max((3, 5), keepdims=True)
        self.chosen = blocks == y
        self.chosen = self.chosen / self.chosen.sum((3, 5), keepdims=True, dtype=np.float32)
        return y.reshape(n, c, h // 2, w // 2)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        n, c, h, w = dy.shape
        return (self.chosen * dy.reshape(n, c, h, 1, w, 1)).reshape(n, c, 2 * h, 2 * w)


class Flatten:
    parameters: tuple[()] = ()

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        return dy.reshape(self.shape)


Layer = Conv3x3 | Linear | Relu | MaxPool2x2 | Flatten


def network(rng: np.random.Generator) -> list[Layer]:
    return [
        Conv3x3(rng, 1, 16),
        Relu(),
        Conv3x3(rng, 16, 24),
        Relu(),
        MaxPool2x2(),
        Conv3x3(rng, 24, 32),
        Relu(),
        Flatten(),
        Linear(rng, 32 * 4 * 4, 10),
    ]


def forward(layers: list[Layer], x: np.ndarray) -> np.ndarray:
    for layer in layers:
        x = layer.forward(x)
    return x


def shifted(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Each image moved by -1, 0 or 1 pixel along each axis, zeros moving in."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = sliding_window_view(padded, (8, 8), (2, 3))
    rows, columns = rng.integers(0, 3, (2, len(x)))
    return windows[np.arange(len(x)), :, rows, columns]


def train(
    layers: list[Layer],
    rng: np.random.Generator,
    x: np.ndarray,
    labels: np.ndarray,
    epochs: int,
    batch: int = 32,
) -> None:
    """Adam with a learning rate that falls from 2e-3 to 0 along a cosine."""
    trained = [layer for layer in layers if isinstance(layer, Conv3x3 | Linear)]
    parameters = [p for layer in trained for p in layer.parameters]
    first = [np.zeros_like(p) for p in parameters]
    second = [np.zeros_like(p) for p in parameters]
    steps = epochs * (len(x) // batch)
    for step in range(1, steps + 1):
        if (step - 1) % (len(x) // batch) == 0:
            order = rng.permutation(len(x))
        start = (step - 1) % (len(x) // batch) * batch
        chosen = order[start : start + batch]
        logits = forward(layers, shifted(rng, x[chosen]))
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        gradient = exponentials / exponentials.sum(1, keepdims=True)
        gradient[np.arange(batch), labels[chosen]] -= 1
        gradient /= batch
        for layer in reversed(layers):
            gradient = layer.backward(gradient)
        rate = 1e-3 * (1 + np.cos(np.pi * step / steps))
        gradients = [g for layer in trained for g in layer.gradients]
        for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= np.float32(rate) * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)


def to_onnx(layers: list[Layer]) -> onnx.ModelProto:
    """The trained network at batch 1; `input` [1, 1, 8, 8] in 0..1, `output` [1, 10] logits."""
    nodes, weights, value = [], [], "input"
    for index, layer in enumerate(layers):
        name = f"{type(layer).__name__.lower()}{index}"
        result = "output" if layer is layers[-1] else name
        inputs = [value]
        for kind, array in zip(("weight", "bias"), layer.parameters, strict=False):
            weights.append(numpy_helper.from_array(array, f"{name}.{kind}"))
            inputs.append(f"{name}.{kind}")
        op, attributes = {
            Conv3x3: ("Conv", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
            Linear: ("Gemm", {"transB": 1}),
            Relu: ("Relu", {}),
            MaxPool2x2: ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
            Flatten: ("Flatten", {"axis": 1}),
        }[type(layer)]
        nodes.append(helper.make_node(op, inputs, [result], name, **attributes))
        value = result
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 10])],
        weights,
    )
    model = helper.make_model(
        graph,
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="aotgen-digits",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=HERE, help="where to write")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(SEED)
    digits = load_digits()
    order = rng.permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype(np.float32)
    labels = digits.target[order]
    count = 1347  # three quarters for training
    layers = network(rng)
    train(layers, rng, images[:count], labels[:count], options.epochs)
    hits = forward(layers, images[count:]).argmax(1) == labels[count:]
    size = sum(p.size for layer in layers for p in layer.parameters)
    print(f"{size} parameters, test accuracy {hits.mean():.2%} of {hits.size} images")
    data = to_onnx(layers).SerializeToString(deterministic=True)
    (options.folder / "digits.onnx").write_bytes(data)
    np.savez_compressed(
        options.folder / "digits_test.npz",
        images=np.rint(images[count:] * 16).astype(np.uint8),
        labels=labels[count:].astype(np.uint8),
    )


if __name__ == "__main__":
    main()
