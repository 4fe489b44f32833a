"""The benchmark networks, read and interpreted, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from aotgen.frontend.onnx import check, load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from benchmarks import networks

LARGE = {"vgg16", "r3d_18"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
        for name in sorted(networks.NETWORKS)
    ],
)
def test_network(name: str) -> None:
    proto = networks.build(name)
    assert check(proto) == []
    graph = load(proto, name=name)
    verify(graph)
    assert graph.name == name
    x = networks.sample_input(name)
    (got,) = run(graph, {graph.inputs[0].name: x}).values()
    (want,) = networks.session(proto).run(None, {graph.inputs[0].name: x})
    assert got.shape == want.shape
    assert np.abs(got - want).max() / np.abs(want).max() < 5e-5


@pytest.mark.parametrize("name", ["mobilenet_v2", "squeezenet1_1"])
def test_convolutions_are_channels_last_with_permuted_constant_weights(name: str) -> None:
    graph = load(networks.build(name))
    convs = [n for n in graph.nodes if n.op == "conv"]
    assert convs
    for conv in convs:
        x, weight, groups = conv.input(0), conv.input(1), conv.attrs["groups"]
        assert weight.is_const
        assert weight.const is not None and weight.const.flags.c_contiguous
        assert weight.shape[-1] * groups == x.shape[-1]
        assert conv.output.shape[-1] == weight.shape[0]
        assert x.producer is not None and x.producer.op == "transpose"
        assert conv.origin and conv.name == conv.origin[0]
