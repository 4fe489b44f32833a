"""The MVE kernels of 8-bit integers: byte for byte numpy's semantics, on an emulated Cortex-M55."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cortex_m_runs import CC, cortex_m
from kernels import integer_harness
from kernels.integer_cases import Cases, qconv_case, qmatmul_case
from kernels.integer_harness import IntegerCase, check

from aotgen.schedule.base import Config, ScheduleError
from aotgen.schedule.int8.mve.dense import Int8MveDense
from aotgen.schedule.intrinsics import S8_VMLADAV
from aotgen.target.target import Target

DENSE = Int8MveDense()


def dense_cases() -> list[IntegerCase]:
    cases = Cases(DENSE)
    conv, matmul = cases.conv, cases.matmul

    scalings: dict[str, dict] = {
        "plain": {},
        "ties": {"ties": True},
        "left": {"left": True},
        "ties left": {"ties": True, "left": True},
        "clamp": {"clamp": (-20, 51)},
        "clamp left": {"clamp": (-128, 99), "left": True},
    }
    for name, scaling in scalings.items():
        conv(f"1x1 {name}", (1, 7, 7, 32), 24, (1, 1), scaling=scaling)
        conv(f"1x1 of 16 {name}", (1, 5, 7, 16), 20, (1, 1), scaling=scaling)
        conv(f"1x1 of 48 {name}", (1, 5, 7, 48), 10, (1, 1), scaling=scaling)
        conv(f"few products {name}", (1, 9, 9, 4), 24, (1, 1), scaling=scaling)
        conv(f"3x3 {name}", (1, 9, 8, 16), 18, (3, 3), pads=(1, 1, 1, 1), scaling=scaling)
        conv(f"one scale {name}", (1, 4, 5, 8), 9, (2, 2), per_channel=False, scaling=scaling)
        conv(f"1x1 image {name}", (1, 1, 1, 48), 21, (1, 1), scaling=scaling)
        matmul(f"row {name}", (1, 37), 21, scaling=scaling)
        matmul(f"row, one scale {name}", (1, 64), 21, per_channel=False, scaling=scaling)
        matmul(f"narrow row, one scale {name}", (1, 48), 3, per_channel=False, scaling=scaling)
        matmul(f"matmul {name}", (9, 64), 32, trans_b=False, scaling=scaling)
    for depth in (1, 3, 4, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 31, 33, 48, 64, 80):
        conv(f"1x1 of {depth}", (1, 3, 5, depth), 8 + depth % 5, (1, 1))
        matmul(f"matmul of {depth}", (5, depth), 10, bias=False)
        matmul(f"row of {depth}", (1, depth), 10)
    for outputs in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 20, 28):
        conv(f"to {outputs}", (1, 4, 4, 16), outputs, (1, 1))
        matmul(f"row to {outputs}", (1, 32), outputs)
    for size in range(1, 10):
        conv(f"{size} pixels", (1, 1, size, 16), 12, (1, 1))
        conv(f"{size} pixels of 5", (1, 1, size, 5), 12, (1, 1))
        conv(f"{size} pixels, 3x3", (1, 2, size, 5), 12, (3, 3), pads=(1, 1, 1, 1))
    conv("first", (1, 15, 13, 3), 16, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("7x7", (1, 15, 14, 3), 8, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
    conv("one channel", (1, 25, 10, 1), 16, (10, 4), strides=(2, 2), pads=(4, 1, 5, 1))
    conv("valid", (1, 8, 9, 6), 16, (3, 3))
    conv("dilated", (1, 11, 12, 16), 8, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("dilated bytes", (1, 11, 12, 5), 8, (3, 3), dilations=(2, 2), pads=(2, 2, 2, 2))
    conv("dilated, valid", (1, 11, 12, 5), 8, (3, 2), dilations=(2, 3))
    conv("strided 1x1", (1, 9, 9, 16), 8, (1, 1), strides=(2, 2))
    conv("strided 1x1 of 5", (1, 9, 8, 5), 8, (1, 1), strides=(2, 3))
    conv("padded 1x1", (1, 5, 5, 16), 8, (1, 1), pads=(1, 0, 1, 2))
    conv("as wide as the image", (1, 9, 4, 5), 7, (3, 4), strides=(2, 1))
    conv("the whole image", (1, 5, 4, 7), 9, (5, 4))
    conv("a row of the kernel", (2, 5, 9, 8), 9, (1, 3))
    conv("a column of the kernel", (2, 9, 1, 8), 9, (4, 1), strides=(2, 1))
    conv("batch", (3, 5, 6, 16), 8, (3, 3), pads=(1, 1, 1, 1))
    conv("batch 1x1", (3, 5, 6, 16), 8, (1, 1))
    conv("batch strided 1x1", (3, 5, 6, 9), 8, (1, 1), strides=(2, 2))
    conv("one axis", (2, 20, 16), 12, (3,), pads=(1, 1))
    conv("one axis, valid", (2, 20, 6), 12, (3,))
    conv("one axis bytes", (1, 20, 6), 12, (5,), strides=(2,), pads=(2, 2))
    conv("groups", (1, 6, 6, 32), 24, (3, 3), groups=2, pads=(1, 1, 1, 1))
    conv("groups of 5", (1, 6, 6, 15), 21, (3, 3), groups=3, pads=(1, 1, 1, 1))
    conv("grouped 1x1", (1, 6, 5, 16), 20, (1, 1), groups=4)
    conv("grouped 1x1 image", (1, 1, 1, 12), 20, (1, 1), groups=4)
    conv("channel multiplier", (1, 6, 5, 3), 12, (3, 3), groups=3, pads=(1, 1, 1, 1))
    conv("pad more than the map", (1, 2, 2, 16), 8, (5, 5), pads=(4, 4, 4, 4))
    conv("pad more than the window", (1, 2, 3, 6), 8, (2, 2), pads=(3, 3, 3, 3))
    conv("gaps", (1, 6, 6, 16), 14, (3, 3), pads=(1, 1, 1, 1), gap=5)
    conv("gaps 1x1", (1, 6, 6, 20), 14, (1, 1), gap=3)
    conv("gaps, strided 1x1", (2, 6, 6, 20), 14, (1, 1), strides=(2, 1), gap=3)
    matmul("gaps, matmul", (7, 12), 14, gap=3)
    conv("rows apart", (1, 6, 5, 16), 14, (3, 3), pads=(1, 1, 1, 1), split_rows=True)
    conv("rows apart, batch", (2, 6, 5, 16), 14, (3, 3), pads=(1, 1, 1, 1), split_rows=True)
    conv("rows apart 1x1", (2, 6, 9, 16), 12, (1, 1), split_rows=True)
    conv("rows apart, few", (1, 6, 2, 16), 12, (1, 1), split_rows=True)
    conv("pixels far apart", (1, 3, 2, 8), 5, (1, 1), gap=66000)
    conv("pixels far apart, 3x3", (1, 3, 2, 8), 5, (3, 3), pads=(1, 1, 1, 1), gap=66000)
    conv("all -128", (1, 5, 7, 48), 12, (1, 1), extreme=True)
    for zero in (-128, 0, 127):
        conv(f"zero {zero}", (1, 5, 5, 16), 8, (3, 3), pads=(1, 1, 1, 1), zero=zero)
    for block in (2, 4, 8, 16):
        conv(f"blocks of {block}", (1, 5, 5, 16), 8, (3, 3), pads=(1, 1, 1, 1),
             config={"block_pixels": block, "in_place": 0})  # fmt: skip
    return cases.made


def in_place_cases() -> list[IntegerCase]:
    """Windows of several rows that are read where they are in the input."""
    cases = Cases(DENSE, config={"block_pixels": 2, "in_place": 1})
    conv = cases.conv

    same = {"pads": (1, 1, 1, 1)}
    for name, scaling in {
        "plain": {},
        "ties": {"ties": True},
        "left": {"left": True},
        "clamp": {"clamp": (-20, 51)},
    }.items():
        conv(f"3x3 {name}", (1, 9, 11, 16), 18, (3, 3), scaling=scaling, **same)
        conv(f"3x3 of 32 {name}", (1, 6, 13, 32), 6, (3, 3), scaling=scaling, **same)
    for channels in (1, 2, 3, 5, 6, 7, 11, 16, 19, 27, 37, 64):  # 1 to 12 steps a row
        conv(f"3x3 of {channels}", (1, 5, 41, channels), 9, (3, 3), **same)
        conv(f"3x3 of {channels}, valid", (1, 6, 34, channels), 5, (3, 3))
    for pads in ((0, 0, 1, 1), (1, 0, 0, 1), (2, 2, 2, 2), (0, 1, 0, 1), (3, 0, 0, 4)):
        conv(f"pads {pads}", (1, 8, 15, 8), 12, (3, 3), pads=pads)
        conv(f"pads {pads}, by 2", (1, 9, 15, 8), 12, (3, 3), pads=pads, strides=(2, 2))
    conv("strides apart", (1, 9, 25, 8), 12, (3, 3), strides=(1, 3), **same)
    conv("rows apart in the window", (1, 9, 12, 8), 12, (3, 3), dilations=(2, 1), **same)
    conv("5x5", (1, 9, 18, 6), 7, (5, 5), pads=(2, 2, 2, 2))
    conv("2x2", (1, 9, 18, 6), 7, (2, 2), strides=(2, 2))
    conv("1 to 8, wide", (1, 9, 40, 1), 8, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("batch", (3, 6, 11, 8), 12, (3, 3), **same)
    conv("batch, valid", (3, 6, 11, 3), 12, (3, 3))
    conv("gaps, hence copied", (1, 6, 11, 8), 12, (3, 3), gap=5, **same)
    conv("rows of outputs apart", (2, 6, 11, 8), 12, (3, 3), split_rows=True, **same)
    for zero in (-128, 0, 127):
        conv(f"zero {zero}", (1, 5, 12, 8), 8, (3, 3), zero=zero, **same)
    return cases.made


@pytest.mark.parametrize(
    ("optimize", "cut", "level"),
    (("speed", 0, "-O2"), ("speed", 3, "-Os"), ("flash", 0, "-Os"), ("flash", 3, "-O3")),
)
def test_dense(optimize: str, cut: int, level: str, tmp_path: Path) -> None:
    run(dense_cases()[:: 2 if cut else 1], optimize, cut, level, tmp_path)


@pytest.mark.parametrize(("cut", "level"), ((0, "-O1"), (3, "-O3")))
def test_dense_in_place(cut: int, level: str, tmp_path: Path) -> None:
    run(in_place_cases(), "speed", cut, level, tmp_path)


def random_cases(seed: int, count: int, target: Target) -> list[IntegerCase]:
    """Shapes, scalings, views and knobs at random."""
    rng = np.random.default_rng(seed)
    cases: list[IntegerCase] = []

    def some(*values: int) -> int:
        return int(rng.choice(values))

    while len(cases) < count:
        flags: dict[str, Any] = {"left": bool(some(0, 0, 1)), "ties": bool(some(0, 0, 1))}
        if some(0, 0, 1):
            flags["clamp"] = (some(-128, -60, 0), some(40, 127))
        more = {"seed": len(cases), "scaling": flags, "per_channel": bool(some(0, 1, 1)),
                "gap": some(0, 0, 0, 3)}  # fmt: skip
        if some(0, 0, 0, 1):
            x = (some(1, 1, 2, 5), int(rng.integers(1, 90)))
            case = qmatmul_case(f"rows {x}", DENSE, x, int(rng.integers(1, 40)), **more)
        else:
            kernel, dilation = rng.integers(1, 6, 2), rng.choice((1, 1, 1, 1, 2, 3), 2)
            pads, size = rng.choice((0, 0, 1, 1, 2, 3), 4), rng.integers(1, 15, 2)
            channels = some(1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 40)
            groups = some(1, 1, 1, *(g for g in (2, 3, 4) if channels % g == 0))
            outputs = groups * int(rng.integers(1, 12))
            if (
                size + pads[:2] + pads[2:] <= (kernel - 1) * dilation
            ).any() or 1 < groups == outputs:
                continue
            geometry = {
                "strides": tuple(rng.integers(1, 4, 2).tolist()), "pads": tuple(pads.tolist()),
                "dilations": tuple(dilation.tolist()), "groups": groups,
                "split_rows": bool(some(0, 0, 0, 0, 1)),
            }  # fmt: skip
            x = (some(1, 1, 2), *size.tolist(), channels)
            name = f"{x} by {kernel} to {outputs}, {geometry}"
            case = qconv_case(name, DENSE, x, outputs, tuple(kernel.tolist()), **geometry, **more)
        knobs = {
            k.name: k.values[int(rng.integers(len(k.values)))]
            for k in DENSE.space(case.group, target)
        }
        with contextlib.suppress(ScheduleError):
            DENSE.check(case.group, target, Config.of(**knobs))
            case.knobs = knobs  # type: ignore[assignment]
        cases.append(case)
    return cases


@pytest.mark.slow
@pytest.mark.parametrize("optimize", ("speed", "ram", "flash"))
def test_random_cases(optimize: str, tmp_path: Path) -> None:
    target = replace(cortex_m("m55").target, optimize=optimize)  # type: ignore[arg-type]
    run(random_cases(7, 120, target), optimize, 0, "-O1", tmp_path)


def test_nothing_behind_the_input_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs end where the tightly coupled memory does: a read behind them is a bus fault."""
    here = "        cases[i].run(b);\n"
    assert here in integer_harness.MAIN
    moved = """        void *const loaded = b[0];
        char *const end = (char *)0x20080000 - cases[i].bytes[0];
        for (size_t k = 0; k < cases[i].bytes[0]; k++) end[k] = ((char *)loaded)[k];
        b[0] = end;
        cases[i].run(b);
        b[0] = loaded;
"""
    monkeypatch.setattr(integer_harness, "MAIN", integer_harness.MAIN.replace(here, moved))
    run([*dense_cases(), *in_place_cases()], "speed", 0, "-O2", tmp_path)


