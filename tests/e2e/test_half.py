"""fp16 models on every board: the conversions bit by bit, and a real network."""

from __future__ import annotations

import ctypes.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented

import aotgen
from aotgen.validate import difference
from support import require, require_tool
from tests.e2e import fuzz_models
from tests.e2e.quick_build import QuickModel, assert_close
from tests.e2e.test_boards import BOARDS, require_board
from tests.passes.test_legalize_f16 import half_model

MODELS = Path(__file__).parents[3] / "shared/models"
NETWORK = "vision_classification/mobilenet_v2_128_0.5_fp16"


def halves() -> np.ndarray:
    """All 65536 of them."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def near_ties() -> np.ndarray:
    """float64: every fp16, every midpoint of two, and both sides of each, nearer than float32
    tells; what overflows and what underflows.
    """
    finite = np.sort(halves()[np.isfinite(halves())].astype(np.float64))
    middle = (finite[1:] + finite[:-1]) / 2
    edges = np.array([65519.99, 65520, 65520.01, 1e6, 1e39, 1e300, np.inf, 2.0**-25, 1e-8, 1e-45])
    points = np.concatenate([finite, middle, edges, -edges, [np.nan, 0.0, -0.0]])
    with np.errstate(invalid="ignore"):
        apart = np.maximum(np.abs(points) * 1e-12, 1e-300)
        return np.concatenate([points, points + apart, points - apart])


def conversions(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A model of nothing but casts, and its inputs."""
    doubles = near_ties()
    with np.errstate(over="ignore"):
        floats = doubles.astype(np.float32)
    more = np.nextafter(floats, np.float32(np.inf))
    feeds = {
        "half": halves(),
        "double": doubles,
        "float": np.concatenate([floats, more, np.nextafter(floats, np.float32(-np.inf))]),
        "int": np.array([0, 1, -1, 2049, 2051, 65519, 65520, -65519, 2**31 - 1, -(2**31)], "i4"),
    }
    kinds = {
        "half": TensorProto.FLOAT16,
        "float": TensorProto.FLOAT,
        "double": TensorProto.DOUBLE,
        "int": TensorProto.INT32,
    }
    casts = [("half", "float"), ("half", "double")]
    casts += [(source, "half") for source in ("float", "double", "int")]
    nodes, outputs = [], []
    for source, target in casts:
        name = f"{source}_{target}"
        nodes.append(helper.make_node("Cast", [source], [name], to=kinds[target]))
        size = feeds[source].shape
        outputs.append(helper.make_tensor_value_info(name, kinds[target], size))
    inputs = [helper.make_tensor_value_info(n, kinds[n], v.shape) for n, v in feeds.items()]
    graph = helper.make_graph(nodes, "casts", inputs, outputs)
    opset = helper.make_opsetid("", 17)
    path = folder / "casts.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    )
    return path, feeds


def assert_exact(name: str, got: np.ndarray, feeds: dict[str, np.ndarray]) -> None:
    """Bit by bit what numpy gives, which rounds half to even; NaN is NaN, of any payload."""
    source, target = name.split("_")
    kind = {"half": np.float16, "float": np.float32, "double": np.float64}[target]
    with np.errstate(all="ignore"):
        want = feeds[source].astype(kind)
    assert got.dtype == want.dtype
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    unsigned = f"u{got.itemsize}"
    np.testing.assert_array_equal(got[~nan].view(unsigned), want[~nan].view(unsigned))


