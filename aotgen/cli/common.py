"""What the verbs share beside their options: progress on stderr, projects, npz files."""

from __future__ import annotations

import os
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer
from rich.console import Console
from rich.status import Status

from aotgen.errors import UsageError
from aotgen.ir.types import Array

if TYPE_CHECKING:
    from aotgen.project import Project
    from aotgen.runner.base import Place

PATIENCE_S = 1.0
"""What takes longer than this says what it is doing."""

_SAVEZ = "write it with numpy.savez(path, input=array), by the model's own names"


def help_alone(context: typer.Context) -> None:
    """Of a command with subcommands: its help where it stands alone, which is a mistake."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


class Activity:
    """What the command is doing, on stderr, once it takes over a second.

    A spinner on a terminal, else a line for each stage.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._timer: threading.Timer | None = None

    def __call__(self, what: str) -> None:
        """From now on the command does ``what``."""
        self._stop_timer()
        start = time.monotonic()
        if self._status is not None:
            self._status.update(f"{what} ...")
            return
        self._timer = threading.Timer(PATIENCE_S, self._show, (what, start))
        self._timer.daemon = True
        self._timer.start()

    def _show(self, what: str, start: float) -> None:
        if self._console.is_terminal:
            # Seldom redrawn, so that it does not disturb what is being timed.
            self._status = Status(f"{what} ...", console=self._console, refresh_per_second=4)
            self._status.start()
        else:
            print(f"aotgen: {what} ...", file=sys.stderr, flush=True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def close(self) -> None:
        self._stop_timer()
        if self._status is not None:
            self._status.stop()
            self._status = None


@contextmanager
def activity(what: str | None = None) -> Iterator[Activity]:
    """Reports progress while the block runs; call the result with each new stage."""
    shown = Activity()
    try:
        if what:
            shown(what)
        yield shown
    finally:
        shown.close()


def open_project(folder: Path, board: str | None, model: str | None = None) -> Project:
    """The project in ``folder``; ``board`` is None or the path of a board of the user's own,
    ``model`` names one of a bundle's.

    Raises:
        UsageError: there is no project, or it was compiled for another board.
    """
    from aotgen.project import Project
    from aotgen.target.board import load_board

    return Project(folder, load_board(board) if board is not None else None, model)


@contextmanager
def chosen_place(spec: str | None, project: Project, shown: Activity) -> Iterator[Place | None]:
    """The place that ``--runner`` names, closed afterwards; None leaves the choice to the project.

    Args:
        spec: the option's value.
        project: that will run there.
        shown: gets the progress of uploads.

    Raises:
        UsageError: there is no such runner.
        ToolchainError: the board's emulator is not installed.
    """
    from aotgen.runner.select import place_for

    if spec is None:
        yield None
        return
    with place_for(spec, project.board, shown) as place:
        yield place


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file.

    Raises:
        UsageError: it cannot be read, or holds Python objects.
    """
    try:
        data = np.load(path, allow_pickle=False)
        if not isinstance(data, np.lib.npyio.NpzFile):
            raise UsageError(f"{path} holds one array without a name", remedy=_SAVEZ)
        with data:
            return {name: data[name] for name in data.files}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        # numpy's own message speaks of pickles and of how to trust them.
        raise UsageError(f"{path} is not an .npz file of plain arrays", remedy=_SAVEZ) from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A place to write to, which becomes ``path`` when the block is left; removed when it fails.

    Raises:
        OSError: it cannot take the place of ``path``.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays under their names, whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with (
            written_whole(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive,
        ):
            # numpy.savez would take a tensor called "file" for an argument of its own.
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
