"""Project: a generated project on disk, and what can be done with it: build, run, bench, validate.

Every verb builds first when something changed. A model runs at a Place (``runner/base.py``): by
the project's programs or in a microcontroller's firmware. A project for this computer also runs in
this process, through its shared library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aotgen.bench import BenchOptions
from aotgen.bench_result import BenchInterrupted, BenchResult, Cores
from aotgen.errors import BoardError, UsageError
from aotgen.ir.types import Array
from aotgen.manifest import Manifest, model_folder, read_manifest
from aotgen.runner.base import Argument, Place, Upload
from aotgen.target.board import Board, list_boards, load_board
from aotgen.target.host import host_runs

if TYPE_CHECKING:
    from aotgen.builder import Build, BuildType
    from aotgen.runner.instance import Instance, Library
    from aotgen.runner.model import PlacedModel
    from aotgen.validate import ValidateReport

Tensors = Mapping[str, Array]
PlaceSpec = str | Place | None
"""The text of ``--runner``, or a place that is open already."""


class Project:
    """A generated project.

    Attributes:
        folder: where it is.
        info: its manifest, typed.
        board: that it was compiled for.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        board: Board | None = None,
        model: str | None = None,
    ) -> None:
        """
        Args:
            folder: made by ``compile``, or by ``bundle``.
            board: only for a board of the user's own, which the manifest's name does not find.
            model: which one of a bundle's models; None is the only one.

        Raises:
            UsageError: ``folder`` holds no project, or it was compiled for another board.
        """
        self.folder = model_folder(Path(folder), model)
        self.info: Manifest = read_manifest(self.folder)
        if board is not None and board.name != self.info.board_name:
            raise UsageError(
                f"{self.folder} was compiled for board {self.info.board_name}, not {board.name}"
            )
        self._board = board
        self._library: Library | None = None
        self._library_stamp: list[tuple[str, int, int]] = []

    @cached_property
    def board(self) -> Board:
        """
        Raises:
            UsageError: the board is none of ours and was not given.
        """
        if self._board is not None:
            return self._board
        if self.info.board_name not in list_boards():
            raise UsageError(
                f"{self.folder} was compiled for board {self.info.board_name}, none of ours",
                remedy="give the path of its board.toml (--board)",
            )
        return load_board(self.info.board_name)

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole of manifest.json."""
        return self.info.data

    def __repr__(self) -> str:
        return f"Project({str(self.folder)!r}, board={self.info.board_name!r})"

    def build(
        self, build_type: BuildType = "Release", compiler: str | None = None, shared: bool = False
    ) -> Build:
        """Build the static library and the project's programs; incremental.

        Args:
            build_type: CMake's: "Release", "Debug", "RelWithDebInfo" or "MinSizeRel".
            compiler: "gcc", "clang" or a program; None is the board's own.
            shared: also the shared library that ``run`` loads.

        Returns:
            Where the results are.

        Raises:
            ToolchainError: a tool is missing or the build fails.
        """
        from aotgen.builder import build_project

        return build_project(self.info, self.board, build_type, compiler, shared)

    def run(
        self,
        inputs: Tensors,
        runner: PlaceSpec = None,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> dict[str, Array]:
        """Run the model once, on a fresh instance.

        Args:
            inputs: by the model's own names, in the file's own layout.
            runner: None runs a project for this computer in this process, and any other by the
                board's default runner.
            threads: that share a run, at most those that the project was compiled for; results do
                not depend on them.
            cores: on which of the board's cores, the fastest first; None leaves that to the run
                program, and in this process to the system.

        Returns:
            The outputs, likewise.

        Raises:
            UsageError: an input is missing, unknown, or of the wrong shape or type; the project was
                not compiled for so many threads.
            ToolchainError: the project does not build.
            BoardError: the program or the board fails.
        """
        return self.run_steps([inputs], runner, threads, cores)[0]

    def run_steps(
        self,
        steps: Sequence[Tensors],
        runner: PlaceSpec = None,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> list[dict[str, Array]]:
        """Run successive steps on one instance: a model's state carries over. See ``run``."""
        checked = [self.info.checked_inputs(step) for step in steps]
        if runner is None and cores is None and self.board.runs_here:
            instance = self.instance(threads)
            try:
                return [instance.step(step) for step in steps]
            finally:
                instance.close()
        self._check_threads(threads)
        with self.placed(runner) as model:
            return model.run(checked, threads, cores)

    def instance(self, threads: int = 1) -> Instance:
        """A new instance of the model in this process, with its own memory and threads; builds
        when needed.

        Raises:
            UsageError: the project is for another kind of computer, or for fewer threads.
            BoardError: this computer lacks its instruction set.
            ToolchainError: it does not build.
        """
        from aotgen.runner.instance import Instance

        self._check_threads(threads)
        if not self.board.runs_here:
            raise UsageError(
                f"board {self.board.name} is not this computer", remedy="use a runner (qemu)"
            )
        if not host_runs(self.info.isa):
            raise BoardError(
                f"this computer lacks {self.info.isa}, which {self.folder} was compiled for",
                remedy="compile it for a board such as host-scalar",
            )
        return Instance(self._loaded(), self.info, self._weights(), threads)

    def _check_threads(self, threads: int) -> None:
        """
        Raises:
            UsageError: the project was not compiled for so many.
        """
        most = self.info.api.threads
        if not 1 <= threads <= most:
            raise UsageError(
                f"{self.folder} was compiled for runs of {'1' if most == 1 else f'1 to {most}'}"
                f" thread{'s' if most > 1 else ''}, not {threads}",
                remedy="compile the model again with --threads N, the most that a run may use",
            )

    def _loaded(self) -> Library:
        """The shared library, built and loaded again when a source has changed.

        Asking CMake each time would cost more than most models take to run.
        """
        from aotgen.runner.instance import Library

        stamp = self._sources_stamp()
        if self._library is None or stamp != self._library_stamp:
            path = self._build_only("shared").shared_library
            self._library = Library(path, self.info.prefix, self.info.bundle)
            self._library_stamp = stamp
        return self._library

    def _sources_stamp(self) -> list[tuple[str, int, int]]:
        """Path, time of change and size of everything that the library is built from.

        Raises:
            UsageError: a file is gone.
        """
        files = [self.folder / "CMakeLists.txt"]
        for name in ("src", "include"):
            files += (self.info.root / name).glob("*")
        try:
            stats = [(path, path.stat()) for path in sorted(files)]
        except OSError as error:
            raise UsageError(
                f"{self.folder} is not complete: cannot read {error.filename} ({error.strerror})",
                remedy="compile the model again",
            ) from error
        return [(str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats]

    def _build_only(self, kind: Literal["shared", "run", "bench", "firmware"]) -> Build:
        """A Release build of the shared library, of one program or of the firmware."""
        from aotgen.builder import build_project, built_project

        _, prefix = built_project(self.info, self.board)
        target = f"{prefix}_{kind}"
        return build_project(self.info, self.board, shared=kind == "shared", targets=(target,))

    def _weights(self) -> Array | None:
        """The weight bytes that the application must pass; None when the library holds them."""
        if self.info.options.weights != "bin":
            return None
        return np.fromfile(self.info.weights_file, np.uint8)

    def bench(
        self,
        number: int | None = None,
        repeat: int = 10,
        warmup: int = 2,
        runner: PlaceSpec = None,
        profile: bool = False,
        cooldown: float = 0.0,
        threads: int = 1,
        cores: Cores | None = None,
        governor: bool = True,
        sysfs_root: str | None = None,
    ) -> BenchResult:
        """Time the model with its bench program.

        Args:
            number: runs per repeat; None takes as many as make a repeat last about 50 ms.
            repeat: how many times to measure.
            warmup: runs before.
            runner: as ``run``, but always through the program.
            profile: also time every layer.
            cooldown: seconds to wait at most until the board is as cool as it was before the first
                measurement, and always when it has no thermometer.
            threads: of a run, at most those that the project was compiled for.
            cores: which to use, the fastest first; None leaves it to the program.
            governor: set the CPUs' frequency governor to "performance" meanwhile.
            sysfs_root: where the board's sys/ is, for tests.

        Raises:
            BenchInterrupted: the measurement broke off; the error has what was measured.
            UsageError, ToolchainError, BoardError: see ``run``.
        """
        options = BenchOptions(
            number, repeat, warmup, cores, profile, cooldown, governor, sysfs_root
        )
        return self.bench_each([threads], options, runner)[0]

    def bench_each(
        self, threads: Sequence[int], options: BenchOptions, runner: PlaceSpec = None
    ) -> list[BenchResult]:
        """``bench`` with one number of threads after the other, over one connection."""
        options.check(threads, self.info.api.threads)
        results: list[BenchResult] = []
        with self.placed(runner) as model:
            try:
                for result in model.bench(threads, options):
                    results.append(result)
            except BoardError as error:
                if not results:
                    raise
                raise BenchInterrupted(error, results, options.repeat) from error
        return results

    def bench_program(self) -> tuple[Path, list[Argument]]:
        """The bench program, built when needed, and the arguments that pass it the weights.

        Raises:
            ToolchainError: it does not build.
        """
        return self._build_only("bench").program("bench"), self._weights_arguments()

    def run_program(self) -> tuple[Path, list[Argument]]:
        """``bench_program``, of the run program."""
        return self._build_only("run").program("run"), self._weights_arguments()

    def firmware(self) -> Build:
        """The built firmware of a microcontroller that brings its own start-up code.

        Raises:
            UsageError: the board leaves that to the user's firmware, or is no microcontroller.
            ToolchainError: it does not build.
        """
        if not self.board.firmware.can_start:
            raise UsageError(
                f"there is no firmware for board {self.board.name} alone: it has no start-up code",
                remedy="link the project's device library into your firmware, flash it and use"
                " --runner serial:/dev/ttyX",
            )
        return self._build_only("firmware")

    @contextmanager
    def placed(self, runner: PlaceSpec) -> Iterator[PlacedModel]:
        """The model where it is to run; a place that the caller made is left open.

        Raises:
            UsageError, ToolchainError, BoardError: see ``run``.
        """
        from aotgen.runner.select import place_for

        if isinstance(runner, Place):
            yield runner.model(self)
            return
        with place_for(runner, self.board) as place:
            yield place.model(self)

    def validate(
        self,
        inputs: Tensors | Sequence[Tensors] | None = None,
        per_layer: bool = False,
        runner: PlaceSpec = None,
        tolerance: float | None = None,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> ValidateReport:
        """Compare the built project with the reference interpreter on its model file.

        Args:
            inputs: of one step, or of successive steps of one instance; None takes seeded random
                ones, several steps where the model keeps state.
            per_layer: also compare what every kernel call computes, and the weights' checksums.
            runner: as ``bench``.
            tolerance: largest max|a-b| / max|b| of an output that passes; None is 1e-4.
            threads: as ``run``.
            cores: as ``run``.

        Raises:
            UsageError, ToolchainError, BoardError: see ``run``.
        """
        from aotgen.validate import DEFAULT_TOLERANCE, validate

        limit = DEFAULT_TOLERANCE if tolerance is None else tolerance
        steps = [inputs] if isinstance(inputs, Mapping) else inputs
        self._check_threads(threads)
        return validate(self, steps, per_layer, runner, limit, threads, cores)

    def _weights_arguments(self) -> list[Argument]:
        if self.info.options.weights != "bin":
            return []
        return ["--weights", Upload(self.info.weights_file)]
