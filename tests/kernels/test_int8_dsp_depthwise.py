"""The depthwise kernels of the DSP extension: byte for byte numpy's semantics, by QEMU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cortex_m_runs import CC, CortexM, cortex_m
from kernels.integer_cases import qconv_case
from kernels.integer_harness import IntegerCase, check

from aotgen.ir.types import Requant
from aotgen.schedule.int8.dsp.depthwise import Int8DspDepthwise
from aotgen.target.target import Target

DEPTHWISE = Int8DspDepthwise()

RELU = {"clamp": (-128, 127)}

WINDOWS = (
    ((3, 3), (1, 1)),
    ((3, 3), (2, 2)),
    ((3, 3), (1, 2)),
    ((3, 3), (2, 1)),
    ((3, 3), (3, 3)),
    ((2, 2), (1, 1)),
    ((2, 2), (2, 2)),
    ((1, 3), (1, 1)),
    ((1, 5), (1, 1)),
    ((1, 7), (1, 2)),
    ((3, 1), (1, 1)),
    ((5, 1), (2, 2)),
    ((4, 1), (1, 1)),
    ((3, 2), (1, 1)),
    ((2, 3), (2, 1)),
    ((4, 4), (1, 1)),
    ((4, 4), (2, 2)),
    ((5, 5), (1, 1)),
    ((5, 5), (2, 2)),
    ((7, 7), (1, 1)),
    ((7, 7), (4, 4)),
    ((10, 8), (2, 2)),
    ((1, 1), (1, 1)),
    ((1, 1), (2, 2)),
    ((1, 1), (3, 5)),
)
"""Kernels with their strides."""


def depthwise(name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more: Any):
    more.setdefault("seed", sum(name.encode()))
    inplace = more.pop("inplace", False)
    outputs = x[-1] * more.pop("multiplier", 1)
    case = qconv_case(name, DEPTHWISE, x, outputs, kernel, groups=x[-1], **more)
    case.inplace = inplace
    return case


def same(kernel: tuple[int, int]) -> tuple[int, int, int, int]:
    """Pads that keep an image's size at stride 1."""
    high, wide = kernel[0] - 1, kernel[1] - 1
    return high // 2, wide // 2, high - high // 2, wide - wide // 2


def relu(case: IntegerCase) -> IntegerCase:
    """The case with the zero point at the lower clamp."""
    requant: Requant = case.node.attrs["requant"]
    case.node.attrs["requant"] = replace(requant, zero_point=-128, lo=-128, hi=127)
    return case


def with_ties(case: IntegerCase, least: int) -> IntegerCase:
    """The case with small sums, halved, then shifted right by ``least`` to ``least`` + 2: half of
    its outputs are ties, few are clamped.
    """
    w, bias = case.node.input(1), case.node.input(2)
    assert w.const is not None and bias.const is not None
    w.const, bias.const = w.const >> 6, bias.const >> 8
    count = len(bias.const)
    shift = tuple(-(least + i % 3) for i in range(count))
    requant = Requant("tflm", (1 << 30,) * count, shift, (), -3, -128, 127)
    case.node.attrs["requant"] = requant
    return case


