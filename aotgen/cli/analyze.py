"""``aotgen analyze``: MACs, parameters, RAM and flash of a model on a board, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from aotgen.cli.common import (
    BOARD,
    DIM,
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
from aotgen.report.arena import arena_chart, arena_table, buffers_of, live_bytes, plot_arena
from aotgen.report.fit import Fit, Remedy, fit, remedies
from aotgen.report.picture import picture
from aotgen.report.text import byte_text, table
from aotgen.target.board import Board, load_board


def analyze(
    model: Path = MODEL,
    board: str = BOARD,
    shape: list[str] = SHAPE,
    dim: list[str] = DIM,
    opt_level: int = OPT_LEVEL,
    optimize: str = OPTIMIZE,
    io_type: str = IO_TYPE,
    requant: str | None = REQUANT,
    stream: int | None = STREAM,
    time_axis: int | None = TIME_AXIS,
    threads: int = typer.Option(1, "--threads", help="Most threads that a run may use."),
    arena: bool = typer.Option(False, "--arena", help="Also print where each buffer lies."),
    plot: Path | None = typer.Option(
        None, "--plot", help="Draw the arena into a picture (.png, .svg or .pdf)."
    ),
    build: bool = typer.Option(
        False,
        "--build",
        help="Of a microcontroller: also build, for exact flash by symbol and the stack.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print MACs, parameters, arena, flash and a table of layers.

    The exit code is 1 when the model does not fit the board; then what would help is tried.
    """
    from aotgen import api
    from aotgen.options import CompileOptions, as_io_type, as_optimize, as_requant

    options = CompileOptions(
        opt_level=opt_level,
        threads=threads,
        optimize=as_optimize(optimize),
        requant=None if requant is None else as_requant(requant),
        io_type=as_io_type(io_type),
        shapes=parse_shapes(shape),
        dims=parse_dims(dim),
        stream=stream,
        time_axis=time_axis,
    )
    the_board = load_board(board)
    with activity() as doing:
        data = api.analyze(model, the_board, options, doing)
        if build:
            data["footprint"] = api.footprint(model, the_board, options, doing).as_dict()
        found, helps = fit(data, the_board), []
        if not found.ok:
            doing("trying what would help")

            def analyzed(changed: CompileOptions) -> dict[str, Any]:
                what = api.analyze(model, the_board, changed)
                if build:
                    what["footprint"] = api.footprint(model, the_board, changed).as_dict()
                return what

            helps = remedies(data, the_board, options, analyzed)
    if plot is not None:
        with picture(plot):
            plot_arena(data, str(plot), the_board.ram_bytes)
    data["arena"]["live_bytes"] = live_bytes(data)
    data = {
        **data,
        "fits": found.ok,
        "misfits": found.misfits,
        "memory": {"ram": found.ram.as_dict(), "flash": found.flash.as_dict()},
        "remedies": [remedy.as_dict() for remedy in helps],
    }
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        parts = [_arena_text(data), ""] if arena else []
        parts += [_symbols_text(data["footprint"]), ""] if build else []
        parts += [_layers_text(data), "", _summary(data, model, the_board, found, helps)]
        typer.echo("\n".join(parts))
    if not found.ok:
        raise typer.Exit(1)


def _arena_text(data: dict[str, Any]) -> str:
    buffers, size = buffers_of(data), data["arena"]["bytes"]
    chart = arena_chart(buffers, size, len(data["layers"]))
    return f"{arena_table(buffers)}\n\n{chart}"


def _layers_text(data: dict[str, Any]) -> str:
    """A line a layer; its RAM is what of the arena holds something while it runs."""
    header = ["layer", "name", "template", "output", "MACs", "weight bytes", "RAM bytes"]
    rows = [
        [
            layer["index"],
            layer["name"],
            layer["template"],
            "x".join(map(str, layer["shape"])),
            f"{layer['macs']:,}",
            f"{layer['weights_bytes']:,}",
            f"{live:,}",
        ]
        for layer, live in zip(data["layers"], data["arena"]["live_bytes"], strict=True)
    ]
    if data["api"]["threads"] > 1:
        header += ["parts", "scratch bytes a thread"]
        for row, layer in zip(rows, data["layers"], strict=True):
            row += [f"{layer['parts']:,}", f"{layer['scratch_bytes']:,}"]
    return table(header, rows, left=4)


def _summary(
    data: dict[str, Any], model: Path, board: Board, found: Fit, helps: list[Remedy]
) -> str:
    bound, peak = data["arena"]["lower_bound"], data["arena"]["peak_layer"]
    own = data["arena_own_bytes"]
    buffers = f", {own:,} with the caller's input and output buffers"
    lines = [
        f"model       {model} on {board.name} ({data['isa']})",
        f"MACs        {data['macs']:,}",
        f"parameters  {data['params']:,}",
        f"weights     {data['weights_bytes']:,} bytes",
        f"arena       {data['arena_bytes']:,} bytes (lower bound {bound:,}, by layer {peak}"
        f"{buffers if own < data['arena_bytes'] else ''})",
        f"state       {data['state_bytes']:,} bytes",
        *_memory_text(data, found),
        *([_threads_text(data)] if data["api"]["threads"] > 1 else []),
        f"fits        {_fits_text(found)}",
    ]
    if not found.ok:
        tried = [str(remedy) for remedy in helps] or ["no option makes it smaller"]
        lines += [f"{'would help' if i == 0 else '':<12}{line}" for i, line in enumerate(tried)]
    return "\n".join(lines)


def _memory_text(data: dict[str, Any], found: Fit) -> list[str]:
    built = data.get("footprint")
    if built is None:
        return [
            f"RAM         {found.ram.needs:,} bytes without stack",
            f"flash       {found.flash.needs:,} bytes, the code estimated",
        ]
    path = " > ".join(f"{call['function']} {call['bytes']:,}" for call in built["stack_path"])
    return [
        f"stack       {built['stack_bytes']:,} bytes: {path}",
        f"RAM         {found.ram.needs:,} bytes with stack",
        f"flash       {found.flash.needs:,} bytes",
    ]


def _symbols_text(built: dict[str, Any]) -> str:
    """The symbols of the built library, the largest first."""
    rows = [[s["name"], s["kind"], f"{s['bytes']:,}"] for s in built["symbols"]]
    return table(["symbol", "kind", "bytes"], rows, left=2)


def _fits_text(found: Fit) -> str:
    if not found.ok:
        return "; ".join(found.misfits)
    named = ((found.flash, "weights"), (found.ram, "arena"))
    beside = [f"{what} of {byte_text(m.external)}" for m, what in named if m.external]
    return f"yes, with {' and '.join(beside)} in external memory" if beside else "yes"


def _threads_text(data: dict[str, Any]) -> str:
    """How much of the work the threads of a run share."""
    total = sum(layer["macs"] for layer in data["layers"]) or 1
    shared = sum(layer["macs"] for layer in data["layers"] if layer["parts"] > 1)
    return f"threads     {data['api']['threads']}, which share {shared / total:.1%} of the MACs"
