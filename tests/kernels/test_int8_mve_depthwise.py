"""Depthwise convolutions on MVE: byte for byte numpy's semantics, on an emulated M55."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cortex_m_runs import CC, cortex_m
from kernels.integer_cases import qconv_case
from kernels.integer_harness import IntegerCase, build, check

from aotgen.schedule.base import Config
from aotgen.schedule.int8.mve.depthwise import Int8MveDepthwise
from aotgen.target.target import Target

DEPTHWISE = Int8MveDepthwise()

M55 = Target("mve", bare=True)


def depthwise_case(
    name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more
) -> IntegerCase:
    """A qconv of TFLite Micro's arithmetic without weights of -128."""
    inplace = more.pop("inplace", False)
    case = qconv_case(
        name, DEPTHWISE, x, x[-1], kernel, groups=x[-1], kind="tflm", seed=len(name), **more
    )
    weights = case.node.input(1)
    weights.const = np.maximum(weights.const, -127)
    case.inplace = inplace
    return case


def cases() -> list[IntegerCase]:
    found: list[IntegerCase] = []

    def conv(name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more) -> None:
        found.append(depthwise_case(name, x, kernel, **more))

    same = (1, 1, 1, 1)
    conv("3x3", (1, 9, 12, 16), pads=same)
    conv("linear, ties", (1, 9, 12, 16), pads=same, scaling={"ties": True})
    conv("left", (1, 5, 5, 8), pads=same, scaling={"left": True})
    conv("ties left", (1, 9, 12, 16), scaling={"ties": True, "left": True})
    conv("clamp", (1, 6, 9, 40), scaling={"clamp": (-30, 70)})
    conv("clamp, left", (1, 6, 9, 5), scaling={"clamp": (-30, 70), "left": True})
    conv("one scale", (1, 6, 9, 24), per_channel=False)
    for width in range(1, 8):
        conv(f"{width} wide", (1, 3, width, 24), pads=same)
        conv(f"{width} wide, two pads", (1, 4, width, 8), pads=(2, 2, 0, 0))
    for height in (1, 2, 4):
        conv(f"{height} high", (1, height, 5, 16), pads=same)
    for channels in (2, 3, 15, 17, 31, 32, 33, 50):
        conv(f"{channels} channels", (1, 5, 4, channels), pads=same)
    conv("valid", (1, 7, 9, 16))
    conv("more pads behind", (1, 5, 5, 8), pads=(0, 0, 2, 2))
    conv("batch", (3, 5, 9, 8), pads=same)
    conv("gaps", (2, 5, 12, 8), pads=same, gap=3)
    conv("rows apart", (2, 5, 12, 20), pads=same, split_rows=True)
    conv("zero -128", (1, 5, 5, 16), pads=same, zero=-128)
    conv("zero 127", (1, 5, 5, 16), pads=same, zero=127)
    conv("in place", (2, 9, 7, 20), pads=same, inplace=True)
    conv("in place, gaps", (1, 6, 5, 16), pads=(0, 2, 2, 0), inplace=True, gap=5)
    return found


