"""The .tflite part of docs/coverage.md: which models give the references' bytes, in which mode."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aotgen
from aotgen.frontend.tflite.registry import supported
from aotgen.options import RequantMode
from scripts.model_collection import StoredModel
from scripts.tflite_collection import MODES, compare, must_be_exact, weakness

EXACT_BOARDS = ("host-scalar", "rpi4", "rpi3b-armv7")
"""Where integer models are run besides the page's own board: it is there that bytes might differ.
"""


@dataclass(frozen=True)
class Outcome:
    """What became of a model in one mode.

    Attributes:
        result: "exact", "passed" (within what is allowed), "refused" or "failed".
        reason: why it was refused or failed.
        reference: "stored" or "wheel".
    """

    result: str
    reason: str = ""
    reference: str = "stored"


@dataclass(frozen=True)
class TfliteRow:
    """One model: what became of it in each mode, its size.

    Attributes:
        outcomes: by mode.
        operators: how many it has.
        weights: bytes; None where it did not compile.
        arena: bytes; likewise.
    """

    model: StoredModel
    outcomes: dict[RequantMode, Outcome]
    operators: int
    weights: int | None = None
    arena: int | None = None

    @property
    def reason(self) -> str:
        """Why it did not pass in one of the modes; empty when it did."""
        return next((o.reason for o in self.outcomes.values() if o.reason), "")


def run_tflite(model: StoredModel, board: str, folder: Path) -> TfliteRow:
    """Compile, build, run and compare a model in both modes; integer ones on all boards."""
    sizes: dict[str, int] = {}
    outcomes = {}
    for mode in MODES:
        found = [_run(model, mode, board, folder / f"{mode}_{board}", sizes)]
        if must_be_exact(model) and not found[0].reason:
            found += [
                _run(model, mode, other, folder / f"{mode}_{other}", None) for other in EXACT_BOARDS
            ]
        outcomes[mode] = next((o for o in found if o.reason), found[0])
    operators = _operators(model.path)
    return TfliteRow(model, outcomes, operators, sizes.get("weights"), sizes.get("arena"))


def _run(
    model: StoredModel, mode: RequantMode, board: str, folder: Path, sizes: dict[str, int] | None
) -> Outcome:
    try:
        project = aotgen.compile(model.path, board, folder, shapes=model.shapes, requant=mode)
    except aotgen.AotgenError as error:
        return Outcome("refused", _first_line(error))
    if sizes is not None:
        sizes.update(
            weights=int(project.manifest["weights_bytes"]),
            arena=int(project.manifest["arena_bytes"]),
        )
    try:
        steps = project.run_steps([model.feeds(project, s) for s in range(model.steps)])
    except aotgen.AotgenError as error:
        return Outcome("failed", f"{board}: {_first_line(error)}")
    found = compare(model, mode, [list(outputs.values()) for outputs in steps])
    if found.wrong:
        error = found.wrong[0]
        what = f"output {error.output} is off by {error.worst:.1g}, allowed {error.tolerance:.1g}"
        return Outcome("failed", f"{board}: {what}", found.reference)
    return Outcome("exact" if found.exact else "passed", "", found.reference)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).splitlines()[0].split())


def _operators(path: Path) -> int:
    import tflite

    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    return sum(model.Subgraphs(i).OperatorsLength() for i in range(model.SubgraphsLength()))


def tflite_text(rows: Sequence[TfliteRow], board: str) -> list[str]:
    """The section on TFLite models: a table, and what is behind its words."""
    passed = sum(not row.reason for row in rows)
    exact = sum(all(o.result == "exact" for o in row.outcomes.values()) for row in rows)
    boards = ", ".join((board, *EXACT_BOARDS))
    lines = [
        "## TFLite models",
        "",
        textwrap.fill(
            f"{passed} of {len(rows)} .tflite models compile for board {board} and give the "
            f"outputs of the references in both modes of `--requant`, {exact} of them byte for "
            "byte. Under `litert` the reference is what LiteRT's reference kernels gave for stored "
            "inputs, under `tflm` the tflite-micro wheel, or the stored outputs where it does not "
            "run the model (*). Models that compute in 8-bit integers have to be exact, and on "
            f"boards {boards}.",
            120,
        ),
        "",
        "| model | kind | operators | litert | tflm | weights, bytes | arena, bytes | origin |",
        f"|{'---|' * 8}",
    ]
    for row in rows:
        cells = [
            row.model.name,
            row.model.kind,
            str(row.operators),
            *(_cell(row, mode) for mode in MODES),
            "" if row.weights is None else f"{row.weights:,}",
            "" if row.arena is None else f"{row.arena:,}",
            row.model.origin,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"- {row.model.name}: {weakness(row.model)}" for row in rows if weakness(row.model)]
    if notes:
        lines += ["", "Whose stored outputs prove less, and why:", "", *notes]
    failed = [f"- {row.model.name}: {row.reason}" for row in rows if row.reason]
    if failed:
        lines += ["", "What failed or was refused, and why:", "", *failed]
    return lines


def _cell(row: TfliteRow, mode: RequantMode) -> str:
    outcome = row.outcomes[mode]
    star = "*" if mode == "tflm" and outcome.reference == "stored" and not outcome.reason else ""
    return f"{outcome.result}{star}"


def tflite_operators_text() -> list[str]:
    """The TFLite operators that are read."""
    names = sorted(supported())
    return [
        f"### TFLite ({len(names)})",
        "",
        textwrap.fill(
            "In the element types and forms that the runtimes have: `aotgen check` says what of a "
            "model cannot be compiled.",
            120,
        ),
        "",
        textwrap.fill(", ".join(f"`{name}`" for name in names), 120),
    ]
