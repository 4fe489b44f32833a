"""``boards doctor`` and ``boards probe`` of a whole emulated board: busybox, dropbear."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.target.board import load_board
from tests.models import two_layers
from tests.support import require_tool

pytestmark = pytest.mark.board


def test_doctor(ssh_to_board: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An emulated machine holds no clock, so there are problems; all else is as it is."""
    require_tool("aarch64-linux-gnu-gcc")
    assert call(["boards", "doctor", ssh_to_board, "--board", "rpi4", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    checks = {check["check"]: check for check in report["checks"]}
    for name in ("connection", "architecture", "features", "RAM", "C library", "folder"):
        assert checks[name]["status"] == "ok", checks[name]
    assert checks["cores"]["found"] == "2x cortex-a72"
    assert checks["governor"]["status"] == "skip"
    assert "MHz" in checks["clock held (CPU 0)"]["found"]
    assert "dummy-virt" in checks["system"]["found"]


def test_probe(ssh_to_board: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From an unknown board to a validated model on it, without naming a runner again."""
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    assert call(["boards", "probe", ssh_to_board]) == 0
    folder = tmp_path / "virtual"
    folder.mkdir()
    (folder / "board.toml").write_text(capsys.readouterr().out)
    board = load_board(folder)
    assert (board.isa, board.default_runner) == ("neon", ssh_to_board)
    assert [(c.core, c.count) for c in board.clusters] == [("cortex-a72", 2)]
    onnx.save(two_layers(), tmp_path / "m.onnx")
    project = aotgen.compile(tmp_path / "m.onnx", board=str(folder), output=tmp_path / "p")
    assert project.validate().ok
    assert call(["boards", "doctor", ssh_to_board, "--board", str(folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    names = {check["check"] for check in report["checks"] if check["status"] in ("warn", "fail")}
    assert names <= {"clock held (CPU 0)", "load"}
