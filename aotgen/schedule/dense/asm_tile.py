"""The reduction of a float32 register tile as one asm statement, whatever core it is for: what it
sums over, and what the templates print of it. ``neon_tile`` and ``cortex_m_tile`` write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_OPERANDS = 30
"""Of an asm statement in GCC; one that is read and written counts twice."""


@dataclass(frozen=True)
class Reduction:
    """What a tile sums over.

    Attributes:
        offsets: floats from the tile's first input to each pixel's.
        vectors: of output channels.
        levels: (steps, stride of x in floats) of all loops, innermost last, stride 1.
        split: index of the loop whose number of steps is known at run time only; None: none.
        sizes: the numbers of steps that the loop ``split`` may have.
        unroll: steps a round.
        overread: three floats behind any that is read may be read, too.
        bias: whether accumulators start at a bias.
        lines: cache lines of weights to come that a round prefetches.
        ahead: floats that weights are prefetched ahead into L1; 0 for not.
        counted: whether the rounds of the outermost loop are an argument, ``taps``.
        skipped: weights, in floats, that each of its rounds leaves out.
    """

    offsets: tuple[int, ...]
    vectors: int
    levels: tuple[tuple[int, int], ...]
    split: int | None
    sizes: tuple[int, ...]
    unroll: int
    overread: bool
    bias: bool
    lines: int
    ahead: int
    counted: bool = False
    skipped: int = 0


@dataclass(frozen=True)
class AsmTile:
    """The statement.

    Attributes:
        lines: instructions.
        sums: (pixel, vector, register) of every accumulator.
        outputs, inputs: operands, C text.
        clobbers: registers.
        zeros: floats of the constant that accumulators start at where a first pass has no bias; 0
            where none is needed.
        rounds: C text of the loop count operand, empty when there is none.
        step: (first pass, later passes): bytes from the last vectors that a pixel's accumulators
            start at to the next pixel's first; None where there are no passes.
        prefetching: rounds of one call (of the larger size, where it has two) that prefetch.
    """

    lines: tuple[str, ...]
    sums: tuple[tuple[int, int, str], ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    clobbers: tuple[str, ...]
    zeros: int
    rounds: str
    step: tuple[int, int] | None
    prefetching: int


def context(tile: AsmTile) -> dict[str, Any]:
    """What ``templates/kernels/tile.c.j2`` reads."""
    return {
        "lines": tile.lines,
        "sums": [{"pixel": i, "vector": n, "register": v} for i, n, v in tile.sums],
        "outputs": tile.outputs,
        "inputs": tile.inputs,
        "clobbers": tile.clobbers,
        "zeros": tile.zeros,
        "rounds": tile.rounds,
        "step": tile.step,
    }
