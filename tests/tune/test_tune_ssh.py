"""``aotgen tune`` over SSH: a model tuned, compiled and validated there; and with all that goes
wrong with candidates, boards and links, nothing lost but the candidate at fault.

The board is ../shared's loopback board, whose AArch64 programs run under an emulator. What is
compared between runs must not hang on its times: of the staged candidates each takes some times as
long as the next faster one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aotgen.cli.main import call
from aotgen.project import Project
from aotgen.runner.ssh import SshRunner
from aotgen.target.board import load_board
from aotgen.tune import device, run
from aotgen.tune.device import CaseResult, Device
from aotgen.tune.journal import Journal, by_task
from aotgen.tune.ranking import ranked
from tests.runner.loopback import (
    Board,
    free_port,
    kill_connections,
    running,
    running_board,
    second_sshd,
    wait_for,
)
from tests.support import require_module, require_tool, small_disk
from tests.tune import staged

RPI4 = load_board("rpi4")
KIND = "measured" if RPI4.runs_here else "emulated"
ROOT = Path(__file__).resolve().parents[2]

TASKS = 3
STAGED = ("--tuner", "random", "--repeat", "3", "--min-repeat-ms", "1", "--timeout", "2")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    require_tool("aarch64-linux-gnu-gcc", "cmake")
    with running_board(tmp_path_factory.getbasetemp().parent / "loopback-board.lock") as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def surroundings(
    board: Board, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.MonkeyPatch]:
    """The board's ssh configuration, and one cache of objects for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        patch.setenv("AOTGEN_SSH_CONFIG", str(board.config))
        patch.setenv("AOTGEN_SSH_WRAPPER", " ".join(board.wrapper))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield patch


def tune(model: Path, journal: Path, *words: str, runner: str = "ssh://board") -> int:
    return call(
        ["tune", str(model), "--board", "rpi4", "--runner", runner, "--journal", str(journal)]
        + [*words, "--json"]
    )


def measured_now(capfd: pytest.CaptureFixture[str]) -> int:
    """What the last run says that it measured."""
    return int(json.loads(capfd.readouterr().out)["measured"])


