"""Places where models run, and the runner interface of those with an operating system: deploy, run,
time, close. There is no other way to a board.

A program's arguments may name files: ``Upload(path)`` is a file of ours that the program reads,
``Download(path)`` one that it writes and that is ours afterwards. A runner on another machine
copies them there and back; the local one just passes the paths.
"""

from __future__ import annotations

import json
import math
import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from aotgen.errors import BoardError
from aotgen.runner.output import LineReader

if TYPE_CHECKING:
    from aotgen.project import Project
    from aotgen.runner.model import PlacedModel

DEFAULT_TIMEOUT_S = 600.0

COMMAND_TIMEOUT_S = 30.0

MAX_TEXT_BYTES = 1 << 20
"""Of a board's file that ``read_text`` returns; the rest is left out."""


_MAX_MESSAGES = 5
_MAX_MESSAGE = 300


_Place = TypeVar("_Place", bound="Place")


class LinkError(BoardError):
    """The board cannot be reached just now: it may be later."""


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
        messages: the first lines that it wrote to stderr.
    """

    times_ms: tuple[float, ...]
    layers: tuple[dict[str, Any], ...] = ()
    messages: tuple[str, ...] = ()


class Place(ABC):
    """Where models run. A context manager; ``close`` may be called twice.

    Attributes:
        name: for reports.
    """

    name: str

    @abstractmethod
    def model(self, project: Project) -> PlacedModel:
        """A project's model, ready to run here.

        Raises:
            UsageError: this is no place for the project's board.
            ToolchainError: the project does not build.
            BoardError: the board cannot be reached.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind there and drop the connection."""

    def __enter__(self: _Place) -> _Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Runner(Place):
    """A place where programs of a board run."""

    cache_bytes: int = 0
    """Of files that the last program did not need: a runner that copies files to its board leaves
    so many there for one that does."""

    @abstractmethod
    def deploy(self, *programs: Path) -> None:
        """Make executables available where they run; a second call replaces them.

        Raises:
            BoardError: the board cannot be reached or has no room.
        """

    @abstractmethod
    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: LineReader | None = None,
    ) -> RunResult:
        """Run a deployed program to its end.

        Args:
            program: as it was deployed.
            arguments: texts and files.
            timeout: seconds until it is stopped, with its children.
            on_line: gets the lines of stdout as they arrive; what it raises stops the program.

        Raises:
            BoardError: it cannot start, runs past ``timeout`` seconds, dies from a signal (which is
                named), ends with another status than 0 (its last words are quoted), prints more
                than ``output.MAX_OUTPUT_BYTES``, or the link to the board is lost.
        """

    @abstractmethod
    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        """Run a program of the board's own, such as ``uname``.

        Args:
            argv: passed as it is: no shell reads it.
            timeout: seconds until it is stopped.

        Raises:
            BoardError: as ``run``; also when the board has no such program.
        """

    @abstractmethod
    def read_text(self, path: str) -> str | None:
        """A file of the board, as in /proc and /sys; None when it is not there or not readable.

        Decoded with replacement of what is not UTF-8; at most ``MAX_TEXT_BYTES``.

        Raises:
            BoardError: the board cannot be reached.
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
        on_line: LineReader | None = None,
    ) -> Timing:
        """Run a project's bench program and read the last JSON line that it prints.

        Args:
            number: runs of the model per repeat; 0 leaves it to the program.
            repeat: how many times to measure.
            warmup: runs before the first measurement.
            profile: also time every layer.
            arguments: further ones.
            timeout: as ``run``.
            on_line: as ``run``.

        Raises:
            BoardError: as ``run``, or the program printed no timing.
        """
        counts = {"--warmup": warmup, "--number": number, "--repeat": repeat}
        words = [text for key, value in counts.items() for text in (key, str(value))]
        if profile:
            words.append("--profile")
        result = self.run(program, [*words, *arguments], timeout, on_line)
        data = json_line(result.stdout, program.name)
        try:
            times = tuple(float(t) for t in data["times_ms"])
            if not times or not all(0 <= t < math.inf for t in times):
                raise ValueError(times)
            return Timing(times, tuple(data.get("layers", ())), _messages(result.stderr))
        except (KeyError, TypeError, ValueError) as error:
            raise BoardError(
                f"{program.name} printed a result that makes no sense ({error!r})"
            ) from error

    def emulates(self, machine: str) -> bool:
        """Whether programs of an architecture run under an emulator here: their times then say
        nothing about a board.

        Args:
            machine: as compiler triples spell it: "aarch64".

        Raises:
            BoardError: the board cannot be reached.
        """
        return False

    def model(self, project: Project) -> PlacedModel:
        from aotgen.runner.program import ProgramModel

        return ProgramModel(project, self)


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
    raise BoardError(f"{program} printed no result: {last_words(stdout) or 'nothing at all'}")


def failure(program: str, status: int, stdout: str, stderr: str) -> BoardError:
    """The error for a program that ended with ``status``.

    A negative one is a signal; so is 128 + n, as shells and QEMU report it.
    """
    words = last_words(stderr) or last_words(stdout)
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


def last_words(text: str) -> str:
    """The last line that says something, cut where it is long; empty when there is none."""
    lines = _lines(text)
    return lines[-1] if lines else ""


def _messages(text: str) -> tuple[str, ...]:
    return tuple(_lines(text)[:_MAX_MESSAGES])


def _lines(text: str) -> list[str]:
    """Those that say something, cut where they are long."""
    return [line.strip()[:_MAX_MESSAGE] for line in text.splitlines() if line.strip()]
