"""A generated project in the CMake builds of others: added, fetched, installed, cross-compiled."""

from __future__ import annotations

import json
from pathlib import Path

import models
import numpy as np
import pytest
from cmake_support import Build

import aotgen
from aotgen.ir.interpreter import run
from aotgen.target.board import load_board
from support import require_tool

ALPHA, BETA = "first model", "second model"
"""Folders of the projects: alpha has its weights linked in, beta threads and a weights file."""

X = (np.arange(16, dtype=np.float32) / 8 - 1).reshape(2, 8)

APP = r"""
#include "alpha.h"
#include "beta.h"
#include <cstdio>
#include <cstdlib>

alignas(64) static unsigned char arena[ALPHA_ARENA_BYTES + BETA_ARENA_BYTES + 1];
alignas(64) static unsigned char weights[BETA_WEIGHTS_BYTES];
static beta_pool pool;

int main()
{
    float x[16], y[8], z[8];
    for (int i = 0; i < 16; i++)
        x[i] = static_cast<float>(i) / 8.0f - 1.0f;
    std::FILE *file = std::fopen(BETA_WEIGHTS, "rb");
    if (file == nullptr || std::fread(weights, 1, sizeof weights, file) != sizeof weights)
        return EXIT_FAILURE;
    std::fclose(file);

    alpha_ctx alpha;
    alpha_config alpha_config = {};
    alpha_inputs alpha_inputs = {x};
    alpha_outputs alpha_outputs = {y};
    alpha_config.arena = arena;
    beta_ctx beta;
    beta_config beta_config = {};
    beta_inputs beta_inputs = {x};
    beta_outputs beta_outputs = {z};
    beta_config.arena = arena;
    beta_config.weights = weights;
    beta_config.pool = &pool;
    if (beta_pool_open(&pool, BETA_MAX_THREADS, nullptr, nullptr) != BETA_OK
        || alpha_init(&alpha, &alpha_config) != ALPHA_OK
        || alpha_run(&alpha, &alpha_inputs, &alpha_outputs) != ALPHA_OK
        || beta_init(&beta, &beta_config) != BETA_OK
        || beta_run(&beta, &beta_inputs, &beta_outputs) != BETA_OK)
        return EXIT_FAILURE;
    beta_pool_close(&pool);
    for (int i = 0; i < 8; i++)
        std::printf("%.9g %.9g\n", static_cast<double>(y[i]), static_cast<double>(z[i]));
    return EXIT_SUCCESS;
}
"""

FETCH = """
cmake_minimum_required(VERSION 3.16)
project(app CXX)
enable_testing()
foreach(name ALPHA BETA)
  set(${name}_TOOLS ON)
  set(${name}_INSTALL ON)
endforeach()
include(FetchContent)
FetchContent_Declare(beta SOURCE_DIR "${CMAKE_CURRENT_SOURCE_DIR}/second model")
FetchContent_MakeAvailable(beta)
add_subdirectory("first model")
add_executable(app app.cpp)
target_link_libraries(app PRIVATE alpha::alpha beta::beta)
target_compile_definitions(app PRIVATE "BETA_WEIGHTS=\\"${beta_SOURCE_DIR}/src/weights.bin\\"")
# A static library that the application puts into a shared one.
add_library(plugin SHARED plugin.cpp)
target_link_libraries(plugin PRIVATE alpha)
"""

PLUGIN = '#include "alpha.h"\nconst char *last_error() { return alpha_strerror(ALPHA_ERR_NULL); }\n'

FIND = """
cmake_minimum_required(VERSION 3.16)
project(consumer CXX)
find_package(alpha 0.1 REQUIRED)
find_package(beta REQUIRED CONFIG)
add_executable(app app.cpp)
target_compile_options(app PRIVATE -Wall -Wextra -Wconversion -Werror)
target_link_libraries(app PRIVATE alpha::alpha beta::beta)
target_compile_definitions(app PRIVATE "BETA_WEIGHTS=\\"${beta_WEIGHTS}\\"")
"""


