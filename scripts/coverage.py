"""docs/coverage.md: which real models give the stored outputs, and which operators are read.

Compiles, builds and runs every .onnx and .tflite of a collection (``scripts/model_collection.py``
says what one looks like) on a board. The text holds no times, paths or digits that change from
machine to machine: errors are rounded up.

    python -m scripts.coverage COLLECTION               writes docs/coverage.md
    python -m scripts.coverage COLLECTION --check       exit code 1 when the file is stale
    python -m scripts.coverage COLLECTION --only NAME   one model, without writing
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

import aotgen
from aotgen.frontend.onnx.registry import converter, supported
from scripts.coverage_tflite import TfliteRow, run_tflite, tflite_operators_text, tflite_text
from scripts.model_collection import Error, StoredModel, collection
from scripts.tflite_collection import tflite_models

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
DEFAULT_COLLECTION = ROOT.parent / "shared" / "models"
MIN_OPSET = 7

DOMAINS = {"": "ONNX", "ai.onnx.ml": "ai.onnx.ml", "com.microsoft": "com.microsoft"}


@dataclass(frozen=True)
class Row:
    """What became of one model.

    Attributes:
        reason: why it did not pass, empty when it did.
        worst: the error that is largest against its tolerance, over all outputs and steps.
        weights: bytes; None where it did not compile.
        arena: bytes; likewise.
    """

    model: StoredModel
    nodes: int
    reason: str = ""
    worst: float = 0.0
    tolerance: float = 0.0
    weights: int | None = None
    arena: int | None = None


def run_model(model: StoredModel, board: str, folder: Path) -> Row:
    """Compile, build, run and compare one model."""
    nodes = len(onnx.load(model.path, load_external_data=False).graph.node)
    try:
        project = aotgen.compile(model.path, board=board, output=folder, shapes=model.shapes)
    except aotgen.AotgenError as error:
        return Row(model, nodes, _first_line(error))
    weights = int(project.manifest["weights_bytes"])
    arena = int(project.manifest["arena_bytes"])
    try:
        steps = project.run_steps([model.feeds(project, s) for s in range(model.steps)])
    except aotgen.AotgenError as error:
        return Row(model, nodes, _first_line(error), weights=weights, arena=arena)
    errors = [e for s, got in enumerate(steps) for e in model.errors(list(got.values()), s)]
    worst = max(errors, key=_severity)
    wrong = [e for e in errors if not e.is_fine]
    reason = ""
    if wrong:
        e = wrong[0]
        reason = f"output {e.output} is off by {rounded_up(e.worst)}, allowed are {e.tolerance:.1e}"
    return Row(model, nodes, reason, worst.worst, worst.tolerance, weights, arena)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).splitlines()[0].split())


def _severity(error: Error) -> tuple[float, float]:
    """The error over what is allowed; of equal ones that of an output of floats counts."""
    share = error.worst / error.tolerance if error.tolerance else math.inf if error.worst else 0.0
    return share, error.tolerance


def rounded_up(value: float) -> str:
    """``value`` rounded up to 1, 2 or 5 times a power of ten."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "inf"
    exponent = math.floor(math.log10(value))
    mantissa = value / 10.0**exponent
    for digit in (1, 2, 5):
        if mantissa <= digit:
            return f"{digit}e{exponent}"
    return f"1e{exponent + 1}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120)


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def models_text(rows: Sequence[Row], board: str) -> list[str]:
    """The table of models, and the failures with their reasons."""
    passed = sum(not row.reason for row in rows)
    failed = [row for row in rows if row.reason]
    lines = [
        "## ONNX models",
        "",
        _paragraph(
            f"{passed} of {len(rows)} models of a collection compile for board {board} and give "
            "the outputs that onnxruntime, without graph optimization, gave for stored inputs. "
            "The error is the largest absolute difference of any output, rounded up to 1, 2 or 5 "
            "times a power of ten; what is allowed follows from how far the optimized modes of the "
            "same runtime are apart."
        ),
        "",
        *_table(
            (
                "model",
                "kind",
                "nodes",
                "result",
                "error",
                "allowed",
                "weights, bytes",
                "arena, bytes",
                "origin",
            ),
            (
                (
                    row.model.name,
                    row.model.kind,
                    str(row.nodes),
                    "failed" if row.reason else "passed",
                    "" if row.weights is None else rounded_up(row.worst),
                    ""
                    if row.weights is None
                    else f"{row.tolerance:.1e}".replace("e-0", "e-")
                    if row.tolerance
                    else "0",
                    _bytes(row.weights),
                    _bytes(row.arena),
                    row.model.origin,
                )
                for row in rows
            ),
        ),
    ]
    if failed:
        lines += ["", "What failed, and why:", ""]
        lines += [f"- {row.model.name}: {row.reason}" for row in failed]
    return lines


