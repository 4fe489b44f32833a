"""An AutoTVM-like search, the rival of evaluate.py.

After T. Chen et al., "Learning to Optimize Tensor Programs" (NeurIPS 2018) and TVM's XGBTuner with
its default settings: 64 random points, then rounds of 64 that simulated annealing finds on a model
that is trained on all points so far, 5 % of them at random. It sees the same features as aotgen's
search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aotgen.tune.model import load_xgboost, matrix
from aotgen.tune.search import BaseTuner
from aotgen.tune.space import TableSpace
from aotgen.tune.task import Point


class AutoTvmLike(BaseTuner):
    """Works on tables alone: annealing walks from neighbour to neighbour.

    Args:
        space: of the table.
        seed: of everything random.
    """

    PLAN = 64
    CHAINS = 128
    STEPS = 500
    PATIENCE = 50
    EPSILON = 0.05
    ROUNDS = 50

    def __init__(self, space: TableSpace, seed: int = 0) -> None:
        super().__init__(space, seed)
        self._table = space
        self._numpy = np.random.default_rng(seed)
        self._plan: list[Point] = []
        self._chains = self._numpy.integers(0, space.size, self.CHAINS)
        near = [[space.index(q) for q in space.neighbours(p)] for p in space.legal()]
        self._degree = np.array([len(n) for n in near])
        self._near = np.zeros((space.size, self._degree.max()), np.int64)
        for row, some in enumerate(near):
            self._near[row, : len(some)] = some
        self._features = [space.features(p) for p in space.legal()]

    def _points(self) -> Iterator[Point]:
        while True:
            if not self._plan:
                self._plan = self._next_plan()
            if not self._plan:
                return
            yield self._plan.pop(0)

    def _next_plan(self) -> list[Point]:
        fresh = list(self.unseen())
        if len(self.timed) < self.PLAN:
            return fresh[: self.PLAN]
        by_model = self._anneal()
        chosen: list[Point] = []
        for point in by_model:
            if len(chosen) >= self.PLAN:
                break
            if self.rng.random() < self.EPSILON and fresh:
                chosen.append(fresh.pop())
            chosen.append(point)
        return list(dict.fromkeys(chosen)) or fresh[: self.PLAN]

    def _anneal(self) -> list[Point]:
        """Unseen points that the chains came by, the best by the model first."""
        scores = self._model()
        found = np.zeros(len(scores), bool)
        here = self._chains
        found[here] = True
        best, waited = -np.inf, 0
        for step in range(self.STEPS):
            heat = 1.0 - step / self.STEPS
            draw = self._numpy.integers(0, 1 << 30, self.CHAINS) % self._degree[here]
            there = self._near[here, draw]
            gain = scores[there] - scores[here]
            accept = self._numpy.random(self.CHAINS) < np.exp(
                np.minimum(0.0, gain / max(heat, 1e-5))
            )
            here = np.where(accept, there, here)
            found[there] = True
            waited = 0 if scores[here].max() > best else waited + 1
            best = max(best, float(scores[here].max()))
            if waited > self.PATIENCE:
                break
        self._chains = here
        order = [int(i) for i in np.argsort(-scores, kind="stable") if found[i]]
        points = [self._table.point(i) for i in order]
        return [p for p in points if p not in self.seen]

    def _model(self) -> np.ndarray:
        """Predicted speed of every point of the table, relative to the best known."""
        xgboost = load_xgboost()
        columns = sorted({n for f in self._features for n in f})
        data = matrix(self._features, columns)
        known = np.array([self._table.index(p) for p in self.timed])
        times = np.array(list(self.timed.values()))
        settings = {
            "max_depth": 3,
            "gamma": 0.0001,
            "min_child_weight": 1,
            "eta": 0.3,
            "lambda": 1.0,
            "nthread": 1,
            "seed": 0,
            "verbosity": 0,
        }
        rows = xgboost.DMatrix(data[known], times.min() / times)
        booster = xgboost.train(settings, rows, self.ROUNDS)
        return np.asarray(booster.inplace_predict(data), np.float64)
