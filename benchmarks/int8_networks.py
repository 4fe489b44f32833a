#!/usr/bin/env python3
"""int8 networks with seeded weights, as .tflite files and as the same models in ONNX with QDQ.

usage: int8_networks.py [FOLDER] [NAME ...]

mobilenet_v1, mobilenet_v2 (both 224 x 224, width 1.0) and resnet18, as Keras' converter writes
them: per-channel int8 weights, int8 activations, ReLU and ReLU6 fused, mean, fully connected and
softmax at the end. While a network is built its float form runs on one seeded image (numpy), every
layer's weights are scaled so that its output has unit variance, and each tensor's range gives its
scale and zero point, so that values neither vanish nor saturate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from networks.mobile import V2_BLOCKS
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from tflite_builder import ModelBuilder

F32 = npt.NDArray[np.float32]
SEED = 1234
OPSET = 17
INPUT, OUTPUT = "input", "output"


@dataclass
class Tensor:
    """An activation: its float values on the sample image (channels last), scale and zero point."""

    name: str
    values: F32
    scale: float
    zero: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def quantized(self) -> npt.NDArray[np.int8]:
        steps = np.rint(self.values / np.float32(self.scale)) + self.zero
        return np.clip(steps, -128, 127).astype(np.int8)


@dataclass
class Layer:
    """An operator. ``weights``: int8 [outputs, kernel, kernel, inputs] (1 input where depthwise),
    or of a product [outputs, inputs].
    """

    op: str
    inputs: list[Tensor]
    output: Tensor
    kernel: int = 1
    stride: int = 1
    activation: str = "NONE"
    depthwise: bool = False
    weights: npt.NDArray[np.int8] | None = None
    scales: F32 | None = None
    bias: npt.NDArray[np.int32] | None = None


@dataclass
class Net:
    """A network while it is built."""

    rng: np.random.Generator
    layers: list[Layer] = field(default_factory=list)
    count: int = 0

    def tensor(self, values: F32, like: Tensor | None = None) -> Tensor:
        """A tensor whose quantization covers its values, or that of ``like``."""
        self.count += 1
        name = f"t{self.count}"
        if like is not None:
            return Tensor(name, values, like.scale, like.zero)
        low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
        scale = float(np.float32((high - low) / 255))
        return Tensor(name, values, scale, int(np.rint(-128 - low / scale)))

    def image(self, size: int) -> Tensor:
        values = self.rng.uniform(-1, 1, (1, size, size, 3)).astype(np.float32)
        return Tensor(INPUT, values, float(np.float32(2 / 255)), 0)

    def conv(
        self, x: Tensor, outputs: int, kernel: int = 1, stride: int = 1, activation: str = "NONE"
    ) -> Tensor:
        return self._conv(x, outputs, kernel, stride, activation, False)

    def depthwise(self, x: Tensor, stride: int) -> Tensor:
        return self._conv(x, x.shape[-1], 3, stride, "RELU6", True)

    def _conv(
        self, x: Tensor, outputs: int, kernel: int, stride: int, activation: str, depthwise: bool
    ) -> Tensor:
        inputs = 1 if depthwise else x.shape[-1]
        w = self.rng.standard_normal((outputs, kernel, kernel, inputs)).astype(np.float32)
        patches = _patches(x.values, kernel, stride)
        if depthwise:
            y = np.einsum("nhwijc,cij->nhwc", patches, w[..., 0], optimize=True)
        else:
            flat = patches.reshape(-1, kernel * kernel * inputs)
            y = (flat @ w.reshape(outputs, -1).T).reshape(*patches.shape[:3], outputs)
        spread = y.std(axis=(0, 1, 2))
        gain = 1 / np.maximum(spread, 0.1 * spread.mean())  # a channel may be all zeros
        bias = (0.3 * self.rng.standard_normal(outputs)).astype(np.float32)
        w *= gain[:, None, None, None].astype(np.float32)
        values = _activate(y * gain + bias, activation).astype(np.float32)
        out = self.tensor(values)
        kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        layer = Layer(kind, [x], out, kernel, stride, activation, depthwise)
        return self._weighted(layer, w, bias)

    def _weighted(self, layer: Layer, w: F32, bias: F32) -> Tensor:
        scales = np.abs(w.reshape(len(w), -1)).max(axis=1) / np.float32(127)
        shape = (-1,) + (1,) * (w.ndim - 1)
        layer.weights = np.rint(w / scales.reshape(shape)).astype(np.int8)
        layer.scales = scales.astype(np.float32)
        layer.bias = np.rint(bias / (scales * layer.inputs[0].scale)).astype(np.int32)
        self.layers.append(layer)
        return layer.output

    def add(self, a: Tensor, b: Tensor, activation: str = "NONE") -> Tensor:
        out = self.tensor(_activate(a.values + b.values, activation))
        self.layers.append(Layer("ADD", [a, b], out, activation=activation))
        return out

    def max_pool(self, x: Tensor) -> Tensor:
        """3 x 3, stride 2."""
        values = _patches(x.values, 3, 2, -np.inf).max(axis=(3, 4))
        out = self.tensor(np.ascontiguousarray(values), x)
        self.layers.append(Layer("MAX_POOL_2D", [x], out, 3, 2))
        return out

    def classes(self, x: Tensor, outputs: int) -> Tensor:
        """Mean over the image, fully connected, softmax."""
        mean = self.tensor(x.values.mean(axis=(1, 2)))
        self.layers.append(Layer("MEAN", [x], mean))
        w = self.rng.standard_normal((outputs, x.shape[-1])).astype(np.float32)
        w *= np.float32(2 / np.std(mean.values @ w.T))
        bias = (0.1 * self.rng.standard_normal(outputs)).astype(np.float32)
        logits = self.tensor(mean.values @ w.T + bias)
        self._weighted(Layer("FULLY_CONNECTED", [mean], logits), w, bias)
        e = np.exp(logits.values - logits.values.max())
        out = Tensor(OUTPUT, e / e.sum(), 1 / 256, -128)
        self.layers.append(Layer("SOFTMAX", [logits], out))
        return out


def _activate(x: F32, activation: str) -> F32:
    if activation == "NONE":
        return x
    return np.clip(x, 0, 6 if activation == "RELU6" else None).astype(np.float32)


def same_pads(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """(before, behind) of SAME padding: the odd one goes behind."""
    out = -(-size // stride)
    total = max(0, (out - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def _patches(x: F32, kernel: int, stride: int, fill: float = 0.0) -> F32:
    """[n, h, w, kernel, kernel, c]: what each output sees."""
    pads = [(0, 0), *(same_pads(n, kernel, stride) for n in x.shape[1:3]), (0, 0)]
    wide = np.pad(x, pads, constant_values=fill)
    seen = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), axis=(1, 2))
    return seen[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3)


def mobilenet_v1(net: Net) -> None:
    x = net.conv(net.image(224), 32, 3, 2, "RELU6")
    for outputs, stride in (
        [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
        + [(512, 1)] * 5
        + [(1024, 2), (1024, 1)]
    ):
        x = net.conv(net.depthwise(x, stride), outputs, 1, 1, "RELU6")
    net.classes(x, 1000)


def mobilenet_v2(net: Net) -> None:
    x = net.conv(net.image(224), 32, 3, 2, "RELU6")
    for expand, outputs, repeats, first in V2_BLOCKS:
        for repeat in range(repeats):
            stride = 1 if repeat else first
            y = x if expand == 1 else net.conv(x, x.shape[-1] * expand, 1, 1, "RELU6")
            y = net.conv(net.depthwise(y, stride), outputs)
            x = net.add(x, y) if repeat else y
    net.classes(net.conv(x, 1280, 1, 1, "RELU6"), 1000)


def resnet18(net: Net) -> None:
    x = net.max_pool(net.conv(net.image(224), 64, 7, 2, "RELU"))
    for outputs, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            y = net.conv(net.conv(x, outputs, 3, stride, "RELU"), outputs, 3)
            if stride > 1:
                x = net.conv(x, outputs, 1, stride)
            x = net.add(x, y, "RELU")
    net.classes(x, 1000)


NETWORKS: dict[str, Callable[[Net], None]] = {
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
}


def build(name: str, seed: int = SEED) -> list[Layer]:
    """The layers of a network of ``NETWORKS`` in order."""
    net = Net(np.random.default_rng(seed))
    NETWORKS[name](net)
    return net.layers


def to_tflite(layers: Sequence[Layer]) -> bytes:
    """The .tflite file: int8 input ``input`` and output ``output``."""
    b = ModelBuilder("int8 benchmark network")
    source = layers[0].inputs[0]
    known = {source.name: b.input(INPUT, source.shape, "int8", source.scale, source.zero)}
    for layer in layers:
        out = layer.output
        inputs: list[int | None] = [known[x.name] for x in layer.inputs]
        made = (out.name, out.shape, "int8", out.scale, out.zero)
        options: dict[str, Any] = {}
        if layer.weights is not None and layer.scales is not None and layer.bias is not None:
            w, axis = layer.weights, 0
            if layer.depthwise:
                w, axis = w.transpose(3, 1, 2, 0), 3
            zeros = [0] * len(layer.scales)
            bias_scales = layer.scales * np.float32(layer.inputs[0].scale)
            inputs.append(b.const(f"{out.name}/w", w, layer.scales, zeros, axis))
            inputs.append(b.const(f"{out.name}/b", layer.bias, bias_scales, zeros))
        if layer.op in ("CONV_2D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D"):
            options = {"padding": "SAME", "stride_w": layer.stride, "stride_h": layer.stride}
        if layer.op == "DEPTHWISE_CONV_2D":
            options["depth_multiplier"] = 1
        if layer.op == "MAX_POOL_2D":
            options |= {"filter_width": layer.kernel, "filter_height": layer.kernel}
        if layer.op == "MEAN":
            inputs.append(b.const(f"{out.name}/axes", np.array([1, 2], np.int32)))
        elif layer.op == "SOFTMAX":
            options["beta"] = 1.0
        else:
            options["fused_activation_function"] = layer.activation
        version = {"FULLY_CONNECTED": 5, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3}.get(layer.op, 2)
        known[out.name] = b.op(layer.op, inputs, out=made, options=options, version=version)
    b.output(known[layers[-1].output.name])
    return b.finish()


class _Qdq:
    """Nodes and initializers of the ONNX form, channels first, activations uint8: onnxruntime's
    kernels for x86 want unsigned ones.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def const(self, name: str, array: npt.NDArray[Any]) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attrs))
        return output

    def quant(self, x: Tensor) -> list[str]:
        scale = self.const(f"{x.name}_scale", np.array(x.scale, np.float32))
        return [scale, self.const(f"{x.name}_zero", np.array(x.zero + 128, np.uint8))]

    def weights(self, layer: Layer, w: npt.NDArray[np.int8]) -> list[str]:
        assert layer.scales is not None and layer.bias is not None
        name = layer.output.name
        zeros = self.const(f"{name}_wz", np.zeros(len(layer.scales), np.int8))
        scales = self.const(f"{name}_ws", layer.scales)
        stored = [self.const(f"{name}_w", w), scales, zeros]
        weights = self.node("DequantizeLinear", stored, f"{name}_wf", axis=0)
        bias_scales = layer.scales * np.float32(layer.inputs[0].scale)
        zeros = self.const(f"{name}_bz", np.zeros(len(layer.scales), np.int32))
        stored = [self.const(f"{name}_b", layer.bias), self.const(f"{name}_bs", bias_scales), zeros]
        return [weights, self.node("DequantizeLinear", stored, f"{name}_bf", axis=0)]


