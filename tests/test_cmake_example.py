"""examples/cmake_app: a user's project with an ONNX and a TFLite model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from cmake_support import ROOT, Build, command

import aotgen
from aotgen.ir.interpreter import run
from aotgen.target.board import load_board
from support import require_module, require_tool

EXAMPLE = ROOT / "examples" / "cmake_app"


@pytest.mark.parametrize("board", ["host", pytest.param("rpi4", marks=pytest.mark.slow)])
def test_links_two_models(board: str, tmp_path: Path) -> None:
    arguments = [command(tmp_path)]
    machine = load_board(board)
    if machine.triple:
        require_tool(f"{machine.triple}-gcc", machine.emulator[0])
        arguments.append(f"-DCMAKE_TOOLCHAIN_FILE={machine.toolchain}")
    build = Build(EXAMPLE, tmp_path / "b")
    build.make(*arguments)
    assert build.ctest() == ["app", "digits_int8_vectors", "digits_vectors"]
    if not machine.triple:
        shown = build.run("app", str(EXAMPLE / "three.txt"))
        assert shown in (EXAMPLE / "README.md").read_text()


def test_int8_network_classifies_the_test_split() -> None:
    with np.load(ROOT / "examples/digits/digits_test.npz") as split:
        images, labels = split["images"].reshape(-1, 8, 8, 1), split["labels"]
    graph = aotgen.load(EXAMPLE / "digits_int8.tflite")
    quant = graph.inputs[0].type.quant
    assert quant is not None
    steps = np.rint(images / 16 / quant.scale[0]) + quant.zero_point[0]
    pixels = np.clip(steps, -128, 127).astype(np.int8)
    answers = [run(graph, {"input": image[None]})["output"].argmax() for image in pixels]
    assert np.mean(np.array(answers) == labels) >= 0.97


def test_int8_network_is_what_quantize_writes() -> None:
    require_module("sklearn")
    sys.path.insert(0, str(EXAMPLE))
    try:
        import quantize
    finally:
        sys.path.remove(str(EXAMPLE))
    model = onnx.load(str(ROOT / "examples/digits/digits.onnx"))
    written = quantize.convert(model, quantize.training_images())
    stored = (EXAMPLE / "digits_int8.tflite").read_bytes()
    # Sums of another processor may round the range of an activation otherwise.
    assert len(written) == len(stored)
    assert np.mean(np.frombuffer(written, "u1") != np.frombuffer(stored, "u1")) < 0.01
