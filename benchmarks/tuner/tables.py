"""Recorded tables: the seconds of many points of a task, on which searches are replayed."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from layers import layer_task

from aotgen.schedule.base import Config
from aotgen.target.target import Target
from aotgen.tune.model import Row
from aotgen.tune.space import Space, TableSpace
from aotgen.tune.task import Point

FOLDER = Path(__file__).resolve().parent / "tables"
GOAL = 0.95
"""A point is good when it reaches this share of the best one's speed."""


@dataclass(frozen=True)
class Table:
    """What one layer's points take.

    Attributes:
        layer: of ``layers.LAYERS``.
        title: of its task.
        target: it was recorded on.
        seconds: of one call, by point.
        about: how it was recorded.
    """

    layer: str
    title: str
    target: Target
    seconds: Mapping[Point, float]
    about: Mapping[str, Any]

    @property
    def goal(self) -> float:
        """Seconds that a good point takes at most."""
        return min(self.seconds.values()) / GOAL

    @property
    def good(self) -> int:
        """How many good points there are."""
        return sum(t <= self.goal for t in self.seconds.values())

    @cached_property
    def space(self) -> TableSpace:
        """The points as a space; what a template gives as features now, not when it was recorded.

        Raises:
            ValueError: a template has changed so much that a point is not in its space.
        """
        whole = Space(layer_task(self.layer, self.target))
        unknown = [p for p in self.seconds if not whole.is_legal(p)]
        if unknown:
            raise ValueError(
                f"table {self.layer}: {len(unknown)} points are not in their templates' spaces any "
                f"more, such as {unknown[0]}; record it anew with record.py"
            )
        kinds = {k.name: k.kind for knobs in whole.knobs.values() for k in knobs}
        features = [whole.features(p) for p in self.seconds]
        return TableSpace(self.layer, list(self.seconds), features, kinds)

    def rows(self) -> list[Row]:
        """The whole table as history for searches of other tasks."""
        return [Row(self.layer, self.space.features(p), t) for p, t in self.seconds.items()]

    def permuted(self, seed: int) -> Table:
        """The same seconds on other points."""
        times = list(self.seconds.values())
        random.Random(seed).shuffle(times)
        made = Table(
            self.layer,
            self.title,
            self.target,
            dict(zip(self.seconds, times, strict=True)),
            self.about,
        )
        made.__dict__["space"] = self.space
        return made


def save(table: Table, folder: Path = FOLDER) -> Path:
    """Write a table as xz-compressed JSON: knob values in columns, seconds with five digits."""
    by_template: dict[str, dict[str, list[Any]]] = {}
    for point, time in table.seconds.items():
        columns = by_template.setdefault(point.template, {})
        for name, value in [*point.config.values, ("seconds", float(f"{time:.5g}"))]:
            columns.setdefault(name, []).append(value)
    target = {**asdict(table.target), "features": sorted(table.target.features)}
    data = {
        "layer": table.layer,
        "title": table.title,
        "target": target,
        "about": dict(table.about),
        "points": by_template,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table.layer}.json.xz"
    path.write_bytes(lzma.compress(json.dumps(data, separators=(",", ":")).encode(), preset=9))
    return path


def load(layer: str, folder: Path = FOLDER) -> Table:
    """Read a table.

    Raises:
        FileNotFoundError: it was not recorded.
    """
    data = json.loads(lzma.decompress((folder / f"{layer}.json.xz").read_bytes()))
    target = Target(**{**data["target"], "features": frozenset(data["target"]["features"])})
    seconds: dict[Point, float] = {}
    for template, columns in data["points"].items():
        names = [n for n in columns if n != "seconds"]
        for row, time in enumerate(columns["seconds"]):
            config = Config.of(**{n: columns[n][row] for n in names})
            seconds[Point(template, config)] = time
    return Table(data["layer"], data["title"], target, seconds, data["about"])


def cut(
    seconds: Mapping[Point, float], count: int, share: float = 0.01, seed: int = 0
) -> dict[Point, float]:
    """At most so many points of a larger sample, at most this share of them good: the best one and
    others by chance, then bad ones by chance. The order is by chance, too.

    Where a template's points are nearly all good, a search could not show what it is worth.
    """
    rng = random.Random(seed)
    order = list(seconds)
    rng.shuffle(order)
    best = min(order, key=seconds.__getitem__)
    good = [p for p in order if seconds[p] <= seconds[best] / GOAL and p != best]
    bad = [p for p in order if seconds[p] > seconds[best] / GOAL]
    some = [best, *good[: max(0, int(min(count, len(bad)) * share) - 1)]]
    chosen = [*some, *bad[: count - len(some)]]
    rng.shuffle(chosen)
    return {p: seconds[p] for p in chosen}
