"""Quantized operators in generated C: onnxruntime's numbers, undefined behaviour trapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import aotgen
from tests.e2e.quick_build import QuickModel
from tests.quantized_cases import Builder, distance, everything, reference


@pytest.fixture(scope="module")
def cases() -> tuple[Builder, onnx.ModelProto, dict[str, np.ndarray]]:
    builder = everything()
    model = builder.model()
    return builder, model, reference(model, builder.feeds)


@pytest.mark.parametrize(
    "board",
    ["host", *(pytest.param(b, marks=pytest.mark.slow) for b in ("host-avx2", "host-scalar"))],
)
def test_generated_code(cases, tmp_path: Path, board: str) -> None:
    builder, model, expected = cases
    path = tmp_path / "quantized.onnx"
    onnx.save(model, path)
    project = aotgen.compile(path, board=board, output=tmp_path / "project", weights="bin")
    built = QuickModel(project, extra=("-fsanitize=undefined", "-fno-sanitize-recover=all"))
    makers = {o: n.op_type for n in model.graph.node for o in n.output}
    names = [t["name"] for t in built.manifest["outputs"]]
    for name, got in zip(names, built.run(builder.feeds), strict=True):
        far = distance(got, expected[name])
        assert far <= builder.steps[name], f"{makers[name]} {name}: {far:g} from onnxruntime"
