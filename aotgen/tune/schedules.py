"""What a journal says about the Groups of a graph: plan's measured seconds and configs.

A record serves a Group when its task is the Group's, its template still prints the same C for it
and the static check accepts its knobs for the Group itself, whose constants are not the task's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aotgen.ir.graph import Graph, Group
from aotgen.schedule.base import Config, Need, ScheduleError, Template
from aotgen.schedule.plan import Proposal, moved_seconds
from aotgen.target.target import Target
from aotgen.tune.journal import Record, by_task
from aotgen.tune.outcome import Kind
from aotgen.tune.ranking import Ranked, ranked
from aotgen.tune.task import (
    Point,
    Task,
    dense_view,
    has_choice,
    kernel_hash,
    key_of,
    memory_orders,
    task_of,
    template_for,
)

Transfer = Callable[[Task], Point | None]
"""A config for a task without records of its own, or None where the default is as good."""


class Tuned:
    """A journal's records as plan asks for them (``schedule.plan.Schedules``)."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        records: Sequence[Record],
        transfer: Transfer | None = None,
    ) -> None:
        """
        Args:
            graph: with groups, as plan gets it.
            target: what kernels are rendered for.
            records: of a journal.
            transfer: asked for Groups whose task has no records.
        """
        self._target = target
        self._orders = memory_orders(graph, target)
        self._records = by_task(records)
        self._transfer = transfer
        self._keys: dict[Group, str] = {}
        self._best: dict[str, dict[str, Ranked]] = {}
        self._tasks: dict[str, Task] = {}
        self._defaults: dict[tuple[str, Point], float | None] = {}
        self._moved: dict[str, Point | None] = {}

    def __call__(self, group: Group, template: Template, config: Config) -> float | None:
        """Seconds of the best config of a template, and of its default; None of any other."""
        best = self._of(group)
        found = best.get(template.name)
        if found is None:
            return None
        if found.record.point.config == config:
            seconds: float | None = found.seconds * _scale_of(best)
        elif config == template.default(group, self._target):
            canonical = template.canonical(group, self._target, config)
            point = Point(template.name, canonical)
            seconds = self._default_seconds(self.key(group), point, best)
        else:
            return None
        if seconds is None:
            return None
        return seconds + copies_seconds(group, self._target, self._orders, template, config)

    def _default_seconds(self, key: str, point: Point, best: dict[str, Ranked]) -> float | None:
        """Of a point on the scale of ``best``; None without a record that holds."""
        if (key, point) not in self._defaults:
            known = next((r for r in ranked(self._records[key]) if r.record.point == point), None)
            seconds = None
            if known is not None and holds(self._tasks[key], known.record):
                seconds = known.seconds * _scale_of(best)
            self._defaults[key, point] = seconds
        return self._defaults[key, point]

    def proposals(self, group: Group) -> Mapping[str, Proposal]:
        """The best config of each template that was measured, else the transferred one."""
        made = {}
        for name, best in self._of(group).items():
            if fits(group, self._target, best.record.point):
                made[name] = Proposal(best.record.point.config, "tuned")
        if made or self._transfer is None or self.key(group) in self._records:
            return made
        point = self._transferred(group)
        if point is None or not fits(group, self._target, point):
            return {}
        return {point.template: Proposal(point.config, "transferred", sole=True)}

    def key(self, group: Group) -> str:
        """Of the task that a Group belongs to."""
        if group not in self._keys:
            self._keys[group] = key_of(group, self._target, self._orders)
        return self._keys[group]

    def kind(self, group: Group) -> Kind | None:
        """How the best records of a Group's task came about; None when there are none."""
        kinds = {best.record.source for best in self._of(group).values()}
        order: tuple[Kind, ...] = ("network", "measured", "modelled", "emulated")
        return next((k for k in order if k in kinds), None)

    def _of(self, group: Group) -> dict[str, Ranked]:
        """By template name, the best record of a Group's task that still holds."""
        key = self.key(group)
        if key not in self._records:
            return {}
        if key not in self._best:
            task = self._tasks[key] = task_of([group], self._target, self._orders)
            self._best[key] = best_by_template(task, self._records[key])
        return self._best[key]

    def _transferred(self, group: Group) -> Point | None:
        key = self.key(group)
        if key not in self._moved:
            point = None
            if self._transfer is not None and has_choice(group, self._target):
                point = self._transfer(task_of([group], self._target, self._orders))
            self._moved[key] = point
        return self._moved[key]