def test_rows_are_read_in_place() -> None:
    target = cortex_m("m55").target
    for case in in_place_cases():
        name = integer_harness.build(case, target).kernel.name
        assert name.endswith("_2x4" if "copied" in case.name else "_rows_2x4"), case.name


def test_record_is_a_dot_product(tmp_path: Path) -> None:
    """The intrinsic record's C statements, for one channel of two loads, against numpy."""
    m, rng, record = cortex_m("m55"), np.random.default_rng(3), S8_VMLADAV
    a, b = rng.integers(-128, 128, (2, 2 * record.steps))
    lines = []
    for at in (0, record.steps):
        lines.append(record.load.format(v=f"v{at}", a=f"a + {at}"))
        weights = f"vldrbq_s8(b + {record.packed_at(0, at, 1)})"
        lines.append(record.fma.format(acc="acc", v=f"v{at}", b=weights))
    packed = record.pack(b.astype(np.int8)[None])
    numbers = [", ".join(str(int(v)) for v in values) for values in (a, packed)]
    source = f"""#include <arm_mve.h>
static const int8_t a[] = {{{numbers[0]}}}, b[] = {{{numbers[1]}}};
int main(void) {{
    int32_t acc = 0;
    {" ".join(lines)}
    return acc != {int(a @ b)};
}}
"""
    (tmp_path / "a.c").write_text(source)
    exe = str(tmp_path / "a")
    subprocess.run([CC, *m.flags, str(tmp_path / "a.c"), "-o", exe], check=True)
    assert subprocess.run([*m.emulator, exe]).returncode == 0


def run(cases: list[IntegerCase], optimize: str, cut: int, level: str, folder: Path) -> None:
    m = cortex_m("m55")
    target = replace(m.target, optimize=optimize)  # type: ignore[arg-type]
    flags = [*m.flags, level]
    check(cases, target, folder, cc=CC, flags=flags, emulator=m.emulator, cut=cut)
