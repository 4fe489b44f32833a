"""Many cases of the op sweep in one model: one compilation and one build serve them all.

The cases lie side by side in a model without edges between them; each is compared with what the
reference gives for it alone.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import aotgen
from aotgen.errors import UnsupportedError
from aotgen.options import RequantMode
from tests.e2e.quick_build import QuickModel
from tests.oracles import ORACLES, OracleLacks
from tests.tflite.sweep_models import SAMPLES, Case
from tests.tflite_builder import ModelBuilder

Array = np.ndarray
Steps = list[list[Array]]

TOLERANCE = 1e-4
"""max|a - b| / max|b| that a float output may be off by: sums are added in another order."""


UNSOUND = {
    "SVDF int8 state": "litert",  # takes the state for int16 and reads beyond its end
    "SUM int8": "litert",  # takes the input for uint8
    "SUM int16": "litert",
}
"""Operator and type, and the reference whose kernel runs without computing anything sensible."""

ENOUGH = 10
"""Cases that do not build, after which it is no longer looked for whose fault it is."""


@dataclass
class Report:
    """What became of the cases of a mode.

    Attributes:
        passed: how many gave the reference's bytes (floats: were within ``TOLERANCE``).
        wrong: a line for each that did not, or did not build.
        refused: by operator and type, why aotgen does not compile the first of such cases.
        borrowed: by operator and type, cases that only the other mode's reference runs.
        unknown: cases that no reference runs.
    """

    passed: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    borrowed: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        borrowed = ", ".join(f"{name} {count}" for name, count in sorted(self.borrowed.items()))
        return (
            f"{self.passed} passed, {len(self.wrong)} wrong, {len(self.refused)} refused, "
            f"{len(self.unknown)} without a reference; by the other reference: {borrowed or 'none'}"
        )


@dataclass(frozen=True)
class Expected:
    """A case with the outputs of each step."""

    case: Case
    outputs: Steps

    @property
    def prefix(self) -> str:
        return f"n{self.case.number}_"


def expected(case: Case, mode: RequantMode, report: Report) -> Expected | None:
    """What the reference of ``mode`` gives, or the other one's where it lacks the operator."""
    feeds = [array for step in case.feeds() for array in step]
    label = f"{case.op} {case.kind}"
    for name in sorted(ORACLES, key=lambda name: name != mode):
        if UNSOUND.get(label) == name:
            continue
        try:
            flat = ORACLES[name](case.model(), feeds, SAMPLES)
        except OracleLacks:
            continue
        if name != mode:
            report.borrowed[label] += 1
        count = len(case.outputs)
        return Expected(case, [flat[i * count : (i + 1) * count] for i in range(SAMPLES)])
    report.unknown.append(str(case))
    return None


def sweep(
    cases: Sequence[Case],
    mode: RequantMode,
    board: str = "host",
    size: int = 50,
    runner: str | None = None,
) -> Report:
    """Compile the cases for a board, ``size`` at a time, run and compare them.

    Args:
        cases: the ones that no reference runs are left out and reported.
        mode: of ``--requant``.
        board: to compile for.
        size: of a batch.
        runner: None runs in this process, closely watched; else through the project's program.
    """
    report = Report()
    known = [e for e in (expected(c, mode, report) for c in cases) if e is not None]
    for start in range(0, len(known), size):
        _run(known[start : start + size], mode, board, runner, report)
    return report


def _run(
    batch: list[Expected], mode: RequantMode, board: str, runner: str | None, report: Report
) -> None:
    """One batch; where it does not compile or build, its halves, to find out whose fault it is."""
    try:
        steps = _outputs(batch, mode, board, runner)
    except UnsupportedError as error:
        kept = _without_refused(batch, error, report)
        if len(kept) < len(batch):
            if kept:
                _run(kept, mode, board, runner, report)
            return
        report.wrong.append(f"refused without naming a node: {error}")
    except Exception as error:
        if len(batch) > 1 and len(report.wrong) < ENOUGH:
            middle = len(batch) // 2
            _run(batch[:middle], mode, board, runner, report)
            _run(batch[middle:], mode, board, runner, report)
            return
        lines = f"{type(error).__name__}: {error}".splitlines()
        more = f" and {len(batch) - 1} more" if len(batch) > 1 else ""
        report.wrong.append(f"{batch[0].case}{more}: {' '.join(lines[:4])[:400]}")
    else:
        _compare(batch, steps, report)


def _outputs(batch: list[Expected], mode: RequantMode, board: str, runner: str | None) -> Steps:
    """The outputs of each step, those of the cases one after the other."""
    b = ModelBuilder()
    for e in batch:
        e.case.add(b, e.prefix)
    fed: list[dict[str, Array]] = [{} for _ in range(SAMPLES)]
    for e in batch:
        for step, arrays in enumerate(e.case.feeds()):
            names = [
                f"{e.prefix}x{i}"
                for i, t in enumerate(e.case.inputs)
                if t is not None and t.is_input
            ]
            fed[step].update(zip(names, arrays, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batch.tflite"
        path.write_bytes(b.finish())
        project = aotgen.compile(path, board, Path(folder) / "project", weights="bin", requant=mode)
        if runner is not None:
            return [list(outputs.values()) for outputs in project.run_steps(fed, runner)]
        compiled = QuickModel(project)
        return [compiled.run(feeds) for feeds in fed]


def _without_refused(
    batch: list[Expected], error: UnsupportedError, report: Report
) -> list[Expected]:
    """The batch without the cases that ``error`` names."""
    reasons: dict[int, str] = {}
    for problem in error.problems:
        found = re.match(r"n(\d+)_", problem.node)
        if found:
            reasons[int(found[1])] = problem.reason
    for e in batch:
        if e.case.number in reasons:
            report.refused.setdefault(f"{e.case.op} {e.case.kind}", reasons[e.case.number])
    return [e for e in batch if e.case.number not in reasons]


def _compare(batch: list[Expected], steps: Steps, report: Report) -> None:
    faults: dict[int, str] = {}
    for step, outputs in enumerate(steps):
        rest = iter(outputs)
        for e in batch:
            for want in e.outputs[step]:
                fault = difference(next(rest), want)
                if fault:
                    faults.setdefault(e.case.number, f"{e.case}: step {step}: {fault}")
    report.wrong += faults.values()
    report.passed += len(batch) - len(faults)


def difference(got: Array, want: Array) -> str:
    """What is wrong with an output, or an empty string: integers equal, floats near enough."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        wrong = int(np.sum(got != want))
        if not wrong:
            return ""
        most = np.max(np.abs(got.astype(np.int64) - want.astype(np.int64)))
        return f"{wrong} of {want.size} differ, by {most} at most"
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return "other NaN or infinities"
    a, b = got[finite].astype(np.float64), want[finite].astype(np.float64)
    limit = TOLERANCE * np.max(np.abs(b), initial=1e-30)
    error = np.max(np.abs(a - b), initial=0.0)
    return "" if error <= limit else f"off by {error:.3g}, allowed {limit:.3g}"
