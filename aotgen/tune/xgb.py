"""The default search: a cost model chooses among neighbours of the best points and all others.

A start set (defaults, what the templates' own models or other tasks' measurements favour, and
points spread over the space), then rounds of three parts: neighbours of the best points ordered by
the model; points of the whole space by mean - BETA * deviation (a lower confidence bound: N.
Srinivas et al., "Gaussian Process Optimization in the Bandit Setting", ICML 2010) at a distance
from each other; and some at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from aotgen.ir.types import Array
from aotgen.tune.model import CostModel, Row
from aotgen.tune.outcome import Outcome
from aotgen.tune.search import BaseTuner
from aotgen.tune.space import ENUMERABLE, SearchSpace
from aotgen.tune.task import Point


class XgbTuner(BaseTuner):
    """The search by a cost model.

    Args:
        space: of the task.
        seed: of everything random.
        history: what is known of other tasks, models and boards. Rows of this task are left out:
            ``observe`` is told of them.

    Raises:
        UsageError: xgboost is not installed.
    """

    START = 12
    LOCAL = 0.5
    """Share of a round that are neighbours of the best points."""
    RANDOM = 2
    """Points of a round at random; a quarter of a small round."""
    BEST = 4
    """Points whose neighbours a round looks at."""
    BETA = 1.0
    DIVERSITY = 0.5
    """What lying at a chosen point costs another one, in standard deviations of all scores."""
    POOL = 1200
    """Unseen points that a round chooses from, where the space is too large for all of them."""
    FRESH = 200
    """Points of such a pool that are drawn anew each round."""
    LATER = 16
    """Least rows of other tasks, measured meanwhile, for which their model is trained anew."""
    CLIMBS = 6
    """Points of such a pool from where the model looks for better ones, step by step."""

    def __init__(self, space: SearchSpace, seed: int = 0, history: Sequence[Row] = ()) -> None:
        super().__init__(space, seed)
        self.model = CostModel(space.key, seed)
        self._history = [r for r in history if r.task != space.key]
        self._later: list[Row] = []
        self._rows: list[Row] = []
        self._fitted = -1
        self._start: list[Point] | None = None
        self._pool: dict[Point, None] = {}
        self._gain = 1.0

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        super().observe(outcomes)
        for outcome in outcomes:
            point = outcome.candidate.point
            if outcome.status != "link" and self.space.is_legal(point):
                features = self.space.features(point)
                self._rows.append(Row(self.space.key, features, outcome.seconds, outcome.status))

    def learn(self, rows: Sequence[Row]) -> None:
        """Other tasks' model is trained anew when there are a quarter more rows of them."""
        self._later += [r for r in rows if r.task != self.space.key]
        if len(self._later) >= max(self.LATER, len(self._history) // 4):
            self._history += self._later
            self._later = []
            self._fitted = -1

    def expected_gain(self) -> float:
        """What the model promised in the last round, less for every trial that brought nothing."""
        if not self.timed:
            return 1.0
        return float(max(self._gain, 0.01) * 0.7 ** (self.stale / 8))

    def propose(self, n: int) -> list[Point]:
        if n <= 0:
            return []
        chosen: list[Point] = []
        if self.trials < self.START:
            if self._start is None:
                self._start = self._start_set()
            chosen = [p for p in self._start if p not in self.seen][:n]
            self.seen.update(chosen)
        if len(chosen) < n:
            self._refit()
            if self.model.knows:
                chosen += self._round(n - len(chosen))
        return chosen + super().propose(n - len(chosen))

    def _points(self) -> Iterator[Point]:
        return self.unseen()

    def _start_set(self) -> list[Point]:
        """The defaults, then by turns the most promising point and the one that is farthest from
        all chosen ones. With a history only every fourth is such a far one.
        """
        defaults = [p for p in self.space.default() if p not in self.seen][: self.START // 2]
        pool = [p for p in self._candidates() if p not in defaults]
        if not pool:
            return defaults
        scores = self._prior(pool)
        chosen = _Chosen(self._coordinates([*defaults, *pool]), len(defaults))
        far = 1 if scores is None else 4 if self._history else 2
        while len(chosen.rows) < min(self.START - len(defaults), len(pool)):
            if (len(chosen.rows) + 1) % far == 0:
                row = self._far(chosen)
            else:
                assert scores is not None
                row = int(np.argmin(self._spread_out(scores, chosen)))
            chosen.add(row)
        return [*defaults, *(pool[r] for r in chosen.rows)]

    def _far(self, chosen: _Chosen) -> int:
        if not np.isfinite(chosen.distance).any():
            return self.rng.randrange(len(chosen.distance))
        return int(np.argmax(chosen.distance))

    def _prior(self, pool: Sequence[Point]) -> Array | None:
        """Log seconds that are expected before this task was measured; None where nothing is."""
        self._refit()
        if self.model.knows:
            return self._scores(pool, beta=0.0)[0]
        costs = np.array([self.space.cost(p) for p in pool])
        if not (np.isfinite(costs) & (costs > 0.0)).any():
            return None
        worst = costs[np.isfinite(costs)].max()
        return np.asarray(np.log(np.clip(costs, 1e-12, worst)))

    def _round(self, n: int) -> list[Point]:
        """One round by the model, the most promising points first."""
        draws = min(self.RANDOM, n // 4)
        local = round((n - draws) * self.LOCAL)
        chosen: dict[Point, float] = {}
        near = self._near_best()
        if near and local:
            scores, _ = self._scores(near, beta=0.0)
            for row in np.argsort(scores, kind="stable")[:local]:
                chosen[near[row]] = float(scores[row])
        pool = [p for p in self._candidates() if p not in chosen]
        wanted = n - draws - len(chosen)
        if pool and wanted > 0:
            scores, means = self._scores(pool, beta=self.BETA)
            self._expect(means)
            picked = _Chosen(self._coordinates([*chosen, *pool]), len(chosen))
            for _ in range(min(wanted, len(pool))):
                row = int(np.argmin(self._spread_out(scores, picked)))
                picked.add(row)
                chosen[pool[row]] = float(means[row])
        found = sorted(chosen, key=chosen.__getitem__)
        self.seen.update(found)
        for point in found:
            self._pool.pop(point, None)
        return found

    def _near_best(self) -> list[Point]:
        """Neighbours of the best points that were not seen."""
        best = sorted(self.timed, key=lambda p: self.timed[p])[: self.BEST]
        near = {q: None for p in best if self.space.is_legal(p) for q in self.space.neighbours(p)}
        return [p for p in near if p not in self.seen]

    def _candidates(self) -> list[Point]:
        """Unseen points: all of a small space, else some, and where the model leads from them."""
        if self.space.size <= ENUMERABLE:
            if not self._pool:
                self._pool = dict.fromkeys(self.space.legal())
        else:
            kept = islice(self._pool, max(0, self.POOL - self.FRESH))
            self._pool = {p: None for p in kept if p not in self.seen}
            missing = self.POOL - len(self._pool)
            self._pool.update(dict.fromkeys(islice(self.unseen(), missing)))
            if self.model.knows:
                self._climb()
        return [p for p in self._pool if p not in self.seen]

    def _climb(self) -> None:
        """Put the most promising points of the pool first, and before them what a few steps from
        neighbour to neighbour lead to.
        """
        pool = list(self._pool)
        scores, _ = self._scores(pool, beta=self.BETA)
        order = np.argsort(scores, kind="stable")
        found: dict[Point, float] = {}
        for row in order[: self.CLIMBS]:
            here, score = pool[row], float(scores[row])
            for _ in range(4):
                near = [p for p in self.space.neighbours(here) if p not in self.seen]
                if not near:
                    break
                there, _ = self._scores(near, beta=self.BETA)
                found.update(zip(near, map(float, there), strict=True))
                if there.min() >= score:
                    break
                here, score = near[int(np.argmin(there))], float(there.min())
        first = sorted(found, key=found.__getitem__)[: self.POOL // 4]
        self._pool = dict.fromkeys([*first, *(pool[r] for r in order)])

    def _scores(self, points: Sequence[Point], beta: float) -> tuple[Array, Array]:
        """(what a search minimises, means): log seconds, each [points]. A point that may fail
        scores worse.
        """
        features = [self.space.features(p) for p in points]
        means, deviations = self.model.predict(features)
        scores = means - beta * deviations
        unit = float(means.std()) or 1.0
        valid = np.clip(self.model.validity(features), 0.02, 1.0)
        return scores - unit * np.log(valid), means

    def _spread_out(self, scores: Array, chosen: _Chosen) -> Array:
        """Scores with the diversity penalty; inf for what is chosen."""
        near = np.exp(-chosen.distance)
        unit = float(scores.std()) or 1.0
        spread: Array = scores + self.DIVERSITY * unit * near
        spread[chosen.rows] = np.inf
        return spread

    def _expect(self, means: Array) -> None:
        best = self.best
        if best is not None:
            gain = 1.0 - math.exp(min(0.0, float(means.min()) - math.log(best[1])))
            self._gain = min(0.5, gain)

    def _refit(self) -> None:
        if self._fitted != len(self._rows):
            self._fitted = len(self._rows)
            self.model.fit([*self._history, *self._rows])

    def _coordinates(self, points: Sequence[Point]) -> Array:
        """Places as [points, knobs of all templates], every knob from 0 to 1."""
        starts, width = {}, 0
        for name, knobs in self.space.knobs.items():
            starts[name] = width
            width += 1 + len(knobs)
        made = np.zeros((len(points), width))
        for row, point in enumerate(points):
            at = starts[point.template]
            made[row, at] = 1.0
            for i, step in enumerate(self.space.place(point)):
                values = self.space.knobs[point.template][i].values
                made[row, at + 1 + i] = step / max(1, len(values) - 1)
        return made


class _Chosen:
    """Points chosen from a pool, and how far every other one is from the nearest of them.

    Args:
        coordinates: [chosen before + pool, knobs].
        before: how many of the rows were chosen before.
    """

    def __init__(self, coordinates: Array, before: int) -> None:
        self._pool = coordinates[before:]
        self.rows: list[int] = []
        self.distance = np.full(len(self._pool), np.inf)
        for place in coordinates[:before]:
            self._include(place)

    def add(self, row: int) -> None:
        self.rows.append(row)
        self._include(self._pool[row])

    def _include(self, place: Array) -> None:
        self.distance = np.minimum(self.distance, np.abs(self._pool - place).sum(axis=1))
