"""Runs a Linux board's programs on this computer under user-mode QEMU."""

from __future__ import annotations

from aotgen.errors import UsageError
from aotgen.runner.local import LocalRunner, emulator
from aotgen.target.board import Board


class QemuRunner(LocalRunner):
    """The local runner behind the board's emulator. Its times say nothing about the board."""

    name = "qemu"

    def __init__(self, board: Board) -> None:
        """
        Raises:
            UsageError: the board has no emulator.
            ToolchainError: the emulator is not installed.
        """
        if not board.emulator:
            raise UsageError(f"board {board.name} has no emulator", remedy="use --runner local")
        super().__init__(emulator(board.emulator))
