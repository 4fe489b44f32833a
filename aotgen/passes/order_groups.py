"""order_groups: an order of the groups that needs less memory at its peak.

Greedy list scheduling (as in Ahn et al., "Ordering Chaos", MLSys 2020, without its dynamic
program): of the groups that could run, take the one after which the fewest bytes are live; the
earlier one of equals. The new order is kept only when its peak is lower. View ops are taken to
share their source's memory, concat's inputs its output's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from aotgen.ir.graph import Graph, Value
from aotgen.memory.relations import is_view_op
from aotgen.passes.base import Pass


class OrderGroups(Pass):
    """Reorder ``graph.groups``, and the nodes with them."""

    name = "order_groups"
    level = 3

    def run(self, graph: Graph) -> bool:
        if not graph.groups:
            return False
        memory = _Memory(graph)
        order = memory.schedule()
        if memory.peak(order) >= memory.peak(range(len(order))):
            return False
        graph.groups = [graph.groups[i] for i in order]
        graph.nodes = [node for group in graph.groups for node in group.nodes]
        return True


def peak_bytes(graph: Graph) -> int:
    """Most bytes of activations that are live at once in the present order of groups."""
    return _Memory(graph).peak(range(len(graph.groups or ())))


class _Memory:
    """Buffers, and which groups touch them."""

    def __init__(self, graph: Graph) -> None:
        groups = graph.groups or []
        self.buffer_of = _share_buffers(graph)
        self.size: dict[Value, int] = {}
        for value, buffer in self.buffer_of.items():
            self.size[buffer] = max(self.size.get(buffer, 0), value.type.nbytes)
        runs_in = {value: i for i, group in enumerate(groups) for value in group.outputs}
        self.needs = [
            sorted({runs_in[v] for v in group.activations if v in runs_in}) for group in groups
        ]
        self.touches = [
            list(dict.fromkeys(self.buffer_of[v] for v in (*g.activations, *g.outputs)))
            for g in groups
        ]
        self.pinned = {self.buffer_of[v] for v in graph.results if v in self.buffer_of}
        self.born = {self.buffer_of[v] for v in graph.sources}

    def peak(self, order: Sequence[int]) -> int:
        """Most bytes live while any group runs."""
        left = self._readers()
        live = set(self.born)
        now = sum(self.size[b] for b in live)
        top = now
        for index in order:
            for buffer in self.touches[index]:
                if buffer not in live:
                    live.add(buffer)
                    now += self.size[buffer]
            top = max(top, now)
            now -= self._free(index, left, live)
        return top

    def schedule(self) -> list[int]:
        """The greedy order."""
        left, live = self._readers(), set(self.born)
        waiting = [len(n) for n in self.needs]
        readers: list[list[int]] = [[] for _ in self.needs]
        for index, needs in enumerate(self.needs):
            for need in needs:
                readers[need].append(index)
        touched: dict[Value, list[int]] = {}
        for index, buffers in enumerate(self.touches):
            for buffer in buffers:
                touched.setdefault(buffer, []).append(index)
        growth = [self._growth(i, left, live) for i in range(len(waiting))]
        ready = [(growth[i], i) for i, n in enumerate(waiting) if n == 0]
        heapq.heapify(ready)
        order: list[int] = []
        done: set[int] = set()
        while ready:
            found, best = heapq.heappop(ready)
            if best in done or found != growth[best]:
                continue
            done.add(best)
            order.append(best)
            # Only what becomes live or has one toucher left changes what another group costs.
            changed = [b for b in self.touches[best] if b not in live or left[b] == 2]
            live.update(self.touches[best])
            self._free(best, left, live)
            for index in dict.fromkeys(i for b in changed for i in touched[b] if i not in done):
                growth[index] = self._growth(index, left, live)
                if waiting[index] == 0:
                    heapq.heappush(ready, (growth[index], index))
            for index in readers[best]:
                waiting[index] -= 1
                if waiting[index] == 0:
                    heapq.heappush(ready, (growth[index], index))
        return order

    def _readers(self) -> dict[Value, int]:
        """For each buffer how many groups touch it."""
        count: dict[Value, int] = {}
        for buffers in self.touches:
            for buffer in buffers:
                count[buffer] = count.get(buffer, 0) + 1
        return count

    def _growth(self, index: int, left: dict[Value, int], live: set[Value]) -> int:
        """Bytes more that are live once group ``index`` has run."""
        growth = 0
        for buffer in self.touches[index]:
            growth += self.size[buffer] if buffer not in live else 0
            if left[buffer] == 1 and buffer not in self.pinned:
                growth -= self.size[buffer]
        return growth

    def _free(self, index: int, left: dict[Value, int], live: set[Value]) -> int:
        freed = 0
        for buffer in self.touches[index]:
            left[buffer] -= 1
            if left[buffer] == 0 and buffer not in self.pinned:
                live.discard(buffer)
                freed += self.size[buffer]
        return freed


def _share_buffers(graph: Graph) -> dict[Value, Value]:
    """For each activation the value whose buffer holds it."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        path: list[Value] = []
        while value in parent:
            path.append(value)
            value = parent[value]
        parent.update(dict.fromkeys(path, value))
        return value

    values = [v for v in graph.values() if not v.is_const]
    for group in graph.groups or ():
        if is_view_op(group.nodes[-1]):
            for value in group.activations:
                for out in group.outputs:
                    first, second = root(value), root(out)
                    if first is not second:
                        parent[first] = second
    return {value: root(value) for value in values}
