"""Kernels on emulated Cortex-M boards: how test programs are compiled for and run on them.

Their programs are ordinary C with files and arguments, by semihosting (``cortex_m/start.c``),
behind the boards' own start-up code. How firmware is built and talks is another matter, which the
tests of the boards look at.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aotgen.codegen.environment import render
from aotgen.resources import board_support_dir
from aotgen.target.board import load_board
from aotgen.target.target import Target
from support import require_tool

HERE = Path(__file__).parent / "cortex_m"

MACHINES = {"m4": "mps2-an386", "m7": "mps2-an500", "m55": "mps3-an547"}
"""Board names, which are QEMU's machine names, by core."""

CC = "arm-none-eabi-gcc"


@dataclass(frozen=True)
class CortexM:
    """An emulated core as the kernel harnesses want it.

    Attributes:
        target: of its board.
        flags: for ``CC``, linking included.
        emulator: argv that runs a program.
    """

    target: Target
    flags: tuple[str, ...]
    emulator: tuple[str, ...]


def cortex_m(core: str) -> CortexM:
    """One of ``MACHINES``; skips the test when the compiler or QEMU is missing."""
    require_tool(CC, "qemu-system-arm")
    board = load_board(MACHINES[core])
    link = (
        *("-include", str(HERE / "posix.h")),
        *("-O2", "--specs=rdimon.specs", f"-L{HERE}"),
        *("-T", str(HERE / f"{board.name}.ld"), *_start_up(board.name)),
    )
    return CortexM(
        board.target(), (*board.cflags(), *link), (str(HERE / "run"), board.emulated_machine)
    )


_FOLDER = tempfile.TemporaryDirectory(prefix="cortex-m-")
"""Of objects that all programs share; gone when this process ends."""


@cache
def _start_up(name: str) -> tuple[str, ...]:
    """Objects of the start-up code of a board's programs."""
    board = load_board(name)
    folder = Path(_FOLDER.name) / name
    folder.mkdir()
    for file in ("aot_core.c", "aot_core.h", "aot_hal.h"):
        (folder / file).write_text(render(f"firmware/{file}.j2"))
    mps = board_support_dir() / "mps"
    sources = [folder / "aot_core.c", mps / "startup.c", mps / "semihosting.c", HERE / "start.c"]
    places = {f"-I{path.parent}" for path in board.firmware.sources}
    argv = [CC, "-std=gnu99", "-O2", *board.cflags(), f"-I{folder}", *sorted(places)]
    subprocess.run([*argv, "-c", *map(str, sources)], cwd=folder, check=True)
    return tuple(str(folder / f"{source.stem}.o") for source in sources)
