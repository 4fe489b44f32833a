"""dead_code: nodes whose results nothing reads are removed."""

from __future__ import annotations

from aotgen.ir.graph import Graph, Node, Value
from aotgen.passes.base import Pass


class DeadCode(Pass):
    """Keep what the graph's outputs depend on."""

    name = "dead_code"
    level = 0

    def run(self, graph: Graph) -> bool:
        live: set[Value] = set(graph.outputs)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            if any(value in live for value in node.outputs):
                kept.append(node)
                live.update(node.args)
        modified = len(kept) != len(graph.nodes)
        if modified:
            graph.nodes = kept[::-1]
        return modified
