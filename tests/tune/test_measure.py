"""Measurers: real kernels built, cached, timed; several boards that share the work."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.runner.base import RunResult
from aotgen.runner.local import LocalRunner
from aotgen.runner.select import runner_for
from aotgen.schedule.base import Config
from aotgen.scratch import own_folder
from aotgen.target.board import load_board
from aotgen.tune import builder as builder_module
from aotgen.tune import measure
from aotgen.tune.builder import Builder, _Cache
from aotgen.tune.bundle import Bundler
from aotgen.tune.measure import BoardMeasurer, MeasureOptions, make_measurer
from aotgen.tune.outcome import Candidate, Outcome
from aotgen.tune.pool import PoolMeasurer
from aotgen.tune.task import Point
from tests.support import require_tool, small_disk
from tests.tune.planted import BODIES, conv_task, default_candidates, planted, planted_task
from tests.tune.runners import FailingRunner

BOARD = load_board("host-scalar")
TASK = planted_task(BOARD.target())
QUICK = MeasureOptions(timeout=5, repeat=3, min_repeat_ms=0.5)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(scope="module")
def builder(cache: Path) -> Builder:
    return Builder(BOARD, cache=cache / "objects")


def test_real_kernels() -> None:
    """Every template's default is right and takes some time, on the widest vectors here."""
    board = load_board("host")
    candidates = default_candidates(conv_task(board.target()))
    with contextlib.closing(make_measurer(board, None, QUICK)) as measurer:
        assert measurer.kind == "measured"
        outcomes = list(measurer.measure(candidates))
    assert {o.candidate.point.template for o in outcomes} == {c.point.template for c in candidates}
    for outcome in outcomes:
        assert outcome.status == "ok", outcome
        assert outcome.seconds is not None and 1e-8 < outcome.seconds < 1e-2
        assert outcome.conditions["error"] < 1e-5


def test_modelled_time_is_the_same_again() -> None:
    require_tool("qemu-aarch64", "aarch64-linux-gnu-gcc")
    board = load_board("rpi4")
    found = []
    for _ in range(2):
        with contextlib.closing(make_measurer(board, "qemu")) as measurer:
            outcomes = list(measurer.measure(default_candidates(conv_task(board.target()))))
        assert all(o.status == "ok" and o.kind == "modelled" for o in outcomes)
        found.append({o.candidate.point.template: o.seconds for o in outcomes})
    assert found[0] == found[1]


def test_times_of_an_emulator() -> None:
    """Refused where they are all that there is, and never called measured."""
    require_tool("qemu-arm", "arm-linux-gnueabihf-gcc")
    board = load_board("rpi3b-armv7")
    with pytest.raises(UsageError, match=r"no cost model.*ssh"):
        make_measurer(board, "qemu")
    options = MeasureOptions(emulated=True, repeat=2, min_repeat_ms=0.1)
    with contextlib.closing(make_measurer(board, "qemu", options)) as measurer:
        task = planted_task(board.target())
        odd = Candidate(task, Point("planted", Config.of(body="none", twin=False)))
        failed, outcome = measurer.measure([*planted(task, "right"), odd])
        assert measurer.warnings == ["times of an emulator say nothing about board rpi3b-armv7"]
    assert outcome.status == "ok" and outcome.kind == "emulated"
    assert failed.status == "render" and failed.kind == "emulated"


# ---- building ------------------------------------------------------------------------------------


def test_equal_kernels_are_timed_once(builder: Builder) -> None:
    twin = Candidate(TASK, Point("planted", Config.of(body="right", twin=True)))
    candidates = [*planted(TASK, "right"), twin]
    with contextlib.closing(BoardMeasurer(BOARD, LocalRunner(), QUICK, builder)) as measurer:
        first, second = measurer.measure(candidates)
    assert first.candidate is not second.candidate
    assert first.times == second.times and first.kernel == second.kernel


def test_objects_are_kept(tmp_path: Path) -> None:
    bundle, _ = Bundler(BOARD).bundle(default_candidates(conv_task(BOARD.target())))
    for hits in (False, True):
        (tmp_path / f"build{hits}").mkdir()
        built = Builder(BOARD, cache=tmp_path / "cache")
        assert built.build(bundle, tmp_path / f"build{hits}").program is not None
        assert (built.misses == 0) == hits and bool(built.hits) == hits
    # Other flags are other objects.
    (tmp_path / "build").mkdir()
    other = Builder(BOARD, cache=tmp_path / "cache", flags=["-O1"])
    other.build(bundle, tmp_path / "build")
    assert other.hits == 0


