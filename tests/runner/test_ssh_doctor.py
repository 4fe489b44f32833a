"""``boards doctor`` and ``boards probe`` over a real sshd."""

from __future__ import annotations

import json

import pytest

from aotgen.cli.main import call
from aotgen.target.board import load_board
from tests.board_trees import TREES, without_cost_models
from tests.runner.loopback import Board
from tests.support import require_tool


@pytest.fixture
def host(board: Board, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(board.config))
    monkeypatch.setenv("AOTGEN_SSH_WRAPPER", " ".join(board.wrapper))
    return "board"


def test_doctor_over_ssh(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The account is on this computer, which is no Raspberry Pi but runs its programs."""
    require_tool("aarch64-linux-gnu-gcc")
    assert call(["boards", "doctor", host, "--board", "rpi4", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    checks = {check["check"]: check for check in report["checks"]}
    for name in ("connection", "C library", "folder"):
        assert checks[name]["status"] == "ok", checks[name]
    assert checks["folder"]["found"].startswith("/tmp runs programs")


@pytest.mark.parametrize("name", ["rpi5", "rk3399"])
def test_tree_over_ssh(
    name: str, host: str, board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    """--sysfs-root is a folder of the board."""
    root = board.folder / f"tree-{name}"
    TREES[name].write(root)
    words = [host, "--sysfs-root", str(root)]
    assert call(["boards", "doctor", *words]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.endswith("no problems\n")
    assert call(["boards", "probe", *words]) == 0
    found = board.folder / f"found-{name}"
    found.mkdir()
    (found / "board.toml").write_text(capsys.readouterr().out)
    assert load_board(found).clusters == without_cost_models(load_board(name))
    assert load_board(found).default_runner == host
