"""Kernels that read and write blocks of channels (NCHWc) against numpy, like their channels-last
forms; and copies between layouts.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels.harness import Case, check_cases, conv_case, followed_by, pool_case
from kernels.test_kernels import (
    DEPTHWISE,
    DIRECT,
    FIRST,
    ISAS,
    NCHW,
    NEON_HALVES,
    POINTWISE,
    POOL,
    SANITIZERS,
    check_emulated,
    dense_knobs,
    require_isa,
    target_of,
)

from aotgen.ir.types import DType
from aotgen.schedule.base import Need, View
from aotgen.schedule.layouts import in_layout, with_layouts
from aotgen.schedule.opaque.copy import border_fill, copy_nest
from aotgen.target.target import Isa, Target
from support import require_sanitizers, require_tool

PADS = (1, 1, 1, 1)


def plain_cases() -> list[Case]:
    """Groups whose channels are whole vectors of every instruction set."""

    def wise(name: str, x: tuple[int, ...], kernel: tuple[int, ...], **kwargs: object) -> Case:
        return conv_case(name, DEPTHWISE, x, x[-1], kernel, groups=x[-1], **kwargs)

    passes = dense_knobs(oh_tile=1, ow_tile=4, kc=96, next_lines=1, prefetch_bytes=64)
    blocks = dense_knobs(oh_tile=2, ow_tile=3, blocks=2, next_lines=1)
    return [
        conv_case("3x3", DIRECT, (1, 9, 14, 32), 48, (3, 3), pads=PADS, relu=True),
        conv_case(
            "3x3 s2",
            DIRECT,
            (2, 13, 11, 32),
            64,
            (3, 3),
            pads=(1, 0, 2, 1),
            strides=(2, 1),
            add=True,
        ),
        conv_case("dilated", DIRECT, (1, 9, 9, 16), 32, (3, 3), pads=PADS, dilations=(1, 2)),
        conv_case("passes", DIRECT, (2, 8, 9, 32), 96, (3, 3), pads=PADS, add=True, config=passes),
        conv_case("blocks", DIRECT, (2, 8, 9, 32), 96, (3, 3), pads=PADS, relu=True, config=blocks),
        conv_case("1-D", DIRECT, (2, 33, 16), 32, (5,), pads=(2, 2), relu=True),
        conv_case("3-D", DIRECT, (1, 5, 6, 7, 16), 32, (3, 3, 3), pads=(1,) * 6, add=True),
        followed_by(conv_case("long", DIRECT, (1, 5, 9, 16), 32, (3, 3), add=True), "sigmoid"),
        conv_case("1x1", POINTWISE, (1, 14, 14, 32), 48, (1, 1), relu=True),
        conv_case("1x1 batch", POINTWISE, (2, 13, 11, 48), 96, (1, 1), add=True, relu=True),
        conv_case("1x1 strided", POINTWISE, (1, 13, 11, 32), 96, (1, 1), strides=(2, 2), add=True),
        conv_case(
            "1x1 passes",
            POINTWISE,
            (1, 5, 5, 128),
            64,
            (1, 1),
            add=True,
            config=dense_knobs(oh_tile=4, ow_tile=1, kc=40, next_lines=2),
        ),
        conv_case("first", FIRST, (2, 17, 15, 3), 32, (3, 3), pads=PADS, physical=NCHW, add=True),
        wise("3x3", (1, 14, 14, 32), (3, 3), pads=PADS, relu=True),
        wise("s2", (2, 13, 15, 48), (3, 3), pads=PADS, strides=(2, 2), add=True),
        wise("dilated", (1, 9, 17, 16), (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), add=True),
        wise("7x7", (1, 19, 17, 16), (7, 7), pads=(3, 3, 3, 3), strides=(2, 1), bias=False),
        wise("1-D", (1, 9, 16), (5,), pads=(2, 2)),
        wise("to one pixel", (1, 3, 3, 32), (3, 3), relu=True),
        followed_by(wise("mul", (1, 7, 9, 32), (3, 3), pads=PADS), "mul", 1),
        pool_case("m", POOL, "max_pool", (2, 13, 14, 32), (3, 3), strides=(2, 2), pads=PADS),
        pool_case("m 1-D", POOL, "max_pool", (1, 33, 16), (4,), pads=(3, 3), strides=(2,)),
        pool_case("a", POOL, "avg_pool", (1, 9, 14, 48), (3, 3), pads=PADS),
        pool_case("a pad", POOL, "avg_pool", (1, 9, 14, 32), (3, 3), pads=PADS, include=True),
        pool_case("a all", POOL, "avg_pool", (1, 7, 7, 64), (7, 7)),
    ]


def layout_cases(target: Target) -> list[Case]:
    """Every plain case in every other layout its template can take."""
    made = []
    for case in plain_cases():
        chosen = case.config or (lambda t, c=case: c.template.default(c.group, t))
        for x, y in case.template.layouts(case.group, target):
            name = f"{case.name}, {x} to {y}"
            config = with_layouts(chosen(target), x, y)
            made.append(replace(case, name=name, config=lambda _, c=config: c))
    return made


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_of_channels_match_float64(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    cases = layout_cases(target_of(isa))
    assert len(cases) >= 45
    check_cases(cases, target_of(isa), tmp_path, extra=("-O1",))


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, layout_cases, tmp_path)


@pytest.mark.parametrize(("compiler", "flags"), SANITIZERS, ids=["gcc", "clang"])
def test_no_access_outside_views(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Each tensor has its own block with just the border asked for: the sanitizer sees the rest.
    Rows are computed in pieces: calls for [0, 1) and [1, rows) give what one for all does.
    """
    require_sanitizers(compiler)
    require_isa("avx2")
    target = target_of("avx2")
    check_cases(layout_cases(target), target, tmp_path, cc=compiler, extra=flags, cut=1)


