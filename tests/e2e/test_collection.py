"""Real models with stored inputs and outputs: each is compiled, built and run once.

``scripts/coverage.py`` makes the same comparison with whole builds and writes docs/coverage.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import aotgen
from scripts.coverage import DEFAULT_COLLECTION
from scripts.model_collection import StoredModel, collection
from tests.e2e.quick_build import QuickModel
from tests.support import require, require_tool

HERE = (DEFAULT_COLLECTION / "models.json").is_file()
MODELS = list(collection(DEFAULT_COLLECTION)) if HERE else []


@pytest.mark.parametrize("model", MODELS or [None], ids=lambda m: m.name if m else "none")
def test_model(model: StoredModel | None, tmp_path: Path) -> None:
    require(model is not None, "the collection of real models")
    require_tool("gcc")
    assert model is not None
    project = aotgen.compile(
        model.path,
        board="host",
        output=tmp_path / "project",
        shapes=model.shapes,
        weights="bin",
    )
    compiled = QuickModel(project)
    for step in range(model.steps):
        for error in model.errors(compiled.run(model.feeds(project, step)), step):
            assert error.is_fine, f"{error.output}: {error.worst:.3g}, allowed {error.tolerance}"
