#!/usr/bin/env python3
"""Records the tables that evaluate.py replays searches on: what the points of some layers take on
this computer.

A sample of each space is measured as `aotgen tune` measures: right results, then the lowest of many
repeats. The fastest 50 are timed again until no best time of theirs falls by more than 2 %. Of the
sample, the table keeps so many points by chance that at most 1 % of them are within 95 % of the
best. Use a quiet machine: the load average is kept with the table.

usage: record.py [--board host] [--points 1000] [--sample 2000] [--core N] [--seed 0]
[--folder FOLDER] [LAYER ...]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from layers import LAYERS, layer_task  # noqa: E402
from tables import FOLDER, Table, cut, save  # noqa: E402

from aotgen.api import target_of  # noqa: E402
from aotgen.options import CompileOptions  # noqa: E402
from aotgen.target.board import load_board  # noqa: E402
from aotgen.tune.measure import MeasureOptions, make_measurer  # noqa: E402
from aotgen.tune.outcome import Candidate, Measurer  # noqa: E402
from aotgen.tune.space import ENUMERABLE, Space  # noqa: E402
from aotgen.tune.task import Point, Task  # noqa: E402

TOP = 50
AGREE = 0.02
ROUNDS = 8


def sample(task: Task, count: int, seed: int) -> list[Point]:
    """So many different points of a task by chance; all that a small space has."""
    space, rng = Space(task), random.Random(seed)
    if space.size <= ENUMERABLE:
        points = list(space.legal())
        rng.shuffle(points)
        return points[:count]
    found: dict[Point, None] = {}
    misses = 0
    while len(found) < count and misses < 1000:
        point = space.random(rng)
        if point is None:
            break
        misses = misses + 1 if point in found else 0
        found[point] = None
    return list(found)


def measured(measurer: Measurer, task: Task, points: Sequence[Point]) -> dict[Point, float]:
    """Seconds of the points that work, in the points' order."""
    found: dict[Point, float] = {}
    begin = time.monotonic()
    for start in range(0, len(points), measurer.batch):
        batch = [Candidate(task, p) for p in points[start : start + measurer.batch]]
        for outcome in measurer.measure(batch):
            if outcome.status == "ok" and outcome.seconds is not None:
                found[outcome.candidate.point] = outcome.seconds
            else:
                print(f"{outcome.status}: {outcome.candidate.point}", file=sys.stderr)
        seconds = time.monotonic() - begin
        print(f"{task.title}: {start + len(batch)}/{len(points)}, {seconds:.0f} s", file=sys.stderr)
    return {p: found[p] for p in points if p in found}


def settle(measurer: Measurer, task: Task, seconds: dict[Point, float]) -> float:
    """Time the fastest points again until no best time falls by more than 2 %; the largest fall of
    the last round.
    """
    fall = 1.0
    for _ in range(ROUNDS):
        top = sorted(seconds, key=seconds.__getitem__)[:TOP]
        fall = 0.0
        for point, again in measured(measurer, task, top).items():
            fall = max(fall, 1.0 - again / seconds[point])
            seconds[point] = min(seconds[point], again)
        if fall <= AGREE:
            break
    return fall


def record(measurer: Measurer, task: Task, layer: str, points: int, size: int, seed: int) -> Table:
    """The table of one layer."""
    seconds = measured(measurer, task, sample(task, size, seed))
    fall = settle(measurer, task, seconds)
    about = {
        "sample": len(seconds),
        "seed": seed,
        "last_fall": round(fall, 4),
        "load": [round(x, 2) for x in os.getloadavg()],
    }
    return Table(layer, task.title, task.target, cut(seconds, points, seed=seed), about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=", ".join(LAYERS))
    parser.add_argument("--board", default="host")
    parser.add_argument("--points", type=int, default=1000, help="of a table")
    parser.add_argument("--sample", type=int, default=2000, help="points that are measured")
    parser.add_argument("--core", type=int, help="that candidates stay on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.layers if name not in LAYERS]
    if unknown:
        parser.error(f"no layer {', '.join(unknown)}; there are {', '.join(LAYERS)}")
    board = load_board(arguments.board)
    target = target_of(board, CompileOptions())
    options = MeasureOptions(batch=64, cpu=arguments.core, abandon=3.0)
    for layer in arguments.layers or LAYERS:
        with closing(make_measurer(board, None, options)) as measurer:
            task = layer_task(layer, target)
            table = record(
                measurer, task, layer, arguments.points, arguments.sample, arguments.seed
            )
        path = save(table, arguments.folder)
        print(
            f"{path}: {len(table.seconds)} points, {table.good} good, {path.stat().st_size} bytes"
        )


if __name__ == "__main__":
    main()
