"""``aotgen compile``: from a model file to a C project."""

from __future__ import annotations

from pathlib import Path

import typer

from aotgen.cli.common import (
    BOARD,
    DIM,
    DISABLE_PASS,
    IO_TYPE,
    MODEL,
    OPT_LEVEL,
    OPTIMIZE,
    REQUANT,
    SHAPE,
    STREAM,
    TIME_AXIS,
    activity,
    parse_dims,
    parse_shapes,
)
from aotgen.errors import UsageError
from aotgen.report.text import byte_text


def compile_(
    model: Path = MODEL,
    board: str = BOARD,
    output: Path = typer.Option(
        ..., "-o", "--output", help="Folder of the project.", show_default=False
    ),
    shape: list[str] = SHAPE,
    dim: list[str] = DIM,
    opt_level: int = OPT_LEVEL,
    disable_pass: list[str] = DISABLE_PASS,
    show_passes: bool = typer.Option(
        False, "--show-passes", help="Print what each pass changes, as a diff."
    ),
    journal: str | None = typer.Option(
        None,
        "--journal",
        metavar="FILE",
        help="Tuning journal whose best records to use; none for not even the board's own.",
    ),
    weights: str = typer.Option("asm", "--weights", help="Weights as c, asm or bin."),
    threads: int = typer.Option(1, "--threads", help="Most threads that a run may use."),
    device: str = typer.Option("cpu", "--device", help="cpu, gpu or auto."),
    prefix: str | None = typer.Option(
        None, "--prefix", help="Of public symbols; default from the file name."
    ),
    io_type: str = IO_TYPE,
    requant: str | None = REQUANT,
    optimize: str = OPTIMIZE,
    stream: int | None = STREAM,
    time_axis: int | None = TIME_AXIS,
    precision: str = typer.Option("fp32", "--precision", help="fp32 or fp16.", hidden=True),
    force: bool = typer.Option(False, "--force", help="Replace a project that is already there."),
) -> None:
    """Compile MODEL for BOARD into a C project."""
    from aotgen import api
    from aotgen.options import as_device, as_io_type, as_optimize, as_requant, as_weights
    from aotgen.streaming.text import from_manifest, stream_text
    from aotgen.tune.apply import summary_text

    # Hidden from --help until they do something; refused in words until then.
    _not_yet("--precision fp16", _choice("--precision", precision, ("fp32", "fp16")) == "fp16")
    with activity() as doing:
        project = api.compile(
            model,
            board,
            output,
            shapes=parse_shapes(shape),
            dims=parse_dims(dim),
            opt_level=opt_level,
            disabled_passes=disable_pass,
            weights=as_weights(weights),
            threads=threads,
            device=as_device(device),
            prefix=prefix,
            optimize=as_optimize(optimize),
            requant=None if requant is None else as_requant(requant),
            io_type=as_io_type(io_type),
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
