"""onnx's own backend cases compiled to C: many cases in one model, so that one build serves them.

Each case keeps its graph; names get the case's number as a prefix.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import compose, helper

import aotgen
from aotgen.errors import ModelError, UnsupportedError
from tests.e2e.quick_build import QuickModel
from tests.frontend.test_backend_cases import SKIPPED, Case, _problems, _shapes, cases

FLOORS = {"node": 1473, "pytorch-converted": 82, "pytorch-operator": 35, "simple": 7}
"""How many cases of a group must pass when compiled, of onnx 1.23; raise a number when more do."""

RTOL, ATOL = 1e-3, 1e-5
"""Allowed at least: kernels add in another order than numpy."""


@dataclass
class Tally:
    passed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def batches(group: str, size: int, every: int = 1) -> Iterator[list[tuple[Case, onnx.ModelProto]]]:
    """The cases that the reader accepts, each with its model, ``size`` at a time of one opset.

    ``every``: only every so-many-th case, spread over the operators.
    """
    found: dict[tuple[tuple[str, int], ...], list[tuple[Case, onnx.ModelProto]]] = {}
    accepted = [
        case
        for case in cases(group)
        if case.name not in SKIPPED
        and all(isinstance(a, np.ndarray) and a.size for side in case.data[0] for a in side)
    ]
    for case in accepted[::every]:
        try:
            model, problems = _problems(case)
        except ModelError:
            continue
        if problems or len(model.functions):
            continue
        opsets = tuple(sorted((o.domain, o.version) for o in model.opset_import))
        found.setdefault(opsets, []).append((case, model))
    for of_opset in found.values():
        for start in range(0, len(of_opset), size):
            yield of_opset[start : start + size]


def run_batch(batch: Sequence[tuple[Case, onnx.ModelProto]], tally: Tally, board: str) -> None:
    """Compile the cases together; those that cannot be are told apart and left out."""
    rest = list(batch)
    while rest:
        model = _joined(rest)
        shapes = {
            f"c{i}_{name}": shape
            for i, (case, own) in enumerate(rest)
            for name, shape in _shapes(own, case.data[0][0]).items()
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "batch.onnx"
            onnx.save(model, path)
            try:
                project = aotgen.compile(
                    path, board=board, output=Path(folder) / "project", shapes=shapes, weights="bin"
                )
            except UnsupportedError as error:
                bad = {p.node.split("_")[0]: str(p) for p in error.problems}
                kept = []
                for i, (case, own) in enumerate(rest):
                    if f"c{i}" in bad:
                        tally.refused[case.name] = bad[f"c{i}"]
                    else:
                        kept.append((case, own))
                assert len(kept) < len(rest), str(error)
                rest = kept
                continue
            _compare(rest, QuickModel(project), tally)
            return


def _joined(batch: Sequence[tuple[Case, onnx.ModelProto]]) -> onnx.ModelProto:
    """One model of all: side by side, without edges between them."""
    graph = onnx.GraphProto(name="batch")
    for i, (_, model) in enumerate(batch):
        # Cases without node names would report their outputs' names, which have the prefix too.
        part = compose.add_prefix_graph(model.graph, f"c{i}_")
        for node in part.node:
            node.name = node.name or f"c{i}_node"
        graph.node.extend(part.node)
        graph.initializer.extend(part.initializer)
        graph.input.extend(part.input)
        graph.output.extend(part.output)
    first = batch[0][1]
    return helper.make_model(
        graph, opset_imports=list(first.opset_import), ir_version=max(first.ir_version, 10)
    )


def _compare(
    batch: Sequence[tuple[Case, onnx.ModelProto]], compiled: QuickModel, tally: Tally
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(max(len(case.data) for case, _ in batch)):
            feeds = {
                f"c{i}_{value.name}": array
                for i, (case, own) in enumerate(batch)
                for value, array in zip(
                    own.graph.input, case.data[min(number, len(case.data) - 1)][0], strict=False
                )
            }
            got = iter(compiled.run(feeds))
            for case, own in batch:
                mine = [next(got) for _ in own.graph.output]
                if number >= len(case.data):
                    continue
                fault = _fault(case, mine, case.data[number][1])
                if fault:
                    tally.wrong.append(f"{case.name}: {fault}")
                elif number == len(case.data) - 1:
                    tally.passed.append(case.name)


def _fault(case: Case, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    """What is wrong, or an empty string."""
    for have, need in zip(got, want, strict=True):
        if have.shape != need.shape or have.dtype != need.dtype:
            return f"{have.dtype}{have.shape}, not {need.dtype}{need.shape}"
        rtol, atol = max(case.rtol, RTOL), max(case.atol, ATOL)
        if not np.allclose(have, need, rtol, atol, equal_nan=True):
            return "values differ"
    return ""
