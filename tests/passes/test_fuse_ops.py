"""fuse_ops and order_groups: the Groups that come out, and their order."""

from __future__ import annotations

from passes.builders import Net, RandomNet

from aotgen.ir.graph import Graph
from aotgen.ir.types import DType
from aotgen.ir.verifier import verify
from aotgen.passes.fuse_ops import MAX_OPS, FuseOps, is_view_op, kernel_calls
from aotgen.passes.order_groups import OrderGroups, peak_bytes
from aotgen.passes.pipeline import run_passes


def fused(graph: Graph) -> list[str]:
    """The groups, each as its ops joined by spaces."""
    FuseOps().run(graph)
    verify(graph)
    assert graph.groups is not None
    return [" ".join(n.op for n in g.nodes) for g in graph.groups]


def test_conv_takes_its_epilogue() -> None:
    net = Net()
    y = net.conv_nhwc(net.input(1, 4, 4, 3), 5, 3, 1)
    y = net.op("mul", net.op("relu", net.op("add", y, net.const(5))), net.const(1, 4, 4, 5))
    graph = net.output(net.op("sub", net.number(1.0), y))
    assert fused(graph) == ["conv add relu mul sub"]
    assert graph.groups is not None
    group = graph.groups[0]
    assert group.anchor is group.nodes[0] and group.name == "conv_node" == group.anchor.name


def test_epilogue_reads_activations_of_every_kind() -> None:
    net = Net()
    x = net.input(1, 4, 4, 3)
    gate, scalar = net.input(1, 1, 1, 5, name="gate"), net.input(1, name="scalar")
    pixel = net.op("tanh", net.input(1, 4, 4, 5, name="pixel"))
    y = net.conv_nhwc(x, 5)
    y = net.op("add", net.op("mul", net.op("mul", y, gate), scalar), pixel)
    assert fused(net.output(y)) == ["tanh", "conv mul mul add"]


def test_epilogue_refuses_other_broadcasts() -> None:
    net = Net()
    x = net.input(2, 4, 4, 3)
    rows, gate = net.input(4, 1, 1, name="rows"), net.input(2, 1, 1, 5, name="gate")
    y, z = net.conv_nhwc(x, 5), net.conv_nhwc(x, 5)
    wide = net.op("add", net.conv_nhwc(net.input(1, 1, 1, 3, name="small"), 5), gate)
    graph = net.output(net.op("mul", y, rows), net.op("mul", z, gate), wide)
    assert (
        fused(graph) == ["conv", "mul", "conv", "mul", "conv", "add"]
        or fused(graph).count("conv") == 3
    )


def test_behind_a_row_op_only_constants_of_a_row_join() -> None:
    def groups(*shape: int) -> list[str]:
        net = Net()
        y = net.op("matmul", net.input(4, 3), net.const(3, 6), None, trans_b=False)
        y = net.op("softmax", y, axis=1)
        return fused(net.output(net.op("mul", y, net.const(*shape))))

    assert groups(6) == groups(1) == groups(1, 6) == ["matmul softmax mul"]
    assert groups(4, 6) == groups(4, 1) == ["matmul softmax", "mul"]


def test_epilogue_is_f32_only() -> None:
    net = Net()
    y = net.conv_nhwc(net.input(1, 4, 4, 3), 5)
    graph = net.output(net.op("cast", net.op("relu", y), dtype=DType.I32))
    assert fused(graph) == ["conv relu", "cast"]


def test_sum_of_two_convs_joins_the_later_one() -> None:
    net = Net()
    x = net.input(1, 4, 4, 3)
    a, b = net.conv_nhwc(x, 5, 3, 1), net.conv_nhwc(x, 5)
    assert fused(net.output(net.op("relu", net.op("add", a, b)))) == ["conv", "conv add relu"]


def test_operand_that_is_computed_later_comes_first() -> None:
    net = Net()
    x = net.input(1, 4, 4, 3)
    a = net.conv_nhwc(x, 5)
    later = net.reduce("max", net.op("exp", x), 3)
    later = net.op("expand", later, shape=(1, 4, 4, 5))
    graph = net.output(net.op("add", a, later))
    assert fused(graph) == ["exp reduce_max", "expand", "conv add"]


def test_a_value_that_leaves_ends_the_group() -> None:
    net = Net()
    y = net.op("relu", net.conv_nhwc(net.input(1, 4, 4, 3), 5))
    z = net.op("exp", y)
    assert fused(net.output(y, z)) == ["conv relu", "exp"]


def test_two_readers_end_the_group() -> None:
    net = Net()
    y = net.conv_nhwc(net.input(1, 4, 4, 3), 5)
    graph = net.output(net.op("mul", y, net.op("sigmoid", y)))
    assert fused(graph) == ["conv", "sigmoid mul"]


def test_matmul_takes_softmax_on_its_rows() -> None:
    net = Net()
    a, b = net.input(2, 5, 3), net.input(2, 5, 3, name="b")
    y = net.op("mul", net.op("matmul", a, b, None, trans_b=True), net.number(0.5))
    y = net.op("mul", net.op("softmax", y, axis=2), net.number(2.0))
    assert fused(net.output(y)) == ["matmul mul softmax mul"]


