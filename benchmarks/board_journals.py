#!/usr/bin/env python3
"""The modelled journals of the Cortex-A72 boards, and what they gain.

usage: board_journals.py record [--trials N] [--seed N] [--tuner T] [--networks NAME ...]
       board_journals.py compare [--networks NAME ...]

`record` tunes the networks for rpi4 under QEMU, scored by the core's cost model, and writes
board_support/{rpi4,rk3399}/journal.jsonl.xz: of each task the best config, where it is modelled
faster than the layer is inside the network that compile makes without a journal, which may have
another layout there, and where the whole network is faster for it; and the default of its template,
by which compile knows how its own model errs. What takes minutes to hours is a plain journal in
the work folder: started again, `record` goes on where it was. rk3399 gets the same configs with
figures of its own. For another core (the A53 of the same board) the tasks are others.

`compare` prints the section "Emulated Cortex-A72" of docs/performance.md: instructions, simulated
misses and modelled times of whole networks without and with the journal.

Chains of layers that compile does not merge by its models are left out: there are as many of them
as other tasks, and all are large.
"""

from __future__ import annotations

import argparse
import lzma
import math
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import arm_instructions
import measure
import networks

from aotgen.codegen.project import build_program
from aotgen.options import CompileOptions
from aotgen.passes.pipeline import runs_plan_step
from aotgen.report.tuning import LineDisplay
from aotgen.resources import board_support_dir
from aotgen.schedule.conv.fuse_rows import fuse_rows
from aotgen.target.board import load_board
from aotgen.tune.apply import open_journal
from aotgen.tune.journal import Journal, Record, by_task, record_of
from aotgen.tune.measure import MeasureOptions, make_measurer
from aotgen.tune.outcome import Candidate
from aotgen.tune.run import Tunable, run_tuning
from aotgen.tune.schedules import best_by_template, copies_seconds, holds
from aotgen.tune.session import SearchOptions
from aotgen.tune.task import Point, Task, key_of, memory_orders

NETWORKS = ("mobilenet_v1", "mobilenet_v2", "resnet18")
SEARCHED = "rpi4"
SAME_CORE = ("rk3399",)
"""Boards whose first cluster is the same core with the same caches."""

MIN_GAIN = 0.01
"""Share of a layer's seconds that a config must save."""

TRIALS = 16
"""Of each task, on average."""
KEPT_CONDITIONS = ("instructions", "l1_misses", "l2_misses")
DIGITS = 5
"""Significant digits of modelled seconds."""


def chosen_tasks(tunable: Tunable) -> list[tuple[int, Task]]:
    """The tasks of a model, with their numbers: every Group's, and those of the chains that compile
    merges without a journal.
    """
    target, options = tunable.target, tunable.options
    graph = tunable.graph()
    orders = memory_orders(graph, target)
    groups = list(graph.groups or [])
    if runs_plan_step("fuse_rows", options.opt_level, options.disabled_passes):
        fuse_rows(graph, target, blocks=True)
        groups += graph.groups or []
    keys = {key_of(group, target, orders) for group in groups}
    return [(i, task) for i, task in enumerate(tunable.tasks, 1) if task.key in keys]


def seconds_inside(tunable: Tunable, folder: Path, journal: str) -> tuple[float, dict[str, float]]:
    """Modelled seconds of the network that compile makes with a journal ("none": by default): of a
    run, and by task of its layer; of several layers the lowest.
    """
    board, target, options = tunable.board, tunable.target, tunable.options
    use = open_journal(journal, board)
    graph = tunable.graph()
    orders = memory_orders(graph, target)
    program = build_program(
        graph, target, "x", options, scheduler=None if use is None else use.schedules
    )
    cost, _ = arm_instructions.measure(
        tunable.model, board.name, folder, "gcc", layers=True, journal=journal
    )
    found: dict[str, float] = {}
    for layer, counted in zip(program.layers, cost.layers, strict=True):
        if layer.group is not None and counted.modelled_ms is not None:
            key = key_of(layer.group, target, orders)
            found[key] = min(found.get(key, math.inf), counted.modelled_ms / 1e3)
    assert cost.modelled_ms is not None
    return cost.modelled_ms / 1e3, found


def proven(tunable: Tunable, folder: Path, records: Sequence[Record]) -> list[Record]:
    """Those of the records with which the whole network is faster: while it is not, those leave
    whose layers are not faster in it.
    """
    before, inside = seconds_inside(tunable, folder, "none")
    by_key = {task.key: task for _, task in chosen_tasks(tunable)}
    kept = [
        r
        for key, own in by_task(records).items()
        for r in best_records(by_key[key], own, inside.get(key, 0.0))
    ]
    trial = folder / "trial.jsonl"
    while kept:
        trial.unlink(missing_ok=True)
        Journal(trial).append(kept)
        after, now = seconds_inside(tunable, folder, str(trial))
        print(f"{tunable.model.stem}: {before * 1e3:.2f} -> {after * 1e3:.2f} ms modelled")
        if after < before:
            break
        good = {key for key, seconds in now.items() if seconds < inside.get(key, 0.0)}
        left = [r for r in kept if r.task in good]
        kept = left if len(left) < len(kept) else []
    return kept


def best_records(task: Task, records: Sequence[Record], inside: float) -> list[Record]:
    """The task's best record that still holds and the one of its template's default; none when it
    is not faster than ``inside`` seconds.
    """
    best = next(iter(best_by_template(task, records).values()), None)
    if best is None or (template := task.template(best.record.template)) is None:
        return []
    copied = copies_seconds(
        task.group, task.target, task.orders, template, best.record.point.config
    )
    if best.seconds + copied > (1 - MIN_GAIN) * inside:
        return []
    usual = template.default(task.group, task.target)
    usual = template.canonical(task.group, task.target, usual)
    found = [best.record]
    if best.record.point.config != usual:
        found += [r for r in records if r.point == Point(template.name, usual) and holds(task, r)]
    return found[:2]


