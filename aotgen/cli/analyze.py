"""``aotgen analyze``: MACs, parameters, RAM and flash of a model on a board, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from aotgen.cli.common import activity, byte_text, parse_dims, parse_shapes, table
from aotgen.target.board import Board, load_board


def analyze(
    model: Path = typer.Argument(
        ..., metavar="MODEL", help="Model file (.onnx).", show_default=False
    ),
    board: str = typer.Option("host", "--board", help="Name or path of a board."),
    shape: list[str] = typer.Option(
        [], "--shape", metavar="NAME=1x3x224x224", help="Shape of an input the file leaves open."
    ),
    dim: list[str] = typer.Option(
        [], "--dim", metavar="NAME=N", help="Value of a symbolic dimension."
    ),
    opt_level: int = typer.Option(3, "--opt-level", help="0 to 4."),
    optimize: str = typer.Option("speed", "--optimize", help="speed, ram or flash."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print MACs, parameters, arena, flash and a table of layers.

    The exit code is 1 when the model does not fit the board.
    """
    from aotgen import api
    from aotgen.options import CompileOptions, as_optimize

    options = CompileOptions(
        opt_level=opt_level,
        optimize=as_optimize(optimize),
        shapes=parse_shapes(shape),
        dims=parse_dims(dim),
    )
    the_board = load_board(board)
    with activity() as doing:
        data = api.analyze(model, the_board, options, doing)
    problems = misfits(data, the_board)
    data = {**data, "fits": not problems, "misfits": problems}
    typer.echo(json.dumps(data, indent=2) if as_json else _text(data, model, the_board))
    if problems:
        raise typer.Exit(1)


def misfits(data: dict[str, Any], board: Board) -> list[str]:
    """What of the board's memory the model exceeds."""
    ram = data["arena_bytes"] + data["state_bytes"]
    flash = data["flash_bytes"]
    found = []
    if board.ram_bytes and ram > board.ram_bytes:
        found.append(f"needs {byte_text(ram)} of RAM, the board has {byte_text(board.ram_bytes)}")
    if board.flash_bytes and flash > board.flash_bytes:
        found.append(
            f"needs {byte_text(flash)} of flash, the board has {byte_text(board.flash_bytes)}"
        )
    return found


def _text(data: dict[str, Any], model: Path, board: Board) -> str:
    rows = [
        (
            layer["index"],
            layer["name"],
            layer["template"],
            "x".join(map(str, layer["shape"])),
            f"{layer['macs']:,}",
            f"{layer['weights_bytes']:,}",
        )
        for layer in data["layers"]
    ]
    layers = table(("layer", "name", "template", "output", "MACs", "weight bytes"), rows, left=4)
    bound = data.get("arena", {}).get("lower_bound")
    least = f" (lower bound {bound:,})" if bound is not None else ""
    lines = [
        layers,
        "",
        f"model       {model} on {board.name} ({data['isa']})",
        f"MACs        {data['macs']:,}",
        f"parameters  {data['params']:,}",
        f"weights     {data['weights_bytes']:,} bytes",
        f"arena       {data['arena_bytes']:,} bytes{least}",
        f"state       {data['state_bytes']:,} bytes",
        f"flash       {data['flash_bytes']:,} bytes",
        f"fits        {'; '.join(data['misfits']) or 'yes'}",
    ]
    return "\n".join(lines)
