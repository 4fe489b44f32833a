"""plan: the template, knobs and layout of every Group, chosen together.

Every compute Group has alternatives (template, config), and a template may read or write blocks of
channels (NCHWc) instead of channels-last activations. Each has a cost: measured (a journal's
record) or else modelled by its template. Alternatives that disagree about a layout pay for the copy
between them, so the choice is made by dynamic programming over the Groups in execution order
(alter_op_layout), and the memory of every value is then resolved (``aotgen.memory.storage``). Works
with no board and no journal at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from aotgen.errors import InternalError, Problem, UnsupportedError
from aotgen.ir.graph import Graph, Group, Value
from aotgen.memory.relations import is_view_op
from aotgen.memory.storage import StorageMap, Use, resolve
from aotgen.schedule.base import Config, Need, Template, View
from aotgen.schedule.dense.tiles import core_model
from aotgen.target.target import Target

MAX_RANK = 8
"""Most axes of a tensor: the generated trace hook describes views of so many."""

Measured = Callable[[Group, Template, Config], float | None]
"""Seconds of a config from a journal, or None when it was never measured."""

Source = Literal["default", "tuned", "transferred"]
"""Where a config comes from: the template, the task's own records, those of other tasks."""


@dataclass(frozen=True)
class Proposal:
    """A config to take in place of a template's default.

    Attributes:
        config: channels-last.
        source: where it comes from.
        sole: whether it is the only alternative of its Group, but for its layouts.
    """

    config: Config
    source: Source
    sole: bool = False


@runtime_checkable
class Schedules(Protocol):
    """A ``Measured`` that also knows better configs than the defaults."""

    def __call__(self, group: Group, template: Template, config: Config) -> float | None:
        """Seconds of a config; None when it was never measured."""

    def proposals(self, group: Group) -> Mapping[str, Proposal]:
        """By name of a template."""

    def key(self, group: Group) -> str:
        """Of the task that a Group belongs to."""

    def kind(self, group: Group) -> str | None:
        """How its task's seconds came about: "network", "measured" or "modelled"."""


MIN_GAIN = 0.03
"""Share of a network's seconds that layouts must save to be chosen: less is within what models and
measurements can tell apart.
"""

MAX_STATES = 32
"""Combinations of layouts of live values that the dynamic programming keeps at a Group."""


@dataclass(frozen=True)
class Choice:
    """What implements one compute Group.

    Attributes:
        template: the chosen one.
        config: its knobs.
        seconds: measured or modelled; infinite when the template has no model.
        measured: whether ``seconds`` comes from a journal.
        source: of ``config``; one in another layout has that of the config that it is made from.
    """

    template: Template
    config: Config
    seconds: float
    measured: bool = False
    source: Source = "default"


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


def alternatives(
    group: Group, target: Target, measured: Measured | None = None, blocks: bool = False
) -> list[Choice]:
    """Every template that can implement ``group``, with its default config or the one that
    ``measured`` proposes, in the registry's order of preference; none when the group is one of
    ``unsupported``.

    Where only some configs were measured the others cost what the model says in relation to one
    that was: of the same template, else of the fastest one.

    Args:
        blocks: list each template behind its channels-last form in every other layout it can take;
            not one that is there by its record alone, whose model is not exact enough for that.
            Scalar code has blocks of one channel, which only a measurement can recommend: they
            leave a dense kernel no neighbours to sum over.
    """
    from aotgen.schedule.registry import preferred

    proposed = measured.proposals(group) if isinstance(measured, Schedules) else {}
    found: list[list[Choice]] = []
    scales: list[float | None] = []
    templates = _templates(group, target, proposed)
    exact = preferred(templates)
    for template in templates:
        proposal = proposed.get(template.name)
        if proposal is None:
            proposal = Proposal(template.default(group, target), "default")
        config, source = proposal.config, proposal.source
        # A tuned config may be good by what the model does not know. The default's time says how
        # the model errs for what is made like it.
        base = template.default(group, target) if source != "default" else config
        usual_seconds = measured(group, template, base) if measured and base != config else None
        if usual_seconds is None:
            base = config
        configs = [config]
        if blocks and template in exact and (target.vl > 1 or measured is not None):
            pairs = template.layouts(group, target)
            configs += [template.default_in(group, target, base, x, y) for x, y in pairs]
        seconds = [measured(group, template, c) if measured else None for c in configs]
        modelled = [
            template.cost(group, target, c)
            if s is None or len(configs) > 1 or len(templates) > 1
            else s
            for c, s in zip(configs, seconds, strict=True)
        ]
        known = list(zip(seconds, modelled, strict=True))
        if usual_seconds is not None:
            known = [(usual_seconds, template.cost(group, target, base))]
        scales.append(next((s / m for s, m in known if s is not None and 0 < m < math.inf), None))
        found.append(
            [
                Choice(template, c, m, False, source)
                if s is None
                else Choice(template, c, s, True, source)
                for c, s, m in zip(configs, seconds, modelled, strict=True)
            ]
        )
    timed = [
        (min(c.seconds for c in choices if c.measured), scale)
        for choices, scale in zip(found, scales, strict=True)
        if scale is not None
    ]
    usual = min(timed)[1] if timed else 1.0
    return [
        c if c.measured else replace(c, seconds=c.seconds * (usual if scale is None else scale))
        for choices, scale in zip(found, scales, strict=True)
        for c in choices
    ]


