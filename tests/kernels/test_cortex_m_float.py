"""float32 kernels on emulated Cortex-M cores: every template, and the register tile in assembly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cortex_m_runs import CC, MACHINES, cortex_m
from kernels import test_conv_variants, test_recurrent
from kernels.harness import Case, build, check_cases, conv_case, matmul_case, run_cases
from kernels.reductions import check_statement, reduction
from kernels.test_kernels import all_cases, remainder_cases, with_sampled_knobs

from aotgen.schedule.base import Config
from aotgen.schedule.conv.conv2d_direct import Conv2dDirect
from aotgen.schedule.conv.conv2d_pointwise import Conv2dPointwise
from aotgen.schedule.dense import cortex_m_tile
from aotgen.schedule.dense.cortex_m_tile import MAX_SUMS, UNROLL, asm_tile, step_instructions
from aotgen.schedule.dense.matmul_gemm import MatmulGemm
from aotgen.schedule.dense.tiles import tiles
from aotgen.target.board import load_board
from aotgen.target.target import Target

DIRECT, POINTWISE, GEMM = Conv2dDirect(), Conv2dPointwise(), MatmulGemm()
CORES = [
    "m4",
    pytest.param("m7", marks=pytest.mark.slow),
    "m55",
]
BATCH = 40
"""Cases of one program: their tensors fit the board's memory together."""


def target_of(core: str) -> Target:
    return load_board(MACHINES[core]).target()


