"""Bundles: several models as one library, on this computer and on emulated microcontrollers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from cmake_support import ROOT, Build, command
from onnx import numpy_helper

import aotgen
from aotgen.builder import build_project
from aotgen.cli.main import call
from aotgen.errors import AotgenError, ShapeError, UnsupportedError, UsageError
from aotgen.ir.interpreter import run
from aotgen.target.board import load_board
from benchmarks.mcu.bundle import MODELS, measure
from support import require_shared, require_tool
from tests.tflite.recurrent_models import variable_model

DIGITS = ROOT / "examples/cmake_app/digits_int8.tflite"
M4 = "mps2-an386"

APP = r"""
#include "pair.h"
#include <stdio.h>

static unsigned char arena[PAIR_ARENA_BYTES] PAIR_ALIGNED;

static int digits(digits_ctx *ctx, int seed)
{
    int8_t x[DIGITS_INPUT_INPUT_ELEMENTS], y[DIGITS_OUTPUT_OUTPUT_ELEMENTS];
    for (int i = 0; i < 64; i++)
        x[i] = (int8_t)((i * 37 + seed * 11) % 256 - 128);
    const digits_inputs inputs = {x};
    const digits_outputs outputs = {y};
    if (digits_run(ctx, &inputs, &outputs) != DIGITS_OK)
        return 1;
    for (int i = 0; i < 10; i++)
        printf("%d ", y[i]);
    return 0;
}

static int layers(layers_ctx *ctx)
{
    float x[16], y[8];
    for (int i = 0; i < 16; i++)
        x[i] = (float)i / 8.0f - 1.0f;
    const layers_inputs inputs = {x};
    const layers_outputs outputs = {y};
    if (layers_run(ctx, &inputs, &outputs) != LAYERS_OK)
        return 1;
    for (int i = 0; i < 8; i++)
        printf("%.9g ", (double)y[i]);
    return 0;
}

int main(void)
{
    digits_ctx a;
    layers_ctx b;
    const digits_config c = {.arena = arena};
    const layers_config d = {.arena = arena};
    if (digits_init(&a, &c) != DIGITS_OK || layers_init(&b, &d) != LAYERS_OK)
        return 1;
    return digits(&a, 1) || layers(&b) || digits(&a, 2) || layers(&b);
}
"""

ADDED = """
cmake_minimum_required(VERSION 3.16)
project(app C)
enable_testing()
set(PAIR_TOOLS ON)
set(PAIR_INSTALL ON)
set(PAIR_SHARED ON)
add_subdirectory("a pair")
add_executable(app app.c)
target_link_libraries(app PRIVATE pair::pair)
"""

FOUND = """
cmake_minimum_required(VERSION 3.16)
project(app C)
find_package(pair 0.1 REQUIRED)
add_executable(app app.c)
target_link_libraries(app PRIVATE pair::pair)
"""


FUNCTION = """
cmake_minimum_required(VERSION 3.16)
project(app C)
include("{root}/cmake/aotgen.cmake")
aotgen_add_bundle(pair MODELS digits=digits.tflite layers=layers.onnx BOARD host-scalar SHARE_ARENA
  OPTIONS --weights c)
