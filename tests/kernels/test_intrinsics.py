"""Intrinsic records: packing map, C text and te meaning say the same."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from aotgen.codegen.simd import simd_header
from aotgen.ir.types import DType
from aotgen.schedule.base import ScheduleError
from aotgen.schedule.dense.tiles import check_tile
from aotgen.schedule.intrinsics import (
    INTRINSICS,
    S8_SDOT,
    S8_SMULL_SMLAL,
    S8_VMULL_VMLAL,
    Intrinsic,
    intrinsics_for,
)
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
    block = np.arange(1, 8 * 15 + 1).reshape(8, 15).astype(record.dtypes[1].numpy)
    packed = record.pack(block)
    assert len(packed) == 8 * -(-15 // record.k_pack) * record.k_pack
    for n in range(8):
        for k in range(15):
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


@dataclass(frozen=True)
class Words:
    """How a program handles a record's operands: C types of a and b, and the words that load b and
    store the accumulator ``vector``.
    """

    a: str
    b: str
    vector: str
    load: str
    store: str
    needs: frozenset[str] = frozenset()


FLOATS = Words("float", "float", "vf", "vload", "vstore")
BYTES = Words("int8_t", "int8_t", "vi", "vld1q_s8", "vistore")
WORDS = {
    "f32_broadcast": FLOATS,
    "f32_by_element": FLOATS,
    "f32_splat": FLOATS,
    "s8_sdot": BYTES,
    "s8_smull_smlal": BYTES,
    "s8_vmull_vmlal": BYTES,
    "u8s8_dot4": Words(
        "uint8_t", "int8_t", "vi", "vqw_load", "vistore", frozenset({"int8", "bytes", "dot8"})
    ),
    "i16_pairs": Words("int16_t", "int8_t", "vi", "vpload_s8", "vistore", frozenset({"int8"})),
}


def program(record: Intrinsic, target: Target) -> str:
    """Two loads of a pixel and all their steps, by the record's own statements, against numpy.

    An accumulator has a channel a lane, or as many partial sums of one where its whole register is
    steps of a channel.
    """
    words, rng = WORDS[record.name], np.random.default_rng(5)
    channels = 1 if record.k_pack == 16 else target.vl
    reduction = 2 * record.steps
    low = 0 if record.dtypes[0] is DType.U8 else -100
    a = rng.integers(low, 128, reduction)
    b = rng.integers(-127, 128, (channels, reduction))
    lines = []
    for at in range(0, reduction, record.steps):
        names = {"a": f"a + {at}", "element": f"a[{at}]", "v": f"v{at}", "set": "vqa_set1"}
        lines.append(record.load.format(**names))
        for lane in range(record.steps // record.k_pack):
            k = at + lane * record.k_pack
            if record.splat:
                names["s"] = f"s{k}"
                lines.append(record.splat_text(f"s{k}", f"v{at}", lane))
            weights = f"{words.load}(b + {record.packed_at(0, k, channels)})"
            lines.append(record.fma.format(acc="acc", b=weights, lane=lane, **names))
    body = "\n    ".join(lines)
    packed = record.pack(b.astype(record.dtypes[1].numpy))
    numbers = [", ".join(str(int(v)) for v in values) for values in (a, packed, b @ a)]
    total = "got = 0; for (int i = 0; i < VL; i++) got += y[i];" if channels == 1 else "got = y[n];"
    element = "float" if words.vector == "vf" else "int32_t"
    return f"""{simd_header(target.isa, words.needs)}
static const {words.a} a[] = {{{numbers[0]}}};
static const {words.b} b[] = {{{numbers[1]}}};
static const int32_t want[] = {{{numbers[2]}}}; /* small enough to be exact in float, too */
int main(void) {{
    {element} y[VL], got;
    int bad = 0;
    {words.vector} acc = {"vzero()" if element == "float" else "viset1(0)"};
    {body}
    {words.store}(y, acc);
    for (int n = 0; n < {channels}; n++) {{
        {total}
        bad += got != ({element})want[n];
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
    board = load_board("rpi5" if record.features else BOARDS[isa])
    compiler = f"{board.triple}-gcc" if board.triple else "gcc"
    require_tool(compiler, *board.emulator[:1])
    target = board.target()
    assert record.fits(target)
    (tmp_path / "a.c").write_text(program(record, target))
    flags = ["-std=c99", "-O2", *board.cflags("gcc")]
    subprocess.run([compiler, *flags, "a.c", "-o", "a"], cwd=tmp_path, check=True)
    assert subprocess.run([*board.emulator, str(tmp_path / "a")]).returncode == 0


def test_a_feature_is_part_of_what_fits() -> None:
    plain, dotprod = Target("neon"), Target("neon", features=frozenset({"asimddp"}))
    assert intrinsics_for(plain, S8_SDOT.dtypes) == [S8_SMULL_SMLAL]
    assert intrinsics_for(dotprod, S8_SDOT.dtypes) == [S8_SDOT, S8_SMULL_SMLAL]
    assert intrinsics_for(Target("neon_armv7"), S8_SDOT.dtypes) == [S8_VMULL_VMLAL]
