"""A check's outcome, and all of them as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Check:
    """One row of the table.

    Attributes:
        check: what was looked at.
        found: what it is.
        wanted: what it should be; empty where anything will do.
        status: "warn" spoils measurements or promises, "fail" keeps programs from running right,
            "skip" could not be found out.
        remedy: what to do about it; empty where nothing need be done.
    """

    check: str
    found: str
    wanted: str = ""
    status: Status = "ok"
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """What the doctor says.

    Attributes:
        host: as it was asked for.
        board: that it was compared with; empty for none.
        checks: in the order of the table.
    """

    host: str
    board: str
    checks: tuple[Check, ...]

    @property
    def problems(self) -> list[Check]:
        return [check for check in self.checks if check.status in ("warn", "fail")]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "host": self.host,
            "board": self.board or None,
            "checks": [asdict(check) for check in self.checks],
            "problems": len(self.problems),
        }

    def __str__(self) -> str:
        from aotgen.report.text import table

        header = ("check", "found", "wanted", "status", "remedy")
        rows = [(c.check, c.found, c.wanted, c.status, c.remedy) for c in self.checks]
        return "\n".join([table(header, rows, left=len(header)), "", _summary(self.problems)])


def _summary(problems: Sequence[Check]) -> str:
    if not problems:
        return "no problems"
    names = ", ".join(check.check for check in problems)
    return f"{len(problems)} problem{'s' if len(problems) > 1 else ''}: {names}"
