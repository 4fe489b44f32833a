"""A whole project cross-compiles with every compiler of its board, and says why where it fails."""

from __future__ import annotations

from pathlib import Path

import models
import pytest

import aotgen
from aotgen.builder import first_error
from aotgen.runner.select import runner_for
from aotgen.target.board import load_board
from support import require_tool


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("board", ["rpi4", "rpi3b-armv7"])
def test_programs_link_and_run(board: str, compiler: str, tmp_path: Path) -> None:
    """The weights are assembly, which needs the target told as the C sources do."""
    machine = load_board(board)
    require_tool(f"{machine.triple}-gcc", machine.emulator[0], "ninja", compiler)
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    project = aotgen.compile(model, board=board, output=tmp_path / "p")
    build = project.build(compiler=compiler if compiler == "clang" else None)
    with runner_for("qemu", project.board) as place:
        # The test program compares with vectors that the interpreter computed.
        place.deploy(build.program("test"))
        place.run(build.program("test"))


def test_first_error_is_the_linkers() -> None:
    undefined = "main.c:(.text+0x19): undefined reference to `digits_run'"
    gcc = f"FAILED: app\n/usr/bin/ld: {undefined}\ncollect2: error: ld returned 1 exit status"
    assert undefined in first_error(gcc)
    wrong = "/usr/bin/ld: weights.S.o is incompatible with aarch64 output"
    clang = f"FAILED: app\n{wrong}\nclang: error: linker command failed with exit code 1"
    assert first_error(clang) == wrong
