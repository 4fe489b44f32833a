"""Winograd convolutions against numpy in float64, the algorithm's identity, and its estimated
rounding errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels.gaps import check_gaps
from kernels.harness import (
    Case,
    build,
    check_cases,
    conv_case,
    followed_by,
    run_cases,
)
from kernels.test_kernels import (
    NEON_HALVES,
    SANITIZERS,
    check_emulated,
    require_isa,
    target_of,
    with_sampled_knobs,
)

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Config, ScheduleError
from aotgen.schedule.layouts import with_layouts
from aotgen.schedule.plan import alternatives
from aotgen.schedule.winograd.conv2d_winograd import MAX_ERROR, Conv2dWinograd
from aotgen.schedule.winograd.transform import (
    SIZES,
    TRANSFORMS,
    expected_error,
    transform_weights,
)
from aotgen.target.target import Isa, Target
from support import require_sanitizers

WINOGRAD = Conv2dWinograd()
SAME = (1, 1, 1, 1)


def winograd_cases() -> list[Case]:
    """Maps around the size of a tile, paddings, tails of channels, depth, epilogues. Reductions of
    at most 120: errors of about 2e-6 are to be expected (``expected_error``), with F(4, 3).
    """

    def case(name: str, x: tuple[int, ...], outputs: int, **kwargs: object) -> Case:
        return conv_case(name, WINOGRAD, x, outputs, (3, 3), **kwargs)

    def deep(name: str, x: tuple[int, ...], outputs: int, depth: int, **kwargs: object) -> Case:
        return conv_case(name, WINOGRAD, x, outputs, (depth, 3, 3), **kwargs)

    return [
        case("same", (1, 14, 14, 32), 48, pads=SAME),
        case("one pixel", (1, 1, 1, 5), 7, pads=SAME),
        case("two rows", (1, 2, 9, 16), 16, pads=SAME, bias=False, relu=True),
        case("one column", (3, 7, 1, 12), 20, pads=SAME, add=True),
        case("valid", (1, 3, 5, 8), 20),
        case("wide pads", (1, 5, 4, 18), 33, pads=(2, 0, 1, 3), relu=True),
        case("views", (2, 13, 11, 17), 37, pads=(1, 0, 2, 1), add=True, relu=True, gap=3),
        case("whole tiles", (1, 8, 16, 20), 36, pads=SAME, add=True, gap=4),
        case("wide", (1, 4, 50, 40), 24, pads=SAME),
        deep("three frames", (1, 5, 6, 7, 8), 24, 3, pads=(1,) * 6, relu=True),
        deep("one frame", (2, 4, 6, 7, 8), 24, 1, pads=(0, 1, 1) * 2, add=True, gap=3),
        deep("two frames", (1, 7, 6, 9, 20), 19, 2, pads=(0, 1, 1, 1, 2, 0), relu=True),
        followed_by(case("long", (1, 7, 9, 20), 37, pads=SAME, add=True, gap=3), "sigmoid"),
        followed_by(case("per channel", (1, 8, 8, 20), 37, pads=SAME), "mul", 1),
    ]


def with_tile(cases: Sequence[Case], m: int) -> list[Case]:
    """The cases with tiles of m x m outputs and otherwise default knobs."""

    def config(case: Case, target: Target) -> Config:
        knobs = WINOGRAD.default(case.group, target).as_dict()
        return Config.of(**{**knobs, "wino_m": m})

    return [
        replace(c, name=f"{c.name}, F({m}, 3)", config=lambda t, c=c: config(c, t)) for c in cases
    ]


def all_cases() -> list[Case]:
    return [c for m in SIZES for c in with_tile(winograd_cases(), m)]


def conv_group(weights: np.ndarray, size: tuple[int, ...], **attrs: object) -> Group:
    """A group of one conv, same padding. ``weights``: [outputs, *kernel, channels]."""
    graph = Graph("case", [], [], [])
    axes = weights.ndim - 2
    usual = {"strides": (1,) * axes, "dilations": (1,) * axes, "groups": 1, **attrs}
    channels = weights.shape[-1] * int(usual["groups"])  # type: ignore[call-overload]
    x = Value("x", TensorType(DType.F32, (1, *size, channels)))
    node = graph.make(
        "conv",
        [x, graph.constant(weights, "w"), None],
        name="conv",
        pads=(1,) * 2 * axes,
        **usual,
    )
    return Group([node], node, "conv")


def some_weights(outputs: int, channels: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((outputs, 3, 3, channels), np.float32)


@pytest.mark.parametrize("m", SIZES)
def test_transforms_give_the_convolution(m: int) -> None:
    rng = np.random.default_rng(m)
    g, d = rng.standard_normal((3, 3)), rng.standard_normal((m + 2, m + 2))
    t = TRANSFORMS[m]
    y = t.at @ ((t.g @ g @ t.g.T) * (t.bt @ d @ t.bt.T)) @ t.at.T
    windows = np.lib.stride_tricks.sliding_window_view(d, (3, 3))
    np.testing.assert_allclose(y, np.einsum("ijab,ab->ij", windows, g), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", SIZES)
def test_weights_are_rounded_once(m: int) -> None:
    w = np.random.default_rng(1).standard_normal((70, 2, 3, 3, 5), np.float32)
    g = TRANSFORMS[m].g
    exact = np.einsum("pa,odabc,qb->pqodc", g, w.astype(np.float64), g)
    got = transform_weights(w, m)
    assert got.shape == ((m + 2) ** 2, 70, 10) and got.dtype == np.float32
    want = exact.reshape(got.shape)
    assert np.all(np.abs(got - want) <= np.spacing(np.abs(got)) * 0.5001)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_cases_match_float64(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    check_cases(all_cases(), target_of(isa), tmp_path, extra=("-O1",))


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, lambda _: all_cases(), tmp_path)


@pytest.mark.parametrize(("compiler", "flags"), SANITIZERS, ids=["gcc", "clang"])
def test_no_access_outside_views(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Tensors have just the border asked for, scratch its size: the sanitizer sees the rest."""
    require_sanitizers(compiler)
    require_isa("avx2")
    cases = with_tile(winograd_cases(), 4) + with_tile(winograd_cases()[5:7], 2)
    check_cases(cases, target_of("avx2"), tmp_path, cc=compiler, extra=flags)


