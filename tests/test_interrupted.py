"""A run may interrupt another one's: what a generated header says of contexts, on a Cortex-M4."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cmake_support import ROOT

import aotgen
from aotgen.footprint import measure_footprint
from aotgen.manifest import read_manifest
from aotgen.target.board import load_board
from support import require_tool

BOARD = "mps2-an386"
FRAME_BYTES = 108
"""Of registers that the core puts on the stack of what it interrupts, the FPU's included."""

CALLER_BYTES = 64
"""Frames of the task's own functions."""


@pytest.mark.parametrize("stream", [None, 2], ids=["whole windows", "state"])
def test_contexts_run_at_the_same_time(stream: int | None, tmp_path: Path) -> None:
    """Outputs are those of runs alone, and the task's stack is what ``analyze --build`` says."""
    require_tool("arm-none-eabi-gcc", "qemu-system-arm")
    model = ROOT / "examples/keyword_spotting/kws.tflite"
    folder = aotgen.compile(model, BOARD, tmp_path / "kws", prefix="kws", stream=stream).folder
    board = load_board(BOARD)
    linker_script = ROOT / "examples/firmware/board.ld"
    image = tmp_path / "interrupted.elf"
    subprocess.run(
        [
            *("arm-none-eabi-gcc", "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror"),
            *("-O2", "-ffunction-sections", *board.cflags()),
            *(f"-I{folder}/include", f"-I{folder}/src", f"-Wa,-I{folder}/src"),
            str(ROOT / "tests/c/interrupted.c"),
            *map(str, sorted(folder.glob("src/*.c"))),
            f"{folder}/src/weights.S",
            *("-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs"),
            *(f"-T{linker_script}", "-Wl,--gc-sections", "-o", str(image)),
        ],
        check=True,
    )
    run = subprocess.run(
        [
            *("qemu-system-arm", "-M", BOARD, "-display", "none", "-monitor", "none"),
            *("-serial", "stdio", "-semihosting", "-icount", "6", "-kernel", str(image)),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    interrupts, runs, wrong, stack = map(int, run.stdout.split())
    assert interrupts >= 25 and runs >= 10
    assert wrong == 0
    bound = measure_footprint(read_manifest(folder), board).stack_bytes
    assert bound <= stack <= bound + FRAME_BYTES + CALLER_BYTES
