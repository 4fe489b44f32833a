"""Searches: which points of a task to measure next.

All are seeded and deterministic: what they propose depends on the space, the seed, the history and
the outcomes in their order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from aotgen.errors import UsageError
from aotgen.tune.model import Row
from aotgen.tune.outcome import Outcome
from aotgen.tune.space import SearchSpace
from aotgen.tune.task import Point


class Tuner(Protocol):
    """Searches the space of one task."""

    @property
    def best(self) -> tuple[Point, float] | None:
        """The fastest point and its seconds; None before one has been timed."""

    @property
    def trials(self) -> int:
        """Outcomes that it has seen."""

    @property
    def stale(self) -> int:
        """Outcomes since the best one got better."""

    def propose(self, n: int) -> list[Point]:
        """Up to n points to measure next, the most promising first; never one twice. Empty when
        none is left.
        """

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of outcomes, also of points that it did not propose (a resumed journal)."""

    def learn(self, rows: Sequence[Row]) -> None:
        """Take note of more rows of other tasks, measured meanwhile: they join the history."""

    def expected_gain(self) -> float:
        """By which part the next round may shorten the best time: in [0, 1], 1 before there is
        one.
        """


class BaseTuner:
    """The book-keeping that all searches share.

    Args:
        space: of the task.
        seed: of everything random.
    """

    IMPROVEMENT = 0.995
    """Of the best seconds: what counts as better for ``stale``."""

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        self.space = space
        self.rng = random.Random(seed)
        self.seen: set[Point] = set()
        """Proposed or observed."""
        self.timed: dict[Point, float] = {}
        self.failed: dict[Point, str] = {}
        self._mark = float("inf")
        self._stale = 0
        self._trials = 0

    @property
    def best(self) -> tuple[Point, float] | None:
        if not self.timed:
            return None
        point = min(self.timed, key=self.timed.__getitem__)
        return point, self.timed[point]

    @property
    def trials(self) -> int:
        return self._trials

    @property
    def stale(self) -> int:
        return self._stale

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            point = outcome.candidate.point
            if outcome.status == "link":
                continue
            self.seen.add(point)
            self._trials += 1
            self._stale += 1
            if outcome.status == "ok" and outcome.seconds is not None:
                self.timed[point] = min(outcome.seconds, self.timed.get(point, float("inf")))
                if outcome.seconds < self._mark * self.IMPROVEMENT:
                    self._mark, self._stale = outcome.seconds, 0
            else:
                self.failed[point] = outcome.status

    def learn(self, rows: Sequence[Row]) -> None:
        """Nothing, without a model."""

    def expected_gain(self) -> float:
        """Without a model: half as much for every 16 trials that brought nothing."""
        return float(0.2 * 0.5 ** (self._stale / 16)) if self.timed else 1.0

    def propose(self, n: int) -> list[Point]:
        chosen: list[Point] = []
        points = self._points()
        while len(chosen) < n:
            point = next(points, None)
            if point is None:
                break
            if point not in self.seen:
                self.seen.add(point)
                chosen.append(point)
        return chosen

    def _points(self) -> Iterator[Point]:
        """Legal points in the order of the search; those seen before are skipped."""
        raise NotImplementedError

    def unseen(self) -> Iterator[Point]:
        """Legal points that were not seen, each once, drawn at random until none is left."""
        drawn: set[Point] = set()
        misses = 0
        while misses < 50:
            point = self.space.random(self.rng)
            if point is None:
                return
            if point in self.seen or point in drawn:
                misses += 1
                continue
            misses = 0
            drawn.add(point)
            yield point
        rest = [p for p in self.space.legal() if p not in self.seen and p not in drawn]
        self.rng.shuffle(rest)
        yield from rest


class RandomTuner(BaseTuner):
    """Legal points at random, without replacement."""

    def _points(self) -> Iterator[Point]:
        return self.unseen()


class GridTuner(BaseTuner):
    """All legal points by their number."""

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        super().__init__(space, seed)
        self._next = space.legal()

    def _points(self) -> Iterator[Point]:
        return self._next


def make_tuner(name: str, space: SearchSpace, seed: int = 0, history: Sequence[Row] = ()) -> Tuner:
    """A search by name.

    Args:
        name: one of ``TUNERS``.
        space: of the task.
        seed: of everything random.
        history: rows of other tasks, models or boards; of use to "xgb" alone.

    Raises:
        UsageError: no tuner has this name, or xgboost is not installed.
    """
    maker = TUNERS.get(name)
    if maker is None:
        raise UsageError(f"there is no tuner {name!r}", remedy=f"use one of {', '.join(TUNERS)}")
    return maker(space, seed, history)


def _xgb(space: SearchSpace, seed: int, history: Sequence[Row]) -> Tuner:
    from aotgen.tune.xgb import XgbTuner

    return XgbTuner(space, seed, history)


def _ga(space: SearchSpace, seed: int, history: Sequence[Row]) -> Tuner:
    from aotgen.tune.ga import GaTuner

    return GaTuner(space, seed)


TUNERS: dict[str, Callable[[SearchSpace, int, Sequence[Row]], Tuner]] = {
    "xgb": _xgb,
    "random": lambda space, seed, history: RandomTuner(space, seed),
    "grid": lambda space, seed, history: GridTuner(space, seed),
    "ga": _ga,
}
"""The searches by name, the default first."""
