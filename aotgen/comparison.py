"""Projects side by side: timed in turns, so that what disturbs one disturbs all of them alike.

A computer's clock and what else runs on it change from second to second. Each round times every
project once, every second round in reverse; what counts is the lowest time of all rounds. Under an
emulator, whose times say nothing, a run is counted instead (``aotgen.counting``). Microcontrollers
are ``aotgen.bare_comparison``'s.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from aotgen.bench import MOST_RUNS, BenchOptions, cores_in_use, measure, timeout_s
from aotgen.bench_result import BenchResult, Cores
from aotgen.counting import RunCost, count_run
from aotgen.errors import UsageError
from aotgen.runner.base import Place, Runner
from aotgen.runner.qemu import QemuRunner

if TYPE_CHECKING:
    from aotgen.project import Project

MIN_MS = "min_ms"
MODELLED_MS = "modelled_ms"
INSTRUCTIONS = "instructions"

_REPEATS = 3
"""Times of a round where runs are short: the lowest one is the round's."""


@dataclass(frozen=True)
class Entry:
    """One of the projects.

    Attributes:
        folder: as it was given.
        name: of the model.
        board: that it was compiled for.
        times_ms: of each round the lowest mean of ``number`` runs; empty under an emulator.
        number: runs that a time is the mean of.
        cost: under an emulator, what a run executes.
    """

    folder: str
    name: str
    board: str
    times_ms: tuple[float, ...] = ()
    number: int = 1
    cost: RunCost | None = None

    @property
    def min_ms(self) -> float | None:
        return min(self.times_ms) if self.times_ms else None

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self.times_ms) if self.times_ms else None


@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found.

    Attributes:
        entries: in the order of the projects.
        runner: where they ran.
        threads: of a run.
        by: what ``ratios`` are of: "min_ms", "modelled_ms" or "instructions".
        warnings: what makes the times doubtful, one text each.
        in_turns: whether the projects of a round were timed right after one another; else all
            rounds of one were before those of the next.
    """

    entries: tuple[Entry, ...]
    runner: str
    threads: int
    by: str
    warnings: tuple[str, ...] = ()
    in_turns: bool = True

    @property
    def rounds(self) -> int:
        return len(self.entries[0].times_ms)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of each project's figure to that of the first: below 1 is faster."""
        figures = [_figure(entry, self.by) for entry in self.entries]
        return tuple(figure / figures[0] for figure in figures)

    def spread(self, index: int) -> tuple[float, float] | None:
        """The lowest and the highest ratio of one round, of the project with this number; None
        where nothing was timed, or not in turns.
        """
        if not self.in_turns:
            return None
        own, first = self.entries[index].times_ms, self.entries[0].times_ms
        each = [a / b for a, b in zip(own, first, strict=True)]
        return (min(each), max(each)) if each else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "runner": self.runner,
            "threads": self.threads,
            "rounds": self.rounds,
            "by": self.by,
            "in_turns": self.in_turns,
            "warnings": list(self.warnings),
            "projects": [
                {
                    "folder": entry.folder,
                    "name": entry.name,
                    "board": entry.board,
                    "min_ms": entry.min_ms,
                    "median_ms": entry.median_ms,
                    "times_ms": list(entry.times_ms),
                    "number": entry.number,
                    "ratio": ratio,
                    "ratio_of_rounds": self.spread(index),
                    **(entry.cost.as_dict() if entry.cost else {}),
                }
                for index, (entry, ratio) in enumerate(zip(self.entries, self.ratios, strict=True))
            ],
        }


def compare(
    projects: Sequence[Project],
    runner: str | Place | None = None,
    *,
    rounds: int = 10,
    threads: int = 1,
    cores: Cores | None = None,
    number: int | None = None,
    governor: bool = True,
) -> Comparison:
    """Time projects in turns, or count their runs where the runner is an emulator.

    Args:
        projects: at least two, for boards of one architecture; under an emulator, and of
            microcontrollers, for one board.
        runner: as ``--runner``; None is that of the first project. A microcontroller for each
            project: ``serial:`` ports with commas, in the order of the projects.
        rounds: how often each project is timed; counting needs one.
        threads: of a run, at most those that each project was compiled for.
        cores: see ``Project.bench``.
        number: runs that a time is the mean of; None takes as many as take about 50 ms.
        governor: set the CPUs' frequency governor to "performance" meanwhile.

    Raises:
        UsageError: the projects cannot run in one place, or an option makes no sense.
        ToolchainError: one does not build, or the emulator cannot count.
        BoardError: see ``Project.bench``.
    """
    from aotgen.runner.select import runner_for

    options = BenchOptions(number=number, repeat=1, warmup=1, cores=cores, governor=governor)
    if rounds < 1:
        raise UsageError(f"rounds must be at least 1, not {rounds}")
    if rounds > MOST_RUNS:
        raise UsageError(f"rounds must be at most {MOST_RUNS}, not {rounds}")
    if len(projects) < 2:
        raise UsageError("one project is nothing to compare", remedy="name two or more")
    for project in projects:
        options.check([threads], project.info.api.threads)
    _check_boards(projects)
    if projects[0].board.is_bare:
        from aotgen.bare_comparison import compare_bare

        return compare_bare(projects, runner, rounds, options)
    with ExitStack() as stack:
        if isinstance(runner, Runner):
            place = runner
        elif isinstance(runner, Place):
            raise UsageError(f"{runner.name} runs no programs, which {projects[0].folder} has")
        else:
            place = stack.enter_context(runner_for(runner, projects[0].board))
        sides = [_Side(project, place, threads) for project in projects]
        if isinstance(place, QemuRunner):
            return _counted(sides, place, threads, options)
        results = in_turns(sides, rounds, options)
        entries = tuple(side.entry(own) for side, own in zip(sides, results, strict=True))
        return Comparison(entries, place.name, threads, MIN_MS, told_of(results))


