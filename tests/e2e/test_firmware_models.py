"""What ``--optimize flash`` and ``ram`` make of the int8 models of microcontrollers, at every level
of optimisation of the C compiler, and the collection's .tflite models on the largest board: the
bytes of TFLite Micro.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

import aotgen
from scripts.coverage import DEFAULT_COLLECTION
from scripts.model_collection import StoredModel
from scripts.tflite_collection import compare, must_be_exact, tflite_models
from tests.mcu_models import (
    BOARDS,
    INT8_MODELS,
    fed,
    measured_outputs,
    model_file,
    require_emulator,
    wheel,
    wrong,
)
from tests.support import require

LEVELS = ("-O1", "-Os", "-O3")

QUICK = {
    ("kws_ref_model", "mps2-an386", "flash"),
    ("kws_ref_model", "mps3-an547", "ram"),
    ("ad01_int8", "mps2-an500", "flash"),
}
"""What every run of the tests takes, at -Os; the sweep takes all at all levels."""


def check(model: str, board: str, optimize: str, levels: tuple[str, ...], folder: Path) -> None:
    require_emulator()
    project = aotgen.compile(model_file(model), board, folder / "project", optimize=optimize)
    for level in levels:
        got = measured_outputs(project.info, board, level, fed(model), folder / level[1:])
        assert wrong(got, wheel(model)) == [], level


@pytest.mark.parametrize(("model", "board", "optimize"), sorted(QUICK))
def test_small_ones(model: str, board: str, optimize: str, tmp_path: Path) -> None:
    check(model, board, optimize, ("-Os",), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "board", "optimize"), list(product(INT8_MODELS, BOARDS, ("speed", "flash", "ram")))
)
def test_any_level(model: str, board: str, optimize: str, tmp_path: Path) -> None:
    levels = LEVELS if optimize != "speed" else (*LEVELS, "-O2")
    check(model, board, optimize, levels, tmp_path)


BOARD = "mps3-an547"

RAM_BYTES = 4 << 20
"""Of ``BOARD``; weights that do not fit its flash lie in its external memory."""

EXTERNAL_ARENA = {"deeplabv3_dm05_uint8"}
"""Models whose arena does not fit ``RAM_BYTES`` either and lies there too."""

SMALL = ("hello_world_int8", "keyword_scrambled_svdf_int8")


def collected() -> list[object]:
    """The models in 8-bit integers, without those of MLPerf Tiny, which others take."""
    if not (DEFAULT_COLLECTION / "models.json").is_file():
        return [None]
    found = [m for m in tflite_models(DEFAULT_COLLECTION) if must_be_exact(m)]
    return [
        pytest.param(m, id=m.name, marks=[] if m.path.stem in SMALL else pytest.mark.slow)
        for m in found
        if not m.name.startswith("mlperf_tiny/")
    ]


@pytest.mark.parametrize("model", collected())
def test_collection_in_firmware(model: StoredModel | None, tmp_path: Path) -> None:
    """Over the serial line, with the state of those that keep one from step to step."""
    require(model is not None, "the collection of real models")
    assert model is not None
    require_emulator()
    project = aotgen.compile(
        model.path, BOARD, tmp_path / "project", shapes=model.shapes, requant="tflm"
    )
    manifest = project.manifest
    fits = manifest["arena_bytes"] + manifest["state_bytes"] < RAM_BYTES
    assert fits == (model.path.stem not in EXTERNAL_ARENA)
    fed_steps = [model.feeds(project, step) for step in range(model.steps)]
    outputs = project.run_steps(fed_steps, "qemu")
    found = compare(model, "tflm", [list(output.values()) for output in outputs])
    assert found.exact, found.wrong
