"""Spaces: all points of a task, numbered, with neighbours.

A point has a place in the space of its template: for each knob the index of its value. Searches see
``SearchSpace`` alone, so that they also run on a recorded table (``TableSpace``).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random

import numpy as np

from aotgen.ir.types import Array
from aotgen.schedule.base import Config, Knob, KnobKind, KnobValue, Template
from aotgen.schedule.registry import preferred
from aotgen.tune.model import TEMPLATE
from aotgen.tune.task import Point, Task

Place = tuple[int, ...]
"""Of every knob, in the order of the template's space, the index of its value."""

TRIES = 400
"""Random places that are tried for a legal one before the rest are gone through in order."""
ENUMERABLE = 4096
"""Points of a space up to which all of them are checked once."""


class SearchSpace(ABC):
    """What a search knows of the points of one task.

    Attributes:
        key: of the task.
        knobs: by template name, in the templates' order.
    """

    key: str
    knobs: Mapping[str, tuple[Knob, ...]]

    @property
    @abstractmethod
    def size(self) -> int:
        """Points, legal or not."""

    @abstractmethod
    def point(self, index: int) -> Point:
        """The point of a number in [0, size).

        Raises:
            IndexError: there is no such number.
        """

    @abstractmethod
    def index(self, point: Point) -> int:
        """The number of a point.

        Raises:
            KeyError: it is not in the space.
        """

    @abstractmethod
    def is_legal(self, point: Point) -> bool:
        """Whether it is in the space and the static check accepts it."""

    def representative(self, point: Point) -> Point:
        """Of all legal points that give the same kernel as this legal one, the one that a search
        looks at.
        """
        return point

    @abstractmethod
    def default(self) -> list[Point]:
        """Where a search starts: the templates' defaults, that of compile first: of the templates
        that it chooses from the fastest by its model.
        """

    @abstractmethod
    def neighbours(self, point: Point) -> list[Point]:
        """Legal points one change away, in a fixed order."""

    @abstractmethod
    def near(self, template: str, place: Place) -> Point | None:
        """The legal point at this place, or what comes next to it; None when nothing does."""

    @abstractmethod
    def features(self, point: Point) -> Mapping[str, float]:
        """What the model sees of a point (``Template.features``). Not to be changed."""

    @abstractmethod
    def cost(self, point: Point) -> float:
        """Modelled seconds of one call, inf when no model says."""

    def modelled_seconds(self) -> float:
        """Of one call with compile's default, by its template's model; 0 when there is none."""
        return next((c for p in self.default() if math.isfinite(c := self.cost(p))), 0.0)

    def place(self, point: Point) -> Place:
        """Where a point lies in its template's space.

        Raises:
            KeyError: it is not in the space.
        """
        values = point.config.as_dict()
        knobs = self.knobs[point.template]
        if len(values) != len(knobs):
            raise KeyError(point)
        return tuple(self._steps[point.template][i][values[k.name]] for i, k in enumerate(knobs))

    def at(self, template: str, place: Place) -> Point:
        """The point at a place, legal or not."""
        knobs = self.knobs[template]
        values = {k.name: k.values[i] for k, i in zip(knobs, place, strict=True)}
        return Point(template, Config.of(**values))

    def random(self, rng: Random) -> Point | None:
        """A legal point; the templates by the logarithm of their sizes, so that a small space is
        not lost beside a large one. None when no point is legal.
        """
        names = list(self.knobs)
        weights = [1.0 + math.log2(self._sizes[n]) for n in names]
        for _ in range(TRIES):
            name = rng.choices(names, weights)[0]
            point = self.at(name, self._random_place(name, rng))
            if self.is_legal(point):
                return self.representative(point)
        start = rng.randrange(self.size)
        numbers = itertools.chain(range(start, self.size), range(start))
        points = (p for i in numbers if self.is_legal(p := self.point(i)))
        return next((self.representative(p) for p in points), None)

    def legal(self) -> Iterator[Point]:
        """All legal points by number, of those that give the same kernel one."""
        points = (self.point(i) for i in range(self.size))
        return (p for p in points if self.is_legal(p) and self.representative(p) == p)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {n: math.prod(len(k.values) for k in knobs) for n, knobs in self.knobs.items()}

    @cached_property
    def _steps(self) -> dict[str, list[dict[KnobValue, int]]]:
        """By template, for each knob: its values' indices."""
        return {
            n: [{v: i for i, v in enumerate(k.values)} for k in s] for n, s in self.knobs.items()
        }

    def _random_place(self, name: str, rng: Random) -> Place:
        return tuple(rng.randrange(len(k.values)) for k in self.knobs[name])


