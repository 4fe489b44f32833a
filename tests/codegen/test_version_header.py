"""``<model>_version.h`` tells a program which model it has."""

from __future__ import annotations

import hashlib
import subprocess
import zlib
from pathlib import Path

import models
import numpy as np
import pytest
from onnx import numpy_helper

import aotgen
from support import require_tool

PRINTS = r"""
#include "NAME.h"
#include "NAME_version.h"
#include <stdio.h>

int main(void)
{
    printf("%s %s %s %08lx %lu", PREFIX_MODEL_SHA256, PREFIX_BOARD, PREFIX_AOTGEN_VERSION,
           (unsigned long)PREFIX_WEIGHTS_CRC32, (unsigned long)PREFIX_WEIGHTS_BYTES);
    return 0;
}
"""
FLAGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror", "-Wpedantic")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "two.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


def told(folder: Path, name: str, compiler: str, source: Path) -> list[str]:
    """What a program prints of the header's macros."""
    require_tool(compiler)
    source.write_text(PRINTS.replace("NAME", name).replace("PREFIX", name.upper()))
    program = source.with_suffix("")
    command = [compiler, *FLAGS, f"-I{folder}/include", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


def expected(model: Path, weights: Path, board: str) -> list[str]:
    """The same of the files themselves."""
    data = weights.read_bytes()
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    return [sha256, board, aotgen.__version__, f"{zlib.crc32(data):08x}", str(len(data))]


@pytest.mark.parametrize(("board", "weights"), [("host-scalar", "bin"), ("cortex-m4", "asm")])
def test_a_project_tells_its_model(board: str, weights: str, model: Path, tmp_path: Path) -> None:
    options = {"weights": weights}
    project = aotgen.compile(model, board, tmp_path / "two", prefix="two", **options)
    wanted = expected(model, project.folder / "src/weights.bin", board)
    assert told(project.folder, "two", "gcc", tmp_path / "a.c") == wanted
    assert told(project.folder, "two", "g++", tmp_path / "b.cpp") == wanted


def test_each_model_of_a_bundle_tells_its_own(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    changed = models.two_layers()
    for weight in changed.graph.initializer:
        doubled = 2.0 * numpy_helper.to_array(weight)
        weight.CopyFrom(numpy_helper.from_array(doubled.astype(np.float32), weight.name))
    other.write_bytes(changed.SerializeToString())
    made = aotgen.bundle({"a": model, "b": other}, "host-scalar", tmp_path / "pair")
    for name, file in (("a", model), ("b", other)):
        wanted = expected(file, made.folder / f"src/{name}_weights.bin", "host-scalar")
        assert told(made.folder, name, "gcc", tmp_path / f"{name}.c") == wanted
