"""The best candidates of each task timed inside the whole network.

Timed alone, a kernel finds its weights and its input where the timing loop left them. In the
network the layers before it have been through the caches. So the few best candidates of every task
are built into projects, the i-th best of all tasks into the i-th project, and the layers of these
are timed by the projects' own bench programs, taking turns.

Of a microcontroller, which holds one image, each project's firmware is flashed once and timed by
the board's counter; its clock does not change from one to the next. Under an emulator instructions
are counted, and scored as those of candidates alone are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aotgen.bench import BenchOptions
from aotgen.bench_result import BenchResult
from aotgen.errors import BoardError
from aotgen.loading import target_of
from aotgen.project import Project
from aotgen.runner.base import Place
from aotgen.schedule.base import INSTRUCTION_SECONDS, Config
from aotgen.scratch import own_folder
from aotgen.target.board import Board
from aotgen.tune.journal import Record, by_task, record_of
from aotgen.tune.outcome import Candidate, Outcome
from aotgen.tune.ranking import ranked
from aotgen.tune.schedules import Chosen, holds
from aotgen.tune.task import Point, Task

if TYPE_CHECKING:
    from aotgen.ir.graph import Graph
    from aotgen.options import CompileOptions

VARIANTS = 3
"""Candidates of a task that are timed."""

NEAR = 1.25
"""A candidate that took this much longer than the best one is not worth it."""

SHORTEST_S = 5e-6
"""A layer is timed by reading a clock before and behind it, which says little about a shorter one:
such tasks have their best candidate in every project.
"""

ROUNDS = 5
"""Times that the projects take turns; the lowest time counts. Microcontrollers have one round."""

REPEAT = 5
"""Repeats of a turn; bench takes the median of a layer's times."""


@dataclass(frozen=True)
class NetworkResult:
    """What came of it.

    Attributes:
        records: one for each candidate that was timed, of kind "network".
        ms: of one run of each project, the lowest of its turns: the first has the best of each
            task by the time alone.
    """

    records: tuple[Record, ...]
    ms: tuple[float, ...]


def variants(
    tasks: Sequence[Task], records: Sequence[Record], count: int = VARIANTS
) -> list[dict[str, Point]]:
    """By key of a task the point that each project has: the i-th has the i-th best of every task,
    or its best where there is no other that comes near it.
    """
    known = by_task(r for r in records if r.kind != "network")
    tops: dict[str, list[Point]] = {}
    for task in tasks:
        top: list[Point] = []
        first = math.inf
        for found in ranked(known.get(task.key, [])):
            full = len(top) == (count if first > SHORTEST_S else 1)
            if top and (full or found.seconds > NEAR * first):
                break
            if holds(task, found.record):
                top.append(found.record.point)
                first = min(first, found.seconds)
        if top:
            tops[task.key] = top
    depth = max((len(top) for top in tops.values()), default=0)
    return [{k: top[min(i, len(top) - 1)] for k, top in tops.items()} for i in range(depth)]


