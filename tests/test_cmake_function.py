"""aotgen_add_model: a model as a library in an application's own CMake build."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from cmake_support import GENERATORS, ROOT, Build, command

from aotgen import __version__
from support import require_tool

CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(app CXX)
include(cmake/aotgen.cmake)
aotgen_add_model(net MODEL net.onnx BOARD host-scalar SHAPE x=2x8 OPTIONS --optimize flash)
aotgen_add_model(other MODEL other.onnx BOARD host-scalar)
add_executable(app app.cpp)
target_compile_options(app PRIVATE -Wall -Wextra -Wconversion -Werror)
target_link_libraries(app PRIVATE net::net other)
"""

APP = r"""
#include "net.h"
#include "other.h"
#include <cstdio>

alignas(NET_ARENA_ALIGN) static unsigned char arena[NET_ARENA_BYTES + OTHER_ARENA_BYTES + 1];

int main()
{
    float x[16], y[8], z[8];
    for (int i = 0; i < 16; i++)
        x[i] = static_cast<float>(i) / 8.0f - 1.0f;

    net_config config = {};
    net_ctx net;
    net_inputs inputs = {};
    net_outputs outputs = {};
    config.arena = arena;
    inputs.x = x;
    outputs.y = y;
    if (net_init(&net, &config) != NET_OK || net_run(&net, &inputs, &outputs) != NET_OK)
        return 1;

    // The arena is dead between runs: both models may use it.
    other_config other_config = {};
    other_ctx other;
    other_inputs other_inputs = {};
    other_outputs other_outputs = {};
    other_config.arena = arena;
    other_inputs.x = x;
    other_outputs.y = z;
    if (other_init(&other, &other_config) != OTHER_OK
        || other_run(&other, &other_inputs, &other_outputs) != OTHER_OK)
        return 1;
    for (int i = 0; i < 8; i++)
        std::printf("%.9g %.9g\n", static_cast<double>(y[i]), static_cast<double>(z[i]));
    return 0;
}
"""


def open_model(scale: float = 1.0) -> onnx.ModelProto:
    """``models.two_layers`` with its first dimension open and its first weights scaled."""
    model = models.two_layers()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    w1 = next(t for t in model.graph.initializer if t.name == "w1")
    w1.CopyFrom(
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(w1) * np.float32(scale), "w1")
    )
    return model


def write_app(folder: Path) -> None:
    # A copy, which takes aotgen for a release: a checkout counts as new when somebody edits it.
    shutil.copytree(ROOT / "cmake", folder / "cmake")
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "app.cpp").write_text(APP)
    (folder / "net.onnx").write_bytes(open_model().SerializeToString())
    (folder / "other.onnx").write_bytes(models.two_layers().SerializeToString())


def check_numbers(build: Build) -> None:
    """The program prints what onnxruntime computes with the model files."""
    got = np.array(build.run("app").split(), np.float32).reshape(8, 2)
    x = (np.arange(16, dtype=np.float32) / 8 - 1).reshape(2, 8)
    for column, name in enumerate(("net", "other")):
        session = onnxruntime.InferenceSession(
            str(build.source / f"{name}.onnx"), providers=["CPUExecutionProvider"]
        )
        expected = session.run(None, {"x": x})[0]
        assert (
            np.abs(got[:, column].reshape(2, 4) - expected).max() <= 1e-5 * np.abs(expected).max()
        )


def times(folder: Path) -> dict[str, int]:
    """When each file below was last written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize("generator", GENERATORS)
def test_models_follow_their_files(generator: str, tmp_path: Path) -> None:
    require_tool("g++")
    folder = tmp_path / "my app"
    folder.mkdir()
    write_app(folder)
    build = Build(folder, folder / "b", generator)
    build.make(command(tmp_path))
    check_numbers(build)
    net, other = folder / "b/net_aotgen", folder / "b/other_aotgen"
    first, library = times(net), times(folder / "b/net_build")

    # Touched, with the same content: CMake looks, and nothing is compiled.
    os.utime(folder / "net.onnx")
    printed = build.rebuild()
    assert "Configuring done" in printed and "aotgen: net" not in printed
    assert times(net) == first
    objects = {k: v for k, v in library.items() if k.endswith((".o", ".a"))}
    assert objects and objects.items() <= times(folder / "b/net_build").items()

    # Trained again: the build alone brings the new numbers; no file that stays the same is touched.
    before = times(other)
    (folder / "net.onnx").write_bytes(open_model(2.0).SerializeToString())
    assert "aotgen: net" in build.rebuild()
    check_numbers(build)
    changed = {name for name, time in times(net).items() if first[name] != time}
    data = {"src/weights.bin", "manifest.json", "test/model.onnx", "test/vectors.bin"}
    assert changed == {*data, "include/net_version.h"}
    assert times(other) == before


WAYS = {
    "folder": f'add_subdirectory("{ROOT}" aotgen)',
    "include": f'include("{ROOT}/CMakeLists.txt")',
    "module": f'include("{ROOT}/cmake/aotgen.cmake")',
    "fetch": f"""include(FetchContent)
