"""The register tile of AArch64 in assembly: tails, strides, passes, and that it reads only its
operands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels.harness import Case, build, check_cases, conv_case, matmul_case, run_cases
from kernels.reductions import check_statement, reduction
from kernels.test_kernels import target_of

import aotgen.schedule.dense.tile as dense_tile
from aotgen.schedule.base import Config, ScheduleError
from aotgen.schedule.conv.conv2d_depthwise import Conv2dDepthwise
from aotgen.schedule.conv.conv2d_direct import Conv2dDirect
from aotgen.schedule.conv.conv2d_pointwise import Conv2dPointwise
from aotgen.schedule.dense.matmul_gemm import MatmulGemm
from aotgen.schedule.dense.neon_tile import asm_tile
from aotgen.schedule.dense.neon_tile_cost import MAX_SUMS, Way, quad_instructions
from aotgen.schedule.dense.tiles import tiles
from aotgen.schedule.layouts import with_layouts
from aotgen.target.board import load_board
from support import halves, require_tool, share

DIRECT, POINTWISE, GEMM = Conv2dDirect(), Conv2dPointwise(), MatmulGemm()
DEPTHWISE = Conv2dDepthwise()
TARGET = target_of("neon")

GUARD = r"""
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
/* Pages that cannot be read lie right before a block (BEFORE), or right behind it. */
static int guarded(void **p, size_t align, size_t bytes) {
    const size_t page = 4096, whole = (bytes + page - 1) / page * page;
    char *at = mmap(NULL, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)align;
    if (at == MAP_FAILED || mprotect(at + page, whole, PROT_READ | PROT_WRITE)) return 1;
#ifdef BEFORE
    *p = at + page;
#else
    *p = at + page + whole - bytes;
#endif
    return 0;
}
#define posix_memalign guarded
#define free(p) ((void)(p))
"""


def knobs(case: Case, layouts: bool = False, **changed: int) -> Case:
    """``case`` with these knobs, in blocks of channels with ``layouts``."""

    def config() -> Config:
        found = case.template.default(case.group, TARGET).as_dict()
        made = Config.of(**{**found, **changed})
        return with_layouts(made, "nchwc", "nchwc") if layouts else made

    text = ", ".join(f"{k} {v}" for k, v in changed.items())
    name = f"{case.name}, {text}{', blocks' if layouts else ''}"
    return replace(case, name=name, config=lambda _: config())


def fits(case: Case) -> bool:
    assert case.config is not None
    try:
        case.template.check(case.group, TARGET, case.config(TARGET))
    except ScheduleError:
        return False
    return True


def cases() -> list[Case]:
    made = []
    for channels in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 30):
        for gap in (0, 3):
            case = conv_case(f"{channels} deep", POINTWISE, (1, 5, 7, channels), 20, (1, 1),
                             gap=gap, seed=channels)  # fmt: skip
            made += [knobs(case, mr=7, nr=12), knobs(case, mr=5, nr=8, k_unroll=4)]
    for mr, nr in ((15, 4), (10, 8), (9, 8), (6, 16), (5, 16), (4, 24), (3, 32), (2, 32), (1, 32)):
        case = conv_case("size", POINTWISE, (1, 6, 7, 44), 76, (1, 1), relu=True, add=True)
        made += [knobs(case, mr=mr, nr=nr), knobs(case, True, mr=mr, nr=nr)]
    for bias in (True, False):
        wide = conv_case("passes", POINTWISE, (1, 4, 7, 200), 48, (1, 1), bias=bias)
        for kc in (40, 48, 56, 100, 104):
            for mr, nr in ((4, 24), (7, 12), (8, 8)):
                for lines in (0, 1, 2):
                    made.append(knobs(wide, lines == 2, mr=mr, nr=nr, oc_block=nr, kc=kc,
                                      next_lines=lines))  # fmt: skip
    odd = conv_case("odd passes", POINTWISE, (1, 4, 7, 203), 40, (1, 1), gap=1)
    made.append(knobs(odd, mr=7, nr=12, oc_block=12, kc=64, next_lines=1))
    made.append(knobs(odd, mr=7, nr=12, oc_block=12, next_lines=1, prefetch_bytes=512))
    taps = conv_case("rows", DIRECT, (1, 9, 14, 20), 28, (3, 3), pads=(1, 1, 1, 1))
    far = conv_case("dilated", DIRECT, (1, 9, 14, 12), 28, (3, 3), pads=(2, 2, 2, 2),
                    dilations=(2, 2), relu=True)  # fmt: skip
    three = conv_case("3-D", DIRECT, (1, 4, 6, 7, 8), 24, (3, 3, 3), pads=(1,) * 6)
    for case in (taps, far, three):
        for oh, ow, nr in ((1, 7, 12), (1, 4, 24), (2, 7, 4)):
            made.append(knobs(case, oh_tile=oh, ow_tile=ow, nr=nr))
            made.append(knobs(case, True, oh_tile=oh, ow_tile=ow, nr=nr))
            made.append(knobs(case, oh_tile=oh, ow_tile=ow, nr=nr, oc_block=nr, kc=60))
    for m, k, n in ((1, 37, 20), (3, 64, 11), (7, 129, 24), (21, 40, 100)):
        made.append(matmul_case(f"{m} x {k} x {n}", GEMM, (m, k), (k, n)))
    for kernel, stride, dilation, channels in (
        (3, 1, 1, 24), (3, 2, 1, 24), (3, 1, 2, 12), (5, 1, 1, 10), (5, 2, 1, 7), (3, 3, 1, 8)
    ):  # fmt: skip
        case = conv_case("depthwise", DEPTHWISE, (1, 19, 17, channels), channels,
                         (kernel, kernel), strides=(stride, stride), groups=channels,
                         dilations=(dilation, dilation), pads=(2, 2, 2, 2), relu=True)  # fmt: skip
        for h, w in ((7, 8), (14, 4), (16, 1), (1, 8), (5, 3)):
            tile = knobs(case, channels == 24, oh_tile=h, ow_tile=w)
            if fits(tile):
                made.append(tile)
    return made


def run_arm(made: Sequence[Case], folder: Path, cc: str, *extra: str) -> list[np.ndarray]:
    board = load_board("rpi4")
    compiler = f"{board.triple}-gcc" if cc == "gcc" else "clang"
    require_tool(compiler, f"{board.triple}-gcc", board.emulator[0])
    more = [f"--target={board.triple}"] if cc == "clang" else []
    return run_cases(
        made, TARGET, folder, cc=compiler, emulator=board.emulator, extra=[*more, *extra]
    )


def test_values(tmp_path: Path) -> None:
    board = load_board("rpi4")
    require_tool(f"{board.triple}-gcc", board.emulator[0])
    made = cases()
    dense = [c for c in made if c.template is not DEPTHWISE]
    assert sum("__asm__" in build(c, TARGET).kernel.body for c in dense) > 0.9 * len(dense)
    check_cases(
        made, TARGET, tmp_path, cc=f"{board.triple}-gcc", emulator=board.emulator, extra=("-O2",)
    )


@pytest.fixture(scope="module")
def c_tile(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Case], list[np.ndarray]]:
    """Half of the dense cases, and their results by C alone."""
    made = [c for c in cases() if c.template is not DEPTHWISE][::2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_tile, "asm_tile", lambda _: None)
        return made, run_arm(made, tmp_path_factory.mktemp("c_tile"), "gcc", "-O1")


@pytest.mark.parametrize(
    "cc, level",
    [("clang", "-O2"), ("gcc", "-O0"), pytest.param("clang", "-O0", marks=pytest.mark.slow)],
)
def test_bytes_are_those_of_the_c_tile(
    cc: str, level: str, c_tile: tuple[list[Case], list[np.ndarray]], tmp_path: Path
) -> None:
    made, want = c_tile
    got = run_arm(made, tmp_path, cc, level)
    different = [
        c.name for c, a, b in zip(made, got, want, strict=True) if a.tobytes() != b.tobytes()
    ]
    assert not different


@pytest.mark.parametrize(("side", "part"), halves("BEFORE", "BEHIND"))
def test_reads_nothing_outside_its_operands(side: str, part: int, tmp_path: Path) -> None:
    (tmp_path / "guard.h").write_text(GUARD)
    run_arm(
        share(cases(), part),
        tmp_path,
        "gcc",
        "-O1",
        "-include",
        str(tmp_path / "guard.h"),
        f"-D{side}",
    )


@pytest.mark.parametrize(
    "pixels, vectors, way", [(7, 3, "ldr"), (7, 2, "ldp"), (4, 5, "ldp"), (7, 3, "ld1")]
)
def test_model_counts_the_loop(pixels: int, vectors: int, way: Way) -> None:
    """The loop that is printed has as many instructions as the cost model says."""
    blocks = {"levels": ((64, 4 * 49), (4, 1))} if way == "ld1" else {}
    tile = asm_tile(reduction(pixels, vectors, 4 if way == "ld1" else 64, **blocks))
    assert tile is not None
    lines = list(tile.lines)
    loop = lines[lines.index("1:") + 1 : lines.index("b.ne 1b") + 1]
    assert len(loop) == 2 * quad_instructions(pixels, vectors, way)


def test_every_tile_of_the_space_is_written() -> None:
    """Every tile that fits the registers is a statement with no more operands than GCC takes."""
    for pixels, vectors in tiles(TARGET, lane_step=True):
        for step in (4, 48, 49):
            passes = {"split": 0, "sizes": (40, 24), "lines": 1}
            for more in ({}, passes):
                tile = asm_tile(reduction(pixels, vectors, step, **more))
                check_statement(tile, pixels, vectors, MAX_SUMS)


def test_a_depthwise_tile_keeps_few_sums() -> None:
    """Sliding down its rows, a tile of 7 x 8 outputs of a 3x3 filter has those of two rows and a
    few of the next at a time.
    """
    case = conv_case("dw", DEPTHWISE, (1, 14, 16, 8), 8, (3, 3), groups=8, pads=(1, 1, 1, 1))
    body = build(knobs(case, oh_tile=7, ow_tile=8), TARGET).kernel.body
    tile = body[: body.index("static void @KERNEL@(")]
    events = re.findall(r"vf acc\d+ = |vstore\(", tile)
    live = most = 0
    for event in events:
        live += -1 if event == "vstore(" else 1
        most = max(most, live)
    assert live == 0 and len(events) == 2 * 56
    assert most == 2 * 8 + 3
