"""Models of many operators, compiled, give the references' bytes: tensors that are read twice, that
are outputs and are read, inputs and constants as outputs, many layers in one arena.

``graph_models`` draws them; 40 in every run, 500 with the slow tests.
"""

from __future__ import annotations

import pytest

from aotgen.options import RequantMode
from tests.support import require_module, require_tool
from tests.tflite.graph_models import graphs
from tests.tflite.sweep_batches import Report, sweep
from tests.tflite.test_sweep import CROSS, FIRMWARE, FIRMWARE_TOOLS, MODES

SAMPLE = 40
ALL = 500

BLOCK = 100
"""Graphs of one slow test."""

SIZE = 20
"""Graphs compiled together."""


def check(report: Report) -> None:
    print(report)
    assert report.wrong == []
    assert report.refused == {}
    assert not report.borrowed, "a graph has an operator that only one reference runs"
    assert len(report.unknown) <= 0.02 * (report.passed + len(report.unknown)), report.unknown


@pytest.mark.parametrize("mode", MODES)
def test_sample(mode: RequantMode) -> None:
    require_tool("gcc")
    require_module("tflite_micro", "ai_edge_litert")
    check(sweep(graphs(SAMPLE), mode, size=SIZE))


# The Raspberry Pi 5 has what the 4 has, and products of four bytes.
ISAS = ["host-avx2", "host-scalar", "rpi3b-armv7", "rpi5"]


@pytest.mark.parametrize("board", [*ISAS, pytest.param("rpi4", marks=pytest.mark.slow)])
def test_sample_on_other_isas(board: str) -> None:
    require_tool(*CROSS.get(board, ("gcc",)))
    require_module("tflite_micro", "ai_edge_litert")
    runner = "qemu" if board in CROSS else None
    check(sweep(graphs(12, SAMPLE), "tflm", board, size=12, runner=runner))


@pytest.mark.parametrize("board", [pytest.param(FIRMWARE[0], marks=pytest.mark.slow), FIRMWARE[1]])
def test_sample_in_firmware(board: str) -> None:
    require_tool(*FIRMWARE_TOOLS)
    require_module("tflite_micro", "ai_edge_litert")
    check(sweep(graphs(5, SAMPLE), "tflm", board, size=5, runner="qemu"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start", range(0, ALL, BLOCK))
def test_all(mode: RequantMode, start: int) -> None:
    require_tool("gcc")
    require_module("tflite_micro", "ai_edge_litert")
    check(sweep(graphs(BLOCK, start), mode, size=SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("board", ["host-avx2", "host-scalar", *CROSS])
def test_more_on_other_isas(board: str, mode: RequantMode) -> None:
    require_tool(*CROSS.get(board, ("gcc",)))
    require_module("tflite_micro", "ai_edge_litert")
    runner = "qemu" if board in CROSS else None
    check(sweep(graphs(BLOCK, 2 * BLOCK), mode, board, size=25, runner=runner))


@pytest.mark.slow
@pytest.mark.parametrize("board", FIRMWARE)
def test_more_in_firmware(board: str) -> None:
    require_tool(*FIRMWARE_TOOLS)
    require_module("tflite_micro", "ai_edge_litert")
    check(sweep(graphs(BLOCK, 3 * BLOCK), "tflm", board, size=SIZE, runner="qemu"))
