"""``aotgen compare``: which of several projects is faster, and by how much."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity, open_project
from aotgen.report.text import digits, table

if TYPE_CHECKING:
    from aotgen.comparison import Comparison


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR DIR...", help="Projects; the first is what the others are compared with."
        ),
    ],
    runner: opt.Runner = None,
    board: opt.OwnBoard = None,
    rounds: Annotated[
        int, typer.Option("--rounds", help="How often each is timed, in turns.")
    ] = 10,
    threads: opt.Threads = 1,
    cores: opt.Cores = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--number", help="Runs that a time is the mean of; default takes about 50 ms."
        ),
    ] = None,
    no_governor: opt.NoGovernor = False,
    as_json: opt.Json = False,
) -> None:
    """Time projects in turns on one board.

    Prints the lowest times, and their ratios to the first's. Under an emulator runs are
    counted, and their time modelled, in place of timed. Microcontrollers hold one image:
    --runner serial:A,serial:B has one for each project.
    """
    from aotgen.comparison import compare as compare_projects
    from aotgen.runner.select import runner_for

    projects = [open_project(folder, board) for folder in folders]
    with (
        activity("building and timing") as shown,
        nullcontext(runner)
        if runner is None or projects[0].board.is_bare
        else runner_for(runner, projects[0].board, shown) as place,
    ):
        result = compare_projects(
            projects,
            place,
            rounds=rounds,
            threads=threads,
            cores=cores,
            number=number,
            governor=not no_governor,
        )
    for text in result.warnings:
        print(f"aotgen: warning: {text}", file=sys.stderr)
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else _text(result))


def _text(result: Comparison) -> str:
    lines = [_counts(result) if result.entries[0].cost else _times(result), ""]
    what = {
        "min_ms": "time",
        "modelled_ms": "modelled time",
        "instructions": "instructions",
    }[result.by]
    first = result.entries[0].folder
    for entry, ratio in zip(result.entries[1:], result.ratios[1:], strict=True):
        lines.append(f"{entry.folder}: {ratio:.3f}x the {what} of {first}")
    return "\n".join(lines)


def _times(result: Comparison) -> str:
    header = ["project", "min ms", "median ms", "ratio", "of a round"]
    rows = []
    for index, entry in enumerate(result.entries):
        assert entry.min_ms is not None and entry.median_ms is not None
        found = result.spread(index)
        spread = f"{found[0]:.3f} to {found[1]:.3f}" if index and found else ""
        ratio = f"{result.ratios[index]:.3f}"
        rows.append([entry.folder, digits(entry.min_ms), digits(entry.median_ms), ratio, spread])
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    return f"{table(header, rows)}\n\n{result.rounds} rounds, {threads}, {result.runner}"


def _counts(result: Comparison) -> str:
    caches = all(entry.cost.caches for entry in result.entries if entry.cost)
    header = ["project", "M instr"]
    header += ["M L1 misses", "M L2 misses"] if caches else []
    modelled = result.by == "modelled_ms"
    header += ["modelled ms"] if modelled else []
    rows = []
    core = ""
    for entry, ratio in zip(result.entries, result.ratios, strict=True):
        cost = entry.cost
        assert cost is not None
        core = cost.core
        row = [entry.folder, f"{cost.counts.instructions / 1e6:.3f}"]
        if caches:
            misses = (cost.counts.l1_misses, cost.counts.l2_misses)
            row += [f"{count / 1e6:.3f}" for count in misses]
        row += [digits(cost.modelled_ms)] if modelled and cost.modelled_ms else []
        rows.append([*row, f"{ratio:.3f}"])
    told = "modelled, not measured" if modelled else "no cost model"
    told = told if caches else "instructions, no cycles"
    told = f"one run counted on {core}, {result.runner}; {told}"
    return f"{table([*header, 'ratio'], rows)}\n\n{told}"