def _templates(group: Group, target: Target, proposed: Mapping[str, Proposal]) -> list[Template]:
    """The candidates, and what else a journal proposes; only the one of a sole proposal."""
    from aotgen.schedule.registry import anchor_templates, candidates

    sole = {name for name, proposal in proposed.items() if proposal.sole}
    if sole:
        return [t for t in anchor_templates() if t.name in sole]
    usual = candidates(group, target)
    more = [t for t in anchor_templates() if t.name in proposed and t not in usual]
    return [*usual, *more]


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
    uses = [(v, Use(group.name, needs.get(v.name, Need()))) for v in group.activations]
    wanted = choice.template.output_need(group, target, choice.config)
    if wanted != Need():
        uses.extend((v, Use(None, wanted)) for v in group.outputs)
    return uses


def copy_seconds(value: Value, producer: Need, consumer: Need, target: Target) -> float:
    """Modelled cost of a layout copy between two demands on one value; 0 when one view satisfies
    both.
    """
    if producer.block == consumer.block:
        if consumer.block:
            return 0.0
        view = View.dense(value.shape, value.dtype)
        plain = Need(unit_inner=consumer.unit_inner, dense=consumer.dense)
        if not (producer.dense and consumer.border) and plain.met_by(view):
            return 0.0
    return moved_seconds(value, target)


def moved_seconds(value: Value, target: Target) -> float:
    """Modelled cost of reading a value and writing it in another layout."""
    core = core_model(target)
    moved = 2 * value.type.nbytes
    # In L2 a copy stays only where both sides leave room for what else lives; one side's lines lie
    # apart, so that it streams at half the rate.
    rate = core.l2 / 2 if moved <= target.l2_bytes // 2 else core.far
    return moved / rate / core.ghz * 1e-9


@dataclass(frozen=True)
class _Option:
    """A choice with its demands: on each activation's view, and on the output's."""

    choice: Choice
    needs: tuple[tuple[Value, Need], ...]
    output: Need

    @property
    def has_blocks(self) -> bool:
        return bool(self.output.block) or any(need.block for _, need in self.needs)

    @property
    def seconds(self) -> float:
        """Unmodelled alternatives are ordered by the registry alone: all cost the same."""
        return 0.0 if math.isinf(self.choice.seconds) else self.choice.seconds


@dataclass(frozen=True)
class _Held:
    """A live value: what its producer asked of its view, and the blocks (0: channels-last) of the
    copies of it that exist.
    """

    need: Need
    copies: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _State:
    """One way to have come to a Group.

    Attributes:
        seconds: of all Groups so far, with their copies.
        held: the live values.
        picks: (option, picks before it), newest first: a list that states share.
    """

    seconds: float
    held: dict[Value, _Held]
    picks: Any


def choose(
    graph: Graph, target: Target, measured: Measured | None = None, blocks: bool = False
) -> dict[str, Choice]:
    """The cheapest combination of alternatives.

    Args:
        blocks: whether activations may lie in blocks of channels (alter_op_layout). They do when
            that saves at least ``MIN_GAIN`` of all seconds.
    """
    problems = unsupported(graph, target)
    if problems:
        raise UnsupportedError(problems)
    plain, seconds = _cheapest(graph, target, _options(graph, target, measured, False))
    if blocks:
        options = _options(graph, target, measured, True)
        if any(option.has_blocks for found in options.values() for option in found):
            blocked, less = _cheapest(graph, target, options)
            if less < (1 - MIN_GAIN) * seconds:
                return blocked
    return plain


