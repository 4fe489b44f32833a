"""The networks that test_boards.py leaves out, from a published shape to numbers on a board."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotgen
from benchmarks import networks
from support import require_tool
from tests.e2e.conftest import difference

SMALL = ("fc_autoencoder", "mobilenet_v1", "mobilenet_v3_small")
LARGE = ("inception_v3", "densenet121", "vgg16", "r3d_18")
CROSS = ("rpi4", "rpi3b-armv7")

CASES = [(name, "host") for name in (*SMALL, "resnet50")]
CASES += [("fc_autoencoder", board) for board in CROSS]
SLOW_CASES = [(name, "host") for name in LARGE]
SLOW_CASES += [(name, board) for name in (*SMALL[1:], "resnet50") for board in CROSS]
SLOW_CASES += [
    (name, board)
    for name in (*SMALL, "resnet50", "inception_v3", "densenet121")
    for board in ("host-avx2", "host-scalar")
]


def check(name: str, board: str, folder: Path) -> None:
    """Within 1e-4 of onnxruntime. What was written is removed: a project may have gigabytes."""
    described = aotgen.load_board(board)
    compiler = f"{described.triple}-gcc" if described.triple else "gcc"
    require_tool("cmake", compiler, *described.emulator[:1])
    path = networks.export(name, folder)
    with np.load(path.with_suffix(".npz")) as arrays:
        x, reference = arrays[networks.INPUT], arrays[networks.OUTPUT]
    project = aotgen.compile(path, board=board, output=folder / "project", weights="bin")
    path.unlink()
    got = project.run({networks.INPUT: x})[networks.OUTPUT]
    for left in folder.rglob("*"):
        if left.is_file() and left.stat().st_size > 1 << 20:
            left.unlink()
    assert got.shape == reference.shape
    assert difference(got, reference) <= 1e-4


@pytest.mark.parametrize(("name", "board"), CASES)
def test_agrees_with_onnxruntime(name: str, board: str, tmp_path: Path) -> None:
    check(name, board, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "board"), SLOW_CASES)
def test_large_network_agrees_with_onnxruntime(name: str, board: str, tmp_path: Path) -> None:
    check(name, board, tmp_path)


def test_every_network_is_tested() -> None:
    from tests.e2e.test_boards import NETWORKS

    assert {*NETWORKS, *SMALL, *LARGE, "resnet50"} == set(networks.NETWORKS)
