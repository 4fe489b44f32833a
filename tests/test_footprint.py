"""The stack bound and the flash table of a bare project against an image that ran."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import UsageError
from aotgen.footprint import Footprint, measure_footprint
from aotgen.manifest import Manifest, read_manifest
from aotgen.target.board import load_board
from benchmarks.mcu import measure
from tests.support import require_shared, require_tool

MODELS = ("kws_ref_model", "ad01_int8")
PAINT_BYTES = 64
"""Below the stack pointer that are not painted."""


def compiled(model: str, board: str, folder: Path) -> tuple[Manifest, Footprint]:
    require_tool("arm-none-eabi-gcc")
    file = require_shared(f"models/mlperf_tiny/{model}.tflite")
    aotgen.compile(file, board, folder / "project")
    manifest = read_manifest(folder / "project")
    return manifest, measure_footprint(manifest, load_board(board))


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
@pytest.mark.parametrize("model", MODELS)
def test_stack_bound_holds(model: str, board: str, tmp_path: Path) -> None:
    require_tool("qemu-system-arm")
    manifest, found = compiled(model, board, tmp_path)
    assert found.stack_path[0][0] == f"{manifest.prefix}_run"
    inputs = np.full((1, manifest.inputs[0].nbytes), 77, np.uint8)
    image = measure.build(manifest, load_board(board), "-O2", inputs, tmp_path, False)
    lines = measure.run(image, load_board(board))
    used = max(int(value) for key, value in lines if key == "stack")
    # Beside run: frames of main and model_run, and what main could not paint.
    assert found.stack_bytes <= used + PAINT_BYTES
    assert used <= found.stack_bytes + 2 * PAINT_BYTES + 128


def test_flash_is_the_sum_of_its_symbols(tmp_path: Path) -> None:
    manifest, found = compiled("kws_ref_model", "mps2-an386", tmp_path)
    weights = {s.name: s for s in found.symbols}[f"{manifest.prefix}_weights"]
    assert weights.bytes == manifest.data["weights_bytes"]
    assert weights.kind == "constant"
    in_flash = sum(s.bytes for s in found.symbols if s.kind != "zero")
    assert in_flash <= found.flash_bytes <= in_flash + 64 * len(found.symbols)
    assert found.static_bytes == 0  # contexts and buffers are the caller's
    # What analyze says before a compiler has seen the code.
    code = found.flash_bytes - weights.bytes
    estimate = manifest.data["flash_bytes"] - weights.bytes
    assert 0.8 * code <= estimate <= 1.25 * code


def test_flash_does_not_depend_on_the_prefix(tmp_path: Path) -> None:
    """Also where the model's functions are named like this measurement's own."""
    require_tool("arm-none-eabi-gcc")
    file = require_shared("models/mlperf_tiny/ad01_int8.tflite")
    board = load_board("mps2-an386")
    found = []
    for prefix in ("ad", "footprint"):
        aotgen.compile(file, board.name, tmp_path / prefix, prefix=prefix)
        found.append(measure_footprint(read_manifest(tmp_path / prefix), board))
    sizes = [sorted(s.bytes for s in footprint.symbols) for footprint in found]
    assert sizes[0] == sizes[1] and found[0].flash_bytes == found[1].flash_bytes


def test_boards_with_a_system_are_refused(tmp_path: Path) -> None:
    file = require_shared("models/mlperf_tiny/ad01_int8.tflite")
    aotgen.compile(file, "rpi4", tmp_path / "project")
    with pytest.raises(UsageError, match="no microcontroller"):
        measure_footprint(read_manifest(tmp_path / "project"), load_board("rpi4"))


def test_analyze_has_exact_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, found = compiled("ad01_int8", "mps2-an386", tmp_path)
    model = str(require_shared("models/mlperf_tiny/ad01_int8.tflite"))
    words = ["analyze", model, "--board", "mps2-an386", "--build"]
    assert call([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["footprint"] == found.as_dict()
    assert data["memory"]["flash"]["needs"] == found.flash_bytes
    assert data["memory"]["ram"]["needs"] >= data["arena_bytes"] + found.stack_bytes
    # A board with one byte less than that is short by one byte.
    text = Path(load_board("mps2-an386").folder, "board.toml").as_posix()
    small = tmp_path / "small"
    small.mkdir()
    (small / "board.toml").write_text(
        f'extends = "{text}"\n[memory]\nflash_bytes = {found.flash_bytes - 1}\nexternal_bytes = 0\n'
    )
    assert call(["analyze", model, "--board", str(small), "--build"]) == 1
    printed = capsys.readouterr().out
    assert "short by 1 bytes of flash" in printed
    assert "--optimize flash" in printed
    assert manifest.prefix in printed
