"""Texts of Linux's /proc and /sys that tell of CPUs and memory, for this computer and for boards.

What reads a file is the caller's: a function from a path, such as ``/proc/meminfo``, to the file's
text, empty where there is no such file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

ReadFile = Callable[[str], str]

_MAX_CACHES = 6
_MAX_CPUS = 8192
"""Linux's own limit."""


@dataclass(frozen=True)
class Cache:
    """Size in bytes and ways of a cache; 0 where the kernel does not tell."""

    size: int = 0
    ways: int = 0


def cpu_list(text: str) -> list[int]:
    """Linux's way to write a set of CPUs: "0-3,5"."""
    found: list[int] = []
    for word in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", word)
        if ends:
            first = int(ends[1])
            # What claims more CPUs than Linux can have is no list of CPUs.
            found += range(first, min(int(ends[2] or first), first + _MAX_CPUS - 1) + 1)
    return found


def byte_count(text: str) -> int:
    """sysfs's sizes of caches: "48K"; 0 when it is none."""
    found = re.fullmatch(r"\s*(\d+)([KMG]?)\s*", text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0


def cpuinfo_blocks(text: str) -> list[dict[str, str]]:
    """/proc/cpuinfo as one table a CPU; what follows without a CPU's number ends up in the last."""
    blocks: list[dict[str, str]] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key.strip() == "processor" and value.strip().isdigit():
            blocks.append({})
        if blocks:
            blocks[-1].setdefault(key.strip(), value.strip())
    return blocks


def memory_bytes(meminfo: str) -> dict[str, int]:
    """The entries of /proc/meminfo, such as ``MemTotal``, in bytes."""
    found = re.finditer(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE)
    return {entry[1]: int(entry[2]) * 1024 for entry in found}


def data_caches(read: ReadFile, cpu: int) -> dict[int, Cache]:
    """A CPU's data and unified caches by level; none where the kernel does not tell."""
    found: dict[int, Cache] = {}
    for index in range(_MAX_CACHES):
        folder = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        level = read(f"{folder}/level").strip()
        if not level.isdigit():
            break
        if read(f"{folder}/type").strip() in ("Data", "Unified"):
            ways = read(f"{folder}/ways_of_associativity").strip()
            size = byte_count(read(f"{folder}/size"))
            found[int(level)] = Cache(size, int(ways) if ways.isdigit() else 0)
    return found
