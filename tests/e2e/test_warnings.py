"""Generated C is clean under -Wall -Wextra -Wconversion -Werror, gcc and clang, and from C++."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aotgen.target.board import load_board
from support import require_tool

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn", "transformer")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O2")


def sources(folder: Path) -> list[Path]:
    return (
        sorted(folder.glob("src/*.c"))
        + sorted(folder.glob("test/*.c"))
        + sorted(folder.glob("bench/*.c"))
    )


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", NETWORKS)
def test_strict_c99(name: str, compiler: str, compiled, tmp_path: Path) -> None:
    require_tool(compiler)
    project = compiled(name, "host")
    prefix = project.manifest["prefix"].upper()
    flags = [*STRICT, *load_board("host").cflags(compiler)]
    folder = project.folder
    for source in sources(folder):
        subprocess.run(
            [
                compiler,
                *flags,
                f"-I{folder}/include",
                f"-I{folder}/src",
                f"-I{folder}/test",
                f"-D{prefix}_TRACE",
                f'-D{prefix}_VECTORS="v"',
                f'-D{prefix}_WEIGHTS_PATH="w"',
                "-c",
                str(source),
                "-o",
                str(tmp_path / "o.o"),
            ],
            check=True,
        )


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
