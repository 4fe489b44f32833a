"""A genetic search: a point's knobs are its genes.

As AutoTVM's (T. Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018): a first
population at random, then generations of children of two parents chosen by their speed, with one
crossing point and mutations; the elite stays among the parents.
"""

from __future__ import annotations

from collections.abc import Iterator

from aotgen.tune.search import BaseTuner
from aotgen.tune.space import Place, SearchSpace
from aotgen.tune.task import Point


class GaTuner(BaseTuner):
    """A genetic search.

    Args:
        space: of the task.
        seed: of everything random.
        population: points of a generation.
        elites: the best points so far, which are parents of every generation.
        mutation: probability that a gene of a child is drawn anew.
    """

    ATTEMPTS = 50
    """Children that may be known already before a random point takes their place."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int = 0,
        *,
        population: int = 16,
        elites: int = 4,
        mutation: float = 0.1,
    ) -> None:
        super().__init__(space, seed)
        self._population = population
        self._elites = elites
        self._mutation = mutation
        self._generation: list[Point] = []
        self._parents: list[Point] = []

    def _points(self) -> Iterator[Point]:
        while True:
            if len(self._generation) >= self._population:
                self._next_generation()
            point = self._child() if self._parents else None
            if point is None:
                point = next(self.unseen(), None)
            if point is None:
                return
            self._generation.append(point)
            yield point

    def _next_generation(self) -> None:
        """The parents: the measured points of the last generation and the elite."""
        known = [p for p in self.timed if self.space.is_legal(p)]
        elite = sorted(known, key=lambda p: (self.timed[p], self.space.index(p)))
        last = [p for p in self._generation if p in self.timed]
        self._parents = list(dict.fromkeys([*elite[: self._elites], *last]))
        self._generation = []

    def _child(self) -> Point | None:
        """A point that was not seen; None when parents and luck give none."""
        fitness = [1.0 / self.timed[p] for p in self._parents]
        for _ in range(self.ATTEMPTS):
            mother, father = self.rng.choices(self._parents, fitness, k=2)
            genes = self.space.place(mother)
            if father.template == mother.template and len(genes) > 1:
                cut = self.rng.randrange(1, len(genes))
                genes = (*genes[:cut], *self.space.place(father)[cut:])
            child = self.space.near(mother.template, self._mutated(mother.template, genes))
            if child is not None and child not in self.seen:
                return child
        return None

    def _mutated(self, template: str, genes: Place) -> Place:
        knobs = self.space.knobs[template]
        return tuple(
            self.rng.randrange(len(k.values)) if self.rng.random() < self._mutation else g
            for k, g in zip(knobs, genes, strict=True)
        )
