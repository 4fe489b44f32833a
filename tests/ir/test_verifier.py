"""The verifier finds each fault, planted once in a graph that is sound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aotgen.errors import InternalError
from aotgen.ir.graph import Graph, Group, Node, Value
from aotgen.ir.types import DType, TensorType
from aotgen.ir.verifier import verify


def sound() -> Graph:
    """fc -> act -> twice (reads act twice), and side, which also reads act."""
    x = Value("x", TensorType(DType.F32, (2, 3)))
    g = Graph("g", [x], [], [])
    w = g.constant(np.ones((3, 4), np.float32), "w")
    h = g.add("matmul", [x, w, None], name="fc", trans_b=False)
    y = g.add("relu", [h], name="act")
    z = g.add("add", [y, y], name="twice")
    s = g.add("reduce_sum", [y], name="side", axes=(1,), keepdims=False)
    g.outputs, g.output_names = [z, s], ["z", "s"]
    fc, act, twice, side = g.nodes
    g.groups = [
        Group([fc, act], fc, "fc"),
        Group([twice], None, "twice"),
        Group([side], None, "side"),
    ]
    return g


def test_sound_graphs_pass() -> None:
    g = sound()
    verify(g)
    g.groups = None
    verify(g)
    g.outputs, g.output_names = [g.inputs[0], g.nodes[0].input(1)], []
    verify(g)


def edit(change: Callable[[Graph], object]) -> Graph:
    g = sound()
    change(g)
    return g


def node(g: Graph, name: str) -> Node:
    return next(n for n in g.nodes if n.name == name)


def ungroup(g: Graph) -> Graph:
    g.groups = None
    return g


def swap(g: Graph) -> None:
    ungroup(g).nodes[0:2] = g.nodes[1::-1]


def retype(value: Value, *shape: int) -> None:
    value.type = value.type.with_shape(shape)


def duplicate_output(g: Graph) -> None:
    """act also claims fc's output."""
    node(g, "act").outputs = node(g, "fc").outputs


def regroup(g: Graph, *groups: Group) -> None:
    g.groups = list(groups)


def leak(g: Graph) -> None:
    fc, act, twice, side = g.nodes
    regroup(g, Group([fc, act, twice], fc, "a"), Group([side], None, "b"))


def inner_output(g: Graph) -> None:
    g.outputs[0] = node(g, "fc").output


FAULTS: list[tuple[str, Callable[[Graph], object]]] = [
    ("reads %fc.out before it is computed", swap),
    ("two values are named 'x'", lambda g: setattr(node(g, "fc").output, "name", "x")),
    ("two nodes are named 'act'", lambda g: setattr(node(g, "fc"), "name", "act")),
    (
        "does not name add node 'twice'",
        lambda g: setattr(node(g, "twice").output, "producer", None),
    ),
    ("does not name relu node 'act'", duplicate_output),
    ("has a producer or is a constant", lambda g: setattr(g.inputs[0], "producer", g.nodes[0])),
    ("constant %w has a producer", lambda g: setattr(g.nodes[0].input(1), "producer", g.nodes[1])),
    (
        r"%w: f32\[3x4\] holds an array float64",
        lambda g: setattr(g.nodes[0].input(1), "const", np.ones((3, 4))),
    ),
    (
        r"%w: f32\[3x4\] holds an array float32\[4, 3\]",
        lambda g: setattr(g.nodes[0].input(1), "const", np.ones((4, 3), np.float32)),
    ),
    (r"must be f32\[2x4\]", lambda g: retype(node(g, "act").output, 4, 2)),
    ("cannot multiply 2x5 by 3x4", lambda g: retype(g.inputs[0], 2, 5)),
    ("attribute axes of reduce_sum", lambda g: node(g, "side").attrs.update(axes=[1])),
    ("is a int64", lambda g: node(g, "side").attrs.update(axes=np.int64(1))),
    (
        "has 2 outputs, must have 1",
        lambda g: node(g, "act").outputs.append(Value("e", g.inputs[0].type)),
    ),
    ("has no outputs", lambda g: node(g, "side").outputs.clear()),
    (
        "output %stray is never computed",
        lambda g: g.outputs.append(Value("stray", g.inputs[0].type)),
    ),
    ("2 outputs have 1 names", lambda g: g.output_names.pop()),
    ("not a partition", lambda g: g.groups and g.groups.pop()),
    ("not a partition", lambda g: g.groups and g.groups.reverse()),
    ("group 'none' is empty", lambda g: g.groups and g.groups.append(Group([], None, "none"))),
    ("two groups are named 'fc'", lambda g: g.groups and setattr(g.groups[1], "name", "fc")),
    ("not one of its nodes", lambda g: g.groups and setattr(g.groups[1], "anchor", g.nodes[0])),
    ("cannot anchor", lambda g: g.groups and setattr(g.groups[0], "anchor", g.nodes[1])),
    ("%act.out leaves group 'a'", leak),
    ("%fc.out leaves group 'fc'", inner_output),
]


@pytest.mark.parametrize(("message", "change"), FAULTS)
def test_fault(message: str, change: Callable[[Graph], object]) -> None:
    with pytest.raises(InternalError, match=message):
        verify(edit(change))
