"""``aotgen bundle``: several models into one library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aotgen.cli import options as opt
from aotgen.cli.common import activity
from aotgen.errors import UsageError
from aotgen.report.text import byte_text, table

if TYPE_CHECKING:
    from aotgen.bundling import Bundle, ModelOptions


def bundle(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Model files (.onnx, .tflite), or NAME=FILE with the prefix of public symbols.",
            show_default=False,
        ),
    ],
    *,
    board: opt.Board = opt.DEFAULT_BOARD,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the bundle.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the library; default from the folder's name.")
    ] = None,
    share_arena: Annotated[
        bool, typer.Option("--share-arena", help="One arena for all: the models never run at once.")
    ] = False,
    shape: Annotated[
        list[str],
        typer.Option(
            "--shape", metavar="MODEL:NAME=1x3x224x224", help="Shape of an input left open."
        ),
    ] = opt.NONE_GIVEN,
    dim: Annotated[
        list[str],
        typer.Option("--dim", metavar="MODEL:NAME=N", help="Value of a symbolic dimension."),
    ] = opt.NONE_GIVEN,
    stream: Annotated[
        list[str],
        typer.Option("--stream", metavar="MODEL:N", help="Let a model read N new frames a run."),
    ] = opt.NONE_GIVEN,
    time_axis: Annotated[
        list[str],
        typer.Option("--time-axis", metavar="MODEL:AXIS", help="Of its inputs that --stream cuts."),
    ] = opt.NONE_GIVEN,
    opt_level: opt.OptLevel = opt.DEFAULT.opt_level,
    disable_pass: opt.DisablePass = opt.NONE_GIVEN,
    journal: opt.Journal = opt.DEFAULT.journal,
    weights: opt.Weights = opt.DEFAULT.weights,
    threads: opt.MostThreads = opt.DEFAULT.threads,
    io_type: opt.IoType = opt.DEFAULT.io_type,
    requant: opt.Requant = opt.DEFAULT.requant,
    optimize: opt.Optimize = opt.DEFAULT.optimize,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a bundle that is already there.")
    ] = False,
) -> None:
    """Compile several models for BOARD into one library.

    What they share, kernels and the runtime, is in it once.
    """
    from aotgen.bundling import bundle as make_bundle
    from aotgen.options import CompileOptions

    options = CompileOptions(
        opt_level=opt_level,
        disabled_passes=tuple(disable_pass),
        weights=weights,
        threads=threads,
        optimize=optimize,
        requant=requant,
        io_type=io_type,
        journal=journal,
    )
    with activity() as doing:
        made = make_bundle(
            _models(models),
            board,
            output,
            name=name,
            share_arena=share_arena,
            options=options,
            own=_own(shape, dim, stream, time_axis),
            force=force,
            progress=doing,
        )
    typer.echo(_text(made))


def _models(texts: Sequence[str]) -> list[Path] | dict[str, Path]:
    """Files, or files by name when any of them has one.

    Raises:
        UsageError: a name is given twice, or only some have one.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or not re.fullmatch(r"\w+", name) or Path(text).exists():
            continue
        if name in found:
            raise UsageError(f"two models are named {name!r}")
        found[name] = Path(file)
    if not found:
        return [Path(text) for text in texts]
    if len(found) < len(texts):
        raise UsageError("only some models have a name", remedy="write NAME=FILE for all or none")
    return found


def _own(
    shape: Sequence[str], dim: Sequence[str], stream: Sequence[str], time_axis: Sequence[str]
) -> dict[str, ModelOptions]:
    """What MODEL:... options say of each model that one names."""
    from aotgen.bundling import ModelOptions

    shapes, dims = _by_model("--shape", shape), _by_model("--dim", dim)
    streams, axes = _by_model("--stream", stream), _by_model("--time-axis", time_axis)
    return {
        model: ModelOptions(
            opt.parse_shapes(shapes.get(model, [])),
            opt.parse_dims(dims.get(model, [])),
            _number(f"--stream {model}", streams.get(model, [])),
            _number(f"--time-axis {model}", axes.get(model, [])),
        )
        for model in {**shapes, **dims, **streams, **axes}
    }


def _number(option: str, texts: Sequence[str]) -> int | None:
    """
    Raises:
        UsageError: it is none, or given twice.
    """
    if not texts:
        return None
    if len(texts) > 1 or not re.fullmatch(r"\d{1,9}", texts[0]):
        raise UsageError(f"{option}:{','.join(texts)} is not one number", remedy="write MODEL:N")
    return int(texts[0])


def _by_model(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """The rest of each MODEL:... by its model.

    Raises:
        UsageError: one names no model.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        model, colon, rest = text.partition(":")
        if not colon or not re.fullmatch(r"\w+", model):
            raise UsageError(f"{option} {text!r} names no model", remedy=f"write MODEL:{text}")
        found.setdefault(model, []).append(rest)
    return found


def _text(made: Bundle) -> str:
    manifest = made.manifest
    rows = [
        (m["prefix"], m["arena_bytes"], m["state_bytes"], m["weights_bytes"])
        for m in manifest["models"]
    ]
    if manifest["shared_weights_bytes"]:
        rows.append(("shared", "", "", manifest["shared_weights_bytes"]))
    arena = "one arena of" if manifest["share_arena"] else "arenas of"
    lines = [
        table(("model", "arena", "state", "weights"), rows, left=1),
        f"{made.folder}: {len(made.models)} models, {manifest['kernels']} kernels for"
        f" {manifest['board']} ({manifest['isa']}), {arena} {byte_text(manifest['arena_bytes'])},"
        f" weights {byte_text(manifest['weights_bytes'])}",
    ]
    if made.board.is_bare:
        lines += made.report().memory_lines()
    return "\n".join(lines)
