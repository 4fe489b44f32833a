"""The near end of a microcontroller that measures candidates: has an image started, asks for one
candidate after the other, and goes on behind those that hang or crash the board.

The image (``templates/tune/firmware.c.j2``) checks a candidate as the device program of boards with
an operating system does, and then times it. On an emulated board, where an instruction takes
constant time, it counts instructions instead: a candidate's score is 10 ns for each, the unit of
the model that plan has of these cores.
"""

from __future__ import annotations

import math
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aotgen.errors import BoardError
from aotgen.runner.base import LinkError
from aotgen.runner.protocol import Hello, Request
from aotgen.runner.serial_link import Crashed, NoAnswer, SerialLink, SessionLost
from aotgen.schedule.base import INSTRUCTION_SECONDS
from aotgen.target.board import Board
from aotgen.tune.builder import Built
from aotgen.tune.device import MAX_BREAKS, CaseResult, DeviceOptions, case_result
from aotgen.tune.outcome import Status

MOST_PERIODS = 64
"""Calls that the image counts at once."""

_STATUSES: tuple[Status, ...] = ("ok", "crash", "timeout", "wrong", "bounds", "memory")
_STAGES = ("while it was set up", "in the check", "while it was timed", "at its end")

_ORDER = struct.Struct("<HBBIII3d")
_HEAD = struct.Struct("<BBBBIII3d")

_NOBODY = 0xFFFF

_SLACK_S = 5.0
_EMULATION = 4.0
"""An emulator may take so many times as long for what takes the board's clock a second."""

_REOPEN_S = 0.5
"""Between attempts to open a port that was lost."""