def test_matmul_takes_one_row_op_and_then_constants_only() -> None:
    net = Net()
    a, b = net.input(5, 3), net.input(5, 4, name="b")
    y = net.op("matmul", a, net.const(3, 4), None, trans_b=False)
    y = net.op("layer_norm", net.op("add", y, b), net.const(4), net.const(4), axis=1, eps=1e-5)
    y = net.op("add", net.op("relu", y), b)
    assert fused(net.output(y)) == ["matmul add layer_norm relu", "add"]


def test_softmax_over_another_axis_stays_outside() -> None:
    net = Net()
    y = net.op("matmul", net.input(5, 3), net.const(3, 4), None, trans_b=False)
    assert fused(net.output(net.op("softmax", y, axis=0))) == ["matmul", "softmax"]


def test_view_ops_stand_alone() -> None:
    net = Net()
    x = net.input(2, 6)
    y = net.op("relu", net.reshape(net.op("neg", x), 3, 4))
    y = net.op("concat", y, net.transpose(net.op("abs", net.input(4, 3, name="z")), 1, 0), axis=0)
    y = net.op("slice", net.op("exp", y), starts=(0, 0), ends=(6, 2), steps=(1, 1))
    graph = net.output(y)
    assert fused(graph) == ["neg", "reshape", "relu", "abs", "transpose", "concat", "exp", "slice"]
    assert kernel_calls(graph) == 4


def test_elementwise_trees_fuse_without_repeating_work() -> None:
    net = Net()
    x, small = net.input(4, 5), net.input(5, name="small")
    tree = net.op("add", net.op("exp", x), net.op("mul", net.op("neg", x), net.op("tanh", small)))
    # tanh would run once for every row inside the tree.
    assert fused(net.output(tree)) == ["tanh", "exp neg mul add"]


def test_reduction_takes_what_is_around_it() -> None:
    net = Net()
    x = net.input(4, 5)
    y = net.reduce("sum", net.op("mul", net.op("exp", x), net.const(4, 5)), 1)
    y = net.op("sqrt", net.op("add", y, net.number(1.0)))
    graph = net.output(net.op("div", x, y))
    assert fused(graph) == ["exp mul reduce_sum add sqrt", "div"]


def test_norms_over_space_compute_nothing_twice() -> None:
    net = Net()
    y = net.op("exp", net.input(1, 4, 4, 3))
    y = net.op("instance_norm", y, net.const(3), net.const(3), eps=1e-5)
    y = net.op("softmax", net.op("abs", net.op("relu", y)), axis=3)
    z = net.op("softmax", net.op("exp", y), axis=1)
    assert fused(net.output(z)) == ["exp", "instance_norm", "relu abs softmax exp", "softmax"]


def test_pad_and_resize_take_an_epilogue() -> None:
    net = Net()
    x = net.op("exp", net.input(4, 5))
    y = net.op("relu", net.op("pad", x, pads=(1, 0, 0, 0), mode="edge", value=0.0))
    assert fused(net.output(y)) == ["exp", "pad relu"]


def test_group_names_are_unique_and_origins_complete() -> None:
    for seed in range(20):
        graph = run_passes(RandomNet(seed).build(), verify=True)
        assert graph.groups is not None
        for group in graph.groups:
            assert group.origin
            for node in group.nodes[:-1]:
                assert not is_view_op(node)


def test_order_of_groups_lowers_the_peak() -> None:
    net = Net()
    x = net.input(1, 8)
    # Each branch grows to 4096 numbers and shrinks to 8; breadth-first keeps all large ones alive.
    wide = [
        net.op("tile", net.op("mul", x, net.number(float(i))), repeats=(512, 1)) for i in range(4)
    ]
    y = None
    for w in wide:
        small = net.reduce("max", w, 0)
        y = small if y is None else net.op("add", y, small)
    assert y is not None
    graph = net.output(y)
    FuseOps().run(graph)
    before = peak_bytes(graph)
    assert OrderGroups().run(graph)
    verify(graph)
    assert before > 4 * 512 * 8 * 4 and peak_bytes(graph) < 2 * 512 * 8 * 4
    assert not OrderGroups().run(graph)


def test_order_stays_when_nothing_is_won() -> None:
    net = Net()
    x = net.input(4, 4)
    a, b = net.op("softmax", x, axis=0), net.op("softmax", x, axis=1)
    graph = net.output(net.op("matmul", a, b, None, trans_b=False))
    FuseOps().run(graph)
    assert not OrderGroups().run(graph)


def test_groups_of_a_long_chain_are_of_limited_length() -> None:
    net = Net()
    x = y = net.input(1, 4)
    for k in range(3 * MAX_OPS):
        y = net.op("add", y, x) if k % 2 else net.op("tanh", y)
    groups = [g.split() for g in fused(net.output(y))]
    assert len(groups) == 3 and max(map(len, groups)) <= MAX_OPS
