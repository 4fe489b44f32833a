"""Bundles: several models compiled into one library.

``bundle`` walks the journey of ``compile`` with each model and writes them together; ``Bundle`` is
the result on disk, whose ``project(name)`` is a Project like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotgen.api import check_output, new_folder
from aotgen.codegen.names import default_prefix, is_reserved
from aotgen.errors import AotgenError, UsageError
from aotgen.loading import Progress, Shapes, load_for, optimise, self_contained, target_of
from aotgen.manifest import bundled_models, read_json
from aotgen.options import CompileOptions
from aotgen.project import Project
from aotgen.target.board import Board, load_board

if TYPE_CHECKING:
    from aotgen.codegen.bundle import BundledModel
    from aotgen.report.bundle import BundleReport

Models = Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]]
"""Model files; where it is a mapping, by the prefix of each model's symbols."""

_OWN_NAMES = frozenset(
    re.split(
        r"\s+",
        """bench bin configure ctx config device firmware init input inputs link mlperf output
        outputs pool reset run served shared strerror test tools trace traced version view weights
        worker""",
    )
)
"""What stands behind a prefix and an underscore in symbols, files and targets of ours."""


@dataclass(frozen=True)
class ModelOptions:
    """What one model of a bundle has of its own; see ``CompileOptions``."""

    shapes: Shapes = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    stream: int | None = None
    time_axis: int | None = None

    def added_to(self, common: CompileOptions, prefix: str) -> CompileOptions:
        """The options of a model with that prefix, beside what is common to all."""
        return replace(
            common,
            prefix=prefix,
            shapes={name: tuple(shape) for name, shape in self.shapes.items()},
            dims=dict(self.dims),
            stream=self.stream,
            time_axis=self.time_axis,
        )


class Bundle:
    """A bundle on disk.

    Attributes:
        folder: where it is.
        manifest: the whole of its manifest.json.
        models: prefixes of its models.
    """

    def __init__(self, folder: str | os.PathLike[str], board: Board | None = None) -> None:
        """
        Args:
            folder: made by ``bundle``.
            board: only for a board of the user's own.

        Raises:
            UsageError: ``folder`` holds no bundle, or one of another format.
        """
        self.folder = Path(folder)
        self.manifest: dict[str, Any] = read_json(self.folder)
        if "models" not in self.manifest:
            raise UsageError(f"{self.folder} is no bundle, but the project of one model")
        self.models = bundled_models(self.manifest)
        self._board = board

    def project(self, model: str) -> Project:
        """One of its models, to run, check and time.

        Raises:
            UsageError: there is no such model.
        """
        return Project(self.folder, self._board, model)

    @property
    def board(self) -> Board:
        """That it was compiled for.

        Raises:
            UsageError: the board is none of ours and was not given.
        """
        return self.project(self.models[0]).board

    def report(self, build: bool = False) -> BundleReport:
        """What it takes of its board, and whether that is there.

        Args:
            build: also build it: code, its shares and the stack are exact then.

        Raises:
            UsageError: ``build`` for a board that is no microcontroller.
            ToolchainError: the compiler is missing or fails.
        """
        from aotgen.footprint import measure_footprint
        from aotgen.report.bundle import bundle_report

        infos = [self.project(model).info for model in self.models]
        built = measure_footprint(infos, self.board) if build else None
        return bundle_report(self.manifest, self.board, built)

    def __repr__(self) -> str:
        return f"Bundle({str(self.folder)!r}, models={self.models})"


