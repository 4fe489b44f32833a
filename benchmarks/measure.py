"""What speed.py, tuned.py and others share: the sides of a comparison, pinning, the machine's name.

Both sides answer `round_ms(count)` with the latencies of `count` inferences. The aotgen side starts
the bench program of a generated project for each round; the rival is a process that waits between
rounds (with one thread it does not spin), so that neither disturbs the other.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

HERE = Path(__file__).resolve().parent
ROUND_SECONDS = 0.1  # what one round of one side should last
WARM_UP = 3
TOLERANCE = 1e-4  # of outputs, against onnxruntime


class Side(Protocol):
    def round_ms(self, count: int, warm_up: int = WARM_UP) -> list[float]: ...


class AotgenSide:
    """A model compiled and built by aotgen, timed by the bench program of its project.

    That program is `<model>_bench --warmup W --number N --repeat R`; its last line of JSON has
    `times_ms`, R times per inference, each the mean of N.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        board: str = "host",
        threads: int = 1,
        journal: Path | None = None,
    ) -> None:
        import aotgen

        self.project = aotgen.compile(
            model, board=board, output=folder, threads=threads, journal=journal, force=True
        )
        self.project.build()
        self.program = self._find(folder)
        self.arguments: tuple[str, ...] = ()

    def with_threads(self, threads: int) -> AotgenSide:
        """The same program, run with so many threads."""
        other = copy.copy(self)
        other.arguments = ("--threads", str(threads))
        return other

    @staticmethod
    def _find(folder: Path) -> Path:
        found = sorted(
            path for path in folder.rglob("*_bench") if path.is_file() and os.access(path, os.X_OK)
        )
        if len(found) != 1:
            raise FileNotFoundError(f"{len(found)} bench programs in {folder}, expected one")
        return found[0]

    def round_ms(self, count: int, warm_up: int = WARM_UP) -> list[float]:
        command = [str(self.program), "--warmup", str(warm_up), "--number", "1", *self.arguments]
        done = subprocess.run(
            [*command, "--repeat", str(count)], check=True, capture_output=True, text=True
        )
        times: list[float] = json.loads(done.stdout.splitlines()[-1])["times_ms"]
        return times


class OrtSide:
    """rival_ort.py in a process of its own; a context manager that ends it."""

    def __init__(self, model: Path, inputs: Path) -> None:
        command = [sys.executable, str(HERE / "rival_ort.py"), str(model), str(inputs)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version: str = self._answer()["version"]

    def __enter__(self) -> OrtSide:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # closes stdin, at which the worker ends

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"rival_ort.py ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def round_ms(self, count: int, warm_up: int = WARM_UP) -> list[float]:
        self._ask(f"run {warm_up}")
        times: list[float] = self._ask(f"run {count}")["times_ms"]
        return times

    def output(self) -> np.ndarray:
        """The first output of the last run, flattened."""
        return np.array(self._ask("output")["output"], np.float32)


def interleave(sides: Sequence[Side], rounds: int) -> list[list[float]]:
    """For each side its minimum in each round; every second round takes the sides in reverse.

    A round lasts about ROUND_SECONDS, and one inference at least; so does its warm-up.
    """
    inferences = [ROUND_SECONDS * 1e3 / min(side.round_ms(2, 1)) for side in sides]
    counts = [max(1, min(1000, round(number))) for number in inferences]
    warm_ups = [max(1, min(WARM_UP, round(number))) for number in inferences]
    minima: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        order = range(len(sides))
        for index in order if number % 2 == 0 else reversed(order):
            times = sides[index].round_ms(counts[index], warm_ups[index])
            minima[index].append(min(times))
    return minima


@contextmanager
def pinned(core: int | None = None) -> Iterator[int]:
    """Pin this process, and those that it starts, to one core (default: the last allowed)."""
    before = os.sched_getaffinity(0)
    chosen = max(before) if core is None else core
    os.sched_setaffinity(0, {chosen})
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)


def lowest(sides: Sequence[Side], rounds: int, runs: int) -> list[list[float]]:
    """For each run the minimum of each side over interleaved rounds."""
    return [[min(side) for side in interleave(sides, rounds)] for _ in range(runs)]


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """max|a - b| / max|b| over flattened arrays."""
    difference = np.abs(a.ravel().astype(np.float64) - b.ravel())
    return float(difference.max() / np.abs(b).max())


def checked_error(name: str, computed: np.ndarray, expected: np.ndarray) -> float:
    """The relative error of an output; raises ValueError when it differs from onnxruntime's."""
    error = relative_error(computed, expected)
    if not error <= TOLERANCE:
        raise ValueError(f"{name}: output differs from onnxruntime's by {error:.2g}, not timed")
    return error


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a comparison with onnxruntime."""
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--board", default="host", help="host, host-avx2 or host-scalar")
    parser.add_argument("--core", type=int, help="processor to pin to (default: the last)")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")


def check_names(
    parser: argparse.ArgumentParser, names: Iterable[str], known: Collection[str]
) -> None:
    """End the program with a message where a network is none that is known."""
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(known)}")


def machine() -> str:
    """The processor's name and the load average, for the head of a table."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, load average {os.getloadavg()[0]:.1f}"


def size(number: int) -> str:
    """Bytes in KB or MB (powers of ten), with two or three digits."""
    if number < 1e5:
        return f"{number / 1e3:.1f} KB"
    return f"{number / 1e3:.0f} KB" if number < 1e6 else f"{number / 1e6:.1f} MB"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column is text, the rest are numbers."""
    table = [list(header), ["---"] + ["--:"] * (len(header) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)
