"""A tuning run: tasks x search x measurer x journal.

All that is measured is in the journal before a search sees it. So a run that was killed goes on
where it stopped: started again with the same seed its searches propose the same candidates, and
those in the journal are answered from there as long as their templates still give the same C.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from aotgen.errors import UsageError
from aotgen.ir.types import DType
from aotgen.report.tuning import TaskLine, TotalLine, TuneDisplay
from aotgen.target.board import Board
from aotgen.tune.budget import Budget
from aotgen.tune.journal import Journal, Record, by_task, outcome_of, record_of
from aotgen.tune.outcome import Candidate, Kind, Measurer, Outcome
from aotgen.tune.schedules import holds
from aotgen.tune.search import TUNERS, Tuner, make_tuner
from aotgen.tune.space import Space
from aotgen.tune.task import Point, Task
from aotgen.tune.transfer import rows_of

FLUSH_S = 1.0
"""Outcomes wait at most so long for the journal while a batch is being measured."""

MOST = 10**9
"""Of trials, and of a seed."""


@dataclass(frozen=True)
class SearchOptions:
    """How long and how to search.

    Attributes:
        trials: candidates of all tasks together, those that the journal knows included; None is
            64 for each task.
        trials_per_task: most of one task.
        early_stopping: a task ends after so many candidates without a better one.
        budget_seconds: the run ends after so many seconds.
        tuner: name of the search.
        seed: of everything random.
    """

    trials: int | None = None
    trials_per_task: int | None = None
    early_stopping: int | None = None
    budget_seconds: float | None = None
    tuner: str = "xgb"
    seed: int = 0

    def __post_init__(self) -> None:
        counts = {
            "trials": self.trials,
            "trials-per-task": self.trials_per_task,
            "early-stopping": self.early_stopping,
        }
        for name, value in counts.items():
            if value is not None and not 1 <= value <= MOST:
                raise UsageError(f"--{name} must be 1 to {MOST}, not {value}")
        seconds = self.budget_seconds
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"--budget-seconds must be more than 0, not {seconds:g}")
        if not 0 <= self.seed <= MOST:
            raise UsageError(f"--seed must be 0 to {MOST}, not {self.seed}")
        if self.tuner not in TUNERS:
            raise UsageError(
                f"--tuner {self.tuner!r} does not exist", remedy=f"use one of {', '.join(TUNERS)}"
            )

    @property
    def tag(self) -> str:
        """``Record.tuner`` of what a run with them writes."""
        return f"{self.tuner} seed {self.seed}"


@dataclass(frozen=True)
class TaskResult:
    """What became of a task.

    Attributes:
        index: in the model, from 1.
        key: of the task.
        title: of the task.
        calls: in one run of the model.
        is_chain: see ``Task``.
        macs: of one call.
        template: of the best candidate, empty when none worked.
        config: its knobs.
        seconds: of one call of it.
        default_seconds: of the template's default that the model finds fastest.
        trials: candidates, those that the journal knew included.
        measured: candidates that were built and run.
        failed: candidates that did not work.
        kind: where ``seconds`` comes from.
        message: what became of the first candidate, where none worked.
    """

    index: int
    key: str
    title: str
    calls: int
    is_chain: bool
    macs: int
    template: str
    config: Mapping[str, Any]
    seconds: float | None
    default_seconds: float | None
    trials: int
    measured: int
    failed: int
    kind: Kind
    message: str = ""


@dataclass(frozen=True)
class TuneResult:
    """What a run found.

    Attributes:
        tasks: those that were tuned.
        seconds: that it took.
        interrupted: whether the user stopped it.
        journal: path of the journal.
        network_ms: of one run of each network that the best candidates were timed in: the first
            has the best of each task by its time alone. Empty when that was left out.
    """

    tasks: tuple[TaskResult, ...]
    seconds: float
    interrupted: bool
    journal: str
    network_ms: tuple[float, ...] = ()

    @property
    def trials(self) -> int:
        return sum(t.trials for t in self.tasks)

    @property
    def measured(self) -> int:
        return sum(t.measured for t in self.tasks)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "trials": self.trials, "measured": self.measured}


class TaskState:
    """A task in a run.

    Attributes:
        task: which.
        index: in the model, from 1.
        space: of the task.
        best: the fastest candidate so far.
        first: the first one, the default.
        trials, measured, failed: as in ``TaskResult``.
        elapsed: seconds spent on it.
        exhausted: whether its search has nothing left to propose.
        weight: modelled seconds of a run of the model before anything is tuned.
    """

    def __init__(self, task: Task, index: int, known: Sequence[Record]) -> None:
        self.task = task
        self.index = index
        self.space = Space(task)
        self.best: Outcome | None = None
        self.first: Outcome | None = None
        self.trials = self.measured = self.failed = 0
        self.elapsed = 0.0
        self.exhausted = False
        self.weight = task.calls * self.space.modelled_seconds()
        self._tuner: Tuner | None = None
        self._heard = 0
        self._seen: set[Point] = set()
        self._known: dict[Point, list[Record]] = {}
        for record in known:
            self._known.setdefault(record.point, []).append(record)

    @property
    def started(self) -> bool:
        return self._tuner is not None

    @property
    def tuner(self) -> Tuner:
        assert self._tuner is not None, "start comes first"
        return self._tuner

    @property
    def best_seconds(self) -> float | None:
        return self.best.seconds if self.best is not None else None

    @property
    def default_seconds(self) -> float | None:
        return self.first.seconds if self.first is not None else None

    @property
    def stale(self) -> int:
        """The last candidates that brought nothing better."""
        return self._tuner.stale if self._tuner is not None else 0

    @property
    def value(self) -> float:
        """Seconds of a run of the model that another round may save. A task none of whose
        candidates works is worth less with each, or it would get all that is left.
        """
        best = self.best_seconds
        if not self.started:
            return math.inf
        if best is None:
            return float(self.weight * 0.5 ** (self.trials / 16))
        return self.task.calls * best * self.tuner.expected_gain()

    def start(self, options: SearchOptions, history: Sequence[Record]) -> None:
        self._tuner = make_tuner(options.tuner, self.space, options.seed, rows_of(history))

    def learn(self, records: Sequence[Record]) -> None:
        """Tell the search of a run's records of other tasks since the last time."""
        fresh = records[self._heard :]
        self._heard = len(records)
        self.tuner.learn(rows_of([r for r in fresh if r.task != self.task.key]))

    def propose(self, count: int) -> list[Point]:
        """The default first, then what the search wants; empty when there is nothing left."""
        points = [] if self._seen else self.space.default()[:1]
        self._seen.update(points)
        while len(points) < count and (more := self.tuner.propose(count - len(points))):
            # The search does not know that the default went first.
            points += [p for p in more if p not in self._seen]
            self._seen.update(more)
        return points

    def recall(self, point: Point, board: str, kind: Kind) -> Outcome | None:
        """What the journal knows of a point, as long as that still holds."""
        for record in reversed(self._known.get(point, [])):
            if record.board == board and record.kind == kind and holds(self.task, record):
                return outcome_of(self.task, record)
        return None

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if self.first is None and outcomes:
            self.first = outcomes[0]
        self.tuner.observe(outcomes)
        for outcome in outcomes:
            self.trials += 1
            if outcome.status != "ok":
                self.failed += 1
            elif self.best_seconds is None or (outcome.seconds or math.inf) < self.best_seconds:
                self.best = outcome