@pytest.mark.parametrize("core", CORES)
def test_every_template_matches_float64(core: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    made = all_cases() + remainder_cases()[::2]
    for at in range(0, len(made), BATCH):
        some = made[at : at + BATCH]
        check_cases(some, m.target, tmp_path, cc=CC, extra=m.flags, emulator=m.emulator)


@pytest.mark.parametrize("core", CORES)
def test_other_convolutions_and_recurrent_layers(core: str, tmp_path: Path) -> None:
    """Transposed ones, those of groups and of few channels."""
    m = cortex_m(core)
    made = [*test_conv_variants.all_cases(m.target), *test_recurrent.all_cases()]
    for at in range(0, len(made), BATCH):
        some = made[at : at + BATCH]
        check_cases(some, m.target, tmp_path, cc=CC, extra=m.flags, emulator=m.emulator)


@pytest.mark.parametrize("core", CORES)
def test_sampled_knobs_compute_the_same(core: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    made = with_sampled_knobs(all_cases(), m.target, np.random.default_rng(5))
    assert len(made) > 30
    for at in range(0, len(made), BATCH):
        some = made[at : at + BATCH]
        check_cases(some, m.target, tmp_path, cc=CC, extra=m.flags, emulator=m.emulator)


def knobs(case: Case, target: Target, **changed: int) -> Case:
    """``case`` with these knobs."""
    config = Config.of(**{**case.template.default(case.group, target).as_dict(), **changed})
    text = ", ".join(f"{k} {v}" for k, v in changed.items())
    return replace(case, name=f"{case.name}, {text}", config=lambda _: config)


def tile_cases(target: Target) -> list[Case]:
    """Every size of tile, reductions with and without a rest, with one to three loops, and those
    that the C tile takes: passes, steps between inputs.
    """
    vl, made = target.vl, []
    for pixels, vectors in tiles(target):
        case = conv_case("size", POINTWISE, (1, 3, pixels, 7), vectors * vl + vl, (1, 1),
                         relu=True, add=True, seed=pixels)  # fmt: skip
        made.append(knobs(case, target, mr=pixels, nr=vectors * vl))
    mr, nr = (3, 8) if vl == 4 else (4, 6)
    for channels in (1, 2, 3, 4, 5, 6, 9, 14, 30):
        for gap, bias in ((0, True), (3, False)):
            case = conv_case(f"{channels} deep", POINTWISE, (1, 5, 7, channels), 20, (1, 1),
                             gap=gap, bias=bias, seed=channels)  # fmt: skip
            made += [knobs(case, target, mr=mr, nr=nr), knobs(case, target, mr=1, nr=nr)]
    pads = (1, 1, 1, 1)
    taps = conv_case("rows", DIRECT, (1, 9, 14, 20), 28, (3, 3), pads=pads, strides=(2, 2))
    far = conv_case("dilated", DIRECT, (2, 9, 14, 13), 28, (3, 3), pads=(2, 2, 2, 2),
                    dilations=(2, 2), relu=True, bias=False)  # fmt: skip
    three = conv_case("3-D", DIRECT, (1, 4, 6, 7, 8), 24, (3, 3, 3), pads=(1,) * 6, gap=1)
    wide = conv_case("wide", DIRECT, (1, 3, 4, 700), 8, (3, 1))
    for case in (taps, far, three, wide):
        made += [
            knobs(case, target, oh_tile=1, ow_tile=mr, nr=nr),
            knobs(case, target, oh_tile=1, ow_tile=2, nr=2 * vl, k_unroll=2),
            knobs(case, target, oh_tile=1, ow_tile=mr, nr=nr, oc_block=nr, kc=60),
        ]
    for m, k, n in ((1, 37, 20), (3, 64, 11), (7, 129, 24), (21, 40, 100)):
        made.append(matmul_case(f"{m} x {k} x {n}", GEMM, (m, k), (k, n)))
    return made


def run(made: Sequence[Case], core: str, folder: Path, *extra: str) -> list[bytes]:
    m = cortex_m(core)
    flags = (*m.flags, *extra)
    found = run_cases(made, m.target, folder, cc=CC, extra=flags, emulator=m.emulator)
    return [got.tobytes() for got in found]


@pytest.mark.parametrize("core", CORES)
def test_tiles_have_the_bytes_of_the_c_tile(
    core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In optimised and in unoptimised programs, and close to float64."""
    m = cortex_m(core)
    made = tile_cases(m.target)
    assert sum("__asm__" in build(c, m.target).kernel.body for c in made) > 0.75 * len(made)
    check_cases(made, m.target, tmp_path, cc=CC, extra=m.flags, emulator=m.emulator)
    got = [run(made, core, tmp_path, level) for level in ("-O0", "-O3", "-Os")]
    monkeypatch.setattr(cortex_m_tile, "asm_tile", lambda *_: None)
    want = run(made, core, tmp_path, "-O1")
    for found in got:
        assert [c.name for c, a, b in zip(made, found, want, strict=True) if a != b] == []


@pytest.mark.parametrize(
    ("core", "pixels", "vectors"),
    [("m4", 4, 6), ("m4", 6, 4), ("m4", 5, 1), ("m55", 3, 2), ("m55", 6, 1), ("m55", 2, 2)],
)
def test_model_counts_the_loop(core: str, pixels: int, vectors: int) -> None:
    """The loop that is printed has as many instructions as the cost model says, which counts a
    quarter more for each register that one loads.
    """
    target = target_of(core)
    tile = asm_tile(reduction(pixels, vectors), target)
    assert tile is not None
    lines = list(tile.lines)
    loop = lines[lines.index("1:") + 1 :]
    multiple = 0.0 if core == "m55" else UNROLL * vectors / 4
    assert len(loop) == UNROLL * step_instructions(pixels, vectors, target) - multiple


@pytest.mark.parametrize("core", ["m4", "m55"])
def test_every_tile_of_the_space_is_written(core: str) -> None:
    """Every tile that fits the registers is a statement with no more operands than GCC takes."""
    target = target_of(core)
    for pixels, vectors in tiles(target):
        for levels in (((64, 1),), ((3, 400), (65, 1)), ((3, 9000), (3, 400), (8, 1))):
            for bias in (True, False):
                tile = asm_tile(reduction(pixels, vectors, levels=levels, bias=bias), target)
                check_statement(tile, pixels, vectors, MAX_SUMS)


@pytest.mark.parametrize("core", ["m4", "m55"])
def test_what_no_statement_does(core: str) -> None:
    target = target_of(core)
    assert asm_tile(reduction(2, 2, split=0, sizes=(40, 24)), target) is None
    assert asm_tile(reduction(2, 2, levels=((64, 3),)), target) is None
    assert asm_tile(reduction(2, 2, levels=((3, 1 << 20), (8, 1))), target) is None
    assert asm_tile(reduction(16, 1), target) is None