def read_versions(domain: str, op: str) -> list[int]:
    """The versions of an operator's definition that are converted, from ``MIN_OPSET``'s on; empty
    for a domain whose operators onnx does not define.
    """
    defined = sorted(
        {
            s.since_version
            for s in onnx.defs.get_all_schemas_with_history()
            if s.domain == domain and s.name == op
        }
    )
    if domain == "":
        first = max((v for v in defined if v <= MIN_OPSET), default=0)
        defined = [v for v in defined if v >= first]
    return [v for v in defined if converter(domain, op, v) is not None]


def operators_text() -> list[str]:
    """The operators by domain, each with the versions of its definition."""
    lines = [
        "## Operators",
        "",
        _paragraph(
            "Each with the versions of its definition that are read. Not every form of an operator "
            "can be compiled: `aotgen check` says what of a model cannot."
        ),
    ]
    for domain, title in DOMAINS.items():
        ops = [op for d, op in supported() if d == domain]
        lines += ["", f"### {title} ({len(ops)})", ""]
        rows = []
        for op in ops:
            versions = read_versions(domain, op)
            rows.append((op, ", ".join(map(str, versions)) or "1"))
        lines += _table(("operator", "versions"), rows)
    return [*lines, "", *tflite_operators_text()]


def cases_text() -> list[str]:
    """How many of onnx's own backend cases pass, from the tests that run them."""
    from tests.e2e.backend_batches import FLOORS as COMPILED
    from tests.frontend.test_backend_cases import FLOORS as INTERPRETED

    return [
        "## ONNX's own test cases",
        "",
        _paragraph(
            "The onnx package brings test cases with expected outputs. At least so many give them "
            "when they are run by the reference interpreter, and when they are compiled to C; the "
            "others are refused with a reason, none is wrong. The test suite holds these numbers."
        ),
        "",
        *_table(
            ("group", "interpreted", "compiled"),
            (
                (group, f"{count:,}", f"{COMPILED[group]:,}" if group in COMPILED else "")
                for group, count in INTERPRETED.items()
            ),
        ),
    ]


def page(rows: Sequence[Row], tflite_rows: Sequence[TfliteRow], board: str) -> str:
    """The whole of docs/coverage.md."""
    lines = [
        "# Coverage",
        "",
        "Written by `python -m scripts.coverage`; do not edit.",
        "",
        *models_text(rows, board),
        "",
        *tflite_text(tflite_rows, board),
        "",
        *operators_text(),
        "",
        *cases_text(),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "collection",
        type=Path,
        nargs="?",
        default=DEFAULT_COLLECTION,
        help="folder with models.json and what it lists, see scripts/model_collection.py"
        " (default: ../shared/models beside this checkout)",
    )
    # Not "host": the sizes on the page must not depend on the computer that writes it.
    parser.add_argument("--board", default="host-avx2", help="to run them on (default: host-avx2)")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 when the page is stale"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="print the result of this model (repeatable) and write nothing",
    )
    arguments = parser.parse_args()
    if not (arguments.collection / "models.json").is_file():
        parser.error(f"{arguments.collection} has no models.json")
    models = [*collection(arguments.collection), *tflite_models(arguments.collection)]
    unknown = set(arguments.only) - {model.name for model in models}
    if unknown:
        parser.error(f"the collection has no model {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    tflite_rows: list[TfliteRow] = []
    for model in models:
        if arguments.only and model.name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            if model.path.suffix == ".tflite":
                tflite_rows.append(run_tflite(model, arguments.board, Path(folder)))
                reason = tflite_rows[-1].reason
            else:
                rows.append(run_model(model, arguments.board, Path(folder) / "project"))
                reason = rows[-1].reason
        print(f"{model.name}: {reason or 'passed'}", file=sys.stderr, flush=True)
    if arguments.only:
        return int(any(row.reason for row in (*rows, *tflite_rows)))
    text = page(rows, tflite_rows, arguments.board)
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is stale: run python -m scripts.coverage", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
