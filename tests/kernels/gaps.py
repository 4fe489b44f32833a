"""Checks that kernels write nothing between the pixels of a view with gaps."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kernels.harness import UNTOUCHED, Case, build, compile_program, write_blocks

from aotgen.target.target import Target


def check_gaps(cases: Sequence[Case], target: Target, folder: Path) -> None:
    """Run the cases, and look at all of their outputs' memory beside the outputs."""
    built = [build(c, target) for c in cases]
    exe = compile_program(built, target, folder, "gcc", ("-O1",))
    write_blocks(built, folder / "in.bin")
    subprocess.run([str(exe), str(folder / "in.bin"), str(folder / "out.bin")], check=True)
    raw = np.fromfile(folder / "out.bin", np.float32)
    at = 0
    for b in built:
        block = next(x for x in b.blocks if x.output)
        data = raw[at : at + block.data.size].copy()
        at += block.data.size
        strides = [4 * s for s in b.out_view.strides]
        inside = np.lib.stride_tricks.as_strided(data[block.start :], b.out_view.shape, strides)
        inside[...] = UNTOUCHED
        assert (data == UNTOUCHED).all(), b.case.name