class Chosen:
    """One point a task and nothing else: what the tuner times inside the network."""

    def __init__(self, graph: Graph, target: Target, points: Mapping[str, Point]) -> None:
        """
        Args:
            graph: with groups, as plan gets it.
            target: what kernels are rendered for.
            points: by key of the task.
        """
        self._target = target
        self._orders = memory_orders(graph, target)
        self._points = points

    def __call__(self, group: Group, template: Template, config: Config) -> float | None:
        return None

    def key(self, group: Group) -> str:
        return key_of(group, self._target, self._orders)

    def kind(self, group: Group) -> Kind | None:
        return None

    def proposals(self, group: Group) -> Mapping[str, Proposal]:
        point = self._points.get(self.key(group))
        if point is None or not fits(group, self._target, point):
            return {}
        return {point.template: Proposal(point.config, "tuned", sole=True)}


def fits(group: Group, target: Target, point: Point) -> bool:
    """Whether a point is legal for a Group of a model: its template is there and applies, it has
    the template's knobs, and the static check accepts their values.
    """
    template = template_for(group, target, point.template)
    if template is None:
        return False
    knobs = {knob.name: knob.values for knob in template.space(group, target)}
    values = point.config.as_dict()
    if values.keys() != knobs.keys():
        return False
    usual = template.default(group, target).as_dict()
    for name, value in values.items():
        # True equals 1, but prints other C.
        if not any(v == value and type(v) is type(value) for v in (*knobs[name], usual.get(name))):
            return False
    try:
        template.check(group, target, point.config)
    except ScheduleError:
        return False
    return True


def best_by_template(task: Task, records: Sequence[Record]) -> dict[str, Ranked]:
    """By template name, the best of a task's records that still hold, the fastest first."""
    found: dict[str, Ranked] = {}
    for candidate in ranked(records):
        point = candidate.record.point
        if point.template not in found and holds(task, candidate.record):
            found[point.template] = candidate
    return found


def copies_seconds(
    group: Group,
    target: Target,
    orders: Mapping[str, tuple[int, ...]],
    template: Template,
    config: Config,
) -> float:
    """Modelled seconds of the copies of what lies in memory in another order than a config reads:
    what it takes alone is without them.
    """
    needs = template.needs(group, target, config)
    return sum(
        moved_seconds(value, target)
        for value in group.activations
        if (order := orders.get(value.name)) is not None
        and not needs.get(value.name, Need()).met_by(dense_view(value, order))
    )


def _scale_of(best: Mapping[str, Ranked]) -> float:
    """What makes seconds of a task's records comparable with those of other tasks: the fastest
    one's are what it took alone.
    """
    first = next(iter(best.values()), None)
    return 1.0 if first is None or first.alone is None else first.alone / first.seconds


def holds(task: Task, record: Record) -> bool:
    """Whether a record still says something: its template gives the C that was measured, or as then
    none.
    """
    current = current_kernel(task, record.point)
    return record.kernel == current and (current != "" or record.status != "ok")


def current_kernel(task: Task, point: Point) -> str:
    """The hash of the C that a point gives now; empty when it is not legal or gives none."""
    template = task.template(point.template)
    if template is None or not fits(task.group, task.target, point):
        return ""
    try:
        return kernel_hash(task.kernel(template, point.config))
    except Exception:
        return ""  # as ``bundle`` has it: "render" is what became of the candidate
