"""Runs on a board that takes no time: deterministic, resumable, within their budget."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import models
import pytest
from onnx import helper

import aotgen
from aotgen.api import load, optimise
from aotgen.errors import BoardError, UsageError
from aotgen.options import CompileOptions
from aotgen.report.tuning import LineDisplay, TaskLine, TotalLine, TuneDisplay
from aotgen.target.board import load_board
from aotgen.tune.journal import Journal, Record
from aotgen.tune.outcome import Candidate, Outcome
from aotgen.tune.session import SearchOptions, Session
from aotgen.tune.task import Task, tasks_of
from tests.tune.fake_measurer import FakeMeasurer, fake_seconds

BOARD = load_board("host-scalar")


@cache
def tasks(folder: Path) -> list[Task]:
    path = folder / "net.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return tasks_of(optimise(load(path), CompileOptions()), BOARD.target())


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Task]]:
    return list(enumerate(tasks(tmp_path_factory.mktemp("model")), 1))


def session(
    some: list[tuple[int, Task]],
    path: Path,
    measurer: FakeMeasurer | None = None,
    display: TuneDisplay | None = None,
    **options: object,
) -> Session:
    search = SearchOptions(**{"trials": 40, "tuner": "random", **options})  # type: ignore[arg-type]
    return Session(some, measurer or FakeMeasurer(), Journal(path), BOARD, search, display)


def bests(done: Session) -> list[tuple[str, object, float | None]]:
    return [(r.template, r.config, r.seconds) for r in done.results()]


def undated(path: Path) -> list[Record]:
    return [replace(r, date="") for r in Journal(path).records()]


@pytest.mark.parametrize("tuner", ["xgb", "random", "grid", "ga"])
def test_a_run_is_deterministic_and_starts_with_the_default(
    some: list[tuple[int, Task]], tmp_path: Path, tuner: str
) -> None:
    if tuner == "xgb":
        from support import require_module

        require_module("xgboost")
    measurer = FakeMeasurer()
    one, two = (
        session(some, tmp_path / f"{n}.jsonl", m, tuner=tuner)
        for n, m in (("one", measurer), ("two", FakeMeasurer(8)))
    )
    assert not one.run() and not two.run()
    assert bests(one) == bests(two)
    assert undated(tmp_path / "one.jsonl") == undated(tmp_path / "two.jsonl")
    assert one.trials == len(measurer.measured) == 40
    for state in one.states:
        default = state.space.default()[0]
        assert state.first is not None and state.first.candidate.point == default
        measured = {c.point for c in measurer.measured if c.task is state.task}
        times = [t for p in measured if (t := fake_seconds(state.task, p)) is not None]
        assert state.best_seconds == min(times)
        assert len(measured) == state.trials, "a point was measured twice"


def _run_and_die(path: Path, folder: Path, after: int) -> None:
    def die(count: int, candidate: Candidate) -> None:
        if count == after:
            os.kill(os.getpid(), signal.SIGKILL)

    session(list(enumerate(tasks(folder), 1)), path, FakeMeasurer(before=die)).run()


@pytest.mark.parametrize("after", [5, 19, 33])
def test_a_killed_run_goes_on_to_the_same_end(
    some: list[tuple[int, Task]], tmp_path: Path, after: int
) -> None:
    whole = session(some, tmp_path / "whole.jsonl")
    whole.run()
    path = tmp_path / "killed.jsonl"
    context = multiprocessing.get_context("spawn")
    victim = context.Process(target=_run_and_die, args=(path, tmp_path, after))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    kept = len(Journal(path).records())
    # What the killed process had not written yet is at most its last batch.
    assert after - 8 < kept <= after
    with path.open("ab") as file:
        file.write(b'{"task":"half a reco')
    measurer = FakeMeasurer()
    rest = session(some, path, measurer)
    rest.run()
    assert bests(rest) == bests(whole)
    assert len(measurer.measured) == 40 - kept
    again = FakeMeasurer()
    session(some, path, again).run()
    assert again.measured == []


def test_an_interrupted_run_keeps_what_it_measured(
    some: list[tuple[int, Task]], tmp_path: Path
) -> None:
    def stop(count: int, candidate: Candidate) -> None:
        if count == 21:
            raise KeyboardInterrupt

    stopped = session(some, tmp_path / "j.jsonl", FakeMeasurer(before=stop))
    assert stopped.run()
    records = Journal(tmp_path / "j.jsonl").records()
    assert len(records) == stopped.trials == 21
    times = [r.seconds for r in records if r.task == some[0][1].key and r.seconds is not None]
    assert stopped.results()[0].seconds == min(times)
    whole = session(some, tmp_path / "whole.jsonl")
    whole.run()
    rest = session(some, tmp_path / "j.jsonl")
    assert not rest.run()
    assert bests(rest) == bests(whole)


def test_a_board_that_is_gone_costs_nothing_that_was_measured(
    some: list[tuple[int, Task]], tmp_path: Path
) -> None:
    def leave(count: int, candidate: Candidate) -> None:
        if count == 13:
            raise BoardError("the board is gone")

    with pytest.raises(BoardError):
        session(some, tmp_path / "j.jsonl", FakeMeasurer(before=leave)).run()
    assert len(Journal(tmp_path / "j.jsonl").records()) == 13


def test_nothing_is_lost_when_it_is_stopped_between_two_answers(
    some: list[tuple[int, Task]], tmp_path: Path
) -> None:
    class Impatient(TuneDisplay):
        def task(self, line: TaskLine) -> None:
            if line.trials == 5 and line.pending:
                raise KeyboardInterrupt

    stopped = session(some, tmp_path / "j.jsonl", display=Impatient())
    assert stopped.run()
    assert len(Journal(tmp_path / "j.jsonl").records()) == stopped.trials == 5


def test_warnings_come_at_once_and_once(some: list[tuple[int, Task]], tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    measurer = FakeMeasurer(before=lambda count, _: lose(count))

    def lose(count: int) -> None:
        if count == 9:
            measurer.warnings.append("board 1 is gone")

    class Listener(TuneDisplay):
        def note(self, text: str) -> None:
            told.append((len(measurer.measured), text))

    session(some, tmp_path / "j.jsonl", measurer, Listener()).run()
    assert told == [(16, "warning: board 1 is gone")]


def test_a_candidate_that_could_not_be_rendered_is_not_rendered_for_a_board_again(
    some: list[tuple[int, Task]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it end the run, whatever its template trips over."""

    def trip(*arguments: object) -> None:
        raise KeyError("mr")

    path = tmp_path / "j.jsonl"
    session(some[:1], path).run()
    records = [
        replace(r, status="render", seconds=None, times=(), kernel="")
        for r in Journal(path).records()
    ]
    path.write_text("".join(f"{r.line()}\n" for r in records))
    for template in some[0][1].templates():
        monkeypatch.setattr(type(template), "kernel", trip)
    measurer = FakeMeasurer()
    again = session(some[:1], path, measurer)
    again.run()
    assert measurer.measured == [] and again.trials == 40


