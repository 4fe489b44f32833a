"""What Dask workers do for ``cluster``: build bundles with the compilers of their computer and run
them on the board beside it.

A worker has one board, named by a resource of the worker ("board-rk3399": 1) and reached as
``AOTGEN_RUNNER`` says. The scheduler in between unpickles the tasks that it hands on, but need not
have aotgen: all that it sees of them are ``pickle.loads`` and bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import aotgen
from aotgen.errors import AotgenError, BoardError, UsageError
from aotgen.runner.select import place_for
from aotgen.scratch import own_folder
from aotgen.target.board import Board, load_board
from aotgen.tune.bundle import Bundle
from aotgen.tune.device import CaseResult
from aotgen.tune.measure import BundleMeasurer, MeasureOptions, board_measurer
from aotgen.tune.outcome import Kind

if TYPE_CHECKING:
    from aotgen.options import CompileOptions
    from aotgen.tune.journal import Record
    from aotgen.tune.network import NetworkResult

RUNNER_VARIABLE = "AOTGEN_RUNNER"
"""Environment variable of a worker: how it reaches its board, as ``--runner``."""

LEAVE_S = 1.0
"""A worker that ends waits so long for its last report to be fetched."""

IDLE_S = 300.0
"""A worker that has had no bundle for so long leaves its board."""


@dataclass(frozen=True)
class Request:
    """What a worker is to do.

    Attributes:
        bundle: to build and run.
        options: how.
        kind: of the results that are wanted.
        best: by key of a task its best time known, see ``BundleMeasurer.best``.
    """

    bundle: Bundle
    options: MeasureOptions
    kind: Kind
    best: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        worker: address of the worker.
        results: (number of the case, its result); all of them unless there is an error.
        warnings: what the board said that makes times doubtful.
        error: why the rest is missing.
        leaves: the worker leaves the scheduler, since the error is its own.
    """

    worker: str
    results: tuple[tuple[int, CaseResult], ...]
    warnings: tuple[str, ...] = ()
    error: AotgenError | None = None
    leaves: bool = False


@dataclass(frozen=True)
class NetworkJob:
    """A network to be timed with the best candidates, see ``network.retime``.

    Attributes:
        name: of the model's file.
        model: what is in it.
        board: that it is for.
        options: of the compilation.
        keys: of the tasks that were tuned.
        records: of the journal, at least those of the tasks.
        tag: ``Record.tuner`` of the records that come of it.
    """

    name: str
    model: bytes
    board: Board
    options: CompileOptions
    keys: tuple[str, ...]
    records: tuple[Record, ...]
    tag: str


def resource_of(board: Board) -> str:
    """The resource of a worker that has such a board: Dask's resources are names with numbers."""
    return f"board-{board.name}"


def check_address(scheduler: str) -> None:
    """
    Raises:
        UsageError: it is no address of a scheduler.
    """
    kind, _, rest = scheduler.partition("://")
    if not kind or not rest:
        raise UsageError(f"scheduler {scheduler!r} is malformed", remedy="use tcp://host:8786")


def worker_argv(scheduler: str, board: Board, name: str | None = None) -> list[str]:
    """The arguments of ``dask worker`` for a worker with one board.

    Args:
        scheduler: its address.
        board: beside the worker.
        name: of the worker; None for one of Dask's own.
    """
    return [
        scheduler,
        *("--nworkers", "1", "--nthreads", "1"),
        # Dask would give it the memory of one core, which bundles of large layers do not fit into.
        *("--memory-limit", "0"),
        *("--resources", f"{resource_of(board)}=1"),
        *("--preload", "aotgen.tune.worker"),
        *(("--name", name) if name else ()),
        "--no-dashboard",
    ]


def dask_teardown(worker: Any) -> None:
    """Dask calls it when a worker ends that was started with ``--preload`` and this module."""
    _ROOM.leave()


class VersionError(BoardError):
    """A worker has another version of aotgen than the client.

    Attributes:
        worker: its address, where it was at a task.
    """

    worker: str = ""


