"""Threads: the same bytes whatever their number, no data race, and what the tools say."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx import helper

import aotgen
from aotgen.cli.main import call
from aotgen.errors import UsageError
from tests import quantized_cases
from tests.e2e import fuzz_models, layout_models, recurrent_models
from tests.e2e.quick_build import QuickModel, assert_close
from tests.e2e.threaded import (
    MAX_THREADS,
    check_threads,
    compile_objects,
    compile_shared,
    compile_tool,
    outputs_of,
)
from tests.support import SANITIZE, require_tool
from tests.tflite_builder import ModelBuilder

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn")
BOARDS = ("host", "host-avx2", "host-scalar")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def mixed_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A small network with a convolution of every kind, a pool, a softmax, a product of one row by
    panels, one packed while running, and branches that share memory.
    """
    b = layout_models.Builder(5, (1, 3, 24, 20))
    x = b.same("Relu", b.conv("x", 24, 3, 2))
    x = b.same("Add", b.same("Relu", b.depthwise(x)), x)
    left, right = b.conv(x, 40), b.conv(x, 20, 3)
    x = b.add("Concat", [left, right], (1, 60, 12, 10), axis=1)
    x = b.same("Sigmoid", b.conv(x, 48, 3, groups=12))
    x = b.pool("MaxPool", x, 2)
    tokens = b.add("Flatten", [x], (1, 48 * 30), axis=1)
    rows = b.add("Reshape", [tokens, shape_of(b, 48, 30)], (48, 30))
    turned = b.add("Transpose", [rows], (30, 48), perm=[1, 0])
    square = b.add("MatMul", [rows, turned], (48, 48))
    weights = b.constant(48 * 30, 100, scale=0.03)
    b.outputs = [b.same("Softmax", square, axis=-1), b.add("MatMul", [tokens, weights], (1, 100))]
    model = b.model()
    return model.proto, model.feeds


def shape_of(b: layout_models.Builder, *shape: int) -> str:
    name = f"shape{len(b.constants)}"
    b.constants[name] = np.array(shape, np.int64)
    return name


def int8_model() -> bytes:
    """Convolution, depthwise convolution, pointwise convolution and pool of int8, one after the
    other: kernels that keep rows of their input in scratch.
    """
    b, rng = ModelBuilder(), np.random.default_rng(4)

    def weights(name: str, *shape: int, axis: int = 0) -> str:
        scale = [0.02] * shape[axis]
        data = rng.integers(-127, 128, shape).astype(np.int8)
        return b.const(name, data, scale=scale, zero=[0] * shape[axis], axis=axis)

    def bias(name: str, channels: int) -> str:
        data = rng.integers(-500, 500, channels).astype(np.int32)
        return b.const(name, data, scale=[0.001] * channels, zero=[0] * channels)

    window = {"padding": "SAME", "stride_w": 1, "stride_h": 1}
    x = b.input("x", (1, 18, 15, 3), "int8", 0.05, -3)
    out = ("a", (1, 9, 8, 16), "int8", 0.2, -5)
    options = {**window, "stride_w": 2, "stride_h": 2}
    x = b.op("CONV_2D", [x, weights("w0", 16, 3, 3, 3), bias("b0", 16)], out=out, options=options)
    out = ("b", (1, 9, 8, 16), "int8", 0.3, 4)
    tensors = [x, weights("w1", 1, 3, 3, 16, axis=3), bias("b1", 16)]
    options = {**window, "depth_multiplier": 1}
    x = b.op("DEPTHWISE_CONV_2D", tensors, out=out, options=options)
    out = ("c", (1, 9, 8, 40), "int8", 0.4, 0)
    x = b.op("CONV_2D", [x, weights("w2", 40, 1, 1, 16), bias("b2", 40)], out=out, options=window)
    out = ("y", (1, 7, 6, 40), "int8", 0.4, 0)
    options = {**window, "padding": "VALID", "filter_width": 3, "filter_height": 3}
    b.output(b.op("MAX_POOL_2D", [x], out=out, options=options))
    return b.finish()


def all_quantized() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    b = quantized_cases.everything()
    return b.model(), dict(b.feeds)


def recurrent_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    case = recurrent_models.merged([recurrent_models.draw(seed) for seed in range(6)])
    return case.proto, case.feeds


