"""``aotgen analyze``: MACs, parameters, RAM and flash of a model on a board, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity
from aotgen.errors import UsageError
from aotgen.manifest import is_bundle
from aotgen.report.arena import arena_chart, arena_table, buffers_of, live_bytes, plot_arena
from aotgen.report.fit import Fit, Remedy, fit, remedies
from aotgen.report.picture import picture
from aotgen.report.text import table
from aotgen.target.board import Board, load_board


def analyze(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Model file (.onnx, .tflite), or the folder of a bundle.",
            show_default=False,
        ),
    ],
    board: opt.Board = opt.DEFAULT_BOARD,
    shape: opt.Shape = opt.NONE_GIVEN,
    dim: opt.Dim = opt.NONE_GIVEN,
    opt_level: opt.OptLevel = opt.DEFAULT.opt_level,
    optimize: opt.Optimize = opt.DEFAULT.optimize,
    io_type: opt.IoType = opt.DEFAULT.io_type,
    requant: opt.Requant = opt.DEFAULT.requant,
    stream: opt.Stream = opt.DEFAULT.stream,
    time_axis: opt.TimeAxis = opt.DEFAULT.time_axis,
    threads: opt.MostThreads = opt.DEFAULT.threads,
    arena: Annotated[
        bool, typer.Option("--arena", help="Also print where each buffer lies.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the arena into a picture (.png, .svg or .pdf)."),
    ] = None,
    build: Annotated[
        bool,
        typer.Option(
            "--build",
            help="Of a microcontroller: also build, for exact flash by symbol and the stack.",
        ),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Print MACs, parameters, arena, flash and a table of layers; of a bundle, what each model
    takes and what they share.

    The exit code is 1 when the model does not fit the board; then what would help is tried.
    """
    from aotgen import api
    from aotgen.options import CompileOptions

    options = CompileOptions(
        opt_level=opt_level,
        threads=threads,
        optimize=optimize,
        requant=requant,
        io_type=io_type,
        shapes=opt.parse_shapes(shape),
        dims=opt.parse_dims(dim),
        stream=stream,
        time_axis=time_axis,
    )
    if is_bundle(model):
        if options != CompileOptions() or arena or plot:
            raise UsageError(
                f"{model} is a bundle, which was compiled with options of its own",
                remedy="leave out those of compile, --arena and --plot, or name a model file",
            )
        _analyze_bundle(model, None if board == opt.DEFAULT_BOARD else board, build, as_json)
        return
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


def _analyze_bundle(folder: Path, board: str | None, build: bool, as_json: bool) -> None:
    """``analyze`` of a bundle; ``board`` names one of the user's own."""
    from aotgen.bundling import Bundle

    made = Bundle(folder, None if board is None else load_board(board))
    with activity("building" if build else None):
        report = made.report(build)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        parts = [_symbols_text(report.manifest["footprint"]), ""] if build else []
        parts += [f"bundle {folder} on {made.board.name}", report.text()]
        typer.echo("\n".join(parts))
    if not report.fit.ok:
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
        f"fits        {found.verdict}",
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
    """The symbols of the built library, the largest first; of a bundle, with the models that need
    them.
    """
    several = len({model for s in built["symbols"] for model in s["models"]}) > 1
    header = ["symbol", "kind", *(["models"] if several else []), "bytes"]
    rows = [
        [s["name"], s["kind"], *([" ".join(s["models"])] if several else []), f"{s['bytes']:,}"]
        for s in built["symbols"]
    ]
    return table(header, rows, left=len(header) - 1)


def _threads_text(data: dict[str, Any]) -> str:
    """How much of the work the threads of a run share."""
    total = sum(layer["macs"] for layer in data["layers"]) or 1
    shared = sum(layer["macs"] for layer in data["layers"] if layer["parts"] > 1)
    return f"threads     {data['api']['threads']}, which share {shared / total:.1%} of the MACs"
