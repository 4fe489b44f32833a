"""What an ELF program wants of the machine that runs it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_MACHINES = {3: "i686", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_PT_INTERP = 3


@dataclass(frozen=True)
class Elf:
    """
    Attributes:
        machine: architecture as compiler triples spell it.
        interpreter: the dynamic loader's path; empty for a static program.
    """

    machine: str
    interpreter: str


def read_elf(path: Path) -> Elf | None:
    """The facts about a little-endian ELF file; None when it is none.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 52 or head[:4] != b"\x7fELF" or head[5] != 1:
            return None
        wide = head[4] == 2
        (machine,) = struct.unpack_from("<H", head, 18)
        # Offset, entry size and number of program headers.
        table = (
            struct.unpack_from("<Q", head, 32)[0] if wide else struct.unpack_from("<I", head, 28)[0]
        )
        size, count = struct.unpack_from("<HH", head, 54 if wide else 42)
        interpreter = ""
        for index in range(count):
            file.seek(table + index * size)
            entry = file.read(size)
            if len(entry) < (56 if wide else 32):
                break
            if struct.unpack_from("<I", entry)[0] != _PT_INTERP:
                continue
            offset, length = (
                (struct.unpack_from("<Q", entry, 8)[0], struct.unpack_from("<Q", entry, 32)[0])
                if wide
                else (struct.unpack_from("<I", entry, 4)[0], struct.unpack_from("<I", entry, 16)[0])
            )
            file.seek(offset)
            interpreter = file.read(min(length, 4096)).rstrip(b"\0").decode(errors="replace")
    return Elf(_MACHINES.get(machine, f"ELF machine {machine}"), interpreter)