class FirmwarePlace(Protocol):
    """Where images run: ``QemuBoard`` or ``SerialBoard``."""

    name: str

    def start(self, board: Board, program: Path) -> SerialLink: ...

    def reopen(self) -> SerialLink: ...

    def reset(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Lost:
    """A candidate has no result.

    Attributes:
        status: what to call it; None when nothing says that it is the candidate's fault.
        message: see ``CaseResult``.
    """

    status: Status | None
    message: str


class SerialDevice:
    """Runs images on one board, one at a time."""

    def __init__(
        self,
        board: Board,
        place: FirmwarePlace,
        options: DeviceOptions,
        instruction_ns: float | None = None,
    ) -> None:
        """
        Args:
            board: that images are built for.
            place: where they run.
            options: as for a device with an operating system, which alone has CPUs, a governor and
                copies of constants.
            instruction_ns: of the board's clock that an instruction takes, where that is constant.
        """
        self.options = options
        self._board = board
        self._place = place
        self._instruction_ns = instruction_ns
        self._link: SerialLink | None = None
        self._sentinel_ns = 0.0
        self._reached = False

    def run(self, built: Built, abandon_s: Mapping[int, float]) -> Iterator[tuple[int, CaseResult]]:
        """Run all cases of an image.

        Args:
            built: the image.
            abandon_s: by case of the image the seconds a call from which on timing is given up
                early.

        Yields:
            (number of the case in the image, result), as they come.

        Raises:
            BoardError: the board is gone for good, or was never there.
            UsageError, ToolchainError: no image gets there.
        """
        assert built.program is not None
        self._link = self._place.start(self._board, built.program)
        hello = self._greet(built)
        todo = list(range(len(built.cases)))
        breaks: Counter[int] = Counter()
        while todo:
            case = todo.pop(0)
            found = self._attempt(hello, case, abandon_s.get(case, 0.0))
            if isinstance(found, CaseResult):
                yield case, found
                continue
            lost = self._recover(built, case, found)
            breaks[case] += 1
            if lost.status is not None:
                yield case, CaseResult(lost.status, message=lost.message)
            elif breaks[case] < MAX_BREAKS:
                todo.append(case)
            else:
                yield case, CaseResult("link", message=lost.message)

    @property
    def _board_link(self) -> SerialLink:
        assert self._link is not None, "start comes first"
        return self._link

    def _attempt(self, hello: Hello, case: int, abandon_s: float) -> CaseResult | BoardError:
        """A candidate's result, or what kept it from having one."""
        try:
            return self._measure(hello, case, abandon_s)
        except (Crashed, LinkError) as error:
            return error

    def _greet(self, built: Built, reopen: bool = False) -> Hello:
        """Begin a session with the image.

        Args:
            built: the image.
            reopen: whether the port was lost.

        Raises:
            BoardError: the board does not answer, or runs another program.
        """
        until = time.monotonic() + (self.options.patience_s if self._reached else 0.0)
        while True:
            try:
                if reopen:
                    self._link = self._place.reopen()
                    reopen = False
                hello = self._board_link.hello()
                break
            except BoardError as error:
                # Of a session before this one, or of a crash, it may still be told.
                passing = reopen or isinstance(error, (Crashed, LinkError))
                if not passing or time.monotonic() >= until:
                    raise
                reopen = reopen or _is_broken(error)
                if reopen:
                    time.sleep(_REOPEN_S)
        if hello.firmware != built.identity:
            raise BoardError(
                f"the board at {self._board_link.port.name} runs another program ({hello.model})"
                " than the one that was flashed",
                remedy="check [flash] command in its board.toml: it must write the program and"
                " restart the board",
            )
        self._reached = True
        return hello

    def _measure(self, hello: Hello, case: int, abandon_s: float) -> CaseResult:
        options, link = self.options, self._board_link
        number = self._periods(hello) if self._instruction_ns else options.number
        order = _ORDER.pack(
            case,
            self._instruction_ns is not None,
            options.repeat,
            number,
            round(options.min_repeat_s * 1e6),
            max(1, round(options.timeout_s * 1e3)),
            options.tolerance,
            abandon_s * 1e9,
            self._sentinel_ns,
        )
        slow = _EMULATION if self._instruction_ns else 2.0  # a check and the times
        timeout = slow * options.timeout_s + _SLACK_S
        (size,) = struct.unpack("<H", link.request(Request.MEASURE, order, timeout))

        def part(first: int, count: int) -> bytes:
            return struct.pack("<HIH", 0, first, count)

        report = link.transfer(Request.READ, size, 1, part)
        try:
            return self._result(report, hello)
        except (struct.error, IndexError, ValueError) as error:
            raise BoardError(f"the board's report makes no sense ({error})") from error

    def _result(self, report: bytes, hello: Hello) -> CaseResult:
        status, abandoned, retimed, repeats, number, ticks, idle, *reals = _HEAD.unpack_from(report)
        error, sentinel_ns, drift = reals
        times_ns = struct.unpack_from(f"<{repeats}d", report, _HEAD.size)
        data: dict[str, Any] = {
            "status": _STATUSES[status],
            "message": report[_HEAD.size + 8 * repeats :].decode("ascii", "replace"),
            "times_ns": times_ns,
            "abandoned": bool(abandoned),
            "pid": 0,
            "error": error,
        }
        if self._instruction_ns is None:
            data |= {"number": number, "drift": drift, "retimed": retimed}
            if 0 < sentinel_ns < math.inf:
                self._sentinel_ns = min(self._sentinel_ns or sentinel_ns, sentinel_ns)
            return case_result(data, False)
        result = case_result(data, True)
        if result.status != "ok":
            return result
        each = 1e9 / hello.ticks_hz / self._instruction_ns / number
        instructions = float(max(1, round((ticks - idle) * each)))
        seconds = instructions * INSTRUCTION_SECONDS
        conditions = {**result.conditions, "instructions": instructions}
        return CaseResult("ok", (seconds,), result.message, False, 0, conditions)

    def _periods(self, hello: Hello) -> int:
        """The fewest calls whose instructions are always the same number of ticks: of a clock with
        a period of whole nanoseconds.
        """
        assert self._instruction_ns is not None
        tick_ns, rest = divmod(10**9, hello.ticks_hz)
        periods = tick_ns // math.gcd(tick_ns, round(self._instruction_ns)) if rest == 0 else 1
        return periods if 0 < periods <= MOST_PERIODS else 1

    def _recover(self, built: Built, case: int, error: BoardError) -> _Lost:
        """Have the board answer again, and judge what has happened.

        Raises:
            BoardError: it stays silent.
        """
        if isinstance(error, NoAnswer):
            self._place.reset()
        self._greet(built, reopen=_is_broken(error))
        last, stage = struct.unpack("<HB", self._board_link.request(Request.LAST))
        under_way = last != _NOBODY and last == case
        when = _STAGES[min(stage, len(_STAGES) - 1)]
        if isinstance(error, Crashed):
            if error.what == "watchdog":
                return _Lost("timeout", f"stopped {when}")
            if error.what == "stack overflow":
                return _Lost("memory", f"its stack grew past the limit {when}")
            return _Lost("crash", f"{error.what}{error.where} {when}")
        if isinstance(error, NoAnswer) and under_way:
            return _Lost("timeout", f"stopped {when}")
        if under_way:
            return _Lost("crash", f"the board restarted {when}")
        return _Lost(None, str(error))


def _is_broken(error: BoardError) -> bool:
    """Whether the port is gone, or the emulator: it has to be opened again."""
    return isinstance(error, LinkError) and not isinstance(error, (NoAnswer, SessionLost))
