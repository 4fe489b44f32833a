"""Options that several verbs share are refused by all of them alike, before anything is read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import typer

from aotgen.cli.app import app
from aotgen.cli.main import call

COMPILING = {
    "check": ["check", "missing.onnx"],
    "analyze": ["analyze", "missing.onnx"],
    "compile": ["compile", "missing.onnx", "-o", "out"],
    "bundle": ["bundle", "missing.onnx", "-o", "out"],
    "tune": ["tune", "missing.onnx", "--journal", "out.jsonl"],
}
PLACING = {
    "run": ["run", "missing", "-i", "a.npz", "-o", "b.npz"],
    "validate": ["validate", "missing"],
    "bench": ["bench", "missing"],
    "compare": ["compare", "missing", "missing"],
}
CHOICES = {
    "--requant": ("requant mode 'x' does not exist; use one of tflm, litert", [*COMPILING]),
    "--io-type": ("io type 'x' does not exist; use one of native, float", [*COMPILING][1:]),
    "--optimize": (
        "optimize 'x' does not exist; use one of speed, ram, flash",
        [*COMPILING][1:],
    ),
    "--weights": ("weights 'x' does not exist; use one of c, asm, bin", ["compile", "bundle"]),
    "--device": ("device 'x' does not exist; use one of cpu, gpu, auto", ["compile"]),
    "--cores": ("cores 'x' does not exist; use one of big, little, all", [*PLACING]),
}


@pytest.mark.parametrize(
    ("verb", "option"), [(verb, option) for option, (_, verbs) in CHOICES.items() for verb in verbs]
)
def test_unknown_choices(
    verb: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call([*{**COMPILING, **PLACING}[verb], option, "x"]) == 2
    assert capsys.readouterr().err == f"aotgen: error: {CHOICES[option][0]}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--dim", "--shape"])
@pytest.mark.parametrize("value", ["0", str(2**31), "9" * 5000])
def test_sizes(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["check", "missing.onnx", option, f"x={value}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("is no dimension; use 1 to 2147483647")


def test_verbs_agree() -> None:
    """An option has one default and one help in all verbs, but for those that mean another thing:
    of a bundle, options name their model.
    """
    own = {
        "--board", "--journal", "--model", "--output", "--input", "--force", "--name", "--number",
        "--repeat", "--runner", "--threads",
    }  # fmt: skip
    of_a_model = {"--shape", "--dim", "--stream", "--time-axis"}
    found = defaultdict(set)
    for verb in (*COMPILING, *PLACING):
        for option in typer.main.get_command(app).commands[verb].params:  # type: ignore[attr-defined]
            (name,) = option.opts[-1:]
            if (
                name.startswith("--")
                and name not in own
                and not (verb == "bundle" and name in of_a_model)
            ):
                found[name].add((option.help, str(option.default), option.metavar))
    assert [name for name, told in found.items() if len(told) > 1] == []
    assert len(found) > 20
