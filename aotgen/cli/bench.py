"""``aotgen bench``: time a project."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from aotgen.cli.common import BOARD_HELP, RUNNER_HELP, activity, open_project, table
from aotgen.errors import UsageError

if TYPE_CHECKING:
    from aotgen.project import BenchResult


def bench(
    folder: Path = typer.Argument(..., metavar="DIR", help="Project.", show_default=False),
    runner: str | None = typer.Option(None, "--runner", help=RUNNER_HELP),
    board: str | None = typer.Option(None, "--board", help=BOARD_HELP),
    threads: int = typer.Option(1, "--threads", help="Threads of a run."),
    cores: str = typer.Option("all", "--cores", help="big, little or all.", hidden=True),
    number: int | None = typer.Option(
        None, "--number", help="Runs per repeat; default makes a repeat last about 50 ms."
    ),
    repeat: int = typer.Option(10, "--repeat", help="How many times to measure."),
    cooldown: float = typer.Option(0.0, "--cooldown", help="Seconds to wait before measuring."),
    profile: bool = typer.Option(False, "--profile", help="Also time every layer."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Time DIR: mean and standard deviation over the repeats."""
    if cores not in ("big", "little", "all"):
        raise UsageError(f"--cores {cores!r} does not exist", remedy="use big, little or all")
    if cores != "all":
        raise UsageError(f"--cores {cores} is not available yet", remedy="use taskset")
    if threads < 1:
        raise UsageError("--threads must be at least 1")
    if threads > 1:
        raise UsageError("--threads above 1 is not available yet", remedy="leave it out")
    project = open_project(folder, board)
    if cooldown < 0:
        raise UsageError("--cooldown must be at least 0")
    with activity("building and timing"):
        result = project.bench(number, repeat, runner=runner, profile=profile, cooldown=cooldown)
    if result.runner == "qemu":
        print("aotgen: times under QEMU say nothing about the board", file=sys.stderr)
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else _text(result))


def _text(result: BenchResult) -> str:
    lines = []
    if result.layers:
        total = sum(layer.ms for layer in result.layers) or 1.0
        rows = [
            (layer.layer, layer.name, f"{layer.ms:.4f}", f"{layer.ms / total:.1%}")
            for layer in result.layers
        ]
        lines += [table(("layer", "name", "ms", "share"), rows, left=2), ""]
    lines.append(
        f"median {result.median_ms:.4f} ms, min {result.min_ms:.4f} ms"
        f" ({len(result.times_ms)} x {result.number} runs, {result.runner})"
    )
    lines.append(str(result))
    return "\n".join(lines)
