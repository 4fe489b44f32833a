"""A board that takes no time: a candidate's seconds are drawn from its own hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from aotgen.schedule.base import ScheduleError
from aotgen.tune.journal import Record, record_of
from aotgen.tune.outcome import Candidate, Kind, Outcome
from aotgen.tune.space import Space
from aotgen.tune.task import Point, Task, kernel_hash

BOARD = "host-scalar"


def record(task: Task, point: Point, seconds: float, **more: Any) -> Record:
    """What a journal has of a point that took so many seconds; ``more`` are other fields."""
    template = task.template(point.template)
    assert template is not None
    kernel = kernel_hash(task.kernel(template, point.config))
    outcome = Outcome(Candidate(task, point), "ok", seconds, (seconds,), kernel=kernel)
    made = record_of(
        task, outcome, board=BOARD, features=Space(task).features(point), tuner="random seed 0"
    )
    return replace(made, **more)


def fake_seconds(task: Task, point: Point) -> float | None:
    """The time of a point; None for the one in sixteen that crashes."""
    text = f"{task.key} {point.template} {point.config.values}"
    draw = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    return None if draw % 16 == 0 else 1e-6 * (1 + draw % 1009 / 100)


class FakeMeasurer:
    """Answers in reverse order, as a pool of boards may."""

    def __init__(
        self,
        batch: int = 8,
        kind: Kind = "measured",
        before: Callable[[int, Candidate], None] | None = None,
    ) -> None:
        """
        Args:
            batch: see ``Measurer``.
            kind: of the outcomes.
            before: called before each with the number of those that were measured.
        """
        self.batch = batch
        self.kind = kind
        self.measured: list[Candidate] = []
        self.closed = 0
        self.warnings: list[str] = []
        self._before = before

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        for candidate in reversed(candidates):
            if self._before is not None:
                self._before(len(self.measured), candidate)
            self.measured.append(candidate)
            yield self._outcome(candidate)

    def _outcome(self, candidate: Candidate) -> Outcome:
        task, point = candidate.task, candidate.point
        template = task.template(point.template)
        assert template is not None
        try:
            kernel = kernel_hash(task.kernel(template, point.config))
        except ScheduleError as error:
            return Outcome(candidate, "render", message=str(error), kind=self.kind)
        seconds = fake_seconds(task, point)
        if seconds is None:
            return Outcome(candidate, "crash", message="SIGSEGV", kernel=kernel, kind=self.kind)
        return Outcome(candidate, "ok", seconds, (seconds,), self.kind, kernel=kernel)

    def close(self) -> None:
        self.closed += 1
