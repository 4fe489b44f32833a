"""Concats that hold other concats: torch.cat of a growing list, or of an earlier concat and more.

A concat whose members are a contiguous run of another one's, along the same axis, can live inside
it: DenseNet's blocks then need one piece of memory and no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.ir.graph import Graph, Node, Value

MAX_HOSTS = 8
"""So many longer concats are proposed for one concat, longest first."""


def axis_of(node: Node) -> int:
    """The axis of a concat, counted from the front."""
    axis: int = node.attrs["axis"]
    return axis % len(node.output.shape)


class ConcatRuns:
    """The concats of a graph as flat lists of members: a member that is itself a concat along the
    same axis is replaced by its own members.
    """

    def __init__(self, graph: Graph) -> None:
        self._members: dict[Node, tuple[Value, ...]] = {}
        self._places: dict[tuple[Value, int], list[tuple[Node, int]]] = {}
        for node in graph.nodes:
            if node.op == "concat":
                members = self._flatten(node)
                self._members[node] = members
                for position, value in enumerate(members):
                    self._places.setdefault((value, axis_of(node)), []).append((node, position))
        for found in self._places.values():
            found.sort(key=lambda place: -len(self._members[place[0]]))

    def _flatten(self, node: Node) -> tuple[Value, ...]:
        members: list[Value] = []
        for value in node.args:
            inner = value.producer
            if inner in self._members and axis_of(inner) == axis_of(node):
                members.extend(self._members[inner])
            else:
                members.append(value)
        return tuple(members)

    def hosts(self, node: Node) -> list[tuple[Node, int]]:
        """Concats that ``node`` can live in, longest first, each with where it begins along the
        axis; at most ``MAX_HOSTS``.
        """
        run, axis = self._members[node], axis_of(node)
        found: list[tuple[Node, int]] = []
        for other, position in self._places[(run[0], axis)]:
            members = self._members[other]
            if len(members) < len(run) or len(found) == MAX_HOSTS:
                break
            if other is not node and members[position : position + len(run)] == run:
                found.append((other, extent(members[:position], axis)))
        return found


def extent(values: Sequence[Value], axis: int) -> int:
    """How much the values take together along ``axis``."""
    return sum(v.shape[axis] for v in values)
