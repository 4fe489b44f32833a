"""--device gpu on PoCL: the same numbers as onnxruntime from OpenCL kernels."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import aotgen
from aotgen.builder import build_project
from support import require, require_tool
from tests.e2e.conftest import difference

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def nest_only() -> onnx.ModelProto:
    """Element-wise, reduction, softmax, layer norm, transpose, pad, gather: no anchor at all."""
    rng = np.random.default_rng(2)
    constants = {
        "scale": rng.standard_normal((7,), np.float32),
        "bias": rng.standard_normal((7,), np.float32),
        "column": rng.standard_normal((5, 1), np.float32),
        "axes": np.array([1], np.int64),
        "rows": np.array([2, 0, 2], np.int64),
        "pads": np.array([0, 1, 2, 0, 0, 1], np.int64),
    }
    nodes = [
        helper.make_node("Mul", ["x", "column"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("LayerNormalization", ["b", "scale", "bias"], ["c"], axis=-1),
        helper.make_node("Softmax", ["c"], ["d"], axis=1),
        helper.make_node("Pad", ["d", "pads"], ["e"], mode="constant"),
        helper.make_node("Gather", ["e", "rows"], ["f"], axis=1),
        helper.make_node("Transpose", ["f"], ["g"], perm=[2, 0, 1]),
        helper.make_node("ReduceMax", ["g", "axes"], ["h"], keepdims=1),
        helper.make_node("Sub", ["g", "h"], ["i"]),
        helper.make_node("Exp", ["i"], ["y"]),
    ]
    return models.model(nodes, {"x": (2, 5, 7)}, {"y": (10, 2, 3)}, constants, opset=18)


@pytest.fixture
def opencl() -> None:
    require_tool("cmake", "gcc")
    require(ctypes.util.find_library("OpenCL") is not None, "an OpenCL driver")


def check(path: Path, feeds: dict[str, np.ndarray], folder: Path) -> None:
    project = aotgen.compile(path, output=folder, device="gpu")
    build_project(
        project.info, project.board, definitions=[f"{project.info.prefix.upper()}_WERROR=ON"]
    )
    got = project.run(feeds, runner="local")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    for name, expected in zip(names, session.run(None, feeds), strict=True):
        assert got[name].shape == expected.shape
        assert difference(got[name], expected) <= 1e-5
    assert project.validate(feeds, per_layer=True, runner="local").ok


def test_nest_only_model(opencl: None, tmp_path: Path) -> None:
    path = tmp_path / "nests.onnx"
    path.write_bytes(nest_only().SerializeToString())
    x = np.random.default_rng(0).standard_normal((2, 5, 7), np.float32)
    check(path, {"x": x}, tmp_path / "p")


def test_digits(opencl: None, tmp_path: Path) -> None:
    images = np.load(DIGITS / "digits_test.npz")["images"]
    x = (images[0].astype(np.float32) / 16).reshape(1, 1, 8, 8)
    check(DIGITS / "digits.onnx", {"input": x}, tmp_path / "p")
