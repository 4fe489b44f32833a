"""Nodes with inputs as the cases of one model, compiled and compared with onnxruntime.

The cases of a family are nodes of one model, so that each family is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import aotgen
from aotgen.frontend.onnx import check as problems_of
from aotgen.frontend.onnx import load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from tests.e2e.quick_build import QuickModel, assert_close
from tests.support import require_tool

ML = "ai.onnx.ml"

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass
class Case:
    """A node: operator, inputs (arrays of this run; those named in ``constants`` become
    initializers), number of outputs, attributes.
    """

    op: str
    inputs: Sequence[np.ndarray]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ML
    constants: tuple[int, ...] = ()


def model_of(cases: Sequence[Case], opset: int = 17, ml: int = 3) -> tuple[onnx.ModelProto, dict]:
    """One model with every case as a node, and its inputs."""
    nodes, inputs, constants, outputs = [], [], [], []
    feeds: dict[str, np.ndarray] = {}
    for i, case in enumerate(cases):
        names = []
        for j, array in enumerate(case.inputs):
            name = f"in{i}_{j}"
            names.append(name)
            if j in case.constants:
                constants.append(onnx.numpy_helper.from_array(array, name))
                continue
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
            feeds[name] = array
        made = [f"out{i}_{j}" for j in range(case.outputs)]
        outputs += [helper.make_empty_tensor_value_info(name) for name in made]
        nodes.append(helper.make_node(case.op, names, made, domain=case.domain, **case.attrs))
    graph = helper.make_graph(nodes, "cases", inputs, outputs, constants)
    versions = [helper.make_opsetid("", opset), helper.make_opsetid(ML, ml)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    return model, feeds


def check(cases: Sequence[Case], folder: Path, opset: int = 17, ml: int = 3, tol: float = 2e-6):
    """Interpreter and compiled code agree with onnxruntime about cases."""
    names = [
        f"output {j} of case {i}: {case.op} {case.attrs}"[:300]
        for i, case in enumerate(cases)
        for j in range(case.outputs)
    ]
    check_model(*model_of(cases, opset, ml), names, folder, tol)


def check_model(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    names: Sequence[str],
    folder: Path,
    tol: float = 2e-6,
) -> None:
    """Interpreter and compiled code agree with onnxruntime about a model."""
    require_tool("gcc")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    graph = load(model)
    verify(graph)
    got = list(run(graph, feeds).values())
    for a, b, name in zip(got, expected, names, strict=True):
        assert_close(a, b, f"interpreter: {name}", tol)
    path = folder / "cases.onnx"
    onnx.save(model, path)
    project = aotgen.compile(path, board="host", output=folder / "project", weights="bin")
    compiled = QuickModel(project).run(feeds)
    for a, b, name in zip(compiled, expected, names, strict=True):
        assert_close(a, b, name, 10 * tol)


def refusal(case: Case, ml: int = 3, opset: int = 17) -> str:
    """Why a case is refused."""
    model, _ = model_of([case], opset, ml)
    problems = problems_of(model)
    assert problems
    return str(problems[0])
