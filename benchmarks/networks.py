"""Benchmark networks with seeded weights, built from onnx.helper and numpy alone.

Each network has the nodes that an exporter writes for the published architecture (opset 17, batch
1, static shapes; BatchNormalization kept as a node, Clip bounds and Reshape shapes as Constant
nodes), so neither a training framework nor a download is needed to compile, test or time it.

Weights: He initialisation (He et al., 2015) in convolutions, 1 / sqrt(fan_in) in linear layers.
BatchNorm's gamma and beta are drawn; its running statistics are those of one pass over seeded
noise, then perturbed, so that none is trivial and activations neither vanish nor saturate.

Use: `build("resnet18")` gives an onnx.ModelProto, `sample_input("resnet18")` its seeded input.
A further network is one function and one row of NETWORKS.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
SEED = 1234
INPUT, OUTPUT = "input", "output"


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
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        group: int = 1,
        bias: bool = False,
    ) -> str:
        """2-D convolution; channels are (in, out)."""
        kh, kw = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        ph, pw = pad if isinstance(pad, tuple) else (pad, pad)
        cin, cout = channels
        fan_in = cin // group * kh * kw
        shape = (cout, cin // group, kh, kw)
        inputs = [x, self.normal(scope + ".weight", shape, (2 / fan_in) ** 0.5)]
        if bias:
            inputs.append(self.normal(scope + ".bias", (cout,), 0.1))
        return self.node(
            "Conv",
            scope,
            *inputs,
            dilations=[1, 1],
            group=group,
            kernel_shape=[kh, kw],
            pads=[ph, pw, ph, pw],
            strides=[stride, stride],
        )

    def batch_norm(self, x: str, scope: str, channels: int) -> str:
        """The running statistics are filled in by `calibrate`."""
        gamma = self.weight(scope + ".weight", self.rng.uniform(0.5, 1.5, channels))
        beta = self.weight(scope + ".bias", self.rng.uniform(-0.3, 0.3, channels))
        mean = self.weight(scope + ".running_mean", np.zeros(channels))
        variance = self.weight(scope + ".running_var", np.ones(channels))
        return self.node(
            "BatchNormalization", scope, x, gamma, beta, mean, variance, epsilon=1e-5, momentum=0.9
        )

    def relu(self, x: str, scope: str) -> str:
        return self.node("Relu", scope, x)

    def relu6(self, x: str, scope: str) -> str:
        return self.node("Clip", scope, x, self.constant(scope, 0.0), self.constant(scope, 6.0))

    def max_pool(self, x: str, scope: str, pad: int = 0, ceil: bool = False) -> str:
        """3x3, stride 2: the only max pooling in these networks."""
        return self.node(
            "MaxPool",
            scope,
            x,
            ceil_mode=int(ceil),
            dilations=[1, 1],
            kernel_shape=[3, 3],
            pads=[pad] * 4,
            strides=[2, 2],
        )

    def pooled_features(self, x: str) -> str:
        """Global average pooling, [N, C, H, W] -> [N, C]."""
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


def resnet18(net: Layers, x: str) -> str:
    """ResNet-18 (He et al., 2015), basic blocks of two 3x3 convolutions."""

    def conv_bn(x: str, conv: str, bn: str, cin: int, cout: int, k: int, stride: int = 1) -> str:
        return net.batch_norm(net.conv(x, conv, (cin, cout), k, stride, k // 2), bn, cout)

    x = net.relu(conv_bn(x, "conv1", "bn1", 3, 64, 7, 2), "relu")
    x = net.max_pool(x, "maxpool", pad=1)
    cin = 64
    for stage, cout in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            s = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = net.relu(conv_bn(x, s + ".conv1", s + ".bn1", cin, cout, 3, stride), s + ".relu")
            y = conv_bn(y, s + ".conv2", s + ".bn2", cout, cout, 3)
            if stride != 1:
                x = conv_bn(x, s + ".downsample.0", s + ".downsample.1", cin, cout, 1, stride)
            x = net.relu(net.node("Add", s, y, x), s + ".relu")
            cin = cout
    return net.gemm(net.pooled_features(x), "fc", (512, 1000))


def mobilenet_v2(net: Layers, x: str) -> str:
    """MobileNetV2 (Sandler et al., 2018), width 1.0."""

    def conv_bn(
        x: str, s: str, cin: int, cout: int, k: int, stride: int = 1, group: int = 1
    ) -> str:
        x = net.conv(x, s + ".0", (cin, cout), k, stride, k // 2, group)
        return net.relu6(net.batch_norm(x, s + ".1", cout), s + ".2")

    x = conv_bn(x, "features.0", 3, 32, 3, 2)
    cin, index = 32, 1
    for expand, cout, repeats, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for repeat in range(repeats):
            s, stride = f"features.{index}.conv", first_stride if repeat == 0 else 1
            hidden, y, step = cin * expand, x, 0
            if expand != 1:
                y, step = conv_bn(y, f"{s}.{step}", cin, hidden, 1), 1
            y = conv_bn(y, f"{s}.{step}", hidden, hidden, 3, stride, group=hidden)
            y = net.conv(y, f"{s}.{step + 1}", (hidden, cout), 1)
            y = net.batch_norm(y, f"{s}.{step + 2}", cout)
            residual = stride == 1 and cin == cout
            x = net.node("Add", f"features.{index}", x, y) if residual else y
            cin, index = cout, index + 1
    x = conv_bn(x, "features.18", 320, 1280, 1)
    return net.gemm(net.pooled_features(x), "classifier.1", (1280, 1000))


def squeezenet1_1(net: Layers, x: str) -> str:
    """SqueezeNet 1.1 (Iandola et al., 2016)."""

    def conv_relu(x: str, conv: str, act: str, cin: int, cout: int, k: int, **kw: int) -> str:
        return net.relu(net.conv(x, conv, (cin, cout), k, bias=True, **kw), act)

    def fire(x: str, s: str, cin: int, squeeze: int, expand: int) -> str:
        x = conv_relu(x, s + ".squeeze", s + ".squeeze_activation", cin, squeeze, 1)
        wide = [
            conv_relu(
                x,
                f"{s}.expand{k}x{k}",
                f"{s}.expand{k}x{k}_activation",
                squeeze,
                expand,
                k,
                pad=k // 2,
            )
            for k in (1, 3)
        ]
        return net.node("Concat", s, *wide, axis=1)

    x = conv_relu(x, "features.0", "features.1", 3, 64, 3, stride=2)
    cin = 64
    for index, (squeeze, expand) in {
        3: (16, 64),
        4: (16, 64),
        6: (32, 128),
        7: (32, 128),
        9: (48, 192),
        10: (48, 192),
        11: (64, 256),
        12: (64, 256),
    }.items():
        if index in (3, 6, 9):
            x = net.max_pool(x, f"features.{index - 1}", ceil=True)
        x = fire(x, f"features.{index}", cin, squeeze, expand)
        cin = 2 * expand
    return net.pooled_features(conv_relu(x, "classifier.1", "classifier.2", cin, 1000, 1))


def ds_cnn(net: Layers, x: str) -> str:
    """Keyword-spotting DS-CNN of MLPerf Tiny (Banbury et al., 2021): 49 frames of 10 MFCCs."""

    def conv_bn_relu(
        x: str,
        index: int,
        cin: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: int | tuple[int, int] = 0,
        group: int = 1,
    ) -> str:
        x = net.conv(x, f"features.{index}", (cin, 64), kernel, stride, pad, group, bias=True)
        x = net.batch_norm(x, f"features.{index + 1}", 64)
        return net.relu(x, f"features.{index + 2}")

    x = conv_bn_relu(x, 0, 1, (10, 4), 2, (5, 1))
    for block in range(4):
        x = conv_bn_relu(x, 3 + 6 * block, 64, 3, pad=1, group=64)
        x = conv_bn_relu(x, 6 + 6 * block, 64, 1)
    logits = net.gemm(net.pooled_features(x), "fc", (64, 12))
    return net.node("Softmax", "", logits, axis=1)


def transformer(net: Layers, x: str) -> str:
    """Post-norm transformer encoder (Vaswani et al., 2017): 4 layers, width 256, 4 heads, GELU."""
    length, width, heads, hidden = 128, 256, 4, 1024
    size = width // heads

    def split_heads(x: str, s: str, perm: Sequence[int]) -> str:
        y = net.reshape(net.linear(x, s, (width, width)), s, (1, length, heads, size))
        return net.node("Transpose", s, y, perm=perm)

    for layer in range(4):
        s = f"layers.{layer}"
        q = split_heads(x, s + ".q", (0, 2, 1, 3))
        k = split_heads(x, s + ".k", (0, 2, 3, 1))
        v = split_heads(x, s + ".v", (0, 2, 1, 3))
        score = net.node("Mul", s, net.node("MatMul", s, q, k), net.constant(s, size**-0.5))
        y = net.node("MatMul", s, net.node("Softmax", s, score, axis=-1), v)
        y = net.node("Transpose", s, y, perm=(0, 2, 1, 3))
        y = net.linear(net.reshape(y, s, (1, length, width)), s + ".out", (width, width))
        x = net.layer_norm(net.node("Add", s, x, y), s + ".norm1", width)
        y = net.gelu(net.linear(x, s + ".linear1", (width, hidden)), s + ".activation")
        y = net.linear(y, s + ".linear2", (hidden, width))
        x = net.layer_norm(net.node("Add", s, x, y), s + ".norm2", width)
    return x


@dataclass(frozen=True)
class Network:
    """A row of the registry: the builder and the shapes of its one input and one output."""

    layers: Callable[[Layers, str], str]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


_IMAGE, _CLASSES = (1, 3, 224, 224), (1, 1000)
NETWORKS: dict[str, Network] = {
    "resnet18": Network(resnet18, _IMAGE, _CLASSES),
    "mobilenet_v2": Network(mobilenet_v2, _IMAGE, _CLASSES),
    "squeezenet1_1": Network(squeezenet1_1, _IMAGE, _CLASSES),
    "ds_cnn": Network(ds_cnn, (1, 1, 49, 10), (1, 12)),
    "transformer": Network(transformer, (1, 128, 256), (1, 128, 256)),
}


def build(name: str, seed: int = SEED) -> onnx.ModelProto:
    """The network `name` of NETWORKS; fp32, one input `input`, one output `output`.

    Raises KeyError when there is no such network.
    """
    network = NETWORKS[name]
    net = Layers(seed + zlib.crc32(name.encode()))
    result = network.layers(net, INPUT)
    last = net.nodes[-1]
    assert list(last.output) == [result]
    last.output[0] = OUTPUT
    noise = net.rng.standard_normal(network.input_shape, np.float32)
    _calibrate(net, name, network, noise)
    outputs = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, network.output_shape)]
    return _model(name, net.nodes, outputs, network, net.weights)


def _model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    network: Network,
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, network.input_shape)],
        outputs,
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(
        graph,
        ir_version=IR_VERSION,
        producer_name="aotgen-benchmarks",
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _calibrate(net: Layers, name: str, network: Network, x: np.ndarray) -> None:
    """Set BatchNorm's running statistics to those that `x` [1, C, H, W] gives, then perturb them.

    In a batch of one, BatchNorm in training mode is instance normalisation, which onnxruntime runs:
    one pass over the graph so rewritten gives the input of each BatchNorm as it is with all those
    before it calibrated.
    """
    norms = [node for node in net.nodes if node.op_type == "BatchNormalization"]
    if not norms:
        return
    probe = [
        helper.make_node("InstanceNormalization", node.input[:3], node.output, epsilon=1e-5)
        if node.op_type == "BatchNormalization"
        else node
        for node in net.nodes
    ]
    inner = [helper.make_tensor_value_info(n.input[0], TensorProto.FLOAT, None) for n in norms]
    model = _model(name, probe, inner, network, net.weights)
    for node, value in zip(norms, session(model).run(None, {INPUT: x}), strict=True):
        mean = value.mean(axis=(0, 2, 3), dtype=np.float64)
        variance = value.astype(np.float64).var(axis=(0, 2, 3))
        mean += 0.1 * np.sqrt(variance) * net.rng.standard_normal(mean.shape)
        net.weight(node.input[3], mean)
        net.weight(node.input[4], variance * net.rng.uniform(0.8, 1.25, variance.shape))


def session(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """A single-threaded onnxruntime session, the reference for these networks' outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    source = os.fspath(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def sample_input(name: str, seed: int = SEED) -> np.ndarray:
    """Seeded standard normal input of network `name`, fp32, in the network's own shape."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.standard_normal(NETWORKS[name].input_shape, np.float32)


def cache_folder() -> Path:
    """$AOTGEN_CACHE/networks, by default ~/.cache/aotgen/networks."""
    root = os.environ.get("AOTGEN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "aotgen") / "networks"


def export(name: str, folder: Path) -> Path:
    """Write `<name>.onnx` and `<name>.npz` (`input` and onnxruntime's `output`).

    Returns the path of the former; raises onnx.checker.ValidationError for an invalid graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, x = build(name), sample_input(name)
    onnx.checker.check_model(model, full_check=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    np.savez(folder / f"{name}.npz", input=x, output=session(model).run(None, {INPUT: x})[0])
    return path
