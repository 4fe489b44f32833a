"""Every anchor template against numpy in float64, compiled for each instruction set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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
    matmul_case,
    pool_case,
    run_cases,
)

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Config, ScheduleError
from aotgen.schedule.conv.conv2d_depthwise import Conv2dDepthwise
from aotgen.schedule.conv.conv2d_direct import Conv2dDirect
from aotgen.schedule.conv.conv2d_first import Conv2dFirst
from aotgen.schedule.conv.conv2d_pointwise import Conv2dPointwise
from aotgen.schedule.conv.pool2d import Pool2d
from aotgen.schedule.dense.matmul_gemm import MatmulBatch, MatmulGemm
from aotgen.target.board import load_board
from aotgen.target.host import detect_host
from aotgen.target.target import Isa, Target
from support import SANITIZE, SANITIZE_ALL, halves, require_sanitizers, require_tool, share

DIRECT, POINTWISE, FIRST = Conv2dDirect(), Conv2dPointwise(), Conv2dFirst()
DEPTHWISE, GEMM, BATCH, POOL = Conv2dDepthwise(), MatmulGemm(), MatmulBatch(), Pool2d()
NCHW = {"x": (0, 3, 1, 2)}


def target_of(isa: Isa) -> Target:
    return Target(isa, l1_bytes=48 * 1024, l2_bytes=1 << 20)


def dense_knobs(blocks: int = 1, **knobs: int) -> Callable[[Target], Config]:
    """Knobs with one vector of channels a tile and ``blocks`` panels a pass."""
    base = {"kc": 0, "k_unroll": 4, "next_lines": 0, "prefetch_bytes": 0, **knobs}
    return lambda target: Config.of(nr=target.vl, oc_block=blocks * target.vl, **base)


def direct_cases() -> list[Case]:
    made = [
        conv_case("same", DIRECT, (1, 14, 14, 32), 48, (3, 3), pads=(1, 1, 1, 1)),
        conv_case("rows span", DIRECT, (1, 7, 7, 64), 100, (3, 3), pads=(1, 1, 1, 1), gap=5),
        conv_case(
            "everything",
            DIRECT,
            (2, 13, 11, 17),
            37,
            (3, 3),
            pads=(1, 0, 2, 1),
            strides=(2, 1),
            dilations=(1, 2),
            add=True,
            relu=True,
            gap=3,
        ),
        conv_case("groups", DIRECT, (1, 9, 9, 32), 48, (3, 3), pads=(1, 1, 1, 1), groups=4, gap=3),
        conv_case(
            "group of one", DIRECT, (2, 6, 5, 12), 24, (3, 3), groups=12, add=True, relu=True
        ),
        conv_case("no bias", DIRECT, (1, 5, 9, 8), 16, (2, 5), pads=(0, 2, 1, 2), bias=False),
        conv_case("1-D", DIRECT, (2, 33, 12), 20, (5,), pads=(2, 2), relu=True),
        conv_case("3-D", DIRECT, (1, 5, 6, 7, 8), 24, (3, 3, 3), pads=(1,) * 6, relu=True),
        conv_case("larger than map", DIRECT, (1, 3, 3, 16), 16, (5, 5), pads=(2, 2, 2, 2)),
        conv_case("one pixel", DIRECT, (1, 1, 1, 16), 40, (1, 1), groups=2),
    ]
    passes = dense_knobs(oh_tile=1, ow_tile=4, kc=48, next_lines=1, prefetch_bytes=64)
    blocks = dense_knobs(oh_tile=2, ow_tile=3, blocks=2, next_lines=1)
    for name, config in (("passes", passes), ("blocks", blocks)):
        made.append(
            conv_case(
                name,
                DIRECT,
                (2, 8, 9, 20),
                88,
                (3, 3),
                pads=(1, 1, 1, 1),
                add=True,
                relu=True,
                config=config,
            )
        )
    return made


def remainder_cases() -> list[Case]:
    """Widths of a row and of output channels up to beyond the largest tile, short reductions."""
    made = [conv_case(f"ow{w}", DIRECT, (1, 2, w, 5), 16, (1, 2), seed=w) for w in range(2, 36, 3)]
    made += [
        conv_case(f"oc{c}", POINTWISE, (1, 2, 7, 9), c, (1, 1), seed=c, add=True)
        for c in (1, 3, 15, 16, 17, 31, 33, 40, 48, 63, 65, 77)
    ]
    made += [
        conv_case(f"ic{c}", POINTWISE, (1, 2, 3, c), 16, (1, 1), seed=c)
        for c in (1, 2, 3, 4, 5, 7, 8, 9, 13)
    ]
    return made


def other_conv_cases() -> list[Case]:
    return [
        conv_case("1x1", POINTWISE, (1, 14, 14, 32), 48, (1, 1), relu=True),
        conv_case("1x1 views", POINTWISE, (2, 13, 11, 37), 100, (1, 1), gap=3, add=True),
        conv_case("1x1 strided", POINTWISE, (1, 13, 11, 37), 100, (1, 1), strides=(2, 2)),
        conv_case("1x1 1-D", POINTWISE, (1, 13, 37), 10, (1,), add=True, relu=True),
        conv_case(
            "1x1 passes",
            POINTWISE,
            (1, 5, 5, 130),
            64,
            (1, 1),
            add=True,
            config=dense_knobs(oh_tile=4, ow_tile=1, kc=40, next_lines=2),
        ),
        conv_case(
            "first",
            FIRST,
            (1, 33, 31, 3),
            32,
            (3, 3),
            strides=(2, 2),
            pads=(1, 1, 1, 1),
            physical=NCHW,
            relu=True,
        ),
        conv_case(
            "first 7x7",
            FIRST,
            (2, 33, 31, 3),
            20,
            (7, 7),
            strides=(2, 2),
            pads=(3, 2, 3, 4),
            physical=NCHW,
            gap=2,
            add=True,
        ),
        conv_case("first 1", FIRST, (1, 20, 10, 1), 20, (10, 4), strides=(2, 2), pads=(4, 1, 5, 1)),
        conv_case("first 1-D", FIRST, (1, 20, 2), 20, (3,), dilations=(2,), pads=(4, 1)),
        conv_case("first cut off", FIRST, (1, 9, 12, 4), 8, (2, 2), strides=(5, 5), gap=1),
        conv_case("first far", FIRST, (2, 50, 1400, 1), 8, (3, 3), pads=(1,) * 4, physical=NCHW),
        conv_case("first pixels", FIRST, (1, 24, 1000, 3), 8, (3, 3), strides=(4, 4)),
    ]


def depthwise_cases() -> list[Case]:
    def case(name: str, x: tuple[int, ...], kernel: tuple[int, ...], **kwargs: object) -> Case:
        return conv_case(name, DEPTHWISE, x, x[-1], kernel, groups=x[-1], **kwargs)

    return [
        case("3x3", (1, 14, 14, 32), (3, 3), pads=(1, 1, 1, 1), relu=True),
        case("s2", (2, 13, 15, 37), (3, 3), pads=(1, 1, 1, 1), strides=(2, 2), gap=3, add=True),
        case("5x5", (1, 9, 9, 21), (5, 5), pads=(2, 2, 2, 2)),
        case("dilated", (1, 9, 17, 21), (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), add=True),
        case("1-D", (1, 9, 8), (5,), pads=(2, 2)),
        case("7x7", (1, 29, 17, 16), (7, 7), pads=(3, 3, 3, 3), strides=(2, 1)),
        case("no bias", (1, 7, 7, 96), (3, 3), pads=(1, 1, 1, 1), bias=False, relu=True),
        case("gaps in x", (1, 9, 9, 3), (2, 2), strides=(3, 3)),
    ]


def matmul_cases() -> list[Case]:
    heads = {"b": (0, 2, 1, 3)}
    return [
        matmul_case("one row", GEMM, (1, 1280), (1280, 1000)),
        matmul_case("batch", GEMM, (2, 31, 65), (65, 77), gap=3),
        matmul_case("transposed", GEMM, (128, 64), (100, 64), trans_b=True),
        matmul_case("const batch", GEMM, (3, 5, 17, 20), (3, 1, 20, 33), bias=False),
        matmul_case("deep", GEMM, (49, 2000), (2000, 200)),
        matmul_case("activations", BATCH, (4, 33, 64), (4, 64, 50), const_b=False, bias=False),
        matmul_case("scores", BATCH, (2, 4, 33, 64), (2, 4, 50, 64), const_b=False, trans_b=True),
        matmul_case("few rows", BATCH, (2, 4, 3, 64), (4, 64, 50), const_b=False, gap=2),
        matmul_case(
            "heads",
            BATCH,
            (2, 4, 60, 64),
            (2, 4, 64, 130),
            const_b=False,
            physical={"a": (0, 2, 1, 3), "b": (0, 3, 1, 2)},
        ),
        matmul_case(
            "head values", BATCH, (2, 4, 40, 64), (2, 4, 64, 64), const_b=False, physical=heads
        ),
    ]


def pool_cases() -> list[Case]:
    def case(name: str, op: str, *args: object, **kwargs: object) -> Case:
        return pool_case(name, POOL, op, *args, **kwargs)

    return [
        case("m", "max_pool", (1, 13, 14, 37), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        case("m gap", "max_pool", (2, 13, 13, 64), (3, 3), strides=(2, 2), gap=3),
        case("m dil", "max_pool", (1, 9, 9, 21), (2, 3), dilations=(2, 2), pads=(1, 2, 1, 2)),
        case("m 1-D", "max_pool", (1, 33, 21), (4,), pads=(3, 3), strides=(2,)),
        case("a", "avg_pool", (1, 13, 14, 37), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
        case(
            "a pad",
            "avg_pool",
            (1, 13, 14, 37),
            (3, 3),
            strides=(2, 2),
            pads=(1, 1, 1, 1),
            include=True,
        ),
        case(
            "a ceil",
            "avg_pool",
            (1, 12, 14, 128),
            (3, 3),
            strides=(2, 2),
            pads=(0, 0, 1, 1),
            include=True,
            extra=(1, 1),
        ),
        case("a dil", "avg_pool", (1, 12, 14, 128), (5, 3), dilations=(2, 1), pads=(3, 1, 3, 2)),
        case("a all", "avg_pool", (1, 7, 7, 128), (7, 7)),
        case("a s1", "avg_pool", (2, 9, 18, 69), (3, 3), pads=(1, 1, 1, 1), gap=3),
        case("m s1", "max_pool", (1, 14, 13, 40), (5, 5), pads=(2, 2, 2, 2)),
        case("m gaps", "max_pool", (1, 7, 29, 16), (3, 2), strides=(1, 5), dilations=(1, 2)),
        case("m one row", "max_pool", (1, 2, 31, 80), (2, 2), strides=(2, 2)),
    ]


def epilogue_cases() -> list[Case]:
    """Long element-wise epilogues, and softmax and layer_norm on finished rows."""
    graph = Graph("case", [], [], [])
    rng = np.random.default_rng(3)
    a = graph.constant(rng.standard_normal((5, 20), np.float32), "a")
    b = Value("b", TensorType(DType.F32, (3, 20, 33)))
    node = graph.make("matmul", [a, b, None], name="matmul", trans_b=False)
    const_a = Case(
        "constant a",
        Group([node], node, "matmul"),
        BATCH,
        {"b": rng.standard_normal((3, 20, 33), np.float32)},
    )
    pads = (1, 1, 1, 1)
    conv = conv_case("3x3", DIRECT, (2, 7, 9, 20), 37, (3, 3), pads=pads, add=True, gap=3)
    first = conv_case("first", FIRST, (2, 7, 9, 3), 37, (3, 3), pads=pads, add=True)
    wise = conv_case("dw", DEPTHWISE, (1, 7, 9, 37), 37, (3, 3), pads=pads, groups=37)
    scores = matmul_case(
        "scores", BATCH, (2, 4, 33, 64), (2, 4, 50, 64), const_b=False, trans_b=True, gap=3
    )
    one = matmul_case("one query", BATCH, (2, 4, 1, 64), (2, 4, 64, 50), const_b=False)
    deep = matmul_case("deep", GEMM, (128, 64), (64, 200))
    return [
        const_a,
        followed_by(conv, "sigmoid"),
        followed_by(conv, "mul", 1),
        followed_by(first, "tanh"),
        followed_by(wise, "sigmoid"),
        followed_by(conv_case("1x1", POINTWISE, (2, 7, 9, 20), 37, (1, 1)), "tanh"),
        followed_by(deep, "gelu", approximate="none"),
        followed_by(matmul_case("rows", GEMM, (3, 17, 64), (64, 50)), "softmax", axis=2),
        followed_by(deep, "layer_norm", 2, axis=1, eps=1e-5),
        followed_by(matmul_case("one row", GEMM, (1, 640), (640, 100)), "softmax", axis=1),
        followed_by(matmul_case("lone rows", GEMM, (4, 1, 64), (64, 50)), "softmax", axis=2),
        followed_by(scores, "softmax", axis=3),
        followed_by(one, "softmax", axis=3),
    ]


def all_cases() -> list[Case]:
    made = direct_cases() + other_conv_cases() + depthwise_cases() + matmul_cases()
    return made + pool_cases() + epilogue_cases()


def require_isa(isa: Isa) -> None:
    """Skip where this computer cannot run an instruction set."""
    order = ["scalar", "avx2", "avx512"]
    host = detect_host()
    if host.machine not in ("x86_64", "AMD64") or order.index(isa) > order.index(host.isa):
        pytest.skip(f"this computer does not run {isa}")


NEON_HALVES = halves("rpi4", "rpi3b-armv7")
# AVX2 has all cases under the sanitizers.
ISAS = ["scalar", pytest.param("avx2", marks=pytest.mark.slow), "avx512"]


@pytest.mark.parametrize("isa", ISAS)
def test_every_template_matches_float64(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    check_cases(all_cases() + remainder_cases(), target_of(isa), tmp_path, extra=("-O1",))


def check_emulated(
    name: str, part: int, cases_for: Callable[[Target], list[Case]], folder: Path
) -> None:
    """Check a half of the cases for a board's target in its emulator."""
    board = load_board(name)
    cc = f"{board.triple}-gcc"
    require_tool(cc, board.emulator[0])
    target = target_of(board.isa)
    cases = share(cases_for(target), part)
    check_cases(cases, target, folder, cc=cc, emulator=board.emulator, extra=("-O1",))


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, lambda _: all_cases() + remainder_cases()[::3], tmp_path)


