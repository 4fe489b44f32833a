"""Random models, compiled, built and run, against onnxruntime; damaged models against one rule.

Every project also has to keep its hands off what is not its own: see quick_build.
"""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
from onnx import helper

import aotgen
from aotgen.api import optimise
from aotgen.cli.main import call
from aotgen.ir import interpreter
from aotgen.validate import model_file
from support import require_tool
from tests.e2e import fuzz_models, mutate
from tests.e2e.fuzz_models import Model
from tests.e2e.quick_build import QuickModel, assert_close

BOARDS = ("host", "host-avx2", "host-scalar")
LEVELS = (3, 3, 3, 0, 1, 2, 4)
OPTIMIZE = ("speed", "speed", "ram", "flash")


def check(model: Model, folder: Path, board: str, level: int, optimize: str) -> QuickModel:
    """Compile ``model``, then ``check_built``."""
    require_tool("gcc")
    path = folder / "net.onnx"
    path.write_bytes(model.proto.SerializeToString())
    project = aotgen.compile(
        path,
        board=board,
        output=folder / "project",
        opt_level=level,
        optimize=optimize,  # type: ignore[arg-type]
        weights="bin",
    )
    return check_built(project, model)


def check_built(project: aotgen.Project, model: Model) -> QuickModel:
    """Build and run a project, with tensors of the caller's and in the arena; compare with what
    onnxruntime answered, and every traced layer; see quick_build for what else must hold.
    """
    built = QuickModel(project)
    for run in (built.run, built.run, built.run_in_arena):
        outputs = run(model.feeds)
        for name, got, expected in zip(model.outputs, outputs, model.expected, strict=True):
            assert_close(got, expected, name)
    check_layers(project, built, model)
    return built


def check_layers(project: aotgen.Project, built: QuickModel, model: Model) -> None:
    """The traced view of every layer against the interpreter, at each value's last writer."""
    options = project.info.options
    graph = optimise(aotgen.load(model_file(project.folder)), options)
    values: dict[str, np.ndarray] = {}
    interpreter.run(graph, model.feeds, observe=lambda v, array: values.update({v.name: array}))
    last = {name: (x, k) for x in project.info.layers for k, name in enumerate(x.outputs)}
    for output, (layer, k) in last.items():
        if output in values:
            expected = np.asarray(values[output]).reshape(-1)
            _, data = built.traced[layer.index][k]
            assert_close(np.frombuffer(data, expected.dtype), expected, layer.name)


def check_seed(seed: int, folder: Path) -> None:
    board, optimize = BOARDS[seed % 3], OPTIMIZE[seed % 4]
    check(fuzz_models.generate(seed), folder, board, LEVELS[seed % 7], optimize)


@pytest.mark.parametrize("seed", [*range(25), 250])  # the last one's layers compute by rows
def test_random_model(seed: int, tmp_path: Path) -> None:
    check_seed(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 600, 10))
def test_random_models(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_seed(seed, folder)


def by_hand(
    nodes: list, inputs: dict[str, np.ndarray], outputs: dict, constants: dict | None = None
) -> Model:
    """A model from nodes, with onnxruntime's answers for ``inputs``."""
    shapes = {name: value.shape for name, value in inputs.items()}
    proto = models.model(nodes, shapes, outputs, constants)
    answers = fuzz_models.session(proto).run(list(outputs), inputs)
    return Model(proto, inputs, list(outputs), answers)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape, np.float32)


def test_gather_in_six_axes(tmp_path: Path) -> None:
    """Loop variables and precomputed indices have different names."""
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    x, indices = floats(2, 10, 2, 3, 2), np.array([[0, -1, 3], [2, 2, 9]])
    model = by_hand([node], {"x": x}, {"y": (2, 2, 3, 2, 3, 2)}, {"i": indices})
    check(model, tmp_path, "host", 3, "speed")


def test_reduction_of_a_comparison_with_a_constant(tmp_path: Path) -> None:
    """A reduction over three axes beside a constant: its loops do not hide the pointers."""
    nodes = [
        helper.make_node("Greater", ["x", "c"], ["m"]),
        helper.make_node("Cast", ["m"], ["f"], to=1),
        helper.make_node("ReduceSum", ["f"], ["y"], keepdims=0),
    ]
    x, c = floats(4, 1, 2, 2, 12), floats(4, 1, 1, 2, 12)
    check(by_hand(nodes, {"x": x}, {"y": ()}, {"c": c}), tmp_path, "host-scalar", 1, "speed")


