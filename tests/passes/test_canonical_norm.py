"""Group normalisation as frameworks export it, and factors behind a norm."""

from __future__ import annotations

import pytest
from passes.builders import Net, ops, proven

from aotgen.ir.graph import Graph, Value
from aotgen.passes.pipeline import run_passes


def exported(net: Net, x: Value, groups: int) -> Value:
    """x [N,C,*S] through InstanceNormalization of [N,groups,-1], then scale and bias."""
    split = net.reshape(x, x.shape[0], groups, x.type.numel // (x.shape[0] * groups))
    scale, bias = net.const(groups, low=0.5), net.const(groups)
    y = net.op("instance_norm", net.transpose(split, 0, 2, 1), scale, bias, eps=1e-5)
    y = net.reshape(net.transpose(y, 0, 2, 1), *x.shape)
    ones = (1,) * (x.type.rank - 2)
    return net.op(
        "add", net.op("mul", y, net.const(x.shape[1], *ones)), net.const(x.shape[1], *ones)
    )


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("groups", "op"), [(1, "group_norm"), (3, "group_norm"), (12, "instance_norm")]
)
def test_exported_group_norm(batch: int, groups: int, op: str) -> None:
    """Between convolutions nothing but the norm is left."""

    def build() -> Graph:
        net = Net()
        x = net.conv(net.input(batch, 4, 6, 5), 12)
        return net.output(net.conv(net.op("relu", exported(net, x, groups)), 4))

    found = ops(proven(build, run_passes))
    del found["transpose"]
    assert found == {"conv": 2, op: 1, "relu": 1}


def test_groups_across_channels_stay() -> None:
    """[N,C,H,W] split into groups that do not hold whole channels is no group_norm."""

    def build() -> Graph:
        net = Net()
        return net.output(exported(net, net.input(1, 4, 6, 5), 8))

    assert "group_norm" not in ops(proven(build, run_passes))


def test_interleaved_groups_stay() -> None:
    """[N,C,H,W] read as [N,L,G] without a transpose: the elements of a group lie G apart."""

    def build() -> Graph:
        net = Net()
        split = net.reshape(net.input(2, 4, 3, 6), 2, 36, 2)
        y = net.op("instance_norm", split, net.const(2, low=0.5), net.const(2), eps=1e-5)
        return net.output(net.reshape(y, 2, 4, 3, 6))

    assert "group_norm" not in ops(proven(build, run_passes))


def test_parameters_of_activations_stay() -> None:
    def build() -> Graph:
        net = Net()
        x = net.input(1, 6, 5, 8)
        norm = net.op("group_norm", x, net.const(8), net.const(8), groups=2, eps=1e-5)
        return net.output(net.op("mul", norm, net.input(1, 6, 5, 8, name="gate")))

    assert ops(proven(build, run_passes)) == {"group_norm": 1, "mul": 1}
