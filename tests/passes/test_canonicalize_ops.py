"""canonicalize_ops: each rule's effect, and what it must not touch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from passes.builders import Net, ops, proven

from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import DType
from aotgen.passes.canonicalize_ops import CanonicalizeOps
from aotgen.passes.pattern import Match, Op, Scalar, Var
from aotgen.passes.rewrite import Rewriter

canonicalize = CanonicalizeOps().run
Layer = Callable[[Net, Value], Value]

_SQRT2 = math.sqrt(2)


def _tanh_gelu(n: Net, x: Value, inner: Value) -> Value:
    t = n.op("tanh", n.op("mul", inner, n.number(math.sqrt(2 / math.pi))))
    return n.op("mul", n.op("mul", n.number(0.5), x), n.op("add", n.number(1.0), t))


def _erf(n: Net, x: Value) -> Value:
    return n.op("add", n.op("erf", n.op("mul", x, n.number(1 / _SQRT2))), n.number(1.0))


def _gate(n: Net, x: Value) -> Value:
    return n.clip(n.op("add", x, n.number(3.0)), 0.0, 6.0)


def _norm(n: Net, x: Value, how: str, eps: float = 1e-5) -> Value:
    d = n.op("sub", x, n.reduce("mean", x, x.type.rank - 1))
    square = n.op("mul", d, d) if how == "mul" else n.op("pow", d, n.number(2.0))
    s = n.op("sqrt", n.op("add", n.reduce("mean", square, x.type.rank - 1), n.number(eps)))
    return n.op("mul", d, n.op("reciprocal", s)) if how == "mul" else n.op("div", d, s)


ONE_OP: dict[str, tuple[str, Layer]] = {
    "gelu, half last": ("gelu", lambda n, x: n.gelu(x)),
    "gelu, half first": (
        "gelu",
        lambda n, x: n.op("mul", n.op("mul", x, n.number(0.5)), _erf(n, x)),
    ),
    "gelu, half inside": (
        "gelu",
        lambda n, x: n.op("mul", x, n.op("mul", n.number(0.5), _erf(n, x))),
    ),
    "gelu, tanh with pow": (
        "gelu",
        lambda n, x: _tanh_gelu(
            n, x, n.op("add", x, n.op("mul", n.op("pow", x, n.number(3.0)), n.number(0.044715)))
        ),
    ),
    "gelu, tanh with products": (
        "gelu",
        lambda n, x: _tanh_gelu(
            n,
            x,
            n.op("add", x, n.op("mul", n.number(0.044715), n.op("mul", n.op("mul", x, x), x))),
        ),
    ),
    "gelu, tanh factored": (
        "gelu",
        lambda n, x: _tanh_gelu(
            n,
            x,
            n.op(
                "mul",
                x,
                n.op("add", n.number(1.0), n.op("mul", n.op("mul", n.number(0.044715), x), x)),
            ),
        ),
    ),
    "hard_swish, product first": (
        "hard_swish",
        lambda n, x: n.op("div", n.op("mul", x, _gate(n, x)), n.number(6.0)),
    ),
    "hard_swish, gate first": (
        "hard_swish",
        lambda n, x: n.op("mul", x, n.op("div", _gate(n, x), n.number(6.0))),
    ),
    "hard_swish, hard_sigmoid": (
        "hard_swish",
        lambda n, x: n.op("mul", n.op("hard_sigmoid", x, alpha=1 / 6, beta=0.5), x),
    ),
    "hard_swish, another slope": (
        "hard_swish",
        lambda n, x: n.op("mul", n.op("hard_sigmoid", x, alpha=0.2, beta=0.5), x),
    ),
    "silu": ("silu", lambda n, x: n.op("mul", x, n.op("sigmoid", x))),
    "silu, alpha": (
        "silu",
        lambda n, x: n.op("mul", n.op("sigmoid", n.op("mul", x, n.number(1.702))), x),
    ),
    "hard_sigmoid": ("hard_sigmoid", lambda n, x: n.op("mul", _gate(n, x), n.number(1 / 6))),
    "mish": ("mish", lambda n, x: n.op("mul", x, n.op("tanh", n.op("softplus", x)))),
    "relu6": (
        "clip",
        lambda n, x: n.op("minimum", n.op("maximum", x, n.number(0.0)), n.number(6.0)),
    ),
    "relu then bound": ("clip", lambda n, x: n.op("minimum", n.op("relu", x), n.number(6.0))),
    "relu": ("relu", lambda n, x: n.op("maximum", n.number(0.0), x)),
    "layer_norm": ("layer_norm", lambda n, x: n.layer_norm(x)),
    "layer_norm, bare": ("layer_norm", lambda n, x: _norm(n, x, "pow")),
    "layer_norm, reciprocal": ("layer_norm", lambda n, x: _norm(n, x, "mul")),
    "layer_norm, bias of rank 3": (
        "layer_norm",
        lambda n, x: n.op("add", _norm(n, x, "pow"), n.const(1, 1, x.shape[-1])),
    ),
    "sub of constant": ("add", lambda n, x: n.op("sub", x, n.const(6))),
    "div by constant": ("mul", lambda n, x: n.op("div", x, n.const(6, low=0.5))),
    "square": ("mul", lambda n, x: n.op("pow", x, n.number(2.0))),
    "two sums": ("add", lambda n, x: n.op("add", n.op("add", x, n.const(6)), n.const(1))),
    "two factors": ("mul", lambda n, x: n.op("mul", n.const(6), n.op("mul", n.const(6), x))),
    "two reshapes": ("reshape", lambda n, x: n.reshape(n.reshape(x, 30), 5, 6)),
    "two slices": (
        "slice",
        lambda n, x: n.op(
            "slice",
            n.op("slice", x, starts=(0, 1, 2), ends=(1, 5, 6), steps=(1, 1, 1)),
            starts=(0, 1, 0),
            ends=(1, 3, 3),
            steps=(1, 1, 1),
        ),
    ),
    "gather of a range": (
        "slice",
        lambda n, x: n.op("gather", x, n.graph.constant(np.array([1, 3])), axis=1),
    ),
    "expand of x": (
        "add",
        lambda n, x: n.op("add", n.op("expand", x, shape=(2, 5, 6)), n.const(2, 5, 6)),
    ),
}


@pytest.mark.parametrize("case", ONE_OP)
def test_becomes_one_op(case: str) -> None:
    op, layer = ONE_OP[case]

    def build() -> Graph:
        net = Net()
        return net.output(layer(net, net.input(1, 5, 6)))

    graph = proven(build, canonicalize)
    assert ops(graph) == {op: 1}
    # The one node answers for all nodes of the model that it replaces.
    before = build()
    assert set(graph.nodes[0].origin) == {o for n in before.nodes for o in n.origin}


def test_gelu_kinds_are_told_apart() -> None:
    kinds = []
    for case in ("gelu, half last", "gelu, tanh with pow"):
        net = Net()
        graph = net.output(ONE_OP[case][1](net, net.input(1, 5, 6)))
        canonicalize(graph)
        kinds.append(graph.nodes[0].attrs["approximate"])
    assert kinds == ["none", "tanh"]


STAYS: dict[str, Layer] = {
    "gelu of two values": lambda n, x: n.op(
        "mul", n.op("mul", n.op("tanh", x), n.number(0.5)), _erf(n, x)
    ),
    "gelu with another constant": lambda n, x: n.op(
        "mul", n.op("mul", x, n.number(0.51)), _erf(n, x)
    ),
    "gate of another value": lambda n, x: n.op("mul", x, n.op("sigmoid", n.op("tanh", x))),
    "sub from constant": lambda n, x: n.op("sub", n.const(6), x),
    "div of constant": lambda n, x: n.op("div", n.const(6), n.op("exp", x)),
    "div by subnormal": lambda n, x: n.op("div", n.op("mul", x, n.const(6)), n.number(1e-39)),
    "broadcasting zero": lambda n, x: n.op("add", x, n.number(0.0, 3, 1, 1)),
    "bound per channel": lambda n, x: n.op("minimum", x, n.const(6)),
    "gather backwards": lambda n, x: n.op("gather", x, n.graph.constant(np.array([3, 1])), axis=1),
    "disjoint clips": lambda n, x: n.clip(n.clip(x, 0.0, 1.0), 2.0, 3.0),
    "reversal": lambda n, x: n.op("slice", x, starts=(0, 4, 0), ends=(1, -1, 6), steps=(1, -1, 1)),
    "pad and crop": lambda n, x: n.op(
        "pad", x, pads=(0, 1, 0, 0, -1, 0), mode="constant", value=0.0
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_stays_as_it_is(case: str) -> None:
    def build() -> Graph:
        net = Net()
        return net.output(STAYS[case](net, net.input(1, 5, 6)))

    graph = proven(build, canonicalize, exact=True)
    assert [n.op for n in graph.nodes] == [n.op for n in build().nodes]


def test_inner_value_that_is_read_elsewhere_keeps_the_pattern_apart() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(4)
        e = net.op("erf", net.op("mul", x, net.number(1 / _SQRT2)))
        y = net.op("mul", net.op("mul", x, net.number(0.5)), net.op("add", e, net.number(1.0)))
        return net.output(y, e)

    assert ops(proven(build, canonicalize))["gelu"] == 0


def test_no_ops_vanish() -> None:
    def build() -> Graph:
        net = Net()
        x = y = net.input(2, 3)
        y = net.reshape(y, 2, 3)
        y = net.op("slice", y, starts=(0, 0), ends=(2, 3), steps=(1, 1))
        y = net.op("pad", y, pads=(0, 0, 0, 0), mode="constant", value=0.0)
        y = net.op("tile", net.op("expand", y, shape=(2, 3)), repeats=(1, 1))
        y = net.op("concat", y, axis=0)
        y = net.op("add", net.op("mul", y, net.number(1.0)), net.number(0.0, 3))
        y = net.op(
            "pow",
            net.op("div", net.op("sub", y, net.number(0.0)), net.number(1.0)),
            net.number(1.0),
        )
        return net.output(net.clip(y, -math.inf, math.inf), x)

    graph = proven(build, canonicalize, exact=True)
    assert graph.nodes == [] and graph.outputs == [graph.inputs[0]] * 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(4,), (1, 1, 1, 4), (1,)])
def test_constant_behind_conv_is_its_bias(bias: bool, shape: tuple[int, ...]) -> None:
    def build() -> Graph:
        net = Net()
        y = net.conv_nhwc(net.input(1, 3, 3, 2), 4, 3, 1, bias=bias)
        return net.output(net.op("add", net.const(*shape), y))

    graph = proven(build, canonicalize)
    assert ops(graph) == {"conv": 1}
    assert graph.nodes[0].name == "conv_node" and graph.nodes[0].origin == ("conv0", "add1")


def test_constant_behind_matmul_is_its_bias() -> None:
    def build() -> Graph:
        net = Net()
        return net.output(net.linear(net.input(2, 5, 3), 4))

    assert ops(proven(build, canonicalize)) == {"matmul": 1}


def test_row_constant_behind_matmul_is_no_bias() -> None:
    def build() -> Graph:
        net = Net()
        y = net.op("matmul", net.input(5, 3), net.const(3, 4), None, trans_b=False)
        return net.output(net.op("add", y, net.const(5, 1)))

    assert ops(proven(build, canonicalize)) == {"matmul": 1, "add": 1}


def _padded(net: Net, x: Value, value: float = 0.0) -> Value:
    return net.op("pad", x, pads=(0, 1, 0, 0, 0, 1, 2, 0), mode="constant", value=value)


def test_pad_goes_into_conv() -> None:
    def build() -> Graph:
        net = Net()
        x = _padded(net, net.input(1, 4, 4, 2))
        return net.output(net.conv_nhwc(x, 3, 3, 1, bias=True), net.conv_nhwc(x, 3, 3, 0))

    graph = proven(build, canonicalize, exact=True)
    assert ops(graph) == {"conv": 2}
    assert [n.attrs["pads"] for n in graph.nodes] == [(2, 1, 2, 3), (1, 0, 1, 2)]


@pytest.mark.parametrize(("value", "merged"), [(-5, True), (0, False)])
def test_zero_points_around_an_integer_conv_become_its_pads(value: int, merged: bool) -> None:
    def build() -> Graph:
        net = Net()
        pads = (0, 1, 0, 0, 0, 1, 2, 0)
        x = net.op(
            "pad",
            net.input(1, 4, 4, 2, dtype=DType.I8),
            pads=pads,
            mode="constant",
            value=value,
        )
        w = net.graph.constant(net.rng.integers(-127, 128, (3, 3, 3, 2)).astype(np.int8), "w")
        zero = net.graph.constant(np.array(-5, np.int8), "zero")
        attrs = {"strides": (1, 1), "pads": (1, 0, 0, 1), "dilations": (1, 1), "groups": 1}
        integer = {"dtype": DType.I32, "requant": None, "quant": None}
        return net.output(net.op("qconv", x, w, None, zero, None, **attrs, **integer))

    graph = proven(build, canonicalize, exact=True)
    assert [n.op for n in graph.nodes] == ["qconv"] if merged else ["pad", "qconv"]
    assert graph.nodes[-1].attrs["pads"] == ((2, 0, 1, 3) if merged else (1, 0, 0, 1))


@pytest.mark.parametrize(
    ("value", "pads"),
    [
        (1.0, (0, 1, 1, 0, 0, 1, 1, 0)),
        (0.0, (0, 1, 1, 1, 0, 1, 1, 1)),
        (0.0, (0, -1, 0, 0, 0, 1, 0, 0)),
    ],
)
def test_other_pads_stay_before_conv(value: float, pads: tuple[int, ...]) -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("pad", net.input(1, 4, 4, 2), pads=pads, mode="constant", value=value)
        return net.output(net.conv_nhwc(x, 3, 1))

    assert ops(proven(build, canonicalize, exact=True)) == {"pad": 1, "conv": 1}


def _pool(net: Net, x: Value, op: str, pad: int = 0, **attrs: object) -> Value:
    return net.op(op, x, kernel=(3, 3), strides=(1, 1), pads=(pad,) * 4, dilations=(1, 1), **attrs)


POOLS: dict[str, tuple[bool, Layer]] = {
    "average that counts its pads": (
        True,
        lambda n, x: _pool(
            n, _padded(n, x), "avg_pool", 1, count_include_pad=True, ceil_extra=(0, 0)
        ),
    ),
    "average without pads": (
        True,
        lambda n, x: _pool(
            n, _padded(n, x), "avg_pool", count_include_pad=False, ceil_extra=(0, 0)
        ),
    ),
    "average that skips its pads": (
        False,
        lambda n, x: _pool(
            n, _padded(n, x), "avg_pool", 1, count_include_pad=False, ceil_extra=(0, 0)
        ),
    ),
    "maximum, padded with -inf": (
        True,
        lambda n, x: _pool(n, _padded(n, x, -math.inf), "max_pool", ceil_extra=(0, 0)),
    ),
    "maximum of relu": (
        True,
        lambda n, x: _pool(n, _padded(n, n.op("relu", x)), "max_pool", ceil_extra=(0, 0)),
    ),
    "maximum of anything": (
        False,
        lambda n, x: _pool(n, _padded(n, x), "max_pool", ceil_extra=(0, 0)),
    ),
}


@pytest.mark.parametrize("case", POOLS)
def test_pad_in_front_of_pool(case: str) -> None:
    folded, layer = POOLS[case]

    def build() -> Graph:
        net = Net()
        return net.output(layer(net, net.input(1, 5, 6, 2)))

    graph = proven(build, canonicalize, exact=True)
    assert ops(graph)["pad"] == (0 if folded else 1)


def test_gather_of_one_row_is_a_slice() -> None:
    def build() -> Graph:
        net = Net()
        i = net.graph.constant(np.array(-1))
        return net.output(net.op("gather", net.input(2, 5, 6), i, axis=1))

    assert ops(proven(build, canonicalize, exact=True)) == {"slice": 1, "reshape": 1}


def test_pool_over_the_image_is_a_reduction() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(1, 3, 3, 2)
        y = _pool(net, x, "avg_pool", count_include_pad=False, ceil_extra=(0, 0))
        return net.output(y, _pool(net, x, "max_pool", ceil_extra=(0, 0)))

    graph = proven(build, canonicalize)
    assert ops(graph) == {"reduce_mean": 1, "reduce_max": 1}


def test_element_wise_op_moves_in_front_of_reshape() -> None:
    def build() -> Graph:
        net = Net()
        y = net.op("matmul", net.input(4, 3), net.const(3, 6), None, trans_b=False)
        return net.output(net.op("relu", net.op("mul", net.reshape(y, 2, 2, 6), net.number(0.5))))

    graph = proven(build, canonicalize, exact=True)
    assert [n.op for n in graph.nodes] == ["matmul", "mul", "relu", "reshape"]


def test_equal_numbers_that_fill_a_tensor_stay_behind_the_reshape() -> None:
    """A constant of the reshaped shape does not broadcast with the source."""

    def build() -> Graph:
        net = Net()
        y = net.op("matmul", net.input(3, 4), net.const(4, 5), None, trans_b=False)
        return net.output(net.op("add", net.reshape(y, 5, 3), net.number(0.5, 5, 3)))

    assert ops(proven(build, canonicalize, exact=True))["reshape"] == 1


def test_matcher_tries_both_orders_and_binds_names_once() -> None:
    net = Net()
    x, y = net.input(3), net.input(3, name="y")
    graph = net.output(net.op("add", net.number(2.0), x), net.op("sub", x, x), net.op("sub", x, y))
    rw = Rewriter(graph)
    plus, same, other = (v for v in graph.outputs)
    two = Op("add", Var("x"), Scalar(2.0, name="two"))
    (match,) = two.find(plus, Match(), rw)
    assert match["x"] is x and np.all(match["two"].const == 2.0)
    twice = Op("sub", Var("x"), Var("x"))
    assert len(list(twice.find(same, Match(), rw))) == 1
    assert not list(twice.find(other, Match(), rw))
