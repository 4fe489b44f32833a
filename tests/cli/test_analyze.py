"""aotgen analyze: fits or short by how much, what helps, and where buffers lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.options import CompileOptions
from aotgen.report.arena import Buffer, arena_chart, arena_table
from aotgen.target.board import load_board
from tests.support import require_module, require_shared

KWS = "models/mlperf_tiny/kws_ref_model.tflite"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


def board(folder: Path, base: str = "cortex-m4", **memory: int) -> str:
    """A board with these memories; its path."""
    folder.mkdir()
    lines = "\n".join(f"{name} = {size}" for name, size in memory.items())
    (folder / "board.toml").write_text(f'extends = "{base}"\n[memory]\n{lines}\n')
    return str(folder)


def analysis(
    capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> dict[str, Any]:
    assert call(["analyze", *arguments, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_live_bytes_reach_the_lower_bound(capsys: pytest.CaptureFixture[str]) -> None:
    path = require_shared(KWS)
    for name in ("mps2-an386", "host", "mps3-an547"):
        data = analysis(capsys, str(path), "--board", name)
        live = data["arena"]["live_bytes"]
        assert len(live) == len(data["layers"])
        assert max(live) == data["arena"]["lower_bound"] == live[data["arena"]["peak_layer"]]
        assert max(live) <= data["arena"]["bytes"]


def test_a_byte_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Just enough memory is enough; what is missing is told to the byte."""
    path = str(require_shared(KWS))
    memory = analysis(capsys, path, "--board", "cortex-m4")["memory"]
    ram, flash = memory["ram"]["needs"], memory["flash"]["needs"]
    enough = board(tmp_path / "enough", ram_bytes=ram, flash_bytes=flash)
    data = analysis(capsys, path, "--board", enough)
    assert data["fits"] and data["misfits"] == data["remedies"] == []
    for kind, short in (("ram", 1), ("flash", 1000)):
        sizes = {"ram_bytes": ram, "flash_bytes": flash}
        sizes[f"{kind}_bytes"] -= short
        tight = board(tmp_path / kind, **sizes)
        data = analysis(capsys, path, "--board", tight, status=1)
        assert data["memory"][kind]["short"] == short and not data["fits"]
        (text,) = data["misfits"]
        assert text.lower().startswith(f"short by {short:,} bytes of {kind}: needs ")
        assert call(["analyze", path, "--board", tight]) == 1
        assert text in capsys.readouterr().out


def test_remedies_are_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option's sizes are those that it has when it is given; the best comes first."""
    path = require_shared("models/mlperf_tiny/vww_96_int8.tflite")
    tight = board(tmp_path / "b", ram_bytes=20000, flash_bytes=30000)
    arguments = (str(path), "--board", tight, "--opt-level", "1", "--io-type", "float")
    data = analysis(capsys, *arguments, status=1)
    by_name = {remedy["what"]: remedy for remedy in data["remedies"]}
    assert {"--opt-level 3", "--io-type native"} <= set(by_name)
    missing = [r["ram"]["short"] + r["flash"]["short"] for r in data["remedies"]]
    assert missing == sorted(missing)
    now = data["memory"]["ram"]["short"] + data["memory"]["flash"]["short"]
    assert all(m < now for m in missing)
    options = {
        "--opt-level 3": CompileOptions(opt_level=3, io_type="float"),
        "--io-type native": CompileOptions(opt_level=1),
        "--optimize ram": CompileOptions(opt_level=1, io_type="float", optimize="ram"),
        "--optimize flash": CompileOptions(opt_level=1, io_type="float", optimize="flash"),
    }
    for name, remedy in by_name.items():
        if name in options:
            tried = aotgen.api.analyze(path, load_board(tight), options[name])
            assert remedy["flash"]["needs"] == tried["flash_bytes"], name
            assert remedy["ram"]["needs"] == tried["arena_bytes"] + tried["api"]["ctx_bytes"]
    assert by_name["--weights bin, mapped from memory beside the flash"]["flash"]["needs"] == (
        data["flash_bytes"] - data["weights_bytes"]
    )


def test_no_remedy(tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tight = board(tmp_path / "b", base="host", ram_bytes=1)
    assert call(["analyze", str(small), "--board", tight]) == 1
    told = capsys.readouterr().out
    assert "would help  " in told and "still short by" in told.splitlines()[-1]


def test_a_core_has_no_limits(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever takes a core for a board learns that nothing was compared."""
    assert call(["analyze", str(require_shared(KWS)), "--board", "cortex-m4"]) == 0
    assert "fits        yes: the board sets no limits" in capsys.readouterr().out.splitlines()


def test_external_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes weights and arena where they alone are too much."""
    path, sizes = str(require_shared(KWS)), {"ram_bytes": 10000, "flash_bytes": 20000}
    roomy = board(tmp_path / "roomy", external_bytes=1 << 20, **sizes)
    assert call(["analyze", path, "--board", roomy]) == 0
    (fits,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("fits"))
    assert "yes, with weights of" in fits and fits.endswith("in external memory")
    assert "arena of" in fits
    data = analysis(capsys, path, "--board", board(tmp_path / "none", **sizes), status=1)
    assert len(data["misfits"]) == 2


BUFFERS = [
    Buffer("x", 0, 40, 0, 1),
    Buffer("scratch 1", 40, 20, 1, 1),
    Buffer("z" * 60, 0, 20, 2, 3),
]


def test_chart() -> None:
    assert arena_chart(BUFFERS, 60, 4, width=4, height=3) == (
        "60 |.#..\n40 |aa..\n20 |aabb\n 0 +----\n    layers 0 to 3"
    )
    wide = arena_chart(BUFFERS, 60, 4, width=2, height=3)
    assert wide == "60 |#.\n40 |a.\n20 |ab\n 0 +--\n    layers 0 to 3, 2 a column"
    assert arena_chart([], 0, 4) == "(the arena is empty)"


def test_table() -> None:
    lines = arena_table(BUFFERS).splitlines()
    assert lines[1].split() == ["a", "x", "0", "40", "0..1"]
    assert lines[2].split() == ["#", "scratch", "1", "40", "20", "1..1"]
    assert lines[3].split() == ["b", "z" * 45 + "...", "0", "20", "2..3"]


def test_arena_is_printed_on_demand(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["analyze", str(small)]) == 0
    assert "offset" not in capsys.readouterr().out
    assert call(["analyze", str(small), "--arena"]) == 0
    told = capsys.readouterr().out
    assert "offset" in told and "layers 0 to" in told


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot(small: Path, tmp_path: Path, suffix: str) -> None:
    require_module("matplotlib")
    out = tmp_path / f"arena{suffix}"
    contents = set()
    for _ in range(2):
        assert call(["analyze", str(small), "--plot", str(out)]) == 0
        contents.add(out.read_bytes())
    assert len(contents) == 1


def test_plot_mistakes(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("matplotlib")
    for place, words in (("arena", "which picture"), ("a.odt", "format"), ("no/a.png", "write")):
        assert call(["analyze", str(small), "--plot", str(tmp_path / place)]) == 2
        assert words in capsys.readouterr().err
