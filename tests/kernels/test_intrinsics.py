"""Intrinsic records: packing map, C text and te meaning say the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from aotgen.codegen.environment import render
from aotgen.schedule.base import ScheduleError
from aotgen.schedule.intrinsics import INTRINSICS, Intrinsic, intrinsics_for
from aotgen.schedule.tiles import check_tile
from aotgen.target.board import load_board
from aotgen.target.target import Target
from support import require_tool

BOARDS = {
    "scalar": "host-scalar",
    "avx2": "host-avx2",
    "neon": "rpi4",
    "neon_armv7": "rpi3b-armv7",
}


@pytest.mark.parametrize("record", INTRINSICS, ids=lambda r: r.name)
def test_packing_map_is_what_pack_does(record: Intrinsic) -> None:
    block = np.arange(1, 8 * 12 + 1, dtype=np.float32).reshape(8, 12)
    packed = record.pack(block)
    for n in range(8):
        for k in range(12):
            assert packed[record.packed_at(n, k, 8)] == block[n, k]


def test_every_isa_has_a_record() -> None:
    for isa in ("scalar", "avx2", "avx512", "neon", "neon_armv7"):
        assert intrinsics_for(Target(isa), INTRINSICS[0].dtypes)


def test_tiles_fit_the_registers_of_armv7() -> None:
    """Sixteen: accumulators, weights, a load of each pixel, and one splat."""
    target = Target("neon_armv7")
    assert target.vector_registers == 16
    check_tile(3, 3, target, lane_step=True)
    with pytest.raises(ScheduleError, match="needs 18 registers of 16"):
        check_tile(5, 2, target, lane_step=True)
    check_tile(5, 2, Target("neon"), lane_step=True)


@pytest.mark.parametrize("record", INTRINSICS, ids=lambda r: r.name)
def test_te_meaning_is_a_dot_product(record: Intrinsic) -> None:
    meaning = record.semantics(8, 12)
    assert meaning.shape == (8,) and meaning.dtype is record.dtypes[2]


def program(record: Intrinsic) -> str:
    """Sums steps of a[] times b[][VL] with the record's own statements."""
    lines = []
    for at in range(0, 8, record.steps):
        names = {"a": f"a + {at}", "element": f"a[{at}]", "v": f"v{at}"}
        lines.append(record.load.format(**names))
        for lane in range(record.steps):
            if record.splat:
                lines.append(record.splat_text(f"s{at + lane}", f"v{at}", lane))
                names["s"] = f"s{at + lane}"
            b = f"vload(b + {(at + lane)} * VL)"
            lines.append(record.fma.format(acc="acc", b=b, lane=lane, **names))
    body = "\n    ".join(lines)
    return f"""#include "simd.h"
#include <stdio.h>
int main(void) {{
    float a[8], b[8 * VL], y[VL];
    int bad = 0;
    for (int k = 0; k < 8; k++) {{
        a[k] = (float)(k + 1);
        for (int n = 0; n < VL; n++) b[k * VL + n] = (float)(n - 3 * k);
    }}
    vf acc = vzero();
    {body}
    vstore(y, acc);
    for (int n = 0; n < VL; n++) {{
        float want = 0.0f;
        for (int k = 0; k < 8; k++) want += a[k] * b[k * VL + n];
        bad += y[n] != want; /* small integers: exact */
    }}
    return bad;
}}
"""


@pytest.mark.parametrize("isa", BOARDS)
@pytest.mark.parametrize("record", INTRINSICS, ids=lambda r: r.name)
def test_statements_compute_it(record: Intrinsic, isa: str, tmp_path: Path) -> None:
    if isa not in record.isas:
        assert not record.fits(Target(isa))  # type: ignore[arg-type]
        return
    board = load_board(BOARDS[isa])
    compiler = f"{board.triple}-gcc" if board.triple else "gcc"
    require_tool(compiler, *board.emulator[:1])
    (tmp_path / "simd.h").write_text(render(f"simd/{isa}.h.j2", math=[]))
    (tmp_path / "a.c").write_text(program(record))
    flags = ["-std=c99", "-O2", *board.cflags("gcc")]
    subprocess.run([compiler, *flags, "a.c", "-o", "a"], cwd=tmp_path, check=True)
    assert subprocess.run([*board.emulator, str(tmp_path / "a")]).returncode == 0
