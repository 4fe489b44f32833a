"""``aotgen check``: everything in a model that cannot be compiled, all at once."""

from __future__ import annotations

from pathlib import Path

import typer

from aotgen.cli.common import (
    DIM,
    MODEL,
    REQUANT,
    SHAPE,
    STREAM,
    TIME_AXIS,
    activity,
    parse_dims,
    parse_shapes,
)
from aotgen.errors import UnsupportedError


def check(
    model: Path = MODEL,
    shape: list[str] = SHAPE,
    dim: list[str] = DIM,
    requant: str | None = REQUANT,
    stream: int | None = STREAM,
    time_axis: int | None = TIME_AXIS,
) -> None:
    """List all that is unsupported in MODEL.

    The exit code is 0 when it can be compiled, else 2.
    """
    from aotgen.api import load_for, optimise, target_of
    from aotgen.options import CompileOptions, as_requant
    from aotgen.schedule.plan import unsupported
    from aotgen.target.board import load_board

    options = CompileOptions(
        requant=None if requant is None else as_requant(requant),
        shapes=parse_shapes(shape),
        dims=parse_dims(dim),
        stream=stream,
        time_axis=time_axis,
    )
    try:
        with activity("reading the model"):
            graph = load_for(model, options)
            optimise(graph, options)
            problems = unsupported(graph, target_of(load_board("host"), options))
            if problems:
                raise UnsupportedError(problems)
    except UnsupportedError as error:
        for problem in error.problems:
            typer.echo(str(problem))
        typer.echo(f"{model}: {len(error.problems)} unsupported", err=True)
        raise typer.Exit(error.exit_code) from None
    inputs = ", ".join(f"{v.name} {v.type}" for v in graph.inputs) or "none"
    names = graph.output_names or [v.name for v in graph.outputs]
    outputs = ", ".join(f"{n} {v.type}" for n, v in zip(names, graph.outputs, strict=True))
    typer.echo(f"{model}: can be compiled; inputs: {inputs}; outputs: {outputs}")