def to_onnx(layers: Sequence[Layer]) -> onnx.ModelProto:
    """The model with QuantizeLinear and DequantizeLinear around every operator; uint8 input (N, C,
    H, W) and output.
    """
    made = _Qdq()
    source, last = layers[0].inputs[0], layers[-1].output
    quants = {source.name: made.quant(source)}

    def real(x: Tensor) -> str:
        name = f"{x.name}_f"
        if not any(name in n.output for n in made.nodes):
            made.node("DequantizeLinear", [x.name, *quants[x.name]], name)
        return name

    for layer in layers:
        out, x = layer.output, real(layer.inputs[0])
        raw = f"{out.name}_raw"
        if layer.weights is not None and layer.op != "FULLY_CONNECTED":
            size = layer.inputs[0].shape[1]
            begin, end = same_pads(size, layer.kernel, layer.stride)
            w = np.ascontiguousarray(layer.weights.transpose(0, 3, 1, 2))
            attrs = {
                "kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2,
                "pads": [begin, begin, end, end], "group": len(w) if layer.depthwise else 1,
            }  # fmt: skip
            made.node("Conv", [x, *made.weights(layer, w)], raw, **attrs)
        elif layer.weights is not None:
            made.node("Gemm", [x, *made.weights(layer, layer.weights)], raw, transB=1)
        elif layer.op == "ADD":
            made.node("Add", [x, real(layer.inputs[1])], raw)
        elif layer.op == "MAX_POOL_2D":
            begin, end = same_pads(layer.inputs[0].shape[1], 3, 2)
            pads = [begin, begin, end, end]
            made.node("MaxPool", [x], raw, kernel_shape=[3, 3], strides=[2, 2], pads=pads)
        elif layer.op == "MEAN":
            pooled = made.node("GlobalAveragePool", [x], f"{raw}_pooled")
            quants[f"{out.name}_4d"] = made.quant(Tensor(f"{out.name}_4d", *_quant(out)))
            q = made.node("QuantizeLinear", [pooled, *quants[f"{out.name}_4d"]], f"{out.name}_4d")
            again = made.node("DequantizeLinear", [q, *quants[f"{out.name}_4d"]], f"{raw}_again")
            made.node("Flatten", [again], raw)
        else:
            made.node("Softmax", [x], raw, axis=-1)
        if layer.activation == "RELU":
            raw = made.node("Relu", [raw], f"{raw}_relu")
        elif layer.activation == "RELU6":
            bounds = [
                made.const(f"{raw}_{k}", np.array(v, np.float32)) for k, v in (("lo", 0), ("hi", 6))
            ]
            raw = made.node("Clip", [raw, *bounds], f"{raw}_relu6")
        quants[out.name] = made.quant(out)
        made.node("QuantizeLinear", [raw, *quants[out.name]], out.name)
    n, h, w_, c = source.shape
    graph = helper.make_graph(
        made.nodes,
        "int8 benchmark network",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, (n, c, h, w_))],
        [helper.make_tensor_value_info(last.name, TensorProto.UINT8, last.shape)],
        made.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _quant(x: Tensor) -> tuple[F32, float, int]:
    return x.values, x.scale, x.zero


def export(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.tflite, NAME_qdq.onnx and NAME.npz (int8 input, channels last, and the float
    model's output) into ``folder``; the paths of the models.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tflite, qdq = folder / f"{name}.tflite", folder / f"{name}_qdq.onnx"
    layers = build(name)
    tflite.write_bytes(to_tflite(layers))
    onnx.save(to_onnx(layers), qdq)
    np.savez(
        folder / f"{name}.npz",
        **{INPUT: layers[0].inputs[0].quantized(), OUTPUT: layers[-1].output.values},
    )
    return tflite, qdq


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0] if arguments else "build/benchmarks/int8")
    for name in arguments[1:] or NETWORKS:
        for path in export(name, folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
