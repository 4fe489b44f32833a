"""Every network on every board, some pairs in the long sweeps alone: agrees with onnxruntime.

Random models on the boards that need a cross compiler.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import aotgen
from aotgen.target.board import Board, load_board
from benchmarks import networks
from support import require_tool
from tests.e2e import fuzz_models
from tests.e2e.conftest import difference
from tests.e2e.quick_build import STRICT, assert_close

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn", "transformer")
BOARDS = ("host", "host-avx2", "host-scalar", "rpi4", "rpi3b-armv7")
CROSS = ("rpi4", "rpi3b-armv7")
OPTIMIZE = ("speed", "ram", "flash")


def require_board(name: str) -> Board:
    """The board, whose tools are there."""
    board = load_board(name)
    require_tool(
        "cmake", *([f"{board.triple}-gcc", board.emulator[0]] if board.triple else ["gcc"])
    )
    return board


EVERY_TIME = {
    "host": ("resnet18", "ds_cnn", "transformer"),
    "host-avx2": ("mobilenet_v2", "ds_cnn", "transformer"),
    "host-scalar": ("squeezenet1_1", "ds_cnn", "transformer"),
    "rpi4": ("squeezenet1_1", "ds_cnn", "transformer"),
    "rpi3b-armv7": ("mobilenet_v2", "ds_cnn", "transformer"),
}
"""By board; the long sweeps have the others."""


@pytest.mark.parametrize(
    ("board", "name"),
    [
        pytest.param(b, n, marks=[] if n in EVERY_TIME[b] else [pytest.mark.slow])
        for b in BOARDS
        for n in NETWORKS
    ],
)
def test_agrees_with_onnxruntime(name: str, board: str, network, compiled) -> None:
    require_board(board)
    _, x, reference = network(name)
    project = compiled(name, board)
    got = project.run({networks.INPUT: x})[networks.OUTPUT]
    assert got.shape == reference.shape
    assert difference(got, reference) <= 1e-4


def check_random(seed: int, name: str, folder: Path) -> None:
    """A random model's sources compile without a warning, and its programs answer as onnxruntime
    did.
    """
    board = require_board(name)
    model = fuzz_models.generate(seed)
    folder.mkdir(exist_ok=True)
    path = folder / "net.onnx"
    path.write_bytes(model.proto.SerializeToString())
    project = aotgen.compile(
        path,
        board=name,
        output=folder / "project",
        optimize=OPTIMIZE[seed % 3],  # type: ignore[arg-type]
        weights="bin",
    )
    includes = [f"-I{project.folder}/{part}" for part in ("include", "src")]
    for source in sorted(project.folder.glob("src/*.c")):
        command = [f"{board.triple}-gcc", *STRICT, *board.cflags(), "-O1", *includes]
        subprocess.run([*command, "-c", str(source), "-o", str(folder / "o.o")], check=True)
    got = project.run(model.feeds)
    for output, expected in zip(model.outputs, model.expected, strict=True):
        assert_close(got[output], expected, output)


@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("seed", range(3))
def test_random_model(seed: int, name: str, tmp_path: Path) -> None:
    check_random(seed, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CROSS)
@pytest.mark.parametrize("first", range(600, 800, 10))
def test_random_models(first: int, name: str, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        check_random(seed, name, tmp_path / str(seed))