def test_the_cache_stays_small(tmp_path: Path) -> None:
    """What was used last stays."""
    cache = _Cache(tmp_path)
    for n in range(4):
        (tmp_path / "made").write_bytes(bytes(100))
        cache.put(tmp_path / "made", f"0{n}.o")

    for n, age in enumerate((40, 30, 20, 10)):
        os.utime(tmp_path / "objects" / f"0{n}"[:2] / f"0{n}.o", (1e9 - age, 1e9 - age))
    assert cache.get("00.o") is not None
    cache.prune(250)
    assert [n for n in range(4) if cache.get(f"0{n}.o")] == [0, 3]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    built = Builder(BOARD, cache=tmp_path / "file" / "cache")
    bundle, _ = Bundler(BOARD).bundle(planted(TASK, "right"))
    assert built.build(bundle, tmp_path).program is not None


def test_a_compiler_that_hangs(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "COMPILE_TIMEOUT_S", 0.001)
    assert "more than 0.001 s" in builder_module.call(["sleep", "5"], Path("/"))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match="no-such-cc is not installed"):
        Builder(BOARD, "no-such-cc")


def test_a_malformed_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", 'gcc "-O2')
    with pytest.raises(ToolchainError, match=r"environment variable CC .* No closing quotation"):
        Builder(BOARD)


def test_a_bundle_made_elsewhere(builder: Builder) -> None:
    bundle, _ = Bundler(BOARD).bundle(planted(TASK, "right", "syntax", "wrong"))
    bundle = pickle.loads(pickle.dumps(bundle))
    with contextlib.closing(BoardMeasurer(BOARD, LocalRunner(), QUICK, builder)) as measurer:
        results = dict(measurer.run_bundle(bundle))
    assert {n: r.status for n, r in results.items()} == {0: "ok", 1: "build", 2: "wrong"}


@pytest.mark.parametrize(
    "options",
    [
        MeasureOptions(repeat=0),
        MeasureOptions(repeat=65),
        MeasureOptions(number=-1),
        MeasureOptions(timeout=0),
        MeasureOptions(min_repeat_ms=float("nan")),
        MeasureOptions(batch=0),
    ],
)
def test_options_that_make_no_sense(options: MeasureOptions) -> None:
    with pytest.raises(UsageError):
        make_measurer(BOARD, None, options)