def test_only_whole_blocks_of_maps_are_offered() -> None:
    """Neither channels that are no multiple of a vector nor a map of one pixel has blocks."""
    target = target_of("avx512")

    def layouts(case: Case) -> Sequence[tuple[str, str]]:
        return case.template.layouts(case.group, target)

    all_three = [("strided", "nchwc"), ("nchwc", "strided"), ("nchwc", "nchwc")]
    assert layouts(conv_case("whole", DIRECT, (1, 5, 5, 32), 32, (3, 3))) == all_three
    assert layouts(conv_case("odd", DIRECT, (1, 5, 5, 33), 33, (3, 3))) == []
    assert layouts(conv_case("odd out", DIRECT, (1, 5, 5, 32), 33, (3, 3))) == all_three[1:2]
    assert layouts(conv_case("pixel", POINTWISE, (1, 1, 1, 32), 32, (1, 1))) == []
    assert layouts(conv_case("grouped", DIRECT, (1, 5, 5, 64), 64, (3, 3), groups=2)) == []
    wise = conv_case("dw", DEPTHWISE, (1, 5, 5, 32), 32, (3, 3), groups=32)
    assert layouts(wise) == all_three[1:]


def test_a_view_of_blocks() -> None:
    """Element (n, h, w, c) of [N][C/16][H + border][W + border][16] by hand."""
    border = ((0, 0), (1, 2), (1, 1), (0, 0))
    view = View.blocked((2, 5, 7, 48), DType.F32, 16, border)
    row, plane = 9 * 16, 8 * 9 * 16
    assert view.strides == (3 * plane, row, 16, 1)
    assert (view.block_stride, view.channel_step) == (plane, plane // 16)
    assert not view.is_dense and not view.has_even_rows
    assert view.layout_name == "NCHW16c"
    strided = view.as_strided
    assert strided.shape == (2, 5, 7, 3, 16)
    assert strided.strides == (3 * plane, row, 16, plane, 1)
    wanted = in_layout(Need(border=border, unit_inner=True), "nchwc", target_of("avx512"))
    assert wanted.met_by(view)
    assert not in_layout(wanted, "nchwc", target_of("avx2")).met_by(view)
    assert not Need().met_by(view)
    assert not wanted.met_by(View.dense((2, 5, 7, 48), DType.F32))
    for shape, edge in (((1, 4, 4, 24), ()), ((1, 4, 4, 32), ((0, 0), (1, 1), (1, 1), (0, 1)))):
        with pytest.raises(ValueError, match="whole blocks"):
            View.blocked(shape, DType.F32, 16, edge)


def test_copies_between_layouts_and_their_border(tmp_path: Path) -> None:
    """There and back again, around a border that is cleared."""
    require_tool("gcc")
    target = target_of("scalar")
    shape = (2, 5, 7, 12)
    border = ((0, 0), (1, 2), (1, 1), (0, 0))
    dense, blocked = View.dense(shape, DType.F32), View.blocked(shape, DType.F32, 4, border)
    kernels = {
        "there": copy_nest(dense, blocked, DType.F32, target),
        "back": copy_nest(blocked, dense, DType.F32, target),
        "fill": border_fill(blocked, target),
    }
    text = "#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
    for name, kernel in kernels.items():
        text += kernel.body.replace("static void @KERNEL@", f"void {name}").replace(
            "@KERNEL@", name
        )
    source, library = tmp_path / "copies.c", tmp_path / "copies.so"
    source.write_text(text)
    subprocess.run(
        ["gcc", "-std=c99", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    functions = ctypes.CDLL(str(library))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    memory = np.full((2, 3, 8, 9, 4), 9e9, np.float32)
    start = sum(b[0] * s for b, s in zip(border, blocked.strides, strict=True))
    at = ctypes.c_void_p(memory.ctypes.data + 4 * start)
    rows = {name: (ctypes.c_int32(0), ctypes.c_int32(k.rows)) for name, k in kernels.items()}
    functions.fill(at, *rows["fill"])
    functions.there(x.ctypes.data_as(ctypes.c_void_p), at, *rows["there"])
    wanted = np.zeros_like(memory)
    wanted[:, :, 1:6, 1:8] = x.reshape(2, 5, 7, 3, 4).transpose(0, 3, 1, 2, 4)
    assert np.array_equal(memory, wanted)
    y = np.zeros_like(x)
    functions.back(at, y.ctypes.data_as(ctypes.c_void_p), *rows["back"])
    assert np.array_equal(y, x)


def test_model_of_conflicts_and_rows() -> None:
    """Blocks gain most where pixels lie a large power of two apart, nothing where all fits L1."""
    target = replace(target_of("avx512"), l1_ways=12)

    def gain(size: int, channels: int) -> float:
        """Seconds of channels-last over those of blocks."""
        case = conv_case(
            "dw", DEPTHWISE, (1, size, size, channels), channels, (3, 3), groups=channels, pads=PADS
        )
        config = DEPTHWISE.default(case.group, target)
        blocked = with_layouts(config, "nchwc", "nchwc")
        plain = DEPTHWISE.cost(case.group, target, config)
        return plain / DEPTHWISE.cost(case.group, target, blocked)

    def exit_cost(isa: Isa, size: int, channels: int) -> float:
        """Seconds of blocks in and channels-last out over those of blocks on both sides."""
        core = replace(target_of(isa), l1_ways=12)
        case = conv_case(
            "dw", DEPTHWISE, (1, size, size, channels), channels, (3, 3), groups=channels, pads=PADS
        )
        config = DEPTHWISE.default(case.group, core)
        out = DEPTHWISE.cost(case.group, core, with_layouts(config, "nchwc", "strided"))
        return out / DEPTHWISE.cost(case.group, core, with_layouts(config, "nchwc", "nchwc"))

    assert exit_cost("avx512", 14, 512) > 1.5 and exit_cost("avx512", 14, 480) == 1.0
    assert exit_cost("neon", 56, 144) > 1.1  # a line holds four vectors, a map of lines no L1
    assert gain(14, 512) > gain(14, 480) > 1.1
    assert gain(14, 16) == 1.0
