"""Measures candidates on boards: bundles are built here and run there, over any Runner.

What a time means: one call on one core by the clock of the process, which stands still while other
programs have the core; the lowest of some repeats. Inputs and outputs stay where they are from call
to call, in the caches as far as they fit, as in a network, where the layer before has just written
what this one reads. Constants are not: calls go round copies of them of ``rotate_bytes`` together,
about what the weights of a whole model take, so that they come from where a network's weights come
from.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import Runner
from aotgen.runner.qemu import CountLog, QemuRunner
from aotgen.runner.qemu_plugin import modelled_seconds
from aotgen.runner.select import runner_for
from aotgen.scratch import own_folder, writing
from aotgen.target.board import Board
from aotgen.tune.builder import Builder, Built
from aotgen.tune.bundle import Bundle, Bundler, files_of
from aotgen.tune.device import CaseResult, Device, DeviceOptions
from aotgen.tune.outcome import Candidate, Kind, Outcome
from aotgen.tune.pool import PoolMeasurer as PoolMeasurer

BATCH = 16

ROTATE_BYTES = 32 << 20

_BLOB_BYTES = 256 << 20
"""Of contents of buffers that are kept for the next bundles."""

_REMOTE_BLOB_BYTES = 64 << 20
"""The same on a board, whose folder may lie in its main memory."""

_EMULATION = 10.0
"""A candidate may take so many times as long under an emulator: that it depends on the computer's
load which ones get through must not happen."""

_OVERLAP_CORES = 4
"""A computer with so many cores builds the next bundle while it times one."""


@dataclass(frozen=True)
class MeasureOptions:
    """How to measure.

    Attributes:
        number: calls a repeat; 0 for as many as take ``min_repeat_ms``.
        repeat: of which the lowest counts, at most 64. Many short ones find a moment without
            other programs. With ``number`` 0 calls that take longer are repeated less often.
        min_repeat_ms: see ``number``.
        timeout: seconds for a candidate, its setup and check included; ten times as long under the
            qemu runner.
        rotate_bytes: of the copies of constants that calls go round; None is ``ROTATE_BYTES``, or
            1/16 of the board's memory where that is less. Give it the bytes of the model's weights.
        memory_bytes: most that a candidate may take; None is half of the board's memory, 0 no
            limit.
        tolerance: of float outputs: max|a - b| / max|b|.
        abandon: a candidate whose first repeat takes so many times the best time known of its task
            gets no further ones; 0 for never.
        cpu: that candidates stay on; None is one of the fastest where the board has several kinds,
            or is not this computer.
        governor: whether the board's frequency governor is set meanwhile.
        compiler: see ``toolchain.compiler_of``.
        batch: candidates of one bundle.
        emulated: take the times of an emulator, which say nothing about the board.
        patience: seconds that a board may stay out of reach.
        sysfs_root: where the board's sys/ is, when it is not at the root.
    """

    number: int = 0
    repeat: int = 20
    min_repeat_ms: float = 2.0
    timeout: float = 10.0
    rotate_bytes: int | None = None
    memory_bytes: int | None = None
    tolerance: float = 1e-4
    abandon: float = 2.0
    cpu: int | None = None
    governor: bool = True
    compiler: str | None = None
    batch: int = BATCH
    emulated: bool = False
    patience: float = 120.0
    sysfs_root: str | None = None

    def check(self) -> None:
        """
        Raises:
            UsageError: one of them makes no sense.
        """
        if not 0 <= self.number <= 10**9:
            raise UsageError(f"number must be 0 to 1000000000, not {self.number}")
        if not 1 <= self.repeat <= 64:
            raise UsageError(f"repeat must be 1 to 64, not {self.repeat}")
        if not 0 <= self.min_repeat_ms <= 1e6:
            raise UsageError(f"min-repeat-ms must be 0 to 1000000, not {self.min_repeat_ms:g}")
        if not 0 < self.timeout <= 1e5:
            raise UsageError(f"timeout must be above 0 and at most 100000 s, not {self.timeout:g}")
        if self.batch < 1:
            raise UsageError(f"batch must be at least 1, not {self.batch}")


def make_measurer(
    board: Board, runner: str | None = None, options: MeasureOptions | None = None
) -> BundleMeasurer | PoolMeasurer:
    """The measurer for a board.

    Args:
        board: that candidates are built for.
        runner: as ``--runner``; several with commas between them are boards of one kind, which
            share the work.
        options: None are the defaults.

    Raises:
        UsageError: see ``runner_for``; an option makes no sense; or times of an emulator without
            a cost model.
        ToolchainError: the compiler or the emulator is not installed.
    """
    options = options or MeasureOptions()
    specs = runner.split(",") if runner else [None]
    if not all(spec is None or spec.strip() for spec in specs):
        raise UsageError(f"runner {runner!r} is malformed", remedy="use ssh://a,ssh://b")
    with ExitStack() as opened:
        measurers = []
        for spec in specs:
            measurers.append(board_measurer(board, spec.strip() if spec else None, options))
            opened.callback(measurers[-1].close)
        made = measurers[0] if len(measurers) == 1 else PoolMeasurer(measurers)
        opened.pop_all()
        return made


def board_measurer(
    board: Board, runner: str | None = None, options: MeasureOptions | None = None
) -> BundleMeasurer:
    """The measurer for one board; see ``make_measurer``."""
    if board.is_bare:
        from aotgen.runner.serial import place_of
        from aotgen.tune.firmware_measurer import FirmwareMeasurer

        return FirmwareMeasurer(board, place_of(board, runner or board.default_runner), options)
    place = runner_for(runner, board)
    try:
        return BoardMeasurer(board, place, options)
    except BaseException:
        place.close()
        raise


class BundleMeasurer(ABC):
    """What measures on one board: makes bundles, and builds the next while one runs.

    Attributes:
        best: by key of a task its best time known, in seconds, for ``MeasureOptions.abandon``;
            whoever knows better ones may put them in.
    """

    def __init__(self, board: Board, options: MeasureOptions | None, overlaps: bool) -> None:
        """
        Args:
            board: that candidates are built for.
            options: None are the defaults.
            overlaps: whether the next bundle is built while one runs.

        Raises:
            UsageError: an option makes no sense.
        """
        self.options = options or MeasureOptions()
        self.options.check()
        self.board = board
        self.best: dict[str, float] = {}
        self._overlaps = overlaps
        self._bundler = Bundler(board)
        self._stack = ExitStack()
        self._folder: Path | None = None
        self._builds = 0

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Of its outcomes."""

    @property
    @abstractmethod
    def warnings(self) -> list[str]:
        """What the board said that makes times doubtful."""

    @property
    def batch(self) -> int:
        """How many candidates it likes to get at once."""
        return self.options.batch

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Outcome]:
        """See ``Measurer.measure``."""
        size = self.options.batch
        if self._overlaps and len(candidates) > size // 2:
            size = max(1, size // 2)  # the second half is built while the first one runs
        parts = [candidates[i : i + size] for i in range(0, len(candidates), size)]
        with ThreadPoolExecutor(1) as ahead:
            ready = ahead.submit(self._prepare, parts[0]) if parts else None
            for index, part in enumerate(parts):
                assert ready is not None
                bundle, built, failed = ready.result()
                more = index + 1 < len(parts)
                if more and self._overlaps:
                    ready = ahead.submit(self._prepare, parts[index + 1])
                yield from (replace(outcome, kind=self.kind) for _, outcome in failed)
                for number, result in self._run(bundle, built):
                    for candidate, member in zip(part, bundle.members, strict=True):
                        if member == number:
                            kernel = bundle.cases[number].kernel
                            yield result.outcome(candidate, kernel, self.kind)
                if more and not self._overlaps:
                    ready = ahead.submit(self._prepare, parts[index + 1])

    def run_bundle(self, bundle: Bundle) -> Iterator[tuple[int, CaseResult]]:
        """Build and run a bundle that was made elsewhere.

        Yields:
            (number of the case, result) of every case, as they come. Where instructions are
            counted, ``times`` is what the cost model makes of them.

        Raises:
            BoardError: see ``Measurer.measure``.
            ToolchainError: the same.
        """
        yield from self._run(bundle, self._build(bundle))

    def close(self) -> None:
        """Remove what lies on the board and here. May be called twice."""
        self._stack.close()
        self._folder = None

    @abstractmethod
    def _programs(self, bundle: Bundle, folder: Path) -> tuple[Built, ...]:
        """Build a bundle's programs in a folder; one without a program has failures alone."""

    @abstractmethod
    def _execute(
        self, bundle: Bundle, built: Built, abandon: Mapping[int, float]
    ) -> Iterator[tuple[int, CaseResult]]:
        """Run a program.

        Args:
            bundle: that it is of.
            built: the program.
            abandon: by its own number of a case see ``Device.run``.

        Yields:
            (number of the case in the program, result).
        """

    def _prepare(
        self, candidates: Sequence[Candidate]
    ) -> tuple[Bundle, tuple[Built, ...], list[tuple[int, Outcome]]]:
        bundle, failed = self._bundler.bundle(candidates)
        return bundle, self._build(bundle), failed

    def _build(self, bundle: Bundle) -> tuple[Built, ...]:
        self._builds += 1
        opened = self._opened()
        folder = opened / f"build{self._builds}"
        with writing(opened):
            folder.mkdir()
            return self._programs(bundle, folder)

    def _run(self, bundle: Bundle, programs: Sequence[Built]) -> Iterator[tuple[int, CaseResult]]:
        for built in programs:
            for number, message in built.failures.items():
                yield number, CaseResult("build", message=message)
            for number, message in built.too_large.items():
                yield number, CaseResult("memory", message=message)
            if built.program is None:
                continue
            abandon = {}
            for position, number in enumerate(built.cases):
                best = self.best.get(bundle.cases[number].task, 0.0)
                abandon[position] = best * self.options.abandon
            for position, result in self._execute(bundle, built, abandon):
                number = built.cases[position]
                if result.status == "ok":
                    key = bundle.cases[number].task
                    self.best[key] = min(self.best.get(key, math.inf), min(result.times))
                yield number, result

    def _opened(self) -> Path:
        """A folder of this measurer's own."""
        if self._folder is None:
            with writing(Path(tempfile.gettempdir())):
                self._folder = self._stack.enter_context(own_folder("aotgen-tune-"))
        return self._folder


class BoardMeasurer(BundleMeasurer):
    """Measures on one board with an operating system."""

    def __init__(
        self,
        board: Board,
        runner: Runner,
        options: MeasureOptions | None = None,
        builder: Builder | None = None,
    ) -> None:
        """
        Args:
            board: that candidates are built for.
            runner: where they run; closed with the measurer.
            options: None are the defaults.
            builder: None is one with the board's own compiler.

        Raises:
            UsageError: an option makes no sense; or ``runner`` is an emulator and the board has no
                cost model.
            ToolchainError: there is no compiler.
        """
        super().__init__(board, options, True)
        self._runner = runner
        qemu = isinstance(runner, QemuRunner)
        self._counts = qemu and not self.options.emulated
        self._kind: Kind | None = "modelled" if self._counts else None
        if self._counts and board.clusters[0].cost_model is None:
            raise UsageError(
                f"board {board.name} has no cost model, and times of an emulator say nothing about"
                " it",
                remedy="measure on the board itself: --runner ssh://user@host",
            )
        here = runner.name in ("local", "qemu")
        cores = os.cpu_count() or 1
        self._overlaps = self._counts or not here or cores >= _OVERLAP_CORES
        jobs = max(1, cores - 2) if self._overlaps and here and not self._counts else cores
        self._builder = builder or Builder(board, self.options.compiler, jobs)
        self._device = Device(runner, _device_options(board, self.options, here, qemu))
        runner.cache_bytes = _REMOTE_BLOB_BYTES
        self._log: CountLog | None = None
        self._blobs: dict[str, int] = {}

    @property
    def kind(self) -> Kind:
        """Of its outcomes. That of a board out of reach is a guess until it answers."""
        self._settle()
        return self._kind or "measured"

    @property
    def warnings(self) -> list[str]:
        """What the board said that makes times doubtful."""
        told = list(self._device.warnings)
        if self._kind == "emulated":
            told.append(f"times of an emulator say nothing about board {self.board.name}")
        return told

    def close(self) -> None:
        """Remove what lies on the board and here. May be called twice."""
        super().close()
        self._log = None
        self._blobs.clear()
        self._runner.close()

    def _settle(self) -> None:
        """Ask once whether the board is an emulator."""
        if self._kind is not None:
            return
        try:
            emulated = self._runner.emulates(self.board.machine)
        except BoardError:
            return  # whoever measures is told why it does not answer
        self._kind = "emulated" if emulated else "measured"
        if emulated:
            # sysfs is another computer's, and so are the numbers of its cores.
            options = self._device.options
            self._device.options = replace(options, board=False, cpu=self.options.cpu)

    def _programs(self, bundle: Bundle, folder: Path) -> tuple[Built, ...]:
        return (self._builder.build(bundle, folder),)

    def _execute(
        self, bundle: Bundle, built: Built, abandon: Mapping[int, float]
    ) -> Iterator[tuple[int, CaseResult]]:
        assert built.program is not None
        # Always the same path: a runner replaces the program that it has of that name.
        program = self._opened() / "device"
        os.replace(built.program, program)
        built.program.parent.rmdir()
        files = self._files(bundle)
        self._settle()
        for position, result in self._device.run(program, files, len(built.cases), abandon):
            if self._counts and result.status == "ok":
                result = self._modelled(result)
            yield position, result

    def _modelled(self, result: CaseResult) -> CaseResult:
        """The result with the time that the cost model gives to what was counted."""
        regions = self._log.regions() if self._log is not None else []
        own = [counts for counts in regions if counts.pid == result.pid and counts.complete]
        if not own:
            return CaseResult("crash", message="its instructions were not counted")
        counts = own[-1]
        seconds = modelled_seconds(counts, self.board)
        told = {
            "instructions": float(counts.instructions),
            "l1_misses": float(counts.l1_misses),
            "l2_misses": float(counts.l2_misses),
        }
        return replace(result, times=(seconds,), conditions={**result.conditions, **told})

    def _opened(self) -> Path:
        if self._folder is None:
            folder = super()._opened()
            with writing(folder):
                (folder / "blobs").mkdir()
            if self._counts:
                assert isinstance(self._runner, QemuRunner)
                self._log = self._stack.enter_context(self._runner.counting())
        return super()._opened()

    def _files(self, bundle: Bundle) -> list[Path]:
        """The bundle's files, written where they are not from an earlier one."""
        room = self._opened() / "blobs"
        paths = []
        for data in files_of(bundle)[0]:
            name = hashlib.sha256(data).hexdigest()[:32]
            path = room / name
            if name not in self._blobs:
                with writing(room):
                    path.write_bytes(data)
            self._blobs.pop(name, None)  # the last ones used stand last
            self._blobs[name] = len(data)
            paths.append(path)
        spare = _BLOB_BYTES
        for name in [n for n in reversed(self._blobs) if room / n not in paths]:
            spare -= self._blobs[name]
            if spare < 0:
                del self._blobs[name]
                (room / name).unlink()
        return paths


def _device_options(
    board: Board, options: MeasureOptions, here: bool, emulated: bool
) -> DeviceOptions:
    """
    Args:
        board: that candidates are built for.
        options: how to measure.
        here: programs run on this computer.
        emulated: they do so under an emulator that can count.
    """
    rotate = options.rotate_bytes
    if rotate is None:
        rotate = min(ROTATE_BYTES, board.ram_bytes // 16) if board.ram_bytes else ROTATE_BYTES
    memory = board.ram_bytes // 2 if options.memory_bytes is None else options.memory_bytes
    cpu = options.cpu
    if cpu is None and not emulated and board.clusters[0].cpus:
        if not here or len(board.clusters) > 1:
            # Of the fastest ones the last: the first CPU serves most interrupts.
            cpu = board.clusters[0].cpus[-1]
    return DeviceOptions(
        number=options.number,
        repeat=options.repeat,
        min_repeat_s=options.min_repeat_ms / 1000,
        timeout_s=options.timeout * (_EMULATION if emulated else 1.0),
        memory_bytes=memory,
        rotate_bytes=rotate,
        tolerance=options.tolerance,
        cpu=cpu,
        governor=options.governor,
        board=not emulated,
        count=emulated and not options.emulated,
        sysfs_root=options.sysfs_root,
        patience_s=options.patience,
    )
