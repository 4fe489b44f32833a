"""Constants that several programs have move to one place, and each program still finds its own."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from cmake_support import ROOT

from aotgen.api import load, optimise
from aotgen.codegen.program import Program, WeightBlob
from aotgen.codegen.project import build_program
from aotgen.codegen.shared_constants import share_constants
from aotgen.options import CompileOptions
from aotgen.target.board import load_board
from tests.tflite.recurrent_models import variable_model

DIGITS = ROOT / "examples/cmake_app/digits_int8.tflite"
FLOAT = ROOT / "examples/digits/digits.onnx"


def program(file: Path, optimize: str) -> Program:
    board = load_board("mps2-an386")
    requant = "tflm" if file == DIGITS else None
    options = CompileOptions(optimize=optimize, requant=requant)  # type: ignore[arg-type]
    graph = optimise(load(file, requant=requant), options)
    return build_program(graph, board.target(optimize=options.optimize), "lib", options)


def content(blob: WeightBlob) -> bytes:
    return b"".join(blob.chunks())


@pytest.mark.parametrize("optimize", ["speed", "flash"])
def test_every_constant_is_found(optimize: str) -> None:
    programs = [program(file, optimize) for file in (DIGITS, FLOAT, DIGITS)]
    before = [[p.layer_crc(layer) for layer in p.layers] for p in programs]
    sizes = [len(p.weights) for p in programs]
    shared = share_constants(programs)
    assert [[p.layer_crc(layer) for layer in p.layers] for p in programs] == before
    for p in programs:
        for layer in p.layers:
            consts = [o for o in layer.operands if o.arg.const is not None]
            for operand, constant in zip(consts, layer.weights, strict=True):
                assert (operand.offset, operand.shared) == (constant.offset, constant.shared)
                data = content(shared if constant.shared else p.weights)
                array = operand.arg.const.array  # type: ignore[union-attr]
                want = np.ascontiguousarray(array).tobytes()
                assert data[constant.offset :][: constant.bytes] == want
    # All of the model that is there twice is shared, and nothing stands twice.
    assert len(programs[0].weights) == len(programs[2].weights) == 0
    assert len(shared) + len(programs[1].weights) <= sizes[0] + sizes[1]


def test_what_nothing_shares_stays_as_it_is() -> None:
    programs = [program(DIGITS, "speed"), program(FLOAT, "speed")]
    before = [content(p.weights) for p in programs]
    assert len(share_constants(programs)) == 0
    assert [content(p.weights) for p in programs] == before


def test_an_empty_constant_lies_anywhere() -> None:
    """It takes the place of the next one, whose bytes are not its own."""
    blob = WeightBlob(8)
    empty, full = np.zeros(0, np.int8), np.arange(5, dtype=np.int8)
    assert blob.add(empty) == (0, 0) and blob.add(full) == (0, 5)
    ((offset, data),) = blob.constants().values()
    assert (offset, bytes(data)) == (0, full.tobytes())
    assert blob.crc(0, 5, 0) == zlib.crc32(full.tobytes())


def test_what_a_state_begins_with_is_the_models_own(tmp_path: Path) -> None:
    """Nobody shares memory that ``reset`` copies from ``config.weights``."""
    (tmp_path / "window.tflite").write_bytes(variable_model()[0])
    target = load_board("mps2-an386").target()
    options = CompileOptions(requant="tflm")
    programs = []
    for _ in range(2):
        graph = optimise(load(tmp_path / "window.tflite", requant="tflm"), options)
        for state in graph.states:
            count = int(np.prod(state.value.shape))
            start = np.arange(count).reshape(state.value.shape)
            state.initial = start.astype(state.value.dtype.numpy)
        programs.append(build_program(graph, target, "lib", options))
    share_constants(programs)
    for p in programs:
        assert set(p.initial) == {slot.state.value.name for slot in p.states} != set()
        for slot in p.states:
            at = p.initial[slot.state.value.name]
            want = np.ascontiguousarray(slot.state.initial).tobytes()
            assert content(p.weights)[at:][: len(want)] == want
