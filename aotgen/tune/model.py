"""The cost model: predicts log seconds of points from their features, and whether they fail.

Boosted trees (T. Chen and C. Guestrin, "XGBoost", KDD 2016), bagged (L. Breiman, "Bagging
Predictors", 1996): the spread of the bags is the uncertainty. Rows of other tasks, models and
boards make a first model; what a task's own rows say about its scale is estimated first, then trees
learn what is left. So a source on another scale does no harm, and one of no use is faded out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from aotgen.errors import UsageError
from aotgen.ir.types import Array

BAGS = 8
TEMPLATE = "template_"
"""A feature that starts so is 1 for points of the template that it names."""
MANY = 400
"""Own rows from which half of the bags will do."""
MAX_HISTORY = 3000
"""Rows of other tasks that are learned from; more cost time and add little."""
TRUST = 6.0
"""Own rows that weigh as much as the belief that other tasks' rows hold for this one."""


@dataclass(frozen=True)
class Row:
    """What is known of one point.

    Attributes:
        task: key of its task; rows of one task are on one scale.
        features: by name; a missing one is unknown.
        seconds: of one call, None where it failed.
        status: of its ``Outcome``.
    """

    task: str
    features: Mapping[str, float]
    seconds: float | None
    status: str = "ok"

    @property
    def is_timed(self) -> bool:
        return self.status == "ok" and self.seconds is not None and self.seconds > 0.0

    @property
    def log_seconds(self) -> float:
        """Of a timed row; nan for another."""
        return math.log(self.seconds) if self.seconds else math.nan