def retime(
    tasks: Sequence[Task],
    records: Sequence[Record],
    make_graph: Callable[[], Graph],
    board: Board,
    options: CompileOptions,
    model: bytes | Path,
    place: Place,
    tag: str,
    told: Callable[[str], None],
) -> NetworkResult:
    """Build the variants of a network, time their layers and record what the tasks took.

    Args:
        tasks: that were tuned.
        records: of the journal.
        make_graph: loads the model anew and runs the passes.
        board: that projects are for.
        options: of the compilation.
        model: see ``codegen.project.generate``.
        place: where they run.
        tag: ``Record.tuner`` of the records.
        told: gets what is being done.

    Raises:
        ToolchainError, BoardError: a project does not build or run; nothing was recorded.
    """
    plans = variants(tasks, records)
    if len(plans) < 2:
        return NetworkResult((), ())
    by_key = {t.key: t for t in tasks}
    lowest: list[dict[int, float]] = [{} for _ in plans]
    totals = [math.inf] * len(plans)
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder("aotgen-tune-"))
        projects = []
        for index, points in enumerate(plans):
            told(f"building network {index + 1} of {len(plans)}")
            out = folder / f"variant{index}"
            out.mkdir()
            projects.append(_project(out, make_graph(), board, options, model, points))
        counted = False
        rounds = 1 if board.is_bare else ROUNDS
        bench = BenchOptions(repeat=REPEAT, warmup=1, profile=True)
        for turn in range(rounds):
            for index, project in enumerate(projects):
                told(f"timing network {index + 1} of {len(projects)}, round {turn + 1} of {rounds}")
                result = project.bench_each([options.threads], bench, place)[0]
                counted = result.cost is not None
                total, layers = _times(result)
                totals[index] = min(totals[index], total)
                for layer, ms in layers.items():
                    lowest[index][layer] = min(lowest[index].get(layer, math.inf), ms)
        made: dict[tuple[str, Point], list[float]] = {}
        for project, points, times in zip(projects, plans, lowest, strict=True):
            for key, seconds in _task_seconds(project, points, times).items():
                made.setdefault((key, points[key]), []).append(seconds)
    found = []
    for (key, point), times_s in made.items():
        if min(times_s) < SHORTEST_S:
            continue
        last = next(
            r
            for r in reversed(records)
            if r.task == key and r.point == point and r.kind != "network" and r.status == "ok"
        )
        # In several projects where a task has fewer candidates: each time saw other neighbours.
        seconds = sum(times_s) / len(times_s)
        outcome = Outcome(
            Candidate(by_key[key], point),
            "ok",
            seconds,
            tuple(times_s),
            "network",
            kernel=last.kernel,
            conditions={"instructions": seconds / INSTRUCTION_SECONDS} if counted else {},
        )
        found.append(
            record_of(by_key[key], outcome, board=board.name, features=last.features, tuner=tag)
        )
    return NetworkResult(tuple(found), tuple(totals))


def _times(result: BenchResult) -> tuple[float, dict[int, float]]:
    """Milliseconds of a run and of each layer by its number; where instructions were counted, as
    many as ``INSTRUCTION_SECONDS`` makes of them.
    """
    cost = result.cost
    if cost is None:
        return result.min_ms, {layer.layer: layer.ms for layer in result.layers}
    each = 1e3 * INSTRUCTION_SECONDS
    layers = {index: layer.instructions * each for index, layer in enumerate(cost.layers)}
    return cost.counts.instructions * each, layers


def _project(
    out: Path,
    graph: Graph,
    board: Board,
    options: CompileOptions,
    model: bytes | Path,
    points: Mapping[str, Point],
) -> Project:
    from aotgen.codegen.project import generate

    generate(
        graph,
        board,
        target_of(board, options),
        replace(
            options,
            prefix=options.prefix or "tuned",
            # A record is of a config without layouts; plan knows what they add.
            disabled_passes=(*options.disabled_passes, "alter_op_layout"),
        ),
        out,
        model,
        scheduler=lambda g, t: Chosen(g, t, points),
        vectors=False,
    )
    return Project(out, board)


def _task_seconds(
    project: Project, points: Mapping[str, Point], times: Mapping[int, float]
) -> dict[str, float]:
    """By key, the mean seconds of the layers of each task that the project computes as it should:
    a Group that plan merged with another is none.
    """
    layers: dict[str, list[float]] = {}
    for entry in project.manifest["layers"]:
        key = entry["task"]
        point = points.get(key)
        if point is None or Point(entry["template"], Config.of(**entry["knobs"])) != point:
            continue
        ms = times.get(int(entry["index"]))
        if ms is None or not 0 < ms < math.inf:
            raise BoardError(
                f"the bench program of {project.folder} told no time of {entry['name']}"
            )
        layers.setdefault(key, []).append(1e-3 * ms)
    return {key: sum(found) / len(found) for key, found in layers.items()}
