"""Target: the facts about a core that schedules are computed from.

A Target is what templates and plan see of a board: instruction set, vector registers, caches.
The board itself (clusters, toolchain, runner) is ``aotgen.target.board.Board``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Isa = Literal["scalar", "avx2", "avx512", "neon", "neon_armv7", "dsp", "mve"]
"""``neon`` is AArch64's, ``neon_armv7`` that of 32-bit ARM with VFPv4; ``dsp`` are Cortex-M cores
with ARMv7E-M's DSP extension (M4, M7), ``mve`` those with Helium besides (M55)."""

_VECTOR_FLOATS: dict[str, int] = {
    "scalar": 1,
    "avx2": 8,
    "avx512": 16,
    "neon": 4,
    "neon_armv7": 4,
    "dsp": 1,
    "mve": 4,
}
_VECTOR_REGISTERS: dict[str, int] = {
    "scalar": 16,
    "avx2": 16,
    "avx512": 32,
    "neon": 32,
    "neon_armv7": 16,
    "dsp": 32,
    "mve": 8,
}


@dataclass(frozen=True)
class Target:
    """One core type and what to optimise for.

    Attributes:
        isa: which ``templates/simd`` header the project gets.
        core: name of the core ("cortex-a72", "x86-64-v4"), for reports and core-specific templates.
        l1_bytes: L1 data cache of one core.
        l2_bytes: L2 cache that one core can count on.
        threads: most threads a run may use.
        optimize: what plan prefers.
        device: where kernels run.
        l1_ways: associativity of the L1 data cache.
        features: what the cores have beyond the instruction set, as /proc/cpuinfo spells it
            ("avx512_vnni").
        bare: whether it is a microcontroller: no caches to block for, and RAM is dear.
    """

    isa: Isa
    core: str = "generic"
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    threads: int = 1
    optimize: Literal["speed", "ram", "flash"] = "speed"
    device: Literal["cpu", "gpu"] = "cpu"
    l1_ways: int = 8
    features: frozenset[str] = frozenset()
    bare: bool = False

    @property
    def vl(self) -> int:
        """Floats in one vector register (VL of the simd headers)."""
        return _VECTOR_FLOATS[self.isa]

    @property
    def vector_registers(self) -> int:
        return _VECTOR_REGISTERS[self.isa]

    @property
    def align(self) -> int:
        """Bytes to which buffers, and what lies in them, are aligned: a cache line, which is at
        least the widest vector; on a microcontroller the widest load of several registers.
        """
        return 8 if self.bare else 64

    @property
    def has_neon(self) -> bool:
        """NEON, of AArch64 or ARMv7."""
        return self.isa in ("neon", "neon_armv7")

    @property
    def has_dsp(self) -> bool:
        """Products of pairs of int16 in the core's own registers: ARMv7E-M's DSP extension."""
        return self.isa in ("dsp", "mve")
