"""dead_code: nodes whose results nothing reads are removed, and outputs of recurrent nodes.

A state variable lives as long as an output depends on it, in this run or, by way of other
variables, in a later one. One that is never set is a constant.
"""

from __future__ import annotations

from aotgen.ir.graph import Graph, Node, State, Value
from aotgen.ops.recurrent import trim_results
from aotgen.passes.base import Pass
from aotgen.passes.rewrite import Rewriter


class DeadCode(Pass):
    """Keep what the graph's outputs depend on."""

    name = "dead_code"
    level = 0

    def run(self, graph: Graph) -> bool:
        fixed = _fix_states(graph)
        live, states = _live_states(graph)
        dropped = len(states) != len(graph.states)
        graph.states = states
        kept: list[Node] = []
        trimmed = False
        for node in reversed(graph.nodes):
            if any(value in live for value in node.outputs):
                trimmed = trim_results(node, live) or trimmed
                kept.append(node)
                live.update(node.args)
        removed = len(kept) != len(graph.nodes)
        if removed:
            graph.nodes = kept[::-1]
        return fixed or dropped or removed or trimmed


def _fix_states(graph: Graph) -> bool:
    """Make constants of the variables that are set to what they hold."""
    fixed = [s for s in graph.states if s.update is s.value]
    if not fixed:
        return False
    rw = Rewriter(graph)
    for state in fixed:
        graph.states.remove(state)
        rw.redirect(state.value, graph.constant(state.initial, state.value.name, state.value.type))
    return True


def _live_states(graph: Graph) -> tuple[set[Value], list[State]]:
    """(what the outputs and the variables to keep are, the variables to keep)."""
    live: set[Value] = set(graph.outputs)
    kept: list[State] = []
    waiting = list(graph.states)
    while waiting:
        reached = set(live)
        for node in reversed(graph.nodes):
            if any(value in reached for value in node.outputs):
                reached.update(node.args)
        found = [state for state in waiting if state.value in reached]
        if not found:
            break
        kept += found
        waiting = [state for state in waiting if state not in found]
        live.update(state.update for state in found)
    return live, [state for state in graph.states if state in kept]
