"""Several boards: workers of a Dask scheduler that are killed, are too old or have no board, and a
pool of runners one of which dies.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError, UsageError
from aotgen.options import CompileOptions
from aotgen.runner.local import LocalRunner
from aotgen.target.board import Board, load_board
from aotgen.tune.cluster import ClusterMeasurer, retime_on_worker
from aotgen.tune.measure import BoardMeasurer, MeasureOptions, PoolMeasurer
from aotgen.tune.outcome import Candidate, Outcome
from aotgen.tune.run import Tunable
from aotgen.tune.session import record_of
from aotgen.tune.space import Space
from aotgen.tune.task import kernel_hash
from aotgen.tune.worker import RUNNER_VARIABLE, NetworkJob, resource_of, worker_argv
from support import require_module, require_tool
from tests.tune.planted import conv_task, default_candidates, planted, planted_task
from tests.tune.runners import FailingRunner

ROOT = Path(__file__).resolve().parents[2]
BOARD = load_board("host")
QUICK = MeasureOptions(repeat=2, min_repeat_ms=1.0, timeout=5.0)

# What runs a command of Dask in an environment that has no aotgen.
BARE = """
import sys
sys.modules["aotgen"] = None
from distributed.cli.{} import main
main()
"""


@pytest.fixture(scope="module", autouse=True)
def _needed() -> None:
    require_module("distributed")
    require_tool("cc")


def named(name: str) -> Board:
    """This computer under a name of its own: a kind of board that one test's workers have."""
    return replace(BOARD, name=name)


