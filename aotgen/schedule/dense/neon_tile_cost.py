"""What a float32 register tile of AArch64 needs and costs: registers, instructions by tile size.

Ways to load pixels ("quads": four steps of each):

- ``ld1``: neighbouring pixels' vectors lie next to each other (blocks of four channels); one load
  brings up to four, the last one moves the pointer on.
- ``ldp``: channels-last, two quads a load; every pixel has a pointer.
- ``ldr``: channels-last, one quad a load; pixels within reach of one pointer share it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

Way = Literal["ld1", "ldp", "ldr"]

REGISTERS = 32

MAX_SUMS = 24
"""Accumulators of a tile: every one is an operand, and a statement needs up to six others."""


def registers(pixels: int, vectors: int) -> int:
    """Vector registers that a tile needs: two for weights, so that a load brings several. More than
    there are where the sums are too many for a statement.
    """
    needed = pixels * vectors + pixels + 2
    return max(needed, REGISTERS + 1) if pixels * vectors > MAX_SUMS else needed


def quad_instructions(pixels: int, vectors: int, way: Way, unroll: int = 8) -> float:
    """Instructions that four steps take, FMAs included."""
    loaded = pixels * (2 if way == "ldp" else 1)
    free = REGISTERS - pixels * vectors - loaded
    if free < 1:
        return float("inf")
    pixel_loads = {"ld1": -(-pixels // 4), "ldp": pixels / 2, "ldr": pixels}[way]
    weights = -(-4 * vectors // min(4, free))
    return 4 * pixels * vectors + pixel_loads + weights + 8 / unroll


@lru_cache(maxsize=1024)
def step_instructions(pixels: int, vectors: int, blocks: bool) -> float:
    """Instructions of one reduction step, of neighbouring pixels in blocks of channels or
    channels-last.
    """
    ways: tuple[Way, ...] = ("ld1",) if blocks else ("ldp", "ldr")
    return min(quad_instructions(pixels, vectors, way) for way in ways) / 4
