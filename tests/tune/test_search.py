"""The laws of searches, and that the default one is worth its model."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from tune.landscape import formula_task, outcome, permuted, rows, seconds, table, trials_to

from aotgen.errors import UsageError
from aotgen.tune.search import TUNERS, RandomTuner, Tuner, make_tuner
from aotgen.tune.space import Space
from aotgen.tune.task import Point
from support import require_module

require_module("xgboost")

NAMES = pytest.mark.parametrize("name", list(TUNERS))


def play(tuner: Tuner, trials: int, batch: int = 8) -> list[Point]:
    """The points of a run on the formula."""
    found: list[Point] = []
    while len(found) < trials and (points := tuner.propose(min(batch, trials - len(found)))):
        found += points
        tuner.observe([outcome(p, seconds(p)) for p in points])
    return found


@NAMES
def test_no_point_twice_and_the_end_of_the_space(name: str) -> None:
    space, _ = table(60, 1)
    found = play(make_tuner(name, space, 0), 1000)
    assert len(found) == len(set(found)) == 60


@NAMES
def test_points_of_a_whole_space_are_legal_and_new(name: str) -> None:
    space = Space(formula_task())
    found = play(make_tuner(name, space, 0), 64)
    assert len(found) == len(set(found)) == 64
    assert all(space.is_legal(p) for p in found)


@NAMES
def test_equal_seeds_propose_equal_points(name: str) -> None:
    runs = [play(make_tuner(name, Space(formula_task()), seed), 40) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2] or name == "grid"


@NAMES
def test_a_resumed_search_knows_what_was_measured(name: str) -> None:
    space, times = table(60, 2)
    tuner = make_tuner(name, space, 0)
    known = list(times)[:40]
    tuner.observe([outcome(p, times[p]) for p in known])
    assert tuner.trials == 40
    assert tuner.best == (min(known, key=times.__getitem__), min(times[p] for p in known))
    found = play(tuner, 1000)
    assert sorted(map(repr, found)) == sorted(map(repr, list(times)[40:]))


@NAMES
def test_proposals_do_not_wait_for_outcomes(name: str) -> None:
    space, _ = table(60, 3)
    tuner = make_tuner(name, space, 0)
    found = [p for _ in range(20) for p in tuner.propose(7)]
    assert len(found) == len(set(found)) == 60
    assert tuner.propose(7) == []


@NAMES
def test_failures_alone_do_not_end_a_search(name: str) -> None:
    space, _ = table(60, 4)
    tuner = make_tuner(name, space, 0)
    found = []
    while points := tuner.propose(8):
        found += points
        tuner.observe([outcome(p, None, "crash") for p in points])
    assert len(set(found)) == 60
    assert tuner.best is None
    assert tuner.expected_gain() == 1.0


def test_a_lost_link_says_nothing() -> None:
    space, _ = table(20, 5)
    tuner = make_tuner("random", space)
    tuner.observe([outcome(space.point(0), None, "link")])
    assert tuner.trials == 0
    assert space.point(0) in tuner.propose(20)


def test_gains_fade_while_nothing_gets_better() -> None:
    space, _ = table(400, 6)
    for name in ("xgb", "random"):
        tuner = make_tuner(name, space, 0)
        play(tuner, 24)
        before, best = tuner.expected_gain(), tuner.best
        assert best is not None
        tuner.observe([outcome(p, best[1] * 2) for p in tuner.propose(16)])
        assert tuner.stale >= 16
        assert tuner.expected_gain() < before


def test_the_grid_goes_by_number() -> None:
    space = Space(formula_task())
    found = play(make_tuner("grid", space), 20)
    numbers = [space.index(p) for p in found]
    assert numbers == sorted(numbers)


def test_an_unknown_tuner_is_an_error() -> None:
    with pytest.raises(UsageError, match="'annealing'; use one of xgb, random, grid, ga"):
        make_tuner("annealing", Space(formula_task()))


def test_the_start_set_begins_with_the_defaults() -> None:
    space = Space(formula_task())
    assert make_tuner("xgb", space).propose(12)[:2] == space.default()


def median(make: Callable[[int], Tuner], times: dict[Point, float], seeds: int = 7) -> float:
    return statistics.median(trials_to(make(seed), times) for seed in range(seeds))


def test_the_model_beats_chance_and_genes() -> None:
    space, times = table(500, 7)
    xgb = median(lambda seed: make_tuner("xgb", space, seed), times)
    chance = median(lambda seed: RandomTuner(space, seed), times)
    genes = median(lambda seed: make_tuner("ga", space, seed), times)
    assert xgb <= 0.5 * chance
    assert xgb <= 0.7 * genes


def test_permuted_seconds_leave_nothing_to_learn() -> None:
    space, times = table(100, 8)
    wrong = [trials_to(make_tuner("xgb", space, s), permuted(times, s)) for s in range(5)]
    right = [trials_to(make_tuner("xgb", space, s), times) for s in range(5)]
    chance = [trials_to(RandomTuner(space, s), permuted(times, s)) for s in range(50)]
    assert statistics.median(wrong) > 0.5 * statistics.median(chance)
    assert statistics.median(right) < 0.5 * statistics.median(wrong)


def test_other_tasks_shorten_the_search() -> None:
    space, times = table(500, 9)
    history = rows(table(500, 10, shift=1)[1], "o", 20.0)
    alone = median(lambda seed: make_tuner("xgb", space, seed), times)
    helped = median(lambda seed: make_tuner("xgb", space, seed, history), times)
    assert helped <= 0.7 * alone


def test_rows_that_come_later_are_history_too() -> None:
    space, _ = table(300, 11)
    history = rows(table(300, 12, shift=1)[1], "o")
    told, born = make_tuner("xgb", space, 0), make_tuner("xgb", space, 0, history)
    for tuner in (told, born):
        tuner.observe([outcome(space.point(i), seconds(space.point(i))) for i in range(12)])
    told.learn(history)
    assert told.propose(8) == born.propose(8)
    make_tuner("ga", space).learn(history)


def test_points_that_fail_are_avoided() -> None:
    """A third of the space fails; once some of it was tried, few trials go there."""
    space = Space(formula_task())
    tuner = make_tuner("xgb", space, 0)
    failed = []
    for _ in range(8):
        points = tuner.propose(8)
        bad = [p.config.as_dict().get("order") == "nmk" for p in points]
        failed.append(sum(bad))
        tuner.observe(
            [
                outcome(p, None, "timeout") if b else outcome(p, seconds(p))
                for p, b in zip(points, bad, strict=True)
            ]
        )
    assert sum(failed[4:]) <= 6
