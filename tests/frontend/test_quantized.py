"""Quantized operators against onnxruntime, as imported and behind all passes."""

from __future__ import annotations

import onnx
import pytest

from aotgen.frontend.onnx import load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from aotgen.passes.pipeline import run_passes
from tests.quantized_cases import (
    Builder,
    conv_cases,
    distance,
    elementwise_cases,
    lstm_cases,
    matmul_cases,
    qdq_cases,
    quantize_cases,
    reference,
)

PARTS = [quantize_cases, conv_cases, matmul_cases, elementwise_cases, qdq_cases, lstm_cases]


def wrong(got: dict, expected: dict, builder: Builder, model: onnx.ModelProto) -> list[str]:
    """What is further from onnxruntime than its case allows."""
    makers = {o: n.op_type for n in model.graph.node for o in n.output}
    found = []
    for name, allowed in builder.steps.items():
        far = distance(got[name], expected[name])
        if far > allowed:
            found.append(f"{makers[name]} {name}: {far:g} from onnxruntime, {allowed} allowed")
    return found


@pytest.mark.parametrize("part", PARTS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_operators(part, seed: int) -> None:
    builder = Builder(seed)
    part(builder)
    model = builder.model()
    expected = reference(model, builder.feeds)
    graph = load(model)
    verify(graph)
    assert wrong(run(graph, builder.feeds), expected, builder, model) == []
    for level in (3, 0):
        graph = run_passes(load(model), opt_level=level, verify=True)
        assert wrong(run(graph, builder.feeds), expected, builder, model) == []
