#!/usr/bin/env python3
"""A run with several threads against the same network compiled for one, on this computer.

The figure is the ratio of minima over interleaved rounds, and the median of that over several runs.
Before anything is timed, the outputs with every number of threads must be the same bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import measure
import networks

NAMES = ("resnet18", "mobilenet_v2", "squeezenet1_1", "ds_cnn")


@dataclass(frozen=True)
class Result:
    """One network. ``ms``: the lowest of all runs, by number of threads; 1 is a project that was
    compiled for one thread. ``ratios``: to that one, medians over the runs. ``shared``: part of the
    multiply-accumulates in layers that threads share.
    """

    network: str
    ms: dict[int, float]
    ratios: dict[int, float]
    shared: float


def compare(
    name: str, folder: Path, board: str, counts: Sequence[int], rounds: int, runs: int
) -> Result:
    """Export, compile, build and time one network; raises ValueError when the outputs differ."""
    model = networks.export(name, folder)
    one = measure.AotgenSide(model, folder / f"{name}-{board}-1", board)
    several = measure.AotgenSide(model, folder / f"{name}-{board}-threads", board, max(counts))
    inputs = {networks.INPUT: networks.sample_input(name)}
    want = one.project.run(inputs)[networks.OUTPUT].tobytes()
    for count in counts:
        if several.project.run(inputs, threads=count)[networks.OUTPUT].tobytes() != want:
            raise ValueError(f"{name}: {count} threads give other bytes, not timed")
    sides = [one, *(several.with_threads(count) for count in counts)]
    lowest = measure.lowest(sides, rounds, runs)
    layers = several.project.manifest["layers"]
    shared = sum(layer["macs"] for layer in layers if layer["shared"])
    return Result(
        name,
        {n: min(run[i] for run in lowest) for i, n in enumerate((1, *counts))},
        {n: statistics.median(run[i + 1] / run[0] for run in lowest) for i, n in enumerate(counts)},
        shared / max(sum(layer["macs"] for layer in layers), 1),
    )


def table(results: Sequence[Result], counts: Sequence[int]) -> str:
    header = ["network", "1 thread ms"]
    for count in counts:
        header += [f"{count} threads ms", "ratio"]
    rows = []
    for r in results:
        row = [r.network, f"{r.ms[1]:.3f}"]
        for count in counts:
            row += [f"{r.ms[count]:.3f}", f"{r.ratios[count]:.2f}"]
        rows.append([*row, f"{r.shared:.1%}"])
    return measure.markdown([*header, "MACs shared"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(NAMES)}")
    parser.add_argument("--threads", default="2", metavar="N,N", help="numbers of threads")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--board", default="host", help="host, host-avx2 or host-scalar")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    options = parser.parse_args(arguments)
    measure.check_names(parser, options.names, networks.NETWORKS)
    counts = [int(word) for word in options.threads.split(",")]
    results: list[Result] = []
    for name in options.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results.append(
            compare(name, options.folder, options.board, counts, options.rounds, options.runs)
        )
    if options.json:
        record = {"machine": measure.machine(), "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"{measure.machine()}; minima of {options.rounds} interleaved rounds, median ratio of "
        f"{options.runs} runs\n"
    )
    print(table(results, counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
