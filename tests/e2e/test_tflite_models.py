"""Real .tflite models with stored inputs and outputs: integer ones give the references' bytes.

On this computer each in a quick build, as LiteRT's reference kernels compute it (``--requant
litert``, the stored outputs); the integer ones also as the tflite-micro wheel does (``--requant
tflm``). Models without integers are the same in both modes. The stored outputs are those of
every other integer one, and the boards under QEMU get a sample; all of them in the sweep.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aotgen
from aotgen.options import RequantMode
from scripts.coverage import DEFAULT_COLLECTION
from scripts.model_collection import StoredModel
from scripts.tflite_collection import compare, must_be_exact, tflite_models
from tests.e2e.quick_build import QuickModel
from tests.support import require, require_module, require_tool
from tests.tflite.test_sweep import CROSS

HERE = (DEFAULT_COLLECTION / "models.json").is_file()
MODELS = tflite_models(DEFAULT_COLLECTION) if HERE else []
INTEGER = [model for model in MODELS if must_be_exact(model)]

UNDER_QEMU = ("hello_world_int8", "micro_speech_lstm_int8", "okay_nabu_stream_int8", "ad01_int8")
"""The small ones that every run takes through QEMU."""

SMALL = [model for model in INTEGER if model.path.stem in UNDER_QEMU]


def label(model: object) -> str:
    return model.name if isinstance(model, StoredModel) else str(model or "none")


def compiled(
    model: StoredModel | None, mode: RequantMode, board: str, folder: Path
) -> tuple[StoredModel, aotgen.Project]:
    require(model is not None, "the collection of real models")
    assert model is not None
    path = folder / "project"
    project = aotgen.compile(
        model.path, board, path, shapes=model.shapes, weights="bin", requant=mode
    )
    return model, project


def check(model: StoredModel, mode: RequantMode, outputs: list[list[object]]) -> None:
    found = compare(model, mode, outputs)
    assert found.wrong == []
    assert found.exact or not must_be_exact(model)


def run_here(model: StoredModel | None, mode: RequantMode, board: str, folder: Path) -> None:
    require_tool("gcc")
    known, project = compiled(model, mode, board, folder)
    quick = QuickModel(project)
    check(known, mode, [quick.run(known.feeds(project, s)) for s in range(known.steps)])


def run_under_qemu(model: StoredModel | None, mode: RequantMode, board: str, folder: Path) -> None:
    require_tool(*CROSS[board])
    known, project = compiled(model, mode, board, folder)
    steps = [known.feeds(project, s) for s in range(known.steps)]
    check(known, mode, [list(o.values()) for o in project.run_steps(steps, "qemu")])


# Every other integer one, as the wheel has them all.
STORED = [pytest.param(m, marks=[pytest.mark.slow] if m in INTEGER[1::2] else []) for m in MODELS]


@pytest.mark.parametrize("model", STORED or [None], ids=label)
def test_stored_outputs(model: StoredModel | None, tmp_path: Path) -> None:
    run_here(model, "litert", "host", tmp_path)


@pytest.mark.parametrize("model", INTEGER or [None], ids=label)
def test_wheel(model: StoredModel | None, tmp_path: Path) -> None:
    require_module("tflite_micro")
    run_here(model, "tflm", "host", tmp_path)


@pytest.mark.parametrize("board", CROSS)
@pytest.mark.parametrize("model", SMALL or [None], ids=label)
def test_small_ones_under_qemu(model: StoredModel | None, board: str, tmp_path: Path) -> None:
    require_module("tflite_micro")
    run_under_qemu(model, "tflm", board, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["litert", "tflm"])
@pytest.mark.parametrize("board", ["host-avx2", "host-scalar"])
@pytest.mark.parametrize("model", INTEGER or [None], ids=label)
def test_other_isas(
    model: StoredModel | None, board: str, mode: RequantMode, tmp_path: Path
) -> None:
    run_here(model, mode, board, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["litert", "tflm"])
@pytest.mark.parametrize("board", CROSS)
@pytest.mark.parametrize("model", INTEGER or [None], ids=label)
def test_all_under_qemu(
    model: StoredModel | None, board: str, mode: RequantMode, tmp_path: Path
) -> None:
    run_under_qemu(model, mode, board, tmp_path)