def lane_cases() -> list[IntegerCase]:
    """What only vectors over channels do."""
    found: list[IntegerCase] = []

    def conv(name: str, x: tuple[int, ...], kernel: tuple[int, ...] = (3, 3), **more) -> None:
        found.append(depthwise_case(name, x, kernel, **more))

    conv("stride 2", (1, 10, 20, 16), strides=(2, 2), pads=(0, 0, 1, 1))
    conv("stride 2, odd", (1, 9, 11, 24), strides=(2, 2), pads=(1, 1, 1, 1))
    conv("stride 2, direct", (1, 9, 11, 32), strides=(2, 2))
    conv("stride beyond the window", (1, 9, 9, 8), strides=(4, 3))
    conv("strides apart", (1, 9, 9, 8), strides=(1, 2), pads=(1, 1, 1, 1))
    conv("dilated", (1, 9, 9, 8), dilations=(2, 3), pads=(2, 3, 2, 3))
    conv("dilated, direct", (2, 9, 9, 16), dilations=(2, 3), gap=3)
    conv("5x5", (1, 8, 7, 13), (5, 5), pads=(2, 2, 2, 2))
    conv("5x5, in place", (1, 8, 7, 13), (5, 5), pads=(2, 2, 2, 2), inplace=True)
    conv("2x2", (1, 8, 7, 16), (2, 2))
    conv("1x1", (1, 5, 5, 16), (1, 1))
    conv("1x1, in place", (1, 5, 5, 21), (1, 1), inplace=True)
    conv("8x7", (1, 12, 9, 9), (8, 7), pads=(3, 3, 4, 3))
    conv("one axis", (2, 20, 16), (5,), pads=(2, 2))
    conv("one axis, direct", (2, 20, 32), (10,))
    for taps in range(1, 12):
        conv(f"column of {taps}", (2, 15, 1, 16), (taps, 1))
        conv(f"row of {taps}", (1, 2, 12, 9), (1, taps))
    conv("column, gaps", (1, 15, 1, 16), (5, 1), strides=(2, 1), gap=7)
    conv("taps with left shifts", (1, 9, 9, 17), (4, 3), scaling={"left": True})
    conv("taps with a clamp", (1, 9, 9, 17), (4, 3), scaling={"clamp": (-9, 100)})
    return found


def chosen_by(method: str) -> list[IntegerCase]:
    found = cases() + (lane_cases() if method == "lanes" else [])
    legal = [c for c in found if method in DEPTHWISE.space(c.group, M55)[0].values]
    return [replace(c, knobs={"method": method}) for c in legal]


@pytest.mark.parametrize("optimize", ("speed", "flash"))
@pytest.mark.parametrize("method", ("lanes", "cells"))
def test_every_byte(method: str, optimize: str, tmp_path: Path) -> None:
    m55 = cortex_m("m55")
    target = replace(m55.target, optimize=optimize)
    check(chosen_by(method), target, tmp_path, cc=CC, flags=m55.flags, emulator=m55.emulator)


@pytest.mark.parametrize("method", ("lanes", "cells"))
def test_rows_in_pieces(method: str, tmp_path: Path) -> None:
    m55 = cortex_m("m55")
    found = [c for c in chosen_by(method) if not c.inplace]
    check(found, m55.target, tmp_path, cc=CC, flags=m55.flags, emulator=m55.emulator, cut=3)


@pytest.mark.parametrize("level", ("-O1", "-Os", "-O3"))
def test_levels_of_optimization(level: str, tmp_path: Path) -> None:
    m55 = cortex_m("m55")
    flags = [level if f.startswith("-O") else f for f in m55.flags]
    found = chosen_by("lanes")[::7] + chosen_by("cells")[::5]
    check(found, m55.target, tmp_path, cc=CC, flags=flags, emulator=m55.emulator)


def test_flash_shares_texts() -> None:
    """Layers of a kind differ in constants alone."""
    flash = replace(M55, optimize="flash")
    bodies = {
        build(
            depthwise_case("any", x, strides=(2, 2), pads=(1, 1, 1, 1), scaling={}), flash
        ).kernel.body
        for x in ((1, 9, 12, 16), (2, 5, 7, 40))
    }
    assert len(bodies) == 1


def test_neighbouring_weights_of_the_lowest_value_are_refused() -> None:
    case = depthwise_case("any", (1, 5, 5, 8))
    weights = case.node.input(1).const.copy()
    weights[3].reshape(-1)[:3] = (-127, -128, 5)
    case.node.input(1).const = weights
    assert DEPTHWISE.applies(case.group, M55) is None
    weights[3].reshape(-1)[:2] = -128
    assert "overflow" in str(DEPTHWISE.applies(case.group, M55))


def test_model_prefers_the_way_with_fewer_instructions() -> None:
    """Counted, a product: 48 x 48 x 8 takes 0.63 and 1.95 instructions, 3 x 3 x 256 1.71, 0.92."""
    wide, narrow = (
        depthwise_case("any", x, pads=(1, 1, 1, 1)).group for x in ((1, 48, 48, 8), (1, 3, 3, 256))
    )
    assert DEPTHWISE.default(wide, M55) == Config.of(method="cells")
    assert DEPTHWISE.default(narrow, M55) == Config.of(method="lanes")
