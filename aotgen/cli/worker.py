"""``aotgen worker``: offer a board to the runs of ``aotgen tune --scheduler``."""

from __future__ import annotations

import os
import sys
from contextlib import closing

import typer

from aotgen.cli.common import RUNNER_HELP


def worker(
    scheduler: str = typer.Argument(
        ..., metavar="SCHEDULER", help="Address of a Dask scheduler: tcp://host:8786."
    ),
    board: str = typer.Option(
        ..., "--board", help="Name or path of the board.", show_default=False
    ),
    runner: str | None = typer.Option(None, "--runner", help=RUNNER_HELP),
    name: str | None = typer.Option(
        None, "--name", help="What Dask calls the worker; each has another name."
    ),
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
