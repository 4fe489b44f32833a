"""The op sweep: models of one operator, compiled, give the references' bytes on every ISA.

``sweep_models`` draws them; 300 in every run, all of them in `make sweep`.
"""

from __future__ import annotations

import pytest

from aotgen.options import RequantMode
from tests.support import require_module, require_tool
from tests.tflite.sweep_batches import Report, sweep
from tests.tflite.sweep_models import cases

ALL = 3000
SAMPLE = 300
"""Nearly five turns of all operators."""

MODES: tuple[RequantMode, ...] = ("tflm", "litert")

BLOCK = 250
"""Cases of one slow test."""

CROSS = {
    "rpi4": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "rpi5": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "rpi3b-armv7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
}
"""Boards that run under QEMU: AArch64 without and with dot products, 32-bit ARM."""

FIRMWARE = ("mps2-an386", "mps3-an547")
"""Emulated microcontrollers with DSP extension and with MVE: models run in their firmware."""

FIRMWARE_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "cmake", "ninja")


def check(report: Report) -> None:
    print(report)
    assert report.wrong == []
    assert not report.refused, report.refused
    assert report.passed + len(report.unknown) > 0
    assert len(report.unknown) <= 0.02 * (report.passed + len(report.unknown)), report.unknown


def oracles() -> None:
    require_module("tflite_micro", "ai_edge_litert")


@pytest.mark.parametrize("mode", MODES)
def test_sample(mode: RequantMode) -> None:
    require_tool("gcc")
    oracles()
    check(sweep(cases(SAMPLE), mode))


@pytest.mark.parametrize("board", ["host-avx2", "host-scalar"])
def test_sample_on_other_isas(board: str) -> None:
    require_tool("gcc")
    oracles()
    check(sweep(cases(100), "tflm", board))


@pytest.mark.parametrize("board", CROSS)
def test_sample_under_qemu(board: str) -> None:
    require_tool(*CROSS[board])
    oracles()
    check(sweep(cases(64), "tflm", board, size=64, runner="qemu"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("start", range(0, ALL, BLOCK))
def test_all(mode: RequantMode, start: int) -> None:
    require_tool("gcc")
    oracles()
    check(sweep(cases(BLOCK, start), mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("board", ["host-avx2", "host-scalar", *CROSS])
def test_more_on_other_isas(board: str, mode: RequantMode) -> None:
    oracles()
    require_tool(*CROSS.get(board, ("gcc",)))
    runner = "qemu" if board in CROSS else None
    check(sweep(cases(SAMPLE), mode, board, size=75, runner=runner))


@pytest.mark.slow
@pytest.mark.parametrize("board", FIRMWARE)
def test_more_in_firmware(board: str) -> None:
    oracles()
    require_tool(*FIRMWARE_TOOLS)
    check(sweep(cases(SAMPLE, SAMPLE), "tflm", board, size=75, runner="qemu"))
