"""The journal: what was measured, one JSON object a line, in the order in which it was measured.

Lines are only ever appended, under a lock, and are on the disk when ``append`` returns. What a
killed process left of its last line is passed over by readers and cut off by the next writer.
Fields that this version does not know are kept.
"""

from __future__ import annotations

import fcntl
import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, cast, get_args

import aotgen
from aotgen.errors import UsageError
from aotgen.schedule.base import Config, KnobValue
from aotgen.tune.outcome import Candidate, Kind, Outcome, Status
from aotgen.tune.task import Point, Task

FEATURE_DIGITS = 6
"""Significant digits of a feature: a model that splits at thresholds needs no more."""


@dataclass(frozen=True)
class Record:
    """One line.

    Attributes:
        task: key of the task.
        template: of the candidate.
        config: its knobs.
        status: see ``outcome.Status``.
        seconds: of one call; None unless ``status`` is "ok".
        kind: where ``seconds`` comes from.
        times: seconds of every repeat.
        text: what the key stands for.
        title: the task for people.
        macs: of one call.
        board: its name.
        isa: instruction set.
        core: name of the core.
        kernel: hash of the kernel's C.
        features: of the template, for the cost model.
        conditions: what the board said meanwhile.
        message: what went wrong.
        tuner: which search proposed it, with its seed.
        date: UTC, ISO 8601.
        aotgen: version that wrote it.
        extra: fields of other versions.
    """

    task: str
    template: str
    config: Mapping[str, KnobValue]
    status: Status
    seconds: float | None = None
    kind: Kind = "measured"
    times: tuple[float, ...] = ()
    text: str = ""
    title: str = ""
    macs: int = 0
    board: str = ""
    isa: str = ""
    core: str = ""
    kernel: str = ""
    features: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    tuner: str = ""
    date: str = ""
    aotgen: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        return Point(self.template, Config(tuple(sorted(self.config.items()))))

    @property
    def source(self) -> Kind:
        """The kind, but "modelled" of instructions that an emulator counted inside the network:
        they are comparable with those of kernels alone, and with nothing that was measured.
        """
        counted = self.kind == "network" and "instructions" in self.conditions
        return "modelled" if counted else self.kind

    @property
    def gflops(self) -> float | None:
        """10^9 operations a second, a multiply-accumulate is two; None without a time or MACs."""
        return 2e-9 * self.macs / self.seconds if self.seconds and self.macs else None

    def line(self) -> str:
        """The JSON text, without a newline."""
        data: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(self, name)
            data[name] = dict(value) if isinstance(value, Mapping) else value
        data["features"] = dict(sorted(self.features.items()))
        data["config"] = dict(sorted(self.config.items()))
        return json.dumps({**data, **self.extra}, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, line: str) -> Record:
        """
        Raises:
            ValueError: it is no record; the text says why.
        """
        try:
            data = json.loads(_bare(line))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        for name, kind in _TYPES.items():
            if name not in data and name in _REQUIRED:
                raise ValueError(f"{name} is missing")
            if name in data and (not isinstance(data[name], kind) or isinstance(data[name], bool)):
                raise ValueError(f"{name} is {data[name]!r}")
        for name, known in (("status", get_args(Status)), ("kind", get_args(Kind))):
            if name in data and data[name] not in known:
                raise ValueError(f"{name} {data[name]!r} does not exist")
        for value in data["config"].values():
            if not isinstance(value, str | bool) and not _is_number(value, int, 2**63):
                raise ValueError("config has a value that no knob has")
        if not 0 <= data.get("macs", 0) < 2**63:
            raise ValueError("macs is out of range")
        for name in ("features", "conditions", "times"):
            values = data.get(name, ())
            if not all(map(_is_number, values.values() if isinstance(values, dict) else values)):
                raise ValueError(f"{name} has what is no number")
        seconds = data.get("seconds")
        good = seconds is not None and _is_number(seconds) and _SHORTEST_S < seconds < _LONGEST_S
        if good != (data["status"] == "ok") or (seconds is not None and not good):
            raise ValueError(f"status {data['status']!r} and seconds {seconds!r} do not agree")
        if "\\u" in line:  # half a surrogate pair cannot be written again
            json.dumps(data, ensure_ascii=False).encode()
        made = {n: data[n] for n in _FIELDS if n in data}
        made["times"] = tuple(float(t) for t in made.get("times", ()))
        return cls(**made, extra={n: v for n, v in data.items() if n not in made})