def test_a_full_disk_is_no_fault_of_a_candidate(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's own files find no room: a record "build" would stay."""
    # A kernel that is in no cache.
    body = "/* " + os.urandom(8).hex() + " */" + BODIES["right"]
    monkeypatch.setitem(BODIES, "new", body)
    with (
        small_disk("64k") as disk,
        contextlib.closing(BoardMeasurer(BOARD, LocalRunner(), QUICK, builder)) as measurer,
    ):
        (disk / "others").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
        monkeypatch.setenv("TMPDIR", str(disk))
        with pytest.raises(ToolchainError, match=r"cannot write: No space left.*free space in"):
            list(measurer.measure(planted(TASK, "new")))


# ---- several boards ------------------------------------------------------------------------------


class Meeting(LocalRunner):
    """Waits in its first run until others are at theirs."""

    def __init__(self, place: threading.Barrier) -> None:
        super().__init__()
        self._place: threading.Barrier | None = place

    def run(self, *arguments: Any, **more: Any) -> RunResult:
        if self._place is not None:
            self._place.wait(60)
        self._place = None
        return super().run(*arguments, **more)


def pool_of(builder: Builder, *fails_at: int) -> PoolMeasurer:
    return PoolMeasurer([BoardMeasurer(BOARD, FailingRunner(n), QUICK, builder) for n in fails_at])


def measured(pool: PoolMeasurer, candidates: list[Candidate]) -> list[Outcome]:
    with contextlib.closing(pool):
        return list(pool.measure(candidates))


def test_a_pool_shares_the_work(builder: Builder) -> None:
    candidates = planted(TASK, *["right", "wrong", "slower", "nan"] * 3)
    place = threading.Barrier(2)
    boards = [BoardMeasurer(BOARD, Meeting(place), QUICK, builder) for _ in range(2)]
    outcomes = measured(PoolMeasurer(boards), candidates)
    assert {id(o.candidate) for o in outcomes} == {id(c) for c in candidates}
    assert len(outcomes) == len(candidates)
    assert {o.conditions["board"] for o in outcomes} == {0.0, 1.0}
    assert {o.status for o in outcomes} == {"ok", "wrong"}


def test_a_board_of_a_pool_is_lost(builder: Builder) -> None:
    """The others take its part."""
    candidates = planted(TASK, *["right", "wrong", "slower", "nan"] * 3)
    pool = pool_of(builder, 1, 99)
    outcomes = measured(pool, candidates)
    assert sorted(map(id, candidates)) == sorted(id(o.candidate) for o in outcomes)
    assert {o.conditions["board"] for o in outcomes} == {1.0}
    assert any("board 0 of the pool is gone: the board burns" in text for text in pool.warnings)
    assert pool.batch == 2 * QUICK.batch, "a run that goes on later has to propose the same"


def test_all_boards_of_a_pool_are_lost(builder: Builder) -> None:
    with pytest.raises(BoardError, match="the board burns"):
        measured(pool_of(builder, 1, 2), planted(TASK, *["right", "wrong", "slower"] * 4))


def test_pools_of_one_kind() -> None:
    with pytest.raises(UsageError, match="at least one"):
        PoolMeasurer([])
    with pytest.raises(UsageError, match="malformed"):
        make_measurer(BOARD, "local,,local")
    with contextlib.closing(make_measurer(BOARD, "local,local", QUICK)) as pool:
        assert isinstance(pool, PoolMeasurer) and pool.batch == 2 * QUICK.batch
        assert {o.status for o in pool.measure(planted(TASK, "right", "slower"))} == {"ok"}


def test_measured_and_modelled_do_not_mix() -> None:
    require_tool("qemu-aarch64", "aarch64-linux-gnu-gcc")
    board = load_board("rpi4")
    real = BoardMeasurer(board, LocalRunner(), QUICK)
    with pytest.raises(UsageError, match="all be real or all be emulated"):
        PoolMeasurer([real, BoardMeasurer(board, runner_for("qemu", board), QUICK)])


def test_boards_are_left_when_one_of_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorded(LocalRunner):
        closed = 0

        def close(self) -> None:
            Recorded.closed += 1
            super().close()

    monkeypatch.setattr(measure, "runner_for", lambda spec, board: Recorded())
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        make_measurer(BOARD, "a,b", MeasureOptions(compiler="no-such-compiler"))
    assert Recorded.closed == 1
    kinds = iter(["measured", "emulated"])
    monkeypatch.setattr(BoardMeasurer, "kind", property(lambda self: next(kinds)))
    with pytest.raises(UsageError, match="all be real or all be emulated"):
        make_measurer(BOARD, "a,b", QUICK)
    assert Recorded.closed == 3


def test_what_a_board_is_asked_for() -> None:
    """One of the fast cores, half of the memory, copies of constants within a sixteenth of it."""
    require_tool("aarch64-linux-gnu-gcc")

    class Remote(LocalRunner):
        name = "ssh"

    board = load_board("rk3399")
    asked = BoardMeasurer(board, Remote(), QUICK)._device.options
    assert asked.cpu == 5
    assert asked.memory_bytes == board.ram_bytes // 2
    assert asked.rotate_bytes == 32 << 20
    small = BoardMeasurer(board, Remote(), MeasureOptions(rotate_bytes=1 << 20, cpu=0))
    assert small._device.options.rotate_bytes == 1 << 20 and small._device.options.cpu == 0


def test_what_a_killed_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what one that lives has, nor what is not of this kind."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    left, other = tmp_path / "mine-left", tmp_path / "others"
    for folder in (left, other):
        folder.mkdir()
        (folder / "lock").write_text("")
        os.utime(folder, (1e9, 1e9))
    with own_folder("mine-") as first:
        assert not left.exists() and other.exists()
        os.utime(first, (1e9, 1e9))
        with own_folder("mine-") as second:
            assert first.exists() and first != second
    assert not first.exists() and not second.exists()
