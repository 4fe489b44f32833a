"""A whole emulated arm64 machine: ../shared's virtual board, built and started once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import require_shared, require_tool


@pytest.fixture(scope="session")
def virtual_board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The ssh_config that has the machine as ``Host board``."""
    tool = require_shared("boards/virtual-board")
    require_tool("qemu-system-aarch64", "cpio", "ssh", "ssh-keygen", "dpkg-deb")
    folder = tmp_path_factory.mktemp("virtual-board")
    try:
        for verb in ("build", "start"):
            argv = [str(tool), verb, str(folder)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, f"virtual-board {verb}: {done.stderr}"
        yield folder / "ssh_config"
    finally:
        subprocess.run([str(tool), "stop", str(folder)], capture_output=True, timeout=60)


@pytest.fixture
def ssh_to_board(virtual_board: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``--runner`` is for the machine."""
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(virtual_board))
    monkeypatch.delenv("AOTGEN_SSH_WRAPPER", raising=False)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return "board"
