"""What a user can get wrong about a project that is there: files, boards, runners."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import pytest

import aotgen
from aotgen.cli.main import call

CAMERA = 'extends = "host-scalar"\ndescription = "Our camera"\n'


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


def unnamed(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 8), np.float32))


def pickled(path: Path) -> None:
    np.savez(path, x=np.array([{}], object))


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(200)))


@pytest.mark.parametrize("make", [unnamed, pickled, noise])
def test_inputs_are_no_npz(
    make: Callable[[Path], None],
    model_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "p")
    make(tmp_path / "in.npz")
    out = tmp_path / "out.npz"
    assert call(["run", str(project.folder), "-i", str(tmp_path / "in.npz"), "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert "in.npz" in error
    assert "numpy.savez" in error
    assert "allow_pickle" not in error
    assert not out.exists()


def test_project_of_another_format(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "p")
    manifest = project.folder / "manifest.json"
    manifest.write_text(re.sub(r'"format": \d+,', '"format": 99,', manifest.read_text()))
    assert call(["validate", str(project.folder)]) == 2
    error = capsys.readouterr().err
    assert "format 99" in error and "compile the model again" in error
    aotgen.compile(model_file, output=project.folder, force=True)  # replaces it


def test_bundle_of_another_format(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = aotgen.bundle([model_file], output=tmp_path / "b")
    manifest = made.folder / "manifest.json"
    manifest.write_text(re.sub(r'"format": \d+,', '"format": 1,', manifest.read_text()))
    for verb in ("analyze", "validate"):
        assert call([verb, str(made.folder)]) == 2
        assert "format 1, this aotgen reads" in capsys.readouterr().err


def test_incomplete_project(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "p")
    (project.folder / "CMakeLists.txt").unlink()
    assert call(["validate", str(project.folder)]) == 2
    assert "CMakeLists.txt" in capsys.readouterr().err


def test_misspelled_runner(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "p")
    assert call(["bench", str(project.folder), "--runner", "qmeu"]) == 2
    assert "there is no runner 'qmeu'" in capsys.readouterr().err


def test_a_board_of_the_users_own(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its project needs the board's path again; without it, or with another, that is said."""
    board = tmp_path / "camera"
    board.mkdir()
    (board / "board.toml").write_text(CAMERA)
    folder = str(tmp_path / "p")
    assert call(["compile", str(model_file), "--board", str(board), "-o", folder]) == 0
    assert call(["validate", folder]) == 2
    assert "--board" in capsys.readouterr().err
    assert call(["validate", folder, "--board", "host"]) == 2
    assert "compiled for board camera, not host" in capsys.readouterr().err
    assert call(["validate", folder, "--board", str(board)]) == 0
    assert aotgen.Project(folder, aotgen.load_board(str(board))).validate().ok
