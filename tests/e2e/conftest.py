"""Networks on disk and compiled projects, shared by the end-to-end tests of one worker."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import aotgen
from benchmarks import networks


@cache
def _model(name: str, folder: str) -> tuple[Path, np.ndarray, np.ndarray]:
    path = networks.export(name, Path(folder))
    x = networks.sample_input(name)
    reference = networks.session(path).run(None, {networks.INPUT: x})[0]
    return path, x, reference


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory):
    """name -> (path of its .onnx, sample input, onnxruntime's output)."""
    folder = str(tmp_path_factory.mktemp("networks"))
    return lambda name: _model(name, folder)


@pytest.fixture(scope="session")
def compiled(network, tmp_path_factory: pytest.TempPathFactory):
    """(name, board) -> Project, compiled once."""
    root = tmp_path_factory.mktemp("projects")

    @cache
    def get(name: str, board: str) -> aotgen.Project:
        return aotgen.compile(network(name)[0], board=board, output=root / f"{name}_{board}")

    return get


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """max|a - b| / max|b|."""
    return float(np.max(np.abs(got.astype(np.float64) - expected)) / np.max(np.abs(expected)))
