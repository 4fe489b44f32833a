"""Reads a board's /proc, /sys and /etc through a runner, below a root of the caller's choice."""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.errors import BoardError
from aotgen.runner.base import Runner


class BoardFiles:
    """The files and programs of a board."""

    def __init__(self, runner: Runner, root: str = "") -> None:
        """
        Args:
            runner: leads to the board.
            root: folder of the board that stands for its ``/``; empty for ``/`` itself.
        """
        self.runner = runner
        self.root = root.rstrip("/")

    def text(self, path: str) -> str:
        """A file without the blanks at its ends; empty when it is not there.

        Raises:
            BoardError: the board cannot be reached.
        """
        return (self.runner.read_text(self.root + path) or "").strip(" \t\r\n\0")

    def number(self, path: str, base: int = 10) -> int | None:
        """A file that holds one number."""
        try:
            return int(self.text(path), base)
        except ValueError:
            return None

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing when it is not there."""
        return sorted((self.output(["ls", "-1", self.root + folder]) or "").splitlines())

    def output(self, argv: Sequence[str]) -> str | None:
        """What a program of the board prints; None when there is none or it fails.

        Raises:
            BoardError: the board cannot be reached any more.
        """
        try:
            return self.runner.command(argv).stdout.strip()
        except BoardError:
            # A lost link fails as well, and then fails again.
            self.runner.read_text("/proc/version")
            return None