def shipped(record: Record) -> Record:
    """What compile needs of a record, and whoever asks where it comes from. Without the date, so
    that the same search writes the same file.
    """
    assert record.seconds is not None and record.kind == "modelled", record
    conditions = {name: record.conditions[name] for name in KEPT_CONDITIONS}
    seconds = float(f"{record.seconds:.{DIGITS}g}")
    return replace(
        record, seconds=seconds, times=(), features={}, conditions=conditions, message="", date=""
    )


def on_board(
    board_name: str, model: Path, tasks: Sequence[Task], best: Sequence[Record]
) -> list[Record]:
    """Records of the same configs on another board with the same core.

    Raises:
        ValueError: its tasks are others, or a config does not work there.
    """
    board = load_board(board_name)
    tunable = Tunable(model, board, CompileOptions())
    by_key = {task.key: task for task in tunable.tasks}
    if missing := [task.title for task in tasks if task.key not in by_key]:
        raise ValueError(f"{board_name} has other tasks than {SEARCHED}: {missing[0]}")
    wanted = [Candidate(by_key[r.task], r.point) for r in best]
    tags = {(r.task, r.point): r.tuner for r in best}
    found = []
    options = tunable.rotating(MeasureOptions())
    with closing(make_measurer(board, "qemu", options)) as measurer:
        for outcome in measurer.measure(wanted):
            candidate = outcome.candidate
            if outcome.status != "ok":
                raise ValueError(f"{candidate.task.title}: {outcome.status}, {outcome.message}")
            tag = tags[candidate.task.key, candidate.point]
            found.append(
                record_of(candidate.task, outcome, board=board_name, features={}, tuner=tag)
            )
    return found


def write(board_name: str, records: Sequence[Record]) -> Path:
    """The journal of a board's folder, the tasks by key and the fastest record of each first."""
    path = board_support_dir() / board_name / "journal.jsonl.xz"
    by_speed = sorted(records, key=lambda r: (r.task, r.seconds or 0.0, r.template))
    text = "".join(f"{record.line()}\n" for record in by_speed)
    path.write_bytes(lzma.compress(text.encode(), check=lzma.CHECK_CRC32, preset=9))
    return path


def record(options: argparse.Namespace) -> None:
    """Search, and write the journals of all boards."""
    before: Journal | None = None
    found: dict[str, dict[str, Record]] = {name: {} for name in (SEARCHED, *SAME_CORE)}
    for name in options.networks:
        # Of each network's search history is what the ones before found, also when it goes on.
        book = Journal(options.folder / f"{SEARCHED}_{name}.jsonl")
        if before is not None and not book.path.exists():
            shutil.copy(before.path, book.path)
        before = book
        model = arm_instructions.model_file(name, options.folder, is_float=True)
        tunable = Tunable(model, load_board(SEARCHED), CompileOptions())
        tasks = chosen_tasks(tunable)
        search = SearchOptions(
            trials=options.trials * len(tasks), tuner=options.tuner, seed=options.seed
        )
        run = run_tuning(
            tunable, tasks, book.path, search, MeasureOptions(), "qemu", False, LineDisplay()
        )
        if run.interrupted:
            raise KeyboardInterrupt
        keys = {task.key for _, task in tasks}
        known = [r for r in book.records() if r.task in keys and r.board == SEARCHED]
        best = proven(tunable, options.folder, known)
        new = [r for r in best if _place(r) not in found[SEARCHED]]
        found[SEARCHED].update((_place(r), shipped(r)) for r in new)
        for board_name in SAME_CORE:
            own = on_board(board_name, model, [task for _, task in tasks], new)
            found[board_name].update((_place(r), shipped(r)) for r in own)
    for board_name, records in found.items():
        path = write(board_name, list(records.values()))
        print(f"{path}: {len(records)} records, {measure.size(path.stat().st_size)}")


def compare(options: argparse.Namespace) -> None:
    """Print the section of docs/performance.md."""
    rivals = arm_instructions.FLOAT_RIVAL[SEARCHED]
    rows = []
    for name in options.networks:
        model = arm_instructions.model_file(name, options.folder, is_float=True)
        for label, journal in (("default", "none"), ("tuned", None)):
            cost, _ = arm_instructions.measure(
                model, SEARCHED, options.folder, "gcc", layers=False, journal=journal
            )
            counts = cost.counts
            rows.append(
                (
                    f"{name}, {label}",
                    f"{counts.instructions / 1e6:.1f}",
                    f"{rivals[name]:.1f}",
                    f"{counts.instructions / 1e6 / rivals[name]:.3f}",
                    f"{counts.l1_misses / 1e6:.2f}",
                    f"{counts.l2_misses / 1e6:.2f}",
                    f"{cost.modelled_ms or 0.0:.1f}",
                )
            )
    header = (
        "network", "instructions, M", "ncnn, M", "ratio", "L1 misses, M", "L2 misses, M",
        "modelled ms",
    )  # fmt: skip
    print(measure.markdown(header, rows))


def _place(record: Record) -> tuple[str, object]:
    return record.task, record.point


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--trials", type=int, default=TRIALS, help="a task, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tuner", default="xgb")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/board_journals"))
    options = parser.parse_args(arguments)
    measure.check_names(parser, options.networks, networks.NETWORKS)
    options.folder.mkdir(parents=True, exist_ok=True)
    (record if options.command == "record" else compare)(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
