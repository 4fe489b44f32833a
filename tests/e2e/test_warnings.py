"""Generated C is clean under -Wall -Wextra -Wconversion -Werror, gcc and clang, and from C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import aotgen
from aotgen.target.board import load_board
from support import require_tool
from tests.tflite_builder import ModelBuilder

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn", "transformer")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O2")


def sources(folder: Path) -> list[Path]:
    return (
        sorted(folder.glob("src/*.c"))
        + sorted(folder.glob("test/*.c"))
        + sorted(folder.glob("bench/*.c"))
    )


LARGE = [("resnet18", "clang"), ("mobilenet_v2", "gcc"), ("mobilenet_v2", "clang")]
LARGE += [("squeezenet1_1", "gcc")]
"""What the long sweeps have, as the others of these have much of the same code."""

CASES = [
    pytest.param(
        name, "host", compiler, marks=[pytest.mark.slow] if (name, compiler) in LARGE else []
    )
    for name in NETWORKS
    for compiler in ("gcc", "clang")
]
CASES += [
    pytest.param(name, board, compiler)
    for name in ("ds_cnn", "transformer")
    for board, compiler in (
        ("host-avx2", "clang"),
        ("host-scalar", "gcc"),
        ("rpi4", "aarch64-linux-gnu-gcc"),
        ("rpi4", "clang"),
        ("rpi3b-armv7", "arm-linux-gnueabihf-gcc"),
        ("rpi3b-armv7", "clang"),
    )
]


@pytest.mark.parametrize(("name", "board", "compiler"), CASES)
def test_strict_c99(name: str, board: str, compiler: str, compiled, tmp_path: Path) -> None:
    require_tool(compiler)
    project = compiled(name, board)
    prefix = project.manifest["prefix"].upper()
    flags = [*STRICT, *load_board(board).cflags("clang" if compiler == "clang" else "gcc")]
    triple = load_board(board).triple
    if triple and compiler == "clang":
        require_tool(f"{triple}-gcc")
        flags += [f"--target={triple}", f"--sysroot=/usr/{triple}"]
        flags += ["-isystem", f"/usr/{triple}/include"]
    folder = project.folder
    flags += [f"-I{folder}/include", f"-I{folder}/src", f"-I{folder}/test", f"-D{prefix}_TRACE"]
    flags += [f'-D{prefix}_VECTORS="v"', f'-D{prefix}_WEIGHTS_PATH="w"']
    for source in sources(folder):
        command = [compiler, *flags, "-c", str(source), "-o", str(tmp_path / "o.o")]
        subprocess.run(command, check=True)


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_header_from_cpp(compiler: str, compiled, tmp_path: Path) -> None:
    require_tool(compiler)
    project = compiled("ds_cnn", "host")
    (tmp_path / "a.cpp").write_text(
        '#include "ds_cnn.h"\n'
        "int use(ds_cnn_ctx *c, const ds_cnn_config *k) {\n"
        "    return ds_cnn_init(c, k) + ds_cnn_run(c, nullptr, nullptr);\n}\n"
    )
    subprocess.run(
        [
            compiler,
            "-std=c++11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            f"-I{project.folder}/include",
            "-c",
            str(tmp_path / "a.cpp"),
            "-o",
            str(tmp_path / "a.o"),
        ],
        check=True,
    )


TAKEN = ("I", "int8_t", "size_t", "linux", "concept", "co_await", "char8_t", "errno", "new", "EOF")
"""Tensor names that are legal in C99 alone, or until a header is included."""


@pytest.mark.parametrize("standard", ["gnu99", "gnu++98", "gnu++20"])
def test_tensors_named_as_headers_and_languages_do(standard: str, tmp_path: Path) -> None:
    compiler = "g++" if "++" in standard else "gcc"
    require_tool(compiler)
    b = ModelBuilder()
    given = [b.input(name, (1, 3), "int8", 0.1, 3) for name in TAKEN]
    results = (*TAKEN[1:], TAKEN[0])
    for x, name in zip(given, results, strict=True):
        b.output(b.op("QUANTIZE", [x], out=(name, (1, 3), "int8", 0.3, 0)))
    (tmp_path / "names.tflite").write_bytes(b.finish())
    project = aotgen.compile(tmp_path / "names.tflite", "host", tmp_path / "names")
    headers = ("complex.h", "errno.h", "math.h", "stdio.h", "names.h")
    source = tmp_path / ("use.c" if compiler == "gcc" else "use.cpp")
    source.write_text(
        "".join(f"#include <{name}>\n" for name in headers)
        + "int use(const names_inputs *x, const names_outputs *y);\n"
        "int use(const names_inputs *x, const names_outputs *y) { return x != 0 && y != 0; }\n"
    )
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only"]
    flags += [f"-I{project.folder}/include", f"-I{project.folder}/src"]
    model = [project.folder / "src/names.c"] if compiler == "gcc" else []
    for file in (source, *model):
        subprocess.run([compiler, *flags, str(file)], check=True)