add_executable(app app.c)
target_link_libraries(app PRIVATE pair)
"""


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "two layers.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, two_layers: Path) -> Build:
    """An application with a bundle of two models in one arena, and their programs."""
    require_tool("gcc", "nm")
    folder = tmp_path_factory.mktemp("app")
    pair = {"digits": DIGITS, "layers": two_layers}
    aotgen.bundle(pair, "host-scalar", folder / "a pair", name="pair", share_arena=True)
    (folder / "CMakeLists.txt").write_text(ADDED)
    (folder / "app.c").write_text(APP)
    build = Build(folder, folder / "b")
    build.make("-DCMAKE_C_COMPILER=gcc", "-DPAIR_WERROR=ON")
    return build


def check_app(build: Build) -> None:
    """Each model's numbers are the interpreter's, although the other one ran in the same arena."""
    words = build.run("app").split()
    graph = aotgen.load(DIGITS)
    for seed, at in ((1, 0), (2, 18)):
        x = ((np.arange(64) * 37 + seed * 11) % 256 - 128).astype(np.int8).reshape(1, 8, 8, 1)
        want = run(graph, {"input": x})["output"]
        assert [int(word) for word in words[at : at + 10]] == want.ravel().tolist()
    x = (np.arange(16, dtype=np.float32) / 8 - 1).reshape(2, 8)
    onnx = models.two_layers().SerializeToString()
    path = build.folder / "net.onnx"
    path.write_bytes(onnx)
    want = run(aotgen.load(path), {"x": x})["y"]
    for at in (10, 28):
        got = np.array(words[at : at + 8], np.float32).reshape(2, 4)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def symbols(path: Path, *options: str) -> list[str]:
    """The symbols that a library defines for others."""
    argv = ["nm", "--defined-only", "--extern-only", *options, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [line.split()[2] for line in done.stdout.splitlines() if len(line.split()) == 3]


def test_models_take_turns_in_one_arena(app: Build) -> None:
    check_app(app)


def test_the_models_vectors_pass(app: Build) -> None:
    assert app.ctest() == ["digits_vectors", "layers_vectors"]


def test_symbols_have_a_prefix(app: Build) -> None:
    """The bundle's are hidden where a library can hide them."""
    (library,) = app.folder.rglob("libpair.a")
    found = symbols(library)
    assert found
    assert all(re.match(r"(pair|digits|layers)_", name) for name in found)
    assert len(set(found)) == len(found)
    (shared,) = app.folder.rglob("libpair_shared.so")
    assert all(re.match(r"(digits|layers)_", name) for name in symbols(shared, "-D"))


@pytest.mark.parametrize("other", ["DIGITS", "digits"])
def test_names_that_clash_across_projects(other: str, two_layers: Path, tmp_path: Path) -> None:
    """A bundle and a project with a model of one name: on some file systems one header, always the
    same macros.
    """
    pair = {"digits": two_layers, "layers": two_layers}
    aotgen.bundle(pair, "host-scalar", tmp_path / "pair", name="pair")
    aotgen.compile(two_layers, "host-scalar", tmp_path / "single", prefix=other)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app C)\n"
        "add_subdirectory(pair)\nadd_subdirectory(single)\n"
    )
    done = Build(tmp_path, tmp_path / "b").configure()
    assert done.returncode != 0
    words = " ".join(done.stdout.split())
    assert f"has a model or a bundle named {other}, and so has digits in" in words
    assert "compile one of them under another name" in words


def test_installed(app: Build, tmp_path: Path) -> None:
    app.install(tmp_path / "there")
    (tmp_path / "CMakeLists.txt").write_text(FOUND)
    (tmp_path / "app.c").write_text(APP)
    build = Build(tmp_path, tmp_path / "b")
    build.make(f"-DCMAKE_PREFIX_PATH={tmp_path / 'there'}")
    check_app(build)


def test_cmake_function(two_layers: Path, tmp_path: Path) -> None:
    """A bundle as a step of an application's build; compiled again when a model changes."""
    (tmp_path / "digits.tflite").write_bytes(DIGITS.read_bytes())
    (tmp_path / "layers.onnx").write_bytes(two_layers.read_bytes())
    (tmp_path / "CMakeLists.txt").write_text(FUNCTION.replace("{root}", str(ROOT)))
    (tmp_path / "app.c").write_text(APP)
    build = Build(tmp_path, tmp_path / "b")
    assert "aotgen: pair: 2 models" in build.make(command(tmp_path))
    check_app(build)
    assert "aotgen: pair" not in build.rebuild()
    (tmp_path / "layers.onnx").write_bytes(two_layers.read_bytes() + b"\x12\x00")
    assert "aotgen: pair" in build.rebuild()
    (tmp_path / "layers.onnx").unlink()
    done = build.configure()
    assert done.returncode != 0 and f"there is no file {tmp_path}" in " ".join(done.stdout.split())


def kernels(folder: Path, prefix: str) -> list[str]:
    """What a library's kernels are called between its prefix and the hash of their bodies."""
    text = (folder / "src/kernels.h").read_text()
    return re.findall(rf"void {prefix}_(\w+)_[0-9a-f]{{8}}\(", text)