@pytest.mark.parametrize(
    ("make", "board"),
    [
        (mixed_model, "host-avx2"),
        (recurrent_model, "host"),
        *(
            pytest.param(make, board, marks=pytest.mark.slow)
            for make in (mixed_model, all_quantized, recurrent_model)
            for board in BOARDS
        ),
    ],
)
def test_the_same_bytes(make: Callable[[], tuple], board: str, tmp_path: Path) -> None:
    require_tool("gcc")
    check_threads(*make(), tmp_path, board)


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(100, 160), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_same_bytes_of_random_models(seeds: range, tmp_path: Path) -> None:
    require_tool("gcc")
    for seed in seeds:
        model = fuzz_models.generate(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_threads(model.proto, model.feeds, folder, BOARDS[seed % 3])


@pytest.mark.parametrize("board", ["host", "host-scalar"])
def test_the_same_bytes_of_int8(board: str, tmp_path: Path) -> None:
    require_tool("gcc")
    path = tmp_path / "net.tflite"
    path.write_bytes(int8_model())
    x = np.random.default_rng(8).integers(-128, 128, (1, 18, 15, 3)).astype(np.int8)
    project = check_threads(path, {"x": x}, tmp_path, board)
    assert all(layer["shared"] for layer in project.manifest["layers"])


def test_a_model_with_state(tmp_path: Path) -> None:
    """State that is read, then written: each step sees the one before, whoever computed it."""
    from tests.tflite.recurrent_models import Svdf, svdf_model

    require_tool("gcc")
    data, steps = svdf_model(Svdf())
    path = tmp_path / "svdf.tflite"
    path.write_bytes(data)
    graph = aotgen.load(path)
    feeds = {v.name: a for v, a in zip(graph.inputs, steps[0], strict=True)}
    check_threads(path, feeds, tmp_path, "host")


@pytest.mark.parametrize(("compiler", "level"), [("gcc", "-O2"), ("clang", "-O0")])
def test_no_warnings(compiler: str, level: str, tmp_path: Path) -> None:
    require_tool(compiler)
    project = compile_shared(mixed_model()[0], tmp_path, "host-scalar")
    compile_objects(project, tmp_path, level, compiler=compiler)


@pytest.mark.parametrize(
    "flags",
    [("-O1", "-fsanitize=thread", "-fno-sanitize-recover=all"), SANITIZE],
    ids=["thread", "address,undefined"],
)
def test_under_a_sanitizer(flags: tuple[str, ...], tmp_path: Path) -> None:
    require_tool("gcc")
    project = compile_shared(mixed_model()[0], tmp_path, "host-avx2")
    program = compile_tool(project, "test", tmp_path / "test", *flags)
    for threads in ("1", "2", str(MAX_THREADS)):
        done = subprocess.run(
            [program, "--threads", threads], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr[:4000]


@pytest.mark.parametrize("board", ["rpi4", "rpi3b-armv7"])
def test_on_arm(board: str, tmp_path: Path) -> None:
    """The same bytes under emulation, and within the tolerance of the interpreter."""
    require_tool("cmake", "qemu-aarch64", "aarch64-linux-gnu-gcc", "arm-linux-gnueabihf-gcc")
    proto, feeds = mixed_model()
    project = compile_shared(proto, tmp_path, board, weights="asm")
    want = project.run(feeds, runner="qemu")
    for threads in (2, MAX_THREADS):
        got = project.run(feeds, runner="qemu", threads=threads, cores="all")
        assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    assert project.validate(feeds, runner="qemu", threads=3, per_layer=True).ok


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(
    name: str, network: Callable[[str], tuple[Path, np.ndarray, np.ndarray]], tmp_path: Path
) -> None:
    require_tool("cmake", "gcc")
    path, x, reference = network(name)
    project = aotgen.compile(path, output=tmp_path / "p", threads=MAX_THREADS)
    results = [project.run({"input": x}, threads=n)["output"] for n in (1, 2, MAX_THREADS)]
    assert_close(results[0], reference, name)
    assert len({r.tobytes() for r in results}) == 1


def test_one_thread_leaves_nothing_behind(tmp_path: Path) -> None:
    """A project for one thread has no pool, and the same kernels whatever the threads."""
    proto, _ = mixed_model()
    alone, several = (compile_shared(proto, tmp_path, threads=n) for n in (1, 2))
    assert not list((alone.folder / "src").glob("*threads*"))
    text = "".join(p.read_text() for p in (alone.folder / "src").glob("*.[ch]"))
    assert "pthread" not in text and "worker" not in text
    assert not any(layer["shared"] for layer in alone.manifest["layers"])
    assert alone.manifest["api"]["pool_bytes"] == 0
    scratch = {n: p.manifest["arena_bytes"] for n, p in ((1, alone), (2, several))}
    assert scratch[2] >= scratch[1]
    assert several.manifest["api"]["threads"] == 2


def test_small_layers_are_not_shared(tmp_path: Path) -> None:
    proto = models.two_layers()
    path = tmp_path / "small.onnx"
    onnx.save(proto, path)
    project = aotgen.compile(path, output=tmp_path / "p", threads=2)
    assert not any(layer["shared"] for layer in project.manifest["layers"])


def test_scratch_of_each_thread(tmp_path: Path) -> None:
    """A packed right operand is scratch: each thread has its own."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    proto = models.model(nodes, {"x": (64, 48)}, {"y": (64, 64)})
    one = compile_shared(proto, tmp_path, threads=1)
    four = compile_shared(proto, tmp_path, threads=4)
    scratch = max(layer["scratch_bytes"] for layer in one.manifest["layers"])
    assert scratch >= 64 * 48 * 4
    assert four.manifest["arena_bytes"] - one.manifest["arena_bytes"] == 3 * scratch
    x = floats(64, 48)
    assert_close(QuickModel(one).run({"x": x})[0], x @ x.T, "y")


def test_few_rows_are_cut_by_panels(tmp_path: Path) -> None:
    """A product of one row has no rows to share: its columns are."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    proto = models.model([node], {"x": (1, 64)}, {"y": (1, 333)}, {"w": floats(64, 333)})
    project = check_threads(proto, {"x": floats(1, 64)}, tmp_path, "host-avx2")
    assert project.manifest["layers"][0]["parts"] > 2


@pytest.mark.parametrize("threads", [0, 3, 65])
def test_too_many_threads(threads: int, tmp_path: Path) -> None:
    project = compile_shared(models.two_layers(), tmp_path, threads=2)
    with pytest.raises(UsageError, match="compiled for runs of 1 to 2 threads"):
        project.run({"x": floats(2, 8)}, threads=threads)
    with pytest.raises(UsageError, match="compiled for runs of 1 to 2 threads"):
        project.run({"x": floats(2, 8)}, runner="local", threads=threads)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_tool("cmake", "gcc")
    path, folder = tmp_path / "net.onnx", tmp_path / "p"
    onnx.save(mixed_model()[0], path)
    assert call(["compile", str(path), "-o", str(folder), "--threads", "2"]) == 0
    assert call(["validate", str(folder), "--threads", "2", "--per-layer"]) == 0
    assert call(["validate", str(folder), "--threads", "2", "--cores", "big"]) == 0
    assert call(["validate", str(folder), "--threads", "3"]) == 2
    assert "compile the model again with --threads" in capsys.readouterr().err
    assert call(["validate", str(folder), "--cores", "huge"]) == 2
    assert call(["analyze", str(path), "--threads", "2"]) == 0
    assert "which share" in capsys.readouterr().out


def test_instances_have_threads_of_their_own(tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    proto, feeds = mixed_model()
    project = compile_shared(proto, tmp_path, threads=3)
    first, second = project.instance(3), project.instance(2)
    want = project.instance().step(feeds)
    for _ in range(3):
        for instance in (first, second):
            got = instance.step(feeds)
            assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    first.close()
    got = second.step(feeds)
    assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    second.close()


def test_deterministic_output(tmp_path: Path) -> None:
    """Outputs of one built model stay the same over many runs with more threads than cores."""
    require_tool("gcc")
    from tests.e2e.threaded import ThreadedModel

    proto, feeds = mixed_model()
    model = ThreadedModel(compile_shared(proto, tmp_path))
    want = outputs_of(model, feeds)
    model.use((1, 1, 1, 1))
    for _ in range(50):
        assert outputs_of(model, feeds) == want
    model.close()
