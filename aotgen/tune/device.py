"""The near end of a device that runs a bundle: starts the program, reads its lines, and starts it
again for the rest where it or the link broke off.

The program (``templates/tune/device.c.j2``) tells what it is about to do and what came of it, a
line of JSON each. What it had told before a break holds; the candidate under way is tried once
more, behind the others.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from aotgen.conditions import Governor, Reading, governor_problems
from aotgen.errors import BoardError
from aotgen.runner.base import Argument, LinkError, Runner, Upload
from aotgen.tune.outcome import Candidate, Kind, Outcome, Status

MAX_BREAKS = 2
"""A candidate that was under way so often when the program or link broke is given up."""

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Between attempts to reach a board; the last one again and again."""

_SLACK_S = 30.0

_JOIN_S = 15.0


@dataclass(frozen=True)
class DeviceOptions:
    """What the program is told, for all candidates alike.

    Attributes:
        number: calls a repeat; 0 for as many as take ``min_repeat_s``.
        repeat: of which the lowest counts.
        min_repeat_s: see ``number``.
        timeout_s: of a candidate, with setup and check.
        memory_bytes: most that a candidate may take; 0 for no limit.
        rotate_bytes: of the copies of its constants that calls go round.
        tolerance: of float outputs, relative to the largest magnitude.
        cpu: that it stays on; None where the system places it.
        governor: whether the frequency governor is set meanwhile.
        board: whether sysfs is the board's (not so under an emulator).
        count: one call between markers instead of times.
        sysfs_root: where the board's sys/ is, when it is not at the root.
        patience_s: how long a board may stay out of reach.
    """

    number: int = 0
    repeat: int = 20
    min_repeat_s: float = 0.002
    timeout_s: float = 10.0
    memory_bytes: int = 0
    rotate_bytes: int = 0
    tolerance: float = 1e-4
    cpu: int | None = None
    governor: bool = True
    board: bool = True
    count: bool = False
    sysfs_root: str | None = None
    patience_s: float = 120.0

    def words(self, cases: str, sentinel_ns: float) -> list[str]:
        """Arguments of the program."""
        words = [
            *("--cases", cases),
            *("--number", str(self.number)),
            *("--repeat", str(self.repeat)),
            *("--min-repeat-us", str(round(self.min_repeat_s * 1e6))),
            *("--timeout-ms", str(max(1, round(self.timeout_s * 1e3)))),
            *("--memory-kib", str(self.memory_bytes >> 10)),
            *("--rotate-kib", str(self.rotate_bytes >> 10)),
            *("--tolerance", repr(self.tolerance)),
        ]
        if sentinel_ns:
            words += ["--sentinel-ns", repr(sentinel_ns)]
        if self.cpu is not None:
            words += ["--cpu", str(self.cpu)]
        if self.sysfs_root is not None:
            words += ["--sysfs-root", self.sysfs_root]
        flags = {
            "--count": self.count,
            "--no-governor": not self.governor,
            "--no-board": not self.board,
        }
        return words + [flag for flag, on in flags.items() if on]


@dataclass(frozen=True)
class CaseResult:
    """What the program told of one candidate.

    Attributes:
        status: see ``Status``.
        times: seconds a call of every repeat.
        message: what went wrong.
        abandoned: timing stopped early.
        pid: of the process that ran it, 0 when none did.
        conditions: see ``Outcome``.
    """

    status: Status
    times: tuple[float, ...] = ()
    message: str = ""
    abandoned: bool = False
    pid: int = 0
    conditions: Mapping[str, float] = field(default_factory=dict)

    def outcome(self, candidate: Candidate, kernel: str, kind: Kind) -> Outcome:
        """The same of a candidate.

        Args:
            candidate: that the program had this for.
            kernel: ``kernel_hash`` of it.
            kind: of the times.
        """
        ok = self.status == "ok"
        return Outcome(
            candidate,
            self.status,
            min(self.times) if ok else None,
            self.times if ok else (),
            kind,
            self.message,
            kernel,
            self.abandoned,
            dict(self.conditions),
        )


