"""What a journal teaches about tasks that it has no records of."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from aotgen.errors import UsageError
from aotgen.target.target import Target
from aotgen.tune.journal import Record, by_task
from aotgen.tune.model import CostModel, Row
from aotgen.tune.ranking import ranked
from aotgen.tune.schedules import fits
from aotgen.tune.space import Space
from aotgen.tune.task import Point, Task

MIN_ROWS = 64
"""Times of a template, on cores of the same kind, from which the model may speak for it."""

MIN_GAIN = 0.05
"""What a predicted config must save beyond the model's doubt to be taken without a measurement."""

SAMPLES = 200
"""Random points that the model is asked about, beside the best ones of other tasks."""

SEED = 20


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Records as the cost model learns from them.

    Times of different boards and kinds are on different scales, so each is a source of its own.
    Those inside a network are left out: a kernel's were recorded alone before.
    """
    found = []
    for record in records:
        if not record.features or record.kind == "network" or record.status == "link":
            continue
        source = f"{record.task} {record.board} {record.kind}"
        found.append(Row(source, record.features, record.seconds, record.status))
    return found


class JournalTransfer:
    """Proposes a config for a task without records (``schedules.Transfer``).

    First choice is the best config of the same computation on another board of the same
    instruction set, or for another number of threads. Else the cost model, trained on all records
    of the same kind of core, ranks a sample of the task's space; its best point is taken when it
    beats the default by more than the model doubts. Without xgboost there is no such model.
    """

    def __init__(self, records: Sequence[Record], target: Target, predicts: bool = True) -> None:
        """
        Args:
            records: of a journal.
            target: that configs are wanted for.
            predicts: whether the cost model may speak.
        """
        self._target = target
        same_isa = [r for r in records if r.isa == target.isa and r.status == "ok"]
        self._by_text: dict[str, list[Record]] = {}
        for record in same_isa:
            self._by_text.setdefault(_computation(record.text), []).append(record)
        self._rows = [r for r in records if r.isa == target.isa and r.core == target.core]
        orders = (ranked(found) for found in by_task(self._rows).values())
        self._best = [order[0].record.point for order in orders if order]
        counts = Counter(
            r.template
            for r in self._rows
            if r.status == "ok" and r.features and r.kind != "network"
        )
        self._known = {name for name, n in counts.items() if predicts and n >= MIN_ROWS}
        """Templates that the cost model may speak for."""

    def __call__(self, task: Task) -> Point | None:
        """The config to take, or None for the default."""
        return self._elsewhere(task) or self._predicted(task)

    def _elsewhere(self, task: Task) -> Point | None:
        """The best point of the same computation, on the same kind of core where there is one."""
        known = self._by_text.get(_computation(task.text), [])
        core = self._target.core
        same_core = [r for r in known if r.core == core]
        # What a model of one core says is nothing to another one.
        known = [r for r in known if r.core == core or r.source in ("measured", "network")]
        # Seconds of two boards are not comparable: one board decides, the first by name.
        for records in (same_core, known):
            boards = sorted({r.board for r in records})
            for board in boards:
                for found in ranked(r for r in records if r.board == board):
                    if fits(task.group, task.target, found.record.point):
                        return found.record.point
        return None

    def _predicted(self, task: Task) -> Point | None:
        if not self._known:
            return None
        space = Space(task)
        default = next(iter(space.default()), None)
        if default is None or default.template not in self._known:
            return None
        model = self._model
        if model is None:
            return None
        points = dict.fromkeys([default, *(p for p in self._best if space.is_legal(p))])
        rng = random.Random(f"{task.key} {SEED}")
        for _ in range(SAMPLES):
            point = space.random(rng)
            if point is not None:
                points[point] = None
        asked = [p for p in points if p.template in self._known]
        mean, std = model.predict([space.features(p) for p in asked])
        gains = [float(mean[0] - m - s) for m, s in zip(mean, std, strict=True)]
        best = max(range(1, len(asked)), key=lambda i: (gains[i], -i), default=0)
        return asked[best] if gains[best] > -math.log1p(-MIN_GAIN) else None

    @cached_property
    def _model(self) -> CostModel | None:
        """Trained on all rows; None without xgboost."""
        try:
            model = CostModel("", SEED)
        except UsageError:
            return None
        model.fit(rows_of(self._rows))
        return model


def _computation(text: str) -> str:
    """A task's text without board and threads: its target's device and what it optimises for are
    left.
    """
    computation, _, target = text.rpartition("\ntarget ")
    words = target.partition(" threads ")[2].split()
    return "\n".join([computation, *words[1:3]])
