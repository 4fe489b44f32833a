"""Lines of generated C no longer than a reader's screen."""

from __future__ import annotations

COLUMNS = 100
CONTINUATION = "        "
KERNEL = "@KERNEL@"
STAND_IN = "K" * 40
"""As long as a kernel's final name usually is."""


def wrap(text: str) -> str:
    """Break the lines of C text at commas (else at operators) where they exceed 100 columns."""
    made: list[str] = []
    for line in text.replace(KERNEL, STAND_IN).split("\n"):
        indent = line[: len(line) - len(line.lstrip())] + CONTINUATION
        while len(line) > COLUMNS:
            at = _break(line)
            if at is None:
                break
            made.append(line[:at].rstrip())
            line = indent + line[at:].lstrip()
        made.append(line)
    return "\n".join(made).replace(STAND_IN, KERNEL)


def _break(line: str) -> int | None:
    """Where to break: behind the last comma that fits, else before the last operator that does."""
    start = len(line) - len(line.lstrip()) + 1
    comma = line.rfind(", ", start, COLUMNS)
    if comma > start + 20:
        return comma + 1
    for operator in (" + ", " && ", " ? ", " : "):
        at = line.rfind(operator, start + 20, COLUMNS)
        if at > 0:
            return at
    return comma + 1 if comma > 0 else None