def cases_of(target: Target) -> list[IntegerCase]:
    cases: list[IntegerCase] = []

    def conv(name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more: Any) -> None:
        cases.append(depthwise(name, x, kernel, seed=len(cases), **more))

    for kernel, strides in WINDOWS:
        for size in ((11, 10), (10, 13)):
            name = f"{kernel} by {strides} of {size}"
            conv(name, (1, *size, 6), kernel, strides=strides, pads=same(kernel))
            cases[-1] = relu(cases[-1])
            conv(f"{name}, valid", (1, *size, 4), kernel, strides=strides)
    for name, scaling in (
        ("plain", {}),
        ("ties", {"ties": True}),
        ("left", {"left": True}),
        ("ties left", {"ties": True, "left": True}),
        ("clamp", {"clamp": (-30, 70)}),
        ("upper clamp", {"clamp": (-128, 70)}),
    ):
        for kernel in ((3, 3), (5, 5), (2, 2)):
            conv(f"{name} {kernel}", (1, 7, 9, 12), kernel, pads=same(kernel), scaling=scaling)
            conv(f"{name} {kernel} by 2", (1, 8, 9, 8), kernel, strides=(2, 2), scaling=scaling)
    for kernel in ((3, 3), (5, 5), (2, 2)):
        for least in (0, 1):
            conv(f"ties of {kernel} from {least}", (1, 6, 7, 12), kernel, zero=3)
            cases[-1] = with_ties(cases[-1], least)
    for stride in (1, 2):
        for width in (1, 2, 3, 4, 5, 6, 7):
            for pads in ((1, 1, 1, 1), (0, 0, 1, 1), (2, 2, 2, 2), (0, 3, 2, 0)):
                if width + pads[1] + pads[3] >= 3:
                    conv(f"{width} wide by {stride}, pads {pads}", (1, width + 2, width, 4),
                         strides=(stride, stride), pads=pads)  # fmt: skip
    for channels in (1, 2, 3, 5, 6, 7, 9):
        conv(f"{channels} channels", (1, 4, 5, channels), pads=(1, 1, 1, 1))
    conv("one scale", (1, 5, 9, 8), pads=(1, 1, 1, 1), per_channel=False)
    conv("no bias", (1, 5, 9, 8), pads=(1, 1, 1, 1), bias=False)
    conv("batch", (3, 5, 9, 8), pads=(1, 1, 1, 1))
    conv("gaps", (2, 5, 12, 8), pads=(1, 1, 1, 1), gap=3)
    conv("rows apart", (2, 5, 12, 8), pads=(1, 1, 1, 1), split_rows=True)
    for size in (512, 1024, 2048):
        for pads in ((1, 1, 1, 1), (0, 0, 0, 0)):
            conv(f"bands of {size} {pads}", (1, 23, 14, 5), pads=pads, config={"plane_bytes": size})
    conv("bands by 2", (1, 23, 14, 8), strides=(2, 2), config={"plane_bytes": 512})
    conv("bands by 3", (1, 23, 14, 8), (2, 2), strides=(3, 3), config={"plane_bytes": 512})
    conv("bands 5x5", (2, 19, 9, 8), (5, 5), pads=(2, 2, 2, 2), config={"plane_bytes": 512})
    conv("dilated", (1, 9, 9, 8), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("dilated, valid", (2, 11, 9, 7), (3, 2), dilations=(3, 2))
    conv("dilated beyond the map", (1, 5, 4, 4), dilations=(4, 6), pads=(4, 6, 4, 6))
    conv("pads beyond the map", (1, 2, 2, 4), (5, 5), pads=(4, 4, 4, 4))
    conv("only pads", (1, 1, 1, 4), (2, 2), pads=(3, 3, 3, 3), strides=(2, 2))
    conv("one axis", (2, 20, 9), (5,), pads=(2, 2))
    for taps in (1, 2, 3, 4, 5, 10, 15, 31):
        for size in (31, 32, 34, 37):
            conv(f"a column of {size}, {taps} taps", (1, size, 1, 5), (taps, 1))
            conv(f"a row of {size}, {taps} taps", (1, 1, size, 4), (1, taps),
                 pads=(0, taps // 2, 0, taps // 2), strides=(1, 1 + size % 2))  # fmt: skip
    conv("long", (1, 300, 5), (9,), pads=(5, 3), config={"plane_bytes": 512})
    conv("long by 2", (2, 301, 5), (4,), strides=(2,), config={"plane_bytes": 512})
    conv("dilated column", (1, 40, 1, 5), (3, 1), dilations=(4, 1), pads=(8, 0, 0, 0))
    for multiplier in (2, 3, 8):
        conv(f"{multiplier} outputs a channel", (1, 5, 6, 5), pads=(1, 1, 1, 1),
             multiplier=multiplier)  # fmt: skip
    conv("8 outputs of one channel", (1, 9, 11, 1), strides=(2, 2), multiplier=8)
    conv("2 outputs a channel of a line", (1, 21, 5), (4,), multiplier=2)
    conv("all -128", (1, 9, 12, 8), extreme=True, pads=(1, 1, 1, 1))
    for zero in (-128, 0, 127):
        conv(f"zero {zero}", (1, 5, 5, 8), pads=(1, 1, 1, 1), zero=zero)
    return cases


def inplace_cases() -> list[IntegerCase]:
    cases: list[IntegerCase] = []
    for kernel in ((3, 3), (5, 5), (2, 2), (1, 1), (4, 3), (7, 1), (1, 6)):
        for size in ((9, 8), (7, 11)):
            for more in ({}, {"gap": 3}, {"config": {"plane_bytes": 512}}):
                name = f"{kernel} of {size} {more}"
                cases.append(
                    depthwise(name, (1, *size, 10), kernel, pads=same(kernel), inplace=True, **more)
                )
    cases.append(depthwise("batch", (2, 17, 9, 7), pads=(1, 1, 1, 1), inplace=True))
    cases.append(depthwise("pads in front", (1, 17, 9, 7), pads=(2, 2, 0, 0), inplace=True,
                           config={"plane_bytes": 512}))  # fmt: skip
    cases.append(depthwise("one axis", (1, 99, 6), (5,), pads=(2, 2), inplace=True))
    cases.append(depthwise("one axis, bands", (2, 99, 6), (5,), pads=(4, 0), inplace=True,
                           config={"plane_bytes": 512}))  # fmt: skip
    cases.append(depthwise("column", (1, 19, 1, 6), (4, 1), pads=(2, 0, 1, 0), inplace=True))
    return cases


def run(m: CortexM, cases: list[IntegerCase], target: Target, folder: Path, **more: Any) -> None:
    check(cases, target, folder, cc=CC, emulator=m.emulator, **{"flags": m.flags, **more})


@pytest.mark.parametrize("optimize", ("speed", "flash"))
@pytest.mark.parametrize("core", ("m4", "m7", "m55"))
def test_depthwise(core: str, optimize: Any, tmp_path: Path) -> None:
    m = cortex_m(core)
    target = replace(m.target, optimize=optimize)
    cases = cases_of(target)
    if core != "m4":  # the same code
        cases = cases[::5]
    run(m, cases, target, tmp_path)


@pytest.mark.parametrize("optimize", ("speed", "flash", "ram"))
def test_rows_are_cut(optimize: Any, tmp_path: Path) -> None:
    m = cortex_m("m4")
    target = replace(m.target, optimize=optimize)
    run(m, cases_of(target)[::2], target, tmp_path, cut=2)


@pytest.mark.parametrize("cut", (0, 1))
def test_in_place(cut: int, tmp_path: Path) -> None:
    m = cortex_m("m4")
    cases = inplace_cases()
    for case in cases:
        assert DEPTHWISE.may_alias(case.group, case.node.input(0)) == "same_index"
    run(m, cases, m.target, tmp_path, cut=cut)


@pytest.mark.parametrize("level", ("-O1", "-Os", "-O3"))
def test_compiles_clean(level: str, tmp_path: Path) -> None:
    m = cortex_m("m4")
    target = replace(m.target, optimize="flash" if level == "-Os" else "speed")
    run(m, cases_of(target)[::7], target, tmp_path, flags=[*m.flags, level])
