"""Templates that compute one op alone on a CPU, in a way of their own and without knobs."""

from __future__ import annotations

from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import Config, Knob, Template
from aotgen.target.target import Target


class SingleOp(Template):
    """One op, whose name the template has."""

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if node.op != self.name or len(group.nodes) > 1:
            return f"needs a {self.name} alone"
        if target.device != "cpu":
            return "needs a CPU"
        return self.why_not(node)

    def why_not(self, node: Node) -> str | None:
        """What else about the node rules the template out."""
        return "a tensor has no elements" if 0 in node.output.shape else None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        return ()

    def default(self, group: Group, target: Target) -> Config:
        return Config()
