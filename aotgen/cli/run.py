"""``aotgen run``: run a project on inputs from .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity, chosen_place, open_project, read_npz, write_npz
from aotgen.errors import UsageError


def run(
    folder: opt.Folder,
    inputs: Annotated[
        list[Path],
        typer.Option("-i", "--input", help="Inputs (.npz) of a step.", show_default=False),
    ],
    outputs: Annotated[
        list[Path],
        typer.Option("-o", "--output", help="Where its outputs go (.npz).", show_default=False),
    ],
    model: opt.BundledModel = None,
    runner: opt.Runner = None,
    board: opt.OwnBoard = None,
    threads: opt.Threads = 1,
    cores: opt.Cores = None,
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
        results = project.run_steps(steps, place, threads, cores)
    for path, result in zip(outputs, results, strict=True):
        write_npz(path, result)
