"""Kernel calls, transposes and results of the benchmark networks after all passes."""

from __future__ import annotations

import numpy as np
import pytest
from passes.builders import ops

from aotgen.frontend.onnx import load
from aotgen.ir import interpreter
from aotgen.passes.fuse_ops import kernel_calls
from aotgen.passes.pipeline import run_passes
from benchmarks import networks

MOST_CALLS = {
    "resnet18": 23,
    "resnet50": 56,
    "mobilenet_v1": 29,
    "mobilenet_v2": 54,
    "squeezenet1_1": 30,
    "densenet121": 187,
    "inception_v3": 109,
    "ds_cnn": 12,
    "fc_autoencoder": 10,
    "transformer": 40,
}


@pytest.mark.parametrize("name", MOST_CALLS)
def test_network(name: str) -> None:
    model, x = networks.build(name), networks.sample_input(name)
    (want,) = networks.session(model).run(None, {"input": x})
    graph = run_passes(load(model.SerializeToString()), verify=True)
    assert kernel_calls(graph) <= MOST_CALLS[name]
    if name != "transformer":
        moved = [n for n in graph.nodes if n.op == "transpose"]
        assert all(n.input(0) is graph.inputs[0] for n in moved) and len(moved) <= 1
    else:
        assert ops(graph)["transpose"] == 16
    (got,) = interpreter.run(graph, {"input": x}).values()
    assert np.max(np.abs(got - want)) <= 5e-5 * np.max(np.abs(want))