_FIELDS = tuple(f.name for f in fields(Record) if f.name != "extra")
_NAME_ONE = "name a file that `aotgen tune` wrote"
_SHORTEST_S, _LONGEST_S = 1e-12, 1e9
_LARGEST = 1e38
"""Of a number; what learns from features has them as float32."""

_REQUIRED = ("task", "template", "config", "status")
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task", "template", "status", "kind", "text", "title", "board", "isa"), str),
    **dict.fromkeys(("core", "kernel", "message", "tuner", "date", "aotgen"), str),
    **dict.fromkeys(("config", "features", "conditions"), dict),
    "times": list,
    "macs": int,
}


def _is_number(
    value: object, kind: type | tuple[type, ...] = (int, float), largest: float = _LARGEST
) -> bool:
    """Whether a value from JSON is a number of a sensible size: neither nan nor inf is."""
    known = isinstance(value, kind) and not isinstance(value, bool)
    return known and abs(cast("float", value)) < largest


def _bare(line: str) -> str:
    """A line without what editors leave around it: white space, a byte order mark."""
    return line.strip("\ufeff \t\r\n")


def rounded(value: float) -> float:
    """A feature as records have it."""
    return float(f"{value:.{FEATURE_DIGITS}g}")


def record_of(
    task: Task,
    outcome: Outcome,
    *,
    board: str,
    features: Mapping[str, float],
    tuner: str,
) -> Record:
    """The journal's record of an outcome."""
    point = outcome.candidate.point
    conditions = {n: v for n, v in outcome.conditions.items() if _is_number(float(v))}
    if outcome.abandoned:
        conditions["abandoned"] = 1.0
    return Record(
        task=task.key,
        template=point.template,
        config=point.config.as_dict(),
        status=outcome.status,
        seconds=outcome.seconds,
        kind=outcome.kind,
        times=outcome.times,
        text=task.text,
        title=task.title,
        macs=task.macs,
        board=board,
        isa=task.target.isa,
        core=task.target.core,
        kernel=outcome.kernel,
        features={n: rounded(v) for n, v in features.items() if _is_number(float(v))},
        conditions=conditions,
        message=outcome.message,
        tuner=tuner,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        aotgen=aotgen.__version__,
    )


def outcome_of(task: Task, record: Record) -> Outcome:
    """The outcome that ``record_of`` made a record of."""
    conditions = {n: v for n, v in record.conditions.items() if n != "abandoned"}
    return Outcome(
        Candidate(task, record.point),
        record.status,
        record.seconds,
        record.times,
        record.kind,
        record.message,
        record.kernel,
        "abandoned" in record.conditions,
        conditions,
    )


