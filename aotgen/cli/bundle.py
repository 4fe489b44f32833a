"""``aotgen bundle``: several models into one library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from aotgen.cli.common import (
    BOARD,
    DISABLE_PASS,
    IO_TYPE,
    OPT_LEVEL,
    OPTIMIZE,
    REQUANT,
    activity,
    parse_dims,
    parse_shapes,
)
from aotgen.errors import UsageError
from aotgen.report.text import byte_text, table

if TYPE_CHECKING:
    from aotgen.bundling import ModelOptions


def bundle(
    models: list[str] = typer.Argument(
        ...,
        metavar="MODEL...",
        help="Model files (.onnx, .tflite), or NAME=FILE with the prefix of public symbols.",
        show_default=False,
    ),
    board: str = BOARD,
    output: Path = typer.Option(
        ..., "-o", "--output", help="Folder of the bundle.", show_default=False
    ),
    name: str | None = typer.Option(
        None, "--name", help="Of the library; default from the folder's name."
    ),
    share_arena: bool = typer.Option(
        False, "--share-arena", help="One arena for all: the models never run at once."
    ),
    shape: list[str] = typer.Option(
        [], "--shape", metavar="MODEL:NAME=1x3x224x224", help="Shape of an input left open."
    ),
    dim: list[str] = typer.Option(
        [], "--dim", metavar="MODEL:NAME=N", help="Value of a symbolic dimension."
    ),
    stream: list[str] = typer.Option(
        [], "--stream", metavar="MODEL:N", help="Let a model read N new frames a run."
    ),
    time_axis: list[str] = typer.Option(
        [], "--time-axis", metavar="MODEL:AXIS", help="Of its inputs that --stream cuts."
    ),
    opt_level: int = OPT_LEVEL,
    disable_pass: list[str] = DISABLE_PASS,
    journal: str | None = typer.Option(
        None,
        "--journal",
        metavar="FILE",
        help="Tuning journal whose best records to use; none for not even the board's own.",
    ),
    weights: str = typer.Option("asm", "--weights", help="Weights as c, asm or bin."),
    threads: int = typer.Option(1, "--threads", help="Most threads that a run may use."),
    io_type: str = IO_TYPE,
    requant: str | None = REQUANT,
    optimize: str = OPTIMIZE,
    force: bool = typer.Option(False, "--force", help="Replace a bundle that is already there."),
) -> None:
    """Compile several models for BOARD into one library.

    What they share, kernels and the runtime, is in it once.
    """
    from aotgen.bundling import bundle as make_bundle
    from aotgen.options import CompileOptions, as_io_type, as_optimize, as_requant, as_weights

    options = CompileOptions(
        opt_level=opt_level,
        disabled_passes=tuple(disable_pass),
        weights=as_weights(weights),
        threads=threads,
        optimize=as_optimize(optimize),
        requant=None if requant is None else as_requant(requant),
        io_type=as_io_type(io_type),
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
    typer.echo(_text(made.folder, made.manifest))


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
            parse_shapes(shapes.get(model, [])),
            parse_dims(dims.get(model, [])),
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


def _text(folder: Path, manifest: dict[str, Any]) -> str:
    rows = [
        (m["prefix"], m["arena_bytes"], m["state_bytes"], m["weights_bytes"])
        for m in manifest["models"]
    ]
    arena = "one arena of" if manifest["share_arena"] else "arenas of"
    return "\n".join(
        [
            table(("model", "arena", "state", "weights"), rows, left=1),
            f"{folder}: {len(rows)} models, {manifest['kernels']} kernels for {manifest['board']}"
            f" ({manifest['isa']}), {arena} {byte_text(manifest['arena_bytes'])},"
            f" weights {byte_text(manifest['weights_bytes'])}",
        ]
    )
