"""CPU cores by the numbers that /proc/cpuinfo gives them, and what is known about each.

Part numbers are those of Arm's and Qualcomm's MIDR_EL1 registers. Caches are the usual ones of the
boards that have the core, for kernels that do not tell. Operations per cycle follow from the widths
of the vector units in Arm's software optimisation guides; 0 where these are not clear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Core:
    """A kind of core.

    Attributes:
        name: as compilers spell it.
        l1_bytes: usual L1 data cache.
        l1_ways: its associativity.
        l2_bytes: usual L2 cache.
        flops_per_cycle: float32 operations, a multiply-add being two; 0 when not known.
        int8_ops_per_cycle: the same for int8 products summed in int32.
        compilers_know: whether GCC 10 and clang 12 take it in -mcpu.
    """

    name: str
    l1_bytes: int = 32 << 10
    l1_ways: int = 4
    l2_bytes: int = 512 << 10
    flops_per_cycle: int = 0
    int8_ops_per_cycle: int = 0
    compilers_know: bool = True


UNKNOWN = Core("generic", compilers_know=False)

_ARM = {
    0xC05: Core("cortex-a5"),
    0xC07: Core("cortex-a7"),
    0xC08: Core("cortex-a8", l2_bytes=256 << 10),
    0xC09: Core("cortex-a9"),
    0xC0D: Core("cortex-a12"),
    0xC0E: Core("cortex-a17", flops_per_cycle=8, int8_ops_per_cycle=16),
    0xC0F: Core("cortex-a15", 32 << 10, 2, 1 << 20, 8, 16),
    0xD03: Core("cortex-a53", flops_per_cycle=8, int8_ops_per_cycle=16),
    0xD04: Core("cortex-a35"),
    0xD05: Core("cortex-a55", l2_bytes=128 << 10, flops_per_cycle=8, int8_ops_per_cycle=32),
    0xD07: Core("cortex-a57", 32 << 10, 2, 1 << 20, 8, 16),
    0xD08: Core("cortex-a72", 32 << 10, 2, 1 << 20, 8, 16),
    0xD09: Core("cortex-a73", 64 << 10, 16, 1 << 20, 8, 16),
    0xD0A: Core("cortex-a75", 64 << 10, 16, 256 << 10),
    0xD0B: Core("cortex-a76", 64 << 10, 4, 512 << 10, 16, 64),
    0xD0C: Core("neoverse-n1", 64 << 10, 4, 1 << 20, 16, 64),
    0xD0D: Core("cortex-a77", 64 << 10, 4, 512 << 10, 16, 64),
    0xD0E: Core("cortex-a76ae", 64 << 10, 4, 512 << 10, 16, 64),
    0xD40: Core("neoverse-v1", 64 << 10, 4, 1 << 20, 32, 128),
    0xD41: Core("cortex-a78", 64 << 10, 4, 512 << 10, 16, 64, compilers_know=False),
    0xD42: Core("cortex-a78ae", 64 << 10, 4, 512 << 10, 16, 64, compilers_know=False),
    0xD44: Core("cortex-x1", 64 << 10, 4, 1 << 20, 32, 128, compilers_know=False),
    0xD46: Core("cortex-a510", compilers_know=False),
    0xD47: Core("cortex-a710", 64 << 10, 4, 512 << 10, 16, 64, compilers_know=False),
    0xD48: Core("cortex-x2", 64 << 10, 4, 1 << 20, 32, 128, compilers_know=False),
    0xD49: Core("neoverse-n2", 64 << 10, 4, 1 << 20, 16, 64, compilers_know=False),
    0xD4B: Core("cortex-a78c", 64 << 10, 4, 512 << 10, 16, 64, compilers_know=False),
    0xD4D: Core("cortex-a715", 64 << 10, 4, 512 << 10, 16, 64, compilers_know=False),
    0xD4E: Core("cortex-x3", 64 << 10, 4, 1 << 20, 32, 128, compilers_know=False),
    0xD4F: Core("neoverse-v2", 64 << 10, 4, 2 << 20, 32, 128, compilers_know=False),
    0xD80: Core("cortex-a520", compilers_know=False),
    0xD81: Core("cortex-a720", 64 << 10, 4, 512 << 10, 16, 64, compilers_know=False),
    0xD82: Core("cortex-x4", 64 << 10, 4, 2 << 20, compilers_know=False),
}

# Kryo cores are Arm's with small changes.
_QUALCOMM = {
    0x800: _ARM[0xD09],
    0x801: _ARM[0xD03],
    0x802: _ARM[0xD0A],
    0x803: _ARM[0xD05],
    0x804: _ARM[0xD0B],
    0x805: _ARM[0xD05],
}

_PARTS = {0x41: _ARM, 0x51: _QUALCOMM}


def core_of(implementer: int, part: int) -> Core:
    """The core with these numbers; ``UNKNOWN`` when it is none of the table."""
    return _PARTS.get(implementer, {}).get(part, UNKNOWN)


GCC_PAIRS = (
    "cortex-a57.cortex-a53",
    "cortex-a72.cortex-a53",
    "cortex-a73.cortex-a53",
    "cortex-a73.cortex-a35",
    "cortex-a75.cortex-a55",
    "cortex-a76.cortex-a55",
)
"""Mixed clusters that GCC has an -mcpu for: the instructions of both, scheduled for the big one."""

_COMPAT = frozenset({"neon", "vfpv4", "idiva", "idivt", "vfpv3"})


def features_seen_by(machine: str, flags: Sequence[str]) -> frozenset[str]:
    """What a program for ``machine`` may use, of the flags that the kernel prints.

    A 64-bit ARM kernel prints the names of 64-bit mode also for its 32-bit programs.
    """
    found = frozenset(flags)
    return found | _COMPAT if machine == "arm" and "asimd" in found else found
