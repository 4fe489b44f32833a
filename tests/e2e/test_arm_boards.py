"""Networks on the ARM boards, by every compiler and number of threads: the host's numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.builder import build_project
from aotgen.runner.base import Download, Upload
from aotgen.runner.select import runner_for
from aotgen.target.board import load_board
from benchmarks import networks
from support import require_tool
from tests.e2e.conftest import difference

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn")
BOARDS = ("rpi3b", "rpi3b-armv7", "rpi4", "rpi5", "rk3399")
COMPILERS = ("gcc", "clang")
THREADS = (1, 2, 4)


def board_output(
    project: aotgen.Project, compiler: str, threads: int, x: np.ndarray, folder: Path
) -> np.ndarray:
    """The network's output under the board's emulator."""
    board = project.board
    prefix = project.info.prefix
    chosen = compiler if compiler != "gcc" else None  # the board's own is a gcc
    build = build_project(project.info, board, compiler=chosen, targets=(f"{prefix}_run",))
    fed, got = folder / "in.bin", folder / "out.bin"
    fed.write_bytes(np.ascontiguousarray(x).tobytes())
    with runner_for("qemu", board) as place:
        program = build.program("run")
        place.deploy(program)
        files = ["--in", Upload(fed), "--out", Download(got)]
        place.run(program, [*files, "--threads", str(threads)], timeout=1200.0)
    return np.frombuffer(got.read_bytes(), np.float32)


def check(name: str, board: str, compilers: tuple[str, ...], network, compiled, folder: Path):
    """Within 1e-4 of the host, and the same bytes with any number of threads."""
    machine = load_board(board)
    require_tool("cmake", f"{machine.triple}-gcc", machine.emulator[0], *compilers)
    model, x, _ = network(name)
    expected = compiled(name, "host").run({networks.INPUT: x})[networks.OUTPUT].ravel()
    project = aotgen.compile(model, board, folder / "project", threads=max(THREADS))
    for compiler in compilers:
        alone = board_output(project, compiler, 1, x, folder)
        assert difference(alone, expected) <= 1e-4, compiler
        for threads in THREADS[1:]:
            shared = board_output(project, compiler, threads, x, folder)
            assert shared.tobytes() == alone.tobytes(), f"{compiler}, {threads} threads"
    shutil.rmtree(project.folder)


@pytest.mark.parametrize(("board", "compiler"), [("rpi5", "clang"), ("rk3399", "gcc")])
def test_small_network(board: str, compiler: str, network, compiled, tmp_path: Path) -> None:
    check("ds_cnn", board, (compiler,), network, compiled, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, board: str, network, compiled, tmp_path: Path) -> None:
    check(name, board, COMPILERS, network, compiled, tmp_path)
