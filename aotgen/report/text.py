"""Plain text for people: tables and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Plain columns: the first ``left`` are flush left, the others flush right."""
    cells = [list(header), *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        parts = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def byte_text(count: int) -> str:
    """A size for people: exact below 10 KB, else with the largest unit that leaves at least 1."""
    if count < 10_000:
        return f"{count} B"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1024:.1f} KiB"


def digits(value: float) -> str:
    """A positive number with four significant digits, more where it has more before the point."""
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}" if value > 0 else "0"
