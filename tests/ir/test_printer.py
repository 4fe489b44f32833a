"""Printed graphs, against golden text."""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.printer import diff, print_graph
from aotgen.ir.types import DType, Quant, TensorType


def small() -> Graph:
    x = Value("x", TensorType(DType.F32, (1, 4, 4, 3)))
    g = Graph("small", [x], [], [])
    w = g.constant(np.zeros((8, 3, 3, 3), np.float32), "w")
    conv = g.make(
        "conv",
        [x, w, None],
        name="conv1",
        origin=("/conv/Conv",),
        strides=(1, 1),
        pads=(1, 1, 1, 1),
        dilations=(1, 1),
        groups=1,
    )
    half = g.constant(np.array(0.5, np.float32), "half")
    mul = g.make("mul", [conv.output, half], name="scale", origin=("/Mul", "/Div"))
    halves = g.make("split", [mul.output], name="halves", axis=3, sizes=(6, 2))
    g.nodes = [conv, mul, halves]
    g.outputs, g.output_names = list(halves.outputs), ["a", "b"]
    return g


BODY = """\
  %w: const f32[8x3x3x3] sha:0ed9e26c
  %conv1.out: f32[1x4x4x8] = conv(%x, %w, none) {dilations=(1, 1), groups=1, pads=(1, 1, 1, 1), \
strides=(1, 1)}  // /conv/Conv
  %half: const f32[scalar] {0.5}
  %scale.out: f32[1x4x4x8] = mul(%conv1.out, %half)  // /Mul /Div
  %halves.out: f32[1x4x4x6], %halves.out_1: f32[1x4x4x2] = split(%scale.out) {axis=3, sizes=(6, 2)}
"""
HEAD = "graph small(%x: f32[1x4x4x3]) -> (a = %halves.out, b = %halves.out_1) {\n"


def test_nodes() -> None:
    assert print_graph(small()) == f"{HEAD}{BODY}}}\n"


def test_groups_are_blocks() -> None:
    g = small()
    conv, mul, halves = g.nodes
    g.groups = [Group([conv, mul], conv, "conv1"), Group([halves], None, "halves")]
    lines = [f"  {line}" for line in BODY.splitlines()]
    blocks = ["  group 00 conv1 {", *lines[:4], "  }", "  group 01 halves {", lines[4], "  }"]
    assert print_graph(g) == HEAD + "\n".join(blocks) + "\n}\n"


def test_details() -> None:
    quant = Quant((0.25,), (3,))
    x = Value("x", TensorType(DType.I8, (2,), quant))
    g = Graph("details", [x], [], [])
    n = g.add("cast", [x], name="n", dtype=DType.F32)
    one = g.constant(np.array([1, 2], np.int64), "one")
    g.outputs, g.output_names = [n, one, x], ["n", "one", "x"]
    assert print_graph(g) == (
        "graph details(%x: i8[2] q(0.25, 3)) -> (n = %n.out, one = %one, x = %x) {\n"
        "  %n.out: f32[2] = cast(%x) {dtype=f32}\n"
        "  %one: const i64[2] {1, 2}\n"
        "}\n"
    )


def test_equal_graphs_print_equal_and_constants_show_their_content() -> None:
    a, b = small(), small()
    assert print_graph(a) == print_graph(b)
    b.nodes[0].input(1).const = np.ones((8, 3, 3, 3), np.float32)
    assert print_graph(a) != print_graph(b)


def test_diff() -> None:
    a, b = small(), small()
    b.nodes[1].op = "add"
    text = diff(print_graph(a), print_graph(b))
    changed = [
        line for line in text.splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")
    ]
    assert changed == [
        "-  %scale.out: f32[1x4x4x8] = mul(%conv1.out, %half)  // /Mul /Div",
        "+  %scale.out: f32[1x4x4x8] = add(%conv1.out, %half)  // /Mul /Div",
    ]
    assert diff(print_graph(a), print_graph(small())) == ""
