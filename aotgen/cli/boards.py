"""``aotgen boards``: which boards there are, and what is known about one."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from aotgen.cli import boards_doctor
from aotgen.cli import options as opt
from aotgen.cli.common import help_alone
from aotgen.report.text import byte_text, table
from aotgen.target.board import Board, Cluster, list_boards, load_board

app = typer.Typer(help="Boards: those that aotgen knows, and yours.")
app.callback(invoke_without_command=True)(help_alone)
app.command("doctor")(boards_doctor.doctor)
app.command("probe")(boards_doctor.probe)


@app.command("list")
def list_(as_json: opt.Json = False) -> None:
    """List the boards that ship with aotgen."""
    boards = [load_board(name) for name in list_boards()]
    if as_json:
        typer.echo(json.dumps([as_dict(board) for board in boards], indent=2))
        return
    rows = [(b.name, b.isa, b.description) for b in boards]
    typer.echo(table(("board", "isa", "description"), rows, left=3))


@app.command("show")
def show(
    name: Annotated[
        str, typer.Argument(metavar="BOARD", help="Name or path of a board.", show_default=False)
    ],
    as_json: opt.Json = False,
) -> None:
    """Show everything that is known about a board."""
    board = load_board(name)
    typer.echo(json.dumps(as_dict(board), indent=2) if as_json else _text(board))


def as_dict(board: Board) -> dict[str, object]:
    """JSON-ready form."""
    data = asdict(board)
    data["extra_cflags"] = {k: list(v) for k, v in board.extra_cflags.items()}
    data["cflags"] = {name: list(board.cflags(name)) for name in ("gcc", "clang")}
    data["toolchain"] = str(board.toolchain) if board.toolchain else None
    firmware = board.firmware
    data["firmware"] = {
        "sources": [str(path) for path in firmware.sources],
        "linker_script": str(firmware.linker_script) if firmware.linker_script else None,
        "images": list(firmware.images),
    }
    data["folder"] = str(board.folder)
    return data


def _text(board: Board) -> str:
    if board.is_bare:
        return _bare_text(board)
    lines = [
        f"board      {board.name}: {board.description}",
        f"isa        {board.isa}{_listed(board.features)}",
        *(f"cores      {_cluster(cluster)}" for cluster in board.clusters),
        f"RAM        {byte_text(board.ram_bytes) if board.ram_bytes else 'no limit'}",
        f"flash      {byte_text(board.flash_bytes) if board.flash_bytes else 'no limit'}",
        f"GPU        {board.gpu or 'none'}",
        f"compiler   {board.triple or 'this computer'}: {' '.join(board.cflags())}"
        f"{', static programs' if board.static else ''}",
        f"emulator   {' '.join(board.emulator) or 'none'}",
        f"runner     {'local' if board.runs_here else board.default_runner}",
        f"described  {board.folder / 'board.toml'}",
    ]
    return "\n".join(lines)


def _bare_text(board: Board) -> str:
    """Of a microcontroller; memory of 0 bytes is that of the user's own board."""
    core, support = board.clusters[0], board.firmware
    clock = f" at {core.clock_mhz} MHz" if core.clock_mhz else ""
    machine = board.emulated_machine
    brings = ", ".join(path.name for path in support.files) or "nothing: your firmware does"
    lines = [
        f"board      {board.name}: {board.description}",
        f"isa        {board.isa}{_listed(board.features)}",
        f"core       {core.core}{clock}, no operating system",
        f"RAM        {byte_text(board.ram_bytes) if board.ram_bytes else 'yours'}",
        f"flash      {byte_text(board.flash_bytes) if board.flash_bytes else 'yours'}",
        *([f"external   {byte_text(board.external_bytes)}"] if board.external_bytes else []),
        f"compiler   {board.triple}-gcc {' '.join(board.cflags())}",
        f"toolchain  {board.toolchain or 'written into the project'}",
        f"brings     {brings}",
        f"emulator   {f'qemu-system-arm -M {machine}' if machine else 'none'}",
        f"runner     {'qemu' if board.default_runner == 'qemu' else 'serial:/dev/ttyX'}",
        f"described  {board.folder / 'board.toml'}",
    ]
    return "\n".join(lines)


def _listed(features: tuple[str, ...]) -> str:
    return f" ({', '.join(features)})" if features else ""


def _cluster(cluster: Cluster) -> str:
    clock = f" at {cluster.clock_mhz} MHz" if cluster.clock_mhz else ""
    l1, l2 = byte_text(cluster.l1_bytes), byte_text(cluster.l2_bytes)
    cpus = ",".join(map(str, cluster.cpus))
    return (
        f"{cluster.count}x {cluster.core}{clock}, L1 {l1} ({cluster.l1_ways} ways), L2 {l2},"
        f" CPU {cpus}"
    )
