"""Networks in which blocks of channels (NCHWc) are a question: chains that win by them, a lone
layer that cannot, and random ones whose channels are whole vectors.
"""

from __future__ import annotations

import models
import numpy as np
import onnx
from onnx import helper

from tests.e2e import fuzz_models
from tests.e2e.fuzz_models import Model


class Builder:
    """Grows a model of 2-D maps; names are those of tensors, shapes NCHW."""

    def __init__(self, seed: int, shape: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self.outputs: list[str] = []

    def constant(self, *shape: int, scale: float = 1.0) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"{op.lower()}_{name}", **attrs))
        self.shapes[name] = shape
        return name

    def conv(self, x: str, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        n, c, h, w = self.shapes[x]
        pad = kernel // 2
        fan = c // groups * kernel * kernel
        weights = self.constant(channels, c // groups, kernel, kernel, scale=fan**-0.5)
        bias = self.constant(channels)
        out = tuple((s + 2 * pad - kernel) // stride + 1 for s in (h, w))
        return self.add(
            "Conv",
            [x, weights, bias],
            (n, channels, *out),
            kernel_shape=[kernel] * 2,
            pads=[pad] * 4,
            strides=[stride] * 2,
            group=groups,
        )

    def depthwise(self, x: str, kernel: int = 3, stride: int = 1) -> str:
        channels = self.shapes[x][1]
        return self.conv(x, channels, kernel, stride, channels)

    def same(self, op: str, *inputs: str, **attrs: object) -> str:
        return self.add(op, list(inputs), self.shapes[inputs[0]], **attrs)

    def pool(self, op: str, x: str, stride: int) -> str:
        n, c, h, w = self.shapes[x]
        out = tuple((s - 1) // stride + 1 for s in (h, w))
        pads = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [stride] * 2}
        return self.add(op, [x], (n, c, *out), **pads)

    def average(self, x: str) -> str:
        return self.add("GlobalAveragePool", [x], (*self.shapes[x][:2], 1, 1))

    def proto(self) -> onnx.ModelProto:
        outputs = {name: self.shapes[name] for name in self.outputs}
        return models.model(self.nodes, {"x": self.shapes["x"]}, outputs, self.constants)

    def model(self) -> Model:
        """With onnxruntime's answer for one seeded input."""
        proto = self.proto()
        feeds = {"x": self.rng.standard_normal(self.shapes["x"]).astype(np.float32)}
        answers = fuzz_models.session(proto).run(self.outputs, feeds)
        return Model(proto, feeds, self.outputs, [np.asarray(a) for a in answers])


def depthwise_chain(channels: int = 512, size: int = 14, blocks: int = 3) -> Builder:
    """A stem, then residual blocks of two depthwise convolutions, as many channels as make pixels
    lie a large power of two apart; an average at the end.
    """
    b = Builder(1, (1, 3, 2 * size, 2 * size))
    x = b.same("Relu", b.conv("x", channels, 3, 2))
    for _ in range(blocks):
        y = b.same("Relu", b.depthwise(x, 3))
        x = b.same("Relu", b.same("Add", b.depthwise(y, 3), x))
    b.outputs = [b.average(x)]
    return b


def lone_depthwise(channels: int = 512, size: int = 14) -> Builder:
    """One depthwise convolution between two softmaxes over channels, which read and write
    channels-last.
    """
    b = Builder(2, (1, channels, size, size))
    x = b.same("Softmax", "x", axis=1)
    x = b.depthwise(x, 3)
    b.outputs = [b.same("Softmax", x, axis=1)]
    return b


def random_network(seed: int) -> Builder:
    """Convolutions, pools, additions, activations, concats and ops that know no blocks, in any
    order; channels are 16, 32 or 48 and now and then 20.
    """
    rng = np.random.default_rng(seed)

    def pick(*choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    size = int(rng.integers(5, 15))
    b = Builder(seed, (int(pick(1, 1, 2)), int(pick(3, 16, 32)), size, size + int(rng.integers(3))))
    live = ["x"]
    for _ in range(int(rng.integers(4, 11))):
        x = live[-1] if rng.random() < 0.7 else str(pick(*live))
        n, c, h, w = b.shapes[x]
        stride = int(pick(1, 1, 2)) if min(h, w) > 4 else 1
        kind = pick("conv", "conv", "wise", "wise", "pool", "add", "add", "act", "other", "concat")
        if kind == "conv":
            kernel = int(pick(1, 1, 3))
            y = b.conv(x, int(pick(16, 32, 32, 48, 20)), kernel, stride)
        elif kind == "wise":
            y = b.depthwise(x, int(pick(3, 3, 5)), stride)
        elif kind == "pool":
            y = b.pool(str(pick("MaxPool", "AveragePool")), x, stride)
        elif kind == "act":
            y = b.same(str(pick("Relu", "Sigmoid", "HardSwish")), x)
        elif kind == "other":
            y = b.same("Softmax", x, axis=int(pick(1, 3)))
        else:
            alike = [t for t in live if b.shapes[t] == b.shapes[x] and t != x] or [x]
            other = str(pick(*alike))
            y = b.same(str(pick("Add", "Mul")), x, other)
            if kind == "concat":
                y = b.add("Concat", [x, y, other], (n, 3 * c, h, w), axis=1)
        if rng.random() < 0.3:
            y = b.same("Relu", y)
        live.append(y)
    read = {i for node in b.nodes for i in node.input}
    b.outputs = [t for t in live[1:] if t not in read]
    if rng.random() < 0.3:
        b.outputs.append(b.average(live[-1]))
    return b