def _options(
    graph: Graph, target: Target, measured: Measured | None, blocks: bool
) -> dict[Group, list[_Option]]:
    """The alternatives of all compute Groups. A value that the caller or a view op sees stays
    channels-last.
    """
    groups = graph.groups or []
    pinned = set(graph.results)
    for group in groups:
        if is_view_group(group):
            pinned.update(group.inputs)
    made: dict[Group, list[_Option]] = {}
    for group in groups:
        if is_view_group(group):
            continue
        made[group] = []
        for choice in alternatives(group, target, measured, blocks):
            wanted = choice.template.output_need(group, target, choice.config)
            if wanted.block and not pinned.isdisjoint(group.outputs):
                continue
            needs = choice.template.needs(group, target, choice.config)
            asked = tuple((v, needs.get(v.name, Need())) for v in group.activations)
            made[group].append(_Option(choice, asked, wanted))
    read = {v for found in made.values() for o in found for v, need in o.needs if need.block}
    for group, found in made.items():
        made[group] = [o for o in found if not o.output.block or group.output in read]
    return made


def _cheapest(
    graph: Graph, target: Target, options: dict[Group, list[_Option]]
) -> tuple[dict[str, Choice], float]:
    """(choice by Group name, seconds) by dynamic programming over the Groups in execution order.

    States that hold the same values in the same layouts differ in the past only: the cheaper one
    stays. Exact while at most ``MAX_STATES`` remain, a beam search beyond.
    """
    order = list(options)
    last: dict[Value, int] = {}
    for index, group in enumerate(order):
        last.update(dict.fromkeys(group.activations, index))
    start = {v: _Held(Need()) for v in graph.sources if v in last}
    states = [_State(0.0, start, None)]
    for index, group in enumerate(order):
        kept: dict[tuple[tuple[Value, _Held], ...], _State] = {}
        for state in states:
            for option in options[group]:
                after = _step(state, group, option, target)
                live = {v: h for v, h in after.held.items() if last.get(v, -1) > index}
                key = tuple(live.items())
                if key not in kept or after.seconds < kept[key].seconds:
                    kept[key] = replace(after, held=live)
        states = sorted(kept.values(), key=lambda s: s.seconds)[:MAX_STATES]
    best = states[0]
    chosen: dict[str, Choice] = {}
    picks = best.picks
    for group in reversed(order):
        option, picks = picks
        chosen[group.name] = option.choice
    return {g.name: chosen[g.name] for g in order}, best.seconds


def _step(state: _State, group: Group, option: _Option, target: Target) -> _State:
    """The state after ``group`` runs as ``option``, with the copies that it reads."""
    seconds = state.seconds + option.seconds
    held = dict(state.held)
    for value, need in option.needs:
        have = held.get(value, _Held(Need()))
        if need.block in have.copies:
            continue
        copied = copy_seconds(value, have.need, need, target)
        seconds += copied
        if copied and value in held:
            held[value] = replace(have, copies=have.copies | {need.block})
    held.update(dict.fromkeys(group.outputs, _Held(option.output)))
    return _State(seconds, held, (option, state.picks))


def plan_graph(
    graph: Graph, target: Target, measured: Measured | None = None, blocks: bool = False
) -> Plan:
    """Choose templates and resolve memory for a graph with groups.

    Args:
        measured: seconds of configs from a journal.
        blocks: run alter_op_layout.
    """
    if graph.groups is None:
        raise InternalError("plan needs a graph with groups: run fuse_ops first")
    return resolved(graph, choose(graph, target, measured, blocks), target)


def resolved(graph: Graph, choices: dict[str, Choice], target: Target) -> Plan:
    """The plan of these choices, by Group name: with memory for every value."""
    uses: list[tuple[Value, Use]] = []
    for group in graph.groups or []:
        if group.name in choices:
            uses.extend(group_uses(group, choices[group.name], target))
    return Plan(choices, resolve(graph, uses))


def layout_text(graph: Graph, plan: Plan, *, altered: bool = True) -> str:
    """One line a compute Group: the layouts that it reads and writes; with ``altered`` False as if
    all were channels-last. For --show-passes.
    """
    lines = []
    for group in graph.groups or []:
        if group.name not in plan.choices:
            continue

        def text(value: Value, group: Group = group) -> str:
            read = plan.storage.readers.get((group.name, value.name), value)
            view = plan.storage.placements[read.name].view
            return f"{value.name} {view.layout_name if altered else 'strided'}"

        reads = ", ".join(text(v) for v in group.activations)
        lines.append(f"{group.name}: {reads} -> {', '.join(text(v) for v in group.outputs)}\n")
    return "".join(lines)