def test_only_what_a_changed_template_recorded_is_measured_again(
    some: list[tuple[int, Task]], tmp_path: Path
) -> None:
    """Records of another kernel, kind or board do not answer for this one."""
    path = tmp_path / "j.jsonl"
    session(some, path).run()
    changes = [{"kernel": "0" * 16}, {"kind": "modelled"}, {"board": "other"}]
    records = Journal(path).records()
    stale = [r for r in records if r.status == "ok"][:3]
    lines = [
        replace(r, **changes[stale.index(r)]) if r in stale else r  # type: ignore[arg-type]
        for r in records
    ]
    path.write_text("".join(f"{r.line()}\n" for r in lines))
    measurer = FakeMeasurer()
    session(some, path, measurer).run()
    assert {c.point for c in measurer.measured} == {r.point for r in stale}


def test_budgets(some: list[tuple[int, Task]], tmp_path: Path) -> None:
    few = session(some, tmp_path / "a.jsonl", trials=None, trials_per_task=9)
    few.run()
    assert [r.trials for r in few.results()] == [9, 9]
    tired = session(some, tmp_path / "b.jsonl", trials=1000, early_stopping=10)
    tired.run()
    assert all(10 <= r.trials < 60 for r in tired.results())
    ticks = iter(range(100_000))
    options = SearchOptions(trials=1000, budget_seconds=200.0, tuner="random")
    short = Session(
        some,
        FakeMeasurer(),
        Journal(tmp_path / "c.jsonl"),
        BOARD,
        options,
        clock=lambda: float(next(ticks)),
    )
    short.run()
    assert 0 < short.trials < 100


