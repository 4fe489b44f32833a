"""sink_transposes: what moves, what cancels, and what stays. Exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from passes.builders import NCHW, NHWC, Net, ops, proven

from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import DType, Sym, TensorType
from aotgen.passes import layout
from aotgen.passes.pipeline import run_passes
from aotgen.passes.sink_transposes import SinkTransposes

sink = SinkTransposes().run
Layer = Callable[[Net, Value], Value]

BETWEEN: dict[str, Layer] = {
    "relu": lambda n, x: n.op("relu", x),
    "channel constant": lambda n, x: n.op("add", x, n.const(6, 1, 1)),
    "scalar": lambda n, x: n.op("mul", n.number(2.0), x),
    "row constant": lambda n, x: n.op("mul", x, n.const(x.shape[-1])),
    "full constant": lambda n, x: n.op("sub", n.const(*x.shape), x),
    "where": lambda n, x: n.op("where", n.op("greater", x, n.number(0.0)), x, n.const(6, 1, 1)),
    "prelu": lambda n, x: n.op("prelu", x, n.const(6, 1, 1)),
    "batch_norm": lambda n, x: n.batch_norm(x),
    "concat": lambda n, x: n.op("concat", x, n.op("neg", x), axis=1),
    "concat with constant": lambda n, x: n.op("concat", x, n.const(1, 2, 5, 4), axis=1),
    "slice": lambda n, x: n.op(
        "slice", x, starts=(0, 1, 4, 0), ends=(1, 6, 0, 4), steps=(1, 2, -1, 1)
    ),
    "pad": lambda n, x: n.op("pad", x, pads=(0, 0, 1, 2, 0, 1, 0, 3), mode="edge", value=0.0),
    "tile": lambda n, x: n.op("tile", x, repeats=(1, 2, 1, 3)),
    "softmax": lambda n, x: n.op("softmax", x, axis=1),
    "cumsum": lambda n, x: n.op("cumsum", x, axis=2, exclusive=False, reverse=True),
    "reduce": lambda n, x: n.op("mul", x, n.reduce("mean", x, 1)),
    "resize": lambda n, x: n.op(
        "resize",
        x,
        mode="nearest",
        sizes=(1, 6, 10, 12),
        scales=(1.0, 1.0, 2.0, 3.0),
        coord="asymmetric",
        nearest_mode="floor",
        cubic_a=-0.75,
        exclude_outside=False,
        extrapolation=0.0,
        antialias=False,
    ),
    "gather": lambda n, x: n.op("gather", x, n.graph.constant(np.array([4, 0, 2]), "i"), axis=1),
    "shuffle": lambda n, x: n.reshape(
        n.transpose(n.reshape(x, 1, 2, 3, *x.shape[2:]), 0, 2, 1, 3, 4), *x.shape
    ),
    "squeeze and excite": lambda n, x: n.op("mul", x, n.conv(n.reduce("mean", x, 2, 3), 6)),
    "squeeze and excite, dense": lambda n, x: n.op(
        "mul", x, n.reshape(n.linear(n.reduce("max", x, 2, 3, keepdims=False), 6), 1, 6, 1, 1)
    ),
    "merged axes": lambda n, x: n.reshape(
        n.op("softmax", n.reshape(x, 1, 6, 20), axis=2), 1, 6, 5, 4
    ),
}


@pytest.mark.parametrize("layer", BETWEEN)
def test_nothing_is_transposed_between_convs(layer: str) -> None:
    def build() -> Graph:
        net = Net()
        x = net.transpose(net.conv_nhwc(net.input(1, 5, 4, 3), 6), *NCHW)
        y = net.transpose(BETWEEN[layer](net, x), *NHWC)
        return net.output(net.conv_nhwc(y, 2))

    graph = proven(build, sink)
    # A channel shuffle is a transpose by itself.
    assert ops(graph)["transpose"] == (1 if layer == "shuffle" else 0)


def test_split_lets_transposes_through() -> None:
    def build() -> Graph:
        net = Net()
        x = net.conv(net.input(1, 4, 3, 3), 6)
        node = net.graph.make("split", [x], axis=1, sizes=(2, 4))
        net.graph.nodes.append(node)
        return net.output(*(net.transpose(y, *NHWC) for y in node.outputs))

    graph = proven(build, sink, exact=True)
    assert ops(graph) == {"transpose": 1, "conv": 1, "split": 1}
    assert graph.nodes[-1].attrs["axis"] == 3


def test_shuffled_halves_stay_channels_last() -> None:
    """Units of ShuffleNet V2: shuffle, split, one half through a conv, concat, shuffle again."""

    def build() -> Graph:
        net = Net()
        x = net.conv(net.input(1, 6, 5, 4), 6)
        for _ in range(3):
            x = net.transpose(net.reshape(x, 1, 2, 3, 5, 4), 0, 2, 1, 3, 4)
            node = net.graph.make("split", [net.reshape(x, 1, 6, 5, 4)], axis=1, sizes=(3, 3))
            net.graph.nodes.append(node)
            kept, worked = node.outputs
            x = net.op("concat", kept, net.op("relu", net.conv(worked, 3)), axis=1)
        return net.output(net.conv(x, 4))

    graph = proven(build, sink)
    perms = [n.attrs["perm"] for n in graph.nodes if n.op == "transpose"]
    assert sorted(perms) == sorted([NHWC, *[(0, 1, 2, 4, 3)] * 3, NCHW])


def test_one_transpose_at_the_input_is_shared() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(1, 3, 4, 4)
        return net.output(net.op("add", net.conv(x, 2, 3, 1), net.conv(x, 2)))

    graph = proven(build, sink, exact=True)
    assert ops(graph) == {"transpose": 2, "conv": 2, "add": 1}
    assert graph.nodes[0].op == graph.nodes[-1].op == "transpose"


def test_global_pool_leaves_a_reshape() -> None:
    def build() -> Graph:
        net = Net()
        x = net.reduce("mean", net.conv(net.input(2, 3, 4, 4), 5), 2, 3)
        return net.output(x, net.linear(net.reshape(x, 2, 5), 7))

    graph = proven(build, sink)
    assert ops(graph)["transpose"] == 1 and graph.nodes[0].op == "transpose"
    assert graph.outputs[0].producer is not None and graph.outputs[0].producer.op == "reshape"


@pytest.mark.parametrize("trans_b", [False, True])
def test_flatten_is_folded_into_the_weights(trans_b: bool) -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("relu", net.conv(net.input(2, 3, 4, 5), 6))
        shape = (7, 120) if trans_b else (120, 7)
        y = net.op("matmul", net.reshape(x, 2, 120), net.const(*shape), None, trans_b=trans_b)
        return net.output(y)

    graph = proven(build, sink)
    assert ops(graph) == {"transpose": 1, "conv": 1, "relu": 1, "reshape": 1, "matmul": 1}
    assert graph.nodes[-1].attrs["trans_b"] is False


def test_attention_keeps_only_its_head_transposes() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(1, 5, 12)
        q, k, v = (net.reshape(net.linear(x, 12), 1, 5, 3, 4) for _ in range(3))
        scores = net.op(
            "matmul",
            net.transpose(q, 0, 2, 1, 3),
            net.transpose(k, 0, 2, 3, 1),
            None,
            trans_b=False,
        )
        y = net.op("matmul", scores, net.transpose(v, 0, 2, 1, 3), None, trans_b=False)
        return net.output(net.reshape(net.transpose(y, 0, 2, 1, 3), 1, 5, 12))

    graph = proven(build, sink, exact=True)
    assert [n.attrs["perm"] for n in graph.nodes if n.op == "transpose"] == [(0, 2, 1, 3)] * 4
    assert [n.attrs["trans_b"] for n in graph.nodes if n.op == "matmul"][3:] == [True, False]


def test_transpose_moves_up_when_it_cancels_there() -> None:
    def build() -> Graph:
        net = Net()
        x, y = net.input(1, 3, 4, 4), net.input(1, 2, 4, 4, name="y")
        z = net.op("relu", net.op("add", net.conv(x, 2), y))
        return net.output(net.conv_nhwc(net.transpose(z, *NHWC), 3))

    graph = proven(build, sink, exact=True)
    # The inputs' own transposes stay; the pair around the sum is gone.
    assert ops(graph)["transpose"] == 2


def test_a_transpose_with_another_reader_stays_for_it() -> None:
    def build() -> Graph:
        net = Net()
        x = net.conv(net.input(1, 3, 4, 4), 2)
        return net.output(x, net.conv_nhwc(net.transpose(net.op("relu", x), *NHWC), 2))

    graph = proven(build, sink, exact=True)
    assert ops(graph) == {"transpose": 2, "conv": 2, "relu": 1}


def test_moving_axes_of_extent_1_is_a_reshape() -> None:
    def build() -> Graph:
        net = Net()
        return net.output(net.transpose(net.input(1, 1, 5, 4), *NHWC))

    assert ops(proven(build, sink, exact=True)) == {"reshape": 1}


def test_run_time_dimensions_are_left_alone() -> None:
    net = Net()
    x = net.input(1, 1, 1, 1)
    x.type = TensorType(DType.F32, (Sym("batch", 8), 3, 4, 4))
    y = net.transpose(net.op("relu", net.transpose(x, *NHWC)), *NCHW)
    graph = run_passes(net.output(y), verify=True)
    assert ops(graph) == {"transpose": 2, "relu": 1}
    assert graph.outputs[0].type.shape[0] == Sym("batch", 8)


def test_no_transpose_at_level_0_either() -> None:
    net = Net()
    x = net.input(1, 3, 8, 8)
    y = net.pool("max_pool", net.op("relu", net.batch_norm(net.conv(x, 4, 3, 1))), 2, 2)
    y = net.op("concat", net.op("relu", net.conv(y, 2)), net.conv(y, 3, 3, 1), axis=1)
    graph = run_passes(net.output(net.reshape(net.reduce("mean", y, 2, 3), 1, 5)), opt_level=0)
    assert ops(graph)["transpose"] == 1 and graph.nodes[0].op == "transpose"


def test_split_reshape_agrees_with_numpy() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(2000):
        source = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6], rng.integers(1, 5)))
        perm = tuple(int(a) for a in rng.permutation(len(source)))
        t = [source[a] for a in perm]
        target = list(t)
        at = int(rng.integers(len(target)))
        kind = int(rng.integers(4))
        if kind == 0 and at + 1 < len(target):
            target[at : at + 2] = [target[at] * target[at + 1]]
        elif kind == 1 and target[at] % 2 == 0:
            target[at : at + 1] = [2, target[at] // 2]
        elif kind == 2:
            target.insert(at, 1)
        else:
            target = [int(np.prod(target))]
        split = layout.split_reshape(source, perm, tuple(target))
        if split is None:
            continue
        found += 1
        x = rng.standard_normal(source)
        want = x.transpose(perm).reshape(target)
        got = x.transpose(split.before).reshape(split.inner).transpose(split.after)
        assert np.array_equal(got, want), (source, perm, target, split)
    assert found > 1500