def best_points(journal: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """By key of a task, template and knobs of its fastest record."""
    tasks = by_task(Journal(journal).records())
    tops = {key: ranked(records)[0].record for key, records in tasks.items()}
    return {key: (r.template, dict(r.config)) for key, r in tops.items()}


# ---- a model from its file to a validated project ------------------------------------------------


def test_a_block_of_resnet18(
    board: Board, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require_module("xgboost")
    model, journal = staged.save(staged.block(16, 14), tmp_path / "m.onnx"), tmp_path / "j.jsonl"
    words = ("--trials", "24", "--repeat", "3", "--min-repeat-ms", "0.2")
    assert tune(model, journal, *words) == 0
    out = capfd.readouterr()
    found = json.loads(out.out)
    assert (found["trials"], found["measured"], found["network_ms"]) == (24, 24, [])
    if KIND == "emulated":
        assert "warning: times of an emulator say nothing about board rpi4" in out.err
    records = Journal(journal).records()
    assert {r.kind for r in records} == {KIND} and {r.status for r in records} == {"ok"}
    tasks = by_task(records)
    assert len(tasks) == TASKS and all(len(own) >= 8 for own in tasks.values())
    assert all(r.seconds == min(r.times) > 0 for r in records)
    # All of them are known now.
    assert tune(model, journal, *words) == 0
    assert measured_now(capfd) == 0

    out_dir = tmp_path / "project"
    arguments = ["compile", str(model), "--board", "rpi4", "--journal", str(journal)]
    assert call([*arguments, "-o", str(out_dir)]) == 0
    note = " (emulated)" if KIND == "emulated" else ""
    assert capfd.readouterr().out.splitlines()[0] == (
        f"tuned {TASKS}{note}, transferred 0, default 0 groups (journal j.jsonl)"
    )
    best = best_points(journal)
    layers = [e for e in Project(out_dir, RPI4).manifest["layers"] if e["schedule"] == "tuned"]
    assert {e["task"] for e in layers} == set(best)
    assert all(e["template"] in {r.template for r in tasks[e["task"]]} for e in layers)
    assert call(["validate", str(out_dir), "--runner", "ssh://board"]) == 0


@pytest.mark.slow
def test_candidates_are_timed_in_the_network(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What an emulator's times would not be worth, were it not for this test."""
    monkeypatch.setattr(SshRunner, "emulates", lambda self, machine: False)
    model, journal = staged.save(staged.block(16, 14), tmp_path / "m.onnx"), tmp_path / "j.jsonl"
    assert tune(model, journal, "--trials", "24", "--repeat", "3", "--min-repeat-ms", "0.2") == 0
    assert 2 <= len(json.loads(capfd.readouterr().out)["network_ms"]) <= 3
    records = Journal(journal).records()
    kinds = {key: {r.kind for r in own} for key, own in by_task(records).items()}
    assert list(kinds.values()) == TASKS * [{"measured", "network"}]


# ---- faults of candidates ------------------------------------------------------------------------


@dataclass(frozen=True)
class Calm:
    """A run that nothing disturbed.

    Attributes:
        model: file that was tuned.
        statuses: of every (task, knobs).
        best: see ``best_points``.
    """

    model: Path
    statuses: dict[tuple[str, str], str]
    best: dict[str, tuple[str, dict[str, Any]]]

    def check(self, journal: Path) -> None:
        """The journal has what that of this run has, each once."""
        assert statuses(journal) == self.statuses
        assert best_points(journal) == self.best


def statuses(journal: Path) -> dict[tuple[str, str], str]:
    """Of every (task, knobs)."""
    records = Journal(journal).records()
    found = {(r.task, f"{r.config['fault']} {r.config['wait']}"): r.status for r in records}
    assert len(found) == len(records), "a candidate was measured twice"
    return found


@pytest.fixture(scope="module")
def calm(surroundings: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    folder = tmp_path_factory.mktemp("calm")
    model, journal = staged.save(staged.block(4, 14), folder / "m.onnx"), folder / "j.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        staged.use(patch)
        assert tune(model, journal, *STAGED) == 0
    return Calm(model, statuses(journal), best_points(journal))


def test_a_candidate_at_fault_costs_itself(calm: Calm) -> None:
    assert len(calm.statuses) == TASKS * staged.POINTS
    for (_, name), status in calm.statuses.items():
        assert status == staged.STATUS[name.split()[0]], name
    fastest = ("staged", {"fault": "none", "wait": 0})
    assert list(calm.best.values()) == TASKS * [fastest]


# ---- a board of the test's own -------------------------------------------------------------------


class OwnBoard:
    """The loopback board behind an sshd that a test may do with as it likes.

    Attributes:
        folder: where programs lie there.
        config: ssh configuration that has it as ``Host board``.
    """

    def __init__(self, board: Board, place: Path, folder: Path) -> None:
        self.folder = folder
        self._board = board
        self._place = place
        self._port = free_port()
        self.config = board.config_at(place, self._port)
        self._pid = 0
        self._server = contextlib.ExitStack()

    def start(self, *lines: str) -> None:
        """Let it listen, with further lines of sshd_config."""
        own = (self._board.folder / "sshd_config").read_text().splitlines()
        variables = [f"{v} XDG_RUNTIME_DIR={self.folder}" for v in own if v.startswith("SetEnv")]
        server = second_sshd(self._board, self._place, self._port, *lines, *variables)
        self._pid = self._server.enter_context(server)

    def cut(self) -> None:
        """End the processes that serve connections."""
        kill_connections(self._pid)

    def stop(self) -> None:
        """The same, and nobody listens any more."""
        self._server.close()

    def log(self) -> str:
        return (self._place / "sshd.log").read_text()

    def is_clean(self) -> bool:
        """Whether nothing is left there and nothing runs."""
        return not list(self.folder.glob("aotgen-*")) and not running(str(self.folder))


@pytest.fixture
def only_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    staged.use(monkeypatch)
    monkeypatch.setattr(device, "PAUSES_S", (0.2,))


@pytest.fixture
def own(
    board: Board, only_staged: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OwnBoard]:
    """It is not started yet; whatever happened to it must have left nothing there."""
    folder = Path(tempfile.mkdtemp(prefix="own-board-"))
    folder.chmod(0o1777)
    made = OwnBoard(board, tmp_path, folder)
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(made.config))
    try:
        yield made
        wait_for(made.is_clean, 60)
    finally:
        made.stop()
        shutil.rmtree(folder)


def after_results(
    patch: pytest.MonkeyPatch, count: int, event: Callable[[], None]
) -> threading.Event:
    """Have something happen when boards have told so many results; set when it has."""
    take = Device._take
    results: list[object] = []
    happened = threading.Event()

    def taken(self: Device, line: str, seen: Any) -> tuple[int, CaseResult] | None:
        found = take(self, line, seen)
        if found is not None:
            results.append(found)
            if len(results) == count:
                event()
                happened.set()
        return found

    patch.setattr(Device, "_take", taken)
    return happened


# ---- the link ------------------------------------------------------------------------------------


def test_the_link_is_cut_in_a_bundle(
    own: OwnBoard, calm: Calm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "j.jsonl"
    own.start()
    happened = after_results(monkeypatch, 3, own.cut)
    assert tune(calm.model, journal, *STAGED) == 0
    assert happened.is_set()
    calm.check(journal)


def test_sshd_is_restarted(
    own: OwnBoard, calm: Calm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away first, and then lets nobody in for a moment, as while a board starts."""
    journal = tmp_path / "j.jsonl"
    own.start()

    def restart() -> None:
        time.sleep(0.5)
        own.start("AllowUsers nobody")
        wait_for(lambda: "not allowed" in own.log(), 60)
        own.stop()
        own.start()

    again = threading.Thread(target=restart)

    def stop() -> None:
        own.stop()
        again.start()

    happened = after_results(monkeypatch, 5, stop)
    assert tune(calm.model, journal, *STAGED) == 0
    again.join()
    assert happened.is_set()
    calm.check(journal)


def test_a_board_that_does_not_come_back(
    own: OwnBoard,
    calm: Calm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The same command goes on when it is there again."""
    impatient(monkeypatch)
    journal = tmp_path / "j.jsonl"
    own.start()
    with pytest.MonkeyPatch.context() as patch:
        happened = after_results(patch, 12, own.stop)
        assert tune(calm.model, journal, *STAGED) == 3
    assert happened.is_set()
    assert "aotgen: error: nothing listens at 127.0.0.1 port" in capfd.readouterr().err
    kept = len(Journal(journal).records())
    assert kept >= 12
    own.start()
    assert tune(calm.model, journal, *STAGED) == 0
    assert measured_now(capfd) == len(calm.statuses) - kept
    calm.check(journal)


def test_one_of_two_boards_is_lost(
    own: OwnBoard,
    board: Board,
    calm: Calm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The other one does its part."""
    impatient(monkeypatch)
    journal = tmp_path / "j.jsonl"
    lost = own.config.read_text().replace("Host board", "Host lost")
    own.config.write_text(board.config.read_text() + lost)
    own.start()
    happened = after_results(monkeypatch, 6, own.stop)
    assert tune(calm.model, journal, *STAGED, runner="ssh://board,ssh://lost") == 0
    assert happened.is_set()
    assert "warning: board 1 of the pool is gone: " in capfd.readouterr().err
    calm.check(journal)


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Boards are given up soon."""
    usual = run.measure_options
    patch.setattr(run, "measure_options", lambda *given: replace(usual(*given), patience=0.5))


# ---- full disks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_boards_disk_is_full(
    goes_on: bool,
    own: OwnBoard,
    calm: Calm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Others fill it once, and what the board keeps for later makes room; or they go on to."""
    journal = tmp_path / "j.jsonl"
    with small_disk("8m") as disk, contextlib.ExitStack() as filler:
        nowhere, own.folder = own.folder, disk
        own.start()

        def fill() -> None:
            assert list(disk.glob("aotgen-*/*-device"))
            loop = f"while cat /dev/zero >>{disk}/full; {str(goes_on).lower()}; do :; done"
            process = subprocess.Popen(["sh", "-c", loop], stderr=subprocess.DEVNULL)
            filler.callback(process.wait)
            filler.callback(process.kill)
            wait_for(lambda: os.statvfs(disk).f_bfree == 0, 60)

        happened = after_results(monkeypatch, 3, fill)
        status = tune(calm.model, journal, *STAGED)
        assert happened.is_set()
        if goes_on:
            assert status == 3
            error = capfd.readouterr().err.splitlines()[-1]
            assert re.search(rf"the disk of board@\S+ is full: .* in {disk}, ", error)
            assert 3 <= len(Journal(journal).records()) < len(calm.statuses)
            filler.close()
            (disk / "full").unlink()
            status = tune(calm.model, journal, *STAGED)
        assert status == 0
        wait_for(own.is_clean, 60)
        own.stop()
        own.folder = nowhere
    calm.check(journal)


def test_the_journals_disk_is_full(
    own: OwnBoard, calm: Calm, capfd: pytest.CaptureFixture[str]
) -> None:
    """The file ends with a whole record; the same command goes on when there is room."""
    own.start()
    with small_disk("12k") as disk:
        journal = disk / "j.jsonl"
        assert tune(calm.model, journal, *STAGED) == 2
        assert f"cannot write journal {journal}: No space left" in capfd.readouterr().err
        known = journal.read_text()
        assert not known or known.endswith("\n")
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        assert tune(calm.model, journal, *STAGED) == 0
        assert measured_now(capfd) == len(calm.statuses) - known.count("\n")
        calm.check(journal)


# ---- killed --------------------------------------------------------------------------------------


def test_killed_and_resumed(
    own: OwnBoard, calm: Calm, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL in a bundle: the board cleans up, and nothing that is known is measured again."""
    own.start()
    journal = tmp_path / "j.jsonl"
    arguments = ["tune", str(calm.model), "--board", "rpi4", "--runner", "ssh://board"]
    arguments += ["--journal", str(journal), *STAGED, "--quiet"]

    def lines() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    argv = [sys.executable, "-m", "tests.tune.staged", *arguments]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL) as victim:
        wait_for(lambda: lines() > staged.POINTS, 60)
        wait_for(lambda: bool(running("-device --cases")), 60)
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(60) == -signal.SIGKILL
    wait_for(own.is_clean, 60)
    kept = lines()
    assert kept < len(calm.statuses)
    assert tune(calm.model, journal, *STAGED) == 0
    assert measured_now(capfd) == len(calm.statuses) - kept
    calm.check(journal)
