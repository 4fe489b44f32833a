"""The Python API: load a model, compile it into a project. The command line calls nothing else.

``compile`` walks the journey: frontend, passes, plan and codegen; the project appears at ``output``
only when all of it has succeeded.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotgen.errors import UsageError
from aotgen.loading import (
    PassObserver,
    Progress,
    Shapes,
    load,
    load_for,
    optimise,
    requant_of,
    self_contained,
    target_of,
)
from aotgen.manifest import MANIFEST, read_own_json
from aotgen.options import CompileOptions, Device, IoType, Optimize, RequantMode, Weights
from aotgen.project import Project
from aotgen.target.board import Board, load_board

if TYPE_CHECKING:
    from aotgen.footprint import Footprint
    from aotgen.report.tuning import TuneDisplay
    from aotgen.tune.session import TuneResult

__all__ = [
    "PassObserver",
    "Progress",
    "Shapes",
    "analyze",
    "check_output",
    "compile",
    "load",
    "load_for",
    "new_folder",
    "optimise",
    "target_of",
    "tune",
]


def _quiet(stage: str) -> None:
    return None


def compile(
    model: str | os.PathLike[str],
    board: str | os.PathLike[str] | Board = "host",
    output: str | os.PathLike[str] | None = None,
    *,
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    opt_level: int = 3,
    disabled_passes: Sequence[str] = (),
    weights: Weights = "asm",
    threads: int = 1,
    device: Device = "cpu",
    prefix: str | None = None,
    optimize: Optimize = "speed",
    requant: RequantMode | None = None,
    io_type: IoType = "native",
    journal: str | os.PathLike[str] | None = None,
    stream: int | None = None,
    time_axis: int | None = None,
    force: bool = False,
    observer: PassObserver | None = None,
    progress: Progress = _quiet,
) -> Project:
    """Compile a model file into a C project.

    Args:
        model: an .onnx or a .tflite file.
        board: name of a board, path of a board.toml, or a Board.
        output: folder of the project; None is ``<model>_<board>`` in the current folder.
        shapes: shape of an input by its name, where the file leaves it open.
        dims: value of a symbolic dimension by its name.
        opt_level: 0 to 4.
        disabled_passes: names of passes to leave out.
        weights: "asm", "c" or "bin", see ``CompileOptions``.
        threads: most threads one run may use.
        device: "cpu", "gpu" or "auto".
        prefix: of every public symbol; None derives it from the model's file name.
        optimize: "speed", "ram" or "flash".
        requant: of a .tflite file, "tflm" (which None is) or "litert".
        io_type: "native", or "float" for float32 in place of quantized inputs and outputs.
        journal: of ``tune``, whose best records to use; None is the one that comes with the board,
            if any, and "none" is none.
        stream: new frames that each run reads; the others of the model's window wait in the state.
        time_axis: of the inputs, for ``stream``; None for the first longer than 1, channels last.
        force: replace a project that is already at ``output``.
        observer: see ``optimise``.
        progress: told what is going on.

    Returns:
        The project, not built yet.

    Raises:
        UsageError: an option or a path is wrong, or ``output`` holds something else.
        ModelError, UnsupportedError, ShapeError: see ``load``.
    """
    options = CompileOptions(
        opt_level=opt_level,
        disabled_passes=tuple(disabled_passes),
        weights=weights,
        threads=threads,
        device=device,
        prefix=prefix,
        optimize=optimize,
        requant=requant,
        io_type=io_type,
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        dims=dict(dims or {}),
        journal=None if journal is None else os.fspath(journal),
        stream=stream,
        time_axis=time_axis,
    )
    the_board = _board(board)
    source = Path(model)
    options = replace(options, requant=requant_of(source, requant))
    folder = Path(output) if output is not None else Path(f"{source.stem}_{the_board.name}")
    check_output(folder, force)
    return _compiled(source, the_board, options, folder, observer, progress)


def _compiled(
    source: Path,
    the_board: Board,
    options: CompileOptions,
    folder: Path,
    observer: PassObserver | None,
    progress: Progress,
) -> Project:
    """``compile`` with checked options into a folder that may be replaced."""
    target = target_of(the_board, options)
    from aotgen.tune.apply import open_journal

    tuning = open_journal(options.journal, the_board, target.device)
    progress("reading the model")
    graph = load_for(source, options)
    whole = self_contained(source)
    progress("running the passes")
    graph = optimise(graph, options, observer)

    from aotgen.codegen.project import generate

    progress("planning and writing the project")
    with new_folder(folder) as fresh:
        generate(graph, the_board, target, options, fresh, whole, observer, tuning)
    return Project(folder, the_board)


def tune(
    model: str | os.PathLike[str],
    board: str | os.PathLike[str] | Board = "host",
    journal: str | os.PathLike[str] = "tune.jsonl",
    *,
    trials: int | None = None,
    trials_per_task: int | None = None,
    early_stopping: int | None = None,
    budget_seconds: float | None = None,
    tuner: str = "xgb",
    seed: int = 0,
    tasks: Sequence[str] = (),
    runner: str | None = None,
    scheduler: str | None = None,
    number: int | None = None,
    repeat: int | None = None,
    min_repeat_ms: float | None = None,
    timeout: float | None = None,
    network: bool = True,
    options: CompileOptions | None = None,
    display: TuneDisplay | None = None,
    progress: Progress = _quiet,
) -> TuneResult:
    """Measure candidates for the kernels of a model on a board; ``compile(journal=...)`` uses what
    was found.

    What the journal knows is not measured again: the same call goes on where it stopped.

    Args:
        model: an .onnx or a .tflite file.
        board: name of a board, path of a board.toml, or a Board.
        journal: file that gets every result, line by line; created where there is none.
        trials: candidates of all tasks together, those that the journal knows included; None is 64
            for each task.
        trials_per_task: most of one task.
        early_stopping: a task ends after so many candidates without a better one.
        budget_seconds: the search ends after so many seconds.
        tuner: "xgb", "random", "grid" or "ga".
        seed: of everything random in the search.
        tasks: only these: numbers ("1,4-6"), keys, kinds of op ("conv3d"), or parts of or regular
            expressions for titles; none for all.
        runner: where candidates run, as ``--runner``; None is this computer for a board of its
            architecture, else the board's default. Boards of one kind may be several, with commas.
        scheduler: address of a Dask scheduler whose workers (``aotgen worker``) measure in place
            of a runner.
        number: calls per repeat; None takes as many as make one last ``min_repeat_ms``.
        repeat: repeats of which the lowest counts; None is the default, as for the next two.
        min_repeat_ms: shortest repeat.
        timeout: seconds after which a candidate is given up.
        network: whether to time the best candidates inside the whole network as well.
        options: of the compilation that the kernels are for.
        display: told how it goes.
        progress: told what is going on before the first candidate.

    Returns:
        What was found, task by task. It says whether the user stopped it (Ctrl-C).

    Raises:
        UsageError: an option or the journal is wrong, or a package is missing.
        ModelError, UnsupportedError, ShapeError: see ``load``.
        ToolchainError, BoardError: nothing can be built or run any more; the journal has what was
            measured before.
    """
    from aotgen.tune.run import Tunable, measure_options, run_tuning, select
    from aotgen.tune.session import SearchOptions

    search = SearchOptions(trials, trials_per_task, early_stopping, budget_seconds, tuner, seed)
    measuring = measure_options(number, repeat, min_repeat_ms, timeout)
    the_board = _board(board)
    tunable = Tunable(Path(model), the_board, options or CompileOptions(), progress)
    chosen = select(tunable.tasks, tasks)
    return run_tuning(
        tunable, chosen, Path(journal), search, measuring, runner, network, display, scheduler
    )


def analyze(
    model: str | os.PathLike[str],
    board: str | os.PathLike[str] | Board = "host",
    options: CompileOptions | None = None,
    progress: Progress = _quiet,
) -> dict[str, Any]:
    """What a compilation would give, without writing it: MACs, arena, flash, a table of layers.

    Returns:
        The manifest that ``compile`` would write.

    Raises:
        As ``compile``.
    """
    from aotgen.codegen.project import analyze as analyze_graph
    from aotgen.tune.apply import open_journal

    chosen = options or CompileOptions()
    chosen = replace(chosen, requant=requant_of(Path(model), chosen.requant))
    the_board = _board(board)
    target = target_of(the_board, chosen)
    tuning = open_journal(chosen.journal, the_board, target.device)
    progress("reading the model")
    graph = load_for(Path(model), chosen)
    progress("running the passes")
    graph = optimise(graph, chosen)
    progress("planning")
    whole = self_contained(Path(model))
    return analyze_graph(graph, the_board, target, chosen, whole, tuning)


def footprint(
    model: str | os.PathLike[str],
    board: str | os.PathLike[str] | Board,
    options: CompileOptions | None = None,
    progress: Progress = _quiet,
) -> Footprint:
    """Flash by symbol and the stack of a model's library on a microcontroller, from a build of it.

    Raises:
        UsageError: as ``compile``; or the board is no microcontroller.
        ToolchainError: its compiler is missing or fails.
    """
    from aotgen.footprint import measure_footprint

    the_board, chosen = _board(board), options or CompileOptions()
    with tempfile.TemporaryDirectory(prefix="aotgen-") as folder:
        chosen = replace(chosen, requant=requant_of(Path(model), chosen.requant))
        place = Path(folder) / "project"
        project = _compiled(Path(model), the_board, chosen, place, None, progress)
        progress("building")
        return measure_footprint(project.info, the_board)


def _board(board: str | os.PathLike[str] | Board) -> Board:
    if isinstance(board, Board):
        return board
    return load_board(board if isinstance(board, str) else Path(board))


def check_output(folder: Path, force: bool) -> None:
    """Refuse an output folder that cannot be ours, before any work is done.

    Raises:
        UsageError: ``folder`` is a file, holds something, or cannot be created.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"output {folder} exists and is not a folder", remedy="choose another -o")
    if folder.is_dir() and any(_listing(folder)):
        if not force:
            raise UsageError(
                f"output folder {folder} is not empty", remedy="use --force or choose another -o"
            )
        if not (folder / MANIFEST).is_file():
            raise UsageError(
                f"output folder {folder} is not empty and holds no project of aotgen",
                remedy="choose another -o",
            )
        read_own_json(folder)
    if folder.exists() and folder.resolve() == Path.cwd():
        raise UsageError("the output folder is the current folder", remedy="choose another -o")
    parent = _nearest_parent(folder)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"cannot create output folder {folder}: {parent} is not a writable folder")


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot read output folder {folder}: {error.strerror}") from error


