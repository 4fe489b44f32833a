"""Bundles of candidates on a board over SSH: what is there is not sent again, and a lost link costs
no candidate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from aotgen.runner import ssh_files
from aotgen.runner.ssh import SshRunner
from aotgen.runner.ssh_files import LocalFile, RemoteFiles
from aotgen.target.board import load_board
from aotgen.tune import device
from aotgen.tune.builder import Builder
from aotgen.tune.measure import BoardMeasurer, MeasureOptions
from aotgen.tune.outcome import Outcome
from tests.runner.loopback import (
    Board,
    Proxy,
    free_port,
    kill_connections,
    running,
    second_sshd,
    wait_for,
)
from tests.support import require_tool
from tests.tune.planted import STATUS, conv_task, default_candidates, planted, planted_task

RPI4 = load_board("rpi4")
TASK = planted_task(RPI4.target())
OPTIONS = MeasureOptions(timeout=4, repeat=2, min_repeat_ms=0.2, rotate_bytes=1 << 16)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    require_tool("aarch64-linux-gnu-gcc")
    return Builder(RPI4, cache=tmp_path_factory.mktemp("cache"))


def measurer_on(runner: SshRunner, builder: Builder) -> BoardMeasurer:
    return BoardMeasurer(RPI4, runner, OPTIONS, builder)


def statuses(outcomes: list[Outcome]) -> dict[str, str]:
    return {str(o.candidate.point.config["body"]): o.status for o in outcomes}


def test_faults(board: Board, builder: Builder) -> None:
    bodies = ("right", "crash", "behind", "hang", "nan", "syntax", "slower")
    with contextlib.closing(measurer_on(board.runner(prefix=board.wrapper), builder)) as measurer:
        outcomes = list(measurer.measure(planted(TASK, *bodies)))
        runner = measurer._runner
        assert isinstance(runner, SshRunner) and runner._session is not None
        folder = Path(runner._session.folder)
        assert folder.exists()
    assert statuses(outcomes) == {b: STATUS[b] for b in bodies}
    assert len(outcomes) == len(bodies)
    wait_for(lambda: not folder.exists() and not running(str(folder)), 30)


def test_nothing_is_sent_twice(
    board: Board, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    upload: Callable[[RemoteFiles, LocalFile], None] = RemoteFiles._upload

    def counted(files: RemoteFiles, file: LocalFile) -> None:
        sent.append(file.path.name)
        upload(files, file)

    monkeypatch.setattr(ssh_files.RemoteFiles, "_upload", counted)
    convs, relu = default_candidates(conv_task(RPI4.target())), planted(TASK, "right")
    with contextlib.closing(measurer_on(board.runner(prefix=board.wrapper), builder)) as measurer:
        counts = []
        for candidates in (convs, relu, convs):
            assert {o.status for o in measurer.measure(candidates)} == {"ok"}
            counts.append(len(sent))
    # The program and its files, then other ones, then none.
    assert 0 < counts[0] < counts[1] == counts[2]


def test_a_cut_link_costs_nothing(
    board: Board, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "PAUSES_S", (0.1,))
    proxy = Proxy(board.port)
    bodies = ("right", "slower", "nan", "behind", "cut")
    runner = board.runner(board.config_at(tmp_path, proxy.port), prefix=board.wrapper)
    outcomes = []
    with (
        contextlib.closing(proxy),
        contextlib.closing(measurer_on(runner, builder)) as measurer,
    ):
        for outcome in measurer.measure(planted(TASK, *bodies)):
            if not outcomes:
                proxy.cut()
            outcomes.append(outcome)
    assert statuses(outcomes) == {b: STATUS[b] for b in bodies}
    assert len(outcomes) == len(bodies)


def test_a_restarted_sshd_costs_nothing(
    board: Board, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is away for a moment, too."""
    monkeypatch.setattr(device, "PAUSES_S", (0.3,))
    port = free_port()
    bodies = ("right", "slower", "nan", "behind", "cut")
    runner = board.runner(board.config_at(tmp_path, port), prefix=board.wrapper)
    outcomes: list[Outcome] = []
    sshd_config = (board.folder / "sshd_config").read_text().splitlines()
    variables = [line for line in sshd_config if line.startswith("SetEnv")]
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(contextlib.ExitStack())
        pid = first.enter_context(second_sshd(board, tmp_path, port, *variables))
        with contextlib.closing(measurer_on(runner, builder)) as measurer:
            for outcome in measurer.measure(planted(TASK, *bodies)):
                outcomes.append(outcome)
                if len(outcomes) == 1:
                    kill_connections(pid)
                    first.close()
                    servers.enter_context(second_sshd(board, tmp_path, port, *variables))
    assert statuses(outcomes) == {b: STATUS[b] for b in bodies}
    assert len(outcomes) == len(bodies)
