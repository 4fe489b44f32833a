"""LSTM, GRU and RNN, read, interpreted, compiled and run, against onnxruntime."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import aotgen
from aotgen.api import optimise
from aotgen.builder import build_project
from aotgen.errors import UnsupportedError
from aotgen.frontend.onnx import load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from aotgen.validate import model_file
from support import require_tool
from tests.e2e.fuzz_models import session
from tests.e2e.quick_build import QuickModel, assert_close
from tests.e2e.recurrent_models import OPSETS, Case, draw, merged
from tests.frontend.test_backend_cases import cases

BOARDS = ("host", "host-avx2", "host-scalar")


def sweep(opset: int, first: int, count: int) -> list[Case]:
    return [draw(seed, opset) for seed in range(first, first + count)]


def compile_case(
    case: Case, folder: Path, board: str = "host", **options: object
) -> aotgen.Project:
    path = folder / "net.onnx"
    path.write_bytes(case.proto.SerializeToString())
    return aotgen.compile(path, board=board, output=folder / "p", weights="bin", **options)  # type: ignore[arg-type]


def compare(got: Sequence[np.ndarray], case: Case, names: Sequence[str]) -> None:
    for name, have, want in zip(names, got, case.expected, strict=True):
        assert_close(have, want, f"{name} of {case.name}" if len(case.expected) < 5 else name)


def output_names(project: aotgen.Project) -> list[str]:
    return [t["name"] for t in project.manifest["outputs"]]


def check_layers(project: aotgen.Project, built: QuickModel, case: Case) -> None:
    """All traced outputs of the recurrent layers against the interpreter."""
    values: dict[str, np.ndarray] = {}
    graph = optimise(aotgen.load(model_file(project.folder)), project.info.options)
    run(graph, case.feeds, observe=lambda v, array: values.update({v.name: array}))
    for layer in project.info.layers:
        if layer.name.rsplit("_", 1)[-1] in ("lstm", "gru", "rnn"):
            assert len(built.traced[layer.index]) == len(layer.outputs)
            for name, (dims, data) in zip(layer.outputs, built.traced[layer.index], strict=True):
                assert dims == values[name].shape
                assert_close(np.frombuffer(data, np.float32).reshape(dims), values[name], name)


@pytest.mark.parametrize("opset", OPSETS)
def test_interpreter(opset: int) -> None:
    for case in sweep(opset, 1000, 60):
        graph = load(case.proto)
        verify(graph)
        compare(list(run(graph, case.feeds).values()), case, graph.output_names)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("opset", OPSETS)
def test_compiled(opset: int, board: str, tmp_path: Path) -> None:
    require_tool("gcc")
    case = merged(sweep(opset, opset, 20))
    project = compile_case(case, tmp_path, board)
    built = QuickModel(project)
    for program in (built.run, built.run, built.run_in_arena):
        compare(program(case.feeds), case, output_names(project))
    check_layers(project, built, case)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 2400, 40))
def test_compiled_sweep(first: int, tmp_path: Path) -> None:
    require_tool("gcc")
    case = merged(sweep(OPSETS[first // 40 % 3], first, 40))
    for board in BOARDS:
        folder = tmp_path / board
        folder.mkdir()
        project = compile_case(case, folder, board, opt_level=first // 40 % 4)
        compare(QuickModel(project).run(case.feeds), case, output_names(project))


@pytest.mark.parametrize("board", ["rpi4"])
def test_cross_compiled(board: str, tmp_path: Path) -> None:
    require_tool("cmake", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    case = merged(sweep(14, 14, 20))
    project = compile_case(case, tmp_path, board)
    names = output_names(project)
    got = project.run(case.feeds)
    compare([got[name] for name in names], case, names)


def test_backend_cases(tmp_path: Path) -> None:
    """onnx's own cases, weights and all as inputs at run time."""
    require_tool("gcc")
    chosen = []
    for c in cases("node"):
        if re.match("test_(lstm|gru|rnn|simple_rnn)_", c.name):
            inputs, outputs = c.data[0]
            names = [v.name for v in c.model.graph.input]
            chosen.append(Case(c.name, c.model, dict(zip(names, inputs, strict=True)), outputs))
    assert len(chosen) >= 18
    case = merged(chosen)
    project = compile_case(case, tmp_path)
    compare(QuickModel(project).run(case.feeds), case, output_names(project))