@pytest.mark.parametrize("isa", [pytest.param("avx2", marks=pytest.mark.slow), "avx512"])
def test_sampled_knobs_compute_the_same(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    target = target_of(isa)
    rng = np.random.default_rng(5)
    made = [c for _ in range(2) for c in with_sampled_knobs(winograd_cases(), target, rng)]
    assert len(made) > 20
    check_cases(made, target, tmp_path, extra=("-O1",))


def test_channels_in_blocks(tmp_path: Path) -> None:
    """Inputs, outputs and residuals in blocks of a vector of channels."""
    require_isa("avx2")
    target = target_of("avx2")
    base = conv_case("3x3", WINOGRAD, (2, 9, 7, 24), 40, (3, 3), pads=SAME, add=True, relu=True)
    pairs = WINOGRAD.layouts(base.group, target)
    assert len(pairs) == 3

    def config(x: str, y: str) -> Config:
        return with_layouts(WINOGRAD.default(base.group, target), x, y)  # type: ignore[arg-type]

    cases = [
        replace(base, name=f"{x} {y}", config=lambda _, x=x, y=y: config(x, y)) for x, y in pairs
    ]
    check_cases(cases, target, tmp_path, extra=("-O1",))


def test_rows_in_pieces_give_the_same_bytes(tmp_path: Path) -> None:
    """However r0, r1 are cut, and whether they count blocks of tiles or panels of channels."""
    alone, several = (replace(target_of("scalar"), threads=n) for n in (1, 4))
    cases = with_tile(winograd_cases()[::2], 2) + with_tile(winograd_cases(), 4)
    rows = [build(c, several).kernel.rows for c in cases]
    assert sum(r > 1 for r in rows) > len(rows) // 2
    whole = run_cases(cases, alone, tmp_path, extra=("-O1",))
    for target in (alone, several):
        cut = run_cases(cases, target, tmp_path, extra=("-O1",), cut=1)
        for case, a, b in zip(cases, whole, cut, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{case.name}, {target.threads} threads")


def test_no_panels_are_no_work(tmp_path: Path) -> None:
    """[rows, rows) writes nothing, where the last panel has a vector with some channels, too."""
    require_isa("avx2")
    target = replace(target_of("avx2"), threads=3)
    base = conv_case("tail", WINOGRAD, (3, 7, 1, 12), 20, (3, 3), pads=SAME, add=True)
    knobs = {"wino_m": 4, "tile_block": 3, "mr": 2, "nr": 8, "order": "panels"}
    config = Config.of(**{**WINOGRAD.default(base.group, target).as_dict(), **knobs})
    case = replace(base, config=lambda _: config)
    kernel = build(case, target).kernel
    assert "r0, r1 count panels" in kernel.body and kernel.rows == 3
    check_cases([case], target, tmp_path, extra=("-O1",), cut=kernel.rows)


def test_gaps_between_pixels_stay_untouched(tmp_path: Path) -> None:
    """A kernel that writes a concat member must not write its neighbours."""
    check_gaps([c for c in all_cases() if c.gap], target_of("scalar"), tmp_path)


def test_errors_are_as_expected(tmp_path: Path) -> None:
    """The kernel's error is what its weights let expect, within a factor of two and a half."""
    require_isa("avx2")
    target = target_of("avx2")
    base = conv_case("deep", WINOGRAD, (1, 12, 12, 384), 32, (3, 3), pads=SAME, bias=False)
    cases = with_tile([base], 2) + with_tile([base], 4)
    weights = base.group.nodes[0].input(1).const
    assert weights is not None
    for m, got in zip(SIZES, run_cases(cases, target, tmp_path, extra=("-O1",)), strict=True):
        want = base.oracle()
        error = float(np.abs(got - want).max() / np.abs(want).max())
        expected = expected_error(weights[:, None], m)
        assert expected / 2.5 < error < expected * 2.5, (m, error, expected)


def test_inaccurate_tiles_are_refused() -> None:
    """A deep reduction rules F(4, 3) out, a deeper one F(2, 3), too; so do weights whose output is
    small against what the transform makes of them.
    """
    target = target_of("avx512")
    group = conv_group(some_weights(16, 4096), (14, 14))
    assert expected_error(some_weights(16, 4096)[:, None], 4) > MAX_ERROR
    assert WINOGRAD.applies(group, target) is None
    config = WINOGRAD.default(group, target)
    assert config["wino_m"] == 2
    with pytest.raises(ScheduleError, match=r"F\(4, 3\)"):
        WINOGRAD.check(group, target, Config.of(**{**config.as_dict(), "wino_m": 4}))
    flat = np.ones((8, 1, 3, 3, 64), np.float32)
    assert expected_error(flat, 4) != pytest.approx(expected_error(some_weights(8, 64)[:, None], 4))
    assert expected_error(1000 * flat, 4) == pytest.approx(expected_error(flat, 4))
    assert expected_error(0 * flat, 4) == 0


@pytest.mark.parametrize(
    ("reason", "kernel", "attrs"),
    [
        ("stride", (3, 3), {"strides": (2, 1)}),
        ("dilation", (3, 3), {"dilations": (1, 2)}),
        ("group", (3, 3), {"groups": 2}),
        ("3x3", (3, 5), {}),
        ("3x3", (3,), {}),
        ("stride", (3, 3, 3), {"strides": (2, 1, 1)}),
    ],
)
def test_says_why_it_does_not_apply(
    reason: str, kernel: tuple[int, ...], attrs: dict[str, object]
) -> None:
    group = conv_group(np.ones((8, *kernel, 4), np.float32), (9,) * len(kernel), **attrs)
    said = WINOGRAD.applies(group, target_of("avx2"))
    assert said is not None and reason in said


def chosen(group: Group, target: Target) -> str:
    return min(alternatives(group, target), key=lambda choice: choice.seconds).template.name


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_plan_weighs_weights_against_products(isa: Isa) -> None:
    """Winograd where pixels are many; the direct method where weights are nearly all the work, and
    where flash counts.
    """
    target = target_of(isa)
    large = conv_group(some_weights(128, 128), (28, 28))
    assert chosen(large, target) == "conv2d_winograd"
    assert chosen(large, replace(target, optimize="flash")) == "conv2d_direct"
    assert chosen(conv_group(some_weights(512, 512), (1, 1)), target) == "conv2d_direct"


def test_same_case_renders_the_same_text() -> None:
    def texts() -> list[str]:
        return [build(c, target_of("avx512")).kernel.body for c in all_cases()]

    assert texts() == texts()
