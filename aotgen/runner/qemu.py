"""Runs a Linux board's programs on this computer under user-mode QEMU."""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import COMMAND_TIMEOUT_S, RunResult
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

    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        raise BoardError(
            f"an emulator has no {argv[0]} of its own", remedy="use --runner ssh://..."
        )

    def read_text(self, path: str) -> str | None:
        return None
