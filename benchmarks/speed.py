#!/usr/bin/env python3
"""aotgen against onnxruntime on the benchmark networks: one thread, pinned, default schedule.

The figure is the ratio of minima over interleaved rounds in one run, and the median of that over
several runs. Outputs for the same input are compared before any is timed. Under the table stand the
geometric mean of the ratios and the networks that onnxruntime runs faster.
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
import numpy as np


@dataclass(frozen=True)
class Result:
    """One network. Milliseconds: the minimum of each run; `ratio`: aotgen / onnxruntime.

    `code_bytes` is the manifest's flash without the weights.
    """

    network: str
    aotgen_ms: tuple[float, ...]
    onnxruntime_ms: tuple[float, ...]
    ratio: float
    error: float
    arena_bytes: int
    code_bytes: int
    onnxruntime_version: str


def compare(
    name: str, folder: Path, board: str, rounds: int, runs: int, core: int | None
) -> Result:
    """Export, compile, build and time one network; raises ValueError when the outputs differ."""
    model = networks.export(name, folder)
    inputs = model.with_suffix(".npz")
    ours = measure.AotgenSide(model, folder / f"{name}-{board}", board)
    with measure.pinned(core), measure.OrtSide(model, inputs) as rival:
        computed = ours.project.run({networks.INPUT: networks.sample_input(name)})
        error = measure.checked_error(name, np.asarray(computed[networks.OUTPUT]), rival.output())
        lowest = measure.lowest([ours, rival], rounds, runs)
    manifest = ours.project.manifest
    return Result(
        name,
        tuple(a for a, _ in lowest),
        tuple(b for _, b in lowest),
        statistics.median(a / b for a, b in lowest),
        error,
        manifest["arena_bytes"],
        manifest["flash_bytes"] - manifest["weights_bytes"],
        rival.version,
    )


def table(results: Sequence[Result]) -> str:
    rows = [
        (
            r.network,
            f"{min(r.aotgen_ms):.3f}",
            f"{min(r.onnxruntime_ms):.3f}",
            f"{r.ratio:.2f}",
            measure.size(r.arena_bytes),
            measure.size(r.code_bytes),
            f"{r.error:.1e}",
        )
        for r in results
    ]
    return measure.markdown(
        ("network", "aotgen ms", "onnxruntime ms", "ratio", "arena", "code", "relative error"),
        rows,
    )


def geometric_mean(results: Sequence[Result]) -> float:
    return statistics.geometric_mean([result.ratio for result in results])


def summary(results: Sequence[Result]) -> str:
    """The geometric mean of the ratios, and the networks whose ratio is above 1, worst first."""
    slower = sorted((r for r in results if r.ratio > 1), key=lambda r: -r.ratio)
    named = ", ".join(f"{r.network} ({r.ratio:.2f})" for r in slower) or "none"
    mean = geometric_mean(results)
    return f"geometric mean of {len(results)} ratios: {mean:.3f}\nslower than onnxruntime: {named}"


def remove_large_files(folder: Path, name: str) -> None:
    """Model, weights and programs of the largest networks are gigabytes; their sources stay."""
    for path in (*folder.glob(f"{name}.*"), *folder.glob(f"{name}-*/**/*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 100 << 20:
            path.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks (default: all)")
    measure.add_options(parser)
    options = parser.parse_args(arguments)
    measure.check_names(parser, options.names, networks.NETWORKS)
    results: list[Result] = []
    for name in options.names or networks.NETWORKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results.append(
            compare(name, options.folder, options.board, options.rounds, options.runs, options.core)
        )
        remove_large_files(options.folder, name)
    if options.json:
        record = {
            "machine": measure.machine(),
            "board": options.board,
            "rounds": options.rounds,
            "geometric_mean": geometric_mean(results),
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(
        f"{measure.machine()}; onnxruntime {results[0].onnxruntime_version}; minima of "
        f"{options.rounds} interleaved rounds, median ratio of {options.runs} runs\n"
    )
    print(table(results))
    print(f"\n{summary(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
