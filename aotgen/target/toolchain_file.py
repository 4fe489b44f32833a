"""The CMake toolchain file of a board, as one text that needs no other file.

The boards' own toolchain files include what they share; a generated project gets a copy in which
the includes are replaced by what they name, so that it builds without aotgen.
"""

from __future__ import annotations

import re
from pathlib import Path

from aotgen.errors import UsageError
from aotgen.resources import board_support_dir
from aotgen.target.board import Board

_INCLUDE = re.compile(
    r'^include\("?\$\{CMAKE_CURRENT_LIST_DIR\}/([^"$)]+)"?\)[ \t]*$', re.MULTILINE
)
_MAX_DEPTH = 8

_STATIC = """
# The programs bring their own libc: that of the board may be older than the compiler's.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static")
"""


def toolchain_text(board: Board) -> str | None:
    """The toolchain file for a board's projects; None where the host's own compiler is used.

    A board that names no toolchain file but a triple gets one for Debian's cross compiler.

    Raises:
        UsageError: its file, or one that it includes, cannot be read.
    """
    if board.toolchain is not None:
        text = _inlined(board.toolchain, 0)
    elif board.triple:
        text = _rendered(board)
    else:
        return None
    return text + _STATIC if board.static else text


def _rendered(board: Board) -> str:
    if board.is_bare:
        shared = _inlined(board_support_dir() / "cortex-m.cmake", 0)
        return (
            f"# {board.description or board.name}.\n"
            f"set(AOTGEN_BOARD {board.name})\n"
            f"set(AOTGEN_CPU_FLAGS {' '.join(board.extra_cflags['gcc'])})\n"
            f"{shared}"
        )
    shared = _inlined(board_support_dir() / "linux.cmake", 0)
    return (
        f"# {board.description or board.name}.\n"
        f"set(AOTGEN_TRIPLE {board.triple})\n"
        f"set(AOTGEN_EMULATOR {' '.join(board.emulator)})\n"
        f"{shared}"
    )


def _inlined(path: Path, depth: int) -> str:
    """A file's text with its includes of neighbours replaced by their texts."""
    if depth > _MAX_DEPTH:
        raise UsageError(f"the toolchain file {path} includes itself")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the toolchain file {path}: {error}") from error
    return _INCLUDE.sub(lambda m: _inlined(path.parent / m[1], depth + 1).rstrip("\n"), text)
