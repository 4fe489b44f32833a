"""What a program prints: decoded, handed on line by line, and bounded."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from aotgen.errors import BoardError

MAX_OUTPUT_BYTES = 16 << 20
"""A program that prints more than this on one stream is broken and is stopped."""

_MAX_LINE = 1 << 16
"""A longer line is handed on in pieces."""

LineReader = Callable[[str], None]
"""Called with every line of stdout as it arrives, without its end."""


class Output:
    """Collects one stream of a program."""

    def __init__(self, program: str, on_line: LineReader | None = None) -> None:
        """
        Args:
            program: its name, for messages.
            on_line: gets whole lines at once; the last one even if it has no end.
        """
        self._program = program
        self._on_line = on_line
        # What is not UTF-8 is replaced; a character may be cut by the end of a packet.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pieces: list[str] = []
        self._bytes = 0
        self._line = ""

    def feed(self, data: bytes) -> None:
        """
        Raises:
            BoardError: the program printed too much.
        """
        self._bytes += len(data)
        if self._bytes > MAX_OUTPUT_BYTES:
            raise BoardError(
                f"{self._program} was stopped: it printed more than {MAX_OUTPUT_BYTES >> 20} MiB"
            )
        self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """The whole text; nothing follows."""
        self._take(self._decoder.decode(b"", final=True))
        if self._line and self._on_line is not None:
            self._on_line(self._line)
        self._line = ""
        return "".join(self._pieces)

    def _take(self, text: str) -> None:
        self._pieces.append(text)
        if self._on_line is None or not text:
            return
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._on_line(line)
        while len(self._line) > _MAX_LINE:
            self._on_line(self._line[:_MAX_LINE])
            self._line = self._line[_MAX_LINE:]
