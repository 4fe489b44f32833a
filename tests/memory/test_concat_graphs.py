"""Random networks full of concats that hold, repeat and cut one another, compiled and run.

onnxruntime says what is right; the arena starts as NaN, so a value read before it is written, or
after something overwrote it, shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import aotgen
from aotgen.api import analyze
from support import require_tool
from tests.e2e.quick_build import QuickModel, assert_close

SIZE = 7
"""Height and width of all images."""


class Net:
    """A network of [1, C, 7, 7] images as it grows; ``channels`` of each value by name."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.weights = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.channels = {"x": 4}

    def node(
        self, op: str, inputs: Sequence[str], channels: Sequence[int], **attributes: Any
    ) -> list[str]:
        number = len(self.nodes)
        names = [f"{op.lower()}{number}_{i}" for i in range(len(channels))]
        self.nodes.append(helper.make_node(op, inputs, names, f"n{number}", **attributes))
        self.channels.update(zip(names, channels, strict=True))
        return names

    def constant(self, shape: tuple[int, ...], scale: float) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = scale * self.weights.standard_normal(shape, np.float32)
        return name

    def conv(self, x: str, channels: int, kernel: int, group: int = 1) -> str:
        per_group = self.channels[x] // group
        shape = (channels, per_group, kernel, kernel)
        w = self.constant(shape, (per_group * kernel * kernel) ** -0.5)
        pads = [kernel // 2] * 4
        return self.node("Conv", [x, w], [channels], pads=pads, group=group)[0]

    def concat(self, members: Sequence[str]) -> str:
        return self.node("Concat", members, [sum(self.channels[m] for m in members)], axis=1)[0]

    def norm(self, x: str) -> str:
        """Scale and shift by channel, then relu: what stands behind a concat of a dense block."""
        shape = (1, self.channels[x], 1, 1)
        for op in ("Mul", "Add"):
            x = self.node(op, [x, self.constant(shape, 1.0)], [self.channels[x]])[0]
        return self.node("Relu", [x], [self.channels[x]])[0]

    def step(self, x: str) -> str:
        """Any one layer behind ``x``: with a border or without, in place or not."""
        kind = self.rng.randrange(7)
        if kind == 0:
            return self.conv(x, self.rng.choice([3, 4, 8]), 3)
        if kind == 1:
            return self.conv(x, self.rng.choice([4, 8, 16]), 1)
        if kind == 2:
            return self.conv(x, self.channels[x], 3, group=self.channels[x])
        if kind == 3:
            return self.node(
                "MaxPool", [x], [self.channels[x]], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
            )[0]
        if kind == 4:
            return self.norm(x)
        return self.node(self.rng.choice(["Relu", "Tanh"]), [x], [self.channels[x]])[0]

    def cut(self, x: str) -> list[str]:
        """``x`` split in two along its channels."""
        first = self.rng.randrange(1, self.channels[x])
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array([first, self.channels[x] - first], np.int64)
        return self.node("Split", [x, name], [first, self.channels[x] - first], axis=1)

    def block(self, x: str) -> list[str]:
        """Layers whose inputs are runs of a growing list; some of its concats."""
        features, results = [x], []
        for _ in range(self.rng.randrange(3, 7)):
            kind = self.rng.randrange(8)
            if kind == 0 and self.channels[features[-1]] > 1:
                features[-1:] = self.cut(features[-1])
            elif kind == 1 and len(features) > 2:  # a run becomes one member: concats nest
                at = self.rng.randrange(len(features) - 1)
                features[at : at + 2] = [self.concat(features[at : at + 2])]
            elif kind == 2:
                features.append(self.rng.choice(features))  # twice the same
            first = 0 if self.rng.random() < 0.7 else self.rng.randrange(len(features))
            run = features[first:]
            joined = self.concat(run) if len(run) > 1 else run[0]
            results.append(self.step(joined))
            features.append(results[-1])
        results.append(self.concat(features))
        return results

    def model(self) -> tuple[onnx.ModelProto, dict[str, int]]:
        starts, outputs = ["x"], {}
        for _ in range(4):
            results = self.block(self.rng.choice(starts))
            starts += results
            for name in dict.fromkeys([results[-1], self.rng.choice(results)]):
                outputs[name] = self.channels[name]
        proto = models.model(
            self.nodes,
            {"x": (1, 4, SIZE, SIZE)},
            {n: (1, c, SIZE, SIZE) for n, c in outputs.items()},
            self.constants,
        )
        return proto, outputs


def check(seed: int, folder: Path) -> None:
    require_tool("gcc")
    proto, outputs = Net(seed).model()
    path = folder / "net.onnx"
    onnx.save(proto, path)
    board = ("host", "host-scalar")[seed % 2]
    project = aotgen.compile(path, board, folder / "project", weights="bin")
    x = np.random.default_rng(seed).standard_normal((1, 4, SIZE, SIZE), np.float32)
    expected = onnxruntime.InferenceSession(path).run(list(outputs), {"x": x})
    built = QuickModel(project)
    for run in (built.run, built.run_in_arena):
        for name, got, want in zip(outputs, run({"x": x}), expected, strict=True):
            assert_close(got, np.asarray(want), name)


def dense_block(nested: bool) -> onnx.ModelProto:
    """Three layers of norm, 1x1 and 3x3 convolution, whose inputs are all features so far: as
    ``torch.cat`` of the growing list, or of the last concat and the new feature.
    """
    net = Net(7)
    features = [net.conv("x", 8, 1)]
    joined = features[0]
    for _ in range(3):
        features.append(net.conv(net.conv(net.norm(joined), 16, 1), 4, 3))
        joined = net.concat([joined, features[-1]] if nested else features)
    y = net.conv(net.norm(joined), 5, 1)
    return models.model(
        net.nodes, {"x": (1, 4, SIZE, SIZE)}, {y: (1, 5, SIZE, SIZE)}, net.constants
    )


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("board", ["host", "rpi4"])
def test_a_dense_block_has_no_copies(nested: bool, board: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(dense_block(nested), path)
    info = analyze(path, board)
    copied = [layer["op"] for layer in info["layers"] if layer["layout_copy"]]
    assert copied == ["transpose"] * 2  # in and out of the file's own layout
    # The whole list, 20 channels, is one buffer from the first layer to the last norm, which alone
    # overwrites it: earlier ones would destroy what is read later.
    features = [b for b in info["arena"]["buffers"] if b["bytes"] == 20 * SIZE * SIZE * 4]
    assert [(b["first_layer"], b["last_layer"]) for b in features] == [(1, len(info["layers"]) - 2)]
    assert info["arena"]["bytes"] <= 1.05 * info["arena"]["lower_bound"]


@pytest.mark.parametrize("seed", range(8))
def test_random_concats(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 10))
def test_many_random_concats(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(seed, folder)
