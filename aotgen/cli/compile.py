"""``aotgen compile``: from a model file to a C project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity
from aotgen.errors import UsageError
from aotgen.report.text import byte_text


def compile_(
    model: opt.Model,
    *,
    board: opt.Board = opt.DEFAULT_BOARD,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the project.", show_default=False)
    ],
    shape: opt.Shape = opt.NONE_GIVEN,
    dim: opt.Dim = opt.NONE_GIVEN,
    opt_level: opt.OptLevel = opt.DEFAULT.opt_level,
    disable_pass: opt.DisablePass = opt.NONE_GIVEN,
    show_passes: Annotated[
        bool, typer.Option("--show-passes", help="Print what each pass changes, as a diff.")
    ] = False,
    journal: opt.Journal = opt.DEFAULT.journal,
    weights: opt.Weights = opt.DEFAULT.weights,
    threads: opt.MostThreads = opt.DEFAULT.threads,
    device: opt.Device = opt.DEFAULT.device,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Of public symbols; default from the file name.")
    ] = None,
    io_type: opt.IoType = opt.DEFAULT.io_type,
    requant: opt.Requant = opt.DEFAULT.requant,
    optimize: opt.Optimize = opt.DEFAULT.optimize,
    stream: opt.Stream = opt.DEFAULT.stream,
    time_axis: opt.TimeAxis = opt.DEFAULT.time_axis,
    precision: Annotated[
        str, typer.Option("--precision", help="fp32 or fp16.", hidden=True)
    ] = "fp32",
    force: Annotated[
        bool, typer.Option("--force", help="Replace a project that is already there.")
    ] = False,
) -> None:
    """Compile MODEL for BOARD into a C project."""
    from aotgen import api
    from aotgen.streaming.text import from_manifest, stream_text
    from aotgen.tune.apply import summary_text

    # Hidden from --help until they do something; refused in words until then.
    _not_yet("--precision fp16", _choice("--precision", precision, ("fp32", "fp16")) == "fp16")
    with activity() as doing:
        project = api.compile(
            model,
            board,
            output,
            shapes=opt.parse_shapes(shape),
            dims=opt.parse_dims(dim),
            opt_level=opt_level,
            disabled_passes=disable_pass,
            weights=weights,
            threads=threads,
            device=device,
            prefix=prefix,
            optimize=optimize,
            requant=requant,
            io_type=io_type,
            journal=journal,
            stream=stream,
            time_axis=time_axis,
            force=force,
            observer=_print_diff if show_passes else None,
            progress=doing,
        )
    data = project.manifest
    told = summary_text(data["tuning"]) if data["tuning"] is not None else ""
    if told:
        typer.echo(told)
    typer.echo(
        f"{output}: {len(data['layers'])} layers for {data['board']} ({data['isa']}),"
        f" arena {byte_text(data['arena_bytes'])}, weights {byte_text(data['weights_bytes'])}"
    )
    if data["stream"] is not None:
        names = [output["name"] for output in data["outputs"]]
        kept = f"state {byte_text(data['state_bytes'])}"
        typer.echo(" ".join([f"{kept}.", *stream_text(from_manifest(data["stream"]), names)]))


def _print_diff(name: str, before: str, after: str) -> None:
    from aotgen.ir.printer import diff

    typer.echo(f"== {name}")
    typer.echo(diff(before, after), nl=False)


def _choice(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"{option} {value!r} does not exist", remedy=f"use {' or '.join(allowed)}")
    return value


def _not_yet(option: str, given: bool) -> None:
    if given:
        raise UsageError(f"{option} is not available yet", remedy="leave it out")
