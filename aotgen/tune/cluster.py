"""Measures candidates on the boards of a Dask cluster.

The client renders bundles; workers with the board's resource (``worker.resource_of``) build and run
them, each one at a time. A worker that is lost costs no more than the bundle that it was at, which
Dask gives to another. A bundle that took several workers with it is given up, and its candidates go
on one by one.

What candidates get measured does not depend on which worker is the fastest: the size of a batch is
fixed with the workers at the start. Times do as far as boards differ, and so does when timing of a
slow candidate is given up, which goes by the best time known just then.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import queue
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aotgen.errors import AotgenError, BoardError, UsageError
from aotgen.target.board import Board
from aotgen.tune import worker
from aotgen.tune.bundle import Bundle, Bundler
from aotgen.tune.measure import MeasureOptions
from aotgen.tune.outcome import Candidate, Kind, Outcome
from aotgen.tune.worker import NetworkJob, Report, Request, VersionError, packed, resource_of

if TYPE_CHECKING:
    import distributed

    from aotgen.tune.network import NetworkResult

START_S = 30.0
"""To wait for the scheduler and a first worker."""

_POLL_S = 1.0
"""Between looks at the workers while there is no news."""


@dataclass(frozen=True)
class _Part:
    """What is under way together: a bundle, and of which of its cases candidates are."""

    bundle: Bundle
    members: tuple[tuple[Candidate, int], ...]


@dataclass
class _Flight:
    """What is to be measured, and what the scheduler has of it.

    Attributes:
        waiting: candidates of the next parts. The scheduler gets a part for each worker and no
            more: it hands them on at once, and blames all that a worker had when it is lost.
        pending: parts by their futures.
        done: gets each future that has ended.
    """

    waiting: deque[tuple[Candidate, ...]] = field(default_factory=deque)
    pending: dict[distributed.Future, _Part] = field(default_factory=dict)
    done: queue.SimpleQueue[distributed.Future] = field(default_factory=queue.SimpleQueue)


class ClusterMeasurer:
    """Measures on all boards of one kind that workers of a Dask scheduler have.

    Outcomes have the number of the worker among their conditions ("board"): from 0 in the order of
    their names at the start, then of their arrival.

    Attributes:
        kind: of its outcomes.
        best: see ``BundleMeasurer.best``.
        resource: that workers must have.
    """

    def __init__(
        self,
        scheduler: str,
        board: Board,
        options: MeasureOptions | None = None,
        start_s: float = START_S,
    ) -> None:
        """
        Args:
            scheduler: its address, as Dask writes it: tcp://host:8786.
            board: that candidates are built for.
            options: None are the defaults; ``patience`` is also how long all workers may be away.
            start_s: how long to wait for the scheduler and a first worker.

        Raises:
            UsageError: an option or the address makes no sense, distributed is not installed, or
                workers differ in kind.
            BoardError: no scheduler answers there, it has no worker for the board, or a worker has
                another version of aotgen.
            ToolchainError: a worker lacks the board's compiler.
        """
        self.options = options or MeasureOptions()
        self.options.check()
        self.board = board
        self.resource = resource_of(board)
        self.scheduler = scheduler
        worker.check_address(scheduler)
        self.best: dict[str, float] = {}
        self._bundler = Bundler(board)
        self._numbers: dict[str, int] = {}
        self._leaving: set[str] = set()  # said so, and are still with the scheduler
        self._gone: set[str] = set()  # and told of
        self._seen = time.monotonic()
        self._warnings: list[str] = []
        self._count = itertools.count()
        self._run = uuid.uuid4().hex[:8]
        self._client: distributed.Client | None = _connect(scheduler, start_s)
        try:
            present = self._wait_for_worker(start_s)
            self._size = len(present)
            for address in sorted(present, key=lambda a: (str(present[a]), a)):
                self._numbers[address] = len(self._numbers)
            self.kind: Kind = self._probe(list(self._numbers))
        except BaseException:
            self.close()
            raise

    @property
    def batch(self) -> int:
        """How many candidates it likes to get at once."""
        return self._size * self.options.batch

    @property
    def warnings(self) -> list[str]:
        """What boards said that makes times doubtful, and which workers were lost."""
        return list(self._warnings)

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        """See ``Measurer.measure``. Outcomes come bundle by bundle.

        Raises:
            BoardError: the scheduler is gone, or there has been no worker for
                ``MeasureOptions.patience`` seconds; the outcomes before it hold.
            ToolchainError: a worker's compiler cannot build what all bundles have.
        """
        # Two bundles a worker: a slow or lost one holds up little at the end.
        size = max(1, min(self.options.batch, -(-len(candidates) // (2 * self._size))))
        flight = _Flight()
        for i in range(0, len(candidates), size):
            flight.waiting.append(tuple(candidates[i : i + size]))
        self._seen = time.monotonic()
        try:
            while flight.waiting or flight.pending:
                present = self._look()
                while flight.waiting and len(flight.pending) < max(1, len(present)):
                    yield from self._submit(flight.waiting.popleft(), flight)
                future = self._next(flight) if flight.pending else None
                if future is not None:
                    yield from self._finish(future, flight)
        finally:
            self._cancel(list(flight.pending))

    def call(self, function: Callable[..., object], *arguments: object) -> Any:
        """The value of a function of ``worker``, on a worker with its board to itself.

        Raises:
            AotgenError: the function's own; or BoardError as ``measure``.
        """
        from distributed import KilledWorker

        flight = _Flight()
        future = self._send(flight, packed(function, *arguments))
        try:
            self._seen = time.monotonic()
            while self._next(flight) is None:
                self._look()
            if future.cancelled():
                raise self._scheduler_gone()
            error = future.exception()
            if isinstance(error, KilledWorker):
                raise BoardError(f"{error.allowed_failures + 1} workers were lost at it")
            if error is not None:
                raise error
            return future.result()
        finally:
            self._cancel([future])

    def close(self) -> None:
        """Let the workers leave their boards, and leave the scheduler. May be called twice."""
        client, self._client = self._client, None
        if client is None:
            return
        if client.status == "running":
            with suppress(Exception):  # workers leave by themselves after a while
                addresses = [a for a in self._numbers if a in self._present(client)]
                if addresses:
                    client.run(
                        pickle.loads, packed(worker.leave), workers=addresses, on_error="ignore"
                    )
        client.close(timeout=5)

    def _submit(self, candidates: tuple[Candidate, ...], flight: _Flight) -> Iterator[Outcome]:
        """Render candidates and give them to the scheduler; those that failed at once."""
        bundle, failed = self._bundler.bundle(candidates)
        yield from (replace(outcome, kind=self.kind) for _, outcome in failed)
        numbered = zip(candidates, bundle.members, strict=True)
        members = tuple((c, number) for c, number in numbered if number is not None)
        if not members:
            return
        known = {c.task.key for c, _ in members}
        best = {key: seconds for key, seconds in self.best.items() if key in known}
        request = Request(bundle, self.options, self.kind, best)
        future = self._send(flight, packed(worker.measure, request))
        flight.pending[future] = _Part(bundle, members)

    def _send(self, flight: _Flight, data: bytes) -> distributed.Future:
        """Give the scheduler something to do for a worker with the board."""
        number = next(self._count)
        with warnings.catch_warnings():
            # A bundle may well be large; as data of a worker it would be lost with that.
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            future = self._open.submit(
                pickle.loads,
                data,
                key=f"aotgen-{self.board.name}-{self._run}-{number}",
                pure=False,
                resources={self.resource: 1},
                priority=-number,
            )
        future.add_done_callback(flight.done.put)
        return future

    def _next(self, flight: _Flight) -> distributed.Future | None:
        """The next future that has ended, None when there is no news."""
        try:
            return flight.done.get(timeout=_POLL_S)
        except queue.Empty:
            return None

    def _finish(self, future: distributed.Future, flight: _Flight) -> Iterator[Outcome]:
        """The outcomes of what has ended; what is left of it waits again."""
        from distributed import KilledWorker

        part = flight.pending.pop(future)
        if future.cancelled():
            raise self._scheduler_gone()
        error = future.exception()
        if isinstance(error, KilledWorker):
            yield from self._given_up(error.allowed_failures + 1, part, flight)
            return
        if isinstance(error, ImportError | AttributeError):
            if present := self._look():
                self._probe(list(present))  # says which worker lacks what
            raise _without_aotgen("a worker that is gone", error) from error
        if error is None:
            report: Report = future.result()
        elif isinstance(error, VersionError):
            report = Report(error.worker, (), error=error, leaves=True)
        else:
            raise error
        self._tell(report.warnings)
        yield from self._outcomes(report, part)
        if report.error is not None:
            if not report.leaves:
                raise report.error
            self._tell([f"{report.error}; other workers do its part"])
            self._leaving.add(report.worker)
            self._gone.add(report.worker)
            if not self._look():
                raise report.error
        measured = {number for number, _ in report.results}
        left = [candidate for candidate, number in part.members if number not in measured]
        if left:
            flight.waiting.appendleft(tuple(left))

    def _outcomes(self, report: Report, part: _Part) -> Iterator[Outcome]:
        board = self._numbers.setdefault(report.worker, len(self._numbers))
        results = dict(report.results)
        for candidate, number in part.members:
            result = results.get(number)
            if result is None:
                continue
            outcome = result.outcome(candidate, part.bundle.cases[number].kernel, self.kind)
            if outcome.seconds is not None:
                key = candidate.task.key
                self.best[key] = min(self.best.get(key, outcome.seconds), outcome.seconds)
            told = {**outcome.conditions, "board": float(board)}
            yield replace(outcome, conditions=told)

    def _given_up(self, lost: int, part: _Part, flight: _Flight) -> Iterator[Outcome]:
        """What follows when so many workers were lost at the same bundle."""
        if len(part.bundle.cases) > 1:
            flight.waiting.extend((candidate,) for candidate, _ in part.members)
            return
        message = f"{lost} workers were lost while one of them measured it alone"
        for candidate, number in part.members:
            kernel = part.bundle.cases[number].kernel
            yield Outcome(candidate, "crash", kind=self.kind, message=message, kernel=kernel)

    def _look(self) -> dict[str, Any]:
        """The workers that there are now, names by address; notes which are gone or new.

        Raises:
            BoardError: the scheduler is gone, or there were no workers for too long.
        """
        client = self._open
        if client.status != "running":
            raise self._scheduler_gone()
        try:
            present = self._present(client)
        except (OSError, asyncio.TimeoutError) as error:
            raise self._scheduler_gone() from error
        now = time.monotonic()
        if present:
            self._seen = now
        elif now - self._seen > self.options.patience:
            raise self._no_worker(self.options.patience)
        self._gone -= set(present)
        for address in present:
            self._numbers.setdefault(address, len(self._numbers))
        for address, number in self._numbers.items():
            if address not in present and address not in self._gone:
                self._gone.add(address)
                self._tell([f"board {number} of the cluster is gone: worker {address}"])
        return present

    def _present(self, client: distributed.Client) -> dict[str, Any]:
        found = client.scheduler_info(n_workers=-1)["workers"]
        self._leaving &= set(found)  # one that comes back is as good as any other
        return {
            address: facts.get("name", address)
            for address, facts in found.items()
            if facts.get("resources", {}).get(self.resource, 0) >= 1
            and address not in self._leaving
        }

    def _wait_for_worker(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not (present := self._present(self._open)):
            if time.monotonic() > end:
                raise self._no_worker(seconds)
            time.sleep(0.2)
        return present

    def _probe(self, addresses: Sequence[str]) -> Kind:
        """The kind of times of these workers.

        Raises:
            AotgenError: of the first worker that cannot measure.
            UsageError: they differ.
        """
        answers = self._open.run(
            pickle.loads,
            packed(worker.probe, self.board, self.options),
            workers=list(addresses),
            on_error="return",
        )
        kinds: dict[str, str] = {}
        for address in addresses:
            found = answers.get(address, OSError("it is gone"))
            if isinstance(found, AotgenError):
                raise worker.of_worker(found, address)
            if isinstance(found, ImportError | AttributeError):
                raise _without_aotgen(f"worker {address}", found)
            if isinstance(found, Exception):
                raise BoardError(f"worker {address} does not answer: {found}")
            kinds[address] = found
        if len(set(kinds.values())) > 1:
            listed = ", ".join(f"{address} {kind}" for address, kind in kinds.items())
            raise UsageError(
                f"the workers of {self.scheduler} would give times of different kinds: {listed}",
                remedy="let all of them have real boards, or all an emulator",
            )
        kind: Kind = next(iter(answers.values()))
        return kind

    def _cancel(self, futures: Sequence[distributed.Future]) -> None:
        if futures and self._client is not None and self._client.status == "running":
            with suppress(Exception):  # the scheduler may be gone
                self._client.cancel(list(futures))

    def _tell(self, texts: Sequence[str]) -> None:
        self._warnings += [text for text in texts if text not in self._warnings]

    @property
    def _open(self) -> distributed.Client:
        if self._client is None:
            raise UsageError("the measurer is closed")
        return self._client

    def _scheduler_gone(self) -> BoardError:
        return BoardError(
            f"the scheduler {self.scheduler} is gone",
            remedy="start it and its workers again; the same command then goes on from here",
        )

    def _no_worker(self, seconds: float) -> BoardError:
        return BoardError(
            f"the scheduler {self.scheduler} has had no worker with the resource {self.resource}"
            f" for {seconds:g} s",
            remedy=f"start one beside a board: aotgen worker {self.scheduler}"
            f" --board {self.board.name} --runner ssh://user@host",
        )


def retime_on_worker(scheduler: str, job: NetworkJob) -> NetworkResult:
    """Time a network on one of the workers of a scheduler, see ``network.retime``.

    Raises:
        AotgenError: see ``network.retime`` and ``ClusterMeasurer``.
    """
    with closing(ClusterMeasurer(scheduler, job.board)) as cluster:
        result: NetworkResult = cluster.call(worker.retime, job)
        return result


def _connect(scheduler: str, seconds: float) -> distributed.Client:
    """
    Raises:
        UsageError: the address is malformed, or distributed is not installed.
        BoardError: no scheduler answers.
    """
    try:
        import distributed
    except ImportError as error:
        raise missing_distributed() from error
    # What it would say there is in our errors.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        return distributed.Client(scheduler, timeout=seconds, set_as_default=False)
    except (OSError, asyncio.TimeoutError) as error:
        raise BoardError(
            f"no Dask scheduler answers at {scheduler}", remedy="start one: dask scheduler"
        ) from error
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"scheduler {scheduler!r} is malformed: {error}", remedy="use tcp://host:8786"
        ) from error


def _without_aotgen(who: str, error: Exception) -> BoardError:
    return BoardError(
        f"{who} has no aotgen, or another version: {error}",
        remedy="install the version of this computer there",
    )


def missing_distributed() -> UsageError:
    """What to say where Dask's scheduler is not installed."""
    return UsageError(
        "a cluster needs the package distributed", remedy="pip install 'aotgen[cluster]'"
    )
