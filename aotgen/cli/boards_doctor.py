"""``aotgen boards doctor`` and ``aotgen boards probe``: look at a board that is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity
from aotgen.errors import UsageError

if TYPE_CHECKING:
    from aotgen.runner.base import Runner

_Host = Annotated[
    str,
    typer.Argument(
        metavar="HOST",
        help="ssh://user@host[:port], a Host of the ssh configuration, or local; for a"
        " microcontroller with --board local, qemu or serial:/dev/ttyX.",
        show_default=False,
    ),
]
_Root = Annotated[
    str,
    typer.Option(
        "--sysfs-root",
        metavar="DIR",
        help="Folder on the board that stands for its / where /proc, /sys and /etc are read.",
        show_default=False,
    ),
]


def doctor(
    host: _Host,
    board: Annotated[
        str | None,
        typer.Option(
            "--board",
            metavar="B",
            help="What it should be: name or path; default is the board of ours with its cores.",
            show_default=False,
        ),
    ] = None,
    root: _Root = "",
    as_json: opt.Json = False,
) -> None:
    """Check a board: what it is, and whether it is fit to be measured on. Exit code 1: problems."""
    from aotgen.doctor.diagnose import diagnose
    from aotgen.target.board import load_board

    wanted = load_board(board) if board is not None else None
    if wanted is None and _is_bare_host(host):
        raise UsageError(f"{host} does not say which board it is", remedy="name it: --board B")
    if wanted is not None and wanted.is_bare:
        from aotgen.doctor.bare import diagnose_bare

        report = diagnose_bare(host, wanted)
    else:
        root = _absolute(host, root)
        with _runner(host) as runner:
            report = diagnose(host, runner, wanted, root)
    typer.echo(json.dumps(report.as_dict(), indent=2) if as_json else str(report))
    if report.problems:
        raise typer.Exit(1)


def probe(host: _Host, root: _Root = "") -> None:
    """Print a board.toml for the board; write it to NAME/board.toml and use --board NAME's path."""
    from aotgen.doctor.diagnose import describe

    if _is_bare_host(host):
        raise UsageError(
            f"{host} leads to a microcontroller, which has no system that could be asked",
            remedy='write a board.toml: extends = "cortex-m4" (or another core), its memory and'
            " [firmware]; see docs/boards.md",
        )
    root = _absolute(host, root)
    with _runner(host) as runner:
        text = describe(host, runner, root)
    typer.echo(text, nl=False)


def _is_bare_host(host: str) -> bool:
    return host == "qemu" or host.startswith("serial:")


def _absolute(host: str, root: str) -> str:
    """A folder on the board; on this computer it may be relative."""
    if not root:
        return ""
    if host == "local":
        if not Path(root).is_dir():
            raise UsageError(f"--sysfs-root {root}: there is no such folder")
        return str(Path(root).resolve())
    if not root.startswith("/"):
        raise UsageError(f"--sysfs-root {root} is relative", remedy="give a path from / on")
    return root


@contextmanager
def _runner(host: str) -> Iterator[Runner]:
    """A runner that leads to a real board, closed afterwards; reports progress meanwhile."""
    from aotgen.runner.select import runner_for

    if _is_bare_host(host):
        raise UsageError(
            f"{host} leads to no board with an operating system",
            remedy="use ssh://user@host or local",
        )
    with activity(f"looking at {host}") as shown, runner_for(host, None, shown) as runner:
        yield runner
