#!/usr/bin/env python3
"""What tuning gains: the default schedule, the tuned one and onnxruntime in one run.

For each network: tune where the journal does not hold it yet (`aotgen tune`), compile with and
without the journal, then interleave the three. One thread, pinned. The figures are ratios of minima
over the rounds, the median of several runs. Every output is compared with onnxruntime's before
anything is timed.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import measure
import networks
import numpy as np

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1", "inception_v3")


@dataclass(frozen=True)
class Result:
    """One network.

    Attributes:
        default_ms, tuned_ms, onnxruntime_ms: the minimum of each run.
        default_ratio, tuned_ratio: to onnxruntime.
        default_to_tuned: how much slower the default schedule is.
        error: of the tuned project.
        templates: how many layers each template has in the tuned project.
    """

    network: str
    default_ms: tuple[float, ...]
    tuned_ms: tuple[float, ...]
    onnxruntime_ms: tuple[float, ...]
    default_ratio: float
    tuned_ratio: float
    default_to_tuned: float
    error: float
    templates: dict[str, int]
    onnxruntime_version: str


def tune(model: Path, journal: Path, trials: int, board: str) -> None:
    """Run `aotgen tune` on a model; what the journal has is not measured again."""
    command = [sys.executable, "-m", "aotgen", "tune", str(model), "--board", board]
    command += ["--journal", str(journal), "--trials", str(trials)]
    subprocess.run(command, check=True)


def compare(name: str, options: argparse.Namespace) -> Result:
    """Tune, compile, build and time one network.

    Raises:
        ValueError: the outputs differ from onnxruntime's.
    """
    model = networks.export(name, options.folder)
    if options.trials:
        tune(model, options.journal, options.trials, options.board)
    folder = options.folder / f"{name}-{options.board}"
    default = measure.AotgenSide(
        model, Path(f"{folder}-default"), options.board, journal=Path("none")
    )
    tuned = measure.AotgenSide(
        model, Path(f"{folder}-tuned"), options.board, journal=options.journal
    )
    with (
        measure.pinned(options.core),
        measure.OrtSide(model, model.with_suffix(".npz")) as rival,
    ):
        error = 0.0
        for side in (default, tuned):
            computed = side.project.run({networks.INPUT: networks.sample_input(name)})
            error = measure.checked_error(
                name, np.asarray(computed[networks.OUTPUT]), rival.output()
            )
        lowest = measure.lowest([default, tuned, rival], options.rounds, options.runs)
    layers = tuned.project.manifest["layers"]
    return Result(
        name,
        tuple(run[0] for run in lowest),
        tuple(run[1] for run in lowest),
        tuple(run[2] for run in lowest),
        statistics.median(run[0] / run[2] for run in lowest),
        statistics.median(run[1] / run[2] for run in lowest),
        statistics.median(run[0] / run[1] for run in lowest),
        error,
        dict(sorted(collections.Counter(layer["template"] for layer in layers).items())),
        rival.version,
    )


def table(results: Sequence[Result]) -> str:
    header = (
        "network", "default ms", "tuned ms", "onnxruntime ms", "default ratio", "tuned ratio",
        "default / tuned", "relative error",
    )  # fmt: skip
    rows = [
        (
            r.network,
            f"{min(r.default_ms):.3f}",
            f"{min(r.tuned_ms):.3f}",
            f"{min(r.onnxruntime_ms):.3f}",
            f"{r.default_ratio:.2f}",
            f"{r.tuned_ratio:.2f}",
            f"{r.default_to_tuned:.2f}",
            f"{r.error:.1e}",
        )
        for r in results
    ]
    return measure.markdown(header, rows)


def report(results: Sequence[Result], options: argparse.Namespace) -> str:
    """The tables and what stands around them, in Markdown."""
    mean = statistics.geometric_mean([r.tuned_ratio for r in results])
    before = statistics.geometric_mean([r.default_ratio for r in results])
    templates: collections.Counter[str] = collections.Counter()
    for r in results:
        templates.update(r.templates)
    used = ", ".join(f"{name} ({count})" for name, count in sorted(templates.items()))
    return (
        f"{measure.machine()}; onnxruntime {results[0].onnxruntime_version}; one thread, pinned; "
        f"minima of {options.rounds} interleaved rounds, median ratio of {options.runs} runs.\n\n"
        f"{table(results)}\n\n"
        f"Geometric mean of the ratios to onnxruntime: {before:.3f} by default, {mean:.3f} tuned.\n"
        f"Templates of the tuned projects, with their layers: {used}.\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NETWORKS)}")
    parser.add_argument("--trials", type=int, default=256, help="a network; 0: only the journal")
    parser.add_argument("--journal", type=Path, default=Path("build/benchmarks/host.jsonl"))
    measure.add_options(parser)
    options = parser.parse_args(arguments)
    measure.check_names(parser, options.names, networks.NETWORKS)
    results = [compare(name, options) for name in options.names or NETWORKS]
    if options.json:
        record = {"machine": measure.machine(), "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(report(results, options), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
