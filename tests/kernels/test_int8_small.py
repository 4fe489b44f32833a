"""Small ops of 8-bit integers on Cortex-M and in plain C: byte for byte numpy's semantics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cortex_m_runs import CC, CortexM, cortex_m
from kernels.integer_harness import IntegerCase, build, check
from kernels.small_cases import elementwise_cases, pool_case, softmax_case, sum_case

from aotgen.ir.types import DType
from aotgen.target.target import Target

EIGHT_BITS = (DType.I8, DType.U8)
RANGE = {DType.I8: (-128, 127), DType.U8: (0, 255)}


def sum_cases() -> list[IntegerCase]:
    found: list[IntegerCase] = []

    def add(name: str, shape: tuple[int, ...], **more) -> None:
        found.append(sum_case(name, shape, seed=len(found), **more))

    for op in ("qadd", "qsub"):
        for dtype in EIGHT_BITS:
            add(f"{op} {dtype}", (1, 5, 7, 13), op=op, dtype=dtype)
            add(f"{op} {dtype}, relu", (1, 5, 7, 13), op=op, dtype=dtype, relu=True)
            add(f"{op} {dtype}, clamp", (3, 35), op=op, dtype=dtype, relu=True, top=60)
            add(f"{op} {dtype}, in place", (1, 5, 7, 13), op=op, dtype=dtype, inplace=True)
    for count in (1, 2, 3, 4, 5, 63, 64, 65):
        add(f"{count} elements", (1, count))
    add("gaps", (2, 3, 4, 7), gap=3)
    add("gaps, in place", (2, 3, 4, 7), gap=3, inplace=True)
    return found


def pool_cases() -> list[IntegerCase]:
    found: list[IntegerCase] = []

    def pool(name: str, op: str, shape: tuple[int, ...], **more) -> None:
        found.append(pool_case(name, op, shape, seed=len(found), **more))

    whole = {"kernel": (25, 5), "strides": (25, 5)}
    pool("global", "qavg_pool", (1, 25, 5, 64), **whole)
    for dtype in EIGHT_BITS:
        lo, hi = RANGE[dtype]
        for channels in (1, 2, 3, 4, 5, 8, 13, 17, 33):
            window = {"kernel": (3, 2), "pads": (1, 0, 1, 1), "dtype": dtype}
            pool(f"max {dtype} {channels}", "max_pool", (1, 5, 6, channels), **window)
            pool(f"avg {dtype} {channels}", "qavg_pool", (2, 5, 6, channels), gap=2, **window)
            pool(f"sum {dtype} {channels}", "qreduce_sum", (2, 5, 6, channels), dtype=dtype)
        large = {"kernel": (20, 16), "dtype": dtype}
        pool(f"large {dtype}", "qavg_pool", (1, 20, 16, 9), **large)
        pool(f"large, lowest {dtype}", "qavg_pool", (1, 20, 16, 9), fill=lo, **large)
        pool(f"large, highest {dtype}", "qavg_pool", (1, 20, 16, 9), fill=hi, **large)
        pool(f"large sum {dtype}", "qreduce_sum", (1, 20, 17, 9), dtype=dtype, fill=hi)
        pool(f"clamp {dtype}", "qavg_pool", (1, 6, 6, 9), dtype=dtype, clamp=(3, 40))
    dilated = {"kernel": (3, 3), "strides": (1, 1), "dilations": (2, 2), "pads": (1, 1, 1, 1)}
    pool("dilated", "qavg_pool", (1, 9, 9, 12), **dilated)
    pool("dilated max", "max_pool", (1, 9, 9, 12), **dilated)
    one = {"kernel": (3,), "strides": (2,), "dilations": (1,), "pads": (1, 0)}
    pool("one axis", "max_pool", (2, 9, 12), **one)
    return found


def softmax_cases() -> list[IntegerCase]:
    found = [
        softmax_case(f"{n} of {scale}", (1, n), scale, seed=n)
        for n in (1, 2, 3, 10, 12, 100, 255, 256, 300, 4095)
        for scale in (0.003, 0.05, 0.1, 0.7)
    ]
    found += [
        softmax_case(f"{dtype} to {out}", (7, 13), 0.1, dtype=dtype, out=out)
        for dtype in EIGHT_BITS
        for out in EIGHT_BITS
    ]
    found.append(softmax_case("equal", (3, 4095), 0.1, fill=5))
    found.append(softmax_case("in place", (7, 13), 0.1, inplace=True))
    return found


CASES = {
    "sum": sum_cases,
    "pool": pool_cases,
    "softmax": softmax_cases,
    "elementwise": elementwise_cases,
}


def target_of(m: CortexM, isa: str, optimize: str) -> Target:
    """``isa``: "scalar" for the same core as if it had no instructions of its own."""
    return replace(m.target, optimize=optimize, isa=isa or m.target.isa)


WAYS = (
    ("m4", "", "speed"),
    ("m4", "", "flash"),
    ("m55", "", "speed"),
    pytest.param("m55", "", "flash", marks=pytest.mark.slow),
    ("m4", "scalar", "speed"),
    ("m4", "scalar", "flash"),
)


@pytest.mark.parametrize(("core", "isa", "optimize"), WAYS)
@pytest.mark.parametrize("what", CASES)
def test_every_byte(what: str, core: str, isa: str, optimize: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    check(CASES[what](), target_of(m, isa, optimize), tmp_path,
          cc=CC, flags=m.flags, emulator=m.emulator)  # fmt: skip


@pytest.mark.parametrize("core", ("m4", "m55"))
def test_rows_in_pieces(core: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    found = [c for make in CASES.values() for c in make()[::2] if not c.inplace]
    found = [c for c in found if build(c, m.target).kernel.rows > 1]
    check(found, m.target, tmp_path, cc=CC, flags=m.flags, emulator=m.emulator, cut=1)


@pytest.mark.parametrize(
    ("core", "level"),
    [
        pytest.param(
            core, level, marks=[] if (core == "m55") == (level == "-O3") else [pytest.mark.slow]
        )
        for core in ("m4", "m55")
        for level in ("-O1", "-Os", "-O3")
    ],
)
def test_levels_of_optimization(core: str, level: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    flags = [level if f.startswith("-O") else f for f in m.flags]
    found = [c for make in CASES.values() for c in make()[::4]]
    check(found, m.target, tmp_path, cc=CC, flags=flags, emulator=m.emulator)


def test_templates_of_microcontrollers_are_taken() -> None:
    m4 = Target("dsp", bare=True)
    taken = {what: make()[0].chosen(m4).name for what, make in CASES.items()}
    assert taken == {
        "sum": "int8_integer_sum",
        "pool": "int8_pool",
        "softmax": "int8_softmax",
        "elementwise": "te_nest",
    }


def test_flash_shares_texts() -> None:
    """Sums, softmaxes and pools differ in constants alone."""
    flash = Target("dsp", bare=True, optimize="flash")
    sums = [build(sum_case("any", (1, n), seed=n), flash).kernel for n in (5, 99)]
    softmaxes = [build(softmax_case("any", (1, n), n / 50), flash).kernel for n in (5, 99)]
    assert sums[0].body == sums[1].body
    assert softmaxes[0].body == softmaxes[1].body
    windows = {"kernel": (3, 5), "strides": (1, 2)}, {"kernel": (2, 2), "clamp": (3, 40)}
    inside = [(1, 9, 11, 8), (1, 4, 4, 13)]
    pools = [
        build(pool_case("any", "qavg_pool", shape, **window), flash).kernel
        for shape, window in zip(inside, windows, strict=True)
    ]
    assert pools[0].body == pools[1].body
    clipped = [
        build(pool_case("any", "max_pool", (1, n, 6, 8), kernel=(n // 2, 3), pads=(1, 0, 1, 1)),
              flash).kernel
        for n in (5, 8)
    ]  # fmt: skip
    assert clipped[0].body == clipped[1].body != pools[0].body