@pytest.mark.parametrize("shapes", [((21, 1, 64), (21, 64, 16)), ((1, 5, 1, 8), (3, 5, 8, 4))])
def test_one_row_times_each_constant_matrix(shapes: tuple, tmp_path: Path) -> None:
    x, w = (floats(*shape) for shape in shapes)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = by_hand([node], {"x": x}, {"y": np.matmul(x, w).shape}, {"w": w})
    check(model, tmp_path, "host", 3, "speed")


def test_gather_nd_over_axes_of_different_extents(tmp_path: Path) -> None:
    indices = np.array([[0, 4, -7], [-1, -5, 6], [1, 0, 0]])
    node = helper.make_node("GatherND", ["x", "i"], ["y"])
    model = by_hand([node], {"x": floats(2, 5, 7, 3)}, {"y": (3, 3)}, {"i": indices})
    check(model, tmp_path, "host", 3, "speed")


def test_scatter_nd_over_axes_of_different_extents(tmp_path: Path) -> None:
    constants = {"i": np.array([[0, 4], [-1, -5]]), "u": floats(2, 3)}
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"])
    model = by_hand([node], {"x": floats(2, 5, 3)}, {"y": (2, 5, 3)}, constants)
    check(model, tmp_path, "host", 3, "speed")


def test_nothing_is_computed_from_nothing(tmp_path: Path) -> None:
    """A tensor without elements is a constant: what it joins is what is left."""
    nodes = [
        helper.make_node("Slice", ["x", "zero", "zero", "zero"], ["none"]),
        helper.make_node("Concat", ["none", "x", "none"], ["y"], axis=0),
        helper.make_node("Transpose", ["none"], ["turned"]),
        helper.make_node("MatMul", ["turned", "none"], ["zeros"]),
    ]
    outputs = {"y": (2, 3), "zeros": (3, 3)}
    model = by_hand(nodes, {"x": floats(2, 3)}, outputs, {"zero": np.zeros(1, np.int64)})
    for level in (0, 3):
        folder = tmp_path / str(level)
        folder.mkdir()
        check(model, folder, "host", level, "speed")


def test_a_concatenation_in_parts_is_validated_when_complete(tmp_path: Path) -> None:
    """Each part is a copy of its own; only the last one has the whole to be compared."""
    require_tool("cmake", "gcc")
    node = helper.make_node("Concat", ["x", "w", "x"], ["y"], axis=1)
    proto = models.model([node], {"x": (2, 3)}, {"y": (2, 9)}, {"w": floats(2, 3)})
    path = tmp_path / "parts.onnx"
    path.write_bytes(proto.SerializeToString())
    assert aotgen.compile(path, output=tmp_path / "p").validate(per_layer=True).ok


def refused_well(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Compile by the command line: a project, or one line, exit code 2 and nothing else.

    Returns:
        Whether it was refused.
    """
    before = set(folder.rglob("*"))
    code = call(["compile", str(path), "-o", str(folder / "out")])
    said = capsys.readouterr()
    if code == 0:
        assert (folder / "out" / "manifest.json").is_file()
        return False
    assert code == 2, said.err
    lines = said.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("aotgen: error: "), said.err
    assert said.out == ""
    assert set(folder.rglob("*")) == before
    return True


@pytest.mark.parametrize("form", ["structure", "bytes"])
@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 3000), marks=pytest.mark.slow)]
)
def test_damaged_models(
    form: str, seeds: range, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [fuzz_models.generate(seed).proto for seed in range(10)]
    refused = 0
    for seed in seeds:
        model = whole[seed % len(whole)]
        if form == "structure":
            data = mutate.damaged_structure(model, seed)
        else:
            data = mutate.damaged_bytes(model.SerializeToString(), seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = folder / "net.onnx"
        path.write_bytes(data)
        refused += refused_well(path, folder, capsys)
    assert refused > len(seeds) // 3


HOSTILE_VERSIONS = {"ir_version": 2**40, "opset of a domain": 2**40}


@pytest.mark.parametrize("what", HOSTILE_VERSIONS)
def test_versions_beyond_an_int(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = models.two_layers()
    if what == "ir_version":
        proto.ir_version = HOSTILE_VERSIONS[what]
    else:
        proto.opset_import.add(domain="com.example", version=HOSTILE_VERSIONS[what])
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    assert refused_well(path, tmp_path, capsys) == (what != "ir_version")


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_input_without_elements(
    shape: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = models.model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    assert refused_well(path, tmp_path, capsys)
