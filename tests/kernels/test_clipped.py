"""Convolutions with clipped windows, and kernels that compute row by row: the bytes of those that
read zeros around their input, without a byte around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cortex_m_runs import CC, MACHINES, cortex_m
from kernels.harness import Case, build, check_cases, conv_case, run_cases
from kernels.test_kernels import (
    DEPTHWISE,
    DIRECT,
    NEON_HALVES,
    all_cases,
    check_emulated,
    require_isa,
    target_of,
)

from aotgen.schedule.base import Config, Need
from aotgen.schedule.conv.clipping import strips
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.target.board import load_board
from aotgen.target.target import Isa, Target
from support import SANITIZE

PAIRS = 10
"""Of one program: their tensors fit a board's memory together."""


def random_cases(count: int) -> list[Case]:
    """Any kernel, stride, dilation and padding; some windows reach over both sides of a map."""
    rng = np.random.default_rng(11)
    made: list[Case] = []
    while len(made) < count:
        depthwise = bool(rng.integers(2))
        size = tuple(int(n) for n in rng.integers(3, 15, 2))
        taps = tuple(int(n) for n in rng.integers(1, 6, 2))
        strides = tuple(int(n) for n in rng.integers(1, 4, 2))
        dilations = tuple(int(n) for n in rng.integers(1, 3, 2))
        pads = tuple(
            int(rng.integers(0, taps[axis % 2])) * dilations[axis % 2] for axis in range(4)
        )
        reach = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
        if any(n + pads[i] + pads[i + 2] < reach[i] for i, n in enumerate(size)):
            continue
        channels = int(rng.integers(1, 24))
        made.append(
            conv_case(
                f"{taps} s{strides} d{dilations} pads {pads} of {size}x{channels}",
                DEPTHWISE if depthwise else DIRECT,
                (1, *size, channels),
                channels if depthwise else int(rng.integers(1, 40)),
                taps,
                strides=strides,
                pads=pads,
                dilations=dilations,
                groups=channels if depthwise else 1,
                relu=bool(rng.integers(2)),
                add=bool(rng.integers(2)),
                bias=bool(rng.integers(2)),
                gap=int(rng.integers(2)) * 3,
                seed=len(made),
            )
        )
    return [c for c in made if c.template.applies(c.group, target_of("scalar")) is None]


def _config(case: Case, target: Target) -> Config:
    return case.config(target) if case.config else case.template.default(case.group, target)


def clipped_cases(target: Target) -> list[tuple[Case, Case]]:
    """Pairs of a case as it is and with another config of its template."""
    pairs = []
    for case in [*all_cases(), *random_cases(40)]:
        usual = _config(case, target)
        for change in (case.template.clipped, case.template.by_rows):
            config = change(case.group, target, usual)
            if config is not None:
                other = replace(case, name=f"{case.name}, {change.__name__}")
                pairs.append((case, replace(other, config=lambda _, c=config: c)))
    return pairs


def changed_cases(target: Target) -> list[Case]:
    return [other for _, other in clipped_cases(target)]


def check_pairs(
    pairs: Sequence[tuple[Case, Case]], target: Target, folder: Path, **kwargs: object
) -> None:
    """The changed kernels ask for no border and give the bytes of the others, close to float64."""
    for _, case in pairs:
        needs = case.template.needs(case.group, target, _config(case, target))
        assert all(need == Need(unit_inner=need.unit_inner) for need in needs.values())
    for at in range(0, len(pairs), PAIRS):
        some = pairs[at : at + PAIRS]
        cases = [case for pair in some for case in pair]
        found = run_cases(cases, target, folder, **kwargs)  # type: ignore[arg-type]
        for (case, _), a, b in zip(some, found[::2], found[1::2], strict=True):
            want = case.oracle()
            assert np.abs(a - want).max() <= 1e-5 * np.abs(want).max(), case.name
            assert np.array_equal(a, b), case.name


def test_same_numbers(tmp_path: Path) -> None:
    target = target_of("scalar")
    pairs = clipped_cases(target)
    assert len(pairs) > 60
    check_pairs(pairs[::2], target, tmp_path, extra=("-O1",))


@pytest.mark.parametrize("core", ["m4", "m55"])
def test_same_numbers_on_cortex_m(core: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    some = clipped_cases(m.target)[1::5]
    check_pairs(some, m.target, tmp_path, cc=CC, extra=m.flags, emulator=m.emulator)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_all_numbers(isa: Isa, tmp_path: Path) -> None:
    require_isa(isa)
    target = target_of(isa)
    check_pairs(clipped_cases(target), target, tmp_path, extra=("-O1",))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["-O0", "-O3", "-Os"])
@pytest.mark.parametrize("core", ["m4", "m55"])
def test_all_numbers_on_cortex_m(core: str, level: str, tmp_path: Path) -> None:
    m = cortex_m(core)
    flags = (*m.flags, level)
    check_pairs(clipped_cases(m.target), m.target, tmp_path, cc=CC, extra=flags,
                emulator=m.emulator)  # fmt: skip


@pytest.mark.parametrize("core", ["m4", "m55"])
def test_tiles_on_cortex_m_are_assembly(core: str) -> None:
    target = load_board(MACHINES[core]).target()
    bodies = [
        build(case, target).kernel.body
        for case in changed_cases(target)
        if case.template is DIRECT and "dilated" not in case.name
    ]
    assert sum("__asm__" in body for body in bodies) > 0.9 * len(bodies)


@pytest.mark.parametrize(("name", "part"), NEON_HALVES)
def test_neon_under_emulation(name: str, part: int, tmp_path: Path) -> None:
    check_emulated(name, part, lambda target: changed_cases(target)[::4], tmp_path)


def test_no_access_outside_views(tmp_path: Path) -> None:
    """Rows are computed in pieces; nothing lies around the input."""
    require_isa("avx2")
    target = target_of("avx2")
    check_cases(changed_cases(target)[::2], target, tmp_path, extra=SANITIZE, cut=1)


@pytest.mark.parametrize("axis", [1, 2])
def test_strips_have_the_taps_that_lie_inside(axis: int) -> None:
    """Every output is in one strip, with the taps that read the input by the definition of a
    convolution.
    """
    for case in random_cases(200):
        shape = ConvShape.of(case.group.nodes[0])
        found = strips(shape, axis)
        assert [o for s in found for o in range(s.start, s.end)] == list(range(shape.out[axis]))
        for strip in found:
            for output in range(strip.start, strip.end):
                at = output * shape.stride[axis] - shape.begin[axis]
                reads = [at + k * shape.dilation[axis] for k in range(shape.kernel[axis])]
                inside = [k for k, p in enumerate(reads) if 0 <= p < shape.size[axis]]
                assert inside == list(range(strip.first, strip.first + strip.taps))
