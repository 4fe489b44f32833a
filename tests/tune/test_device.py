"""The device program: each fault costs one candidate and is told by its name, right ones are timed.

On this computer, and under qemu where a board's cost model stands for time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aotgen.errors import BoardError
from aotgen.runner.base import Argument, LinkError, RunResult
from aotgen.runner.local import LocalRunner
from aotgen.runner.output import LineReader
from aotgen.runner.select import runner_for
from aotgen.target.board import load_board
from aotgen.tune import device
from aotgen.tune.builder import Builder, device_files
from aotgen.tune.measure import BoardMeasurer, MeasureOptions
from aotgen.tune.outcome import Candidate, Outcome
from tests.kernels.harness import WARNINGS
from tests.support import require_tool
from tests.sysfs_tree import SysfsTree
from tests.tune.planted import (
    BODIES,
    STATUS,
    conv_task,
    default_candidates,
    planted,
    planted_task,
)
from tests.tune.runners import HookedRunner

BOARD = load_board("host-scalar")
TASK = planted_task(BOARD.target())
QUICK = MeasureOptions(timeout=2, repeat=3, min_repeat_ms=0.5)
PATIENT = replace(QUICK, timeout=60)
"""For what a test itself ends."""


def devices(parents: Sequence[int]) -> list[int]:
    """Device programs that these processes have started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, rest = stat.read_text().rsplit(")", 1)
            if name.endswith("(device") and int(rest.split()[1]) in parents:
                found.append(int(stat.parent.name))
    return found


def hanging() -> list[int]:
    """The program's child that has the candidate under way, as soon as there is one; the one that
    puts the governor back is in a session of its own.
    """
    until = time.monotonic() + 60
    while time.monotonic() < until:
        children = devices(devices([os.getpid()]))
        with contextlib.suppress(ProcessLookupError):
            if found := [pid for pid in children if os.getsid(pid) != pid]:
                return found
        time.sleep(0.01)
    raise AssertionError("no candidate is under way")


def kill(programs: Sequence[int], number: signal.Signals) -> None:
    for pid in programs:
        os.kill(pid, number)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def builder(cache: Path) -> Builder:
    return Builder(BOARD, cache=cache)


def measured(measurer: BoardMeasurer, candidates: Sequence[Candidate]) -> list[Outcome]:
    """Outcomes in the order of the candidates, one for each."""
    with contextlib.closing(measurer):
        found = {id(o.candidate): o for o in measurer.measure(candidates)}
    assert len(found) == len(candidates)
    return [found[id(c)] for c in candidates]


def body(outcome: Outcome) -> str:
    return str(outcome.candidate.point.config["body"])


def check(outcomes: Sequence[Outcome]) -> None:
    assert {body(o): o.status for o in outcomes} == STATUS
    for outcome in outcomes:
        ok = outcome.status == "ok"
        assert ok == (outcome.seconds is not None) == bool(outcome.times)
        assert ok != bool(outcome.message) and "\n" not in outcome.message
        assert len(outcome.kernel) == 16


# ---- faults --------------------------------------------------------------------------------------


def test_faults(builder: Builder) -> None:
    outcomes = measured(BoardMeasurer(BOARD, LocalRunner(), QUICK, builder), planted(TASK, *BODIES))
    check(outcomes)
    by_body = {body(o): o for o in outcomes}
    right, slower = by_body["right"].seconds, by_body["slower"].seconds
    assert right is not None and slower is not None and 0 < right < slower < 1
    assert by_body["right"].seconds == min(by_body["right"].times)
    assert "changed its input" in by_body["input"].message
    assert "cut at" in by_body["cut"].message
    assert "signal 6" in by_body["abort"].message
    assert "stack" in by_body["stack"].message
    assert "error" in by_body["syntax"].message
    assert "nowhere" in by_body["unknown"].message


def test_faults_under_qemu(cache: Path) -> None:
    require_tool("qemu-aarch64", "aarch64-linux-gnu-gcc")
    board = load_board("rpi4")
    task = planted_task(board.target())
    measurer = BoardMeasurer(
        board, runner_for("qemu", board), MeasureOptions(timeout=0.4), Builder(board, cache=cache)
    )
    assert measurer.kind == "modelled"
    outcomes = measured(measurer, planted(task, *BODIES))
    check(outcomes)
    by_body = {body(o): o for o in outcomes}
    # A loop of 20000 turns, of some instructions each.
    more = [by_body[b].conditions["instructions"] for b in ("right", "slower")]
    assert 4 * 20000 < more[1] - more[0] < 10 * 20000
    assert (by_body["right"].seconds or 0) < (by_body["slower"].seconds or 0)


def test_a_sanitizer_finds_nothing(tmp_path: Path) -> None:
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    builder = Builder(BOARD, cache=tmp_path, flags=flags)
    options = MeasureOptions(timeout=10, repeat=2, min_repeat_ms=0.1, memory_bytes=0)
    bodies = ("right", "wrong", "cut", "half")
    convs = default_candidates(conv_task(BOARD.target()))
    outcomes = measured(
        BoardMeasurer(BOARD, LocalRunner(), options, builder), [*planted(TASK, *bodies), *convs]
    )
    expected = [STATUS[b] for b in bodies] + ["ok"] * len(convs)
    assert [o.status for o in outcomes] == expected


