"""How a run's trials are split over its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

TRIALS_PER_TASK = 64
"""Without a total: trials of a run, times the number of tasks."""

MIN_TRIALS = 8
"""Trials that every task gets before any gets more, where the total reaches for that."""


class Progress(Protocol):
    """How far a task is."""

    @property
    def trials(self) -> int:
        """Trials that it had."""

    @property
    def stale(self) -> int:
        """The last of them that brought nothing better."""

    @property
    def exhausted(self) -> bool:
        """Whether its search has nothing left to propose."""

    @property
    def weight(self) -> float:
        """Modelled seconds of a run of the model before anything is tuned: calls x time."""

    @property
    def value(self) -> float:
        """Seconds of a run of the model that the next round may save: calls x best time x expected
        gain; inf before the first round.
        """


class Budget:
    """Says which task gets the next round, and how many trials it may have.

    Args:
        tasks: how many there are.
        trials: of all tasks together; None is ``TRIALS_PER_TASK`` for each.
        trials_per_task: most of one task.
        early_stopping: a task ends after so many trials without a better one.
        seconds: the run ends after so many.
        clock: seconds from any origin.
    """

    def __init__(
        self,
        tasks: int,
        *,
        trials: int | None = None,
        trials_per_task: int | None = None,
        early_stopping: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._each = trials_per_task
        self._early = early_stopping
        self._seconds = seconds
        self._clock = clock
        self._begin = clock()
        self.total = trials if trials is not None else TRIALS_PER_TASK * tasks
        if trials_per_task is not None:
            self.total = min(self.total, trials_per_task * tasks)
        self._least = min(MIN_TRIALS, max(1, self.total // max(1, tasks)))

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._begin

    @property
    def seconds_left(self) -> float | None:
        """Until the run ends; None when it may take as long as it needs."""
        return None if self._seconds is None else max(0.0, self._seconds - self.elapsed)

    def is_done(self, task: Progress) -> bool:
        """Whether a task gets no more trials, whatever is left of the total."""
        stopped = self._early is not None and task.stale >= self._early
        full = self._each is not None and task.trials >= self._each
        return task.exhausted or stopped or full

    def room(self, tasks: Sequence[Progress], index: int) -> int:
        """How many trials a task may still have: of the total what the others leave, and no more
        than its first ones while others wait for theirs.
        """
        task = tasks[index]
        left = self.total - sum(t.trials for t in tasks)
        if self._each is not None:
            left = min(left, self._each - task.trials)
        others = (t for i, t in enumerate(tasks) if i != index)
        if any(t.trials < self._least and not self.is_done(t) for t in others):
            left = min(left, max(self._least - task.trials, 0))
        return max(0, left)

    def next(self, tasks: Sequence[Progress]) -> int | None:
        """The task that gets the next round: one that has not had its first trials, the heaviest
        first; then the one whose round may save most. None at the end of the run.
        """
        if sum(t.trials for t in tasks) >= self.total or self.seconds_left == 0.0:
            return None
        waiting = [i for i, t in enumerate(tasks) if not self.is_done(t)]
        young = [i for i in waiting if tasks[i].trials < self._least]
        if young:
            return max(young, key=lambda i: (tasks[i].weight, -i))
        return max(waiting, key=lambda i: (tasks[i].value, tasks[i].weight, -i), default=None)
