"""A task whose times are a formula: two templates whose knobs interact, and points that fail."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from aotgen.ir.graph import Group
from aotgen.schedule.base import Config, Kernel, Knob, ScheduleError, Template, Views
from aotgen.target.target import Target
from aotgen.tune.model import Row
from aotgen.tune.outcome import Candidate, Outcome, Status
from aotgen.tune.search import Tuner
from aotgen.tune.space import SearchSpace, TableSpace
from aotgen.tune.task import Point, Task

REGISTERS = 28


class Tiled(Template):
    """A register tile of mr x nr, a panel of kc steps, an unrolling: illegal where registers do not
    suffice; without panels (kc 0) ``ahead`` has no effect.
    """

    name = "tiled"

    def applies(self, group: Group, target: Target) -> str | None:
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("mr", "ordinal", tuple(range(1, 13))),
            Knob("nr", "ordinal", (1, 2, 3, 4, 6, 8)),
            Knob("kc", "ordinal", (0, 64, 128, 256, 512)),
            Knob("unroll", "ordinal", (1, 2, 4, 8)),
            Knob("ahead", "ordinal", (0, 1, 2, 4)),
            Knob("order", "categorical", ("mnk", "nmk", "kmn")),
        )

    def default(self, group: Group, target: Target) -> Config:
        return Config.of(mr=2, nr=2, kc=0, unroll=1, ahead=0, order="mnk")

    def check(self, group: Group, target: Target, config: Config) -> None:
        if config.int("mr") * config.int("nr") > REGISTERS:
            raise ScheduleError("too many accumulators")

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        values = config.as_dict()
        return Config.of(**{**values, "ahead": 0}) if values["kc"] == 0 else config

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        return features(Point(self.name, config))

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        raise NotImplementedError


class Plain(Tiled):
    """Without panels."""

    name = "plain"

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return (
            Knob("mr", "ordinal", (1, 2, 4, 6)),
            Knob("unroll", "ordinal", (1, 4)),
            Knob("packed", "boolean", (False, True)),
        )

    def default(self, group: Group, target: Target) -> Config:
        return Config.of(mr=2, unroll=1, packed=False)

    def check(self, group: Group, target: Target, config: Config) -> None:
        return None

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        return config


@dataclass(frozen=True, eq=False)
class FormulaTask(Task):
    """A task with the two templates above."""

    def templates(self) -> list[Template]:
        return [Tiled(), Plain()]


def formula_task(key: str = "0123456789abcdef") -> FormulaTask:
    return FormulaTask(key, "", "formula", Group([], None, "g"), Target("scalar"), ("g",))


def features(point: Point) -> dict[str, float]:
    """Of the formula's points: logarithms of the knobs, and the accumulators."""
    made = {f"template_{point.template}": 1.0}
    for name, value in point.config.values:
        if isinstance(value, str):
            made[f"{name}_{value}"] = 1.0
        else:
            made[f"log2_{name}"] = math.log2(1 + int(value))
    if point.template == "tiled":
        made["accumulators"] = point.config.int("mr") * point.config.int("nr")
    return made


def seconds(point: Point, scale: float = 1e-3, shift: int = 0) -> float:
    """The formula: few wide tiles are fast, panels pay off for wide ones alone, order and unrolling
    matter in part. ``shift`` moves the optimum, as another layer does.
    """
    values = point.config.as_dict()
    mr, unroll = int(values["mr"]), int(values["unroll"])
    noise = random.Random(repr(point)).uniform(0.0, 0.01)
    if point.template == "plain":
        return scale * (3.0 + 2.0 / mr - 0.3 * bool(values["packed"]) + noise)
    nr, kc, ahead = int(values["nr"]), int(values["kc"]), int(values["ahead"])
    time = 1.0 + 4.0 / (mr * nr) + 0.4 / mr + 0.5 / nr
    time += 0.12 * abs(math.log2(unroll) - 2 + shift)
    time += 0.10 * abs(math.log2(kc / 128)) if kc else 0.35
    time += {"mnk": 0.25, "nmk": 0.0, "kmn": 0.6}[str(values["order"])]
    time -= 0.08 * ahead if kc >= 128 and nr >= 4 else -0.05 * ahead
    time += 0.3 if 12 % mr else 0.0
    return scale * (time + noise)


def table(
    count: int, seed: int, key: str = "t", shift: int = 0
) -> tuple[TableSpace, dict[Point, float]]:
    """So many points of the formula's space with their seconds."""
    from aotgen.tune.space import Space

    points = list(Space(formula_task()).legal())
    random.Random(seed).shuffle(points)
    points = points[:count]
    times = {p: seconds(p, shift=shift) for p in points}
    return TableSpace(key, points, [features(p) for p in points]), times


def rows(times: dict[Point, float], key: str, scale: float = 1.0) -> list[Row]:
    return [Row(key, features(p), t * scale) for p, t in times.items()]


def outcome(point: Point, time: float | None, status: Status = "ok") -> Outcome:
    return Outcome(Candidate(formula_task(), point), status, time)


def trials_to(tuner: Tuner, times: dict[Point, float], share: float = 0.95) -> int:
    """Trials until a point is within ``share`` of the table's best, in rounds of 8."""
    goal, count = min(times.values()) / share, 0
    while points := tuner.propose(8):
        for point in points:
            count += 1
            if times[point] <= goal:
                return count
        tuner.observe([outcome(p, times[p]) for p in points])
    raise AssertionError("the table was gone through without its best point")


def permuted(times: dict[Point, float], seed: int) -> dict[Point, float]:
    """The same seconds on other points."""
    values = np.random.default_rng(seed).permutation(list(times.values()))
    return dict(zip(times, map(float, values), strict=True))


def spaces() -> list[SearchSpace]:
    from aotgen.tune.space import Space

    return [Space(formula_task()), table(200, 1)[0]]