def test_a_task_that_never_works_does_not_take_it_all(
    some: list[tuple[int, Task]], tmp_path: Path
) -> None:
    class Broken(FakeMeasurer):
        def _outcome(self, candidate: Candidate) -> Outcome:
            found = super()._outcome(candidate)
            if candidate.task is some[0][1]:
                return replace(found, status="crash", seconds=None, times=())
            return found

    done = session(some, tmp_path / "j.jsonl", Broken(), trials=160)
    done.run()
    broken, good = done.results()
    assert broken.seconds is None and broken.trials + good.trials == 160
    assert good.trials > 40


def test_a_small_space_is_exhausted(tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", ["x"], ["y"], "pool", kernel_shape=[2, 2])
    path = tmp_path / "pool.onnx"
    proto = models.model([pool], {"x": (1, 4, 6, 6)}, {"y": (1, 4, 5, 5)})
    path.write_bytes(proto.SerializeToString())
    found = tasks_of(optimise(load(path), CompileOptions()), BOARD.target())
    done = session([(1, found[0])], tmp_path / "a.jsonl", trials=100_000, tuner="grid")
    done.run()
    (state,) = done.states
    assert state.trials == len({*state.space.legal(), *state.space.default()[:1]}) > 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"trials": 10**400}, "--trials must be 1 to 1000000000"),
        ({"seed": 2**60}, "--seed must be 0 to 1000000000"),
        ({"trials": 0}, "--trials must be 1 to 1000000000"),
        ({"trials_per_task": -1}, "--trials-per-task"),
        ({"early_stopping": 0}, "--early-stopping"),
        ({"budget_seconds": float("nan")}, "--budget-seconds"),
        ({"tuner": "annealing"}, "use one of"),
        ({"seed": -1}, "--seed"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        SearchOptions(**options)  # type: ignore[arg-type]


def test_lines_look_as_users_know_them() -> None:
    line = TaskLine(1, 12, 2e6, False, 2e6 / 22.37e9, 2e6 / 52.19e9, 544, 1000, 406.592, True)
    assert str(line) == (
        "[Task  1/12]  Current/Best:   22.37/  52.19 GFLOPS | Progress: (544/1000) | 406.59 s Done."
    )
    pool = TaskLine(3, 4, 0, False, None, 12.5e-6, 7, 64, 1.0)
    assert str(pool) == ("[Task 3/4]  Current/Best:       -/  12.50 us | Progress: (7/64) | 1.00 s")
    total = TotalLine(120, 256, 34.2, 3725.0, 0.012, 0.009)
    assert str(total) == (
        "[Total] Progress: (120/256) | 34 s, about 1 h 02 min left | tasks 12.00 -> 9.000 ms"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_every_task_ends_with_a_line(
    some: list[tuple[int, Task]],
    tmp_path: Path,
    make: Callable[[], io.StringIO],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = make()
    display = LineDisplay(stream)
    session(some, tmp_path / "j.jsonl", display=display).run()
    display.close()
    last = stream.getvalue().splitlines()[-3:]
    assert "[Task 1/2]" in last[0] and "[Task 2/2]" in last[1]
    assert last[0].endswith("Done.") and last[1].endswith("Done.")
    assert last[2].startswith("[Total] Progress: (40/40)")


def test_the_function_keeps_the_name_that_it_shares_with_the_package() -> None:
    assert callable(aotgen.tune) and sys.modules["aotgen.tune"] is not aotgen.tune