@pytest.mark.parametrize(("board", "optimize"), [("host-scalar", "speed"), (M4, "flash")])
def test_equal_layers_share_their_kernels(board: str, optimize: str, tmp_path: Path) -> None:
    options = aotgen.CompileOptions(optimize=optimize)  # type: ignore[arg-type]
    made = aotgen.bundle([DIGITS, DIGITS], board, tmp_path / "twice", options=options)
    assert made.models == ["digits_int8", "digits_int8_2"]
    aotgen.compile(DIGITS, board, tmp_path / "once", optimize=optimize)  # type: ignore[arg-type]
    shared = kernels(made.folder, "twice")
    assert shared == kernels(tmp_path / "once", "digits_int8")
    assert made.manifest["kernels"] == len(shared) > 0
    calls = [(made.folder / f"src/{name}.c").read_text() for name in made.models]
    for name in re.findall(r"void (twice_\w+)\(", (made.folder / "src/kernels.h").read_text()):
        assert all(f"{name}(" in text for text in calls)


@pytest.mark.parametrize(
    ("weights", "threads", "board"),
    [("bin", 2, "host"), ("c", 1, "host-scalar"), ("asm", 1, M4), ("bin", 1, M4)],
)
def test_each_model_validates(
    weights: str, threads: int, board: str, two_layers: Path, tmp_path: Path
) -> None:
    """``models/<model>`` is a project to build, run and validate; the pool is the bundle's."""
    if board == M4:
        require_tool("arm-none-eabi-gcc", "qemu-system-arm")
    options = aotgen.CompileOptions(weights=weights, threads=threads)  # type: ignore[arg-type]
    made = aotgen.bundle([DIGITS, two_layers], board, tmp_path / "pair", options=options)
    for name in made.models:
        project = made.project(name)
        build_project(project.info, project.board, definitions=["PAIR_WERROR=ON"])
        report = project.validate(per_layer=True, threads=threads)
        assert report.ok and len(report.layers) == len(project.manifest["layers"])
        if threads > 1:
            (tensor,) = project.info.inputs
            x = np.arange(np.prod(tensor.shape)).astype(tensor.numpy).reshape(tensor.shape)
            here = project.run({tensor.name: x}, threads=threads)
            there = project.run({tensor.name: x}, runner="local", threads=threads)
            for output, value in here.items():
                assert np.array_equal(value, there[output])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(bytes(data))


def test_a_changed_weight_is_the_models_own(two_layers: Path, tmp_path: Path) -> None:
    made = aotgen.bundle({"a": two_layers, "b": DIGITS}, "host-scalar", tmp_path / "pair")
    assert made.project("a").validate(per_layer=True).ok
    flip(made.folder / "src/a_weights.bin")
    assert not made.project("a").validate(per_layer=True).ok
    assert made.project("b").validate(per_layer=True).ok


def test_equal_constants_are_there_once(two_layers: Path, tmp_path: Path) -> None:
    """As of a backbone with several heads: each model's are checked, wherever they lie."""
    backbone = onnx.load(str(two_layers))
    head = next(w for w in backbone.graph.initializer if w.name == "w2")
    head.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(head), "w2"))
    other = tmp_path / "other.onnx"
    other.write_bytes(backbone.SerializeToString())
    alone = aotgen.bundle({"a": two_layers}, "host-scalar", tmp_path / "alone")
    files = {"a": two_layers, "b": other}
    made = aotgen.bundle(files, "host-scalar", tmp_path / "pair")
    shared = made.manifest["shared_weights_bytes"]
    whole = alone.manifest["weights_bytes"]
    assert alone.manifest["shared_weights_bytes"] == 0 < shared < whole
    assert made.manifest["weights_bytes"] == 2 * whole - shared
    assert (made.folder / "src/pair_weights.bin").stat().st_size == shared
    assert all(made.project(name).validate(per_layer=True).ok for name in files)
    flip(made.folder / "src/pair_weights.bin")
    for name in files:
        report = made.project(name).validate(per_layer=True)
        assert [check.weights_ok for check in report.layers].count(False) == 1
    # Bytes that the application brings are whole.
    options = aotgen.CompileOptions(weights="bin")
    apart = aotgen.bundle(files, "host-scalar", tmp_path / "apart", options=options)
    assert apart.manifest["shared_weights_bytes"] == 0
    assert [m["weights_bytes"] for m in apart.manifest["models"]] == [whole, whole]
    assert all(apart.project(name).validate(per_layer=True).ok for name in files)


