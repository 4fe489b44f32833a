"""``aotgen tune``: find the best kernels of a model by measuring candidates on its board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity
from aotgen.errors import AotgenError, UsageError
from aotgen.report.text import digits, table

if TYPE_CHECKING:
    from aotgen.tune.run import Tunable
    from aotgen.tune.session import TuneResult


class Interrupted(AotgenError):
    """The user stopped the run."""

    exit_code = 130


def tune(
    model: opt.Model,
    board: opt.Board = opt.DEFAULT_BOARD,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal", metavar="FILE", help="Where results go; what it knows is not repeated."
        ),
    ] = None,
    list_tasks: Annotated[
        bool, typer.Option("--list-tasks", help="Print the model's tasks and measure nothing.")
    ] = False,
    tasks: Annotated[
        list[str],
        typer.Option(
            "--tasks",
            metavar="WHICH",
            help="Only these: numbers (1,4-6), a key, a kind of op (conv2d, conv3d, matmul), or a"
            " part of or a regular expression for titles (repeatable).",
        ),
    ] = opt.NONE_GIVEN,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", help="Candidates of all tasks together; default 64 for each task."
        ),
    ] = None,
    trials_per_task: Annotated[
        int | None, typer.Option("--trials-per-task", help="Most candidates of one task.")
    ] = None,
    early_stopping: Annotated[
        int | None,
        typer.Option(
            "--early-stopping", help="End a task after so many candidates without a better one."
        ),
    ] = None,
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", help="End the search after so many seconds.")
    ] = None,
    tuner: Annotated[str, typer.Option("--tuner", help="xgb, random, grid or ga.")] = "xgb",
    number: Annotated[
        int | None,
        typer.Option("--number", help="Calls per repeat; default makes one last --min-repeat-ms."),
    ] = None,
    repeat: Annotated[
        int | None, typer.Option("--repeat", help="Repeats; the lowest counts.")
    ] = None,
    min_repeat_ms: Annotated[
        float | None, typer.Option("--min-repeat-ms", help="Shortest repeat, in milliseconds.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds after which a candidate is given up.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random in the search.")] = 0,
    runner: opt.Runners = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="tcp://HOST:8786",
            help="Dask scheduler whose workers (`aotgen worker`) measure in place of --runner.",
        ),
    ] = None,
    no_network: Annotated[
        bool,
        typer.Option(
            "--no-network", help="Do not time the best candidates inside the whole network."
        ),
    ] = False,
    shape: opt.Shape = opt.NONE_GIVEN,
    dim: opt.Dim = opt.NONE_GIVEN,
    opt_level: opt.OptLevel = opt.DEFAULT.opt_level,
    disable_pass: opt.DisablePass = opt.NONE_GIVEN,
    threads: opt.MostThreads = opt.DEFAULT.threads,
    io_type: opt.IoType = opt.DEFAULT.io_type,
    requant: opt.Requant = opt.DEFAULT.requant,
    optimize: opt.Optimize = opt.DEFAULT.optimize,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Measure candidates for the kernels of MODEL on BOARD.

    They are recorded in a journal, which `aotgen compile --journal FILE` uses. Ctrl-C keeps what
    was measured (exit code 130); the same command goes on from there.
    """
    from aotgen.options import CompileOptions
    from aotgen.report.tuning import LineDisplay, TuneDisplay
    from aotgen.target.board import load_board
    from aotgen.tune.run import Tunable, measure_options, run_tuning, select
    from aotgen.tune.session import SearchOptions

    search = SearchOptions(trials, trials_per_task, early_stopping, budget_seconds, tuner, seed)
    measuring = measure_options(number, repeat, min_repeat_ms, timeout)
    if journal is None and not list_tasks:
        raise UsageError("a run needs a journal", remedy="add --journal FILE")
    options = CompileOptions(
        opt_level=opt_level,
        disabled_passes=tuple(disable_pass),
        threads=threads,
        optimize=optimize,
        requant=requant,
        io_type=io_type,
        shapes=opt.parse_shapes(shape),
        dims=opt.parse_dims(dim),
    )
    the_board = load_board(board)
    with activity() as doing:
        tunable = Tunable(model, the_board, options, doing)
    chosen = select(tunable.tasks, tasks)
    if list_tasks:
        numbers = [index for index, _ in chosen]
        typer.echo(_task_table(tunable, numbers, as_json))
        return
    assert journal is not None
    result = run_tuning(
        tunable,
        chosen,
        journal,
        search,
        measuring,
        runner,
        not no_network,
        TuneDisplay() if quiet else LineDisplay(),
        scheduler,
    )
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else _result_table(result))
    if result.interrupted:
        raise Interrupted(
            f"interrupted after {result.trials} candidates: {journal} has what was measured, and"
            " the same command goes on from there"
        )


def _task_table(tunable: Tunable, numbers: list[int], as_json: bool) -> str:
    """What --list-tasks prints of the tasks with these numbers."""
    from aotgen.tune.space import Space

    spaces = [Space(task) for task in tunable.tasks]
    seconds = [space.task.calls * space.modelled_seconds() for space in spaces]
    parts = zip(tunable.tasks, seconds, strict=True)
    total = sum(s for task, s in parts if not task.is_chain) or 1.0
    rows: list[dict[str, Any]] = []
    for number in numbers:
        task = tunable.tasks[number - 1]
        rows.append(
            {
                "task": number,
                "key": task.key,
                "title": task.title,
                "calls": task.calls,
                "macs": task.macs,
                "templates": [t.name for t in task.templates()],
                "points": spaces[number - 1].size,
                "share": seconds[number - 1] / total,
                "layers": list(task.layers),
            }
        )
    if as_json:
        return json.dumps(rows, indent=2)
    header = ["task", "title", "templates", "calls", "MACs", "points", "modelled share"]
    lines = [
        [
            str(row["task"]),
            row["title"],
            " ".join(row["templates"]),
            row["calls"],
            f"{row['macs']:,}",
            f"{row['points']:,}",
            f"{row['share']:.1%}",
        ]
        for row in rows
    ]
    return table(header, lines, left=3)


def _result_table(result: TuneResult) -> str:
    """The tasks with their best candidates, and what that gives."""
    header = ["task", "title", "template", "us", "default us", "speed-up", "trials", "failed"]
    rows = []
    before = after = 0.0
    for task in result.tasks:
        row = [str(task.index), task.title, task.template or "-"]
        if task.seconds is None:
            row += ["-", "-", "-"]
        else:
            row.append(digits(1e6 * task.seconds))
            if task.default_seconds is None:
                row += ["-", "-"]
            else:
                row += [
                    digits(1e6 * task.default_seconds),
                    f"{task.default_seconds / task.seconds:.2f}x",
                ]
                if not task.is_chain:
                    before += task.calls * task.default_seconds
                    after += task.calls * task.seconds
        rows.append([*row, str(task.trials), str(task.failed)])
    lines = [table(header, rows, left=3), ""]
    if after:
        lines.append(
            f"tasks in one run of the model: {digits(1e3 * before)} ms with defaults,"
            f" {digits(1e3 * after)} ms tuned ({before / after:.2f}x)"
        )
    if result.network_ms:
        times = ", ".join(map(digits, result.network_ms))
        lines.append(f"whole networks of the best candidates, the second best ...: {times} ms")
    lines.append(
        f"{result.trials} candidates, {result.measured} of them measured now, are in"
        f" {result.journal}"
    )
    return "\n".join(lines)
