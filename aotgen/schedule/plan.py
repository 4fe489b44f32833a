"""plan: the template, knobs and layout of every Group, chosen together.

Every compute Group has alternatives (template, config). Each has a cost: measured (a journal's
record) or else modelled by its template. Alternatives that disagree about a layout pay for the copy
between them, so the choice is made by dynamic programming over the Groups in execution order, and
the memory of every value is then resolved (``aotgen.memory.storage``). Works with no board and no
journal at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aotgen.errors import InternalError, Problem, UnsupportedError
from aotgen.ir.graph import Graph, Group, Value
from aotgen.memory.relations import is_view_op
from aotgen.memory.storage import StorageMap, Use, resolve
from aotgen.schedule.base import Config, Need, Template, View
from aotgen.target.target import Target

MAX_RANK = 8
"""Most axes of a tensor: the generated trace hook describes views of so many."""

Measured = Callable[[Group, Template, Config], float | None]
"""Seconds of a config from a journal, or None when it was never measured."""

COPY_BYTES_PER_SECOND = 4e9
"""What a layout copy is modelled to move, reads and writes together: a small core's memory
bandwidth.
"""


@dataclass(frozen=True)
class Choice:
    """What implements one compute Group.

    Attributes:
        template: the chosen one.
        config: its knobs.
        seconds: measured or modelled; infinite when the template has no model.
        measured: whether ``seconds`` comes from a journal.
    """

    template: Template
    config: Config
    seconds: float
    measured: bool = False


@dataclass
class Plan:
    """The outcome for a graph.

    Attributes:
        choices: by Group name; view Groups have none.
        storage: memory and views of every activation.
    """

    choices: dict[str, Choice] = field(default_factory=dict)
    storage: StorageMap = field(default_factory=StorageMap)


def is_view_group(group: Group) -> bool:
    """Whether the Group is a lone view op, which moves no numbers where memory allows."""
    return len(group.nodes) == 1 and is_view_op(group.nodes[0])


def alternatives(group: Group, target: Target, measured: Measured | None = None) -> list[Choice]:
    """Every template that can implement ``group``, with its default config, in the registry's order
    of preference; none when the group is one of ``unsupported``.
    """
    from aotgen.schedule.registry import candidates

    found: list[Choice] = []
    for template in candidates(group, target):
        config = template.default(group, target)
        seconds = measured(group, template, config) if measured else None
        modelled = template.cost(group, target, config) if seconds is None else seconds
        found.append(Choice(template, config, modelled, seconds is not None))
    return found


def unsupported(graph: Graph, target: Target) -> tuple[Problem, ...]:
    """The compute Groups that no template can implement, each with the reason."""
    from aotgen.schedule.nest import NestTemplate
    from aotgen.schedule.registry import candidates

    found: list[Problem] = []
    for group in graph.groups or []:
        rank = max(len(v.shape) for v in [*group.inputs, *group.outputs])
        reason: str | None = None
        if rank > MAX_RANK:
            reason = f"a tensor has {rank} axes, at most {MAX_RANK} are supported"
        elif not is_view_group(group) and not candidates(group, target):
            reason = NestTemplate().applies(group, target) or "no kernel implements it"
        if reason is not None:
            node = ", ".join(group.origin) or group.name
            found.append(Problem(node, "+".join(n.op for n in group.nodes), reason))
    return tuple(found)


def group_uses(group: Group, choice: Choice, target: Target) -> list[tuple[Value, Use]]:
    """What a choice asks of the views of its Group's tensors."""
    needs = choice.template.needs(group, target, choice.config)
    uses = [(v, Use(group.name, needs[v.name])) for v in group.activations if v.name in needs]
    wanted = choice.template.output_need(group, target, choice.config)
    if wanted != Need():
        uses.extend((v, Use(None, wanted)) for v in group.outputs)
    return uses


def copy_seconds(value: Value, producer: Need, consumer: Need) -> float:
    """Modelled cost of a layout copy between two demands on one value; 0 when a dense view
    satisfies both.
    """
    view = View.dense(value.shape, value.dtype)
    plain = Need(unit_inner=consumer.unit_inner, dense=consumer.dense)
    if (producer.dense and consumer.border) or not plain.met_by(view):
        return 2 * value.type.nbytes / COPY_BYTES_PER_SECOND
    return 0.0


def choose(graph: Graph, target: Target, measured: Measured | None = None) -> dict[str, Choice]:
    """The cheapest combination of alternatives by dynamic programming over Groups in execution
    order.

    A Group's best total is its own time plus, per input, the cheapest producer alternative with the
    copy it forces. A value with several consumers keeps the producer that its first consumer chose,
    which makes the order of Groups a chain of decisions (exact on trees, the usual approximation
    elsewhere).
    """
    groups = graph.groups or []
    producer = {v: g for g in groups for v in g.outputs}
    options: dict[Group, list[Choice]] = {}
    problems = unsupported(graph, target)
    if problems:
        raise UnsupportedError(problems)
    for group in groups:
        if not is_view_group(group):
            options[group] = alternatives(group, target, measured)
    fixed: dict[Group, int] = {g: 0 for g, found in options.items() if len(found) == 1}
    totals: dict[Group, list[float]] = {}
    picks: dict[Group, list[dict[Group, int]]] = {}
    for group, found in options.items():
        totals[group], picks[group] = [], []
        for choice in found:
            total = _finite(choice.seconds)
            picked: dict[Group, int] = {}
            needs = choice.template.needs(group, target, choice.config)
            for value in group.activations:
                source = producer.get(value)
                if source is None or source not in totals:
                    continue
                index, cost = _best_producer(
                    options[source],
                    totals[source],
                    fixed.get(source),
                    source,
                    value,
                    needs.get(value.name, Need()),
                    target,
                )
                picked[source] = index
                total += cost
            totals[group].append(total)
            picks[group].append(picked)
    for group in reversed(list(options)):
        if group not in fixed:
            fixed[group] = min(range(len(totals[group])), key=lambda i: (totals[group][i], i))
        for source, index in picks[group][fixed[group]].items():
            fixed.setdefault(source, index)
    return {g.name: found[fixed[g]] for g, found in options.items()}


def _finite(seconds: float) -> float:
    """Unmodelled alternatives are ordered by the registry alone: all cost the same."""
    return 0.0 if math.isinf(seconds) else seconds


def _best_producer(
    found: Sequence[Choice],
    totals: Sequence[float],
    fixed: int | None,
    group: Group,
    value: Value,
    need: Need,
    target: Target,
) -> tuple[int, float]:
    """(index, seconds of the forced copy) of the producer alternative that is cheapest for this
    consumer.
    """
    indices = range(len(found)) if fixed is None else [fixed]
    costs = [
        (totals[i] + copy, i, copy)
        for i in indices
        for copy in [
            copy_seconds(value, found[i].template.output_need(group, target, found[i].config), need)
        ]
    ]
    _, index, copy = min(costs)
    return index, copy


def plan_graph(graph: Graph, target: Target, measured: Measured | None = None) -> Plan:
    """Choose templates and resolve memory for a graph with groups."""
    if graph.groups is None:
        raise InternalError("plan needs a graph with groups: run fuse_ops first")
    choices = choose(graph, target, measured)
    uses: list[tuple[Value, Use]] = []
    for group in graph.groups:
        if group.name in choices:
            uses.extend(group_uses(group, choices[group.name], target))
    return Plan(choices, resolve(graph, uses))
