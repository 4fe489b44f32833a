"""Cases that once compiled to a wrong or unbuildable project."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aotgen
from aotgen.cli.main import call
from support import require_tool
from tests.e2e.conftest import difference
from tests.e2e.quick_build import QuickModel


def check(model: onnx.ModelProto, folder: Path, opt_level: int = 3) -> None:
    """Compile, run and compare with onnxruntime."""
    require_tool("gcc")
    path = folder / "case.onnx"
    path.write_bytes(model.SerializeToString())
    project = aotgen.compile(path, output=folder / "p", opt_level=opt_level, weights="bin")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    feeds = {i.name: rng.standard_normal(i.shape, np.float32) for i in session.get_inputs()}
    got = QuickModel(project).run(feeds)
    for actual, expected in zip(got, session.run(None, feeds), strict=True):
        assert difference(actual, expected) <= 1e-5


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) / np.float32(shape[-1])


@pytest.mark.parametrize("opt_level", [0, 3])
def test_in_place_only_where_the_borders_are_the_same(opt_level: int, tmp_path: Path) -> None:
    """Two storages of equal size and origin, one with a border below, one with a border behind."""
    constants = {
        "w1": weights(0, 8, 8, 1, 2),
        "w2": weights(1, 8, 8, 2, 2),
        "z0": np.array([0], np.int64),
        "z3": np.array([3], np.int64),
        "ax": np.array([2], np.int64),
        "k": weights(2, 1, 8, 2, 5),
    }
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Conv", ["a", "w1"], ["c1"], pads=[0, 0, 0, 1]),
        helper.make_node("Slice", ["a", "z0", "z3", "ax"], ["s"]),
        helper.make_node("Tanh", ["s"], ["r"]),
        helper.make_node("Exp", ["y"], ["y1"]),
        helper.make_node("Add", ["y1", "k"], ["o2"]),
        helper.make_node("Concat", ["r", "o2"], ["b"], axis=2),
        helper.make_node("Conv", ["b", "w2"], ["c2"], pads=[0, 0, 1, 1]),
    ]
    model = models.model(
        nodes,
        {"x": (1, 8, 6, 5), "y": (1, 8, 2, 5)},
        {"c1": (1, 8, 6, 5), "c2": (1, 8, 5, 5)},
        constants,
    )
    check(model, tmp_path, opt_level)


@pytest.mark.parametrize("opt_level", [0, 3])
def test_constant_left_operand(opt_level: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["c", "x"], ["a"]),
        helper.make_node("Gemm", ["x", "d"], ["b"], transA=1),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    constants = {"c": weights(0, 3, 4), "d": weights(1, 4, 5)}
    check(models.model(nodes, {"x": (4, 5)}, {"y": (3, 5)}, constants), tmp_path, opt_level)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("shape", [(10,), (1, 10), (6, 10), (6, 1), (1,)])
def test_constants_behind_a_softmax(rows: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("Mul", ["b", "c"], ["y"]),
    ]
    constants = {"w": weights(0, 8, 10), "c": weights(1, *shape)}
    out = np.broadcast_shapes((rows, 10), shape)
    check(models.model(nodes, {"x": (rows, 8)}, {"y": out}, constants), tmp_path)


ROWS = {
    "heads": ([("Transpose", "b", {"perm": [0, 2, 1, 3]}), ("Reshape", "c s", {})], (2, 4, 6, 8)),
    "batches": ([("Transpose", "b", {"perm": [1, 0, 2, 3]}), ("Relu", "c", {})], (2, 4, 6, 8)),
    "next to another": ([("Concat", "b q", {"axis": 3}), ("Relu", "c", {})], (2, 4, 6, 8)),
    "before another": ([("Concat", "b b", {"axis": 1}), ("Relu", "c", {})], (2, 4, 6, 8)),
    "one row": ([("Concat", "b q", {"axis": 3}), ("Relu", "c", {})], (3, 2, 1, 8)),
}


@pytest.mark.parametrize("case", ROWS)
def test_finished_rows_may_be_wanted_in_another_order(case: str, tmp_path: Path) -> None:
    """A softmax on the rows of a product, whose output a view op wants strided."""
    (first, second), shape = ROWS[case]
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node(first[0], first[1].split(), ["c"], **first[2]),
        helper.make_node(second[0], second[1].split(), ["d"], **second[2]),
        helper.make_node("Exp", ["d"], ["y"]),
    ]
    constants = {"k": weights(0, 8, 5), "s": np.array([2, 6, -1], np.int64)}
    out = tuple(["n"] * (3 if case == "heads" else 4))
    check(models.model(nodes, {"q": shape}, {"y": out}, constants), tmp_path)


def test_constants_of_both_epilogues(tmp_path: Path) -> None:
    """A summand in the register tile, scale and bias of a norm behind it: three names."""
    rng = np.random.default_rng(11)
    constants = {
        "w": rng.standard_normal((5, 13), np.float32),
        "a": rng.standard_normal((4, 13), np.float32),
        "scale": rng.standard_normal((13,), np.float32),
        "bias": rng.standard_normal((13,), np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["s"]),
        helper.make_node("Add", ["s", "a"], ["p"]),
        helper.make_node("LayerNormalization", ["p", "scale", "bias"], ["y"]),
    ]
    check(models.model(nodes, {"x": (4, 5)}, {"y": (4, 13)}, constants), tmp_path)


@pytest.mark.parametrize("opt_level", [0, 3])
def test_an_anchors_input_that_its_epilogue_adds(opt_level: int, tmp_path: Path) -> None:
    """The first convolution takes an image in any order, the sum behind it needs channels last."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["x", "c"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["p"]),
        helper.make_node("Add", ["p", "t"], ["z"]),
    ]
    shapes = {"x": (2, 4, 10, 12), "a": (2, 6, 6), "b": (2, 5, 6)}
    outputs = {"y": (2, 4, 5, 6), "z": (2, 6, 5)}
    check(models.model(nodes, shapes, outputs, {"w": weights(0, 4, 4, 3, 3)}), tmp_path, opt_level)


def test_scratch_and_values_have_names_of_their_own(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["c1.scratch", "w"], ["y"], "c1")]
    constants = {"w": weights(0, 4, 3, 3, 3)}
    check(
        models.model(nodes, {"c1.scratch": (1, 3, 8, 8)}, {"y": (1, 4, 6, 6)}, constants), tmp_path
    )


@pytest.mark.parametrize("stem", ["m", "test", "kernels", "weights", "Math", "aot_clock", "int"])
def test_file_names_that_are_taken(stem: str, tmp_path: Path) -> None:
    """A CMake target, a library, a file of the project, a system header, a keyword."""
    require_tool("cmake", "gcc")
    path = tmp_path / f"{stem}.onnx"
    model = models.model([helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 3)}, {"y": (2, 3)})
    path.write_bytes(model.SerializeToString())
    project = aotgen.compile(path, output=tmp_path / "p")
    project.build()
    with pytest.raises(aotgen.UsageError, match="choose another"):
        aotgen.compile(path, output=tmp_path / "q", prefix=stem)


def test_check_refuses_what_compile_refuses(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shape, reason, element = (2,) * 9, "9 axes", TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["y"], "the_node")],
        "g",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
    )
    path = tmp_path / "m.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    assert call(["check", str(path)]) == 2
    assert reason in capsys.readouterr().out
    with pytest.raises(aotgen.UnsupportedError, match=f"the_node.*{reason}"):
        aotgen.compile(path, output=tmp_path / "p")
    assert not (tmp_path / "p").exists()