SANITIZERS = [
    ("gcc", SANITIZE),
    pytest.param("clang", SANITIZE_ALL, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("compiler", "flags"), SANITIZERS, ids=["gcc", "clang"])
def test_no_access_outside_views(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Each tensor has its own block with just the border asked for: the sanitizer sees the rest.
    Rows are computed in pieces: calls for [0, 1) and [1, rows) give what one for all does.
    """
    require_sanitizers(compiler)
    require_isa("avx2")
    cases = all_cases() + remainder_cases()
    check_cases(cases, target_of("avx2"), tmp_path, cc=compiler, extra=flags, cut=1)


def test_gaps_between_pixels_stay_untouched(tmp_path: Path) -> None:
    """A kernel that writes a concat member must not write its neighbours."""
    check_gaps([c for c in all_cases() if c.gap], target_of("scalar"), tmp_path)


def sampled(case: Case, target: Target, rng: np.random.Generator) -> Config | None:
    """A random legal config, None when twenty draws found none."""
    space = case.template.space(case.group, target)
    for _ in range(20):
        config = Config.of(**{k.name: k.values[rng.integers(len(k.values))] for k in space})
        try:
            case.template.check(case.group, target, config)
        except ScheduleError:
            continue
        return config
    return None


def with_sampled_knobs(
    cases: Sequence[Case], target: Target, rng: np.random.Generator
) -> list[Case]:
    """The cases under random legal configs; asserts that the default lies in the space."""
    made = []
    for case in cases:
        space = {k.name: k.values for k in case.template.space(case.group, target)}
        default = case.template.default(case.group, target).as_dict()
        assert default.keys() == space.keys(), case.name
        assert all(value in space[name] for name, value in default.items()), case.name
        config = sampled(case, target, rng)
        if config is not None:
            made.append(replace(case, config=lambda _, c=config: c))
    return made


def test_sampled_knobs_compute_the_same(tmp_path: Path) -> None:
    """Whatever the knobs, the result is right."""
    require_isa("avx2")
    target = target_of("avx2")
    made = with_sampled_knobs(all_cases(), target, np.random.default_rng(11))
    assert len(made) > 30
    check_cases(made, target, tmp_path, extra=("-O1",))


def test_same_case_renders_the_same_text() -> None:
    def texts() -> Sequence[str]:
        return [build(c, target_of("avx512")).kernel.body for c in all_cases()]

    assert texts() == texts()


def test_max_pool_keeps_nan(tmp_path: Path) -> None:
    case = pool_case("nan", POOL, "max_pool", (1, 5, 5, 20), (3, 3), pads=(1, 1, 1, 1))
    case.inputs["x"][0, 2, 2, 3] = np.nan
    (got,) = run_cases([case], target_of("scalar"), tmp_path)
    assert np.isnan(got[0, 1:4, 1:4, 3]).all()
    assert np.isnan(got).sum() == 9


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_max_pool_of_nan_and_infinities(isa: Isa, tmp_path: Path) -> None:
    """NaN where a window has one, the largest element elsewhere, bit for bit."""
    require_isa(isa)
    rng = np.random.default_rng(11)
    cases = [c for c in pool_cases() if c.group.nodes[0].op == "max_pool"]
    cases += [
        pool_case(f"s{s}", POOL, "max_pool", (1, 9, 23, 85), (3, 3), strides=(s, s)) for s in (1, 2)
    ]
    cases.append(followed_by(cases[-1], "relu"))
    for case in cases:
        x = case.inputs["x"]
        for value in (np.nan, np.inf, -np.inf):
            x[rng.random(x.shape) < 0.01] = value
    for case, got in zip(cases, run_cases(cases, target_of(isa), tmp_path), strict=True):
        np.testing.assert_array_equal(got, case.oracle().astype(np.float32), err_msg=case.name)


@pytest.mark.parametrize("isa", ISAS)
def test_every_pool_tile_matches_float64(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    target = target_of(isa)
    cases = []
    for op, kernel, stride in (("max_pool", 3, 2), ("avg_pool", 3, 1), ("max_pool", 2, 2)):
        case = pool_case(
            f"{op} {kernel}",
            POOL,
            op,
            (1, 8, 27, 5 * target.vl + target.vl // 2),
            (kernel, kernel),
            strides=(stride, stride),
            pads=(1, 1, 1, 1),
        )
        for vectors, columns in itertools.product((1, 2, 4), (1, 2, 3, 4, 6, 8)):
            config = Config.of(vectors=vectors, ow_tile=columns)
            try:
                POOL.check(case.group, target, config)
            except ScheduleError:
                continue
            name = f"{case.name}, {vectors} x {columns}"
            cases.append(replace(case, name=name, config=lambda _, c=config: c))
    assert len(cases) > 15
    check_cases(cases, target, tmp_path, extra=("-O1",), cut=2)
