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
    activity,
    parse_dims,
    parse_shapes,
)
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
    threads: int = typer.Option(1, "--threads", help="Most threads that a run may use."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Print MACs, parameters, arena, flash and a table of layers.

    The exit code is 1 when the model does not fit the board.
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
    header = ["layer", "name", "template", "output", "MACs", "weight bytes"]
    rows = [
        [
            layer["index"],
            layer["name"],
            layer["template"],
            "x".join(map(str, layer["shape"])),
            f"{layer['macs']:,}",
            f"{layer['weights_bytes']:,}",
        ]
        for layer in data["layers"]
    ]
    several = data["api"]["threads"] > 1
    if several:
        header += ["parts", "scratch bytes a thread"]
        for row, layer in zip(rows, data["layers"], strict=True):
            row += [f"{layer['parts']:,}", f"{layer['scratch_bytes']:,}"]
    layers = table(header, rows, left=4)
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
        *([_threads_text(data)] if several else []),
        f"fits        {'; '.join(data['misfits']) or 'yes'}",
    ]
    return "\n".join(lines)


def _threads_text(data: dict[str, Any]) -> str:
    """How much of the work the threads of a run share."""
    total = sum(layer["macs"] for layer in data["layers"]) or 1
    shared = sum(layer["macs"] for layer in data["layers"] if layer["parts"] > 1)
    return f"threads     {data['api']['threads']}, which share {shared / total:.1%} of the MACs"
