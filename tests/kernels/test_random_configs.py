"""Whatever a search may try computes the right numbers: every template on every group that it
takes, under random configs that its check accepts; and the laws of spaces, features and canonical
configs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernels import integer_harness, test_conv_variants, test_integer, test_kernels
from kernels.harness import Case, build, check_cases, conv_case, matmul_case, pool_case
from kernels.integer_harness import IntegerCase
from kernels.test_kernels import require_isa, target_of

from aotgen.ir.graph import Group
from aotgen.schedule.base import Config, ScheduleError, Template
from aotgen.schedule.registry import anchor_templates
from aotgen.target.board import ISA_CFLAGS, load_board
from aotgen.target.host import host_runs
from aotgen.target.target import Isa, Target
from support import SANITIZE, require, require_tool

TRIES = 60
"""Draws of a config before a space counts as one of few legal ones."""


def templates(group: Group, target: Target) -> list[Template]:
    return [t for t in anchor_templates() if t.applies(group, target) is None]


def is_legal(template: Template, group: Group, target: Target, config: Config) -> bool:
    try:
        template.check(group, target, config)
    except ScheduleError:
        return False
    return True


def draw(
    template: Template, group: Group, target: Target, rng: np.random.Generator, count: int
) -> Iterator[Config]:
    """Up to ``count`` different legal configs."""
    space, seen = template.space(group, target), set()
    for _ in range(TRIES * count):
        config = Config.of(**{k.name: k.values[rng.integers(len(k.values))] for k in space})
        if config not in seen and is_legal(template, group, target, config):
            seen.add(config)
            yield config
        if len(seen) == count:
            return


def float_cases(target: Target) -> list[Case]:
    """Groups of every kind, those where a general template competes with a special one, too."""
    template = anchor_templates()[0]  # any: each case is tried with all that apply
    same = (1, 1, 1, 1)
    made = [
        conv_case("long reduction", template, (1, 6, 9, 200), 70, (3, 3), pads=same, relu=True),
        conv_case("wide 1x1", template, (1, 6, 7, 150), 200, (1, 1), add=True),
        conv_case("1x1 few outputs", template, (1, 9, 9, 64), 2, (1, 1)),
        conv_case("image", template, (1, 37, 41, 3), 24, (5, 5), strides=(2, 2), pads=(2, 2, 1, 2)),
        conv_case("deep", template, (1, 6, 7, 8, 20), 33, (3, 2, 3), pads=(1, 0, 1) * 2),
        conv_case(
            "depthwise", template, (2, 15, 13, 70), 70, (3, 3), pads=same, groups=70, add=True
        ),
        conv_case("depthwise s2", template, (1, 18, 17, 36), 36, (5, 5), strides=(2, 2), groups=36),
        matmul_case("deep product", template, (9, 700), (700, 90)),
        matmul_case("one row", template, (1, 1100), (1100, 130)),
        matmul_case("two activations", template, (3, 20, 70), (3, 70, 90), const_b=False),
        pool_case("pool", template, "max_pool", (1, 13, 17, 70), (3, 3), pads=same),
        pool_case("mean", template, "avg_pool", (2, 14, 19, 37), (2, 3), strides=(2, 2)),
    ]
    made += test_kernels.all_cases()[::3] + test_conv_variants.all_cases(target)[::2]
    return made


def with_random_configs(cases: Sequence[Case], target: Target, seed: int, count: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    made = []
    for case in cases:
        for template in templates(case.group, target):
            if case.physical and template.name != case.template.name:
                continue
            for n, config in enumerate(draw(template, case.group, target, rng, count)):
                name = f"{case.name}, {template.name} {n}: {config.as_dict()}"
                own = replace(case, name=name, template=template, config=lambda _, c=config: c)
                made.append(own)
    return made


def check_float(target: Target, folder: Path, seed: int, count: int, **kwargs: object) -> None:
    made = with_random_configs(float_cases(target), target, seed, count)
    assert len(made) > 50
    for start in range(0, len(made), 400):
        check_cases(made[start : start + 400], target, folder, extra=("-O1",), **kwargs)  # type: ignore[arg-type]


def emulated(name: str) -> dict[str, object]:
    board = load_board(name)
    require_tool(f"{board.triple}-gcc", board.emulator[0])
    return {"cc": f"{board.triple}-gcc", "emulator": board.emulator}


@pytest.mark.parametrize("isa", ["avx512"])
def test_floats(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    check_float(target_of(isa), tmp_path, seed=1, count=1)


@pytest.mark.parametrize("name", ["rpi3b-armv7"])
def test_floats_under_emulation(name: str, tmp_path: Path) -> None:
    kwargs = emulated(name)
    check_float(target_of(load_board(name).isa), tmp_path, seed=2, count=1, **kwargs)


def test_floats_in_pieces(tmp_path: Path) -> None:
    """What threads do: each computes a part of the rows, or of the panels."""
    check_float(replace(target_of("scalar"), threads=4), tmp_path, seed=3, count=1, cut=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_many_floats(isa: Isa, seed: int, tmp_path: Path) -> None:
    require_isa(isa)
    check_float(target_of(isa), tmp_path, seed=10 + seed, count=6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["rpi4", "rpi3b-armv7"])
def test_many_floats_under_emulation(name: str, seed: int, tmp_path: Path) -> None:
    kwargs = emulated(name)
    check_float(target_of(load_board(name).isa), tmp_path, seed=30 + seed, count=6, **kwargs)


@pytest.mark.slow
def test_floats_stay_within_their_views(tmp_path: Path) -> None:
    require_isa("avx2")
    target = target_of("avx2")
    cases = with_random_configs(float_cases(target), target, 50, 2)
    check_cases(cases, target, tmp_path, extra=SANITIZE)


def integer_cases(target: Target) -> list[IntegerCase]:
    return [c for c in test_integer.all_cases(target) if templates(c.group, target)]


def integers_with_random_configs(
    cases: Sequence[IntegerCase], target: Target, seed: int, count: int
) -> list[IntegerCase]:
    rng = np.random.default_rng(seed)
    made = []
    for case in cases:
        for template in templates(case.group, target):
            for n, config in enumerate(draw(template, case.group, target, rng, count)):
                knobs = config.as_dict()
                name = f"{case.name}, {template.name} {n}: {knobs}"
                made.append(replace(case, name=name, template=template, knobs=knobs))
    return made


def check_integers(
    target: Target, folder: Path, seed: int, count: int, every: int, **kwargs: object
) -> None:
    cases = integer_cases(target)[seed % every :: every]
    made = integers_with_random_configs(cases, target, seed, count)
    for start in range(0, len(made), 300):
        integer_harness.check(made[start : start + 300], target, folder, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", ["avx2"])
def test_integers(isa: Isa, tmp_path: Path) -> None:
    require(host_runs(isa), f"a CPU with {isa}")
    check_integers(Target(isa), tmp_path, 3, 1, 4, flags=("-O1", *ISA_CFLAGS[isa]))


@pytest.mark.parametrize("name", ["rpi4"])
def test_integers_under_emulation(name: str, tmp_path: Path) -> None:
    kwargs, board = emulated(name), load_board(name)
    flags = ("-O1", *board.cflags())
    check_integers(board.target(), tmp_path, 4, 1, 4, flags=flags, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_many_integers(isa: Isa, tmp_path: Path) -> None:
    require(host_runs(isa), f"a CPU with {isa}")
    check_integers(Target(isa), tmp_path, 60, 5, 1, flags=("-O1", *ISA_CFLAGS[isa]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rpi4", "rpi3b-armv7"])
def test_many_integers_under_emulation(name: str, tmp_path: Path) -> None:
    kwargs, board = emulated(name), load_board(name)
    flags = ("-O1", *board.cflags())
    check_integers(board.target(), tmp_path, 61, 4, 1, flags=flags, **kwargs)


def law_groups(target: Target) -> list[tuple[str, Group]]:
    floats = [(c.name, c.group) for c in float_cases(target)]
    return floats + [(c.name, c.group) for c in integer_cases(target)[::4]]


LAWS = ["scalar", "avx2", "avx512", "neon", "neon_armv7"]


@pytest.mark.parametrize("isa", LAWS)
def test_the_default_is_a_legal_point_of_the_space(isa: Isa) -> None:
    target = target_of(isa)
    for name, group in law_groups(target):
        for template in templates(group, target):
            space = {k.name: k.values for k in template.space(group, target)}
            default = template.default(group, target)
            where = f"{name}, {template.name}: {default.as_dict()}"
            assert space.keys() == default.as_dict().keys(), where
            assert all(v in space[k] for k, v in default.values), where
            template.check(group, target, default)
            for knob in template.space(group, target):
                assert len(set(knob.values)) == len(knob.values) > 0, where
                if knob.kind == "ordinal":
                    assert list(knob.values) == sorted(knob.values), where


@pytest.mark.parametrize("isa", LAWS)
def test_features_are_finite_numbers_of_the_same_names(isa: Isa) -> None:
    target = target_of(isa)
    rng = np.random.default_rng(5)
    for name, group in law_groups(target):
        for template in templates(group, target):
            configs = [template.default(group, target), *draw(template, group, target, rng, 3)]
            found = [template.features(group, target, c) for c in configs]
            where = f"{name}, {template.name}"
            for features, config in zip(found, configs, strict=True):
                assert all(math.isfinite(v) for v in features.values()), (where, features)
                assert features == template.features(group, target, config), where
                assert features.keys() == found[0].keys(), where
                assert {"log2_macs", "log2_model_seconds"} <= features.keys(), where


@pytest.mark.parametrize("isa", LAWS)
def test_canonical_configs_give_the_same_kernel(isa: Isa) -> None:
    """Legal, of the same text as those that they stand for, and their own representatives."""
    target = target_of(isa)
    rng = np.random.default_rng(6)
    several = 0
    for case in with_random_configs(float_cases(target), target, 6, 4):
        template, group = case.template, case.group
        config = case.config(target)  # type: ignore[misc]
        canonical = template.canonical(group, target, config)
        assert template.canonical(group, target, canonical) == canonical, case.name
        if canonical == config:
            continue
        several += 1
        assert is_legal(template, group, target, canonical), (case.name, canonical)
        space = {k.name: k.values for k in template.space(group, target)}
        assert all(v in space[k] for k, v in canonical.values), (case.name, canonical)
        if rng.random() < 0.5:
            one = build(case, target).kernel
            other = build(replace(case, config=lambda _, c=canonical: c), target).kernel
            assert one.body == other.body, (case.name, canonical.as_dict())
    assert several > 10


def test_a_convolution_has_a_large_space() -> None:
    for isa in LAWS[1:]:
        target = target_of(isa)
        case = conv_case("3x3", anchor_templates()[0], (1, 28, 28, 128), 128, (3, 3), pads=(1,) * 4)
        legal = 0.0
        rng = np.random.default_rng(7)
        for template in templates(case.group, target):
            space = template.space(case.group, target)
            tried = [
                Config.of(**{k.name: k.values[rng.integers(len(k.values))] for k in space})
                for _ in range(200)
            ]
            share = sum(is_legal(template, case.group, target, c) for c in tried) / len(tried)
            legal += share * math.prod(len(k.values) for k in space)
        assert 1e3 <= legal <= 2e6
