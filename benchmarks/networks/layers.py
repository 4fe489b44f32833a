"""The layers that the networks are made of: nodes as an exporter writes them, weights drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Extents = int | tuple[int, ...]
"""A number for every spatial axis, or one a axis; a plain integer means two axes."""


def per_axis(value: Extents, axes: int) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value] * axes


class Layers:
    """Appends layers to one graph; methods take value names and return the name of their result."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._names: Counter[str] = Counter()

    def node(self, op: str, scope: str, *inputs: str, **attributes: Any) -> str:
        path = "/".join(["", *filter(None, scope.split(".")), op])
        self._names[path] += 1
        if self._names[path] > 1:
            path += f"_{self._names[path] - 1}"
        self.nodes.append(helper.make_node(op, inputs, [path + "_output_0"], path, **attributes))
        return path + "_output_0"

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights[name] = np.ascontiguousarray(array, np.float32)
        return name

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        return self.weight(name, mean + std * self.rng.standard_normal(shape, np.float32))

    def constant(self, scope: str, value: object, dtype: type = np.float32) -> str:
        tensor = numpy_helper.from_array(np.array(value, dtype))
        return self.node("Constant", scope, value=tensor)

    def conv(
        self,
        x: str,
        scope: str,
        channels: tuple[int, int],
        kernel: Extents,
        stride: Extents = 1,
        pad: Extents = 0,
        group: int = 1,
        bias: bool = False,
        gain: float = 2.0,
    ) -> str:
        """Convolution over as many spatial axes as `kernel` names; channels are (in, out).

        `gain` is the ratio of output to input power; 2 makes up for the half that a ReLU removes.
        """
        axes = len(kernel) if isinstance(kernel, tuple) else 2
        extents = per_axis(kernel, axes)
        cin, cout = channels
        shape = (cout, cin // group, *extents)
        fan_in = int(np.prod(shape[1:]))
        inputs = [x, self.normal(scope + ".weight", shape, (gain / fan_in) ** 0.5)]
        if bias:
            inputs.append(self.normal(scope + ".bias", (cout,), 0.1))
        return self.node(
            "Conv",
            scope,
            *inputs,
            dilations=[1] * axes,
            group=group,
            kernel_shape=extents,
            pads=per_axis(pad, axes) * 2,
            strides=per_axis(stride, axes),
        )

    def batch_norm(
        self, x: str, scope: str, channels: int, epsilon: float = 1e-5, momentum: float = 0.9
    ) -> str:
        """The running statistics are filled in by `calibrate`."""
        gamma = self.weight(scope + ".weight", self.rng.uniform(0.5, 1.5, channels))
        beta = self.weight(scope + ".bias", self.rng.uniform(-0.3, 0.3, channels))
        mean = self.weight(scope + ".running_mean", np.zeros(channels))
        variance = self.weight(scope + ".running_var", np.ones(channels))
        return self.node(
            "BatchNormalization",
            scope,
            *(x, gamma, beta, mean, variance),
            epsilon=epsilon,
            momentum=momentum,
        )

    def relu(self, x: str, scope: str) -> str:
        return self.node("Relu", scope, x)

    def relu6(self, x: str, scope: str) -> str:
        return self.node("Clip", scope, x, self.constant(scope, 0.0), self.constant(scope, 6.0))

    def hard_swish(self, x: str, scope: str) -> str:
        return self.node("HardSwish", scope, x)

    def max_pool(
        self, x: str, scope: str, pad: int = 0, ceil: bool = False, kernel: int = 3, stride: int = 2
    ) -> str:
        return self.node(
            "MaxPool",
            scope,
            x,
            ceil_mode=int(ceil),
            dilations=[1, 1],
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )

    def average_pool(self, x: str, scope: str, kernel: int, stride: int, pad: int = 0) -> str:
        """As PyTorch's: zeros in the padding count."""
        return self.node(
            "AveragePool",
            scope,
            x,
            ceil_mode=0,
            count_include_pad=1,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )

    def concat(self, scope: str, *values: str) -> str:
        """Along the channels."""
        return self.node("Concat", scope, *values, axis=1)

    def pooled_features(self, x: str) -> str:
        """Global average pooling, [N, C, spatial...] -> [N, C]."""
        return self.node("Flatten", "", self.node("GlobalAveragePool", "avgpool", x), axis=1)

    def gemm(self, x: str, scope: str, features: tuple[int, int]) -> str:
        """Fully connected layer on [N, in]; features are (in, out)."""
        weight = self.normal(scope + ".weight", features[::-1], features[0] ** -0.5)
        bias = self.normal(scope + ".bias", features[1:], 0.1)
        return self.node("Gemm", scope, x, weight, bias, alpha=1.0, beta=1.0, transB=1)

    def linear(self, x: str, scope: str, features: tuple[int, int]) -> str:
        """Fully connected layer on the last axis of a rank-3 tensor: MatMul, then Add."""
        weight = self.normal(scope + ".weight", features, features[0] ** -0.5)
        bias = self.normal(scope + ".bias", features[1:], 0.1)
        return self.node("Add", scope, bias, self.node("MatMul", scope, x, weight))

    def layer_norm(self, x: str, scope: str, features: int) -> str:
        gamma = self.normal(scope + ".weight", (features,), 0.2, mean=1.0)
        beta = self.normal(scope + ".bias", (features,), 0.2)
        return self.node("LayerNormalization", scope, x, gamma, beta, axis=-1, epsilon=1e-5)

    def gelu(self, x: str, scope: str) -> str:
        """Exact GELU as an exporter spells it: x * (1 + erf(x / sqrt(2))) * 0.5."""
        scaled = self.node("Div", scope, x, self.constant(scope, 2**0.5))
        erf = self.node("Erf", scope, scaled)
        product = self.node(
            "Mul", scope, x, self.node("Add", scope, erf, self.constant(scope, 1.0))
        )
        return self.node("Mul", scope, product, self.constant(scope, 0.5))

    def reshape(self, x: str, scope: str, shape: Sequence[int]) -> str:
        return self.node("Reshape", scope, x, self.constant(scope, shape, np.int64), allowzero=0)


class Shapes(Layers):
    """The layers without values: weights have their shape, and one zero for all elements."""

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights[name] = np.broadcast_to(np.float32(0), array.shape)
        return name

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        self.weights[name] = np.broadcast_to(np.float32(0), tuple(shape))
        return name