class Device:
    """Runs programs of bundles on one board, one at a time."""

    def __init__(self, runner: Runner, options: DeviceOptions) -> None:
        self.runner = runner
        self.options = options
        self.warnings: list[str] = []
        """What the board said that makes times doubtful, once each."""
        self.sentinel_ns = 0.0
        """The sentinel's lowest time so far."""
        self._board: dict[str, float] = {}
        self._reached = False
        """Whether a program ever started there: patience is for a board that was lost."""

    def run(
        self, program: Path, files: Sequence[Path], count: int, abandon_s: Mapping[int, float]
    ) -> Iterator[tuple[int, CaseResult]]:
        """Run all cases of a program.

        Args:
            program: of a bundle.
            files: contents of buffers, as ``bundle.files_of`` has them.
            count: how many cases the program has.
            abandon_s: by case the seconds a call from which on timing is given up early.

        Yields:
            (number of the case in the program, result), as they come.

        Raises:
            BoardError: the board is gone for good or was never there, or its disk is full.
        """
        todo = list(range(count))
        breaks: Counter[int] = Counter()
        lost_since: float | None = None
        attempt = 0
        while todo:
            seen = _Seen()
            uploads: list[Argument] = [Upload(path) for path in files]
            cases = ",".join(_case(n, abandon_s.get(n, 0.0)) for n in todo)
            words: list[Argument] = [*self.options.words(cases, self.sentinel_ns), *uploads]
            yield from self._follow(program, words, len(todo), todo, seen)
            self._reached = self._reached or seen.started
            if seen.error is None:
                if todo:
                    raise BoardError(f"{program.name} ended before its last candidate")
                return
            sound = not isinstance(seen.error, LinkError)
            if not seen.started and (sound or not self._reached):
                raise seen.error  # nothing that another attempt would change
            culprit = seen.under_way
            if culprit not in todo:
                # The line that tells of the next one may not have come through.
                culprit = todo[0] if todo and seen.started else None
            if culprit is not None:
                breaks[culprit] += 1
                todo.remove(culprit)
                if breaks[culprit] < MAX_BREAKS:
                    todo.append(culprit)
                else:
                    status: Status = "crash" if sound else "link"
                    yield culprit, CaseResult(status, message=str(seen.error))
            elif sound and not seen.results:
                raise seen.error
            now = time.monotonic()
            if seen.started or sound:
                lost_since, attempt = None, 0
            else:
                lost_since = now if lost_since is None else lost_since
                if now - lost_since > self.options.patience_s:
                    raise seen.error
            if not sound and todo:
                time.sleep(PAUSES_S[min(attempt, len(PAUSES_S) - 1)])
                attempt += 1

    def _follow(
        self,
        program: Path,
        words: Sequence[Argument],
        count: int,
        todo: list[int],
        seen: _Seen,
    ) -> Iterator[tuple[int, CaseResult]]:
        """Run the program once; results leave ``todo``, how it went is in ``seen``."""
        lines: queue.Queue[str | None] = queue.Queue()
        stopped = threading.Event()

        def on_line(line: str) -> None:
            if stopped.is_set():
                raise _Stopped
            lines.put(line)

        def work() -> None:
            try:
                self.runner.deploy(program)
                timeout = count * (self.options.timeout_s + 5.0) + _SLACK_S
                self.runner.run(program, words, timeout, on_line)
            except BaseException as error:
                seen.error = error
            finally:
                lines.put(None)

        thread = threading.Thread(target=work, name="device", daemon=True)
        thread.start()
        try:
            while (line := lines.get()) is not None:
                result = self._take(line, seen)
                if result is not None and result[0] in todo:
                    todo.remove(result[0])
                    yield result
        finally:
            # The program says something every second: the next time it does, it is stopped.
            stopped.set()
            thread.join(_JOIN_S)
        if seen.error is not None and not isinstance(seen.error, BoardError):
            raise seen.error

    def _take(self, line: str, seen: _Seen) -> tuple[int, CaseResult] | None:
        """What a line of the program says; what is none of its lines is passed over.

        Raises:
            BoardError: it makes no sense.
        """
        data = _parsed(line)
        try:
            if "device" in data:
                seen.started = True
                self._warn(data)
            if "board" in data:
                self._look(Reading.of(data["board"]))
            if "begin" in data:
                seen.under_way = int(data["begin"])
            if "case" in data:
                seen.under_way = None
                seen.results += 1
                return int(data["case"]), self._result(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BoardError(f"the device printed a line that makes no sense: {line}") from error
        return None

    def _result(self, data: dict[str, Any]) -> CaseResult:
        result = case_result(data, self.options.count, self._board)
        sentinel = float(data.get("sentinel_ns", 0.0))
        if 0 < sentinel < math.inf:
            self.sentinel_ns = min(self.sentinel_ns or sentinel, sentinel)
        return result

    def _look(self, reading: Reading) -> None:
        if reading.clocks:
            self._board["clock_mhz"] = min(c.mhz for c in reading.clocks)
        if reading.temperature_c is not None:
            self._board["temperature_c"] = reading.temperature_c
        if reading.throttled_now is not None:
            self._board["throttled"] = float(reading.throttled_now)

    def _warn(self, data: dict[str, Any]) -> None:
        if "governor" in data:
            problems = governor_problems(Governor.of(data["governor"], None))
            self.warnings += [text for text in problems if text not in self.warnings]


@dataclass
class _Seen:
    """How far one run of the program got."""

    started: bool = False
    under_way: int | None = None
    results: int = 0
    error: BaseException | None = None


class _Stopped(Exception):
    """Nobody waits for the program any more."""


def case_result(
    data: Mapping[str, Any], counted: bool, board: Mapping[str, float] | None = None
) -> CaseResult:
    """What a device tells of a candidate.

    Args:
        data: as the device program prints it.
        counted: that instructions were counted, so that there are no times.
        board: conditions of the board.

    Raises:
        KeyError, TypeError, ValueError: it makes no sense.
    """
    status: Status = data["status"]
    message = str(data["message"])
    times = tuple(float(ns) * 1e-9 for ns in data["times_ns"])
    if status not in get_args(Status):
        raise ValueError(status)
    bad = not times or not all(0 < t < math.inf for t in times)
    if status == "ok" and bad and not counted:
        status, message, times = "crash", "it was not timed", ()
    conditions = dict(board or {})
    for key in ("error", "drift", "number", "copies", "retimed"):
        value = float(data.get(key, math.nan))
        if math.isfinite(value):
            conditions[key] = value
    return CaseResult(status, times, message, bool(data["abandoned"]), int(data["pid"]), conditions)


def _case(number: int, abandon_s: float) -> str:
    return f"{number}:{abandon_s * 1e9:.9g}" if abandon_s > 0 else str(number)


def _parsed(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