@pytest.mark.parametrize("board", BOARDS)
def test_conversions_are_exact(board: str, tmp_path: Path) -> None:
    require_board(board)
    path, feeds = conversions(tmp_path)
    project = aotgen.compile(path, board=board, output=tmp_path / "p")
    for name, got in project.run(feeds).items():
        assert_exact(name, got, feeds)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_conversions_under_sanitizers(compiler: str, tmp_path: Path) -> None:
    require_tool(compiler)
    path, feeds = conversions(tmp_path)
    project = aotgen.compile(path, board="host-scalar", output=tmp_path / "p", weights="bin")
    model = QuickModel(
        project, compiler, extra=("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
    )
    for tensor, got in zip(project.manifest["outputs"], model.run(feeds), strict=True):
        assert_exact(tensor["name"], got, feeds)


@pytest.mark.parametrize("board", ["host", "rpi3b-armv7"])
@pytest.mark.parametrize("name", ["conv", "split", "where"])
def test_validates(name: str, board: str, tmp_path: Path) -> None:
    """Each layer against the interpreter, on tensors of fp16 in the caller's memory."""
    require_board(board)
    path = tmp_path / "half.onnx"
    path.write_bytes(half_model(name).SerializeToString())
    project = aotgen.compile(path, board=board, output=tmp_path / "p")
    assert project.manifest["inputs"][0]["dtype"] == "float16"
    assert project.validate(per_layer=True).ok


def test_validates_many_layers(tmp_path: Path) -> None:
    """validate rounds to fp16 where the project does, at the output and not between layers: what
    onnxruntime gives, to a step of fp16; rounding in between is eight times the tolerance away.
    """
    require_board("host")
    random = np.random.default_rng(1)
    nodes, weights = [], []
    for k in range(8):
        weights.append(
            numpy_helper.from_array(random.normal(0, 0.25, (32, 32)).astype("f2"), f"w{k}")
        )
        nodes.append(helper.make_node("MatMul", [f"t{k}", f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Relu" if k % 2 else "Tanh", [f"m{k}"], [f"t{k + 1}"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, (4, 32)) for n in ("t0", "t8")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "chain.onnx"
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    path.write_bytes(made.SerializeToString())
    project = aotgen.compile(path, output=tmp_path / "p")
    assert project.validate().ok and project.validate(per_layer=True).ok
    x = random.normal(size=(4, 32)).astype(np.float16)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"t0": x})
    assert difference("t8", project.run({"t0": x})["t8"], want).relative == 0


def test_the_projects_own_test(tmp_path: Path) -> None:
    """A neighbour of an expected number passes; one far from it and a NaN do not."""
    require_board("host")
    path = tmp_path / "half.onnx"
    path.write_bytes(half_model("conv").SerializeToString())
    project = aotgen.compile(path, output=tmp_path / "p")
    program = project.build().program("test")
    vectors = project.folder / "test/vectors.bin"
    stored = vectors.read_bytes()

    def passes(change: Callable[[np.ndarray], None]) -> bool:
        halves = np.frombuffer(stored, np.uint16).copy()
        change(halves[-8:])  # the file ends with the last case's outputs
        vectors.write_bytes(halves.tobytes())
        return subprocess.run([program, vectors], capture_output=True).returncode == 0

    def moved(count: int) -> Callable[[np.ndarray], None]:
        def change(outputs: np.ndarray) -> None:
            numbers = outputs.view(np.float16)
            for _ in range(count):
                numbers[:] = np.nextafter(numbers, np.float16(np.inf))

        return change

    assert passes(moved(0)) and passes(moved(1)) and not passes(moved(40))
    assert not passes(lambda outputs: outputs.fill(0x7E00))


def test_neighbours_in_fp16_are_equal() -> None:
    a = np.array([1.0, 0.0, 65504, np.nan], np.float16)
    with np.errstate(over="ignore"):
        next_to = np.nextafter(a, np.float16(np.inf))
    assert difference("y", a, next_to).relative == 0.0
    assert difference("y", a[:1], np.nextafter(next_to[:1], np.float16(2))).relative > 1e-3
    assert difference("y", a[:1], a[3:]).relative == float("inf")


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float tensor as fp16."""
    made = onnx.ModelProto()
    made.CopyFrom(model)

    def convert(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    for value in [*made.graph.input, *made.graph.output, *made.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in made.graph.initializer:
        convert(tensor)
    for attribute in (a for node in made.graph.node for a in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            convert(attribute.t)
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16
    return made


@pytest.mark.parametrize("board", ["host", "host-scalar"])
def test_fp16_that_nothing_computes(board: str, tmp_path: Path) -> None:
    """An input, a constant and an output once more are outputs: copies, bit by bit."""
    require_tool("gcc")
    x, constant = halves()[None], halves()[:37]
    half = TensorProto.FLOAT16
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("Identity", ["turned"], ["again"]),
        helper.make_node("Identity", ["c"], ["constant"]),
    ]
    want = {"same": x, "turned": x.T, "again": x.T, "constant": constant}
    graph = helper.make_graph(
        nodes,
        "copies",
        [helper.make_tensor_value_info("x", half, x.shape)],
        [helper.make_tensor_value_info(n, half, v.shape) for n, v in want.items()],
        [numpy_helper.from_array(constant, "c")],
    )
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "copies.onnx"
    made = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    path.write_bytes(made.SerializeToString())
    project = aotgen.compile(path, board=board, output=tmp_path / "p", weights="bin")
    got = QuickModel(project).run({"x": x})
    for actual, (name, expected) in zip(got, want.items(), strict=True):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan, name)
        np.testing.assert_array_equal(
            actual[~nan].view(np.uint16), expected[~nan].view(np.uint16), name
        )


def test_random_models(tmp_path: Path) -> None:
    """onnxruntime rounds to fp16 between some operators, so a percent of the largest value is what
    both can differ by. Some models it refuses: they mix constants of float32.
    """
    require_tool("gcc")
    done = 0
    for seed in range(10):
        random = fuzz_models.generate(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = folder / "net.onnx"
        path.write_bytes(in_half(random.proto).SerializeToString())
        feeds = {
            name: array.astype(np.float16) if array.dtype == np.float32 else array
            for name, array in random.feeds.items()
        }
        try:
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except (Fail, InvalidGraph, NotImplemented):
            continue
        project = aotgen.compile(path, output=folder / "p", weights="bin")
        got = QuickModel(project).run(feeds)
        wanted = session.run(None, feeds)
        for name, actual, expected in zip(random.outputs, got, wanted, strict=True):
            assert_close(actual, expected, f"{seed} {name}", 1e-2)
        done += 1
    assert done >= 5


def test_conversions_in_opencl(tmp_path: Path) -> None:
    """In software: cl_khr_fp16 is not asked for."""
    require_tool("cmake", "gcc")
    require(ctypes.util.find_library("OpenCL") is not None, "an OpenCL driver")
    path, feeds = conversions(tmp_path)
    project = aotgen.compile(path, output=tmp_path / "p", device="gpu")
    for name, got in project.run(feeds).items():
        assert_exact(name, got, feeds)


# test_collection has it on this computer.
ELSEWHERE = [pytest.param("host", marks=pytest.mark.slow), "host-scalar", "rpi3b-armv7"]


@pytest.mark.parametrize("board", ELSEWHERE)
def test_mobilenet_v2(board: str, tmp_path: Path) -> None:
    """A network that was converted to fp16, against its stored output."""
    require((MODELS / f"{NETWORK}.onnx").is_file(), "the collection of real models")
    require_board(board)
    entries = json.loads((MODELS / "models.json").read_text())
    entries = entries["models"] if isinstance(entries, dict) else entries
    tolerance = next(e for e in entries if NETWORK in json.dumps(e))["outputs"][0]["tol"]
    stored = np.load(MODELS / f"{NETWORK}.npz")
    scale, offset = stored["in0_aff"]
    x = (stored["in0_q"] * scale + offset).astype(np.float16)
    project = aotgen.compile(
        MODELS / f"{NETWORK}.onnx", board=board, output=tmp_path / "p", dims={"unk__150": 1}
    )
    (name,) = (t["name"] for t in project.manifest["inputs"])
    (got,) = project.run({name: x}).values()
    assert got.dtype == np.float16
    error = np.abs(got.astype(np.float64) - stored["out0"].astype(np.float64)).max()
    assert error <= tolerance
