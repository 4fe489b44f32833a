#!/usr/bin/env python3
"""How many trials each search needs to reach 95 % of the best speed of a recorded table.

Every search starts from nothing: tables have no defaults and no modelled cost to rank points by. A
contestant's figure on a table is the median over all seeds; over the tables it is the geometric
mean. Prints a Markdown table, and with --plot draws how many runs have reached the goal by a trial.

usage: evaluate.py [--tables FOLDER] [--seeds 20] [--batch 8] [--jobs N] [--only NAME ...]
[--json F] [--plot F.svg]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]

from layers import LAYERS  # noqa: E402
from rivals import AutoTvmLike  # noqa: E402
from tables import FOLDER, Table, load  # noqa: E402

from aotgen.tune.ga import GaTuner  # noqa: E402
from aotgen.tune.model import Row  # noqa: E402
from aotgen.tune.outcome import Candidate, Outcome  # noqa: E402
from aotgen.tune.search import RandomTuner, Tuner  # noqa: E402
from aotgen.tune.xgb import XgbTuner  # noqa: E402


class Misled(XgbTuner):
    """The default search with a model that learns the right times for the wrong points."""

    def _refit(self) -> None:
        rows, order = self._rows, list(self._rows)
        random.Random(len(rows)).shuffle(order)
        self._rows = [
            Row(r.task, r.features, o.seconds, o.status) for r, o in zip(rows, order, strict=True)
        ]
        super()._refit()
        self._rows = rows


Maker = Callable[[Table, int, list[Row]], Tuner]
CONTESTANTS: dict[str, Maker] = {
    "random": lambda table, seed, others: RandomTuner(table.space, seed),
    "ga": lambda table, seed, others: GaTuner(table.space, seed),
    "AutoTVM-like": lambda table, seed, others: AutoTvmLike(table.space, seed),
    "xgb": lambda table, seed, others: XgbTuner(table.space, seed),
    "xgb, transfer": lambda table, seed, others: XgbTuner(table.space, seed, others),
    "xgb, permuted table": lambda table, seed, others: XgbTuner(table.space, seed),
    "xgb, misled model": lambda table, seed, others: Misled(table.space, seed),
}
NOTES = {
    "random": "without replacement",
    "ga": "`--tuner ga`",
    "AutoTVM-like": "64 at random, then rounds of 64 by annealing on a model that is fitted anew",
    "xgb": "`--tuner xgb`, the default",
    "xgb, transfer": "trained on the tables of the other tasks",
    "xgb, permuted table": "the seconds belong to other points: nothing can be learned",
    "xgb, misled model": "the search sees the right seconds, its model permuted ones",
}


def trials_to_goal(tuner: Tuner, table: Table, batch: int) -> int:
    """Trials until the first point within 95 % of the table's best."""
    goal, count = table.goal, 0
    while points := tuner.propose(batch):
        for point in points:
            count += 1
            if table.seconds[point] <= goal:
                return count
        # A search knows its space alone, no task.
        tuner.observe([Outcome(Candidate(None, p), "ok", table.seconds[p]) for p in points])  # type: ignore[arg-type]
    raise RuntimeError(f"{table.layer}: the search ended before it had seen every point")


@cache
def _table(layer: str, folder: Path) -> Table:
    return load(layer, folder)


def run(name: str, layer: str, seed: int, batch: int, folder: Path, layers: tuple[str, ...]) -> int:
    """One run of one contestant on one table."""
    table = _table(layer, folder)
    others: list[Row] = []
    if name == "xgb, transfer":
        others = [r for other in layers if other != layer for r in _table(other, folder).rows()]
    if name == "xgb, permuted table":
        table = table.permuted(seed)
    return trials_to_goal(CONTESTANTS[name](table, seed, others), table, batch)


def evaluate(
    layers: Iterable[str],
    names: Iterable[str],
    *,
    seeds: int,
    batch: int,
    jobs: int,
    folder: Path = FOLDER,
) -> dict[str, dict[str, list[int]]]:
    """Trials of every run: by contestant, by layer, one a seed."""
    layers, names = tuple(layers), tuple(names)
    with ProcessPoolExecutor(jobs) as pool:
        pending = {
            (name, layer, seed): pool.submit(run, name, layer, seed, batch, folder, layers)
            for name in names
            for layer in layers
            for seed in range(seeds)
        }
        found: dict[str, dict[str, list[int]]] = {}
        for (name, layer, seed), future in pending.items():
            found.setdefault(name, {}).setdefault(layer, []).append(future.result())
            if seed == seeds - 1:
                print(name, layer, statistics.median(found[name][layer]), file=sys.stderr)
    return found


def markdown(found: dict[str, dict[str, list[int]]], tables: dict[str, Table]) -> str:
    """Medians by table and their geometric mean, then what the tables are."""
    layers = list(tables)
    lines = [
        "| search | " + " | ".join(layers) + " | all | by random's | |",
        "|---" + "|--:" * (len(layers) + 2) + "|---|",
    ]
    means = {name: overall(by_layer) for name, by_layer in found.items()}
    for name, by_layer in found.items():
        medians = [f"{statistics.median(by_layer[layer]):g}" for layer in layers]
        share = f"{means[name] / means['random']:.2f}" if "random" in means else ""
        cells = [name, *medians, f"{means[name]:.1f}", share, NOTES[name]]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| table | task | points | good | best, ms | median, ms |"]
    lines.append("|---|---|--:|--:|--:|--:|")
    for layer, table in tables.items():
        times = list(table.seconds.values())
        lines.append(
            f"| {layer} | {table.title} | {len(times)} | {table.good} | {min(times) * 1e3:.3f} | "
            f"{statistics.median(times) * 1e3:.3f} |"
        )
    return "\n".join(lines)


def overall(by_layer: dict[str, list[int]]) -> float:
    """Geometric mean over the tables of the median over the seeds."""
    return statistics.geometric_mean([statistics.median(t) for t in by_layer.values()])


def plot(found: dict[str, dict[str, list[int]]], path: Path, most: int = 200) -> None:
    """The share of runs that have reached the goal, by trials."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "aotgen"
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for name, by_layer in found.items():
        counts = [c for runs in by_layer.values() for c in runs]
        shares = [sum(c <= n for c in counts) / len(counts) for n in range(most + 1)]
        style = "--" if "permuted" in name or "misled" in name else "-"
        axes.plot(range(most + 1), shares, style, label=name)
    axes.set(xlabel="trials", ylabel="runs within 95 % of the best", xlim=(0, most), ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=FOLDER)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="points of a round")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--layers", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    try:
        tables = {layer: load(layer, arguments.tables) for layer in arguments.layers}
    except FileNotFoundError as e:
        parser.error(f"{e.filename} does not exist; record.py records the tables")
    found = evaluate(
        arguments.layers,
        arguments.only,
        seeds=arguments.seeds,
        batch=arguments.batch,
        jobs=arguments.jobs,
        folder=arguments.tables,
    )
    print(markdown(found, tables))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
