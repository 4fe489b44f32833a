"""``aotgen bench``: time a project."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity, chosen_place, open_project
from aotgen.errors import UsageError
from aotgen.report.text import byte_text, table

if TYPE_CHECKING:
    from aotgen.bench_result import BenchResult


def bench(
    folder: opt.Folder,
    model: opt.BundledModel = None,
    runner: opt.Runner = None,
    board: opt.OwnBoard = None,
    threads: Annotated[
        str, typer.Option("--threads", help="Threads of a run; 1,2,4 measures with each.")
    ] = "1",
    cores: opt.Cores = None,
    number: Annotated[
        int | None,
        typer.Option("--number", help="Runs per repeat; default makes a repeat last about 50 ms."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="How many times to measure.")] = 10,
    cooldown: Annotated[
        float,
        typer.Option(
            "--cooldown", help="Wait until the board is cool again, at most so many seconds."
        ),
    ] = 0.0,
    profile: Annotated[bool, typer.Option("--profile", help="Also time every layer.")] = False,
    no_governor: opt.NoGovernor = False,
    sysfs_root: Annotated[
        str | None,
        typer.Option(
            "--sysfs-root", help="Folder on the board in place of / for what is read of /sys."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Time DIR on its board.

    Prints one line for each number of threads, and what the board told.
    """
    from aotgen.bench import BenchOptions
    from aotgen.bench_result import BenchInterrupted

    options = BenchOptions(
        number=number,
        repeat=repeat,
        cores=cores,
        profile=profile,
        cooldown=cooldown,
        governor=not no_governor,
        sysfs_root=sysfs_root,
    )
    counts = _counts(threads)
    project = open_project(folder, board, model)
    options.check(counts, project.info.api.threads)
    try:
        with (
            activity("building and timing") as shown,
            chosen_place(runner, project, shown) as place,
        ):
            results = project.bench_each(counts, options, place)
    except BenchInterrupted as error:
        _show(error.results, as_json)
        raise
    _show(results, as_json)


def _counts(text: str) -> list[int]:
    words = text.split(",")
    # A number that Python would take, such as 1_0, is none here.
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise UsageError(f"--threads {text!r} is malformed", remedy="write 4, or 1,2,4")
    return [int(word) for word in words]


def _show(results: Sequence[BenchResult], as_json: bool) -> None:
    for result in results:
        prefix = f"with {_threads(result)}: " if len(results) > 1 else ""
        for text in result.warnings:
            print(f"aotgen: warning: {prefix}{text}", file=sys.stderr)
    if results[0].emulated:
        print("aotgen: times under QEMU say nothing about the board", file=sys.stderr)
    typer.echo(json.dumps(_as_dict(results), indent=2) if as_json else _text(results))


def _as_dict(results: Sequence[BenchResult]) -> dict[str, Any]:
    """The last result, and all of them under "runs"."""
    return {**results[-1].as_dict(), "runs": [result.as_dict() for result in results]}


def _text(results: Sequence[BenchResult]) -> str:
    lines = []
    for result in results:
        if result.layers:
            lines += [f"{_threads(result)}:"] if len(results) > 1 else []
            lines += [_layer_table(result), ""]
    lines += [_summary(results), ""]
    for result in results:
        prefix = f"{_threads(result)}: " if len(results) > 1 else ""
        lines += [f"{prefix}{line}" for line in _facts(result)]
    lines.append(str(results[-1]))
    return "\n".join(lines)


def _summary(results: Sequence[BenchResult]) -> str:
    """The columns of benchncnn, and more; times in milliseconds."""
    header = ["name", "threads", "min", "median", "max", "mean", "std ms"]
    works = any(result.macs for result in results)
    peaks = any(result.macs and result.peak_share is not None for result in results)
    header += [results[0].unit] if works else []
    header += ["of peak"] if peaks else []
    rows = []
    for result in results:
        digits = _digits(result.median_ms)
        times = (
            result.min_ms,
            result.median_ms,
            result.max_ms,
            result.mean_ms,
            result.std_ms,
        )
        row = [result.name, str(result.threads), *(f"{t:.{digits}f}" for t in times)]
        row += [f"{result.gops:.2f}"] if works else []
        row += [_share(result.peak_share)] if peaks else []
        rows.append(row)
    return table(header, rows)


def _layer_table(result: BenchResult) -> str:
    total = sum(layer.ms for layer in result.layers) or 1.0
    works = any(layer.macs for layer in result.layers)
    peaks = not result.emulated and any(layer.peak_share is not None for layer in result.layers)
    header = ["layer", "name", "ms", "share"]
    header += [result.unit] if works else []
    header += ["of peak"] if peaks else []
    costs = result.cost.layers if result.cost else ()
    modelled = any(cost.modelled_ms is not None for cost in costs)
    header += ["M instr"] if costs else []
    header += ["modelled ms"] if modelled else []
    digits = max(4, _digits(max(layer.ms for layer in result.layers)))
    rows = []
    for layer in result.layers:
        row = [str(layer.layer), layer.name, f"{layer.ms:.{digits}f}", f"{layer.ms / total:.1%}"]
        row += [f"{layer.gops:.2f}" if layer.macs else ""] if works else []
        row += [_share(layer.peak_share)] if peaks else []
        if costs:
            cost = costs[layer.layer]
            row.append(f"{cost.instructions / 1e6:.3f}")
            row += [f"{cost.modelled_ms:.4f}"] if cost.modelled_ms is not None else []
        rows.append(row)
    return table(header, rows, left=2)


def _facts(result: BenchResult) -> Iterator[str]:
    """What stands under the table about one result."""
    counted = f"{len(result.times_ms)} x {result.number} runs, {result.runner}"
    if result.cpus and not result.emulated:
        counted += f", CPU {','.join(map(str, result.cpus))}"
    if result.peak_bytes:
        counted += f", peak memory {byte_text(result.peak_bytes)}"
    if result.stack_bytes is not None:
        counted += f", stack {result.stack_bytes} bytes"
    yield counted
    if result.cost:
        yield str(result.cost)
    if result.before.known:
        told = f"before: {result.before}; after: {result.after}"
        if result.governor is not None and result.governor.cpus:
            told += f"; governor {result.governor}"
        yield told
    if result.cooled_s:
        yield f"cooled down for {result.cooled_s} s before"


def _threads(result: BenchResult) -> str:
    return f"{result.threads} thread{'s' if result.threads > 1 else ''}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _digits(ms: float) -> int:
    """Decimals of a time in milliseconds: four significant digits, at least two decimals."""
    return max(2, 3 - math.floor(math.log10(ms))) if ms > 0 else 2
