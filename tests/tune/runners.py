"""Runners of this computer that a test watches, or that break."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aotgen.errors import BoardError
from aotgen.runner.base import Argument, RunResult
from aotgen.runner.local import LocalRunner
from aotgen.runner.output import LineReader


class HookedRunner(LocalRunner):
    """Calls ``at_start`` with the number of each run, from 1, and ``at_line`` with that of the run
    and each line that its program prints, as soon as the line was passed on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = 60.0,
        on_line: LineReader | None = None,
    ) -> RunResult:
        self.runs += 1
        self.at_start(self.runs)

        def line(text: str) -> None:
            assert on_line is not None
            on_line(text)
            self.at_line(self.runs, text)

        return super().run(program, arguments, timeout, line)

    def at_start(self, run: int) -> None:
        pass

    def at_line(self, run: int, text: str) -> None:
        pass


class FailingRunner(HookedRunner):
    """A board that is gone from the run of this number on."""

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.fails_at = fails_at

    def at_start(self, run: int) -> None:
        if run >= self.fails_at:
            raise BoardError("the board burns")
