"""The best candidates of each task inside the whole network."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import pytest
from onnx import helper

from aotgen.options import CompileOptions
from aotgen.runner.local import LocalRunner
from aotgen.target.board import load_board
from aotgen.tune import network
from aotgen.tune.journal import Record
from aotgen.tune.network import NEAR, VARIANTS, retime, variants
from aotgen.tune.run import Tunable
from aotgen.tune.space import Space
from aotgen.tune.task import Point, Task
from tests.tune.fake_measurer import record


@pytest.fixture
def tunable(tmp_path: Path) -> Tunable:
    """Two equal convolutions and another one."""
    rng = np.random.default_rng(2)
    weights = {
        "w0": rng.standard_normal((16, 16, 3, 3)).astype(np.float32),
        "w1": rng.standard_normal((16, 16, 3, 3)).astype(np.float32),
        "w2": rng.standard_normal((24, 16, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w1"], ["b"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "w2"], ["y"], "third"),
    ]
    proto = models.model(nodes, {"x": (1, 16, 20, 20)}, {"y": (1, 24, 20, 20)}, weights)
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    # With the input in rows the first convolution would be another task than the second.
    return Tunable(path, load_board("host-scalar"), CompileOptions())


def some_points(task: Task, count: int) -> list[Point]:
    space = Space(task)
    default = space.default()[0]
    points = [default, *(p for p in space.neighbours(default) if p.template == default.template)]
    return points[:count]


def timed(task: Task, *seconds: float) -> list[Record]:
    points = some_points(task, len(seconds))
    return [record(task, p, s) for p, s in zip(points, seconds, strict=True)]


def test_the_ith_project_has_the_ith_best(tunable: Tunable) -> None:
    one, two = tunable.tasks[0], tunable.tasks[-1]
    records = timed(one, 4e-4, 1e-4, 1.1e-4, 1.2e-4, 1.21e-4) + timed(two, 2e-4, 2e-4 * NEAR * 1.1)
    first, last = some_points(one, 5), some_points(two, 2)
    plans = variants([one, two], records)
    assert len(plans) == VARIANTS
    assert [p[one.key] for p in plans] == first[1:4]
    # What is much slower than the best is not tried; the best fills its place.
    assert [p[two.key] for p in plans] == [last[0]] * VARIANTS


def test_short_and_stale_ones_are_left_out(tunable: Tunable) -> None:
    one, two = tunable.tasks[0], tunable.tasks[-1]
    stale = [replace(r, kernel="0" * 16) for r in timed(one, 1e-4)]
    short = timed(two, 1e-6, 1.01e-6)
    assert variants([one, two], stale + short) == [{two.key: some_points(two, 1)[0]}]


def test_layers_are_timed(tunable: Tunable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ROUNDS", 1)
    monkeypatch.setattr(network, "REPEAT", 1)
    records = [r for task in tunable.tasks for r in timed(task, 1e-4, 1.1e-4)]
    with LocalRunner() as runner:
        found = retime(
            tunable.tasks,
            records,
            tunable.graph,
            tunable.board,
            replace(tunable.options, journal="none"),
            tunable.model,
            runner,
            "xgb seed 0",
            lambda stage: None,
        )
    assert len(found.ms) == 2 and all(0 < ms < math.inf for ms in found.ms)
    assert {(r.task, r.template, str(r.point.config)) for r in found.records} == {
        (r.task, r.template, str(r.point.config)) for r in records
    }
    for made in found.records:
        (alone,) = [r for r in records if r.task == made.task and r.point == made.point]
        assert (made.kind, made.kernel, made.features) == ("network", alone.kernel, alone.features)
        assert made.seconds == pytest.approx(sum(made.times) / len(made.times))
    # The layers are part of what the projects took.
    calls = {t.key: t.calls for t in tunable.tasks}
    total = sum(calls[r.task] * (r.seconds or 0.0) for r in found.records)
    assert 0 < total < 2e-3 * sum(found.ms)