class Journal:
    """A journal file.

    Attributes:
        path: of the file; with the suffix .xz it is compressed and can only be read.
        skipped: numbers of the lines that the last ``records`` could not use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped: tuple[int, ...] = ()
        self._is_locked = False

    def records(self) -> list[Record]:
        """All records in the file's order; none when there is no file yet.

        Lines that are no records are passed over and counted in ``skipped``; so is a last one that
        was not written to its end.

        Raises:
            UsageError: the file cannot be read, or holds no record at all and is no journal.
        """
        try:
            text = self._text()
        except FileNotFoundError:
            self.skipped = ()
            return []
        found: list[Record] = []
        bad: list[int] = []
        reason = ""
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not _bare(line):
                continue
            try:
                found.append(Record.parse(line))
            except (ValueError, TypeError) as error:
                if number < len(lines) or not _is_torn(line):
                    bad.append(number)
                    reason = reason or f"{error!s:.200}"
        if bad and not found:
            raise UsageError(
                f"{self.path} is no journal: line {bad[0]} is no record ({reason})",
                remedy=_NAME_ONE,
            )
        self.skipped = tuple(bad)
        return found

    def append(self, records: Iterable[Record]) -> None:
        """Write records behind all others; they are on the disk when this returns.

        Raises:
            UsageError: the file cannot be written; it is then as it was.
        """
        data = "".join(f"{record.line()}\n" for record in records).encode()
        if not data:
            return
        with self._opened() as file:
            end = self._repaired(file)
            try:
                written = 0
                while written < len(data):
                    written += os.write(file.fileno(), data[written:])
                os.fsync(file.fileno())
            except BaseException:
                os.ftruncate(file.fileno(), end)
                raise

    def check_writable(self) -> None:
        """Create the file, and the folders above it, where there is none.

        Raises:
            UsageError: ``append`` could not write it.
        """
        with self._opened():
            pass

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else reads or writes the file meanwhile, which may be replaced. This object reads
        it all the same, but may not append.

        Raises:
            UsageError: the file cannot be written.
        """
        with self._opened():
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """The file to append to, locked."""
        if self.path.suffix == ".xz":
            raise UsageError(
                f"{self.path} is compressed and can only be read",
                remedy="name a .jsonl file; `aotgen journal merge` unpacks one",
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._check_kind()
            while True:
                with self.path.open("ab+", buffering=0) as file:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX)
                    if not self._is_current(file.fileno()):
                        continue  # who had the lock has put another file in its place
                    yield cast("IO[bytes]", file)
                    return
        except OSError as error:
            raise UsageError(
                f"cannot write journal {self.path}: {error.strerror or error}"
            ) from error

    def _repaired(self, file: IO[bytes]) -> int:
        """End a last line without a newline, or cut it off when it is the beginning of a record;
        where the file ends now.
        """
        size = file.seek(0, os.SEEK_END)
        start, tail = size, b""
        while start and b"\n" not in tail:
            start = max(0, start - (1 << 16))
            file.seek(start)
            tail = file.read(size - start)
        torn = tail[tail.rfind(b"\n") + 1 :]
        if not torn:
            return size
        text = torn.decode("utf-8", "replace")
        try:
            Record.parse(text)
        except (ValueError, TypeError) as error:
            if not _is_torn(text):
                raise UsageError(
                    f"{self.path} is no journal: its last line is no record ({error})",
                    remedy=_NAME_ONE,
                ) from error
            os.ftruncate(file.fileno(), size - len(torn))
            return size - len(torn)
        os.write(file.fileno(), b"\n")
        return size + 1

    def _check_kind(self) -> None:
        """
        Raises:
            UsageError: it is a folder, a device or a pipe.
            OSError: the system does not say.
        """
        if self.path.exists() and not self.path.is_file():
            what = "a folder" if self.path.is_dir() else "no regular file"
            raise UsageError(f"journal {self.path} is {what}", remedy="name a .jsonl file")

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def _text(self) -> str:
        try:
            self._check_kind()
            if self.path.suffix == ".xz":
                return lzma.decompress(self.path.read_bytes()).decode("utf-8", "replace")
            with self.path.open("rb") as file:
                if not self._is_locked:
                    fcntl.flock(file.fileno(), fcntl.LOCK_SH)
                return file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UsageError(
                f"cannot read journal {self.path}: {error.strerror or error}"
            ) from error
        except (lzma.LZMAError, EOFError) as error:
            raise UsageError(f"{self.path} is not an .xz file: {error}") from error


def _is_torn(line: str) -> bool:
    """Whether what is no record may be the beginning of one."""
    bare = _bare(line)
    return bare.startswith("{") and not bare.endswith("}")


def read_journal(path: Path) -> tuple[list[Record], tuple[int, ...]]:
    """The records of a journal that must exist, and the numbers of lines that are none.

    Raises:
        UsageError: there is no such file, or it is no journal.
    """
    try:
        there = path.exists()
    except OSError as error:
        raise UsageError(f"cannot read journal {path}: {error.strerror or error}") from error
    if not there:
        raise UsageError(f"there is no journal {path}", remedy="`aotgen tune` writes one")
    journal = Journal(path)
    records = journal.records()
    return records, journal.skipped


def skipped_text(path: Path, skipped: Sequence[int]) -> str:
    """What to tell of the lines that were passed over."""
    lines = f"{len(skipped)} lines are" if len(skipped) > 1 else "1 line is"
    return f"{path}: {lines} no record and not used, the first is line {skipped[0]}"


def merged(journals: Sequence[Sequence[Record]]) -> list[Record]:
    """All records once, in an order that does not depend on the journals' order: by task, then in
    the order of their dates.
    """
    unique = {record.line(): record for records in journals for record in records}
    return [unique[k] for k in sorted(unique, key=lambda k: (unique[k].task, unique[k].date, k))]


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by the key of their task, in order of first appearance."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.task, []).append(record)
    return found
