"""``aotgen check``: everything in a model that cannot be compiled, all at once."""

from __future__ import annotations

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity
from aotgen.errors import UnsupportedError


def check(
    model: opt.Model,
    shape: opt.Shape = opt.NONE_GIVEN,
    dim: opt.Dim = opt.NONE_GIVEN,
    requant: opt.Requant = opt.DEFAULT.requant,
    stream: opt.Stream = opt.DEFAULT.stream,
    time_axis: opt.TimeAxis = opt.DEFAULT.time_axis,
) -> None:
    """List all that is unsupported in MODEL.

    The exit code is 0 when it can be compiled, else 2.
    """
    from aotgen.api import load_for, optimise, target_of
    from aotgen.options import CompileOptions
    from aotgen.schedule.plan import unsupported
    from aotgen.target.board import load_board

    options = CompileOptions(
        requant=requant,
        shapes=opt.parse_shapes(shape),
        dims=opt.parse_dims(dim),
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
