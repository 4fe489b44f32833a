"""The tasks of the tables: layers of networks that differ in what limits them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from aotgen.api import load_for, optimise
from aotgen.options import CompileOptions
from aotgen.target.target import Target
from aotgen.tune.task import Task, tasks_of


def _model(
    node: onnx.NodeProto, x: list[int], weights: dict[str, tuple[int, ...]]
) -> onnx.ModelProto:
    """One operator on seeded weights, and relu behind convolutions."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) * 0.05, name)
        for name, shape in weights.items()
    ]
    nodes, result = [node], node.output[0]
    if node.op_type.startswith("Conv"):
        nodes.append(helper.make_node("Relu", [result], ["z"]))
        result = "z"
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _conv(
    channels: int, size: int, outputs: int, kernel: int, stride: int, groups: int = 1
) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        pad = kernel // 2
        node = helper.make_node(
            "Conv",
            ["x", "w", "b"],
            ["y"],
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=groups,
        )
        weights = {"w": (outputs, channels // groups, kernel, kernel), "b": (outputs,)}
        return _model(node, [1, channels, size, size], weights)

    return make


def _gemm(m: int, k: int, n: int) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
        return _model(node, [m, k], {"w": (k, n), "b": (n,)})

    return make


def _transposed(channels: int, size: int, outputs: int) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        node = helper.make_node(
            "ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1]
        )
        weights = {"w": (channels, outputs, 4, 4), "b": (outputs,)}
        return _model(node, [1, channels, size, size], weights)

    return make


LAYERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "conv3x3": _conv(128, 28, 128, 3, 1),
    "conv3x3_s2": _conv(128, 56, 256, 3, 2),
    "conv1x1": _conv(512, 14, 512, 1, 1),
    "depthwise": _conv(128, 56, 128, 3, 1, groups=128),
    "first7x7": _conv(3, 224, 64, 7, 2),
    "gemm": _gemm(128, 256, 1024),
    "transposed": _transposed(128, 14, 64),
}
"""By the name of their tables: layers of resnet18 (28x28 of 128 channels, its first one, and the
one from 56x56 of 128 to 256 channels), of mobilenet_v1 (14x14 of 512 channels), a depthwise one of
128 channels, a product of a transformer, and the upsampling of a decoder."""


def layer_task(name: str, target: Target) -> Task:
    """The task of a layer, as the passes leave it.

    Raises:
        KeyError: there is no such layer.
    """
    options = CompileOptions()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(LAYERS[name](), path)
        graph = optimise(load_for(path, options), options)
    return max(tasks_of(graph, target), key=lambda t: t.macs)
