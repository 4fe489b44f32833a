"""What a microcontroller board brings so that a program starts there and talks: start-up code, the
hardware layer, a linker script. A project gets copies, in its folder firmware/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aotgen.errors import UsageError

FIRMWARE_IMAGES = ("bin", "hex")
"""Forms of a program for tools that write it into flash."""

_OWN_FILES = ("main.c", "weights.S", "firmware.cmake", "linker.ld")

_INCLUDE = re.compile(r"^INCLUDE (\S+)$", re.MULTILINE)
_MAX_DEPTH = 4


@dataclass(frozen=True)
class FirmwareSupport:
    """What a bare board brings so that a program starts and talks: copied into its projects. All
    empty where the user's own firmware does that.

    Attributes:
        sources: C files (start-up, and the hardware layer of three functions) and their headers.
        linker_script: for the GNU linker.
        images: what a linked program is converted to: "bin" (for memory without holes), "hex".
    """

    sources: tuple[Path, ...] = ()
    linker_script: Path | None = None
    images: tuple[str, ...] = ()

    @property
    def can_start(self) -> bool:
        """Whether the board itself brings what a program needs, so that one can be linked."""
        return self.linker_script is not None

    def check(self, where: Path) -> None:
        """
        Args:
            where: the board.toml, for messages.

        Raises:
            UsageError: a file is missing, or two have the same name: they go into one folder of a
                project; a linker script without sources; an unknown form of image.
        """
        for image in self.images:
            if image not in FIRMWARE_IMAGES:
                raise UsageError(
                    f"{where}: image {image!r} does not exist",
                    remedy=f"use {' or '.join(FIRMWARE_IMAGES)}",
                )
        if self.can_start != bool(self.c_files):
            has = "a linker script and no" if self.can_start else "no linker script for its"
            raise UsageError(
                f"{where}: [firmware] has {has} C sources",
                remedy="name the start-up code, the hardware layer and the linker script, or none"
                " of them where the user's firmware brings them",
            )
        seen: set[str] = set()
        for path in self.sources:
            if path.name in _OWN_FILES or path.name.startswith("aot_"):
                raise UsageError(
                    f"{where}: [firmware] names {path.name}, which projects have of their own",
                    remedy="rename the file",
                )
        for path in self.files:
            if not path.is_file():
                raise UsageError(f"{where}: [firmware] names {path}, which is no file")
            if path.name in seen:
                raise UsageError(f"{where}: [firmware] names two files {path.name}")
            seen.add(path.name)

    @property
    def files(self) -> tuple[Path, ...]:
        return self.sources + ((self.linker_script,) if self.linker_script else ())

    @property
    def c_files(self) -> tuple[Path, ...]:
        """Those of the sources that are compiled."""
        return tuple(path for path in self.sources if path.suffix in (".c", ".S"))

    def texts(self) -> dict[str, str]:
        """The files by name; the linker script as one text, called linker.ld, without includes.

        Raises:
            UsageError: one cannot be read.
        """
        found = {path.name: _read(path) for path in self.sources}
        if self.linker_script is not None:
            found["linker.ld"] = _inlined(self.linker_script, 0)
        return found


NO_FIRMWARE = FirmwareSupport()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the board's file {path}: {error}") from error


def _inlined(path: Path, depth: int) -> str:
    """A linker script with its includes, which are relative to it, replaced by their texts."""
    if depth > _MAX_DEPTH:
        raise UsageError(f"the linker script {path} includes itself")
    return _INCLUDE.sub(lambda m: _inlined(path.parent / m[1], depth + 1).strip("\n"), _read(path))
