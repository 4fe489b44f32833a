"""The recorded tables of benchmarks/tuner: still points of the templates' spaces, and what a search
is worth on them.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

TUNER = Path(__file__).resolve().parents[2] / "benchmarks/tuner"
sys.path.insert(0, str(TUNER))

from evaluate import CONTESTANTS, trials_to_goal  # noqa: E402
from layers import LAYERS  # noqa: E402
from tables import GOAL, load  # noqa: E402


@pytest.mark.parametrize("layer", list(LAYERS))
def test_tables_hold(layer: str) -> None:
    """``space`` raises where a template does not know a point any more."""
    table = load(layer)
    assert len(list(table.space.legal())) == len(table.seconds) >= 400
    assert table.good <= max(1, 0.01 * len(table.seconds))
    assert min(table.seconds.values()) > 0 and 0.9 < GOAL < 1


def test_the_default_search_needs_half_of_randoms_trials() -> None:
    """The median over seeds, against that of drawing without replacement."""
    table = load("conv3x3")
    points, missed, random = len(table.seconds), 1.0, 0
    while missed > 0.5:
        missed *= (points - table.good - random) / (points - random)
        random += 1
    found = [trials_to_goal(CONTESTANTS["xgb"](table, seed, []), table, 8) for seed in range(7)]
    assert statistics.median(found) <= 0.5 * random
