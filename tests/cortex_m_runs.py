"""Kernels on emulated Cortex-M boards: how test programs are compiled for and run on them.

Their programs are ordinary C with files and arguments, by semihosting (``cortex_m/start.c``). How
firmware is built and talks is another matter, which the tests of the boards look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
        *("-T", str(HERE / f"{board.name}.ld"), str(HERE / "start.c")),
    )
    return CortexM(
        board.target(), (*board.cflags(), *link), (str(HERE / "run"), board.emulated_machine)
    )
