"""Transposed, grouped, 1-D and 3-D convolutions, few-output heads, norms and gates: one model with
a branch for each, on every kind of core, against onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotgen
from support import require_tool
from tests.e2e import fuzz_models
from tests.e2e.quick_build import QuickModel, assert_close
from tests.e2e.test_boards import require_board


class Branches:
    """Grows a model: every branch ends in an output of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[str] = []
        self.feeds: dict[str, np.ndarray] = {}

    def input(self, name: str, *shape: int) -> str:
        self.feeds[name] = self.rng.standard_normal(shape).astype(np.float32)
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weights(self, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def conv(self, x: str, *shape: int, op: str = "Conv", **attrs: Any) -> str:
        bias = shape[0] if op == "Conv" else shape[1] * attrs.get("group", 1)
        return self.op(op, x, self.weights(*shape), self.weights(bias), **attrs)

    def back(self, x: str, *shape: int, **attrs: Any) -> str:
        return self.conv(x, *shape, op="ConvTranspose", **attrs)

    def end(self, *names: str) -> None:
        self.outputs += names

    def model(self, opset: int = 19) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "branches",
            [fuzz_models.info(name, value) for name, value in self.feeds.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in self.outputs],
            self.constants,
        )
        ids = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=ids, ir_version=9)


def transposed(b: Branches, image: str, line: str, volume: str) -> None:
    two = {"strides": [2, 2]}
    b.end(
        b.op("Relu", b.back(image, 16, 24, 2, 2, **two)),
        b.op("Sigmoid", b.back(image, 16, 1, 2, 2, **two)),
        b.back(image, 16, 3, 4, 4, **two, pads=[1, 1, 1, 1]),
        b.back(image, 16, 20, 3, 3, **two, pads=[1, 1, 1, 1], output_padding=[1, 1]),
        b.back(image, 16, 8, 3, 3, dilations=[2, 1], pads=[2, 1, 2, 1]),
        b.back(image, 16, 4, 1, 5, strides=[1, 2], pads=[0, 2, 0, 2], group=2),
        b.back(image, 16, 1, 3, 3, **two, group=16),
        b.back(image, 16, 5, 1, 2, **two),  # a phase without taps
        b.back(line, 12, 12, 5, strides=[5]),
        b.back(volume, 8, 6, 2, 2, 2, strides=[2, 2, 2]),
    )


def grouped(b: Branches, image: str, line: str, volume: str) -> None:
    same = {"pads": [1, 1, 1, 1]}
    wide = b.conv(image, 64, 16, 1, 1)
    for groups, outputs in ((16, 64), (8, 64), (32, 64), (64, 128)):
        y = b.conv(wide, outputs, 64 // groups, 3, 3, group=groups, **same)
        b.end(b.op("Relu", b.op("Add", y, wide)) if outputs == 64 else y)
    b.end(
        b.conv(image, 48, 1, 3, 3, group=16, strides=[2, 2], **same),
        b.conv(line, 12, 1, 5, group=12, pads=[2, 2]),
        b.conv(line, 18, 2, 3, group=6, dilations=[2]),
        b.conv(line, 20, 12, 3, pads=[1, 1], strides=[2]),
        b.conv(line, 20, 12, 1),
        b.conv(volume, 8, 1, 3, 3, 3, group=8, pads=[1] * 6),
        b.conv(volume, 20, 8, 3, 3, 3, pads=[1] * 6, strides=[1, 2, 2]),
        b.conv(volume, 20, 8, 1, 1, 1),
    )


def gates(b: Branches, image: str) -> None:
    y = b.conv(image, 24, 16, 3, 3, pads=[1, 1, 1, 1])
    for gate in ("Sigmoid", "HardSigmoid"):
        z = b.conv(y, 16, 24, 1, 1)
        b.end(b.op("Mul", z, b.op(gate, z)))
    z = b.conv(y, 8, 24, 1, 1)
    b.end(b.op("Mul", z, b.op("Tanh", b.op("Softplus", z))))
    squeezed = b.op("Relu", b.conv(b.op("GlobalAveragePool", y), 8, 24, 1, 1))
    scale = b.op("HardSigmoid", b.conv(squeezed, 24, 8, 1, 1))
    b.end(b.conv(b.op("Mul", y, scale), 16, 24, 1, 1))
    b.end(b.op("Sigmoid", b.conv(y, 1, 24, 1, 1)), b.conv(y, 3, 24, 3, 3))
    b.end(b.conv(y, 2, 24, 3, 3, dilations=[2, 2], pads=[2, 2, 2, 2]))


def norms(b: Branches, image: str) -> None:
    y = b.conv(image, 24, 16, 1, 1)
    parameters = [b.weights(24), b.weights(24)]
    b.end(
        b.op("LRN", y, size=5, alpha=0.01, beta=0.75, bias=1.0),
        b.op("LRN", y, size=3, alpha=0.01, beta=0.6, bias=2.0),
        b.op("Relu", b.op("InstanceNormalization", y, *parameters)),
        b.op("PRelu", y, b.weights(24, 1, 1)),
        *(b.op("Softmax", y, axis=axis) for axis in (1, 2, 3)),
    )
    for groups in (2, 6, 24):  # as it is exported before opset 18
        split = b.op("Reshape", y, b.constant(np.array([0, groups, -1])))
        ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        split = b.op("InstanceNormalization", split, b.constant(ones), b.constant(zeros))
        split = b.op("Reshape", split, b.constant(np.array([1, 24, 12, 14])))
        b.end(b.op("Add", b.op("Mul", split, b.weights(24, 1, 1)), b.weights(24, 1, 1)))


@pytest.mark.parametrize("board", ["host", "host-avx2", "host-scalar", "rpi4"])
def test_variants(board: str, tmp_path: Path) -> None:
    require_board(board)
    b = Branches()
    image, line = b.input("image", 1, 16, 12, 14), b.input("line", 1, 12, 40)
    volume = b.input("volume", 1, 8, 4, 6, 7)
    transposed(b, image, line, volume)
    grouped(b, image, line, volume)
    gates(b, image)
    norms(b, image)
    compare(b, board, tmp_path)


def compare(b: Branches, board: str, folder: Path) -> None:
    """The model's outputs on a board within 1e-4 of onnxruntime's."""
    model = b.model()
    expected = fuzz_models.session(model).run(b.outputs, b.feeds)
    path = folder / "net.onnx"
    onnx.save(model, path)
    project = aotgen.compile(path, board=board, output=folder / "project", weights="bin")
    if project.board.emulator:
        outputs = project.run(b.feeds)
        got = [outputs[name] for name in b.outputs]
    else:
        require_tool("gcc")
        got = QuickModel(project).run(b.feeds)
    for name, array, want in zip(b.outputs, got, expected, strict=True):
        assert_close(array, want, name)