def _nearest_parent(folder: Path) -> Path:
    """The folder that exists and would hold the new one (or the new one's missing parents)."""
    parent = Path(os.path.abspath(folder)).parent
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return parent


_NAME_LENGTH = 32
"""Most characters of the name of a folder that its neighbours have in theirs."""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into: it becomes ``folder`` when the block ends well, else it vanishes.

    Raises:
        UsageError: it cannot be created.
    """
    target = Path(os.path.abspath(folder))
    made = _missing_parents(target)
    # Names first, then folders: whenever an interruption comes, both are known.
    name = f".{target.name[:_NAME_LENGTH]}.{secrets.token_hex(4)}"
    fresh, old = target.with_name(f"{name}.new"), target.with_name(f"{name}.old")
    doing = "create"
    try:
        fresh.mkdir(0o755, parents=True)
        doing = "write"
        yield fresh
        _replace(target, fresh, old)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        _remove_empty(made)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise UsageError(f"cannot {doing} output folder {folder}: {error.strerror}") from error
        raise


def _replace(target: Path, fresh: Path, old: Path) -> None:
    """Rename ``fresh`` to ``target``; what was there becomes ``old`` first and is removed last."""
    try:
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _missing_parents(target: Path) -> list[Path]:
    """The folders above ``target`` that do not exist yet, innermost first."""
    return [p for p in target.parents if not p.exists()]


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
