"""Projects for microcontrollers side by side (``aotgen.comparison``).

An emulated board is started with one firmware after the other, and instructions are counted: when
they are makes no difference. A real board holds one image. Where each project has a board of its
own they are timed in turns, as elsewhere; one board is flashed with each and timed for all rounds,
which ``Comparison.in_turns`` tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from aotgen.bench import BenchOptions
from aotgen.bench_result import BenchResult
from aotgen.comparison import (
    INSTRUCTIONS,
    MIN_MS,
    Comparison,
    Entry,
    in_turns,
    told_of,
)
from aotgen.errors import UsageError
from aotgen.runner.base import Place
from aotgen.runner.select import place_for
from aotgen.runner.serial import QemuBoard, SerialBoard

if TYPE_CHECKING:
    from aotgen.project import Project
    from aotgen.runner.model import PlacedModel

COUNTED_RUNS = 8
"""Runs whose ticks tell the instructions of one exactly (``counting.whole_instructions``)."""

SEQUENCE_WARNING = (
    "one board holds one image at a time: the projects were timed one after the other, not in turns"
)

_ONE_EACH = "--runner serial:A,serial:B names a board for each project"


def compare_bare(
    projects: Sequence[Project],
    runner: str | Place | None,
    rounds: int,
    options: BenchOptions,
) -> Comparison:
    """Count or time projects of one board.

    Args:
        projects: at least two.
        runner: None is the board's own; several serial ports with commas.
        rounds: how often each is timed.
        options: checked.

    Raises:
        UsageError: the projects are for several boards; or one board at a serial port cannot get
            one firmware after the other.
        ToolchainError, BoardError: see ``Project.bench``.
    """
    first = projects[0]
    for other in projects[1:]:
        if other.board.name != first.board.name:
            raise UsageError(
                f"{first.folder} is for {first.board.name}, {other.folder} for {other.board.name}",
                remedy="compile the projects for one board",
            )
    with _places(projects, runner) as places:
        place = places[0]
        if isinstance(place, QemuBoard):
            return _counted(projects, place, options)
        sides = [_Side(*each) for each in zip(projects, places, strict=True)]
        apart = len({id(each) for each in places}) > 1
        if apart:
            results = in_turns(sides, rounds, options)
        else:
            results = [in_turns([side], rounds, options)[0] for side in sides]
        entries = tuple(_entry(p, own) for p, own in zip(projects, results, strict=True))
        warnings = (*(() if apart else (SEQUENCE_WARNING,)), *told_of(results))
        name = ",".join(dict.fromkeys(each.name for each in places))
        return Comparison(entries, name, 1, MIN_MS, warnings, apart)


class _Side:
    """A project and the board that runs it, which gets its firmware when it is first timed."""

    def __init__(self, project: Project, place: Place) -> None:
        self._project = project
        self._place = place
        self._model: PlacedModel | None = None

    def time(self, options: BenchOptions) -> BenchResult:
        if self._model is None:
            self._model = self._place.model(self._project)
        (result,) = self._model.bench([1], options)
        return result


@contextmanager
def _places(projects: Sequence[Project], runner: str | Place | None) -> Iterator[list[Place]]:
    """The place of each project; the same one where there is one for all.

    Raises:
        UsageError: see ``compare_bare``.
    """
    board = projects[0].board
    if isinstance(runner, Place):
        _check_alone(projects, runner)
        yield [runner] * len(projects)
        return
    specs = [] if runner is None else runner.split(",")
    with ExitStack() as stack:
        if len(specs) <= 1:
            place = stack.enter_context(place_for(runner, board))
            _check_alone(projects, place)
            yield [place] * len(projects)
            return
        if len(specs) != len(projects) or not all(s.startswith("serial:") for s in specs):
            raise UsageError(
                f"--runner {runner!r} names {len(specs)} places for {len(projects)} projects",
                remedy=_ONE_EACH,
            )
        if len(set(specs)) != len(specs):
            raise UsageError(f"--runner {runner!r} names a board twice", remedy=_ONE_EACH)
        yield [stack.enter_context(SerialBoard(spec, alone=False)) for spec in specs]


def _check_alone(projects: Sequence[Project], place: Place) -> None:
    """
    Raises:
        UsageError: one board is to run several firmwares, and nothing says how it gets them.
    """
    if not isinstance(place, SerialBoard) or place.flashes(projects[0].board):
        return
    if len({project.info.root for project in projects}) == 1:
        return  # models of a bundle, which are in one firmware
    raise UsageError(
        f"a board holds one image, and board {projects[0].board.name} has no [flash] command by"
        f" which it gets those of {len(projects)} projects",
        remedy=f"say in its board.toml how a program is flashed (docs/serial.md); or {_ONE_EACH}",
    )


def _counted(projects: Sequence[Project], place: QemuBoard, options: BenchOptions) -> Comparison:
    counting = replace(options, number=1, repeat=COUNTED_RUNS)
    entries = []
    for project in projects:
        (result,) = project.bench_each([1], counting, place)
        entries.append(replace(_entry(project, ()), cost=result.cost))
    return Comparison(tuple(entries), place.name, 1, INSTRUCTIONS)


def _entry(project: Project, results: Sequence[BenchResult]) -> Entry:
    return Entry(
        str(project.folder),
        project.info.prefix,
        project.board.name,
        tuple(result.min_ms for result in results),
        results[0].number if results else 1,
    )
