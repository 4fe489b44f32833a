"""Plans whose kernels ask for less memory, where that makes the arena smaller.

A convolution reads zeros around its input by default (``Need.border``), and chains of convolutions
keep rings of rows: fast, small code, and next to nothing beside the caches of a large processor. On
a microcontroller, and with ``--optimize ram``, convolutions clip their windows instead
(``schedule.conv.clipping``) where the arena's peak holds such zeros, and chains come apart where
the arena is smaller for it. With ``--optimize ram`` a plan whose kernels all compute row by row is
weighed against that: more layers can then compute by rows together (``memory.row_streaming``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from aotgen.codegen.lower import lower
from aotgen.codegen.program import Program
from aotgen.ir.graph import Graph, Group, Node
from aotgen.memory.planner import live_bytes
from aotgen.memory.storage import Storage
from aotgen.schedule.base import Config
from aotgen.schedule.plan import Plan, resolved
from aotgen.target.target import Target

CLIPPED_SAVES = 0.005
"""Share of the arena that clipping windows must save: it costs flash."""

APART_SAVES = 0.03
"""The same of chains that come apart, where speed counts most: it costs time."""


@dataclass(frozen=True)
class Partition:
    """A graph's nodes in their order, and the Groups that they make up."""

    nodes: list[Node]
    groups: list[Group] | None

    @classmethod
    def of(cls, graph: Graph) -> Partition:
        return cls(graph.nodes, graph.groups)

    def put_into(self, graph: Graph) -> None:
        """Let the graph have this partition."""
        graph.nodes, graph.groups = self.nodes, self.groups


def weighs_memory(target: Target) -> bool:
    """Whether kernels are chosen by the memory that they need, too."""
    if target.device == "gpu" or target.threads > 1:
        return False
    return target.optimize == "ram" or (target.bare and target.optimize == "speed")


def lower_least(
    graph: Graph,
    plan: Plan,
    apart: Partition,
    replan: Callable[[], Plan],
    target: Target,
    prefix: str,
) -> Program:
    """Lower a plan, or another one of the same graph whose arena is smaller.

    Args:
        graph: has the partition of the chosen plan afterwards.
        apart: its partition before chains of convolutions were merged.
        replan: plans the graph as it is.
    """
    if not weighs_memory(target):
        return lower(graph, plan, target, prefix)
    merged = best = Partition.of(graph)
    program = _lower_clipped(graph, plan, target, prefix)
    ram = target.optimize == "ram"
    is_merged = merged.groups is not apart.groups
    if is_merged or ram:
        apart.put_into(graph)
        plan = replan() if is_merged else plan
        others = [_lower_clipped(graph, plan, target, prefix)] if is_merged else []
        if ram:
            others.append(_lower_by_rows(graph, plan, target, prefix))
        for other in others:
            if arena_bytes(other) < (1 - (0 if ram else APART_SAVES)) * arena_bytes(program):
                program, best = other, apart
        best.put_into(graph)
    return program


def _lower_clipped(graph: Graph, plan: Plan, target: Target, prefix: str) -> Program:
    """Lower a plan; then let convolutions clip their windows that read a map with zeros around it
    while the arena's peak is reached, again and again until no more do. Of these Programs the one
    with the smallest arena, the first of several.
    """
    program = best = lower(graph, plan, target, prefix)
    while True:
        configs = {
            group.name: config
            for group in _readers_at_peak(program)
            for choice in [plan.choices[group.name]]
            if (config := choice.template.clipped(group, target, choice.config)) is not None
        }
        if not configs:
            return best
        plan = _with_configs(graph, plan, configs, target)
        program = lower(graph, plan, target, prefix)
        if arena_bytes(program) <= (1 - CLIPPED_SAVES) * arena_bytes(best):
            best = program


def _lower_by_rows(graph: Graph, plan: Plan, target: Target, prefix: str) -> Program:
    """Lower a plan with the kernels that compute row by row wherever there are such."""
    configs = {
        group.name: config
        for group in graph.groups or []
        if (choice := plan.choices.get(group.name)) is not None
        and (config := choice.template.by_rows(group, target, choice.config)) is not None
    }
    return lower(graph, _with_configs(graph, plan, configs, target), target, prefix)


def arena_bytes(program: Program) -> int:
    """What of the arena is to be small: with ``ram`` that of an application that has memory for
    inputs and outputs.
    """
    return program.own_bytes if program.target.optimize == "ram" else program.arena.bytes


def _with_configs(graph: Graph, plan: Plan, configs: Mapping[str, Config], target: Target) -> Plan:
    """The plan with other configs of some Groups, by name."""
    choices = {
        name: replace(choice, config=configs.get(name, choice.config))
        for name, choice in plan.choices.items()
    }
    return resolved(graph, choices, target)


def _readers_at_peak(program: Program) -> list[Group]:
    """The Groups that read a storage with a border that is alive when the arena is about as full as
    it ever is.
    """
    steps, live = live_bytes(program.allocations)
    least = (1 - CLIPPED_SAVES) * max(live, default=0)
    full = [step for step, size in zip(steps, live, strict=True) if size >= least]
    spans: dict[Storage, tuple[int, int]] = {}
    readers: dict[Storage, list[Group]] = {}
    for layer in program.layers:
        for value in (*layer.reads, *layer.outputs):
            storage = program.placements[value.name].storage
            first, _ = spans.get(storage, (layer.index, layer.index))
            spans[storage] = first, layer.index
            if layer.group is not None and value in layer.reads:
                readers.setdefault(storage, []).append(layer.group)
    return [
        group
        for storage, (first, last) in spans.items()
        if storage.has_border and any(first <= step <= last for step in full)
        for group in readers.get(storage, ())
    ]