def test_sections_of_weights(two_layers: Path, tmp_path: Path) -> None:
    """All of a microcontroller's bundle: one firmware, a section for one model's weights."""
    require_tool("arm-none-eabi-gcc", "arm-none-eabi-objdump")
    pair = {"digits": DIGITS, "layers": two_layers}
    made = aotgen.bundle(pair, M4, tmp_path / "pair", share_arena=True)
    build = Build(made.folder, tmp_path / "b")
    toolchain = made.folder / "toolchain.cmake"
    build.make(
        f"-DCMAKE_TOOLCHAIN_FILE={toolchain}",
        "-DPAIR_WERROR=ON",
        "-DDIGITS_WEIGHTS_SECTION=.external.rodata",
    )
    assert [path.name for path in build.folder.rglob("*.elf")] == ["pair_firmware.elf"]
    argv = ["arm-none-eabi-objdump", "-t", str(build.folder / "libpair.a")]
    table = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(\S+)\t\w+ (?:\.hidden )?(\w+)_weights$", table, flags=re.M)
    assert (".external.rodata", "digits") in found and (".rodata", "layers") in found


def defined(header: Path) -> dict[str, int]:
    """The numbers that a header defines."""
    return {
        name: int(value)
        for name, value in re.findall(r"#define (\w+) (\d+)u?$", header.read_text(), flags=re.M)
    }