def load_xgboost() -> ModuleType:
    """The xgboost package.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import xgboost
    except ImportError as e:
        raise UsageError(
            "the tuner's cost model needs xgboost, which is not installed",
            remedy="`pip install aotgen[tune]`, or tune with --tuner ga",
        ) from e
    return xgboost


class CostModel:
    """A model of one task's points.

    Deterministic: equal rows in equal order and an equal seed give equal predictions.

    Args:
        task: key of the task; rows of other keys are history.
        seed: of the bags.
        threads: of xgboost.

    Raises:
        UsageError: xgboost is not installed.
    """

    def __init__(self, task: str, seed: int = 0, threads: int = 1) -> None:
        self.task = task
        self._xgb = load_xgboost()
        self._seed = seed
        self._threads = threads
        self._history: list[Row] = []
        self._source: _Bags | None = None
        self._own: _Bags | None = None
        self._validity: Any = None
        self._scale = 1.0
        self._offset = 0.0

    def fit(self, rows: Sequence[Row]) -> None:
        """Learn from all rows known so far, of this task and others; forgets what it knew."""
        others = [r for r in rows if r.task != self.task]
        if others != self._history:
            self._history = others
            self._fit_source()
        own = [r for r in rows if r.task == self.task and r.is_timed]
        self._fit_own(own)
        self._fit_validity(rows)

    @property
    def knows(self) -> bool:
        """Whether it has learned from any timed row."""
        return self._own is not None or self._source is not None

    def predict(self, features: Sequence[Mapping[str, float]]) -> tuple[Array, Array]:
        """(mean, standard deviation) of log seconds, each [points]; without a timed row of the
        task the means are relative to each other only.
        """
        mean, std = np.full(len(features), self._offset), np.ones(len(features))
        if not features:
            return mean, std
        if self._source is not None:
            base, spread = self._source.predict(features)
            mean = mean + self._scale * base
            std = abs(self._scale) * spread
        if self._own is not None:
            rest, spread = self._own.predict(features)
            mean = mean + rest
            std = spread if self._source is None else np.hypot(std, spread)
        return mean, std

    def validity(self, features: Sequence[Mapping[str, float]]) -> Array:
        """Probability that a point works, [points]; 1 while nothing has failed."""
        if self._validity is None or not features:
            return np.ones(len(features))
        columns, booster = self._validity
        found: Array = booster.inplace_predict(matrix(features, columns))
        return found.astype(np.float64)

    def _fit_source(self) -> None:
        """The first model: log seconds relative to each source's own level."""
        self._source = None
        timed = [r for r in self._history if r.is_timed]
        if not timed:
            return
        timed = _thinned(timed, MAX_HISTORY, self._seed)
        sources = np.unique([r.task for r in timed], return_inverse=True)[1]
        logs = np.array([r.log_seconds for r in timed])
        level = np.array([np.median(logs[sources == s]) for s in range(sources.max() + 1)])
        features = [r.features for r in timed]
        # A journal has more fast points of one source than of another: its level is what the model
        # does not explain, not its median.
        if len(level) > 1:
            rough = self._bags(features, logs - level[sources], bags=2, depth=5)
            rest = logs - level[sources] - rough.predict(features)[0]
            level = level + np.array([rest[sources == s].mean() for s in range(len(level))])
        self._source = self._bags(features, logs - level[sources], bags=4, depth=6)

    def _fit_own(self, own: Sequence[Row]) -> None:
        self._own, self._offset, self._scale = None, 0.0, 1.0
        if not own:
            return
        logs = np.array([r.log_seconds for r in own])
        features = [r.features for r in own]
        rest = logs - logs.mean()
        base = np.zeros(len(own))
        if self._source is not None:
            base = self._source.predict(features)[0]
            centred = base - base.mean()
            belief = TRUST * max(float(centred.var()), 1e-4)
            fit = (float(centred @ rest) + belief) / (float(centred @ centred) + belief)
            self._scale = min(1.5, max(0.0, fit))
            rest = rest - self._scale * centred
        self._offset = float(logs.mean() - self._scale * base.mean())
        if len(own) > 2:
            bags = BAGS if len(own) <= MANY else BAGS // 2
            self._own = self._bags(features, rest, bags=bags, depth=4)

    def _fit_validity(self, rows: Sequence[Row]) -> None:
        """A classifier of ok against failed; the task's own rows weigh more."""
        self._validity = None
        known = [r for r in rows if r.status != "link"]
        if all(r.status == "ok" for r in known):
            return
        known = _thinned(known, MAX_HISTORY, self._seed)
        columns = sorted({n for r in known for n in r.features})
        labels = np.array([r.status == "ok" for r in known], np.float64)
        weights = np.where([r.task == self.task for r in known], 1.0, 0.3)
        settings = {
            "objective": "binary:logistic",
            "base_score": min(0.95, max(0.05, float(np.average(labels, weights=weights)))),
            "max_depth": 4,
            "eta": 0.3,
            "min_child_weight": 0.1,
            "lambda": 0.5,
        }
        data = self._xgb.DMatrix(
            matrix([r.features for r in known], columns), labels, weight=weights
        )
        booster = self._xgb.train({**settings, **self._common(0)}, data, 30)
        self._validity = columns, booster

    def _bags(
        self, features: Sequence[Mapping[str, float]], values: Array, *, bags: int, depth: int
    ) -> _Bags:
        columns = sorted({n for f in features for n in f})
        data = self._xgb.DMatrix(matrix(features, columns), values)
        settings = {
            "max_depth": depth,
            "eta": 0.15,
            "min_child_weight": 1.0,
            "lambda": 0.5,
            "colsample_bynode": 0.6,
            "base_score": 0.0,
        }
        made = []
        for bag in range(bags):
            rng = np.random.default_rng((self._seed, bag))
            weights = rng.poisson(1.0, len(values)).astype(np.float64)
            if not weights.any():
                weights[:] = 1.0
            data.set_weight(weights)
            made.append(self._xgb.train({**settings, **self._common(bag)}, data, 50))
        return _Bags(columns, made)

    def _common(self, bag: int) -> dict[str, Any]:
        return {
            "nthread": self._threads,
            "seed": self._seed * 64 + bag,
            "verbosity": 0,
            "tree_method": "hist",
        }


@dataclass(frozen=True)
class _Bags:
    """Boosters that were trained on samples of the same rows."""

    columns: Sequence[str]
    boosters: Sequence[Any]

    def predict(self, features: Sequence[Mapping[str, float]]) -> tuple[Array, Array]:
        data = matrix(features, self.columns)
        each = np.array([b.inplace_predict(data) for b in self.boosters], np.float64)
        return each.mean(axis=0), each.std(axis=0)


def matrix(features: Sequence[Mapping[str, float]], columns: Iterable[str]) -> Array:
    """Features as float32 [points, columns]; nan where one is missing."""
    names = list(columns)
    rows = [[f.get(n, np.nan) for n in names] for f in features]
    return np.array(rows, np.float32).reshape(len(features), len(names))


def _thinned(rows: Sequence[Row], most: int, seed: int) -> list[Row]:
    """At most so many rows, the same share of every task's."""
    if len(rows) <= most:
        return list(rows)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(rows))[:most])
    return [rows[i] for i in chosen]
