"""Project: a generated project on disk, and what can be done with it: build, run, bench, validate.

Every verb builds first when something changed. Programs go through a Runner; a project for this
computer also runs in this process, through its shared library.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

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

_REPEAT_MS = 50.0
_CALIBRATION_RUNS = 3


@dataclass(frozen=True)
class LayerTime:
    """Median time of one kernel call in milliseconds."""

    layer: int
    name: str
    ms: float


@dataclass(frozen=True)
class BenchResult:
    """How long one run of the model takes; ``times_ms`` has means of ``number`` runs each."""

    times_ms: tuple[float, ...]
    number: int
    runner: str
    layers: tuple[LayerTime, ...] = ()

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def min_ms(self) -> float:
        return min(self.times_ms)

    @property
    def mean_ms(self) -> float:
        return statistics.fmean(self.times_ms)

    @property
    def std_ms(self) -> float:
        return statistics.pstdev(self.times_ms)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "median_ms": self.median_ms,
            "min_ms": self.min_ms,
            "mean_ms": self.mean_ms,
            "std_ms": self.std_ms,
            "number": self.number,
            "repeat": len(self.times_ms),
            "runner": self.runner,
            "times_ms": list(self.times_ms),
            "layers": [asdict(layer) for layer in self.layers],
        }

    def __str__(self) -> str:
        return f"Mean inference time (std dev): {self.mean_ms:.2f} ms ({self.std_ms:.2f} ms)"


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

    def run(self, inputs: Tensors, runner: RunnerSpec = None) -> dict[str, Array]:
        """Run the model once, on a fresh instance.

        Args:
            inputs: by the model's own names, in the file's own layout.
            runner: None runs a project for this computer in this process, and any other by the
                board's default runner.

        Returns:
            The outputs, likewise.

        Raises:
            UsageError: an input is missing, unknown, or of the wrong shape or type.
            ToolchainError: the project does not build.
            BoardError: the program or the board fails.
        """
        return self.run_steps([inputs], runner)[0]

    def run_steps(
        self, steps: Sequence[Tensors], runner: RunnerSpec = None
    ) -> list[dict[str, Array]]:
        """Run successive steps on one instance: a model's state carries over. See ``run``."""
        checked = [self.info.checked_inputs(step) for step in steps]
        if runner is None and self.board.runs_here:
            instance = self.instance()
            return [instance.step(step) for step in steps]
        return self._run_program(checked, runner)[0]

    def instance(self) -> Instance:
        """A new instance of the model in this process, with its own memory; builds when needed.

        Raises:
            UsageError: the project is for another kind of computer.
            BoardError: this computer lacks its instruction set.
            ToolchainError: it does not build.
        """
        from aotgen.runner.instance import Instance

        if not self.board.runs_here:
            raise UsageError(
                f"board {self.board.name} is not this computer", remedy="use a runner (qemu)"
            )
        if not host_runs(self.info.isa):
            raise BoardError(
                f"this computer lacks {self.info.isa}, which {self.folder} was compiled for",
                remedy="compile it for a board such as host-scalar",
            )
        return Instance(self._loaded(), self.info, self._weights())

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
    ) -> BenchResult:
        """Time the model with its bench program.

        Args:
            number: runs per repeat; None takes as many as make a repeat last about 50 ms.
            repeat: how many times to measure.
            warmup: runs before.
            runner: as ``run``, but always through the program.
            profile: also time every layer.
            cooldown: seconds to wait between the build and the measurement.

        Raises:
            UsageError, ToolchainError, BoardError: see ``run``.
        """
        for name, value, least in (
            ("number", number, 1),
            ("repeat", repeat, 1),
            ("warmup", warmup, 0),
        ):
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, not {value}")
        program = self._build_only("bench").program("bench")
        with self._runner(runner) as place:
            place.deploy(program)
            time.sleep(cooldown)
            extra = self._weights_arguments()
            if number is None:
                first = place.time(
                    program, number=1, repeat=_CALIBRATION_RUNS, warmup=1, arguments=extra
                )
                number = max(1, round(_REPEAT_MS / max(min(first.times_ms), 1e-6)))
            timing = place.time(
                program,
                number=number,
                repeat=repeat,
                warmup=warmup,
                profile=profile,
                arguments=extra,
            )
            layers = tuple(
                LayerTime(int(e["layer"]), str(e["name"]), float(e["ms"])) for e in timing.layers
            )
            return BenchResult(timing.times_ms, number, place.name, layers)

    def validate(
        self,
        inputs: Tensors | None = None,
        per_layer: bool = False,
        runner: RunnerSpec = None,
        tolerance: float | None = None,
    ) -> ValidateReport:
        """Compare the built project with the reference interpreter on its model file.

        Args:
            inputs: None takes seeded random ones.
            per_layer: also compare what every kernel call computes, and the weights' checksums.
            runner: as ``bench``.
            tolerance: largest max|a-b| / max|b| of an output that passes; None is 1e-4.

        Raises:
            UsageError, ToolchainError, BoardError: see ``run``.
        """
        from aotgen.validate import DEFAULT_TOLERANCE, validate

        limit = DEFAULT_TOLERANCE if tolerance is None else tolerance
        return validate(self, inputs, per_layer, runner, limit)

    def run_traced(
        self, inputs: Tensors, runner: RunnerSpec = None
    ) -> tuple[dict[str, Array], bytes]:
        """Run once through the run program.

        Returns:
            The outputs, and the trace file (see ``aotgen.validate.parse_trace``).
        """
        outputs, trace = self._run_program([self.info.checked_inputs(inputs)], runner, trace=True)
        return outputs[0], trace

    def call_run_program(self, arguments: Sequence[Argument], runner: RunnerSpec = None) -> str:
        """What ``<prefix>_run`` prints on stdout when called with ``arguments``."""
        program = self._build_only("run").program("run")
        with self._runner(runner) as place:
            place.deploy(program)
            return place.run(program, [*arguments, *self._weights_arguments()]).stdout

    def _run_program(
        self, steps: Sequence[Sequence[Array]], runner: RunnerSpec, trace: bool = False
    ) -> tuple[list[dict[str, Array]], bytes]:
        with tempfile.TemporaryDirectory(prefix="aotgen-") as name:
            folder = Path(name)
            fed, got, seen = folder / "in.bin", folder / "out.bin", folder / "trace.bin"
            fed.write_bytes(b"".join(a.tobytes() for step in steps for a in step))
            arguments: list[Argument] = ["--in", Upload(fed), "--out", Download(got)]
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
