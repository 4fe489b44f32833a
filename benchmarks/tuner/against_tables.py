#!/usr/bin/env python3
"""A real search against the best point of a recorded table, both timed again side by side.

For each layer: the search measures candidates on this computer, from the default on, as `aotgen
tune` does. Then its best point and the table's three best are timed in turns; the figure is the
ratio of the lowest times. Use a quiet machine.

usage: against_tables.py [--trials 128] [--seed 0] [--core N] [--folder FOLDER] [LAYER ...]
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from layers import LAYERS, layer_task  # noqa: E402
from tables import FOLDER, load  # noqa: E402

from aotgen.api import target_of  # noqa: E402
from aotgen.options import CompileOptions  # noqa: E402
from aotgen.target.board import load_board  # noqa: E402
from aotgen.tune.measure import MeasureOptions, make_measurer  # noqa: E402
from aotgen.tune.outcome import Candidate, Measurer  # noqa: E402
from aotgen.tune.search import Tuner  # noqa: E402
from aotgen.tune.space import Space  # noqa: E402
from aotgen.tune.task import Point, Task  # noqa: E402
from aotgen.tune.xgb import XgbTuner  # noqa: E402

DEFAULT_LAYERS = ("conv3x3", "conv1x1", "gemm")
ROUNDS = 10
RIVALS = 3


def search(tuner: Tuner, measurer: Measurer, task: Task, trials: int) -> Point:
    """The best point of so many trials."""
    while tuner.trials < trials:
        points = tuner.propose(min(16, trials - tuner.trials))
        if not points:
            break
        tuner.observe(list(measurer.measure([Candidate(task, p) for p in points])))
    assert tuner.best is not None, f"{task.title}: no candidate worked"
    return tuner.best[0]


def lowest(measurer: Measurer, task: Task, points: list[Point]) -> dict[Point, float]:
    """Seconds of each point, the lowest of some rounds in which they take turns."""
    found: dict[Point, float] = {}
    for number in range(ROUNDS):
        order = points if number % 2 == 0 else points[::-1]
        for outcome in measurer.measure([Candidate(task, p) for p in order]):
            if outcome.seconds is not None:
                point = outcome.candidate.point
                found[point] = min(found.get(point, outcome.seconds), outcome.seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=", ".join(LAYERS))
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=int, help="that candidates stay on")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the tables")
    arguments = parser.parse_args()
    board = load_board("host")
    print("| layer | trials | found, ms | table's best, ms | ratio | template |")
    print("|---|--:|--:|--:|--:|---|")
    for layer in arguments.layers or DEFAULT_LAYERS:
        table = load(layer, arguments.folder)
        if target_of(board, CompileOptions()) != table.target:
            parser.error(f"table {layer} was recorded on another computer; record it anew")
        task = layer_task(layer, table.target)
        options = MeasureOptions(batch=16, cpu=arguments.core)
        with closing(make_measurer(board, None, options)) as measurer:
            found = search(XgbTuner(Space(task), arguments.seed), measurer, task, arguments.trials)
            rivals = sorted(table.seconds, key=table.seconds.__getitem__)[:RIVALS]
            times = lowest(measurer, task, list(dict.fromkeys([found, *rivals])))
        best = min(times[p] for p in rivals)
        print(
            f"| {layer} | {arguments.trials} | {times[found] * 1e3:.4f} | {best * 1e3:.4f} |"
            f" {times[found] / best:.3f} | {found.template} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
