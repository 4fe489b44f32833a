"""Transposed and grouped convolutions, kernel by kernel, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernels.conv_cases import variant_case
from kernels.harness import Case, check_cases
from kernels.test_kernels import (
    ISAS,
    NEON_HALVES,
    check_emulated,
    require_isa,
    target_of,
    with_sampled_knobs,
)

from aotgen.schedule.conv.conv_dot import ConvDot, ConvTransposeDot
from aotgen.schedule.conv.conv_grouped import ConvGrouped, ConvTransposeGrouped
from aotgen.schedule.conv.conv_transpose import ConvTranspose
from aotgen.target.target import Target
from support import SANITIZE

TRANSPOSE, GROUPED, TRANSPOSE_GROUPED = ConvTranspose(), ConvGrouped(), ConvTransposeGrouped()
DOT, TRANSPOSE_DOT = ConvDot(), ConvTransposeDot()


def transpose_cases() -> list[Case]:
    def case(name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **kw) -> Case:
        return variant_case(name, TRANSPOSE, "ConvTranspose", x, outputs, kernel, **kw)

    two = {"strides": (2, 2)}
    return [
        case("2x2 s2", (1, 7, 9, 20), 24, (2, 2), **two, relu=True),
        case("2x2 s2 to 1", (2, 7, 9, 24), 1, (2, 2), **two, scale=True, add=True),
        case("2x2 s2 to 3, gap", (1, 5, 6, 12), 3, (2, 2), **two, add=True, gap=3),
        case("4x4 s2", (1, 6, 7, 33), 37, (4, 4), **two, pads=(1, 1, 1, 1), add=True, relu=True),
        case("3x3 s2", (2, 6, 5, 8), 16, (3, 3), **two, pads=(1, 0, 1, 2), gap=5, scale=True),
        case("output padding", (1, 6, 5, 8), 16, (3, 3), **two, pads=(1, 1, 1, 1),
             output_padding=(1, 1), add=True),
        case("s1", (1, 6, 5, 8), 16, (3, 3), pads=(1, 1, 1, 1)),
        case("s1 dilated", (1, 11, 8, 16), 16, (3, 3), pads=(10, 1, 10, 1), dilations=(5, 1)),
        case("s2 dilated 2", (1, 5, 6, 4), 8, (3, 4), strides=(1, 2), dilations=(1, 3)),
        case("s3 k7", (1, 4, 3, 10), 20, (7, 5), strides=(3, 2), pads=(2, 3, 1, 0), bias=False),
        case("groups", (1, 4, 17, 16), 16, (1, 5), strides=(1, 2), pads=(0, 2, 0, 2), groups=2,
             scale=True),
        case("1-D k5 s5", (2, 13, 51), 51, (5,), strides=(5,), relu=True),
        case("1-D k2 s2", (1, 30, 51), 51, (2,), strides=(2,), add=True),
        case("1-D k9 s4", (1, 13, 5), 7, (9,), strides=(4,), pads=(3, 2), output_padding=(3,)),
        case("3-D", (1, 3, 4, 5, 6), 10, (3, 2, 4), strides=(2, 2, 2), pads=(1, 0, 1, 0, 0, 1),
             relu=True),
        case("narrow crop", (1, 2, 2, 4), 4, (4, 4), **two, pads=(3, 2, 2, 2)),
        case("wide", (1, 14, 14, 64), 130, (4, 4), **two, pads=(1, 1, 1, 1)),
    ]  # fmt: skip


def grouped_cases() -> list[Case]:
    """Channels a group from 1 to 8, in and out, with whole and ragged last vectors."""

    def conv(name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **kw) -> Case:
        return variant_case(name, GROUPED, "Conv", x, outputs, kernel, **kw)

    def back(name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **kw) -> Case:
        return variant_case(name, TRANSPOSE_GROUPED, "ConvTranspose", x, outputs, kernel, **kw)

    same, one = {"pads": (1, 1, 1, 1)}, {"pads": (1, 1)}
    made = [
        conv("4 to 4", (1, 9, 11, 32), 32, (3, 3), groups=8, **same, relu=True),
        conv("8 to 8", (1, 8, 7, 24), 24, (3, 3), groups=3, **same, add=True, scale=True),
        conv("3 to 3", (2, 6, 5, 33), 33, (3, 3), groups=11, **same, gap=3, scale=True),
        conv("2 to 2 s2", (1, 9, 9, 26), 26, (3, 5), groups=13, strides=(2, 2),
             pads=(1, 2, 0, 2), add=True),
        conv("multiplier 2", (1, 7, 9, 20), 40, (3, 3), groups=20, **same, bias=False),
        conv("multiplier 3", (1, 5, 6, 17), 51, (3, 3), groups=17, dilations=(2, 1),
             pads=(2, 1, 2, 1), relu=True, gap=1),
        conv("2 to 1", (1, 5, 6, 18), 9, (3, 3), groups=9, **same),
        conv("1 to 5", (1, 5, 6, 3), 15, (1, 1), groups=3, scale=True),
        conv("3 to 2", (1, 4, 19, 15), 10, (7, 7), groups=5, pads=(3, 3, 3, 3)),
        conv("1-D", (2, 29, 12), 12, (5,), groups=6, pads=(2, 2), strides=(2,)),
        conv("1-D long", (1, 300, 8), 8, (200,), groups=4, add=True),
        conv("3-D", (1, 4, 5, 6, 8), 16, (3, 3, 3), groups=4, pads=(1,) * 6),
        conv("3-D depthwise", (2, 4, 5, 6, 19), 19, (3, 3, 3), groups=19, pads=(1,) * 6,
             add=True, relu=True, gap=2),
        conv("one group and a half", (1, 6, 6, 30), 30, (3, 3), groups=10, **same),
        back("depthwise", (1, 7, 9, 19), 19, (4, 4), groups=19, strides=(2, 2), **same, add=True),
        back("depthwise s1", (1, 3, 33, 16), 16, (3, 3), groups=16, dilations=(1, 1),
             pads=(2, 1, 2, 1), scale=True),
        back("2 to 2", (1, 5, 6, 16), 16, (3, 3), groups=8, strides=(2, 1), **same,
             output_padding=(1, 0), relu=True, gap=5),
        back("2 to 4, 1-D", (2, 13, 12), 24, (5,), groups=6, strides=(3,), **one, bias=False),
        back("3-D", (1, 3, 4, 4, 8), 8, (2, 3, 2), groups=8, strides=(2, 2, 1)),
    ]  # fmt: skip
    return made


def dot_cases() -> list[Case]:
    """Few output channels; tiles of whole rows, rests of rows, dense and strided pixels."""

    def conv(name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **kw) -> Case:
        return variant_case(name, DOT, "Conv", x, outputs, kernel, **kw)

    def back(name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **kw) -> Case:
        return variant_case(name, TRANSPOSE_DOT, "ConvTranspose", x, outputs, kernel, **kw)

    same = {"pads": (1, 1, 1, 1)}
    return [
        conv("1x1 to 1", (1, 7, 37, 40), 1, (1, 1), relu=True),
        conv("1x1 to 2", (2, 5, 21, 129), 2, (1, 1), add=True, scale=True),
        conv("1x1 to 2, gap", (1, 5, 9, 64), 2, (1, 1), add=True, scale=True, gap=3),
        conv("3x3 to 3", (1, 9, 18, 33), 3, (3, 3), **same, scale=True, add=True),
        conv("3x3 to 4 s2", (1, 9, 17, 16), 4, (3, 3), **same, strides=(2, 2), bias=False),
        conv("3x3 to 1 dilated", (1, 9, 17, 20), 1, (3, 3), dilations=(2, 2), add=True),
        conv("9x9 to 3, narrow", (1, 5, 4, 32), 3, (9, 9), pads=(4, 4, 4, 4), gap=1),
        conv("1-D to 1", (1, 50, 24), 1, (5,), pads=(2, 2), scale=True),
        conv("3-D to 2", (2, 3, 4, 9, 16), 2, (3, 3, 3), pads=(1,) * 6, relu=True),
        conv("7x7 of 2 channels", (1, 12, 12, 2), 1, (7, 7), pads=(3, 3, 3, 3)),
        back("2x2 s2 to 1", (1, 5, 23, 24), 1, (2, 2), strides=(2, 2), scale=True, add=True),
        back("2x2 s2 to 1, gap", (2, 5, 9, 24), 1, (2, 2), strides=(2, 2), add=True, gap=2),
        back("4x4 s2 to 3", (1, 6, 11, 64), 3, (4, 4), strides=(2, 2), **same, scale=True,
             relu=True),
        back("1-D to 1", (1, 31, 64), 1, (9,), strides=(4,), pads=(3, 2), add=True),
    ]  # fmt: skip


def all_cases(target: Target) -> list[Case]:
    """Those whose template takes them on this target: scalar code packs no groups."""
    made = transpose_cases() + grouped_cases() + dot_cases()
    return [c for c in made if c.template.applies(c.group, target) is None]


@pytest.mark.parametrize("isa", ISAS)
def test_variants_match_onnxruntime(isa: str, tmp_path: Path) -> None:
    require_isa(isa)
    check_cases(all_cases(target_of(isa)), target_of(isa), tmp_path, extra=("-O1",))


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, all_cases, tmp_path)


def test_no_access_outside_views(tmp_path: Path) -> None:
    """Rows are computed in pieces."""
    require_isa("avx2")
    target = target_of("avx2")
    check_cases(all_cases(target), target, tmp_path, extra=SANITIZE, cut=1)


def test_sampled_knobs_compute_the_same(tmp_path: Path) -> None:
    require_isa("avx2")
    target = target_of("avx2")
    made = with_sampled_knobs(all_cases(target), target, np.random.default_rng(3))
    assert len(made) > 30
    check_cases(made, target, tmp_path, extra=("-O1",))
