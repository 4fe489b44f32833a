"""Several boards of one kind that share the work, from one process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aotgen.errors import BoardError, UsageError
from aotgen.tune.outcome import Candidate, Measurer, Outcome

if TYPE_CHECKING:
    from aotgen.tune.measure import BundleMeasurer


class PoolMeasurer:
    """Several measurers that share the work; one that fails leaves its part to the others.

    Outcomes have the number of the board, from 0, among their conditions ("board").
    """

    def __init__(self, measurers: Sequence[BundleMeasurer]) -> None:
        """
        Raises:
            UsageError: there is none, or their outcomes are of different kinds.
        """
        if not measurers:
            raise UsageError("a pool needs at least one board")
        if len({m.kind for m in measurers}) > 1:
            raise UsageError(
                "the boards of a pool must all be real or all be emulated",
                remedy="tune on one kind at a time; the same journal takes both",
            )
        self._measurers = list(measurers)
        self._alive = dict(enumerate(measurers))
        self.best = measurers[0].best
        for measurer in measurers:
            measurer.best = self.best
        self.kind = measurers[0].kind
        self._warnings: list[str] = []

    @property
    def batch(self) -> int:
        """How many candidates it likes to get at once."""
        # Also when boards were lost: what a search proposes depends on it, and a run that goes on
        # later has to propose the same.
        return sum(m.batch for m in self._measurers)

    @property
    def warnings(self) -> list[str]:
        """What boards said that makes times doubtful, and which boards were lost."""
        told = [text for m in self._measurers for text in m.warnings]
        return [*dict.fromkeys([*told, *self._warnings])]

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        """See ``Measurer.measure``; BoardError only when the last board is gone."""
        work = _Work(candidates, max(1, -(-len(candidates) // max(1, 2 * len(self._alive)))))
        outcomes: queue.Queue[Outcome | BaseException] = queue.Queue()
        threads = [
            threading.Thread(target=self._serve, args=(n, m, work, outcomes), daemon=True)
            for n, m in self._alive.items()
        ]
        for thread in threads:
            thread.start()
        left = len(candidates)
        failure: BaseException | None = None
        try:
            while left and (self._alive or not outcomes.empty()):
                got = outcomes.get()
                if isinstance(got, Outcome):
                    left -= 1
                    yield got
                elif isinstance(got, BoardError):
                    failure = got
                else:
                    raise got
        finally:
            work.stop()
            for thread in threads:
                thread.join()
        while not outcomes.empty():  # the last board is taken out before its error is told
            got = outcomes.get()
            failure = got if isinstance(got, BoardError) else failure
        if left:
            raise failure or BoardError("all boards of the pool are gone")

    def close(self) -> None:
        """Close all measurers."""
        for measurer in self._measurers:
            measurer.close()

    def _serve(
        self,
        number: int,
        measurer: Measurer,
        work: _Work,
        outcomes: queue.Queue[Outcome | BaseException],
    ) -> None:
        """Measure parts of the work until there is none, or the board fails."""
        while (part := work.take()) is not None:
            left = list(part)
            try:
                for outcome in measurer.measure(part):
                    left.remove(outcome.candidate)
                    told = {**outcome.conditions, "board": float(number)}
                    outcomes.put(replace(outcome, conditions=told))
                    if work.stopped:
                        return
            except BaseException as error:
                if isinstance(error, BoardError):
                    del self._alive[number]
                    self._warnings.append(f"board {number} of the pool is gone: {error}")
                    work.give_back(left)
                outcomes.put(error)
                return
            work.done()


class _Work:
    """Candidates that boards take in parts; one that failed gives back what it has not done."""

    def __init__(self, candidates: Sequence[Candidate], size: int) -> None:
        self._parts = [candidates[i : i + size] for i in range(0, len(candidates), size)]
        self._out = 0
        self._change = threading.Condition()
        self.stopped = False

    def take(self) -> Sequence[Candidate] | None:
        """The next part; None when all are done. Waits while others may give some back."""
        with self._change:
            while not self._parts and self._out and not self.stopped:
                self._change.wait()
            if self.stopped or not self._parts:
                return None
            self._out += 1
            return self._parts.pop(0)

    def done(self) -> None:
        with self._change:
            self._out -= 1
            self._change.notify_all()

    def give_back(self, candidates: Sequence[Candidate]) -> None:
        with self._change:
            if candidates:
                self._parts.insert(0, candidates)
            self._out -= 1
            self._change.notify_all()

    def stop(self) -> None:
        with self._change:
            self.stopped = True
            self._change.notify_all()
