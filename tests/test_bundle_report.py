"""What a bundle takes of its board: shares of flash, RAM with one arena and with several, what is
missing.
"""

from __future__ import annotations

import json
from pathlib import Path

import models
import pytest
from cmake_support import ROOT

import aotgen
from aotgen.bundling import Bundle
from aotgen.cli.main import call
from aotgen.footprint import measure_footprint
from aotgen.target.board import load_board
from support import require_tool

DIGITS = ROOT / "examples/cmake_app/digits_int8.tflite"
M4 = "mps2-an386"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An int8 network twice and a float one, with an arena each."""
    folder = tmp_path_factory.mktemp("models")
    path = folder / "layers.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    files = {"digits": DIGITS, "again": DIGITS, "layers": path}
    return aotgen.bundle(files, M4, folder / "three")


def aligned(bundle: Bundle) -> list[int]:
    apis = [bundle.project(model).info.api for model in bundle.models]
    return [-(-api.arena_bytes // api.arena_align) * api.arena_align for api in apis]


def test_estimates(made: Bundle) -> None:
    report = made.report()
    assert report.shared.ram.needs + sum(aligned(made)) - max(aligned(made)) == (
        report.separate.ram.needs
    )
    assert report.fit == report.separate
    assert report.fit.flash.needs == made.manifest["flash_bytes"]
    weights = {m["prefix"]: m["weights_bytes"] for m in made.manifest["models"]}
    # All code of a model that is there twice is shared.
    assert report.own["digits"] == weights["digits"] and report.own["again"] == weights["again"]
    assert report.own["layers"] > weights["layers"] > 0
    assert report.shared_flash_bytes > 0


def test_built(made: Bundle, tmp_path: Path) -> None:
    """Against what each model takes alone."""
    require_tool("arm-none-eabi-gcc")
    report = made.report(build=True)
    built = report.manifest["footprint"]
    alone = {}
    for name in made.models:
        file = made.project(name).folder / "test"
        (source,) = file.glob("model.*")
        project = aotgen.compile(source, M4, tmp_path / name, prefix=name)
        alone[name] = measure_footprint(project.info, load_board(M4))
    # The lists of calls take their constants from two places rather than one.
    deepest = max(found.stack_bytes for found in alone.values())
    assert abs(built["stack_bytes"] - deepest) <= 32
    flash = report.fit.flash.needs
    assert flash == built["flash_bytes"]
    # Code of the network that is there twice is there once.
    calls = 2048
    weights = made.project("again").info.data["weights_bytes"]
    assert flash <= alone["digits"].flash_bytes + alone["layers"].flash_bytes + weights + calls
    owners = {s["name"]: s["models"] for s in built["symbols"]}
    for name in made.models:
        assert owners[f"{name}_weights"] == owners[f"{name}_run"] == [name]
    shared = [s for s in built["symbols"] if s["models"] == ["digits", "again"]]
    assert sum(s["bytes"] for s in shared if s["kind"] == "code") > 500
    assert all(owners.values())


def small_board(folder: Path, ram: int, flash: int) -> Path:
    folder.mkdir()
    (folder / "board.toml").write_text(
        f'extends = "cortex-m4"\n[memory]\nram_bytes = {ram}\nflash_bytes = {flash}\n'
    )
    return folder


@pytest.mark.parametrize("share", [False, True])
def test_what_is_missing(
    share: bool, made: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a board whose RAM has room for one arena."""
    ram, flash = made.report().shared.ram.needs + 10, made.report().fit.flash.needs
    board = str(small_board(tmp_path / "small", ram, flash))
    files = [f"{m}={next((made.project(m).folder / 'test').glob('model.*'))}" for m in made.models]
    out = str(tmp_path / "out")
    words = ["bundle", *files, "--board", board, "-o", out, *(["--share-arena"] if share else [])]
    assert call(words) == 0
    missing = sum(aligned(made)) - max(aligned(made)) - 10
    short = f"short by {missing:,} bytes of RAM"
    assert (short in capsys.readouterr().out) is not share
    assert call(["analyze", out, "--board", board]) == (0 if share else 1)
    text = capsys.readouterr().out
    assert (short in text) is not share
    assert ("--share-arena: RAM" in text) is not share
    assert call(["analyze", out, "--board", board, "--json"]) == (0 if share else 1)
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is share and told["memory"]["ram"]["short"] == (0 if share else missing)
    assert told["memory"]["ram_shared_arena"]["needs"] == ram - 10


@pytest.mark.parametrize("words", [["--optimize", "ram"], ["--arena"], ["--shape", "x=1x8"]])
def test_options_of_a_compilation_are_no_bundles(
    words: list[str], made: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["analyze", str(made.folder), *words]) == 2
    assert "is a bundle, which was compiled with options of its own" in capsys.readouterr().err


def test_exact_sizes_of_a_computer_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = aotgen.bundle([DIGITS], "host-scalar", tmp_path / "one")
    assert call(["analyze", str(made.folder)]) == 0
    assert "own flash" in capsys.readouterr().out
    assert call(["analyze", str(made.folder), "--build"]) == 2
    assert "no microcontroller" in capsys.readouterr().err
