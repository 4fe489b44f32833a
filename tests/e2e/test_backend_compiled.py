"""onnx's own backend cases, compiled to C: what is accepted gives the expected outputs.

A sample of them in every run, all of them in the sweep.
"""

from __future__ import annotations

import pytest

from tests.e2e.backend_batches import FLOORS, Tally, batches, run_batch
from tests.support import require_tool

SAMPLE_EVERY = 9
"""The sample has every ninth case, spread over the operators."""


def _tally(group: str, every: int = 1) -> Tally:
    tally = Tally()
    for batch in batches(group, 40, every):
        run_batch(batch, tally, "host")
    return tally


def test_sample_of_backend_cases() -> None:
    require_tool("gcc")
    found = _tally("node", SAMPLE_EVERY)
    assert found.wrong == []
    assert len(found.passed) >= 0.95 * FLOORS["node"] / SAMPLE_EVERY


@pytest.mark.slow
@pytest.mark.parametrize("group", FLOORS)
def test_all_backend_cases(group: str) -> None:
    require_tool("gcc")
    found = _tally(group)
    assert found.wrong == []
    assert len(found.passed) >= FLOORS[group]