def check_numbers(build: Build) -> None:
    got = np.array(build.run("app").split(), np.float32).reshape(8, 2)
    graph = aotgen.load(build.source / "net.onnx")
    (expected,) = run(graph, {"x": X}).values()
    for column in got.T:
        error = np.abs(column.reshape(2, 4) - expected).max()
        assert error <= 1e-5 * np.abs(expected).max()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """An application with both projects, built without naming a build type."""
    require_tool("g++")
    folder = tmp_path_factory.mktemp("cmake") / "an app"
    folder.mkdir()
    model = folder / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    aotgen.compile(model, "host-scalar", folder / ALPHA, prefix="alpha")
    aotgen.compile(model, "host-scalar", folder / BETA, prefix="beta", threads=2, weights="bin")
    for name, text in (("CMakeLists.txt", FETCH), ("app.cpp", APP), ("plugin.cpp", PLUGIN)):
        (folder / name).write_text(text)
    build = Build(folder, folder / "b")
    build.make("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    return build


def test_added_and_fetched(app: Build) -> None:
    check_numbers(app)
    assert app.ctest() == ["alpha_vectors", "beta_vectors", "beta_vectors_threads"]


def test_kernels_are_optimised_without_a_build_type(app: Build) -> None:
    commands = json.loads((app.folder / "compile_commands.json").read_text())
    flags = {entry["file"].rsplit("/", 1)[1]: entry["command"].split() for entry in commands}
    assert "-O2" in flags["alpha.c"] and "-fPIC" in flags["alpha.c"]
    assert "-O2" not in flags["app.cpp"]


def test_installed_and_moved(app: Build, tmp_path: Path) -> None:
    """The installed folder works elsewhere, and knows nothing of where it came from."""
    app.install(tmp_path / "first place")
    prefix = tmp_path / "another place"
    (tmp_path / "first place").rename(prefix)
    for path in prefix.rglob("*.cmake"):
        assert str(tmp_path) not in path.read_text()
        assert str(app.source) not in path.read_text()
    folder = tmp_path / "consumer"
    folder.mkdir()
    for name, text in (("CMakeLists.txt", FIND), ("app.cpp", APP)):
        (folder / name).write_text(text)
    (folder / "net.onnx").write_bytes((app.source / "net.onnx").read_bytes())
    build = Build(folder, folder / "b", "Unix Makefiles")
    build.make(f"-DCMAKE_PREFIX_PATH={prefix}")
    check_numbers(build)

    # A version that is not there.
    text = FIND.replace("alpha 0.1", "alpha 99").replace("CXX", "NONE")
    (folder / "CMakeLists.txt").write_text(text)
    done = Build(folder, tmp_path / "b").configure(f"-DCMAKE_PREFIX_PATH={prefix}")
    assert done.returncode != 0 and 'requested version "99"' in " ".join(done.stdout.split())


CROSS = {
    "armv7": ("rpi3b-armv7", "-DCMAKE_BUILD_TYPE=Release"),
    "armv7 clang": ("rpi3b-armv7", "-DCMAKE_C_COMPILER=clang", "-DCMAKE_BUILD_TYPE=Debug"),
    "own toolchain file": ("rpi4", "-DCMAKE_BUILD_TYPE=Debug"),
}

OWN_TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR some-board)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
"""


@pytest.mark.parametrize("case", CROSS)
def test_alone_for_a_board(case: str, tmp_path: Path) -> None:
    """ctest runs the test vectors through the emulator of the toolchain file, or else our own."""
    name, *arguments = CROSS[case]
    board = load_board(name)
    require_tool(f"{board.triple}-gcc", board.emulator[0], "clang")
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    aotgen.compile(model, name, tmp_path / "net", threads=2)
    file = tmp_path / "net/toolchain.cmake"
    if case == "own toolchain file":
        file = tmp_path / "own.cmake"
        file.write_text(OWN_TOOLCHAIN)
    build = Build(tmp_path / "net", tmp_path / "b")
    build.make(f"-DCMAKE_TOOLCHAIN_FILE={file}", "-DNET_WERROR=ON", *arguments)
    assert build.ctest() == ["net_vectors", "net_vectors_threads"]


def test_compiler_of_another_machine(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    board, compiler = "rpi4", "arm-linux-gnueabihf-gcc"
    require_tool(compiler)
    aotgen.compile(model, board, tmp_path / "net")
    done = Build(tmp_path / "net", tmp_path / "b").configure(f"-DCMAKE_C_COMPILER={compiler}")
    assert done.returncode != 0
    message = " ".join(done.stdout.split())
    assert "net was compiled for board rpi4 (AArch64), and " in message
    assert "is for arm-linux-gnueabihf: give CMake a compiler for the board" in message
