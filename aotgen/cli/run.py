"""``aotgen run``: run a project on inputs from .npz files."""

from __future__ import annotations

from pathlib import Path

import typer

from aotgen.cli.common import activity, read_npz, write_npz
from aotgen.errors import UsageError


def run(
    folder: Path = typer.Argument(..., metavar="DIR", help="Project.", show_default=False),
    inputs: list[Path] = typer.Option(
        ..., "-i", "--input", help="Inputs (.npz) of a step.", show_default=False
    ),
    outputs: list[Path] = typer.Option(
        ..., "-o", "--output", help="Where its outputs go (.npz).", show_default=False
    ),
    runner: str | None = typer.Option(
        None, "--runner", help="local, qemu, ssh://user@host or serial:/dev/ttyX."
    ),
) -> None:
    """Run DIR once for each -i, -o pair: successive steps of one instance.

    The arrays of the .npz files go by the model's own tensor names.
    """
    from aotgen.project import Project

    if len(inputs) != len(outputs):
        raise UsageError(f"{len(inputs)} -i for {len(outputs)} -o", remedy="give them in pairs")
    project = Project(folder)
    steps = [read_npz(path) for path in inputs]
    with activity("building and running"):
        results = project.run_steps(steps, runner)
    for path, result in zip(outputs, results, strict=True):
        write_npz(path, result)