@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_no_warnings(compiler: str, tmp_path: Path) -> None:
    require_tool(compiler)
    texts = device_files()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    argv = [compiler, *WARNINGS, "-O2", "-c", *(name for name in texts if name.endswith(".c"))]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


def test_clang_builds_it(tmp_path: Path) -> None:
    require_tool("clang")
    measurer = BoardMeasurer(BOARD, LocalRunner(), QUICK, Builder(BOARD, "clang", cache=tmp_path))
    outcomes = measured(
        measurer, [*planted(TASK, "right", "nan"), *default_candidates(conv_task(BOARD.target()))]
    )
    assert [o.status for o in outcomes] == ["ok", "wrong"] + ["ok"] * (len(outcomes) - 2)


def test_memory_is_limited(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system, whatever a kernel asks it for; emulators ignore that."""
    asks = "void *volatile p = malloc((size_t)1 << 30); if (p == NULL) abort(); free(p);"
    monkeypatch.setitem(BODIES, "greedy", BODIES["right"] + asks)
    for limit, status in ((0, "ok"), (1 << 29, "crash")):
        options = replace(QUICK, memory_bytes=limit)
        (outcome,) = measured(
            BoardMeasurer(BOARD, LocalRunner(), options, builder), planted(TASK, "greedy")
        )
        assert outcome.status == status


# ---- timing --------------------------------------------------------------------------------------


def test_a_fixed_number_of_calls(builder: Builder) -> None:
    options = MeasureOptions(number=7, repeat=5)
    (outcome,) = measured(
        BoardMeasurer(BOARD, LocalRunner(), options, builder), planted(TASK, "right")
    )
    assert outcome.conditions["number"] == 7 and len(outcome.times) == 5
    assert outcome.seconds == min(outcome.times)


def test_slow_ones_are_abandoned(builder: Builder) -> None:
    measurer = BoardMeasurer(BOARD, LocalRunner(), QUICK, builder)
    measurer.best[TASK.key] = 1e-9
    (outcome,) = measured(measurer, planted(TASK, "slower"))
    assert outcome.status == "ok" and outcome.abandoned and len(outcome.times) == 1
    assert measurer.best[TASK.key] == 1e-9


def test_constants_are_copied(builder: Builder) -> None:
    """Calls go round about as many bytes as were asked for."""
    task = conv_task(BOARD.target())
    options = MeasureOptions(repeat=2, min_repeat_ms=0.1, rotate_bytes=1 << 20)
    candidates = [c for c in default_candidates(task) if c.point.template == "conv2d_direct"]
    (outcome,) = measured(BoardMeasurer(BOARD, LocalRunner(), options, builder), candidates)
    weights = 4 * (9 * 8 * 16 + 16)
    assert outcome.status == "ok"
    assert outcome.conditions["copies"] * weights == pytest.approx(1 << 20, rel=0.02)


def test_drift_has_the_timing_done_again(builder: Builder) -> None:
    """A sentinel that was much faster before says that the core has become slow."""
    measurer = BoardMeasurer(BOARD, LocalRunner(), QUICK, builder)
    measurer._device.sentinel_ns = 1.0
    (outcome,) = measured(measurer, planted(TASK, "right"))
    assert outcome.status == "ok"
    assert outcome.conditions["retimed"] == 3 and outcome.conditions["drift"] > 100


def test_the_board_is_read_and_its_governor_put_back(builder: Builder, tmp_path: Path) -> None:
    """Looked at while a candidate hangs, so however late the line that tells of it is read."""
    tree = SysfsTree(tmp_path)
    for cpu in range(2):
        tree.cpu(cpu, mhz=1500)
    tree.zone(0, 48.5)
    seen: list[list[str]] = []

    class Watching(HookedRunner):
        def at_line(self, run: int, text: str) -> None:
            if json.loads(text).get("begin") != 1:
                return
            seen.append(tree.governors())
            kill(hanging(), signal.SIGTERM)

    options = replace(PATIENT, sysfs_root=str(tmp_path))
    right, hang = measured(
        BoardMeasurer(BOARD, Watching(), options, builder), planted(TASK, "right", "hang")
    )
    assert (right.status, hang.status) == ("ok", "crash")
    assert right.conditions["clock_mhz"] == 1500
    assert right.conditions["temperature_c"] == 48.5
    assert seen == [["performance", "performance"]]
    assert tree.governors() == ["schedutil", "schedutil"]


# ---- what breaks off -----------------------------------------------------------------------------


def test_a_killed_program_goes_on(builder: Builder) -> None:
    """Killed in the middle of a candidate that hangs; the next time that alone is killed."""

    class Killed(HookedRunner):
        def at_line(self, run: int, text: str) -> None:
            if json.loads(text).get("begin") != 2:
                return
            if run == 1:
                kill(devices([os.getpid()]), signal.SIGKILL)
            else:
                kill(hanging(), signal.SIGTERM)

    runner = Killed()
    candidates = planted(TASK, "right", "wrong", "hang", "nan")
    outcomes = measured(BoardMeasurer(BOARD, runner, PATIENT, builder), candidates)
    assert [o.status for o in outcomes] == ["ok", "wrong", "crash", "wrong"]
    assert "signal 15" in outcomes[2].message
    assert runner.runs == 2


def test_a_lost_link_goes_on(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is lost again at once; nothing is measured twice."""
    monkeypatch.setattr(device, "PAUSES_S", (0.01,))
    begun: list[object] = []

    class Lossy(HookedRunner):
        def at_line(self, run: int, text: str) -> None:
            data = json.loads(text)
            if run == 2:
                raise LinkError("the link was lost")
            if "begin" in data:
                begun.append(data["begin"])
            if run == 1 and data.get("begin") == 1:
                raise LinkError("the link was lost")

    runner = Lossy()
    candidates = planted(TASK, "right", "slower", "nan")
    outcomes = measured(BoardMeasurer(BOARD, runner, QUICK, builder), candidates)
    assert [o.status for o in outcomes] == ["ok", "ok", "wrong"]
    assert runner.runs == 3 and sorted(map(str, begun)) == ["0", "1", "1", "2"]


def test_a_candidate_that_takes_the_board_with_it(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "PAUSES_S", (0.01,))

    class Dying(HookedRunner):
        def at_line(self, run: int, text: str) -> None:
            data = json.loads(text)
            if data.get("begin") == 1:
                raise LinkError("the link was lost")

    runner = Dying()
    candidates = planted(TASK, "right", "slower", "nan")
    outcomes = measured(BoardMeasurer(BOARD, runner, QUICK, builder), candidates)
    assert [o.status for o in outcomes] == ["ok", "link", "wrong"]
    assert outcomes[1].message == "the link was lost"


class Gone(LocalRunner):
    """A board that fails before anything runs, from the bundle of this number on."""

    def __init__(self, error: BoardError, works: int = 0) -> None:
        super().__init__()
        self.error = error
        self.works = works
        self.tries = 0

    def deploy(self, *programs: Path) -> None:
        if self.works > 0:
            self.works -= 1
            return super().deploy(*programs)
        self.tries += 1
        raise self.error


def test_a_board_that_is_gone(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "PAUSES_S", (0.01,))
    runner = Gone(LinkError("nothing listens"), works=1)
    measurer = BoardMeasurer(BOARD, runner, replace(QUICK, patience=1.0), builder)
    with contextlib.closing(measurer):
        assert [o.status for o in measurer.measure(planted(TASK, "right"))] == ["ok"]
        with pytest.raises(BoardError, match="nothing listens"):
            list(measurer.measure(planted(TASK, "right")))
    assert runner.tries > 3


def test_a_board_that_was_never_there_is_told_at_once(builder: Builder) -> None:
    runner = Gone(LinkError("nothing listens"))
    with pytest.raises(BoardError, match="nothing listens"):
        measured(BoardMeasurer(BOARD, runner, QUICK, builder), planted(TASK, "right"))
    assert runner.tries == 1


def test_a_full_disk_is_told_at_once(builder: Builder) -> None:
    runner = Gone(BoardError("the disk is full"))
    with pytest.raises(BoardError, match="the disk is full"):
        measured(BoardMeasurer(BOARD, runner, QUICK, builder), planted(TASK, "right"))
    assert runner.tries == 1


def test_whoever_stops_leaves_nothing(builder: Builder) -> None:
    measurer = BoardMeasurer(BOARD, LocalRunner(), PATIENT, builder)
    outcomes: Iterator[Outcome] = measurer.measure(planted(TASK, "right", "hang", "slower"))
    assert next(outcomes).status == "ok"
    outcomes.close()  # type: ignore[attr-defined]
    assert not devices([os.getpid()])
    folder = measurer._folder
    measurer.close()
    measurer.close()
    assert folder is not None and not folder.exists()


class Saying(LocalRunner):
    """Runs nothing and says that a program printed some lines."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines = lines

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = 60.0,
        on_line: LineReader | None = None,
    ) -> RunResult:
        assert on_line is not None
        for line in self.lines:
            on_line(line)
        return RunResult("", "", 0.0)


def test_lines_that_make_no_sense(builder: Builder) -> None:
    runner = Saying("a profile says hello", '{"case":0,"status":"ok"}')
    with pytest.raises(BoardError, match="makes no sense"):
        measured(BoardMeasurer(BOARD, runner, QUICK, builder), planted(TASK, "right"))


@pytest.mark.parametrize("times", ["[]", "[0]", "[NaN]", "[Infinity, 5]", "[-1]"])
def test_results_that_are_none(builder: Builder, times: str) -> None:
    """ "ok" without a time that can be true is not ok."""
    told = f'"status":"ok","message":"","times_ns":{times},"abandoned":false'
    runner = Saying(f'{{"case":0,"pid":1,{told}}}')
    (outcome,) = measured(BoardMeasurer(BOARD, runner, QUICK, builder), planted(TASK, "right"))
    assert outcome.status == "crash" and outcome.seconds is None and not outcome.times
