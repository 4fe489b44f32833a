"""The cost model against a formula whose values are known."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
from tune.landscape import features, rows, table

from aotgen.errors import UsageError
from aotgen.tune.model import CostModel, Row, matrix
from support import require_module

require_module("xgboost")


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def split(seed: int, count: int) -> tuple[list[Row], list[dict[str, float]], np.ndarray]:
    """``count`` rows to learn from; features and log seconds of 200 other points."""
    _, times = table(count + 200, seed)
    learn = dict(list(times.items())[:count])
    ask = list(times)[count:]
    return rows(learn, "t"), [features(p) for p in ask], np.log([times[p] for p in ask])


def test_it_predicts_log_seconds_of_points_it_has_not_seen() -> None:
    learn, ask, want = split(1, 200)
    model = CostModel("t")
    model.fit(learn)
    mean, deviation = model.predict(ask)
    assert correlation(mean, want) > 0.9
    assert abs(float((mean - want).mean())) < 0.1
    assert float(np.sqrt(((mean - want) ** 2).mean())) < 0.6 * want.std()
    assert (deviation >= 0).all()


def test_equal_rows_and_seeds_give_equal_predictions() -> None:
    learn, ask, _ = split(2, 60)
    found = []
    for seed in (3, 3, 4):
        model = CostModel("t", seed)
        model.fit(learn)
        found.append(model.predict(ask)[0])
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_other_tasks_help_whatever_their_scale(scale: float) -> None:
    learn, ask, want = split(5, 12)
    _, others = table(400, 6, shift=1)
    alone, helped = CostModel("t"), CostModel("t")
    alone.fit(learn)
    helped.fit([*rows(others, "o", scale), *learn])
    assert correlation(helped.predict(ask)[0], want) > correlation(alone.predict(ask)[0], want)
    assert abs(float((helped.predict(ask)[0] - want).mean())) < 0.3


def test_history_alone_ranks_points() -> None:
    _, ask, want = split(7, 1)
    model = CostModel("t")
    assert not model.knows
    model.fit(rows(table(400, 8)[1], "o", 7.0))
    assert model.knows
    assert correlation(model.predict(ask)[0], want) > 0.9


def test_a_misleading_source_is_faded_out() -> None:
    learn, ask, want = split(9, 150)
    _, others = table(400, 10)
    upside_down = [Row("o", features(p), 1.0 / t) for p, t in others.items()]
    alone, misled = CostModel("t"), CostModel("t")
    alone.fit(learn)
    misled.fit([*upside_down, *learn])
    assert correlation(misled.predict(ask)[0], want) > 0.9 * correlation(
        alone.predict(ask)[0], want
    )


def test_the_classifier_learns_which_points_fail() -> None:
    _, times = table(300, 11)

    def row(point: Any, time: float) -> Row:
        fails = point.config.as_dict().get("unroll") == 8
        return Row("t", features(point), None if fails else time, "crash" if fails else "ok")

    known = [row(p, t) for p, t in list(times.items())[:150]]
    ask = list(times)[150:]
    model = CostModel("t")
    model.fit(known)
    valid = model.validity([features(p) for p in ask])
    works = np.array([p.config.as_dict().get("unroll") != 8 for p in ask])
    assert valid[works].min() > 0.5 > valid[~works].max()


def test_nothing_failed_and_lost_links_do_not_count() -> None:
    learn, ask, _ = split(12, 20)
    model = CostModel("t")
    model.fit([*learn, Row("t", learn[0].features, None, "link")])
    assert (model.validity(ask) == 1.0).all()


def test_features_that_a_point_lacks_are_nan() -> None:
    found = matrix([{"a": 1.0}, {"b": 2.0}], ["a", "b"])
    np.testing.assert_array_equal(found, [[1.0, np.nan], [np.nan, 2.0]])
    assert matrix([], ["a"]).shape == (0, 1)


def test_without_xgboost_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "xgboost":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"pip install aotgen\[tune\]"):
        CostModel("t")