class Space(SearchSpace):
    """Every template that can implement a task, with every value of its knobs.

    Points are numbered in mixed radix, template by template, the last knob fastest.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.key = task.key
        self.templates: list[Template] = task.templates()
        self.knobs = {t.name: t.space(task.group, task.target) for t in self.templates}
        self._by_name = {t.name: t for t in self.templates}
        self._legal: dict[Point, bool] = {}
        self._features: dict[Point, Mapping[str, float]] = {}

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def point(self, index: int) -> Point:
        if index < 0:
            raise IndexError(index)
        rest = index
        for name, knobs in self.knobs.items():
            if rest < self._sizes[name]:
                place = []
                for knob in reversed(knobs):
                    rest, step = divmod(rest, len(knob.values))
                    place.append(step)
                return self.at(name, tuple(reversed(place)))
            rest -= self._sizes[name]
        raise IndexError(index)

    def index(self, point: Point) -> int:
        place = self.place(point)
        number = 0
        for knob, step in zip(self.knobs[point.template], place, strict=True):
            number = number * len(knob.values) + step
        names = list(self.knobs)
        return number + sum(self._sizes[n] for n in names[: names.index(point.template)])

    def is_legal(self, point: Point) -> bool:
        known = self._legal.get(point)
        if known is None:
            known = self._contains(point) and self.task.is_legal(
                self._by_name[point.template], point.config
            )
            self._legal[point] = known
        return known

    def representative(self, point: Point) -> Point:
        template = self._by_name[point.template]
        config = template.canonical(self.task.group, self.task.target, point.config)
        return point if config == point.config else Point(point.template, config)

    def default(self) -> list[Point]:
        group, target = self.task.group, self.task.target
        found = [Point(t.name, t.default(group, target)) for t in self.templates]
        legal = [self.representative(p) for p in found if self.is_legal(p)]
        usual = {t.name for t in preferred(self.templates)}
        return sorted(legal, key=lambda p: (p.template not in usual, self.cost(p)))

    def neighbours(self, point: Point) -> list[Point]:
        """One step of an ordinal knob, another value of a categorical or boolean one, and in every
        other template the point of the most similar knobs.

        A step goes on over values that are not legal, or change nothing, to the next one. So
        within a template neighbours are mutual, unless a step makes another knob one without
        effect.
        """
        place = self.place(point)
        found: dict[Point, None] = {}
        for axis, knob in enumerate(self.knobs[point.template]):
            here, most = place[axis], len(knob.values)
            ways: list[Sequence[int]] = [range(here - 1, -1, -1), range(here + 1, most)]
            if knob.kind != "ordinal":
                ways = [(step,) for step in range(most) if step != here]
            for way in ways:
                for step in way:
                    moved = self.at(point.template, (*place[:axis], step, *place[axis + 1 :]))
                    if self.is_legal(moved) and (other := self.representative(moved)) != point:
                        found[other] = None
                        break
        for name in self.knobs:
            if name != point.template:
                other = self._translated(point, name)
                if self.is_legal(other):
                    found[self.representative(other)] = None
        return list(found)

    def near(self, template: str, place: Place) -> Point | None:
        point = self.at(template, place)
        return self.representative(point) if self.is_legal(point) else None

    def features(self, point: Point) -> Mapping[str, float]:
        known = self._features.get(point)
        if known is None:
            template = self._by_name[point.template]
            own = template.features(self.task.group, self.task.target, point.config)
            known = {**own, f"{TEMPLATE}{point.template}": 1.0}
            self._features[point] = known
        return known

    def cost(self, point: Point) -> float:
        template = self._by_name[point.template]
        return template.cost(self.task.group, self.task.target, point.config)

    def random(self, rng: Random) -> Point | None:
        if self.size <= ENUMERABLE:
            return rng.choice(self._all_legal) if self._all_legal else None
        return super().random(rng)

    @cached_property
    def _all_legal(self) -> list[Point]:
        return list(self.legal())

    def _contains(self, point: Point) -> bool:
        try:
            self.place(point)
        except KeyError:
            return False
        return True

    def _translated(self, point: Point, template: str) -> Point:
        """The point of another template: knobs of the same name keep their value or the nearest
        one, the rest are the template's default.
        """
        values = point.config.as_dict()
        default = self._by_name[template].default(self.task.group, self.task.target)
        made = default.as_dict()
        for knob in self.knobs[template]:
            if knob.name in values:
                made[knob.name] = _nearest(knob, values[knob.name], made[knob.name])
        return Point(template, Config.of(**made))


class TableSpace(SearchSpace):
    """The points of a recorded table and no others: all legal.

    Neighbours are the nearest points in knob space, since few are one step apart. Knobs have the
    values that occur in the table.

    Args:
        key: of the task.
        points: the table's.
        features: of each point.
        kinds: of knobs that are not ordinal.
    """

    NEAREST = 10
    """Neighbours of a point, before they are made mutual."""

    def __init__(
        self,
        key: str,
        points: Sequence[Point],
        features: Sequence[Mapping[str, float]],
        kinds: Mapping[str, KnobKind] | None = None,
    ) -> None:
        self.key = key
        self._points = list(points)
        self._features = list(features)
        self._index = {p: i for i, p in enumerate(self._points)}
        if len(self._index) != len(self._points):
            raise ValueError(f"the table of task {key} has a point twice")
        self.knobs = _knobs_of(self._points, kinds or {})

    @property
    def size(self) -> int:
        return len(self._points)

    def point(self, index: int) -> Point:
        if index < 0:
            raise IndexError(index)
        return self._points[index]

    def index(self, point: Point) -> int:
        return self._index[point]

    def is_legal(self, point: Point) -> bool:
        return point in self._index

    def default(self) -> list[Point]:
        """None: every search is to find its own way."""
        return []

    def neighbours(self, point: Point) -> list[Point]:
        return [self._points[i] for i in self._near[self._index[point]]]

    def near(self, template: str, place: Place) -> Point | None:
        rows, coordinates = self._coordinates[template]
        wanted = self._scaled(template, place)
        return self._points[rows[int(np.argmin(np.abs(coordinates - wanted).sum(axis=1)))]]

    def features(self, point: Point) -> Mapping[str, float]:
        return self._features[self._index[point]]

    def cost(self, point: Point) -> float:
        return math.inf

    def random(self, rng: Random) -> Point | None:
        return rng.choice(self._points) if self._points else None

    @cached_property
    def _near(self) -> list[list[int]]:
        """Of each point its nearest ones, made mutual, by distance."""
        found: list[dict[int, float]] = [{} for _ in self._points]
        for rows, coordinates in self._coordinates.values():
            for i, row in enumerate(rows):
                distance = np.abs(coordinates - coordinates[i]).sum(axis=1)
                for j in np.argsort(distance, kind="stable")[: self.NEAREST + 1]:
                    if j != i:
                        found[row][rows[j]] = found[rows[j]][row] = float(distance[j])
        return [sorted(near, key=lambda j: (near[j], j)) for near in found]

    @cached_property
    def _coordinates(self) -> dict[str, tuple[list[int], Array]]:
        """By template: its points' numbers and their scaled places, [points, coordinates]."""
        made = {}
        for name in self.knobs:
            rows = [i for i, p in enumerate(self._points) if p.template == name]
            places = [self._scaled(name, self.place(self._points[i])) for i in rows]
            made[name] = rows, np.array(places, np.float64).reshape(len(rows), -1)
        return made

    def _scaled(self, template: str, place: Place) -> Array:
        """Coordinates whose absolute differences add up to the distance: one for each step of an
        ordinal knob, one for two different values of another one.
        """
        made: list[float] = []
        for knob, step in zip(self.knobs[template], place, strict=True):
            if knob.kind == "ordinal":
                made.append(float(step))
            else:
                made.extend(0.5 * (i == step) for i in range(len(knob.values)))
        return np.array(made)


def _nearest(knob: Knob, value: KnobValue, otherwise: KnobValue) -> KnobValue:
    """The value of an ordinal knob that is nearest to another knob's of its name."""
    if value in knob.values:
        return value
    if knob.kind != "ordinal" or isinstance(value, str):
        return otherwise
    return min(knob.values, key=lambda v: (abs(int(v) - int(value)), int(v)))


def _knobs_of(
    points: Sequence[Point], kinds: Mapping[str, KnobKind]
) -> dict[str, tuple[Knob, ...]]:
    """By template, its knobs with the values that occur."""
    values: dict[str, dict[str, set[KnobValue]]] = {}
    for point in points:
        own = values.setdefault(point.template, {})
        for name, value in point.config.values:
            own.setdefault(name, set()).add(value)
    made = {}
    for template, knobs in values.items():
        found = []
        for name, some in knobs.items():
            text = any(isinstance(v, str) for v in some)
            kind = kinds.get(name, "categorical" if text else "ordinal")
            found.append(Knob(name, kind, tuple(sorted(some, key=_sort_key))))
        made[template] = tuple(found)
    return made


def _sort_key(value: KnobValue) -> tuple[bool, int, str]:
    return (True, 0, value) if isinstance(value, str) else (False, int(value), "")
