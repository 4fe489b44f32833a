"""simplify_inference, fold_constant, canonicalize_cast, eliminate_common_subexpr, dead_code."""

from __future__ import annotations

import numpy as np
from passes.builders import Net, ops, proven

from aotgen.ir.graph import Graph
from aotgen.ir.types import DType, Quant, TensorType
from aotgen.passes.canonicalize_cast import CanonicalizeCast
from aotgen.passes.dead_code import DeadCode
from aotgen.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from aotgen.passes.fold_constant import FoldConstant
from aotgen.passes.simplify_inference import SimplifyInference


def test_batch_norm_becomes_mul_and_add() -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("identity", net.input(2, 3, 4, 5))
        return net.output(net.batch_norm(x, axis=1))

    graph = proven(build, SimplifyInference().run)
    assert ops(graph) == {"mul": 1, "add": 1}
    assert graph.nodes[0].input(1).shape == (3, 1, 1)
    assert graph.nodes[0].origin == graph.nodes[1].origin == ("batch_norm1",)


def test_batch_norm_with_computed_statistics_stays() -> None:
    net = Net()
    x, mean = net.input(2, 3), net.input(3, name="mean")
    c = net.const(3, low=1, high=2)
    graph = net.output(net.op("batch_norm", x, c, c, mean, c, eps=1e-5, axis=1))
    assert not SimplifyInference().run(graph)


def test_constants_are_folded() -> None:
    def build() -> Graph:
        net = Net()
        c = net.op("mul", net.op("exp", net.const(3, 1)), net.const(4))
        return net.output(net.op("add", net.input(3, 4), c))

    graph = proven(build, FoldConstant().run, exact=True)
    assert ops(graph) == {"add": 1}


def test_split_of_a_constant_is_folded() -> None:
    def build() -> Graph:
        net = Net()
        node = net.graph.make("split", [net.const(4, 3)], axis=0, sizes=(1, 3))
        net.graph.nodes.append(node)
        return net.output(net.op("add", net.input(3, 3), node.outputs[1]), node.outputs[0])

    graph = proven(build, FoldConstant().run, exact=True)
    assert ops(graph) == {"add": 1} and graph.outputs[1].is_const


def test_expand_of_a_constant_is_not_blown_up() -> None:
    def build() -> Graph:
        net = Net()
        c = net.op("expand", net.const(1), shape=(128, 128))
        return net.output(net.op("add", net.input(128, 128), c))

    assert ops(proven(build, FoldConstant().run, exact=True)) == {"expand": 1, "add": 1}


def test_casts_merge_where_that_is_exact() -> None:
    def build() -> Graph:
        net = Net()
        x, n = net.input(3), net.input(3, name="n", dtype=DType.I8)
        wide = net.op("cast", net.op("cast", n, dtype=DType.I32), dtype=DType.F32)
        narrow = net.op("cast", net.op("cast", x, dtype=DType.I32), dtype=DType.F32)
        back = net.op("cast", net.op("cast", x, dtype=DType.F64), dtype=DType.F32)
        return net.output(wide, narrow, net.op("cast", back, dtype=DType.F32))

    graph = proven(build, CanonicalizeCast().run, exact=True)
    # i8 -> i32 -> f32 is one cast, f32 -> i32 -> f32 rounds and stays, through f64 is nothing.
    assert [n.attrs["dtype"] for n in graph.nodes] == [DType.F32, DType.I32, DType.F32]
    assert graph.outputs[2] is graph.inputs[0]


def test_equal_nodes_and_constants_are_shared() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(2, 3)
        a, b = net.number(2.0, 3), net.number(2.0, 3)
        return net.output(net.op("sub", net.op("mul", x, a), net.op("mul", x, b)))

    graph = proven(build, EliminateCommonSubexpr().run, exact=True)
    assert ops(graph) == {"mul": 1, "sub": 1}
    assert graph.nodes[0].origin == ("mul0", "mul1")


def test_different_zeros_are_different_constants() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(2)
        parts = [net.op("div", x, net.number(z, 1)) for z in (0.0, -0.0)]
        return net.output(*parts)

    graph = build()
    assert not EliminateCommonSubexpr().run(graph)


def test_attributes_and_operand_order_tell_nodes_apart() -> None:
    net = Net()
    x, y = net.input(2, 2), net.input(2, 2, name="y")
    a, b = net.op("sub", x, y), net.op("sub", y, x)
    c, d = net.op("softmax", x, axis=0), net.op("softmax", x, axis=1)
    assert not EliminateCommonSubexpr().run(net.output(a, b, c, d))


def test_dead_nodes_go() -> None:
    net = Net()
    x = net.input(2)
    net.op("exp", net.op("neg", x))
    graph = net.output(net.op("abs", x))
    assert DeadCode().run(graph)
    assert ops(graph) == {"abs": 1}
    assert not DeadCode().run(graph)


def test_quantized_values_are_left_alone() -> None:
    from aotgen.passes.pipeline import run_passes

    net = Net()
    x = net.input(1, 2, 2, 3)
    x.type = TensorType(DType.F32, x.type.shape, Quant((0.5,), (0,)))
    y = net.op("relu", net.transpose(x, 0, 2, 3, 1))
    y = net.op("add", y, net.graph.constant(np.zeros(2, np.float32)))
    for node in net.graph.nodes:
        node.output.type = TensorType(DType.F32, node.output.type.shape, x.type.quant)
    graph = run_passes(net.output(y), verify=True)
    assert [n.op for n in graph.nodes] == ["transpose", "relu", "add"]
    assert all(v.type.quant == x.type.quant for v in graph.values() if not v.is_const)