def _check_boards(projects: Sequence[Project]) -> None:
    """
    Raises:
        UsageError: they are for computers of several kinds.
    """
    first = projects[0]
    for other in projects[1:]:
        kinds = [(board.machine, board.system) for board in (first.board, other.board)]
        if kinds[0] != kinds[1]:
            raise UsageError(
                f"{first.folder} is for {first.board.name} ({' '.join(kinds[0])}), {other.folder}"
                f" for {other.board.name} ({' '.join(kinds[1])}): no board runs both",
                remedy="compile them for one board",
            )


class _Side:
    """A project whose bench program is where it runs."""

    def __init__(self, project: Project, place: Runner, threads: int) -> None:
        self.project = project
        self.threads = threads
        self.program, self.weights = project.bench_program()
        self.place = place
        place.deploy(self.program)

    def time(self, options: BenchOptions) -> BenchResult:
        (result,) = measure(
            self.project.info,
            self.project.board,
            self.place,
            self.program,
            self.weights,
            [self.threads],
            options,
        )
        return result

    def entry(self, results: Sequence[BenchResult] = (), cost: RunCost | None = None) -> Entry:
        return Entry(
            str(self.project.folder),
            self.project.info.prefix,
            self.project.board.name,
            tuple(result.min_ms for result in results),
            results[0].number if results else 1,
            cost,
        )


class Side(Protocol):
    """One of the projects where it runs."""

    def time(self, options: BenchOptions) -> BenchResult:
        """Times of ``options.repeat`` repeats."""


def in_turns(sides: Sequence[Side], rounds: int, options: BenchOptions) -> list[list[BenchResult]]:
    """Of each side the results of all rounds.

    Raises:
        UsageError, ToolchainError, BoardError: see ``Project.bench``.
    """
    numbers = [options.number] * len(sides)
    results: list[list[BenchResult]] = [[] for _ in sides]
    for round_ in range(rounds):
        order = list(range(len(sides)))
        for index in order if round_ % 2 == 0 else reversed(order):
            if numbers[index] is None:
                # What the program itself finds right, the same in all rounds from now on.
                numbers[index] = sides[index].time(options).number
            repeat = 1 if numbers[index] == 1 else _REPEATS
            own = replace(options, number=numbers[index], repeat=repeat)
            results[index].append(sides[index].time(own))
    return results


def told_of(results: Sequence[Sequence[BenchResult]]) -> tuple[str, ...]:
    """What the results warn of, each text once."""
    told = (text for own in results for result in own for text in result.warnings)
    return tuple(dict.fromkeys(told))


def _counted(
    sides: Sequence[_Side], place: QemuRunner, threads: int, options: BenchOptions
) -> Comparison:
    """
    Raises:
        UsageError: a run with several threads, or for several boards, cannot be counted.
    """
    if threads > 1:
        raise UsageError(
            "under an emulator instructions are counted, of one thread alone",
            remedy="use --threads 1, or measure on the board (--runner ssh://user@host)",
        )
    for side in sides:
        name = side.project.board.name
        if name != place.board.name:
            raise UsageError(
                f"{side.project.folder} is for {name}, but the emulator for {place.board.name}",
                remedy="compile the projects for one board",
            )
    cluster = cores_in_use(place.board, (), 1, options.cores)[0]
    costs = [
        count_run(place, side.program, side.weights, cluster, timeout_s(options)) for side in sides
    ]
    modelled = all(cost.modelled_ms for cost in costs)
    return Comparison(
        tuple(side.entry(cost=cost) for side, cost in zip(sides, costs, strict=True)),
        place.name,
        threads,
        MODELLED_MS if modelled else INSTRUCTIONS,
    )


def _figure(entry: Entry, by: str) -> float:
    if by == MIN_MS:
        return min(entry.times_ms)
    assert entry.cost is not None
    if by == MODELLED_MS:
        assert entry.cost.modelled_ms is not None
        return entry.cost.modelled_ms
    return float(entry.cost.counts.instructions)
