"""Reductions for the writers of register tiles in assembly, and what holds of any statement."""

from __future__ import annotations

from dataclasses import replace

from aotgen.schedule.dense.asm_tile import MAX_OPERANDS, AsmTile, Reduction


def reduction(pixels: int, vectors: int, step: int = 64, **changed: object) -> Reduction:
    """64 products a sum of ``pixels`` that are ``step`` bytes apart and ``vectors`` of weights;
    ``changed`` replaces any field.
    """
    made = Reduction(
        offsets=tuple(step * i for i in range(pixels)),
        vectors=vectors,
        levels=((64, 1),),
        split=None,
        sizes=(),
        unroll=8,
        overread=False,
        bias=True,
        lines=0,
        ahead=0,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def check_statement(tile: AsmTile | None, pixels: int, vectors: int, most_sums: int) -> None:
    """It is there, keeps a sum for each pixel and vector, and has no more operands than GCC takes,
    which counts those twice that are read and written.
    """
    assert tile is not None, (pixels, vectors)
    written = sum('"+' in o for o in tile.outputs)
    assert len(tile.outputs) + written + len(tile.inputs) <= MAX_OPERANDS
    assert len(tile.sums) == pixels * vectors <= most_sums
