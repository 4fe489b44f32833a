"""Tuning a model: from its file to a journal. ``aotgen.api.tune`` is the public face."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aotgen.errors import AotgenError, BoardError, UsageError
from aotgen.loading import (
    Progress,
    load_for,
    optimise,
    requant_of,
    self_contained,
    target_of,
)
from aotgen.options import CompileOptions
from aotgen.report.tuning import TotalLine, TuneDisplay
from aotgen.target.board import Board
from aotgen.tune.journal import Journal, skipped_text
from aotgen.tune.measure import ROTATE_BYTES, MeasureOptions, make_measurer
from aotgen.tune.session import SearchOptions, Session, TaskResult, TuneResult
from aotgen.tune.task import Task, tasks_of

if TYPE_CHECKING:
    from aotgen.ir.graph import Graph
    from aotgen.tune.cluster import ClusterMeasurer
    from aotgen.tune.measure import BundleMeasurer, PoolMeasurer

_NUMBERS = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")

_DIGITS = 9
"""Most of a task's number."""


class Tunable:
    """A model whose tasks can be tuned.

    Attributes:
        model: path of its file.
        board: that it is for.
        options: of the compilation.
        tasks: in order of first use.
    """

    def __init__(
        self,
        model: Path,
        board: Board,
        options: CompileOptions,
        progress: Progress = lambda stage: None,
    ) -> None:
        """
        Raises:
            UsageError: the board's kernels are not in C, or nothing in the model has a choice.
            ModelError, UnsupportedError, ShapeError: see ``aotgen.load``.
        """
        self.model = model
        self.board = board
        self.options = options = replace(options, requant=requant_of(model, options.requant))
        self.target = target_of(board, options)
        if self.target.device != "cpu":
            raise UsageError("kernels of a GPU cannot be tuned yet", remedy='use device="cpu"')
        graph = self.graph(progress)
        progress("finding the tasks")
        self._constant_bytes = sum(v.type.nbytes for v in graph.constants())
        self.tasks = self._tasks(graph)
        if not self.tasks:
            raise UsageError(f"{model} has nothing to tune: no kernel of it has a choice")

    def graph(self, progress: Progress = lambda stage: None) -> Graph:
        """The model anew, after the passes and ready for plan."""
        from aotgen.codegen.lower import legalize_outputs
        from aotgen.memory.states import legalize_states

        progress("reading the model")
        graph = load_for(self.model, self.options)
        progress("running the passes")
        graph = optimise(graph, self.options)
        legalize_outputs(graph)
        legalize_states(graph)
        return graph

    def rotating(self, measuring: MeasureOptions) -> MeasureOptions:
        """``measuring`` whose copies of constants take as much memory as the model's, within what
        they may take.
        """
        most = ROTATE_BYTES
        if self.board.ram_bytes:
            most = min(most, self.board.ram_bytes // 16)
        return replace(measuring, rotate_bytes=min(most, self._constant_bytes))

    def _tasks(self, graph: Graph) -> list[Task]:
        from aotgen.passes.pipeline import runs_plan_step
        from aotgen.schedule.conv.fuse_rows import candidate_chains

        step = "fuse_rows"
        fuses = runs_plan_step(step, self.options.opt_level, self.options.disabled_passes)
        chains = candidate_chains(graph, self.target) if fuses else []
        return tasks_of(graph, self.target, chains)


def select(tasks: Sequence[Task], wanted: Sequence[str]) -> list[tuple[int, Task]]:
    """The tasks that ``--tasks`` names, with their numbers from 1, in their order.

    Args:
        tasks: of the model.
        wanted: each "3", "1,4-6", a key, the kind of an op ("conv", "conv2d", "conv3d",
            "max_pool"), or a part of or a regular expression for titles; none for all tasks.

    Raises:
        UsageError: one of them names nothing or is malformed.
    """
    numbered = list(enumerate(tasks, 1))
    if not wanted:
        return numbered
    chosen: set[int] = set()
    for word in wanted:
        found = _named(numbered, word)
        if not found:
            raise UsageError(
                f"--tasks {word!r} names none of the {len(tasks)} tasks",
                remedy="`aotgen tune MODEL --list-tasks` shows them",
            )
        chosen |= found
    return [(index, task) for index, task in numbered if index in chosen]


def kinds(task: Task) -> tuple[str, ...]:
    """Names of what a task computes: its op, and with the number of spatial dimensions."""
    anchor = task.group.anchor or task.group.nodes[0]
    dims = len(anchor.input(0).shape) - 2
    return (anchor.op, f"{anchor.op}{dims}d") if "strides" in anchor.attrs else (anchor.op,)


def _named(numbered: Sequence[tuple[int, Task]], word: str) -> set[int]:
    if not word:
        return set()
    by_key = {index for index, task in numbered if task.key == word}
    if by_key:
        return by_key
    if _NUMBERS.fullmatch(word):
        found: set[int] = set()
        for part in word.split(","):
            first, _, last = part.partition("-")
            low, high = (int(number[:_DIGITS]) for number in (first, last or first))
            if not 1 <= low <= high <= len(numbered):
                raise UsageError(
                    f"--tasks {word!r}: there are tasks 1 to {len(numbered)}",
                    remedy="`aotgen tune MODEL --list-tasks` shows them",
                )
            found.update(range(low, high + 1))
        return found
    by_kind = {index for index, task in numbered if word in kinds(task)}
    if by_kind:
        return by_kind
    literal = {index for index, task in numbered if word in task.title}
    if literal:
        return literal
    try:
        pattern = re.compile(word)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"--tasks {word!r} is no regular expression: {error}") from error
    return {index for index, task in numbered if pattern.search(task.title)}


