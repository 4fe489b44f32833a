"""``aotgen tune`` and ``aotgen journal``: what they print, and what a user can get wrong."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path

import models
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError, UsageError
from aotgen.report.tuning import TuneDisplay
from aotgen.tune import run
from aotgen.tune.journal import Journal
from aotgen.tune.outcome import Candidate
from support import require_module
from tests.tune.fake_measurer import FakeMeasurer

Hook = Callable[[int, Candidate], None]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Callable[[Hook | None], list[FakeMeasurer]]:
    """Puts a board that takes no time in the place of this computer."""

    def place(before: Hook | None = None) -> list[FakeMeasurer]:
        made: list[FakeMeasurer] = []

        def make(*arguments: object) -> FakeMeasurer:
            made.append(FakeMeasurer(before=before))
            made[-1].warnings.append("the governor could not be set")
            return made[-1]

        monkeypatch.setattr(run, "make_measurer", make)
        return made

    return place


def tune(model: Path, *more: str) -> int:
    journal = model.with_name("j.jsonl")
    words = ["tune", str(model), "--board", "host-scalar", "--journal", str(journal)]
    return call([*words, "--tuner", "random", "--no-network", *more])


def test_a_run(
    model: Path, board: Callable[..., list[FakeMeasurer]], capsys: pytest.CaptureFixture[str]
) -> None:
    made = board()
    assert tune(model, "--trials", "20") == 0
    told = capsys.readouterr()
    done = [line for line in told.err.splitlines() if line.endswith("Done.")]
    assert [line[:10] for line in done] == ["[Task 1/2]", "[Task 2/2]"]
    assert all(" GFLOPS | Progress: (" in line for line in done)
    assert "aotgen: warning: the governor could not be set" in told.err
    assert told.out.splitlines()[0].split()[:3] == ["task", "title", "template"]
    assert "20 candidates, 20 of them measured now, are in" in told.out
    assert made[0].closed
    assert len(Journal(model.with_name("j.jsonl")).records()) == 20
    assert tune(model, "--trials", "20", "--quiet") == 0
    told = capsys.readouterr()
    assert "20 candidates, 0 of them measured now" in told.out
    assert told.err == ""


def test_json(
    model: Path, board: Callable[..., list[FakeMeasurer]], capsys: pytest.CaptureFixture[str]
) -> None:
    board()
    assert tune(model, "--trials", "20", "--json", "--quiet", "--tasks", "2") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["trials"], data["measured"], data["interrupted"]) == (20, 20, False)
    (task,) = data["tasks"]
    records = [r for r in Journal(model.with_name("j.jsonl")).records() if r.status == "ok"]
    assert task["index"] == 2
    assert task["seconds"] == min(r.seconds or 1.0 for r in records)


def test_interrupted(
    model: Path, board: Callable[..., list[FakeMeasurer]], capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(count: int, candidate: Candidate) -> None:
        if count == 11:
            raise KeyboardInterrupt

    board(stop)
    assert tune(model, "--trials", "20") == 130
    told = capsys.readouterr()
    assert "the same command goes on from there" in told.err.splitlines()[-1]
    assert "11 of them measured now" in told.out
    board()
    assert tune(model, "--trials", "20") == 0
    assert "20 candidates, 9 of them measured now" in capsys.readouterr().out


def test_interrupted_before_the_search(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "Tunable", stop)
    assert tune(model) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "aotgen: error: interrupted"


def test_the_terminal_is_given_back(model: Path) -> None:
    """A display in place hides the cursor; also a run that fails at once must close it."""
    closed = []

    class Display(TuneDisplay):
        def close(self) -> None:
            closed.append(True)

    with pytest.raises(UsageError, match="is no journal"):
        aotgen.tune(model, board="host-scalar", journal=model, display=Display())
    assert closed


def test_a_lost_board(
    model: Path, board: Callable[..., list[FakeMeasurer]], capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(count: int, candidate: Candidate) -> None:
        if count == 11:
            raise BoardError("the board is gone", remedy="look after it")

    board(leave)
    assert tune(model, "--trials", "20") == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("aotgen: error: the board is gone")
    assert len(Journal(model.with_name("j.jsonl")).records()) == 11


def test_the_list_of_tasks(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", str(model), "--board", "host-scalar", "--list-tasks"]
    assert call(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["task", "title"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["1", "matmul", "2x8"],
        ["2", "matmul", "2x16"],
    ]
    assert call([*arguments, "--json", "--tasks", "relu"]) == 0
    (task,) = json.loads(capsys.readouterr().out)
    assert (task["task"], task["calls"], task["macs"]) == (1, 1, 2 * 8 * 16)
    assert task["templates"] == ["matmul_gemm"] and task["points"] > 100
    assert call([*arguments, "--json", "--tasks", task["key"]]) == 0
    assert json.loads(capsys.readouterr().out)[0]["key"] == task["key"]
    assert call([*arguments, "--json", "--tasks", "1-2", "--tasks", "x4$"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [t["task"] for t in found] == [1, 2]
    assert sum(t["share"] for t in found) == pytest.approx(1)


BAD = {
    "no journal": ([], "a run needs a journal"),
    "trials": (["--journal", "j", "--trials", "0"], "--trials must be 1 to 1000000000"),
    "tuner": (["--journal", "j", "--tuner", "best"], "use one of xgb"),
    "repeat": (["--journal", "j", "--repeat", "0"], "--repeat must be more than 0"),
    "repeats": (["--journal", "j", "--repeat", "65"], "repeat must be 1 to 64"),
    "timeout": (["--journal", "j", "--timeout", "nan"], "--timeout must be more than 0"),
    "seconds": (["--journal", "j", "--budget-seconds", "-1"], "--budget-seconds"),
    "board": (["--journal", "j", "--board", "rk3999"], "did you mean rk3399"),
    "task number": (["--journal", "j", "--tasks", "3"], "there are tasks 1 to 2"),
    "task digits": (["--journal", "j", "--tasks", "9" * 5000], "there are tasks 1 to 2"),
    "no task": (["--journal", "j", "--tasks", ""], "names none of the 2 tasks"),
    "task range": (["--journal", "j", "--tasks", "2-1"], "there are tasks 1 to 2"),
    "task name": (["--journal", "j", "--tasks", "conv"], "names none of the 2 tasks"),
    "task expression": (["--journal", "j", "--tasks", "(x"], "no regular expression"),
    "task repeats": (["--journal", "j", "--tasks", "x{99999999999}"], "no regular expression"),
    "calls": (["--journal", "j", "--number", "9" * 400], "number must be 0 to 1000000000"),
    "device": (["--journal", "/dev/zero"], "/dev/zero is no regular file"),
    "folder": (["--journal", "net.onnx/j.jsonl"], "cannot read journal"),
    "photo": (["--journal", "net.onnx"], "net.onnx is no journal"),
    "packed": (["--journal", "j.jsonl.xz"], "can only be read"),
    "runner": (["--journal", "j", "--runner", "nowhere"], "there is no runner 'nowhere'"),
    "runners": (["--journal", "j", "--runner", "local,"], "is malformed"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input(
    case: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    arguments, word = BAD[case]
    assert call(["tune", model.name, "--tuner", "random", *arguments]) == 2
    told = capsys.readouterr()
    error = told.err.splitlines()[-1]
    assert error.startswith("aotgen: error: ") and word in error
    assert told.out == ""


def test_nothing_to_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnx import helper

    path = tmp_path / "relu.onnx"
    node = helper.make_node("Relu", ["x"], ["y"])
    path.write_bytes(models.model([node], {"x": (4,)}, {"y": (4,)}).SerializeToString())
    assert call(["tune", str(path), "--list-tasks"]) == 2
    assert "nothing to tune" in capsys.readouterr().err


def test_without_xgboost(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def lacking(name: str, *arguments: object, **more: object) -> object:
        if name == "xgboost":
            raise ImportError(name)
        return real(name, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", lacking)
    journal = model.with_name("j.jsonl")
    arguments = ["tune", str(model), "--board", "host-scalar", "--journal", str(journal)]
    assert call([*arguments, "--trials", "2"]) == 2
    assert "pip install aotgen[tune]" in capsys.readouterr().err


class TestJournal:
    @pytest.fixture
    def file(
        self,
        model: Path,
        board: Callable[..., list[FakeMeasurer]],
        capsys: pytest.CaptureFixture[str],
    ) -> Path:
        board()
        assert tune(model, "--trials", "20", "--quiet") == 0
        capsys.readouterr()
        return model.with_name("j.jsonl")

    def test_best(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call(["journal", "best", str(file)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3
        assert call(["journal", "best", str(file), "--json", "--task", "relu"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        known = [r for r in Journal(file).records() if "relu" in r.title]
        assert row["trials"] == len(known)
        assert row["best"]["seconds"] == min(r.seconds or 1.0 for r in known)

    def test_show(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        records = Journal(file).records()
        crashed = [r for r in records if r.status == "crash"]
        arguments = ["journal", "show", str(file), "--board", "host-scalar"]
        assert call([*arguments, "--status", "crash"]) == 0
        assert capsys.readouterr().out.count("SIGSEGV") == len(crashed)
        assert call([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == [json.loads(r.line()) for r in records]
        assert call([*arguments, "--status", "good"]) == 2
        assert "use one of ok, render" in capsys.readouterr().err

    def test_merge(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = file.with_name("all.jsonl")
        with file.open("a") as broken:
            broken.write("not a record\n")
        assert call(["journal", "merge", str(file), str(file), "-o", str(out)]) == 0
        told = capsys.readouterr()
        assert "20 records of 2 tasks" in told.out
        assert "1 line is no record" in told.err
        key = {r.line() for r in Journal(file).records()}
        assert {r.line() for r in Journal(out).records()} == key
        assert call(["journal", "merge", str(file), "-o", str(out)]) == 2
        assert "--force" in capsys.readouterr().err
        first = out.read_bytes()
        assert call(["journal", "merge", str(out), str(file), "-o", str(out), "--force"]) == 0
        assert out.read_bytes() == first

    def test_merge_writes_files_only(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for place in ("/dev/null", str(file.parent)):
            assert call(["journal", "merge", str(file), "-o", place, "--force"]) == 2
            assert place in capsys.readouterr().err
        assert Path("/dev/null").is_char_device()
        assert not list(file.parent.glob(".*.partial"))

    def test_a_strangers_journal(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = json.loads(Journal(file).records()[0].line())
        strange = {**data, "title": "a\n\x1b[2J", "message": "b\r\x1b]0;c"}
        file.write_text(json.dumps(strange) + "\n")
        for verb in ("best", "show"):
            assert call(["journal", verb, str(file)]) == 0
            out = capsys.readouterr().out
            assert "\x1b" not in out and "\r" not in out

    @pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
    def test_plot(self, file: Path, suffix: str) -> None:
        require_module("matplotlib")
        starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
        out = file.with_suffix(suffix)
        assert call(["journal", "plot", str(file), "-o", str(out)]) == 0
        first = out.read_bytes()
        assert first.startswith(starts[suffix])
        assert call(["journal", "plot", str(file), "-o", str(out)]) == 0
        assert out.read_bytes() == first

    def test_plot_mistakes(
        self,
        file: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        require_module("matplotlib")
        arguments = ["journal", "plot", str(file), "-o"]
        assert call([*arguments, str(file.with_suffix(".odt"))]) == 2
        assert "use .png, .svg or .pdf" in capsys.readouterr().err
        assert call([*arguments, str(file.parent / "no" / "p.png")]) == 2
        assert "cannot write" in capsys.readouterr().err
        assert call([*arguments, str(file.with_suffix(""))]) == 2
        assert "does not say which picture it is" in capsys.readouterr().err
        assert call([*arguments, str(file.with_suffix(".png")), "--task", "conv"]) == 2
        assert "no times to draw" in capsys.readouterr().err
        real = builtins.__import__

        def lacking(name: str, *words: object, **more: object) -> object:
            if name.split(".")[0] == "matplotlib":
                raise ImportError(name)
            return real(name, *words, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(builtins, "__import__", lacking)
        assert call([*arguments, str(file.with_suffix(".png"))]) == 2
        assert "pip install aotgen[report]" in capsys.readouterr().err
