"""Depthwise kernels of few outputs on the DSP extension: byte for byte numpy's semantics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cortex_m_runs import CC, CortexM, cortex_m
from kernels.integer_cases import qconv_case
from kernels.integer_harness import IntegerCase, check

from aotgen.ir.types import Requant
from aotgen.schedule.int8.dsp.depthwise_taps import Int8DspTaps

TAPS = Int8DspTaps()


def case(name: str, x: tuple[int, ...], kernel: tuple[int, ...], **more: Any) -> IntegerCase:
    relu = more.pop("relu", False)
    more.setdefault("seed", sum(name.encode()))
    made = qconv_case(name, TAPS, x, x[-1], kernel, groups=x[-1], **more)
    if relu:
        requant: Requant = made.node.attrs["requant"]
        made.node.attrs["requant"] = replace(requant, zero_point=-128, lo=-128, hi=127)
    return made


def cases() -> list[IntegerCase]:
    found = [
        case(
            f"column{taps}x{channels}{'r' if relu else ''}",
            (1, taps, 1, channels),
            (taps, 1),
            relu=relu,
        )
        for taps in (1, 2, 3, 5, 8, 23)
        for channels in (4, 5, 7, 8, 30)
        for relu in (False, True)
    ]
    return [
        *found,
        case("rows", (2, 9, 1, 12), (4, 1)),
        case("line", (1, 11, 13), (3,)),
        case("along", (1, 2, 9, 12), (1, 4), strides=(1, 2)),
        case("window", (1, 6, 7, 9), (3, 4), strides=(2, 1)),
        case("dilated", (1, 12, 8, 8), (3, 2), dilations=(4, 3)),
        case("clamped", (1, 5, 2, 10), (4, 1), clamp=(-100, 90)),
        case("left", (1, 5, 2, 10), (4, 1), left=True),
        case("ties", (1, 5, 2, 10), (4, 1), ties=True),
        case("apart", (1, 5, 3, 9), (4, 2), gap=5),
        case("same_scale", (1, 5, 1, 16), (5, 1), per_channel=False),
    ]  # fmt: skip


@pytest.fixture(params=["speed", "ram", "flash"])
def m4(request: pytest.FixtureRequest) -> CortexM:
    found = cortex_m("m4")
    return replace(found, target=replace(found.target, optimize=request.param))


def test_windows_inside_the_input(m4: CortexM, tmp_path: Path) -> None:
    check(cases(), m4.target, tmp_path, cc=CC, flags=m4.flags, emulator=m4.emulator)
