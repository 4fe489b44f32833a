"""What measuring a candidate gives, whoever measures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from aotgen.tune.task import Point, Task

Status = Literal["ok", "render", "build", "crash", "timeout", "wrong", "bounds", "memory", "link"]
"""ok: right and timed. Else why there is no time: the template could not render it, the compiler
failed, it died from a signal, ran too long, gave wrong numbers, wrote outside its output, ran out
of memory, or the link to the board broke so often that it was given up ("link" says nothing about
the candidate and is not kept).
"""

Kind = Literal["measured", "modelled", "emulated", "network"]
"""measured: timed alone on the board. modelled: a cost model under emulation. emulated: timed under
an emulator, which says nothing about the board; counts only where nothing else is known. network:
timed on the board inside the whole network, or of an emulated microcontroller counted there.
"""


@dataclass(frozen=True)
class Candidate:
    """A point of a task that is to be measured."""

    task: Task
    point: Point


@dataclass(frozen=True)
class Outcome:
    """The result of one candidate.

    Attributes:
        candidate: which.
        status: see ``Status``.
        seconds: of one call, the lowest repeat; None unless ``status`` is "ok".
        times: seconds a call of every repeat.
        kind: where ``seconds`` comes from.
        message: what went wrong, in one line.
        kernel: hash of the kernel's C (``kernel_hash``): a record is of use while the template
            still gives the same C.
        abandoned: timing stopped early because the candidate was far behind the best.
        conditions: what the board said while it was timed: "clock_mhz", "temperature_c",
            "drift" (how much slower the sentinel had become) and the like.
    """

    candidate: Candidate
    status: Status
    seconds: float | None = None
    times: tuple[float, ...] = ()
    kind: Kind = "measured"
    message: str = ""
    kernel: str = ""
    abandoned: bool = False
    conditions: Mapping[str, float] = field(default_factory=dict)


class Measurer(Protocol):
    """Builds and times candidates: on this computer, on one board or on many."""

    @property
    def kind(self) -> Kind:
        """Of its outcomes."""

    @property
    def warnings(self) -> Sequence[str]:
        """What boards said that makes times doubtful."""

    @property
    def batch(self) -> int:
        """How many candidates it likes to get at once."""

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        """Outcomes as they come, one for each candidate, in any order.

        Raises:
            BoardError: the board is gone for good; the outcomes before it hold.
            ToolchainError: there is no compiler.
        """

    def close(self) -> None:
        """Leave nothing behind on the board. May be called twice."""
