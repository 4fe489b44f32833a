"""combine_parallel_*: what is combined, what is left alone, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
from passes.builders import Net, ops, proven

from aotgen.ir.graph import Graph, Value
from aotgen.passes.combine_parallel_batch_matmul import CombineParallelBatchMatmul
from aotgen.passes.combine_parallel_conv2d import CombineParallelConv2d
from aotgen.passes.combine_parallel_dense import CombineParallelDense
from aotgen.passes.pipeline import run_passes

CONV, DENSE, BATCH = (
    CombineParallelConv2d(),
    CombineParallelDense(),
    CombineParallelBatchMatmul(),
)


def test_inception_heads_become_one_convolution_and_a_split() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(1, 5, 6, 8)
        heads = [net.op("relu", net.conv_nhwc(x, n, bias=n != 3)) for n in (4, 3, 6)]
        second = net.conv_nhwc(heads[1], 5, k=3, pad=1)
        return net.output(net.op("concat", heads[0], second, heads[2], axis=3))

    graph = proven(build, CONV.run)
    assert ops(graph) == {"conv": 2, "relu": 1, "split": 1, "concat": 1}
    combined = next(n for n in graph.nodes if n.op == "split")
    assert combined.attrs["sizes"] == (4, 3, 6)
    assert combined.origin == ("conv0", "conv2", "conv4")


@pytest.mark.parametrize("different", ["kernel", "stride", "input", "chain", "groups"])
def test_convolutions_that_differ_stay(different: str) -> None:
    def build() -> Graph:
        net = Net()
        x, z = net.input(1, 6, 6, 4), net.input(1, 6, 6, 4, name="z")
        a = net.op("relu", net.conv_nhwc(x, 4))
        b = net.conv_nhwc(
            z if different == "input" else x,
            4,
            k=3 if different == "kernel" else 1,
            pad=1 if different == "kernel" else 0,
            stride=2 if different == "stride" else 1,
            groups=2 if different == "groups" else 1,
        )
        b = net.op("sigmoid" if different == "chain" else "relu", b)
        return net.output(net.op("reduce_max", a, axes=(1, 2), keepdims=True), net.op("neg", b))

    assert ops(proven(build, CONV.run))["conv"] == 2


def test_a_residual_sum_behind_a_convolution_keeps_it_apart() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(1, 6, 6, 4)
        a, b, c = (net.conv_nhwc(x, 4) for _ in range(3))
        total = net.op("add", a, x)
        pooled = [net.op("reduce_max", v, axes=(1, 2), keepdims=True) for v in (b, c)]
        return net.output(net.op("neg", total), *pooled)

    graph = proven(build, CONV.run)
    assert ops(graph)["conv"] == 2
    assert ops(graph)["split"] == 1


def test_query_key_and_value_become_one_product() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(5, 8)
        q, k, v = (
            net.op("matmul", x, net.const(8, 8), net.const(8) if i else None, trans_b=False)
            for i in range(3)
        )
        scores = net.op("matmul", q, net.transpose(k, 1, 0), None, trans_b=False)
        return net.output(
            net.op("matmul", net.op("softmax", scores, axis=1), v, None, trans_b=False)
        )

    graph = proven(build, DENSE.run)
    assert ops(graph)["matmul"] == 3
    assert next(n for n in graph.nodes if n.op == "split").attrs["sizes"] == (8, 8, 8)


def test_transposed_and_plain_matrices_combine() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(2, 3, 4)
        a = net.op("matmul", x, net.const(4, 5), None, trans_b=False)
        b = net.op("matmul", x, net.const(6, 4), None, trans_b=True)
        return net.output(*(net.op("reduce_sum", y, axes=(2,), keepdims=False) for y in (a, b)))

    graph = proven(build, DENSE.run)
    assert ops(graph)["matmul"] == 1


def test_a_product_that_needs_another_one_is_not_combined_with_it() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(2, 4, 4)
        y = net.op("matmul", x, net.input(2, 4, 4, name="b"), None, trans_b=False)
        z = net.op("matmul", x, net.transpose(y, 0, 2, 1), None, trans_b=False)
        w = net.op("matmul", x, net.op("exp", net.input(2, 4, 3, name="c")), None, trans_b=False)
        return net.output(net.op("concat", z, w, net.transpose(y, 0, 2, 1), axis=2))

    graph = proven(build, BATCH.run)
    assert ops(graph)["matmul"] == 2
    order = {v: i for i, n in enumerate(graph.nodes) for v in n.outputs}
    assert all(order.get(v, -1) < i for i, n in enumerate(graph.nodes) for v in n.args)


def attention_like(x: Value, net: Net) -> list[Value]:
    return [
        net.op("matmul", x, net.op("tanh", net.input(2, n, 4, name=f"b{n}")), None, trans_b=True)
        for n in (3, 5)
    ]


def test_batched_products_share_their_left_operand() -> None:
    def build() -> Graph:
        net = Net()
        a, b = attention_like(net.input(2, 6, 4), net)
        return net.output(*(net.op("reduce_max", y, axes=(2,), keepdims=True) for y in (a, b)))

    graph = proven(build, BATCH.run)
    assert ops(graph) == {"tanh": 2, "concat": 1, "matmul": 1, "split": 1, "reduce_max": 2}


def test_they_run_at_level_4_and_can_be_disabled() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(5, 8)
        a, b = (net.op("matmul", x, net.const(8, 8), None, trans_b=False) for _ in range(2))
        return net.output(*(net.op("reduce_sum", y, axes=(1,), keepdims=False) for y in (a, b)))

    assert ops(run_passes(build(), opt_level=3))["matmul"] == 2
    assert ops(run_passes(build(), opt_level=4))["matmul"] == 1
    graph = run_passes(build(), opt_level=4, disabled=["combine_parallel_dense"])
    assert ops(graph)["matmul"] == 2


def test_fast_math_marks_what_it_may_shorten() -> None:
    net = Net()
    x = net.input(3, 4)
    graph = run_passes(net.output(net.op("softmax", net.op("tanh", x), axis=1)), opt_level=4)
    assert all(n.attrs["fast_math"] is True for n in graph.nodes)
    assert np.isfinite(graph.nodes[0].output.shape).all()
