"""Prints a Graph as text: one node a line, stable, made to be read and diffed.

``--show-passes`` shows the difference that a pass makes in this text.

    graph mlp(%x: f32[1x4]) -> (y = %add.out) {
      %w: const f32[4x2] sha:12ab34cd
      %fc.out: f32[1x2] = matmul(%x, %w, none) {trans_b=False}  // /fc/MatMul
      ...
    }
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable

import numpy as np

from aotgen.ir.graph import Graph, Group, Node, State, Value
from aotgen.ir.types import Array, DType

_SMALL = 4
"""Constants of at most so many elements are printed in full."""


def print_graph(graph: Graph) -> str:
    """The text of ``graph``, ending in a newline; ``graph.groups`` become blocks when set."""
    names = graph.output_names or [value.name for value in graph.outputs]
    inputs = ", ".join(repr(value) for value in graph.inputs)
    outputs = ", ".join(f"{n} = %{v.name}" for n, v in zip(names, graph.outputs, strict=True))
    printed: set[Value] = set()
    lines = [f"graph {graph.name}({inputs}) -> ({outputs}) {{"]
    lines += _indent(_state_lines(graph.states))
    if graph.groups is None:
        for node in graph.nodes:
            lines += _indent(_node_lines(node, printed))
    else:
        for index, group in enumerate(graph.groups):
            lines += _indent(_group_lines(index, group, printed))
    lines += _indent(_constant_lines(graph.results, printed))
    return "\n".join([*lines, "}", ""])


def diff(before: str, after: str) -> str:
    """Unified diff of two printed graphs; empty when they are equal."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=2
    )
    return "".join(f"{line}\n" for line in lines)


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _group_lines(index: int, group: Group, printed: set[Value]) -> list[str]:
    lines = [f"group {index:02d} {group.name} {{"]
    for node in group.nodes:
        mark = "  // anchor" if node is group.anchor and not node.origin else ""
        found = _node_lines(node, printed)
        lines += _indent([*found[:-1], found[-1] + mark])
    return [*lines, "}"]


def _node_lines(node: Node, printed: set[Value]) -> list[str]:
    """The node's constants that were not printed yet, then the node."""
    outputs = ", ".join(repr(value) for value in node.outputs)
    inputs = ", ".join("none" if value is None else f"%{value.name}" for value in node.inputs)
    attrs = ", ".join(f"{k}={_attr(v)}" for k, v in sorted(node.attrs.items()))
    line = f"{outputs} = {node.op}({inputs})"
    if attrs:
        line += f" {{{attrs}}}"
    if node.origin:
        line += f"  // {' '.join(node.origin)}"
    return [*_constant_lines(node.args, printed), line]


def _constant_lines(values: Iterable[Value], printed: set[Value]) -> list[str]:
    lines = []
    for value in values:
        if value.const is not None and value not in printed:
            printed.add(value)
            lines.append(f"%{value.name}: const {value.type} {_content(value.const)}")
    return lines


def _state_lines(states: Iterable[State]) -> list[str]:
    """One line a state variable: what it starts from, and what a run sets it to."""
    return [f"state {s.value!r} from {_content(s.initial)} to %{s.update.name}" for s in states]


def _content(values: Array) -> str:
    """The elements of a small array, a digest of a large one."""
    array = np.asarray(values, order="C")
    if array.size <= _SMALL:
        return "{" + ", ".join(_scalar(x) for x in array.ravel().tolist()) + "}"
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return f"sha:{hashlib.sha256(little.tobytes()).hexdigest()[:8]}"


def _scalar(x: object) -> str:
    return f"{x:.9g}" if isinstance(x, float) else str(x)


def _attr(value: object) -> str:
    if isinstance(value, DType):
        return value.value
    if isinstance(value, tuple):
        inner = ", ".join(_attr(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return _scalar(value)
