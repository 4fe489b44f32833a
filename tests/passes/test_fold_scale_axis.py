"""fold_scale_axis: factors and offsets per channel go into weights."""

from __future__ import annotations

import pytest
from passes.builders import Net, ops, proven

from aotgen.ir.graph import Graph, Value
from aotgen.passes.fold_scale_axis import FoldScaleAxis
from aotgen.passes.pipeline import run_passes

fold = FoldScaleAxis().run


def _factor(net: Net, n: int, low: float = -2.0) -> Value:
    return net.const(n, low=low, high=2.0)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_factor_behind_conv(groups: int, bias: bool) -> None:
    def build() -> Graph:
        net = Net()
        y = net.conv_nhwc(net.input(1, 5, 5, 4), 8, 3, 1, groups=groups, bias=bias)
        return net.output(net.op("mul", _factor(net, 8), y))

    graph = proven(build, fold)
    assert ops(graph) == {"conv": 1} and graph.nodes[0].origin == ("conv0", "mul1")


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_factor_in_front_of_padded_conv(groups: int) -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("mul", net.input(1, 5, 5, 4), _factor(net, 4))
        return net.output(net.conv_nhwc(x, 8, 3, 1, groups=groups, bias=True))

    assert ops(proven(build, fold)) == {"conv": 1}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_offset_in_front_of_conv(groups: int) -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("add", net.input(1, 5, 5, 4), net.const(4))
        return net.output(net.conv_nhwc(x, 8, 3, 0, groups=groups))

    assert ops(proven(build, fold)) == {"conv": 1}


def test_offset_in_front_of_padded_conv_stays() -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("add", net.input(1, 5, 5, 4), net.const(4))
        return net.output(net.conv_nhwc(x, 8, 3, 1))

    assert ops(proven(build, fold, exact=True)) == {"add": 1, "conv": 1}


def test_around_conv_transpose() -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("mul", net.input(1, 3, 4, 4), _factor(net, 4))
        y = net.op(
            "conv_transpose",
            x,
            net.const(6, 3, 3, 2),
            net.const(6),
            strides=(2, 2),
            pads=(1, 1, 0, 0),
            dilations=(1, 1),
            groups=2,
            output_padding=(0, 0),
        )
        return net.output(net.op("mul", y, _factor(net, 6)))

    assert ops(proven(build, fold)) == {"conv_transpose": 1}


@pytest.mark.parametrize("trans_b", [False, True])
def test_around_matmul(trans_b: bool) -> None:
    def build() -> Graph:
        net = Net()
        x = net.op("add", net.op("mul", net.input(2, 3, 5), _factor(net, 5)), net.const(5))
        w = net.const(*((7, 5) if trans_b else (5, 7)))
        y = net.op("matmul", x, w, net.const(7), trans_b=trans_b)
        return net.output(net.op("mul", y, net.number(0.125)))

    assert ops(proven(build, fold)) == {"matmul": 1}


@pytest.mark.parametrize(("low", "left"), [(0.5, 0), (-2.0, 1)])
def test_only_positive_factors_pass_relu_and_max(low: float, left: int) -> None:
    def build() -> Graph:
        net = Net()
        y = net.op("relu", net.conv_nhwc(net.input(1, 6, 6, 3), 4, 3, bias=True))
        y = net.op("max_pool", y, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
        return net.output(net.op("mul", y, _factor(net, 4, low)))

    assert ops(proven(build, fold))["mul"] == left


def test_mean_over_channels_is_no_bridge() -> None:
    def build() -> Graph:
        net = Net()
        y = net.reduce("mean", net.conv_nhwc(net.input(1, 4, 4, 3), 4), 1, 3)
        return net.output(net.op("mul", y, _factor(net, 1)))

    assert ops(proven(build, fold, exact=True))["mul"] == 1


def test_a_value_with_another_reader_is_not_scaled() -> None:
    def build() -> Graph:
        net = Net()
        y = net.conv_nhwc(net.input(1, 4, 4, 3), 4)
        return net.output(net.op("mul", y, _factor(net, 4)), y)

    assert ops(proven(build, fold, exact=True)) == {"conv": 1, "mul": 1}


def test_shared_weights_are_not_copied() -> None:
    def build() -> Graph:
        net = Net()
        x, w = net.input(4, 3), net.const(3, 3)
        y = net.op("matmul", x, w, None, trans_b=False)
        z = net.op("matmul", net.op("mul", y, _factor(net, 3)), w, None, trans_b=False)
        return net.output(z)

    assert ops(proven(build, fold, exact=True)) == {"matmul": 2, "mul": 1}


def test_factor_per_row_stays() -> None:
    def build() -> Graph:
        net = Net()
        y = net.op("matmul", net.input(4, 3), net.const(3, 4), None, trans_b=False)
        return net.output(net.op("mul", y, net.const(4, 1)))

    assert ops(proven(build, fold, exact=True)) == {"matmul": 1, "mul": 1}


def test_batch_norm_on_either_side_of_conv_vanishes() -> None:
    def build() -> Graph:
        net = Net()
        x = net.batch_norm(net.input(1, 3, 5, 5))
        return net.output(net.batch_norm(net.conv(x, 4, 3)))

    graph = proven(build, run_passes)
    assert ops(graph) == {"transpose": 2, "conv": 1}
