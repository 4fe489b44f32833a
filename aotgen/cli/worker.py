"""``aotgen worker``: offer a board to the runs of ``aotgen tune --scheduler``."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import Annotated

import typer

from aotgen.cli import options as opt


def worker(
    scheduler: Annotated[
        str,
        typer.Argument(metavar="SCHEDULER", help="Address of a Dask scheduler: tcp://host:8786."),
    ],
    board: Annotated[
        str, typer.Option("--board", help="Name or path of the board.", show_default=False)
    ],
    runner: opt.Runner = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="What Dask calls the worker; each has another name."),
    ] = None,
) -> None:
    """Build candidates and measure them on BOARD for a SCHEDULER.

    Whoever tunes through SCHEDULER hands them out. The worker is a Dask worker with the resource
    board-BOARD, and runs until it is stopped (Ctrl-C) or the scheduler ends.
    """
    from aotgen.target.board import load_board
    from aotgen.tune.cluster import missing_distributed
    from aotgen.tune.measure import board_measurer
    from aotgen.tune.worker import RUNNER_VARIABLE, check_address, worker_argv

    check_address(scheduler)
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise missing_distributed() from error
    the_board = load_board(board)
    # What cannot work is told here and now, not at the first bundle.
    with closing(board_measurer(the_board, runner)):
        pass
    environment = dict(os.environ)
    if runner is not None:
        environment[RUNNER_VARIABLE] = runner
    argv = [sys.executable, "-m", "distributed.cli.dask_worker"]
    argv += worker_argv(scheduler, the_board, name)
    sys.stdout.flush()
    os.execve(sys.executable, argv, environment)
