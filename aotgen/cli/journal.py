"""``aotgen journal``: what is in tuning journals."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import help_alone, written_whole
from aotgen.errors import UsageError
from aotgen.report.text import digits, table

if TYPE_CHECKING:
    from aotgen.tune.journal import Journal, Record

app = typer.Typer(help="Merge and show tuning journals.")
app.callback(invoke_without_command=True)(help_alone)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Journal.", show_default=False)]
_Task = Annotated[
    str | None,
    typer.Option("--task", metavar="TEXT", help="Only tasks whose key or title has it."),
]


@app.command("merge")
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Journals.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Journal to write.", show_default=False)
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is already there.")
    ] = False,
) -> None:
    """Write the records of all FILEs once, by task and date."""
    from aotgen.tune.journal import Journal, by_task, merged

    if output.suffix == ".xz":
        raise UsageError(f"{output}: a journal is written as text", remedy="compress it with `xz`")
    journal = Journal(output)
    try:
        there = output.exists()
        if there and not force:
            raise UsageError(f"{output} exists", remedy="use --force or choose another -o")
        # A run that writes to the output must not lose what it appends meanwhile.
        with journal.locked() if there else nullcontext():
            own = [p for p in files if there and p.exists() and p.samefile(output)]
            records = merged([_read(p, journal if p in own else None) for p in files])
            with written_whole(output.resolve()) as partial:  # a link stays one
                partial.write_text("".join(f"{r.line()}\n" for r in records), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    typer.echo(f"{output}: {len(records)} records of {len(by_task(records))} tasks")


@app.command("best")
def best(
    file: _File,
    task: _Task = None,
    as_json: opt.Json = False,
) -> None:
    """Print the best candidate of each task."""
    from aotgen.tune.journal import by_task
    from aotgen.tune.ranking import ranked

    rows = []
    for key, records in by_task(_chosen(_read(file), task, None, None)).items():
        found = ranked(records)
        trials = sum(r.kind != "network" for r in records)
        top = found[0].record if found else None
        rows.append((key, records[0].title, top, trials))
    if as_json:
        data = [
            {"task": key, "title": title, "trials": trials, "best": top and json.loads(top.line())}
            for key, title, top, trials in rows
        ]
        typer.echo(json.dumps(data, indent=2))
        return
    header = ["task", "title", "template", "knobs", "us", "GFLOPS", "trials", "kind"]
    typer.echo(table(header, [[_plain(cell) for cell in _best_row(*row)] for row in rows], left=4))


@app.command("show")
def show(
    file: _File,
    task: _Task = None,
    board: Annotated[
        str | None, typer.Option("--board", help="Only records of this board.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", help="Only records with it (ok, build, crash, wrong ...)."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Print the records."""
    from aotgen.tune.outcome import Status

    if status is not None and status not in get_args(Status):
        raise UsageError(
            f"--status {status!r} does not exist",
            remedy=f"use one of {', '.join(get_args(Status))}",
        )
    records = _chosen(_read(file), task, board, status)
    if as_json:
        typer.echo(json.dumps([json.loads(r.line()) for r in records], indent=2))
        return
    header = ["task", "title", "board", "template", "knobs", "status", "us", "kind"]
    rows = [
        list(
            map(
                _plain,
                (r.task, r.title, r.board, r.template, _knobs(r), r.status, _micro(r), r.kind),
            )
        )
        for r in records
    ]
    typer.echo(table(header, rows, left=6))
    for record in records:
        if record.message:
            text = f"{record.task} {record.template} {_knobs(record)}: {record.message}"
            typer.echo(_plain(text))


@app.command("plot")
def plot(
    file: _File,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Picture (.png, .svg or .pdf).", show_default=False),
    ],
    task: _Task = None,
) -> None:
    """Draw how the best of each task improved over the trials."""
    from aotgen.report.picture import picture
    from aotgen.report.tuning import plot_history
    from aotgen.tune.journal import by_task

    series: dict[str, list[float]] = {}
    units: dict[str, str] = {}
    for key, records in by_task(_chosen(_read(file), task, None, None)).items():
        tried = [r for r in records if r.kind != "network"]
        name = f"{tried[0].title or key} ({key[:4]})" if tried else key
        values = _best_so_far(tried)
        if values:
            series[name] = values
            units[name] = "best GFLOPS" if tried[0].macs else "best us"
    if not series:
        raise UsageError(
            f"{file} has no times to draw", remedy=f"`aotgen journal show {file}` has its records"
        )
    with picture(output):
        plot_history(series, str(output), file.name, units)
    typer.echo(f"{output}: {len(series)} tasks")


def _read(path: Path, held: Journal | None = None) -> list[Record]:
    """The records of a journal; ``held`` is the one at this path where it is locked."""
    from aotgen.tune.journal import read_journal, skipped_text

    if held is not None:
        records = held.records()
        skipped = held.skipped
    else:
        records, skipped = read_journal(path)
    if skipped:
        print(f"aotgen: warning: {skipped_text(path, skipped)}", file=sys.stderr)
    return records


def _chosen(
    records: Sequence[Record], task: str | None, board: str | None, status: str | None
) -> list[Record]:
    return [
        r
        for r in records
        if (task is None or task in r.title or r.task.startswith(task))
        and (board is None or r.board == board)
        and (status is None or r.status == status)
    ]


def _best_row(key: str, title: str, top: Record | None, trials: int) -> list[str]:
    if top is None:
        return [key, title, "-", "", "-", "-", str(trials), "-"]
    rate = top.gflops
    return [
        key,
        title,
        top.template,
        _knobs(top),
        _micro(top),
        "-" if rate is None else f"{rate:.2f}",
        str(trials),
        top.kind,
    ]


def _best_so_far(records: Sequence[Record]) -> list[float]:
    """Behind each trial from the first that worked: GFLOPS, or microseconds without MACs."""
    best = float("inf")
    found = []
    for record in records:
        best = min(best, record.seconds or best)
        if best < float("inf"):
            found.append(2e-9 * record.macs / best if record.macs else 1e6 * best)
    return found


def _plain(text: str) -> str:
    """One line without control characters, whatever the journal of a stranger has."""
    return "".join(c if c.isprintable() else " " for c in text)


def _knobs(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(record.config.items()))


def _micro(record: Record) -> str:
    return "-" if record.seconds is None else digits(1e6 * record.seconds)
