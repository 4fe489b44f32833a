"""fuse_rows: chains of convolutions that one kernel streams by rows become one Group each.

A depthwise convolution and the 1x1 convolutions around it have maps between them that leave the
caches where they are large. Their Groups are merged where ``conv2d_fused_rows`` takes less time, by
measurement or model, than the best alternatives of the Groups alone. Links between Groups form
paths, on each of which dynamic programming finds the merges of least time. A step of plan, since
it looks at time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.ir.graph import Graph, Group
from aotgen.schedule.conv.fused_rows_chain import chain_of, known_chain, stage_kind
from aotgen.schedule.conv.fused_rows_model import RAM_LOSS, default_config, scratch_bytes
from aotgen.schedule.plan import Choice, Measured, alternatives
from aotgen.target.target import Target

LONGEST = 3
"""Most Groups of a chain."""

MIN_GAIN = 0.03
"""Share of a chain's seconds that a merge must save: less is within what measurements and models
can tell apart.
"""

MODELLED_GAIN_X86 = 0.1
"""The same of modelled seconds on x86, where what leaves L2 is in an L3 that may be faster than the
model's (Zen 5: a chain modelled 7 % faster took 2 % longer, those modelled 20 % faster 4 to 13 %
less).
"""


def candidate_chains(graph: Graph, target: Target) -> list[Group]:
    """Every chain of ``graph`` as the Group that it would be, whether it pays or not: in the order
    of their last Groups, shorter ones first.
    """
    found = []
    for path in _paths(graph, target):
        for end in range(len(path)):
            for size in range(2, min(LONGEST, end + 1) + 1):
                group = _merged(path[end + 1 - size : end + 1])
                if chain_of(group, target) is not None:
                    found.append(group)
    order = {node: i for i, node in enumerate(graph.nodes)}
    return sorted(found, key=lambda g: order[g.nodes[-1]])


def merge_groups(
    graph: Graph, target: Target, measured: Measured | None = None, blocks: bool = False
) -> list[Group]:
    """``graph.groups`` with the chains merged that pay.

    Args:
        measured: seconds of configs from a journal, of merged Groups, too.
        blocks: whether Groups that stay alone may take blocks of channels (alter_op_layout).
    """
    made: dict[Group, Group] = {}
    gone: set[Group] = set()
    for path in _paths(graph, target):
        for run in _best_cut(path, graph, target, measured, blocks):
            if len(run) > 1:
                made[run[-1]] = _merged(run)
                gone.update(run[:-1])
    return [made.get(g, g) for g in graph.groups or [] if g not in gone]


def fuse_rows(
    graph: Graph, target: Target, measured: Measured | None = None, blocks: bool = False
) -> bool:
    """Replace the Groups of ``graph`` by those of ``merge_groups`` and put its nodes in their
    order; whether that changed anything.
    """
    groups = merge_groups(graph, target, measured, blocks)
    changed = len(groups) != len(graph.groups or [])
    if changed:
        graph.groups = groups
        graph.nodes = [node for group in groups for node in group.nodes]
    return changed


def _merged(run: Sequence[Group]) -> Group:
    """The Group of a run's nodes. It stands where its last Group stood: whatever else it reads
    exists by then.
    """
    return Group([n for g in run for n in g.nodes], run[-1].anchor, run[-1].name)


def _paths(graph: Graph, target: Target) -> list[list[Group]]:
    """Longest runs of stages, each of which alone reads the one before."""
    stages = [g for g in graph.groups or [] if stage_kind(g, target) is not None]
    makers = {g.output: g for g in stages}
    users, results = graph.users(), set(graph.results)
    before: dict[Group, Group] = {}
    for group in stages:
        value = group.nodes[0].input(0)
        if value in makers and value not in results and users[value] == [group.nodes[0]]:
            before[group] = makers[value]
    behind = {a: b for b, a in before.items()}
    paths = []
    for group in stages:
        if group not in before and group in behind:
            path = [group]
            while path[-1] in behind:
                path.append(behind[path[-1]])
            paths.append(path)
    return paths


def _best_cut(
    path: list[Group], graph: Graph, target: Target, measured: Measured | None, blocks: bool
) -> list[list[Group]]:
    """The path as runs of least time: Groups alone and Groups to merge."""
    alone = [_alone(g, target, measured, blocks) for g in path]
    best: list[tuple[float, list[list[Group]]]] = [(0.0, [])]
    for end in range(1, len(path) + 1):
        before, cut = best[end - 1]
        found = [(before + alone[end - 1].best.seconds, [*cut, [path[end - 1]]])]
        for size in range(2, min(LONGEST, end) + 1):
            run = path[end - size : end]
            group = _merged(run)
            if chain_of(group, target) is not None:
                parts = alone[end - size : end]
                seconds, exact = _merged_seconds(group, parts, target, measured)
                seconds /= _limit(run, group, graph, target, exact)
                before, cut = best[end - size]
                found.append((before + seconds, [*cut, run]))
        best.append(min(found, key=lambda f: f[0]))
    return best[-1][1]


def _best(group: Group, target: Target, measured: Measured | None, blocks: bool) -> Choice:
    """The group's fastest alternative."""
    return min(alternatives(group, target, measured, blocks), key=lambda c: c.seconds)