FetchContent_Declare(aotgen SOURCE_DIR "{ROOT}")
FetchContent_MakeAvailable(aotgen)""",
    "checkout": f'find_package(aotgen {__version__} REQUIRED CONFIG PATHS "{ROOT}/cmake")',
    "installed": "find_package(aotgen 0.1 REQUIRED CONFIG)",
}


def test_ways_to_find_the_function(tmp_path: Path) -> None:
    """In each the function gets as far as to miss the model; what it builds is tested above."""
    names = ("aotgen.cmake", "aotgenConfig.cmake", "aotgenConfigVersion.cmake")
    installed = tmp_path / "prefix/share/cmake/aotgen"
    installed.mkdir(parents=True)
    for name in names:
        shutil.copy(ROOT / "cmake" / name, installed)
    for name, text in WAYS.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(app NONE)\n"
            f"{text}\naotgen_add_model(net MODEL gone.onnx)\n"
        )
        done = Build(folder, folder / "b").configure(
            command(tmp_path), f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix"
        )
        assert f"aotgen_add_model(net): there is no file {folder}/gone.onnx" in done.stdout.replace(
            "\n ", ""
        )


RECORDER = """#!/bin/sh
if [ "$1" = --version ]; then echo aotgen 1; exit; fi
printf '%s\\n' "$PWD" "$@" >>"$(dirname "$0")/calls"
mkdir "$6" && : >"$6/CMakeLists.txt"
"""
"""An aotgen that notes its folder and arguments, the sixth of which is the output folder."""

ALL = """
aotgen_add_model(net MODEL net.onnx BOARD boards/mine JOURNAL j.jsonl SHAPE a=1x2 b=3 DIM n=4 m=5
  REQUANT litert IO_TYPE float THREADS 2 DEPENDS net.data OPTIONS --opt-level 4 --optimize ram)