def bundle(
    models: Models,
    board: str | os.PathLike[str] | Board = "host",
    output: str | os.PathLike[str] = "bundle",
    *,
    name: str | None = None,
    share_arena: bool = False,
    options: CompileOptions | None = None,
    own: Mapping[str, ModelOptions] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Compile several models into one library.

    Each keeps its API, its context and its weights; kernels and runtime are there once.

    Args:
        models: .onnx and .tflite files; prefixes come from the files' names unless they are given.
        board: name of a board, path of a board.toml, or a Board.
        output: folder of the bundle.
        name: of the library, and prefix of what the models share; None takes the folder's.
        share_arena: the models never run at once: one arena, as large as the largest, serves all.
        options: of the compilation of all models, without what is one's own. A requant mode is that
            of the .tflite files.
        own: of single models, by prefix.
        force: replace a bundle or project that is already at ``output``.
        progress: told what is going on.

    Returns:
        The bundle, not built yet.

    Raises:
        UsageError: an option, a name or a path is wrong, or ``output`` holds something else.
        ModelError, UnsupportedError, ShapeError: see ``load``; the message names the model file.
    """
    from aotgen.codegen.bundle import generate_bundle

    tell = progress or (lambda stage: None)
    common = options or CompileOptions()
    the_board = board if isinstance(board, Board) else _load_board(board)
    folder = Path(output)
    files = _prefixes(models)
    library = _library_name(name, folder, list(files))
    singles = own or {}
    for model in singles:
        if model not in files:
            raise UsageError(f"there is no model {model!r}", remedy=f"they are {', '.join(files)}")
    if common != replace(ModelOptions().added_to(common, "none"), prefix=None):
        raise UsageError("prefix, shapes, dims and streams are of one model, not of a bundle")
    target = target_of(the_board, common)
    if target.device == "gpu":
        raise UsageError(
            "a bundle's models run on the CPU", remedy="compile those for the GPU one by one"
        )
    check_output(folder, force)
    bundled = []
    for prefix, file in files.items():
        bound = singles.get(prefix, ModelOptions()).added_to(common, prefix)
        tell(f"compiling {file.name}")
        with _naming(file):
            bundled.append(_load(file, bound, the_board, target.device))
    tell("planning and writing the bundle")
    with new_folder(folder) as fresh:
        generate_bundle(bundled, library, the_board, target, share_arena, fresh)
    return Bundle(folder, the_board)


def _load_board(board: str | os.PathLike[str]) -> Board:
    return load_board(board if isinstance(board, str) else Path(board))


def _load(file: Path, options: CompileOptions, board: Board, device: str) -> BundledModel:
    """A model after the passes."""
    from aotgen.codegen.bundle import BundledModel
    from aotgen.frontend import is_tflite
    from aotgen.tune.apply import open_journal

    mode = (options.requant or "tflm") if is_tflite(file) else None
    options = replace(options, requant=mode)
    tuning = open_journal(options.journal, board, "gpu" if device == "gpu" else "cpu")
    graph = load_for(file, options)
    whole = self_contained(file)
    return BundledModel(optimise(graph, options), options, whole, tuning)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """An error in the block names the model file."""
    try:
        yield
    except AotgenError as error:
        text = str(error.args[0]) if error.args else ""
        if str(file) not in text:
            error.args = (f"{file}: {text}", *error.args[1:])
        raise


def _prefixes(models: Models) -> dict[str, Path]:
    """The files by the prefixes of their models. Files of one name get numbers.

    Raises:
        UsageError: there is no model, or a given prefix cannot be one beside the others.
    """
    if not models:
        raise UsageError("a bundle needs models", remedy="name their files")
    named: dict[str, Path] = {}
    if isinstance(models, Mapping):
        named = {prefix: Path(file) for prefix, file in models.items()}
        for prefix in named:
            CompileOptions(prefix=prefix)  # checks it
        if len({prefix.lower() for prefix in named}) < len(named):
            raise UsageError("two models of a bundle have names that differ in case alone")
    else:
        for file in map(Path, models):
            prefix = base = default_prefix(file.stem)
            number = 2
            while prefix in named:
                prefix, number = f"{base}_{number}", number + 1
            named[prefix] = file
    for prefix in named:
        for other in named:
            _check_apart(prefix, other)
    return named


def _check_apart(longer: str, shorter: str) -> None:
    """
    Raises:
        UsageError: names of the one are names of the other.
    """
    head, _, rest = longer.lower().partition(f"{shorter.lower()}_")
    if not head and rest in _OWN_NAMES:
        raise UsageError(
            f"names {longer!r} and {shorter!r} clash: {shorter}_{rest} is a name of {shorter}",
            remedy="name a model otherwise (NAME=FILE), or the bundle (--name)",
        )


def _library_name(name: str | None, folder: Path, prefixes: Sequence[str]) -> str:
    """The library's name; the folder's unless it is given.

    Raises:
        UsageError: it is a model's, or cannot be one.
    """
    taken = {prefix.lower() for prefix in prefixes}
    if name is None:
        name = default_prefix(Path(os.path.abspath(folder)).name)
        if name in taken or is_reserved(name):
            name = f"{name}_bundle"
    CompileOptions(prefix=name)  # checks it
    if name.lower() in taken:
        raise UsageError(f"{name!r} is the name of a model and of the bundle", remedy="change one")
    for prefix in prefixes:
        _check_apart(name, prefix)
        _check_apart(prefix, name)
    return name
