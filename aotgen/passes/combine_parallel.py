"""What the combine_parallel passes share: several nodes of one kind on one input become one.

Each node with its input and its chain of unary element-wise readers is a ``Branch``. Branches that
differ in nothing but their weights and number of outputs are computed by one wider node, the
common chain behind it, and a ``split``, which moves nothing. The input is then read once, and
narrow branches share the register tile (TVM: CombineParallelConv2D, CombineParallelDense).

A branch stays alone where an element-wise op of several operands, a softmax or a norm follows it:
these run inside its kernel, and could not run inside a shared one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array
from aotgen.ops.norm import ROW_OPS
from aotgen.ops.registry import OpPattern, op_def
from aotgen.passes.base import Pass
from aotgen.passes.layout import broadcasts
from aotgen.passes.rewrite import Rewriter, is_plain_node, merged_origin


@dataclass(frozen=True, eq=False)
class Branch:
    """A node that may be combined, and the unary element-wise ops that read it, in order."""

    anchor: Node
    chain: tuple[Node, ...]

    @property
    def result(self) -> Value:
        return (self.chain[-1] if self.chain else self.anchor).output

    @property
    def outputs(self) -> int:
        """Extent of the last axis."""
        return self.result.shape[-1]


class CombineParallel(Pass):
    """Combine branches of equal ``key``."""

    level = 4

    @abstractmethod
    def key(self, anchor: Node) -> Hashable | None:
        """What must be equal for two nodes to be combined, their input aside; None for a node that
        cannot be.
        """

    @abstractmethod
    def operands(self, rw: Rewriter, place: Node, anchors: Sequence[Node]) -> list[Value | None]:
        """The combined node's inputs behind the first one; new nodes go in front of ``place``."""

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        found: dict[Hashable, list[Branch]] = {}
        for node in rw.nodes():
            key = self.key(node) if is_plain_node(node) else None
            branch = None if key is None else _branch(rw, node)
            if branch is not None:
                chain = tuple((n.op, _attributes(n)) for n in branch.chain)
                found.setdefault((id(node.input(0)), key, chain), []).append(branch)
        for branches in (b for b in found.values() if len(b) > 1):
            for independent in _independent(rw, branches):
                if len(independent) > 1:
                    self.combine(rw, independent)
        if rw.modified:
            sort_nodes(graph)
        return rw.modified

    def combine(self, rw: Rewriter, branches: Sequence[Branch]) -> None:
        """One node for all ``branches``; values keep their names."""
        anchors = [b.anchor for b in branches]
        place = anchors[-1]
        origin = merged_origin(*anchors)
        inputs = [place.input(0), *self.operands(rw, place, anchors)]
        name = f"{anchors[0].name}.combined"
        value = rw.insert_before(
            place, place.op, inputs, name=name, origin=origin, **self.attributes(place)
        )
        for nodes in zip(*(b.chain for b in branches), strict=True):
            step = nodes[0]
            value = rw.insert_before(
                place, step.op, [value], name=step.name, origin=merged_origin(*nodes), **step.attrs
            )
        parts = rw.insert_before(
            place,
            "split",
            [value],
            name=f"{anchors[0].name}.split",
            origin=origin,
            axis=value.type.rank - 1,
            sizes=tuple(b.outputs for b in branches),
        ).producer
        assert parts is not None
        for branch, part in zip(branches, parts.outputs, strict=True):
            old = branch.result
            rw.redirect(old, part)
            part.name = old.name

    def attributes(self, anchor: Node) -> dict[str, Any]:
        """The combined node's attributes."""
        return anchor.attrs


def _attributes(node: Node) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(node.attrs.items()))


def _branch(rw: Rewriter, anchor: Node) -> Branch | None:
    """``anchor`` with its chain; None where it had better stay alone."""
    chain: list[Node] = []
    last = anchor
    while True:
        user = rw.sole_user(last.output)
        if user is None:
            break
        if op_def(user.op).pattern is not OpPattern.ELEMENTWISE or len(user.args) != 1:
            if broadcasts(user) or user.op in ROW_OPS:
                return None
            break
        if user.output.type != last.output.type:
            break
        chain.append(user)
        last = user
    return None if rw.is_output(last.output) else Branch(anchor, tuple(chain))


def _independent(rw: Rewriter, branches: Sequence[Branch]) -> list[list[Branch]]:
    """``branches`` in sets of which no member reads, even indirectly, what another computes."""
    sets: list[tuple[list[Branch], set[Node]]] = []
    for branch in branches:
        behind = _behind(rw, branch.anchor)
        for members, after in sets:
            if branch.anchor not in after:
                members.append(branch)
                after |= behind
                break
        else:
            sets.append(([branch], behind))
    return [members for members, _ in sets]


def _behind(rw: Rewriter, node: Node) -> set[Node]:
    """All nodes that need ``node``."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        for value in stack.pop().outputs:
            for user in rw.users(value):
                if user not in seen:
                    seen.add(user)
                    stack.append(user)
    return seen


def sort_nodes(graph: Graph) -> None:
    """Put the nodes into an order in which they can run, as near to the present one as that is."""
    done: set[Node] = set()
    order: list[Node] = []
    for root in graph.nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [
                v.producer for v in node.args if v.producer is not None and v.producer not in done
            ]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                order.append(node)
    graph.nodes[:] = order


def joined_bias(
    graph: Graph, anchors: Sequence[Node], index: int, extents: Sequence[int]
) -> Value | None:
    """The constant biases at input ``index`` one behind the other, 0 where a node has none; None
    when none has one. ``extents`` are their lengths.
    """
    values = [a.optional(index) for a in anchors]
    if all(v is None for v in values):
        return None
    parts = [
        np.zeros(n, np.float32) if v is None else constant(v)
        for v, n in zip(values, extents, strict=True)
    ]
    dtype = next(constant(v).dtype for v in values if v is not None)
    return graph.constant(np.concatenate([p.astype(dtype) for p in parts]), "bias")


def constant(value: Value) -> Array:
    """The array of a value that is known to be constant."""
    assert value.const is not None
    return value.const


def is_constant(value: Value | None) -> bool:
    """Constant, or not there."""
    return value is None or value.is_const