def test_clean_under_sanitizers(tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    case = merged(sweep(22, 40, 8))
    project = compile_case(case, tmp_path)
    prefix = str(project.manifest["prefix"]).upper()
    sanitize = [f"{prefix}_SANITIZE=ON", f"{prefix}_WERROR=ON"]
    build = build_project(project.info, project.board, "Debug", definitions=sanitize)
    done = subprocess.run([build.program("test")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 failed" in done.stdout


def lstm(
    steps: int, directions: int, used: Sequence[str], hidden: int = 16
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An LSTM of 3 rows and 8 inputs, its Y as [T, N, D * H]."""
    rng = np.random.default_rng(steps)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(0.3)

    weights = {
        "W": floats(directions, 4 * hidden, 8),
        "R": floats(directions, 4 * hidden, hidden),
        "shape": np.array([steps, 3, directions * hidden]),
    }
    outputs = [name if name in used else "" for name in ("Y", "Y_h", "Y_c")]
    direction = "bidirectional" if directions == 2 else "forward"
    nodes = [
        onnx.helper.make_node(
            "LSTM", ["X", "W", "R"], outputs, hidden_size=hidden, direction=direction
        )
    ]
    shapes = {name: (directions, 3, hidden) for name in used}
    if "Y" in used:
        nodes.append(onnx.helper.make_node("Transpose", ["Y"], ["turned"], perm=[0, 2, 1, 3]))
        nodes.append(onnx.helper.make_node("Reshape", ["turned", "shape"], ["Z"]))
        shapes = {"Z": (steps, 3, directions * hidden), **shapes}
        del shapes["Y"]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, (steps, 3, 8))],
        [
            onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
            for n, s in shapes.items()
        ],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    opset = [onnx.helper.make_opsetid("", 14)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), weights


def compile_lstm(folder: Path, *args: object, **options: object) -> aotgen.Project:
    proto, _ = lstm(*args)  # type: ignore[arg-type]
    folder.mkdir(exist_ok=True)
    return compile_case(Case("lstm", proto, {}, []), folder, **options)  # type: ignore[arg-type]


def test_directions_share_one_product_and_are_joined_without_a_copy(tmp_path: Path) -> None:
    project = compile_lstm(tmp_path, 5, 2, ("Y", "Y_h", "Y_c"))
    assert [layer["op"] for layer in project.manifest["layers"]] == ["matmul", "lstm", "lstm"]


def test_an_unused_output_needs_no_memory(tmp_path: Path) -> None:
    """All that is left of 40 steps is the state, which then is scratch."""
    gates, x, y = (4 * 40 * 3 * n for n in (64, 8, 16))
    manifest = compile_lstm(tmp_path / "a", 40, 1, ("Y", "Y_h", "Y_c")).manifest
    assert manifest["arena_bytes"] >= gates + y
    manifest = compile_lstm(tmp_path / "b", 40, 1, ("Y_h",)).manifest
    assert manifest["arena_bytes"] == gates + x


def test_an_output_that_only_gives_its_shape_is_dropped(tmp_path: Path) -> None:
    proto, _ = lstm(4, 1, ("Y", "Y_h"))
    del proto.graph.node[1:]
    proto.graph.node.append(onnx.helper.make_node("Shape", ["Y"], ["Z"]))
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("Z", onnx.TensorProto.INT64, (4,))
    )
    project = compile_case(Case("shape", proto, {}, []), tmp_path)
    (layer,) = [x for x in project.manifest["layers"] if x["op"] == "lstm"]
    assert layer["shape"] == [3, 16]


def test_every_output_of_a_layer_is_validated(tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    project = compile_lstm(tmp_path, 3, 2, ("Y", "Y_h", "Y_c"))
    assert [len(layer.outputs) for layer in project.info.layers] == [1, 3, 3]
    report = project.validate(per_layer=True)
    assert report.ok
    assert all(layer.difference is not None for layer in report.layers)


def test_half_precision_is_stored_and_single_computed(tmp_path: Path) -> None:
    """fp16 tensors: the answer is that of float32 for the same numbers, rounded."""
    require_tool("gcc")
    proto, weights = lstm(4, 1, ("Y_h",))
    half = {k: v.astype(np.float16) for k, v in weights.items() if k != "shape"}
    x = np.random.default_rng(5).standard_normal((4, 3, 8)).astype(np.float16)
    single = {k: v.astype(np.float32) for k, v in half.items()}
    answers = []
    for constants, kind in ((single, onnx.TensorProto.FLOAT), (half, onnx.TensorProto.FLOAT16)):
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = kind
        answers.append(proto.SerializeToString())
    (expected,) = session(onnx.ModelProto.FromString(answers[0])).run(
        None, {"X": x.astype(np.float32)}
    )
    case = Case("half", onnx.ModelProto.FromString(answers[1]), {}, [])
    (got,) = QuickModel(compile_case(case, tmp_path)).run({"X": x})
    assert got.dtype == np.float16
    assert_close(got, expected.astype(np.float16), "Y_h", 1e-3)


def test_a_gpu_is_refused(tmp_path: Path) -> None:
    proto, _ = lstm(2, 1, ("Y_h",))
    with pytest.raises(UnsupportedError, match=r"lstm runs on a CPU only"):
        compile_case(Case("gpu", proto, {}, []), tmp_path, device="gpu")
