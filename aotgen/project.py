"""Project: a generated project on disk, and what can be done with it: build, run, bench, validate.

Every verb builds first when something changed. Programs go through a Runner; a project for this
computer also runs in this process, through its shared library.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from aotgen.bench import BenchOptions, measure
from aotgen.bench_result import BenchInterrupted, BenchResult, Cores
from aotgen.errors import BoardError, UsageError
from aotgen.ir.types import Array
from aotgen.manifest import Manifest, read_manifest
from aotgen.runner.base import Argument, Download, Runner, Upload
from aotgen.target.board import Board, list_boards, load_board
from aotgen.target.host import host_runs

if TYPE_CHECKING:
    from aotgen.builder import Build, BuildType
    from aotgen.runner.instance import Instance, Library
    from aotgen.validate import ValidateReport

Tensors = Mapping[str, Array]
RunnerSpec = str | Runner | None

WEIGHTS_FILE = Path("src") / "weights.bin"


class Project:
    """A generated project.

    Attributes:
        folder: where it is.
        info: its manifest, typed.
        board: that it was compiled for.
    """

    def __init__(self, folder: str | os.PathLike[str], board: Board | None = None) -> None:
        """
        Args:
            folder: made by ``compile``.
            board: only for a board of the user's own, which the manifest's name does not find.

        Raises:
            UsageError: ``folder`` holds no project, or it was compiled for another board.
        """
        self.folder = Path(folder)
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
        runner: RunnerSpec = None,
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
        runner: RunnerSpec = None,
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
        return self._run_program(checked, runner, self._threads_arguments(threads, cores))[0]

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

    def _threads_arguments(self, threads: int, cores: Cores | None) -> list[Argument]:
        """What tells the run program its threads; nothing where it would do so by itself."""
        self._check_threads(threads)
        if cores is not None and cores not in get_args(Cores):
            raise UsageError(f"--cores {cores!r} does not exist", remedy="use big, little or all")
        given: list[Argument] = ["--threads", str(threads)] if threads > 1 else []
        return [*given, *(["--cores", cores] if cores is not None else [])]

    def _loaded(self) -> Library:
        """The shared library, built and loaded again when a source has changed.

        Asking CMake each time would cost more than most models take to run.
        """
        from aotgen.runner.instance import Library

        stamp = self._sources_stamp()
        if self._library is None or stamp != self._library_stamp:
            path = self._build_only("shared").shared_library
            self._library = Library(path, self.info.prefix)
            self._library_stamp = stamp
        return self._library

    def _sources_stamp(self) -> list[tuple[str, int, int]]:
        """Path, time of change and size of everything that the library is built from.

        Raises:
            UsageError: a file is gone.
        """
        files = [self.folder / "CMakeLists.txt"]
        for name in ("src", "include"):
            files += (self.folder / name).glob("*")
        try:
            stats = [(path, path.stat()) for path in sorted(files)]
        except OSError as error:
            raise UsageError(
                f"{self.folder} is not complete: cannot read {error.filename} ({error.strerror})",
                remedy="compile the model again",
            ) from error
        return [(str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats]

    def _build_only(self, kind: Literal["shared", "run", "bench"]) -> Build:
        """A Release build of the shared library or of one program."""
        from aotgen.builder import build_project

        target = f"{self.info.prefix}_{kind}"
        return build_project(self.info, self.board, shared=kind == "shared", targets=(target,))

    def _weights(self) -> Array | None:
        """The weight bytes that the application must pass; None when the library holds them."""
        if self.info.options.weights != "bin":
            return None
        return np.fromfile(self.folder / WEIGHTS_FILE, np.uint8)

    def bench(
        self,
        number: int | None = None,
        repeat: int = 10,
        warmup: int = 2,
        runner: RunnerSpec = None,
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
        self, threads: Sequence[int], options: BenchOptions, runner: RunnerSpec = None
    ) -> list[BenchResult]:
        """``bench`` with one number of threads after the other, over one connection."""
        options.check(threads, self.info.api.threads)
        program, extra = self.bench_program()
        results: list[BenchResult] = []
        with self._runner(runner) as place:
            place.deploy(program)
            try:
                for result in measure(
                    self.info, self.board, place, program, extra, threads, options
                ):
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

    def validate(
        self,
        inputs: Tensors | Sequence[Tensors] | None = None,
        per_layer: bool = False,
        runner: RunnerSpec = None,
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
        # One runner for all programs: a connection is dear.
        with nullcontext() if runner is None else self._runner(runner) as place:
            return validate(self, steps, per_layer, place, limit, threads, cores)

    def run_traced(
        self,
        steps: Sequence[Tensors],
        runner: RunnerSpec = None,
        threads: int = 1,
        cores: Cores | None = None,
    ) -> tuple[list[dict[str, Array]], bytes]:
        """Run successive steps on one instance through the run program.

        Returns:
            The outputs of each step, and the trace file (see ``aotgen.validate.parse_trace``).
        """
        checked = [self.info.checked_inputs(step) for step in steps]
        more = self._threads_arguments(threads, cores)
        return self._run_program(checked, runner, more, trace=True)

    def call_run_program(self, arguments: Sequence[Argument], runner: RunnerSpec = None) -> str:
        """What ``<prefix>_run`` prints on stdout when called with ``arguments``."""
        program = self._build_only("run").program("run")
        with self._runner(runner) as place:
            place.deploy(program)
            return place.run(program, [*arguments, *self._weights_arguments()]).stdout

    def _run_program(
        self,
        steps: Sequence[Sequence[Array]],
        runner: RunnerSpec,
        more: Sequence[Argument] = (),
        trace: bool = False,
    ) -> tuple[list[dict[str, Array]], bytes]:
        with tempfile.TemporaryDirectory(prefix="aotgen-") as name:
            folder = Path(name)
            fed, got, seen = folder / "in.bin", folder / "out.bin", folder / "trace.bin"
            fed.write_bytes(b"".join(a.tobytes() for step in steps for a in step))
            arguments: list[Argument] = ["--in", Upload(fed), "--out", Download(got), *more]
            if trace:
                arguments += ["--trace", Download(seen)]
            self.call_run_program(arguments, runner)
            try:
                outputs = self._split_outputs(got.read_bytes(), len(steps))
                return outputs, seen.read_bytes() if trace else b""
            except OSError as error:
                raise BoardError(f"{self.info.prefix}_run wrote no result: {error}") from error

    def _split_outputs(self, data: bytes, steps: int) -> list[dict[str, Array]]:
        expected = steps * sum(t.nbytes for t in self.info.outputs)
        if len(data) != expected:
            raise BoardError(
                f"{self.info.prefix}_run wrote {len(data)} bytes of outputs instead of {expected}"
            )
        results, start = [], 0
        for _ in range(steps):
            result: dict[str, Array] = {}
            for tensor in self.info.outputs:
                piece = data[start : start + tensor.nbytes]
                result[tensor.name] = (
                    np.frombuffer(piece, tensor.numpy).reshape(tensor.shape).copy()
                )
                start += tensor.nbytes
            results.append(result)
        return results

    def _weights_arguments(self) -> list[Argument]:
        if self.info.options.weights != "bin":
            return []
        return ["--weights", Upload(self.folder / WEIGHTS_FILE)]

    def _runner(self, runner: RunnerSpec) -> AbstractContextManager[Runner]:
        """The runner that is meant; one that the caller made is left open."""
        from aotgen.runner.select import runner_for

        if isinstance(runner, Runner):
            return nullcontext(runner)
        return runner_for(runner, self.board)