class _Call:
    """Unpickles to the value of ``function(*arguments)``."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._parts = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._parts


def packed(function: Callable[..., object], *arguments: object) -> bytes:
    """Bytes for ``pickle.loads`` on a worker, which gives ``function(*arguments)`` there.

    The arguments are unpickled after the versions were compared.

    Args:
        function: of this module.
        arguments: for it.
    """
    return pickle.dumps(
        _Call(answer, aotgen.__version__, pickle.dumps(_Call(function, *arguments)))
    )


def answer(version: str, call: bytes) -> object:
    """On the worker: do what ``packed`` packed.

    Raises:
        VersionError: the worker has another version of aotgen than the client.
    """
    if version != aotgen.__version__:
        text = f"it has aotgen {aotgen.__version__}, and this computer {version}"
        here = _worker()
        error = VersionError(
            f"worker {here.address}: {text}" if here else text,
            remedy="install the same version there and start the worker again",
        )
        if here is not None:
            error.worker = here.address
            _leave_scheduler(here, error)
        raise error
    return pickle.loads(call)


def probe(board: Board, options: MeasureOptions) -> Kind:
    """On the worker: see whether it could measure, running nothing. Gives the kind of its times.

    Raises:
        UsageError, ToolchainError: it could not.
    """
    with closing(_measurer(board, options)) as measurer:
        return measurer.kind


def leave() -> None:
    """On the worker: leave the board unless a bundle is running there."""
    # A connection may take its time to close, and Dask calls this in its event loop.
    threading.Thread(target=_ROOM.leave, name="leave", daemon=True).start()


def measure(request: Request) -> Report:
    """On the worker: build and run a bundle."""
    here = _worker()
    assert here is not None
    results: list[tuple[int, CaseResult]] = []
    with _ROOM.lock:
        _refuse_if_leaving(here)
        try:
            measurer = _ROOM.enter(request.bundle.board, request.options)
            if measurer.kind != request.kind:
                raise UsageError(
                    f"its times would be {measurer.kind}, those of the others are {request.kind}"
                )
        except AotgenError as error:
            told = of_worker(error, here.address)
            _leave_scheduler(here, told)
            return Report(here.address, (), error=told, leaves=True)
        measurer.best = dict(request.best)
        running = cast(Generator[tuple[int, CaseResult]], measurer.run_bundle(request.bundle))
        try:
            with closing(running) as found:
                for result in found:
                    results.append(result)
                    if not _is_wanted(here):
                        break
        except AotgenError as error:
            seen = tuple(measurer.warnings)
            _ROOM.close()
            told = of_worker(error, here.address)
            leaves = isinstance(error, BoardError)
            if leaves:
                _leave_scheduler(here, told)
            return Report(here.address, tuple(results), seen, told, leaves)
        except BaseException:
            _ROOM.close()
            raise
        _ROOM.rest()
        return Report(here.address, tuple(results), tuple(measurer.warnings))


def of_worker(error: AotgenError, address: str) -> AotgenError:
    """The error with the name of the worker."""
    plain = type(error).__init__ is AotgenError.__init__
    kind = type(error) if plain else BoardError
    return kind(f"worker {address}: {error.args[0]}", remedy=error.remedy)


def retime(job: NetworkJob) -> NetworkResult:
    """On the worker: time a network.

    Raises:
        AotgenError: see ``network.retime``.
    """
    from aotgen.tune import network
    from aotgen.tune.run import Tunable

    here = _worker()
    assert here is not None
    try:
        with (
            _ROOM.lock,
            own_folder("aotgen-tune-") as folder,
            place_for(_runner(), job.board) as place,
        ):
            _ROOM.close()
            path = folder / job.name
            path.write_bytes(job.model)
            tunable = Tunable(path, _own(job.board), job.options)
            tasks = [task for task in tunable.tasks if task.key in job.keys]
            return network.retime(
                tasks,
                job.records,
                tunable.graph,
                tunable.board,
                tunable.options,
                path,
                place,
                job.tag,
                lambda stage: None,
            )
    except AotgenError as error:
        raise of_worker(error, here.address) from error


class _Room:
    """The measurer that a worker keeps from bundle to bundle: with its link to the board and the
    files that already lie there.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._key: tuple[Board, MeasureOptions] | None = None
        self._measurer: BundleMeasurer | None = None
        self._timer: threading.Timer | None = None

    def enter(self, board: Board, options: MeasureOptions) -> BundleMeasurer:
        """The measurer; with the lock held."""
        self._stop_timer()
        if self._measurer is None or self._key != (board, options):
            self.close()
            self._measurer = _measurer(board, options)
            self._key = board, options
        return self._measurer

    def rest(self) -> None:
        """No bundle for now; with the lock held."""
        self._timer = threading.Timer(IDLE_S, self.leave)
        self._timer.daemon = True
        self._timer.start()

    def leave(self) -> None:
        """Close the measurer unless it is in use."""
        if self.lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.lock.release()

    def close(self) -> None:
        """Close the measurer; with the lock held."""
        self._stop_timer()
        measurer, self._measurer, self._key = self._measurer, None, None
        if measurer is not None:
            with contextlib.suppress(AotgenError, OSError):
                measurer.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_ROOM = _Room()

_LEAVING: set[str] = set()
"""Addresses of workers of this process that are about to end."""


def _measurer(board: Board, options: MeasureOptions) -> BundleMeasurer:
    """
    Raises:
        UsageError: the worker's runner makes no sense, or is of no use for the board.
        ToolchainError: there is no compiler or emulator.
    """
    if board.name == "host":
        here = load_board("host")
        if (here.isa, here.features) != (board.isa, board.features):
            raise UsageError(
                f"it is a {here.isa} computer of another kind than the client's {board.isa}",
                remedy="name the board of both with --board",
            )
    return board_measurer(board, _runner(), options)


def _runner() -> str | None:
    """How this worker reaches its board; None for the board's default.

    Raises:
        UsageError: it names several boards.
    """
    spec = os.environ.get(RUNNER_VARIABLE) or None
    if spec is not None and "," in spec:
        raise UsageError(
            f"a worker has one board, not {RUNNER_VARIABLE}={spec}",
            remedy="start a worker for each",
        )
    return spec


def _own(board: Board) -> Board:
    """The board with the paths of this computer, where it knows a board of that name."""
    try:
        return replace(board, toolchain=load_board(board.name).toolchain)
    except UsageError:
        return board


def _leave_scheduler(here: Any, error: AotgenError) -> None:
    """Let this worker end: what else it was given goes to other workers."""
    logging.getLogger("distributed.worker").error("This worker ends: %s", error)
    _LEAVING.add(here.address)
    here.loop.add_callback(here.loop.call_later, LEAVE_S, here.close_gracefully)


def _refuse_if_leaving(here: Any) -> None:
    """Send a task back to the scheduler that came while this worker was about to end."""
    if here.address in _LEAVING:
        import distributed

        time.sleep(LEAVE_S)
        raise distributed.Reschedule


def _worker() -> Any | None:
    """The Dask worker whose task this thread is at."""
    import distributed

    try:
        return distributed.get_worker()
    except ValueError:
        return None


def _is_wanted(here: Any) -> bool:
    """Whether the client still waits for the task that this thread is at."""
    task = here.state.tasks.get(here.get_current_task())
    return task is not None and task.state != "cancelled"