class Session:
    """One run. ``run`` may be called once."""

    def __init__(
        self,
        tasks: Sequence[tuple[int, Task]],
        measurer: Measurer,
        journal: Journal,
        board: Board,
        options: SearchOptions,
        display: TuneDisplay | None = None,
        of: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            tasks: with their numbers in the model, from 1.
            measurer: builds and times candidates.
            journal: gets every outcome.
            board: whose name records get.
            options: how to search.
            display: told how it goes.
            of: tasks of the model; None for as many as there are here.
            clock: seconds, for tests.
        """
        self._measurer = measurer
        self._journal = journal
        self._board = board
        self._options = options
        self._display = display or TuneDisplay()
        self._of = of if of is not None else len(tasks)
        self._clock = clock
        self._budget = Budget(
            len(tasks),
            trials=options.trials,
            trials_per_task=options.trials_per_task,
            early_stopping=options.early_stopping,
            seconds=options.budget_seconds,
            clock=clock,
        )
        self._over = False
        self._kind = measurer.kind
        self._warned: set[str] = set()
        records = journal.records()
        own = by_task(records)
        self.states = [TaskState(t, index, own.get(t.key, [])) for index, t in tasks]
        keys = {t.key for _, t in tasks}
        # A run that goes on must propose what it proposed before it was stopped: what it wrote
        # itself is no history but comes back when it is proposed again.
        self._history = [r for r in records if r.task not in keys or r.tuner != options.tag]
        self._own: list[Record] = []

    def run(self) -> bool:
        """Tune until the budget is spent or nothing is left to try; whether it was interrupted.

        Raises:
            BoardError, ToolchainError: nothing can be run or built any more; the journal has what
                was measured.
            UsageError: the journal cannot be written.
        """
        try:
            while (index := self._budget.next(self.states)) is not None:
                self._round(index)
        except KeyboardInterrupt:
            return True
        finally:
            self._over = True
            for state in self.states:
                if state.trials:
                    self._show(state, None)
            self._total()
        return False

    def results(self) -> tuple[TaskResult, ...]:
        """What the tasks have come to."""
        return tuple(
            TaskResult(
                index=s.index,
                key=s.task.key,
                title=s.task.title,
                calls=s.task.calls,
                is_chain=s.task.is_chain,
                macs=s.task.macs,
                template=s.best.candidate.point.template if s.best else "",
                config=s.best.candidate.point.config.as_dict() if s.best else {},
                seconds=s.best_seconds,
                default_seconds=s.default_seconds,
                trials=s.trials,
                measured=s.measured,
                failed=s.failed,
                kind=s.best.kind if s.best else self._kind,
                message=f"{s.first.status}: {s.first.message}" if s.first and not s.best else "",
            )
            for s in self.states
        )

    @property
    def trials(self) -> int:
        """Candidates so far, those that the journal knew included."""
        return sum(s.trials for s in self.states)

    def _round(self, index: int) -> None:
        """Propose a batch, answer it from the journal or the board, and let the search know."""
        begin = self._clock()
        state = self.states[index]
        if not state.started:
            state.start(self._options, self._history)
        state.learn(self._own)
        room = self._budget.room(self.states, index)
        points = state.propose(min(self._measurer.batch, room))
        if not points:
            state.exhausted = True
            self._show(state, None)
            return
        before = state.elapsed
        outcomes: dict[Point, Outcome] = {}
        try:
            with closing(self._answers(state, points)) as answers:
                for outcome in answers:
                    outcomes[outcome.candidate.point] = outcome
                    state.elapsed = before + self._clock() - begin
                    self._show(state, list(outcomes.values()), pending=len(outcomes))
        finally:
            # Also of a round that was cut short. In the order of the proposals, whatever the order
            # of the answers: the search is to be the same on a pool of boards and after a restart.
            found = [outcomes[p] for p in points if p in outcomes and outcomes[p].status != "link"]
            state.observe(found)
            self._warn()
        self._own += [self._record(state, o) for o in found]
        # A board that answers nothing is its measurer's error to raise; asking on would never end.
        state.exhausted = not found
        state.elapsed = before + self._clock() - begin
        self._show(state, found)

    def _warn(self) -> None:
        """Tell what makes times doubtful, and which boards were lost, as soon as it is known."""
        for text in self._measurer.warnings:
            if text not in self._warned:
                self._warned.add(text)
                self._display.note(f"warning: {text}")

    def _answers(self, state: TaskState, points: Sequence[Point]) -> Generator[Outcome]:
        """Outcomes of points as they come; each measured one is in the journal when the block of
        the journal's file that it waited for was full, and at the latest when the batch ends.
        """
        unknown = []
        for point in points:
            known = state.recall(point, self._board.name, self._kind)
            if known is None:
                unknown.append(Candidate(state.task, point))
            else:
                yield known
        if not unknown:
            return
        waiting: list[Record] = []
        since = self._clock()
        try:
            for outcome in self._measurer.measure(unknown):
                if outcome.status != "link":
                    state.measured += 1
                    waiting.append(self._record(state, outcome))
                    if self._clock() - since >= FLUSH_S:
                        self._journal.append(waiting)
                        waiting, since = [], self._clock()
                yield outcome
        finally:
            self._journal.append(waiting)

    def _record(self, state: TaskState, outcome: Outcome) -> Record:
        return record_of(
            state.task,
            outcome,
            board=self._board.name,
            features=state.space.features(outcome.candidate.point),
            tuner=self._options.tag,
        )

    def _show(self, state: TaskState, outcomes: Sequence[Outcome] | None, pending: int = 0) -> None:
        """Tell the display of a task; ``outcomes`` are its last round's, ``pending`` of which the
        search has not seen yet.
        """
        times = [o.seconds for o in outcomes or () if o.seconds is not None]
        current = min(times, default=state.best_seconds if outcomes is None else None)
        known = [t for t in (state.best_seconds, min(times, default=None)) if t is not None]
        trials = state.trials + pending
        done = self._over or self._budget.is_done(state)
        share = self._budget.total // len(self.states)
        limit = trials if done else max(trials, self._options.trials_per_task or share)
        self._display.task(
            TaskLine(
                index=state.index,
                of=self._of,
                ops=state.task.ops,
                integer=state.task.group.output.dtype is not DType.F32,
                current=current,
                best=min(known, default=None),
                trials=trials,
                limit=limit,
                elapsed=state.elapsed,
                done=done,
                pending=pending > 0,
            )
        )
        self._total(pending)

    def _total(self, pending: int = 0) -> None:
        measured = sum(s.measured for s in self.states)
        spent = sum(s.elapsed for s in self.states)
        left = None
        if measured and not self._over:
            left = max(0, self._budget.total - self.trials - pending) * spent / measured
            if (most := self._budget.seconds_left) is not None:
                left = min(left, most)
        single = (s for s in self.states if not s.task.is_chain)
        timed = [s for s in single if s.default_seconds and s.best_seconds]
        before = sum(s.task.calls * (s.default_seconds or 0.0) for s in timed)
        after = sum(s.task.calls * (s.best_seconds or 0.0) for s in timed)
        self._display.total(
            TotalLine(
                self.trials + pending,
                self._budget.total,
                self._budget.elapsed,
                left,
                before,
                after,
            )
        )
