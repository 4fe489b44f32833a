"""The runner interface: deploy, run, time, close. There is no other way to a board.

A program's arguments may name files: ``Upload(path)`` is a file of ours that the program reads,
``Download(path)`` one that it writes and that is ours afterwards. A runner on another machine
copies them there and back; the local one just passes the paths.
"""

from __future__ import annotations

import json
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from aotgen.errors import BoardError

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Upload:
    """An argument: a file on this computer that the program reads."""

    path: Path


@dataclass(frozen=True)
class Download:
    """An argument: a file that the program writes and that is on this computer afterwards."""

    path: Path


Argument = str | Upload | Download


@dataclass(frozen=True)
class RunResult:
    """What a program that ended with status 0 left.

    Attributes:
        stdout: decoded, with replacement of what is not UTF-8.
        stderr: the same.
        seconds: wall-clock time from start to end, transfers excluded.
    """

    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Timing:
    """What a project's bench program reports.

    Attributes:
        times_ms: one mean per repeat, milliseconds per run of the model.
        layers: one {"layer", "name", "ms"} per kernel call; empty without profiling.
    """

    times_ms: tuple[float, ...]
    layers: tuple[dict[str, Any], ...] = ()


class Runner(ABC):
    """A place where programs of a board run. A context manager; ``close`` may be called twice."""

    name: str

    @abstractmethod
    def deploy(self, *programs: Path) -> None:
        """Make executables available where they run; a second call replaces them.

        Raises:
            BoardError: the board cannot be reached or has no room.
        """

    @abstractmethod
    def run(
        self, program: Path, arguments: Sequence[Argument] = (), timeout: float = DEFAULT_TIMEOUT_S
    ) -> RunResult:
        """Run a deployed program to its end.

        Raises:
            BoardError: it cannot start, runs past ``timeout`` seconds, dies from a signal (which is
                named), or ends with another status than 0 (its last words are quoted).
        """

    def time(
        self,
        program: Path,
        *,
        number: int,
        repeat: int,
        warmup: int,
        profile: bool = False,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Timing:
        """Run a project's bench program and read the JSON line that it prints.

        Args:
            number: runs of the model per repeat.
            repeat: how many times to measure.
            warmup: runs before the first measurement.
            profile: also time every layer.

        Raises:
            BoardError: as ``run``, or the program printed no timing.
        """
        counts = {"--warmup": warmup, "--number": number, "--repeat": repeat}
        words = [text for key, value in counts.items() for text in (key, str(value))]
        if profile:
            words.append("--profile")
        result = self.run(program, [*words, *arguments], timeout)
        data = json_line(result.stdout, program.name)
        return Timing(tuple(float(t) for t in data["times_ms"]), tuple(data.get("layers", ())))

    @abstractmethod
    def close(self) -> None:
        """Remove what was deployed and drop the connection."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def json_line(stdout: str, program: str) -> dict[str, Any]:
    """The last line of a program's output that is a JSON object.

    Raises:
        BoardError: there is none.
    """
    for line in reversed(stdout.splitlines()):
        if line.startswith("{"):
            try:
                data = json.loads(line)
            except ValueError:
                continue
            if isinstance(data, dict):
                return data
    raise BoardError(f"{program} printed no result: {_last_words(stdout) or 'nothing at all'}")


def failure(program: str, status: int, stdout: str, stderr: str) -> BoardError:
    """The error for a program that ended with ``status``.

    A negative one is a signal; so is 128 + n, as shells and QEMU report it.
    """
    words = _last_words(stderr) or _last_words(stdout)
    quoted = f": {words}" if words else ""
    number = -status if status < 0 else status - 128
    if status < 0 or 128 < status < 160:
        return BoardError(f"{program} died from {_signal_name(number)}{quoted}")
    return BoardError(f"{program} ended with status {status}{quoted}")


def _signal_name(number: int) -> str:
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number}"
    meaning = signal.strsignal(number)
    return f"{known.name} ({meaning.lower()})" if meaning else known.name


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