def test_arenas_and_states(two_layers: Path, tmp_path: Path) -> None:
    """One arena is as large as the largest, several follow one another; states are never shared."""
    data, _ = variable_model()
    stateful = tmp_path / "window.tflite"
    stateful.write_bytes(data)
    files = {"digits": DIGITS, "first": stateful, "second": stateful, "layers": two_layers}
    for share in (True, False):
        made = aotgen.bundle(files, "host-scalar", tmp_path / f"pair{share}", share_arena=share)
        name = made.manifest["bundle"]
        numbers = defined(made.folder / f"include/{name}.h")
        own = [defined(made.folder / f"include/{model}.h") for model in made.models]
        align = numbers[f"{name.upper()}_ARENA_ALIGN"]
        arenas, states = (
            [
                -(-each[f"{model.upper()}_{kind}_BYTES"] // align) * align
                for model, each in zip(made.models, own, strict=True)
            ]
            for kind in ("ARENA", "STATE")
        )
        arena = max(arenas) if share else sum(arenas)
        assert numbers[f"{name.upper()}_ARENA_BYTES"] == arena == made.manifest["arena_bytes"]
        assert numbers[f"{name.upper()}_STATE_BYTES"] == sum(states) == 2 * states[1] > 0
    assert made.project("second").validate().ok


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_same_bytes(two_layers: Path, tmp_path: Path) -> None:
    trees = []
    for where in ("here", "there"):
        folder = tmp_path / where / "pair"
        trees.append(tree(aotgen.bundle([DIGITS, two_layers], M4, folder).folder))
    assert trees[0] == trees[1]


def unsupported(folder: Path) -> Path:
    path = folder / "unsupported.onnx"
    net = models.two_layers()
    net.graph.node[1].op_type = "NoSuchOp"
    path.write_bytes(net.SerializeToString())
    return path


def test_a_model_that_cannot_be_compiled_is_named(two_layers: Path, tmp_path: Path) -> None:
    bad = unsupported(tmp_path)
    with pytest.raises(UnsupportedError, match=rf"{re.escape(str(bad))}.*NoSuchOp") as found:
        aotgen.bundle([two_layers, bad], "host-scalar", tmp_path / "pair")
    assert len(found.value.problems) == 1
    assert [path.name for path in tmp_path.iterdir()] == [bad.name]


BAD: dict[str, tuple[Sequence[str], str]] = {
    "name of the bundle": (["--name", "a", "a=M", "b=M"], "'a' is the name of a model and of"),
    "names that clash": (["a=M", "a_pool=M"], "a_pool is a name of a"),
    "name twice": (["a=M", "a=M"], "two models are named 'a'"),
    "case alone": (["a=M", "A=M"], "differ in case alone"),
    "case alone, of the bundle": (["--name", "A", "a=M", "b=M"], "'A' is the name of a model and"),
    "reserved": (["stdio=M", "b=M"], "'stdio' names a system header"),
    "a file of the library": (["routines=M", "b=M"], "'routines'"),
    "some named": (["a=M", "M"], "write NAME=FILE for all or none"),
    "shape of no model": (["a=M", "--shape", "x=1x3"], "names no model"),
    "shape of another model": (["a=M", "--shape", "b:x=1x3"], "there is no model 'b'"),
    "missing file": (["a=M", "b=none.onnx"], "none.onnx"),
    "stream that is none": (["a=M", "--stream", "a:x"], "--stream a:x is not one number"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes(
    case: str, two_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = BAD[case]
    given = [re.sub("M$", str(two_layers), word) for word in words]
    assert call(["bundle", *given, "-o", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert message in err and err.startswith("aotgen: error: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_gpu(two_layers: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run on the CPU"):
        options = aotgen.CompileOptions(device="gpu")
        aotgen.bundle([two_layers], "rk3399", tmp_path / "out", options=options)


def test_options_of_one_model_are_no_common_ones(two_layers: Path, tmp_path: Path) -> None:
    options = aotgen.CompileOptions(dims={"n": 4})
    with pytest.raises(UsageError, match="of one model, not of a bundle"):
        aotgen.bundle([two_layers], "host-scalar", tmp_path / "out", options=options)


def test_open_shapes(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    net = models.two_layers()
    net.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    path.write_bytes(net.SerializeToString())
    pair = {"one": path, "four": path}
    with pytest.raises(ShapeError, match=re.escape(str(path))):
        aotgen.bundle(pair, "host-scalar", tmp_path / "out")
    words = ["bundle", f"one={path}", f"four={path}", "--board", "host-scalar"]
    words += ["--shape", "one:x=1x8", "--dim", "four:n=4", "-o", str(tmp_path / "out")]
    assert call(words) == 0
    made = aotgen.Bundle(tmp_path / "out")
    assert [made.project(m).info.inputs[0].shape for m in made.models] == [(1, 8), (4, 8)]


def test_verbs_take_a_model(
    two_layers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "pair")
    words = ["bundle", str(DIGITS), f"{two_layers}", "--board", "host-scalar", "-o", out]
    assert call(words) == 0
    assert "2 models" in capsys.readouterr().out
    assert call(["validate", out, "--model", "digits_int8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert call(["validate", out]) == 2
    assert "--model digits_int8 or two_layers" in capsys.readouterr().err
    assert call(["bench", out, "--model", "other"]) == 2
    assert "its models are digits_int8, two_layers" in capsys.readouterr().err
    # A bundle takes the place of one only where that is wanted.
    assert call(words) == 2
    assert call([*words, "--force"]) == 0


def test_a_project_is_no_bundle(two_layers: Path, tmp_path: Path) -> None:
    aotgen.compile(two_layers, "host-scalar", tmp_path / "net", prefix="net")
    with pytest.raises(UsageError, match="is no bundle"):
        aotgen.Bundle(tmp_path / "net")
    with pytest.raises(AotgenError, match="no bundle with a model 'other'"):
        aotgen.Project(tmp_path / "net", model="other")


@pytest.mark.slow
def test_four_models_in_10_kilobytes_of_code() -> None:
    """The int8 models of MLPerf Tiny in one image on a Cortex-M4, taking turns in one arena: each
    gives TFLite Micro's bytes.
    """
    require_tool("arm-none-eabi-gcc", "qemu-system-arm")
    files = [require_shared(f"models/mlperf_tiny/{name}.tflite") for name in MODELS]
    found = measure(files, load_board(M4), "flash", "-Os")
    assert len(found.equal) == len(files) and all(found.equal.values())
    assert found.code <= 10_000
