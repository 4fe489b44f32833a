"""Editing a Graph in place: who reads what stays known while nodes come and go.

Every pass that rewrites nodes does so through a ``Rewriter``, so that execution order, producers,
users and origins stay right after each single edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from aotgen.errors import InternalError
from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import DType, TensorType
from aotgen.ops.registry import op_def


def merged_origin(*nodes: Node) -> tuple[str, ...]:
    """The union of the nodes' origins, in order."""
    return tuple(dict.fromkeys(name for node in nodes for name in node.origin))


def is_plain(*values: Value | None) -> bool:
    """No value is quantized: a rewrite of real numbers may touch them."""
    return all(v is None or v.type.quant is None for v in values)


def is_plain_node(node: Node) -> bool:
    """None of the node's values is quantized and none has a dimension known only at run time."""
    values = [*node.args, *node.outputs]
    return is_plain(*values) and all(v.type.is_static for v in values)


def is_movable_node(node: Node) -> bool:
    """Elements of the node's values may change places: all shapes are static, what is quantized are
    integers of one scale, and the type rule gives the outputs their quantization again."""
    values = [*node.args, *node.outputs]
    if not all(v.type.is_static for v in values):
        return False
    quantized = [v for v in values if v.type.quant is not None]
    if any(v.type.quant.axis is not None or v.dtype.is_float for v in quantized if v.type.quant):
        return False
    return not quantized or op_def(node.op).infer(node) == type_of(node)


def is_f32(*values: Value) -> bool:
    return all(v.dtype is DType.F32 for v in values)


class Rewriter:
    """Edits of one graph.

    Attributes:
        graph: the graph being edited.
        modified: whether any edit was made.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.modified = False
        self._users: dict[Value, dict[Node, None]] = {
            value: dict.fromkeys(nodes) for value, nodes in graph.users().items()
        }
        self._alive = set(graph.nodes)

    def alive(self, node: Node) -> bool:
        """The node is still part of the graph."""
        return node in self._alive

    def nodes(self) -> Iterator[Node]:
        """The nodes as they were when the iteration began, less those removed since."""
        for node in list(self.graph.nodes):
            if node in self._alive:
                yield node

    def users(self, value: Value) -> list[Node]:
        """The nodes that read ``value``, each once."""
        return list(self._users.get(value, ()))

    def is_output(self, value: Value) -> bool:
        """``value`` is an output of the graph, or what a state is set to."""
        return any(v is value for v in self.graph.results)

    def sole_user(self, value: Value) -> Node | None:
        """The one node that reads ``value``; None with several readers or for a graph output."""
        users = self._users.get(value, {})
        if len(users) != 1 or self.is_output(value):
            return None
        return next(iter(users))

    def is_used(self, value: Value) -> bool:
        return bool(self._users.get(value)) or self.is_output(value)

    def insert_before(
        self,
        place: Node,
        op: str,
        inputs: Sequence[Value | None],
        *,
        name: str | None = None,
        origin: tuple[str, ...] = (),
        **attrs: Any,
    ) -> Value:
        """Insert a new node in front of ``place``; its first output."""
        node = self.graph.make(op, inputs, name=name, origin=origin, **attrs)
        self.graph.nodes.insert(self.graph.nodes.index(place), node)
        self._adopt(node)
        return node.output

    def replace(
        self,
        old: Node,
        op: str,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any],
        *,
        absorbed: Iterable[Node] = (),
        name: str = "",
    ) -> Node:
        """Let a new node compute the outputs of ``old`` at its place.

        The values themselves stay, so readers, graph outputs and names do not change. Nodes that
        nothing reads any more are removed. ``absorbed`` are nodes whose work the new one also does:
        their origins come first. ``name`` is the new node's name: that of a node that goes away, by
        default ``old``'s.
        """
        parts = list(absorbed)
        origin = merged_origin(*parts, old)
        node = Node(op, list(inputs), old.outputs, dict(attrs), name or old.name, origin)
        found = op_def(op).infer(node)
        if not _same_elements(found, old.outputs):
            raise InternalError(f"rewriting {old!r} as {op} changes its type to {found}")
        self.graph.nodes[self.graph.nodes.index(old)] = node
        self._forget(old)
        self._adopt(node)
        for value in node.outputs:
            value.producer = node
        self._remove_dead(old.args)
        if any(n.name == node.name for n in parts if n in self._alive):
            node.name = old.name
        return node

    def compute_through(
        self,
        old: Node,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any],
        then: str,
        then_attrs: dict[str, Any],
        *,
        origin: tuple[str, ...] = (),
    ) -> Node:
        """Run ``old``'s op on other inputs, and a node ``then`` behind it for each of its outputs.

        The values of ``old`` stay, so readers, graph outputs and names do not change. The inner
        node keeps ``old``'s name and origin and is returned; ``origin`` is that of the others.
        """
        place = self.graph.nodes.index(old)
        values = [f"{old.name}.out"] * len(old.outputs)
        inner = self.graph.make(
            old.op, inputs, name=old.name, origin=old.origin, output_names=values, **attrs
        )
        self._forget(old)
        inner.name = old.name
        outer: list[Node] = []
        for source, value in zip(inner.outputs, old.outputs, strict=True):
            name = self.graph.unique_name(f"{old.name}.{then}")
            node = Node(then, [source], [value], dict(then_attrs), name, origin)
            if not _same_elements(op_def(then).infer(node), [value]):
                raise InternalError(f"{node!r} does not give back {value!r}")
            value.producer = node
            outer.append(node)
        self.graph.nodes[place : place + 1] = [inner, *outer]
        for node in (inner, *outer):
            self._adopt(node)
        self._remove_dead(old.args)
        return inner

    def redirect(self, old: Value, new: Value) -> None:
        """Let all that reads ``old``, graph outputs too, read ``new``; remove what nothing reads
        any more."""
        for user in self.users(old):
            user.inputs = [new if v is old else v for v in user.inputs]
            self._users.setdefault(new, {})[user] = None
        self._users.get(old, {}).clear()
        self.graph.redirect_results(old, new)
        self.modified = True
        self._remove_dead([old])

    def _adopt(self, node: Node) -> None:
        self._alive.add(node)
        for value in node.args:
            self._users.setdefault(value, {})[node] = None
        for value in node.outputs:
            self._users.setdefault(value, {})
        self.modified = True

    def _forget(self, node: Node) -> None:
        self._alive.discard(node)
        for value in dict.fromkeys(node.args):
            self._users[value].pop(node, None)
            if value.is_const and not self._users[value]:
                del self._users[value]  # nothing else may hold it: weights are large

    def _remove_dead(self, values: Iterable[Value]) -> None:
        """Remove the producers of ``values`` that nothing reads, and theirs in turn."""
        stack = list(values)
        while stack:
            node = stack.pop().producer
            if node is None or node not in self._alive or any(map(self.is_used, node.outputs)):
                continue
            self.graph.nodes.remove(node)
            self._forget(node)
            self.modified = True
            stack.extend(node.args)


def _same_elements(types: Sequence[TensorType], values: Sequence[Value]) -> bool:
    """Whether the types are those of the values. What the integers stand for may differ: a file
    gives an operator that only moves them any scale for its output.
    """
    return [(t.dtype, t.shape) for t in types] == [(v.dtype, v.type.shape) for v in values]


def constant_like(graph: Graph, array: Any, base: str) -> Value:
    """A new f32 constant from ``array`` (any float type), contiguous."""
    import numpy as np

    return graph.constant(np.array(array, dtype=np.float32, order="C"), base)


def type_of(node: Node) -> list[TensorType]:
    return [v.type for v in node.outputs]
