"""``aotgen run``: run a project on inputs from .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from aotgen.cli.common import (
    BOARD_HELP,
    CORES_HELP,
    MODEL_HELP,
    RUNNER_HELP,
    THREADS_HELP,
    activity,
    chosen_place,
    open_project,
    read_npz,
    write_npz,
)
from aotgen.errors import UsageError

if TYPE_CHECKING:
    from aotgen.bench_result import Cores


def run(
    folder: Path = typer.Argument(..., metavar="DIR", help="Project.", show_default=False),
    inputs: list[Path] = typer.Option(
        ..., "-i", "--input", help="Inputs (.npz) of a step.", show_default=False
    ),
    outputs: list[Path] = typer.Option(
        ..., "-o", "--output", help="Where its outputs go (.npz).", show_default=False
    ),
    model: str | None = typer.Option(None, "--model", help=MODEL_HELP),
    runner: str | None = typer.Option(None, "--runner", help=RUNNER_HELP),
    board: str | None = typer.Option(None, "--board", help=BOARD_HELP),
    threads: int = typer.Option(1, "--threads", help=THREADS_HELP),
    cores: str | None = typer.Option(None, "--cores", help=CORES_HELP),
) -> None:
    """Run DIR once for each -i, -o pair.

    They are successive steps of one instance. The arrays of the .npz files go by the model's own
    tensor names.
    """
    if len(inputs) != len(outputs):
        raise UsageError(f"{len(inputs)} -i for {len(outputs)} -o", remedy="give them in pairs")
    project = open_project(folder, board, model)
    steps = [read_npz(path) for path in inputs]
    with activity("building and running") as shown, chosen_place(runner, project, shown) as place:
        results = project.run_steps(steps, place, threads, cast("Cores | None", cores))
    for path, result in zip(outputs, results, strict=True):
        write_npz(path, result)