def measure_options(
    number: int | None = None,
    repeat: int | None = None,
    min_repeat_ms: float | None = None,
    timeout: float | None = None,
) -> MeasureOptions:
    """``MeasureOptions`` with its own default for what is None.

    Raises:
        UsageError: one of them makes no sense.
    """
    usual = MeasureOptions()
    given = {"number": number, "repeat": repeat, "timeout": timeout, "min-repeat-ms": min_repeat_ms}
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{name} must be more than 0, not {value}")
    options = MeasureOptions(
        number=usual.number if number is None else number,
        repeat=usual.repeat if repeat is None else repeat,
        min_repeat_ms=usual.min_repeat_ms if min_repeat_ms is None else min_repeat_ms,
        timeout=usual.timeout if timeout is None else timeout,
    )
    options.check()
    return options


def run_tuning(
    tunable: Tunable,
    tasks: Sequence[tuple[int, Task]],
    journal: Path,
    search: SearchOptions,
    measuring: MeasureOptions,
    runner: str | None = None,
    network: bool = True,
    display: TuneDisplay | None = None,
    scheduler: str | None = None,
) -> TuneResult:
    """Tune tasks of a model.

    Args:
        tunable: the model.
        tasks: of it, with their numbers.
        journal: gets all that is measured; created where there is none.
        search: how long and how.
        measuring: how to time a candidate.
        runner: where candidates run, as ``--runner``; several boards of one kind with commas.
        network: whether to time the best candidates inside the network.
        display: told how it goes; closed.
        scheduler: of the Dask workers that measure in place of a runner, as ``--scheduler``.

    Raises:
        UsageError: both a runner and a scheduler are given; the journal cannot be read or written;
            or see ``make_tuner``.
        ToolchainError, BoardError: see ``Measurer``; or no candidate worked.
    """
    start = time.monotonic()
    shown = display or TuneDisplay()
    book = Journal(journal)
    try:
        book.records()
        if book.skipped:
            shown.note(f"warning: {skipped_text(journal, book.skipped)}")
        book.check_writable()
        timing = tunable.rotating(measuring)
        with closing(_measurer(tunable.board, runner, scheduler, timing)) as measurer:
            session = Session(
                tasks, measurer, book, tunable.board, search, shown, len(tunable.tasks)
            )
            interrupted = session.run()
        if not interrupted:
            _report_failures(session.results(), journal, shown)
        network_ms: tuple[float, ...] = ()
        if network and not interrupted and _has_network_step(tunable.board, session.results()):

            def told(stage: str) -> None:
                elapsed = time.monotonic() - start
                shown.total(TotalLine(session.trials, session.trials, elapsed, stage=stage))

            try:
                # Tasks of other runs too: they have their best in the network as well.
                network_ms = _retime(tunable, book, runner, scheduler, search.tag, told)
            except KeyboardInterrupt:
                interrupted = True
            except AotgenError as error:
                # The search's results stand without it.
                shown.note(f"warning: the candidates were not timed in the network: {error}")
    finally:
        shown.close()
    return TuneResult(
        session.results(), time.monotonic() - start, interrupted, str(journal), network_ms
    )