"""


def test_arguments_and_files_of_a_model(tmp_path: Path) -> None:
    """Each argument reaches `aotgen compile`; each file that changes makes it run again."""
    recorder = tmp_path / "aotgen"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    app = tmp_path / "app"
    (app / "boards/mine").mkdir(parents=True)
    files = [app / name for name in ("net.onnx", "boards/mine/board.toml", "j.jsonl", "net.data")]
    for file in files:
        file.write_text("before")
    (app / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app NONE)\n"
        f'include("{ROOT}/cmake/aotgen.cmake")\n{ALL}'
    )
    build = Build(app, app / "b")
    calls = tmp_path / "calls"
    build.make(f"-DAOTGEN_COMMAND={recorder}")
    options = "--journal {}/j.jsonl --shape a=1x2 --shape b=3 --dim n=4 --dim m=5 --requant litert"
    more = "--io-type float --threads 2 --opt-level 4 --optimize ram"
    wanted = "{0} compile {0}/net.onnx --board {0}/boards/mine/board.toml -o {0}/b/net_aotgen.new"
    call = f"{wanted} --prefix net {options} {more}".replace("{0}", str(app)).replace(
        "{}", str(app)
    )
    assert calls.read_text().split() == call.split()
    for count, file in enumerate(files, 2):
        file.write_text("after")
        build.rebuild()
        assert calls.read_text().split() == call.split() * count, file.name


def test_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """Python finds it. (One with an environment of its own, .venv, uses that.)"""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app NONE)\n"
        f'include("{ROOT}/cmake/aotgen.cmake")\naotgen_add_model(net MODEL gone.onnx)\n'
    )
    done = Build(tmp_path, tmp_path / "b").configure(
        "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
        f"-DPython3_EXECUTABLE={sys.executable}",
        env={"PATH": only_cmake(tmp_path)},
    )
    assert "there is no file" in done.stdout


def test_version_of_the_package() -> None:
    text = (ROOT / "cmake/aotgenConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{__version__}")' in text


MISTAKES = {
    "no model": ("aotgen_add_model(net)", "MODEL <file> is missing"),
    "no value": ("aotgen_add_model(net MODEL net.onnx BOARD)", "BOARD has no value"),
    "unknown": ("aotgen_add_model(net MODEL net.onnx TARGET x)", "unknown argument TARGET"),
    "no file": ("aotgen_add_model(net MODEL nett.onnx)", "there is no file"),
    "not a model": ("aotgen_add_model(net MODEL photo.onnx)", "JPEG"),
    "no board": ("aotgen_add_model(net MODEL net.onnx BOARD rk3999)", "did you mean rk3399"),
    "no journal": ("aotgen_add_model(net MODEL net.onnx JOURNAL j.jsonl)", "there is no file"),
    "journal": ("aotgen_add_model(net MODEL net.onnx JOURNAL photo.onnx)", "is no journal"),
    "name": ("aotgen_add_model(my-net MODEL net.onnx)", "'my-net' cannot start C names"),
    "twice": (
        "add_custom_target(net)\naotgen_add_model(net MODEL net.onnx)",
        "there is a target of that name",
    ),
    "cross": (
        "set(CMAKE_CROSSCOMPILING ON)\naotgen_add_model(net MODEL net.onnx)",
        "name it by BOARD",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_explained(case: str, tmp_path: Path) -> None:
    lines, words = MISTAKES[case]
    (tmp_path / "net.onnx").write_bytes(models.two_layers().SerializeToString())
    (tmp_path / "photo.onnx").write_bytes(b"\xff\xd8\xff\xe0 JFIF")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app NONE)\n"
        f'include("{ROOT}/cmake/aotgen.cmake")\n{lines}\n'
    )
    done = Build(tmp_path, tmp_path / "b").configure(command(tmp_path))
    assert done.returncode != 0
    assert words in " ".join(done.stdout.split())
    assert not (tmp_path / "b/net_aotgen").exists()


def only_cmake(folder: Path) -> str:
    """A search path with CMake and nothing else."""
    tools = folder / "tools"
    tools.mkdir()
    for tool in ("cmake", "ninja"):
        (tools / tool).symlink_to(shutil.which(tool) or "/")
    return str(tools)


def without_aotgen(folder: Path, *arguments: str) -> str:
    """The message of a configuration where only CMake is on the search path; it must fail.

    ``folder`` is aotgen's, with cmake/ in it.
    """
    shutil.copytree(ROOT / "cmake", folder / "cmake")
    app = folder / "app"
    app.mkdir()
    (app / "net.onnx").write_bytes(b"")
    (app / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app NONE)\n"
        'include("../cmake/aotgen.cmake")\naotgen_add_model(net MODEL net.onnx)\n'
    )
    done = Build(app, folder / "b").configure(
        "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", *arguments, env={"PATH": only_cmake(folder)}
    )
    assert done.returncode != 0
    return " ".join(done.stdout.split())


def test_aotgen_is_not_installed(tmp_path: Path) -> None:
    assert "aotgen is not installed: `pip install aotgen`" in without_aotgen(tmp_path)


def test_python_is_missing(tmp_path: Path) -> None:
    (tmp_path / "aotgen").mkdir()
    (tmp_path / "aotgen/__init__.py").touch()
    message = without_aotgen(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON")
    assert "aotgen needs Python 3.10 or newer" in message


def test_a_package_of_pythons_is_missing(tmp_path: Path) -> None:
    (tmp_path / "aotgen").mkdir()
    (tmp_path / "aotgen/__init__.py").write_text("import no_such_package\n")
    message = without_aotgen(tmp_path, f"-DPython3_EXECUTABLE={sys.executable}")
    assert "No module named 'no_such_package'" in message
    assert f"-m pip install {tmp_path}" in message


def test_a_command_that_does_not_run(tmp_path: Path) -> None:
    message = without_aotgen(tmp_path, f"-DAOTGEN_COMMAND={tmp_path}/gone")
    assert f"aotgen does not run ({tmp_path}/gone" in message