@dataclass(frozen=True)
class _Alone:
    """What a Group of a path takes when it stays alone.

    Attributes:
        best: its fastest alternative.
        modelled: seconds of the alternative that is the fastest by the models.
        usual: seconds of that one beside the measured ones.
    """

    best: Choice
    modelled: float
    usual: float


def _alone(group: Group, target: Target, measured: Measured | None, blocks: bool) -> _Alone:
    best, default = (_best(group, target, m, blocks) for m in (measured, None))
    known = _seconds_of(default, group, target, measured, blocks)
    return _Alone(best, default.seconds, best.seconds if known is None else known)


def _merged_seconds(
    group: Group, parts: Sequence[_Alone], target: Target, measured: Measured | None
) -> tuple[float, bool]:
    """Of a run as one Group, on the scale of its ``parts``, and whether they are measured. They
    are where all its parts are, too; else the models, which err alike, say what share of its parts'
    time it takes by default. What tuning gains for the parts says nothing of it, nor the reverse.
    """
    merged = _best(group, target, measured, False)
    # The times of a tuned part in another layout stand on a measured one.
    if merged.measured and all(p.best.measured or p.best.source == "tuned" for p in parts):
        return merged.seconds, True
    default = merged.template.default(group, target)
    cost = merged.template.cost(group, target, default)
    before = measured(group, merged.template, default) if measured is not None else None
    if merged.measured and before is not None:
        cost *= merged.seconds / before
    return cost / sum(p.modelled for p in parts) * sum(p.usual for p in parts), False


def _seconds_of(
    choice: Choice, group: Group, target: Target, measured: Measured | None, blocks: bool
) -> float | None:
    """Of one of a group's alternatives beside the measured ones; None when it is none of them."""
    template, config = choice.template, choice.config
    known = measured(group, template, config) if measured is not None else None
    if known is not None:
        return known
    others = alternatives(group, target, measured, blocks)
    return next((c.seconds for c in others if (c.template, c.config) == (template, config)), None)


def _limit(
    run: Sequence[Group], group: Group, graph: Graph, target: Target, measured: bool
) -> float:
    """What share of its Groups' seconds a chain, merged to ``group``, may take."""
    if target.optimize == "ram":
        chain, default = known_chain(group, target), default_config(group, target)
        scratch = scratch_bytes(chain, default) * target.threads
        if _live_bytes([group], graph) + scratch < _live_bytes(run, graph):
            return 1 + RAM_LOSS
    guessed = not measured and target.isa in ("avx2", "avx512")
    return 1 - (MODELLED_GAIN_X86 if guessed else MIN_GAIN)


def _live_bytes(run: Sequence[Group], graph: Graph) -> int:
    """Most bytes of what the run reads and writes that are alive while one of its Groups runs."""
    inside = {g: i for i, g in enumerate(run)}
    owner = {n: inside[g] for g in run for n in g.nodes}
    users, results = graph.users(), set(graph.results)
    most = 0
    for i, group in enumerate(run):
        alive = {*group.activations, group.output}
        for other in run:
            for value in (*other.activations, other.output):
                readers = [owner.get(n, len(run)) for n in users[value]]
                last = len(run) if value in results else max(readers, default=0)
                made = owner.get(value.producer, -1) if value.producer is not None else -1
                if made <= i <= last:
                    alive.add(value)
        most = max(most, sum(v.type.nbytes for v in alive))
    return most
