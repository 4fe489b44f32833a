"""Projects compared on a board: programs of one name are told apart."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotgen
from aotgen.comparison import MIN_MS
from support import require_tool
from tests.runner.loopback import Board


def square(size: int) -> bytes:
    """One product with a square matrix."""
    weights = numpy_helper.from_array(np.ones((size, size), np.float32), "weights")
    shape = [1, size]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "square",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def test_over_ssh(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    monkeypatch.setenv("AOTGEN_SSH_WRAPPER", " ".join(board.wrapper))
    projects = []
    for name, model in (("small", models.two_layers().SerializeToString()), ("large", square(512))):
        (tmp_path / f"{name}.onnx").write_bytes(model)
        output = tmp_path / name
        projects.append(
            aotgen.compile(tmp_path / f"{name}.onnx", board="rpi4", output=output, prefix="same")
        )
    with board.runner() as place:
        found = aotgen.compare(projects, place, rounds=2, number=2, governor=False)
    assert (found.by, found.runner, found.rounds) == (MIN_MS, "ssh", 2)
    # 262,144 multiply-accumulates against 192: also an emulator sees that.
    assert found.ratios[1] > 2
