"""Checks the invariants of a Graph, after the frontend and after each pass.

A fault is a bug in aotgen, so it is an InternalError, which names the node or value.
"""

from __future__ import annotations

from typing import NoReturn

from aotgen.errors import InternalError, ModelError
from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.ir.types import DType
from aotgen.ops.registry import OpPattern, op_def


def verify(graph: Graph) -> None:
    """Raise InternalError on the first broken invariant.

    Checked: names are unique; every value is an input, a constant or the output of the one node
    that it names as its producer; nodes stand after what they read; attributes are immutable; types
    are what the op's type rule says; constants have the type they claim; outputs are defined and
    named; states start from and are set to what fits them; groups partition the nodes in execution
    order, keep their inner values to themselves and have valid anchors.
    """
    _check_names(graph)
    defined = _check_sources(graph)
    for node in graph.nodes:
        _check_inputs(graph, node, defined)
        _check_attrs(graph, node)
        _check_types(graph, node)
        for value in node.outputs:
            if value.producer is not node:
                _fault(graph, f"%{value.name} does not name {_label(node)} as its producer")
            if value.is_const:
                _fault(graph, f"%{value.name} is a constant and an output of {_label(node)}")
            if value in defined:
                _fault(graph, f"%{value.name} is defined twice, again by {_label(node)}")
            defined.add(value)
    _check_outputs(graph, defined)
    if graph.groups is not None:
        _check_groups(graph, graph.groups)


def _fault(graph: Graph, message: str) -> NoReturn:
    raise InternalError(f"graph {graph.name!r} is broken: {message}")


def _label(node: Node) -> str:
    return f"{node.op} node {node.name!r}"


def _check_names(graph: Graph) -> None:
    values: set[str] = set()
    for value in graph.values():
        if not value.name or value.name in values:
            _fault(graph, f"two values are named {value.name!r}" if value.name else "no name")
        values.add(value.name)
    nodes: set[str] = set()
    for node in graph.nodes:
        if not node.name or node.name in nodes:
            _fault(graph, f"two nodes are named {node.name!r}" if node.name else "no name")
        nodes.add(node.name)


def _check_sources(graph: Graph) -> set[Value]:
    """Inputs and constants; returns what is defined before the first node."""
    defined: set[Value] = set()
    for value in graph.inputs:
        if value.producer is not None or value.is_const:
            _fault(graph, f"input %{value.name} has a producer or is a constant")
        defined.add(value)
    for state in graph.states:
        value = state.value
        if value.producer is not None or value.is_const or value in defined:
            _fault(graph, f"state %{value.name} has a producer, is a constant or an input")
        if (state.initial.dtype, state.initial.shape) != (value.dtype.numpy, value.type.shape):
            _fault(graph, f"state {value!r} starts from {state.initial.dtype} of another type")
        defined.add(value)
    for value in graph.constants():
        array = value.const
        if array is None or value.producer is not None:
            _fault(graph, f"constant %{value.name} has a producer")
        if array.dtype != value.dtype.numpy or array.shape != value.type.shape:
            _fault(graph, f"{value!r} holds an array {array.dtype}{list(array.shape)}")
    return defined


def _check_inputs(graph: Graph, node: Node, defined: set[Value]) -> None:
    if not node.outputs:
        _fault(graph, f"{_label(node)} has no outputs")
    for value in node.args:
        if not value.is_const and value not in defined:
            _fault(graph, f"{_label(node)} reads %{value.name} before it is computed")


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(v) for v in value)
    if isinstance(value, DType):
        return True
    # Exactly these types: a numpy scalar prints and compares differently.
    if type(value) in (int, float, str, bool) or value is None:
        return True
    # Frozen records such as Requant and Sym.
    frozen = getattr(type(value), "__dataclass_params__", None)
    return frozen is not None and bool(frozen.frozen)


def _check_attrs(graph: Graph, node: Node) -> None:
    for key, value in node.attrs.items():
        if not _is_plain(value):
            _fault(
                graph, f"attribute {key} of {_label(node)} is a {type(value).__name__}: {value!r}"
            )


def _check_types(graph: Graph, node: Node) -> None:
    try:
        types = op_def(node.op).infer(node)
    except ModelError as error:
        _fault(graph, str(error))
    if len(types) != len(node.outputs):
        _fault(graph, f"{_label(node)} has {len(node.outputs)} outputs, must have {len(types)}")
    for value, found in zip(node.outputs, types, strict=True):
        # Quantization is the frontend's knowledge, not the type rule's.
        if (value.dtype, value.type.shape) != (found.dtype, found.shape):
            _fault(graph, f"{value!r} of {_label(node)} must be {found}")


def _check_outputs(graph: Graph, defined: set[Value]) -> None:
    for value in graph.results:
        if not value.is_const and value not in defined:
            _fault(graph, f"output %{value.name} is never computed")
    for state in graph.states:
        value, update = state.value, state.update
        if (value.dtype, value.type.shape) != (update.dtype, update.type.shape):
            _fault(graph, f"state {value!r} is set to {update!r}")
    if graph.output_names and len(graph.output_names) != len(graph.outputs):
        _fault(graph, f"{len(graph.outputs)} outputs have {len(graph.output_names)} names")


def _check_groups(graph: Graph, groups: list[Group]) -> None:
    ordered = [node for group in groups for node in group.nodes]
    if len(ordered) != len(graph.nodes) or any(
        a is not b for a, b in zip(ordered, graph.nodes, strict=True)
    ):
        _fault(graph, "the groups are not a partition of the nodes in execution order")
    names: set[str] = set()
    users, outputs = graph.users(), set(graph.results)
    for group in groups:
        if not group.nodes:
            _fault(graph, f"group {group.name!r} is empty")
        if group.name in names:
            _fault(graph, f"two groups are named {group.name!r}")
        names.add(group.name)
        _check_anchor(graph, group)
        inside = set(group.nodes)
        for node in group.nodes[:-1]:
            for value in node.outputs:
                if value in outputs or any(user not in inside for user in users[value]):
                    _fault(graph, f"%{value.name} leaves group {group.name!r} from its middle")


def _check_anchor(graph: Graph, group: Group) -> None:
    if group.anchor is None:
        return
    if group.anchor not in group.nodes:
        _fault(graph, f"the anchor of group {group.name!r} is not one of its nodes")
    if op_def(group.anchor.op).pattern is not OpPattern.ANCHOR:
        _fault(graph, f"{_label(group.anchor)} cannot anchor group {group.name!r}")
