#!/usr/bin/env python3
"""aotgen against LiteRT (XNNPACK) and onnxruntime on int8 networks: one thread, pinned.

The networks are those of int8_networks.py, and .tflite files named on the command line, which
LiteRT alone runs too. The figure is aotgen's minimum over that of the faster rival, of interleaved
rounds; each rival is loaded in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType

import int8_networks
import measure
import numpy as np


class LitertSide:
    """LiteRT with its default delegate, XNNPACK, in a process of its own."""

    def __init__(self, model: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--rival", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> LitertSide:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def round_ms(self, count: int, warm_up: int = measure.WARM_UP) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{warm_up} {count}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"LiteRT ended with status {self._process.wait()}")
        times: list[float] = json.loads(line)
        return times


def rival(model: str) -> int:
    """The process of ``LitertSide``: for each line "warm-up count" on stdin a list of times."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model, num_threads=1)
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]
    data = np.random.default_rng(0).integers(-128, 128, source["shape"])
    interpreter.set_tensor(source["index"], data.astype(source["dtype"]))
    for line in sys.stdin:
        warm_up, count = map(int, line.split())
        times = []
        for number in range(warm_up + count):
            start = perf_counter_ns()
            interpreter.invoke()
            if number >= warm_up:
                times.append((perf_counter_ns() - start) / 1e6)
        print(json.dumps(times), flush=True)
    return 0


@dataclass(frozen=True)
class Result:
    """One network: the minima of all runs in milliseconds, 0 where onnxruntime has no such model;
    ``ratio``: aotgen / the faster rival, the median of the runs.
    """

    network: str
    aotgen_ms: float
    litert_ms: float
    onnxruntime_ms: float
    ratio: float


def compare(
    name: str, folder: Path, board: str, rounds: int, runs: int, core: int | None
) -> Result:
    """Build and time one network of NETWORKS, or a .tflite file."""
    if name in int8_networks.NETWORKS:
        model, qdq = int8_networks.export(name, folder)
    else:
        model, qdq = Path(name), None
    ours = measure.AotgenSide(model, folder / f"{model.stem}-{board}", board)
    with measure.pinned(core), LitertSide(model) as litert:
        sides: list[measure.Side] = [ours, litert]
        if qdq is None:
            lowest = [_minima(sides, rounds) for _ in range(runs)]
        else:
            inputs = folder / f"{name}_qdq.npz"
            x = np.load(folder / f"{name}.npz")[int8_networks.INPUT].astype(np.int16) + 128
            np.savez(inputs, **{int8_networks.INPUT: x.transpose(0, 3, 1, 2).astype(np.uint8)})
            with measure.OrtSide(qdq, inputs) as ort:
                lowest = [_minima([*sides, ort], rounds) for _ in range(runs)]
    best = [min(times) for times in zip(*lowest, strict=True)]
    ratio = statistics.median(times[0] / min(times[1:]) for times in lowest)
    return Result(model.stem, best[0], best[1], best[2] if qdq else 0.0, ratio)


def _minima(sides: Sequence[measure.Side], rounds: int) -> list[float]:
    return [min(times) for times in measure.interleave(sides, rounds)]


def table(results: Sequence[Result]) -> str:
    rows = [
        (
            r.network,
            f"{r.aotgen_ms:.4f}",
            f"{r.litert_ms:.4f}",
            f"{r.onnxruntime_ms:.4f}" if r.onnxruntime_ms else "-",
            f"{r.ratio:.2f}",
        )
        for r in results
    ]
    return measure.markdown(
        ("network", "aotgen ms", "LiteRT ms", "onnxruntime ms", "ratio to the faster"), rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks or .tflite files")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--board", default="host", help="host or host-avx2")
    parser.add_argument("--core", type=int, help="processor to pin to (default: the last)")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/int8"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--rival", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rival:
        return rival(options.rival)
    results: list[Result] = []
    for name in options.names or int8_networks.NETWORKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results.append(
            compare(name, options.folder, options.board, options.rounds, options.runs, options.core)
        )
    if options.json:
        record = {"machine": measure.machine(), "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{measure.machine()}; {options.rounds} interleaved rounds, median of {options.runs}\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
