"""Projects compared on a board: programs of one name are told apart."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from onnx import helper

import aotgen
from aotgen.comparison import MIN_MS
from support import require_tool
from tests.runner.loopback import Board


def square(size: int) -> bytes:
    """One product with a square matrix."""
    node = helper.make_node("MatMul", ["x", "weights"], ["y"])
    weights = {"weights": np.ones((size, size), np.float32)}
    shapes = {"x": (1, size)}, {"y": (1, size)}
    data: bytes = models.model([node], *shapes, weights).SerializeToString()
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
