"""dead_code: nodes whose results nothing reads are removed, and outputs of recurrent nodes."""

from __future__ import annotations

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ops.recurrent import trim_results
from aotgen.passes.base import Pass


class DeadCode(Pass):
    """Keep what the graph's outputs depend on."""

    name = "dead_code"
    level = 0

    def run(self, graph: Graph) -> bool:
        live: set[Value] = set(graph.outputs)
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
        return removed or trimmed