@contextmanager
def running(
    argv: Sequence[str], log: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its children, killed at the end."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with log.open("wb") as out:
        program = subprocess.Popen(
            argv,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )
    try:
        yield program
    finally:
        kill(program)


def kill(program: subprocess.Popen[bytes]) -> None:
    if program.poll() is None:
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


@contextmanager
def scheduler(
    folder: Path, words: Sequence[str] = ("--port", "8786"), **environment: str
) -> Iterator[str]:
    """The address of a scheduler, which has no aotgen: ``dask scheduler`` with these words, but
    another port than 8786.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    argv = [
        sys.executable,
        "-c",
        BARE.format("dask_scheduler"),
        "--host",
        "127.0.0.1",
        "--no-dashboard",
    ]
    argv += [port if word == "8786" else word for word in words]
    with running(argv, folder / "scheduler.log", **environment):
        until(lambda: answers(int(port)))
        yield f"tcp://127.0.0.1:{port}"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.05)


def dask_worker(address: str, board: Board, *words: str) -> list[str]:
    """A worker without our command."""
    return [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        *worker_argv(address, board),
        *words,
    ]


def our_worker(address: str, name: str) -> list[str]:
    return [sys.executable, "-m", "aotgen", "worker", address, "--board", "host", "--name", name]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scheduler(tmp_path_factory.mktemp("scheduler")) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    import distributed

    with distributed.Client(address, set_as_default=False) as found:
        yield found


def wait_for(client: Any, board: Board, count: int) -> dict[str, Any]:
    """The workers with a board, by address, as soon as there are so many."""

    def present() -> dict[str, Any]:
        facts = client.scheduler_info(n_workers=-1)["workers"]
        return {a: w for a, w in facts.items() if w["resources"].get(resource_of(board))}

    until(lambda: len(present()) == count)
    return present()


def statuses(outcomes: Sequence[Outcome]) -> dict[Candidate, str]:
    found = {o.candidate: o.status for o in outcomes}
    assert len(found) == len(outcomes), "a candidate has two outcomes"
    return found


def good_candidates() -> list[Candidate]:
    target = BOARD.target()
    found = planted(planted_task(target), "slower", "right", "crash")
    return [*found, *(c for n in (8, 16) for c in default_candidates(conv_task(target, n)))]


def test_a_killed_worker_costs_its_bundle(address: str, client: Any, tmp_path: Path) -> None:
    candidates = good_candidates()
    with closing(BoardMeasurer(BOARD, LocalRunner(), QUICK)) as alone:
        wanted = statuses(list(alone.measure(candidates)))
    with ExitStack() as stack:
        programs = [
            stack.enter_context(running(our_worker(address, name), tmp_path / name))
            for name in ("first", "second")
        ]
        wait_for(client, BOARD, 2)
        measurer = stack.enter_context(closing(ClusterMeasurer(address, BOARD, QUICK)))
        assert (measurer.kind, measurer.batch) == ("measured", 32)
        os.killpg(programs[1].pid, signal.SIGSTOP)  # its bundle lasts until it is killed
        outcomes = []
        for outcome in measurer.measure(candidates):
            if not outcomes:
                kill(programs[1])
            outcomes.append(outcome)
        assert statuses(outcomes) == wanted
        assert {o.conditions["board"] for o in outcomes} == {0.0}
        assert [w for w in measurer.warnings if "board 1 of the cluster is gone" in w]
        times = {
            o.candidate.point.config["body"]: o.seconds
            for o in outcomes
            if o.candidate.point.template == "planted"
        }
        assert times["right"] is not None and times["slower"] is not None
        assert 5 * times["right"] < times["slower"]
        assert measurer.best[candidates[0].task.key] == times["right"]


def test_a_bundle_that_kills_workers_is_taken_apart(tmp_path: Path) -> None:
    import distributed

    board = named("fragile")
    candidates = planted(planted_task(BOARD.target()), "hang", "right", "slower", "abort")
    allowed = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with ExitStack() as stack:
        address = stack.enter_context(scheduler(tmp_path, **allowed))
        stack.enter_context(running(dask_worker(address, board), tmp_path / "worker"))
        client = stack.enter_context(distributed.Client(address, set_as_default=False))
        wait_for(client, board, 1)
        measurer = stack.enter_context(closing(ClusterMeasurer(address, board, QUICK)))

        def murder() -> None:
            """Kill the worker, which Dask's nanny starts again, at the first part and at the first
            candidate of it alone: the hanging one.
            """
            for number in (0, 2):

                def at_it(suffix: str = f"-{number}") -> bool:
                    return any(
                        k.endswith(suffix) for ks in client.processing().values() for k in ks
                    )

                until(at_it)
                time.sleep(0.5)
                (pid,) = client.run(os.getpid).values()
                os.kill(pid, signal.SIGKILL)

        murderer = threading.Thread(target=murder, daemon=True)
        murderer.start()
        outcomes = list(measurer.measure(candidates))
        murderer.join(60)
    by_body = {o.candidate.point.config["body"]: o for o in outcomes}
    assert {body: o.status for body, o in by_body.items()} == {
        "hang": "crash",
        "right": "ok",
        "slower": "ok",
        "abort": "crash",
    }
    assert by_body["hang"].message == "1 workers were lost while one of them measured it alone"
    assert by_body["abort"].message.startswith("died from signal 6")


def test_a_worker_of_another_version(address: str, client: Any, tmp_path: Path) -> None:
    board = named("versions")
    old = tmp_path / "old.py"
    old.write_text("import aotgen\naotgen.__version__ = '0.0.1'\n")
    with ExitStack() as stack:
        good = dask_worker(address, board, "--no-nanny")
        stack.enter_context(running(good, tmp_path / "good"))
        wait_for(client, board, 1)
        measurer = stack.enter_context(closing(ClusterMeasurer(address, board, QUICK)))
        bare = [sys.executable, "-c", BARE.format("dask_worker"), address, "--no-dashboard"]
        bare += ["--no-nanny", "--resources", "board-bare=1"]
        stack.enter_context(running(bare, tmp_path / "bare"))
        other = stack.enter_context(running([*good, "--preload", str(old)], tmp_path / "other"))
        workers = wait_for(client, board, 2)
        with pytest.raises(BoardError, match=r"has aotgen 0\.0\.1") as caught:
            ClusterMeasurer(address, board, QUICK)
        assert aotgen.__version__ in str(caught.value)
        named_worker = re.search(r"worker (tcp://[\d.]+:\d+): it ", str(caught.value))
        assert named_worker is not None and named_worker[1] in workers
        wait_for(client, named("bare"), 1)
        with pytest.raises(BoardError, match=r"worker tcp://.* has no aotgen, or another version"):
            ClusterMeasurer(address, named("bare"), QUICK)
        # One that comes while others are at it ends itself, and costs nothing.
        found = statuses(list(measurer.measure(good_candidates())))
        assert sorted(set(found.values())) == ["crash", "ok"]
        assert [w for w in measurer.warnings if "has aotgen 0.0.1" in w]
        assert other.wait(60) == 0


def test_a_worker_whose_board_is_gone(address: str, client: Any, tmp_path: Path) -> None:
    require_module("paramiko")
    board = named("lost")
    with ExitStack() as stack:
        argv = dask_worker(address, board, "--no-nanny")
        stack.enter_context(running(argv, tmp_path / "good"))
        unreachable = {RUNNER_VARIABLE: "ssh://nobody@127.0.0.1:1"}
        lost = stack.enter_context(running(argv, tmp_path / "lost", **unreachable))
        wait_for(client, board, 2)
        options = replace(QUICK, patience=0.5)
        measurer = stack.enter_context(closing(ClusterMeasurer(address, board, options)))
        found = statuses(list(measurer.measure(good_candidates())))
        assert sorted(set(found.values())) == ["crash", "ok"]
        assert [w for w in measurer.warnings if "127.0.0.1" in w and "other workers do" in w]
        assert lost.wait(60) == 0


def test_nobody_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BoardError) as caught:
        ClusterMeasurer(address, named("rare"), QUICK, start_s=0.5)
    assert "no worker with the resource board-rare" in str(caught.value)
    assert f"aotgen worker {address} --board rare" in str(caught.value)
    with pytest.raises(BoardError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1;"):
        ClusterMeasurer("tcp://127.0.0.1:1", BOARD, QUICK, start_s=0.5)
    with pytest.raises(UsageError, match="scheduler 'desk' is malformed"):
        ClusterMeasurer("desk", BOARD, QUICK)
    assert call(["worker", "desk", "--board", "host"]) == 2
    assert call(["worker", "tcp://desk:8786", "--board", "nowhere"]) == 2
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'aotgen\[cluster\]'"):
        ClusterMeasurer(address, BOARD, QUICK)


def test_the_commands_of_the_documentation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The three commands of docs/tuning.md, with this computer for all of theirs."""
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    section = text.split("## Several boards")[1].split("\n## ")[0]
    block = section.split("```sh\n")[1].split("```")[0]
    commands = [shlex.split(line) for line in block.splitlines() if not line.startswith("#")]
    first, second, third = commands
    assert first[:2] == ["dask", "scheduler"] and second[:2] == ["aotgen", "worker"]
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    with scheduler(tmp_path, first[2:]) as address:
        board = second[second.index("--board") + 1]
        runner = second[second.index("--runner") + 1]
        here = {second[2]: address, board: "host", runner: "local", third[2]: str(model)}
        worker = [here.get(word, word) for word in second[1:]]
        tune = [here.get(word, word) for word in third[1:]]
        journal = tmp_path / tune[tune.index("--journal") + 1]
        tune[tune.index("--journal") + 1] = str(journal)
        argv = [sys.executable, "-m", "aotgen", *worker]
        with running(argv, tmp_path / "worker"):
            assert call([*tune, "--trials", "4", "--tuner", "random", "--quiet"]) == 0
            timed = retime_on_worker(address, network_job(model))
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [r["status"] for r in records if r["kind"] == "measured"] == 4 * ["ok"]
    assert len(timed.ms) == 2 and min(timed.ms) > 0
    capsys.readouterr()
    assert call([*tune, "--runner", "local"]) == 2
    assert "--runner and --scheduler exclude each other" in capsys.readouterr().err


def network_job(model: Path) -> NetworkJob:
    """Two candidates of each task, told to be about as fast."""
    tunable = Tunable(model, BOARD, CompileOptions())
    records = []
    for task in tunable.tasks:
        space = Space(task)
        points = [space.default()[0]]
        points.append(next(p for p in space.neighbours(points[0])))
        for number, point in enumerate(points):
            template = task.template(point.template)
            assert template is not None
            kernel = kernel_hash(task.kernel(template, point.config))
            seconds = 1e-5 + 1e-6 * number
            outcome = Outcome(Candidate(task, point), "ok", seconds, (seconds,), kernel=kernel)
            records.append(record_of(task, outcome, board="host", features={}, tuner="test"))
    keys = tuple(task.key for task in tunable.tasks)
    data = model.read_bytes()
    return NetworkJob(model.name, data, BOARD, CompileOptions(), keys, tuple(records), "test")


def test_a_pool_with_a_runner_that_dies() -> None:
    candidates = good_candidates()
    one = replace(QUICK, batch=2)
    with closing(
        PoolMeasurer(
            [BoardMeasurer(BOARD, FailingRunner(2), one), BoardMeasurer(BOARD, LocalRunner(), one)]
        )
    ) as pool:
        first = statuses(list(pool.measure(candidates)))
        second = statuses(list(pool.measure(candidates)))
        assert first == second and len(first) == len(candidates)
        assert [w for w in pool.warnings if "board 0 of the pool is gone: the board burns" in w]
    last = PoolMeasurer([BoardMeasurer(BOARD, FailingRunner(2), one)])
    with closing(last), pytest.raises(BoardError, match="the board burns"):
        list(last.measure(candidates))
