"""What the bench program feeds models of integers and models that keep state."""

from __future__ import annotations

from pathlib import Path

import aotgen
from support import require_tool
from tests.tflite.recurrent_models import Lstm, lstm_model


def test_an_int8_model_with_state(tmp_path: Path) -> None:
    """All int8 values make sense as inputs; each repeat starts from the initial state."""
    require_tool("cmake")
    model = tmp_path / "lstm.tflite"
    model.write_bytes(lstm_model(Lstm(kind="int8"))[0])
    project = aotgen.compile(model, output=tmp_path / "p")
    source = (project.folder / "bench/bench.c").read_text()
    assert "seed = fill_bytes(" in source and "fill_floats" not in source
    assert f"{project.info.prefix}_reset(&ctx);" in source
    result = project.bench(number=20, repeat=3, profile=True, governor=False)
    assert len(result.times_ms) == 3 and result.min_ms > 0
    assert result.unit == "GOP/s" and result.integer
    assert sum(layer.macs for layer in result.layers) == result.macs > 0
