"""``aotgen validate``: compare a project with the reference interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity, chosen_place, open_project, read_npz
from aotgen.report.text import table

if TYPE_CHECKING:
    from aotgen.validate import LayerCheck, ValidateReport


def validate(
    folder: opt.Folder,
    inputs: Annotated[
        list[Path],
        typer.Option(
            "-i",
            "--input",
            help="Inputs (.npz) of a step, one -i a step; default are seeded random ones.",
        ),
    ] = opt.NONE_GIVEN,
    model: opt.BundledModel = None,
    runner: opt.Runner = None,
    board: opt.OwnBoard = None,
    threads: opt.Threads = 1,
    cores: opt.Cores = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Also compare every layer and its weights.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Compare the results of DIR with the reference interpreter.

    The exit code is 1 when they differ.
    """
    project = open_project(folder, board, model)
    fed = [read_npz(path) for path in inputs] or None
    with (
        activity("building and comparing") as shown,
        chosen_place(runner, project, shown) as place,
    ):
        report = project.validate(fed, per_layer, place, threads=threads, cores=cores)
    typer.echo(json.dumps(report.as_dict(), indent=2) if as_json else _text(report))
    if not report.ok:
        raise typer.Exit(1)


def _text(report: ValidateReport) -> str:
    lines = []
    if report.layers:
        rows = [_row(layer) for layer in report.layers]
        lines += [table(("layer", "name", "result", "weights", "difference"), rows, left=4), ""]
    for output in report.outputs:
        verdict = "ok" if output.relative <= report.tolerance else "differs"
        measured = f"max|a-b| / max|b| = {output.relative:.2e}"
        lines.append(f"output {output.name!r}: {verdict}, {measured}")
    bad = report.first_bad_layer
    if bad is not None:
        origin = f" (from {', '.join(bad.origin)})" if bad.origin else ""
        lines.append(f"first bad layer: {bad.index}, {bad.name}{origin}: {bad.reason()}")
    outputs_fit = all(d.relative <= report.tolerance for d in report.outputs)
    verdict = "same" if outputs_fit else "DIFFERENT"
    lines.append(f"{verdict} within {report.tolerance:g}{'' if report.ok else ': FAILED'}")
    return "\n".join(lines)


def _row(layer: LayerCheck) -> tuple[object, ...]:
    weights = {True: "ok", False: "CHANGED", None: "-"}[layer.weights_ok]
    if layer.difference is None:
        return layer.index, layer.name, "-", weights, "-"
    return (
        layer.index,
        layer.name,
        "ok" if layer.ok or layer.weights_ok is False else "DIFFERS",
        weights,
        f"{layer.difference.relative:.2e}",
    )
