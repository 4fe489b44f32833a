"""docs/boards.md names faults as the messages do, and boards as their board.toml describes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aotgen.target.board import list_boards, load_board

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "boards.md").read_text(encoding="utf-8")

OTHERS = (
    "version GLIBC_",
    "/lib/ld-linux-",
    "is aarch64",
    "is built for",
    "died from SIGILL",
    "died from SIGKILL",
    "the system refused",
)
"""What the board's loader and our program there say, and what depends on the board."""


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def fragments() -> list[str]:
    """The pieces of messages in the first column of the table of faults."""
    rows = [line for line in section("Faults").splitlines() if line.startswith("| `")]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    pieces = [piece.strip() for text in quoted for piece in text.split("...")]
    return [piece for piece in pieces if piece]


@pytest.fixture(scope="module")
def sources() -> str:
    """The Python of aotgen, each message in one piece."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "aotgen").rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize("fragment", fragments())
def test_messages_are_as_they_are_printed(fragment: str, sources: str) -> None:
    if not any(other in fragment or fragment in other for other in OTHERS):
        assert fragment in sources


def test_every_board_is_listed() -> None:
    for name in list_boards():
        board = load_board(name)
        if board.is_bare:
            lines = section("Microcontrollers").splitlines()
            (row,) = [line for line in lines if f"| `{name}` |" in line]
            core = board.clusters[0].core.replace("plus", "+").replace("cortex-m", "Cortex-M")
            assert core in row
        elif board.triple:
            (row,) = [line for line in PAGE.splitlines() if f"| `{name}` |" in line]
            for cluster in board.clusters:
                core = cluster.core.replace("cortex-a", "Cortex-A")
                assert f"{cluster.count}x {core}" in row
                assert f"{cluster.peak_gflops:.3g}" in row


@pytest.mark.parametrize("title", ["Governor", "Old C libraries", "Faults"])
def test_sections_that_messages_name(title: str) -> None:
    assert section(title)
