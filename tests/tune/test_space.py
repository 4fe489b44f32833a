"""The laws of spaces: numbering, legality, neighbours."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from kernels.harness import conv_case
from tune.landscape import formula_task, spaces, table

from aotgen.schedule.base import Config
from aotgen.schedule.registry import anchor_templates, candidates
from aotgen.target.target import Isa, Target
from aotgen.tune.space import SearchSpace, Space
from aotgen.tune.task import Point, Task

SPACES = pytest.mark.parametrize("space", spaces(), ids=["templates", "table"])


@SPACES
def test_index_and_point_are_inverse(space: SearchSpace) -> None:
    points = [space.point(i) for i in range(space.size)]
    assert [space.index(p) for p in points] == list(range(space.size))
    assert len(set(points)) == space.size
    for index in (-1, space.size):
        with pytest.raises(IndexError):
            space.point(index)
    with pytest.raises(KeyError):
        space.index(Point("tiled", Config.of(mr=5)))


def test_size_is_the_product_of_all_knobs() -> None:
    space = Space(formula_task())
    assert space.size == 12 * 6 * 5 * 4 * 4 * 3 + 4 * 2 * 2
    assert space.point(space.size - 1).config == Config.of(mr=6, unroll=4, packed=True)


@SPACES
def test_places_lead_back_to_their_points(space: SearchSpace) -> None:
    for point in itertools.islice(space.legal(), 300):
        place = space.place(point)
        assert space.at(point.template, place) == point
        assert space.near(point.template, place) == point


def test_random_points_are_legal_and_reach_every_template() -> None:
    space, rng = Space(formula_task()), random.Random(0)
    found = [space.random(rng) for _ in range(300)]
    for point in found:
        assert point is not None
        assert space.is_legal(point)
        assert space.representative(point) == point
    assert {p.template for p in found if p} == {"tiled", "plain"}


def test_legal_points_are_those_that_the_check_accepts() -> None:
    space = Space(formula_task())
    legal = set(space.legal())
    tiles = [(m, n) for m in range(1, 13) for n in (1, 2, 3, 4, 6, 8) if m * n <= 28]
    without_panels, with_panels = 4 * 3, 4 * 4 * 4 * 3
    assert len(legal) == len(tiles) * (without_panels + with_panels) + 16
    assert not space.is_legal(Point("tiled", Config.of(mr=1)))
    assert not space.is_legal(Point("other", Config()))


def test_neighbours_are_legal_and_one_change_away() -> None:
    space, rng = Space(formula_task()), random.Random(1)
    for _ in range(100):
        point = space.random(rng)
        assert point is not None
        near = space.neighbours(point)
        assert len(set(near)) == len(near)
        assert point not in near
        for other in near:
            assert space.is_legal(other)
            if other.template == point.template:
                pairs = zip(point.config.values, other.config.values, strict=True)
                changed = [a[0] for a, b in pairs if a != b]
                assert len(changed) == 1 or set(changed) == {"kc", "ahead"}


def test_neighbours_within_a_template_are_mutual() -> None:
    space, rng = Space(formula_task()), random.Random(2)
    for _ in range(100):
        point = space.random(rng)
        assert point is not None
        for other in space.neighbours(point):
            panels = [p.config.as_dict().get("kc") != 0 for p in (point, other)]
            if other.template == point.template and panels[0] == panels[1]:
                assert point in space.neighbours(other)


def test_steps_go_on_over_what_is_not_legal() -> None:
    """nr = 8 allows at most three rows: from nr = 6 with four rows there is no way up."""
    space = Space(formula_task())
    base = {"kc": 64, "unroll": 1, "ahead": 0, "order": "mnk"}
    near = space.neighbours(Point("tiled", Config.of(mr=4, nr=6, **base)))
    assert Point("tiled", Config.of(mr=4, nr=4, **base)) in near
    assert Point("tiled", Config.of(mr=4, nr=8, **base)) not in near
    assert {p.config["order"] for p in near if p.template == "tiled"} == {"mnk", "nmk", "kmn"}


def test_another_template_keeps_the_knobs_it_shares() -> None:
    space = Space(formula_task())
    point = Point("tiled", Config.of(mr=5, nr=2, kc=0, unroll=4, ahead=0, order="nmk"))
    assert Point("plain", Config.of(mr=4, unroll=4, packed=False)) in space.neighbours(point)


def test_knobs_without_effect_are_stepped_over() -> None:
    space = Space(formula_task())
    point = Point("tiled", Config.of(mr=2, nr=2, kc=0, unroll=1, ahead=0, order="mnk"))
    assert all(p.config["ahead"] == 0 for p in space.neighbours(point) if p.template == "tiled")


def test_neighbours_in_a_table_are_mutual_and_the_nearest() -> None:
    space, _ = table(200, 3)
    for point in space.legal():
        near = space.neighbours(point)
        assert point not in near
        assert len(near) >= min(10, 1)
        assert all(point in space.neighbours(other) for other in near)
        assert all(other.template == point.template for other in near)


def test_every_search_finds_its_own_way_in_a_table() -> None:
    assert table(50, 4)[0].default() == []


def test_the_defaults_are_points_of_the_space() -> None:
    space = Space(formula_task())
    found = space.default()
    assert {p.template for p in found} == {"tiled", "plain"}
    assert all(space.is_legal(p) for p in found)


def test_the_first_default_is_that_of_compile() -> None:
    """Not of a general template whose model does not know what it loses to a special one."""
    target = Target("neon", "cortex-a72", l2_bytes=1 << 20, l1_ways=2)
    template = anchor_templates()[0]
    group = conv_case(
        "c", template, (1, 112, 112, 64), 64, (3, 3), strides=(2, 2), pads=(0, 0, 1, 1), groups=64
    ).group
    (expected,) = candidates(group, target)
    first, *rest = Space(Task("0" * 16, "", "conv", group, target, ("c",))).default()
    assert first.template == expected.name == "conv2d_depthwise"
    assert [p.template for p in rest] == ["conv2d_direct"]


@pytest.mark.parametrize("isa", ["avx512", "neon", "scalar"])
def test_the_laws_hold_for_the_spaces_of_a_real_convolution(isa: Isa) -> None:
    """3x3 and stride 1: several templates, knobs that exclude each other."""
    template = anchor_templates()[0]
    group = conv_case("c", template, (1, 14, 14, 32), 48, (3, 3), pads=(1,) * 4, relu=True).group
    space = Space(Task("0" * 16, "", "conv", group, Target(isa), ("c",)))
    defaults, rng = space.default(), random.Random(3)
    assert len(defaults) >= 2
    assert len({p.template for p in defaults}) == len(defaults)
    for point in [*defaults, *(space.random(rng) for _ in range(40))]:
        assert point is not None
        assert space.is_legal(point)
        assert space.representative(point) == point
        assert space.point(space.index(point)) == point
        assert all(math.isfinite(value) for value in space.features(point).values())
        near = space.neighbours(point)
        assert near
        assert point not in near
        assert all(space.is_legal(p) and space.representative(p) == p for p in near)
