"""The computer that aotgen runs on: instruction set, caches and clock of the host boards.

Read from /proc/cpuinfo and sysfs; what a container or virtual machine hides falls back to a plain
default, and what it reports absurdly is capped, because schedules are computed from these numbers.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from aotgen.target.linux_files import Cache, data_caches, memory_bytes
from aotgen.target.target import Isa

_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_AVX512_MORE = frozenset({"avx512_vnni"})
_AVX2 = frozenset({"avx2", "fma"})
_ARMV7 = frozenset({"neon", "vfpv4"})
_ARCHITECTURES = {"AMD64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "armv8l": "arm"}
_L1_RANGE = (16 * 1024, 128 * 1024)
_L2_RANGE = (128 * 1024, 4 * 1024 * 1024)


@dataclass(frozen=True)
class HostFacts:
    """What was found out about this computer.

    Attributes:
        machine: "x86_64", "aarch64", ...
        isa: widest instruction set that aotgen has kernels for.
        features: the CPU flags that decided on it, sorted.
        core: name for reports.
        cores: how many CPUs this process may use.
        cpus: their numbers.
        clock_mhz: nominal clock, 0 when unknown.
        l1_bytes: L1 data cache of one core.
        l1_ways: its associativity.
        l2_bytes: L2 cache of one core.
        ram_bytes: main memory, 0 when unknown.
    """

    machine: str
    isa: Isa
    features: tuple[str, ...]
    core: str
    cores: int
    clock_mhz: int
    l1_bytes: int
    l1_ways: int
    l2_bytes: int
    ram_bytes: int
    cpus: tuple[int, ...]


def detect_host(root: Path = Path("/")) -> HostFacts:
    """The facts about this computer. ``root`` is where ``proc`` and ``sys`` are."""

    def read(path: str) -> str:
        return _read(root / path.lstrip("/"))

    info = read("/proc/cpuinfo")
    machine = platform.machine()
    flags = frozenset((_field(info, "flags") or _field(info, "Features")).split())
    isa, features = choose_isa(machine, flags)
    caches = data_caches(read, cpu=0)
    l1, l2 = (caches.get(level, Cache()) for level in (1, 2))
    cpus = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else (0,)
    return HostFacts(
        machine=machine,
        isa=isa,
        features=features,
        core=core_name(machine, isa),
        cores=len(cpus),
        clock_mhz=round(float(_field(info, "cpu MHz") or 0)),
        l1_bytes=_clamp(l1.size or 32 * 1024, _L1_RANGE),
        l1_ways=l1.ways or 8,
        l2_bytes=_clamp(l2.size or 512 * 1024, _L2_RANGE),
        ram_bytes=memory_bytes(read("/proc/meminfo")).get("MemTotal", 0),
        cpus=cpus,
    )


def choose_isa(machine: str, flags: frozenset[str]) -> tuple[Isa, tuple[str, ...]]:
    """The widest instruction set that the CPU flags allow, and the flags it needs or can use."""
    if machine in ("x86_64", "AMD64"):
        if flags >= _AVX512 | _AVX2:
            return "avx512", tuple(sorted(_AVX512 | _AVX2 | (flags & _AVX512_MORE)))
        if flags >= _AVX2:
            return "avx2", tuple(sorted(_AVX2))
    if machine in ("aarch64", "arm64"):
        return "neon", ("asimd",)  # every ARMv8-A core that runs Linux has it
    if architecture(machine) == "arm" and flags >= _ARMV7:
        return "neon_armv7", tuple(sorted(_ARMV7))
    return "scalar", ()


def architecture(machine: str) -> str:
    """A kernel's name of an architecture as compiler triples spell it: "armv7l" is "arm"."""
    return _ARCHITECTURES.get(machine, machine)


def host_runs(isa: Isa) -> bool:
    """Whether this computer has the instruction set."""
    here = detect_host().isa
    return isa in ("scalar", here) or (isa, here) == ("avx2", "avx512")


def core_name(machine: str, isa: Isa) -> str:
    """What reports call a core of which no more is known than its instruction set."""
    if machine in ("x86_64", "AMD64"):
        return {"avx512": "x86-64-v4", "avx2": "x86-64-v3"}.get(isa, "x86-64")
    return machine or "generic"


def _field(cpuinfo: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return found[1] if found else ""


def _clamp(value: int, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], value))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
