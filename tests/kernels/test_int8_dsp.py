"""Dense kernels of int8 on the DSP extension: byte for byte numpy's rules, on emulated cores."""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from cortex_m_runs import CC, cortex_m
from kernels.integer_cases import Cases, qconv_case, qmatmul_case
from kernels.integer_harness import IntegerCase, build, check

from aotgen.schedule.int8.dsp.dense import Int8DspDense
from aotgen.schedule.intrinsics import S16S8_SMLAD
from aotgen.target.target import Target

Optimize = Literal["speed", "ram", "flash"]

DENSE = Int8DspDense()


def dense_cases() -> list[IntegerCase]:
    cases = Cases(DENSE)
    conv, matmul = cases.conv, cases.matmul

    def relu() -> None:
        """Clamp the last case as ReLU does: at its zero point, the type's least value."""
        attrs = cases.made[-1].node.attrs
        attrs["requant"] = replace(attrs["requant"], zero_point=-128, lo=-128, hi=127)

    same = {"pads": (1, 1, 1, 1)}
    for scaling in ({}, {"ties": True}):
        conv(f"1x1 relu {scaling}", (1, 7, 7, 32), 24, (1, 1), scaling=scaling)
        relu()
        conv(f"window, relu {scaling}", (1, 6, 7, 8), 9, (3, 3), scaling=scaling, **same)
        relu()
        conv(f"band, relu {scaling}", (1, 6, 7, 3), 9, (3, 3), scaling=scaling, **same)
        relu()
        matmul(f"fc relu {scaling}", (1, 24), 9, per_channel=False, scaling=scaling)
        relu()
    conv("1x1", (1, 7, 7, 32), 24, (1, 1))
    conv("1x1 left", (1, 5, 7, 16), 20, (1, 1), scaling={"left": True})
    conv("1x1 ties", (1, 9, 9, 4), 24, (1, 1), scaling={"ties": True})
    conv("1x1 ties left", (1, 9, 9, 4), 24, (1, 1), scaling={"ties": True, "left": True})
    conv("1x1 clamp", (1, 8, 8, 24), 12, (1, 1), scaling={"clamp": (-20, 51)})
    conv("1x1 ties clamp", (1, 7, 9, 4), 23, (1, 1), scaling={"ties": True, "clamp": (-90, 100)})
    conv("3x3", (1, 9, 8, 16), 18, (3, 3), **same)
    conv("3x3 left", (1, 9, 7, 16), 17, (3, 3), scaling={"left": True}, **same)
    conv("3x3 band", (1, 6, 7, 19), 13, (3, 3), **same)
    conv("one scale", (1, 4, 5, 8), 9, (2, 2), per_channel=False)
    for scaling in ({}, {"left": True}, {"ties": True}, {"clamp": (-100, 20)}):
        matmul(f"fc {scaling}", (1, 40), 21, scaling=scaling)
        matmul(f"fc of one scale {scaling}", (1, 72), 21, per_channel=False, scaling=scaling)
        matmul(f"fc of 37 {scaling}", (1, 37), 22, per_channel=False, scaling=scaling)
        matmul(f"fc of 1120 {scaling}", (1, 1120), 7, per_channel=False, scaling=scaling)
        matmul(f"matmul {scaling}", (9, 64), 32, trans_b=False, scaling=scaling)
    for depth in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 25, 28, 31, 33, 48):
        conv(f"1x1 of {depth}", (1, 3, 5, depth), 8 + depth % 5, (1, 1))
        matmul(f"matmul of {depth}", (5, depth), 10, bias=False)
        matmul(f"vector of {depth}", (1, depth), 10, per_channel=False)
        matmul(f"vector of {depth}, scales", (1, depth), 11)
    for outputs in (1, 2, 3, 4, 5, 8, 11):
        conv(f"to {outputs}", (1, 4, 5, 16), outputs, (1, 1))
        conv(f"window to {outputs}", (1, 4, 5, 4), outputs, (2, 2))
        matmul(f"vector to {outputs}", (1, 16), outputs, per_channel=False)
    for size in range(1, 10):
        conv(f"{size} pixels", (1, 1, size, 16), 12, (1, 1))
        conv(f"{size} wide", (1, 3, size, 4), 6, (3, 3), **same)
        conv(f"{size} wide, band", (1, 3, size, 3), 6, (3, 3), **same)
    conv("first", (1, 15, 13, 3), 16, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("first of one", (1, 12, 12, 1), 8, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("7x7", (1, 15, 14, 3), 8, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
    conv("one channel", (1, 25, 10, 1), 16, (10, 4), strides=(2, 2), pads=(4, 1, 5, 1))
    conv("10x8", (1, 25, 20, 1), 8, (10, 8), strides=(2, 2), pads=(4, 3, 5, 3))
    conv("valid", (1, 9, 11, 8), 8, (3, 3))
    conv("dilated", (1, 11, 12, 16), 8, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("dilated band", (1, 11, 12, 5), 8, (3, 3), dilations=(2, 2), pads=(2, 2, 2, 2))
    conv("strided 1x1", (1, 9, 9, 16), 8, (1, 1), strides=(2, 2))
    conv("strides apart", (1, 9, 9, 8), 8, (3, 3), strides=(1, 3), pads=(1, 1, 1, 1))
    conv("padded 1x1", (1, 5, 5, 16), 8, (1, 1), pads=(1, 0, 1, 2))
    conv("batch", (3, 5, 6, 16), 8, (3, 3), **same)
    conv("batch band", (3, 5, 3, 6), 8, (3, 3), **same)
    conv("batch 1x1", (3, 5, 6, 16), 8, (1, 1))
    conv("one axis", (2, 20, 16), 12, (3,), pads=(1, 1))
    conv("one axis band", (1, 20, 6), 12, (5,), strides=(2,), pads=(2, 2))
    conv("groups", (1, 6, 6, 32), 24, (3, 3), groups=2, **same)
    conv("groups of 5", (1, 6, 6, 15), 21, (3, 3), groups=3, **same)
    conv("grouped 1x1", (1, 6, 5, 16), 20, (1, 1), groups=4)
    conv("depthwise", (1, 6, 5, 3), 6, (3, 3), groups=3, **same)
    conv("pad more than the map", (1, 2, 2, 16), 8, (5, 5), pads=(4, 4, 4, 4))
    conv("gaps", (1, 6, 6, 16), 14, (3, 3), gap=5, **same)
    conv("gaps band", (2, 6, 6, 7), 13, (3, 3), gap=3, **same)
    conv("gaps 1x1", (1, 6, 6, 20), 14, (1, 1), gap=3)
    matmul("gaps of a matmul", (7, 20), 14, gap=3)
    matmul("gaps of a matmul of 19", (7, 19), 14, gap=3)
    conv("rows apart", (1, 6, 5, 16), 14, (3, 3), split_rows=True, **same)
    conv("rows apart 1x1", (2, 6, 9, 16), 12, (1, 1), split_rows=True)
    conv("rows apart, few", (2, 6, 2, 6), 12, (1, 1), split_rows=True)
    conv("band, clamp", (1, 6, 7, 3), 9, (3, 3), scaling={"clamp": (-9, 99)}, **same)
    conv("all -128, band", (1, 5, 7, 3), 12, (3, 3), extreme=True, **same)
    conv("all -128", (1, 5, 7, 48), 12, (1, 1), extreme=True)
    conv("all -128, window", (1, 5, 7, 24), 12, (3, 3), extreme=True, **same)
    conv("uint8 weights", (1, 5, 7, 21), 14, (3, 3), w_zero=128, **same)
    for zero in (-128, 0, 127):
        conv(f"zero {zero}", (1, 5, 5, 16), 8, (3, 3), zero=zero, **same)
        conv(f"zero {zero}, band", (1, 5, 5, 6), 8, (3, 3), zero=zero, **same)
    return cases.made


def edge_cases() -> list[IntegerCase]:
    """Sums about 2^23, up to which pairs of weights may share a half-word: on both sides of it, and
    next to it."""
    cases = []
    for depth in (512, 516, 520, 528):
        for x, w in itertools.product((-128, 127), (-127, 127)):
            for rows in (1, 5):
                case = qmatmul_case(
                    f"{depth} of {x} times {w}, {rows}", DENSE, (rows, depth), 4, zero=0,
                    bias=False, per_channel=False, scaling={"ties": True},
                )  # fmt: skip
                weights = case.node.input(1).const
                assert weights is not None
                weights[...] = w
                weights[::2] = -w - (w > 0)
                case.inputs["x"][...] = x
                cases.append(case)
    return cases


def variants(cases: list[IntegerCase], target: Target) -> set[str]:
    """Of the routines that the cases use."""
    return {build(c, target).kernel.name.split("_dsp_")[1] for c in cases}


@pytest.mark.parametrize("optimize", ("speed", "flash"))
@pytest.mark.parametrize("level", ("-O3", "-Os"))
def test_m4(level: str, optimize: Optimize, tmp_path: Path) -> None:
    m4 = cortex_m("m4")
    target = replace(m4.target, optimize=optimize)
    cut = 2 if level == "-Os" else 0
    flags = (*m4.flags, level, "-ffunction-sections")
    check(dense_cases(), target, tmp_path, cc=CC, flags=flags, emulator=m4.emulator, cut=cut)


@pytest.mark.parametrize("core", ("m7", "m55"))
def test_other_cores(core: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    flags = (*m.flags, "-O1")
    check(dense_cases()[::3], m.target, tmp_path, cc=CC, flags=flags, emulator=m.emulator, cut=1)


def test_sums_of_24_bits(tmp_path: Path) -> None:
    m4 = cortex_m("m4")
    check(edge_cases(), m4.target, tmp_path, cc=CC, flags=m4.flags, emulator=m4.emulator)


def test_cases_reach_every_variant() -> None:
    """The ways to gather a patch, and what the weights and the requantization allow."""
    target = cortex_m("m4").target
    expected = {
        f"{method}_{kind}"
        for method in ("rows", "words", "band", "vector")
        for kind in ("packed_linear", "packed_relu", "plain_linear", "plain_any")
    }
    found = variants([*dense_cases(), *edge_cases()], target)
    assert found >= expected, expected - found
    flash = variants(dense_cases(), replace(target, optimize="flash"))
    assert not [name for name in flash if name.endswith("relu")]


def test_addresses_of_labels_need_aligned_functions() -> None:
    """ADR counts from the instruction's address rounded down to a multiple of 4: where a linker
    puts a section at an odd multiple of 2, the label is another."""
    target = cortex_m("m4").target
    routines = {r for c in dense_cases() for r in build(c, target).kernel.routines}
    using = [r for r in routines if "adr" in r.text]
    assert {r.name for r in using} == {"dsp_gemm4", "dsp_gemm1", "dsp_gemv"}
    assert all("aligned(4)" in r.text for r in using)


def test_one_function_serves_all_layers_of_a_kind() -> None:
    target = cortex_m("m4").target
    bodies = {}
    for case in dense_cases():
        kernel = build(case, target).kernel
        bodies.setdefault(kernel.name, set()).add(kernel.linked("x")[0])
    assert len(bodies["qconv_i8_dsp_words_packed_linear"]) <= 2  # of groups, and of one
    assert max(len(found) for found in bodies.values()) <= 3


def test_what_does_not_apply() -> None:
    target = cortex_m("m4").target

    def reason(**more) -> str | None:
        return DENSE.applies(qconv_case("", DENSE, (1, 4, 4, 8), 4, (1, 1), **more).group, target)

    assert reason() is None
    assert DENSE.applies(qconv_case("", DENSE, (1, 4, 4, 8), 4, (1, 1)).group, Target("neon"))
    assert "int8 activations" in str(reason(unsigned=True))
    assert "TFLite Micro" in str(reason(kind="litert"))
    assert "int8 less their zero point" in str(reason(w_zero=3))


def test_the_record_says_what_smlad_does(tmp_path: Path) -> None:
    """Statements of the intrinsic record on the packing that its map describes."""
    m4 = cortex_m("m4")
    assert S16S8_SMLAD.fits(m4.target)
    rng = np.random.default_rng(3)
    a, b = rng.integers(-128, 128, 2), rng.integers(-128, 128, (2, 2))
    packed = S16S8_SMLAD.pack(b.astype(np.int8)).view("<u4")
    load = S16S8_SMLAD.load.format(v="v", a="a")
    steps = [S16S8_SMLAD.fma.format(acc=f"y[{n}]", v="v", b="b", lane=n) for n in (0, 1)]
    (tmp_path / "a.c").write_text(f"""
#include <arm_acle.h>
#include <stdint.h>
#include <string.h>
int main(void) {{
    static volatile const int16_t kept[] = {{{a[0]}, {a[1]}}};
    const int16_t a[] = {{kept[0], kept[1]}};
    const uint32_t b = {packed[0]}u;
    int32_t y[2] = {{0, 0}};
    {load}
    {" ".join(steps)}
    return y[0] != {int(b[0] @ a)} || y[1] != {int(b[1] @ a)};
}}
""")
    command = [CC, *m4.flags, "-std=gnu99", str(tmp_path / "a.c"), "-o", str(tmp_path / "a")]
    subprocess.run(command, check=True)
    assert subprocess.run([*m4.emulator, str(tmp_path / "a")]).returncode == 0
