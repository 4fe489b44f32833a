"""The exceptions of aotgen: one tree, each with the exit code of the command line.

    AotgenError                2
    ├── UsageError             2   an option, a path or an output folder is wrong
    ├── ModelError             2   the model file is malformed or inconsistent
    │   └── UnsupportedError   2   well formed, but cannot be compiled; lists all reasons
    ├── ShapeError             2   a dimension is unbound or bound to the wrong value
    ├── MismatchError          1   results differ, or a check failed
    ├── ToolchainError         3   a compiler, CMake or an emulator is missing or failed
    ├── BoardError             3   the board cannot be reached, or a program on it failed
    └── InternalError          70  a broken invariant inside aotgen: a bug to report

A message is one line that names the node, file or board, says what is wrong, and what to do about
it.
"""

from __future__ import annotations

from dataclasses import dataclass


class AotgenError(Exception):
    """Base of all errors that aotgen raises for a reason its user can act on.

    Attributes:
        exit_code: what the command line exits with.
        remedy: what the user can do about it, or an empty string.
    """

    exit_code = 2

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        return f"{text}; {self.remedy}" if self.remedy else text


class UsageError(AotgenError):
    """An option, a path or an output folder is wrong."""


class ModelError(AotgenError):
    """The model file is malformed or inconsistent."""


@dataclass(frozen=True)
class Problem:
    """One thing in a model that aotgen cannot compile.

    Attributes:
        node: the node's name in the model file (or its first output when it has none).
        op: operator, with its domain when that is not the standard one.
        reason: what is not supported about it.
        remedy: what the user can do.
    """

    node: str
    op: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.op} node {self.node!r}: {self.reason}"
        return f"{text}; {self.remedy}" if self.remedy else text


class UnsupportedError(ModelError):
    """The model uses operators or attributes that aotgen cannot compile; ``problems`` has all of
    them.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        head = str(problems[0]) if problems else "unsupported model"
        more = f" (and {len(problems) - 1} more: see `aotgen check`)" if len(problems) > 1 else ""
        super().__init__(head + more)


class ShapeError(AotgenError):
    """A dimension is unbound, or is bound to a value that does not fit."""


class MismatchError(AotgenError):
    """Results differ from the reference, or another check failed."""

    exit_code = 1


class ToolchainError(AotgenError):
    """A compiler, CMake or an emulator is missing or failed."""

    exit_code = 3


class BoardError(AotgenError):
    """A board cannot be reached, or a program on it failed."""

    exit_code = 3


class InternalError(AotgenError):
    """A broken invariant inside aotgen: never the user's mistake, always a bug to report."""

    exit_code = 70
