"""The nine networks that the onnx package ships without weights, from the file to C.

Each model makes its weights of ConstantOfShape, all 0.02, and has the expected output beside it;
onnx's own tolerances hold. Nearly all of these outputs are 1/1000 for each class, so a second test
draws weights, leaves a final Softmax away, and asks onnxruntime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import aotgen
from aotgen.frontend.onnx import check, load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from aotgen.passes.pipeline import run_passes
from support import require, require_tool

DATA = Path(onnx.__file__).parent / "backend/test/data"
SMALL = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet")
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")
"""Hundreds of megabytes of weights, nearly all in their linear layers."""

BUILT = ("shufflenet", "squeezenet")
"""Those that `make test` compiles, too."""


def names(fast: Sequence[str]) -> list[object]:
    marks = {name: [] if name in fast else [pytest.mark.slow] for name in (*SMALL, *LARGE)}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


def file_of(name: str) -> Path:
    path = DATA / "light" / f"light_{name}.onnx"
    require(path.exists(), f"onnx's light_{name}.onnx")
    return path


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """onnx's input for these cases: i / n in element i of n."""
    constant = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        if value.name not in constant:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            n = int(np.prod(shape))
            feeds[value.name] = (np.arange(n).reshape(shape) / n).astype(np.float32)
    return feeds


def expected_of(path: Path) -> np.ndarray:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.with_name(path.stem + "_output_0.pb").read_bytes())
    return numpy_helper.to_array(tensor)


def tolerance_of(name: str) -> dict[str, float]:
    case: dict[str, Any] = json.loads((DATA / f"real/test_{name}/data.json").read_text())
    return {"rtol": case["rtol"], "atol": case["atol"]}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied afterwards of all that is large."""
    yield tmp_path
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 20:
            path.unlink()


def compiled(model: Path, folder: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    require_tool("cmake", "gcc")
    project = aotgen.compile(model, board="host", output=folder / "project", weights="bin")
    (output,) = project.run(feeds).values()
    return np.asarray(output)


@pytest.mark.parametrize("name", names(fast=SMALL))
def test_read_network_gives_the_expected_output(name: str) -> None:
    path = file_of(name)
    model = onnx.load(path)
    assert check(model) == []
    graph = load(model, name=name)
    verify(graph)
    (output,) = run(graph, feeds_of(model)).values()
    np.testing.assert_allclose(output, expected_of(path), **tolerance_of(name))


@pytest.mark.parametrize("name", names(fast=BUILT))
def test_compiled_network_gives_the_expected_output(name: str, scratch: Path) -> None:
    path = file_of(name)
    output = compiled(path, scratch, feeds_of(onnx.load(path)))
    np.testing.assert_allclose(output, expected_of(path), **tolerance_of(name))


def with_drawn_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Constants drawn instead of made by ConstantOfShape; the logits instead of a final Softmax.

    Vectors (biases, scales, statistics) are drawn around 1 where they scale or are a variance, else
    around 0; matrices and kernels by He's rule.
    """
    rng = np.random.default_rng(7)
    drawn = onnx.ModelProto()
    drawn.CopyFrom(model)
    graph = drawn.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = {n.output[0]: shapes[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    scales = _scales(graph)
    for name, shape in made.items():
        if len(shape) > 1:
            deviation = (2 / np.prod(shape[1:])) ** 0.5
            value = deviation * rng.standard_normal(shape, np.float32)
        elif name in scales:
            value = rng.uniform(0.7, 1.4, shape)
        else:
            value = rng.uniform(-0.2, 0.2, shape)
        graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    if nodes[-1].op_type == "Softmax":
        softmax = nodes.pop()
        (logits,) = (node for node in nodes if softmax.input[0] in node.output)
        logits.output[0] = softmax.output[0]
    del graph.node[:]
    graph.node.extend(nodes)
    return drawn


def _scales(graph: onnx.GraphProto) -> set[str]:
    """Factors and variances: inputs 1 and 4 of BatchNormalization, and of Mul, also unsqueezed."""
    found = set()
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            found.update((node.input[1], node.input[4]))
        elif node.op_type == "Mul":
            found.update(node.input)
    unsqueezed = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Unsqueeze"}
    return found | {unsqueezed[name] for name in found if name in unsqueezed}


def drawn_case(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A network with drawn weights, seeded noise for it, and onnxruntime's output."""
    model = with_drawn_weights(onnx.load(file_of(name)))
    feeds = {
        key: np.random.default_rng(3).standard_normal(array.shape, np.float32)
        for key, array in feeds_of(model).items()
    }
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    assert 1e-2 < expected.std() < 1e7  # residual sums double the power, block by block
    return model, feeds, expected


def assert_close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", SMALL)
def test_read_network_with_drawn_weights_agrees_with_onnxruntime(name: str) -> None:
    model, feeds, expected = drawn_case(name)
    graph = run_passes(load(model, name=name), verify=True)
    (output,) = run(graph, feeds).values()
    assert_close(output, expected)


@pytest.mark.parametrize("name", names(fast=BUILT))
def test_compiled_network_with_drawn_weights_agrees_with_onnxruntime(
    name: str, scratch: Path
) -> None:
    model, feeds, expected = drawn_case(name)
    path = scratch / f"{name}.onnx"
    onnx.save(model, path)
    assert_close(compiled(path, scratch, feeds), expected)