def _measurer(
    board: Board, runner: str | None, scheduler: str | None, options: MeasureOptions
) -> BundleMeasurer | PoolMeasurer | ClusterMeasurer:
    """
    Raises:
        UsageError: both a runner and a scheduler are given, or see the measurers.
        ToolchainError, BoardError: see the measurers.
    """
    if scheduler is None:
        return make_measurer(board, runner, options)
    if runner is not None:
        raise UsageError(
            "--runner and --scheduler exclude each other",
            remedy="give the runner to the worker: aotgen worker SCHEDULER --runner RUNNER",
        )
    from aotgen.tune.cluster import ClusterMeasurer

    return ClusterMeasurer(scheduler, board, options)


def _report_failures(results: Sequence[TaskResult], journal: Path, shown: TuneDisplay) -> None:
    """Tell of tasks none of whose candidates worked.

    Raises:
        BoardError: no candidate of any task did.
    """
    tried = [r for r in results if r.trials]
    failed = [r for r in tried if r.seconds is None]
    if tried and len(failed) == len(tried):
        raise BoardError(
            f"none of the {sum(r.trials for r in tried)} candidates worked (the first:"
            f" {tried[0].message})",
            remedy=f"`aotgen journal show {journal}` has them all",
        )
    for result in failed:
        shown.note(
            f"warning: task {result.index}, {result.title}: none of its {result.trials} candidates"
            f" worked (the first: {result.message})"
        )


def _has_network_step(board: Board, results: Sequence[TaskResult]) -> bool:
    """Whether times inside the network say more than those alone: not where all that there is comes
    from an emulator of a board with an operating system, which counts no layers.
    """
    kinds = {"measured", "network", *(("modelled",) if board.is_bare else ())}
    return all(result.kind in kinds for result in results)


def _retime(
    tunable: Tunable,
    journal: Journal,
    runner: str | None,
    scheduler: str | None,
    tag: str,
    told: Progress,
) -> tuple[float, ...]:
    """Milliseconds of one run of each network that was timed; its layers are in the journal."""
    from aotgen.runner.select import place_for
    from aotgen.tune.network import retime

    records = journal.records()
    options = replace(tunable.options, journal="none")
    model = self_contained(tunable.model)
    # Of several boards one is enough: they are of one kind.
    if scheduler is not None:
        from aotgen.tune.cluster import retime_on_worker
        from aotgen.tune.worker import NetworkJob

        told("timing networks on a worker")
        data = model if isinstance(model, bytes) else model.read_bytes()
        keys = tuple(task.key for task in tunable.tasks)
        known = tuple(r for r in records if r.task in keys)
        job = NetworkJob(tunable.model.name, data, tunable.board, options, keys, known, tag)
        found = retime_on_worker(scheduler, job)
    else:
        first = runner.split(",")[0] if runner else runner
        with place_for(first, tunable.board) as place:
            found = retime(
                tunable.tasks,
                records,
                tunable.graph,
                tunable.board,
                options,
                model,
                place,
                tag,
                told,
            )
    journal.append(found.records)
    return found.ms
