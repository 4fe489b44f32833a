"""The repository's own CMakeLists.txt: the C runtime and its tests (tests/c), also for boards."""

from __future__ import annotations

from pathlib import Path

import pytest
from cmake_support import ROOT, Build, command

from aotgen.target.board import load_board
from support import require_tool


@pytest.mark.parametrize("board", ["host", "rpi3b-armv7"])
def test_runtime(board: str, tmp_path: Path) -> None:
    arguments = [command(tmp_path)]
    machine = load_board(board)
    if machine.triple:
        require_tool(f"{machine.triple}-gcc", machine.emulator[0])
        arguments.append(f"-DCMAKE_TOOLCHAIN_FILE={machine.toolchain}")
    build = Build(ROOT, tmp_path / "b")
    printed = build.make(*arguments)
    assert f"layers for {board}" in printed
    vectors = ["digits_vectors", "digits_vectors_threads"]
    assert build.ctest() == ["clock", *vectors, "model", "threads"]
    build.install(tmp_path / "prefix")
    assert (tmp_path / "prefix/share/cmake/aotgen/aotgenConfig.cmake").is_file()
