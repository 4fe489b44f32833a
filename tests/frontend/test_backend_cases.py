"""onnx's own backend test cases, read by the frontend and run by the interpreter.

Every case must either give onnx's expected outputs or be refused with a Problem: nothing may crash
and nothing may be silently wrong. A case whose shapes come in as graph inputs (Reshape's shape,
Pad's pads ...) is tried again with these inputs as constants, which is how real models hold them.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test import loader

from aotgen.errors import ModelError, Problem
from aotgen.frontend.onnx import check, load
from aotgen.frontend.onnx.registry import supported
from aotgen.ir.graph import Graph
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify

FLOORS = {"node": 1537, "pytorch-converted": 82, "pytorch-operator": 35, "simple": 7}
"""How many cases of a group must pass, of onnx 1.23; raise a number when more do."""

SKIPPED = {
    # ONNX's text divides by the length of the resized tensor, a whole number, as onnxruntime does;
    # the reference implementation behind these two cases divides by scale * length.
    "test_resize_downsample_scales_cubic_align_corners": "reference differs from the text",
    "test_resize_downsample_scales_linear_align_corners": "reference differs from the text",
    # Computed in float16 step by step by numpy; we round once.
    "test_attention_4d_causal_fp16": "intermediate rounding",
    "test_attention_4d_causal_fp16_expanded": "intermediate rounding",
}

LEAST_ATOL = {"test_dft": 1e-6, "test_stft": 1e-6}
"""Absolute tolerances by the start of a case's name, where ours follow from another algorithm: sums
of products with a float32 table end beside 0 where a fast Fourier transform ends at it.
"""

ALLOWED_REFUSALS = (
    r"known only at run time",
    r"element type .* is not supported",
    r"only dense numeric values",
    r"training mode",
    r"control flow",
    r"an axis of batches",
    r"blocked quantization",
    r"output_shape",
    r"its output 1 .* is not supported",
    r"from bool to u8",
    r"Required attribute 'to' is missing",  # Cast before opset 6 has its type as a string
)
"""Reasons for which an operator that has a converter may still be refused."""

Data = list[tuple[list[Any], list[Any]]]


@dataclass(frozen=True)
class Case:
    name: str
    model: onnx.ModelProto
    data: Data
    rtol: float
    atol: float


@dataclass
class Tally:
    passed: list[str] = field(default_factory=list)
    refused: dict[str, list[Problem]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if np.isscalar(value) else value


def _stored_data(folder: Path) -> Data:
    def read(sets: Path, stem: str) -> list[Any]:
        paths = sorted(sets.glob(f"{stem}_*.pb"), key=lambda p: int(p.stem.rsplit("_", 1)[1]))
        protos = [onnx.TensorProto.FromString(p.read_bytes()) for p in paths]
        return [numpy_helper.to_array(p) for p in protos]

    sets = sorted(folder.glob("test_data_set_*"))
    return [(read(s, "input"), read(s, "output")) for s in sets]


def cases(group: str) -> list[Case]:
    """All cases of a group whose data are tensors, in the order of their names."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = sorted(loader.load_model_tests(kind=group), key=lambda c: c.name)
    result: list[Case] = []
    for c in found:
        if c.model is not None:
            data = [([_array(v) for v in i], [_array(v) for v in o]) for i, o in c.data_sets]
            result.append(Case(c.name, c.model, data, c.rtol, c.atol))
            continue
        with contextlib.suppress(Exception):  # sequences and optionals are not TensorProtos
            data = _stored_data(Path(c.model_dir))
            model = onnx.load(Path(c.model_dir) / "model.onnx")
            result.append(Case(c.name, model, data, c.rtol, c.atol))
    return result


def _shapes(model: onnx.ModelProto, inputs: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    constants = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input]
    return {n: a.shape for n, a in zip(names, inputs, strict=False) if n not in constants}


def _frozen(case: Case, first: int) -> onnx.ModelProto:
    """The model with its scalar and 1-D inputs from number ``first`` on as initializers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(case.model)
    for index, (value, array) in enumerate(
        zip(case.model.graph.input, case.data[0][0], strict=False)
    ):
        if index >= first and array.ndim <= 1:
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
    return copy


def _problems(case: Case) -> tuple[onnx.ModelProto, list[Problem]]:
    """The model, frozen as far as needed, and why it is refused."""
    model = case.model
    problems = check(model, shapes=_shapes(model, case.data[0][0]))
    for first in (1, 0):
        if not any("run time" in p.reason for p in problems):
            break
        frozen = _frozen(case, first)
        again = check(frozen, shapes=_shapes(frozen, case.data[0][0]))
        if len(again) < len(problems):
            model, problems = frozen, again
    return model, problems


def _compare(case: Case, graph: Graph, names: Sequence[str]) -> str:
    """What is wrong with the graph's results, or an empty string."""
    for inputs, outputs in case.data:
        given = dict(zip(names, inputs, strict=False))
        got = list(run(graph, {v.name: given[v.name] for v in graph.inputs}).values())
        if len(got) != len(outputs):
            return f"{len(got)} outputs, not {len(outputs)}"
        for have, want in zip(got, outputs, strict=True):
            if have.dtype != want.dtype or have.shape != want.shape:
                return f"{have.dtype}{have.shape}, not {want.dtype}{want.shape}"
            least = max((a for n, a in LEAST_ATOL.items() if case.name.startswith(n)), default=0.0)
            if not np.allclose(have, want, case.rtol, max(case.atol, least), equal_nan=True):
                return "values differ"
    return ""


def tally(group: str) -> Tally:
    result = Tally()
    for case in cases(group):
        if case.name in SKIPPED or not all(isinstance(a, np.ndarray) for a in case.data[0][0]):
            continue
        try:
            model, problems = _problems(case)
            if problems:
                result.refused[case.name] = problems
                continue
            graph = load(model, shapes=_shapes(model, case.data[0][0]))
            verify(graph)
            fault = _compare(case, graph, [v.name for v in case.model.graph.input])
        except ModelError as error:  # a model that cannot be read at all is no Problem of a node
            result.refused[case.name] = [Problem(case.name, "model", str(error))]
            continue
        if fault:
            result.wrong.append(f"{case.name}: {fault}")
        else:
            result.passed.append(case.name)
    return result


def _unexpected(found: Tally) -> list[str]:
    """Refusals by operators that have a converter, for a reason that is not an allowed one."""
    claimed = {op for domain, op in supported() if domain == ""}
    return [
        f"{name}: {problem}"
        for name, problems in found.refused.items()
        for problem in problems
        if problem.op in claimed
        and not any(re.search(allowed, problem.reason) for allowed in ALLOWED_REFUSALS)
    ]


@pytest.mark.parametrize("group", FLOORS)
def test_backend_cases(group: str) -> None:
    found = tally(group)
    assert found.wrong == []
    assert _unexpected(found) == []
    assert len(found.passed) >= FLOORS[group]
