"""Options that several verbs share: name, help and check of each stand here once.

A verb annotates its parameters with them and takes the defaults of a compilation from ``DEFAULT``.
What an option's own parser refuses is a UsageError, before a verb begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from aotgen import bench_result, options
from aotgen.errors import UsageError

DEFAULT = options.CompileOptions()
"""What a compilation does when nothing else is said."""

DEFAULT_BOARD = "host"

NONE_GIVEN: list[Any] = []
"""Default of an option that may be repeated."""

_RUNNER_HELP = (
    "local (this computer), qemu (the board's emulator), ssh://user@host[:port], a Host of the"
    " ssh configuration, or of a microcontroller serial:/dev/ttyX[:baud]."
)
_MAX_DIM = 2**31 - 1
_MOST_DIGITS = 100  # Python refuses to read thousands of them


def _choices(kind: Any) -> str:
    """How help shows an option's values: those of a Literal."""
    return "|".join(get_args(kind))


# Of the verbs that read a model.
Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="Model file (.onnx, .tflite).", show_default=False),
]
Board = Annotated[str, typer.Option("--board", help="Name or path of a board.")]
Shape = Annotated[
    list[str],
    typer.Option(
        "--shape", metavar="NAME=1x3x224x224", help="Shape of an input the file leaves open."
    ),
]
Dim = Annotated[
    list[str], typer.Option("--dim", metavar="NAME=N", help="Value of a symbolic dimension.")
]
OptLevel = Annotated[int, typer.Option("--opt-level", help="0 to 4.")]
DisablePass = Annotated[
    list[str], typer.Option("--disable-pass", metavar="NAME", help="Leave out a pass (repeatable).")
]
Weights = Annotated[
    options.Weights,
    typer.Option(
        "--weights",
        metavar=_choices(options.Weights),
        parser=options.as_weights,
        help="Weights as C arrays, as a file that the assembler includes, or apart from the code.",
    ),
]
MostThreads = Annotated[int, typer.Option("--threads", help="Most threads that a run may use.")]
Device = Annotated[
    options.Device,
    typer.Option(
        "--device",
        metavar=_choices(options.Device),
        parser=options.as_device,
        help="Where kernels run.",
    ),
]
IoType = Annotated[
    options.IoType,
    typer.Option(
        "--io-type",
        metavar=_choices(options.IoType),
        parser=options.as_io_type,
        help="float in place of quantized inputs and outputs.",
    ),
]
Requant = Annotated[
    options.RequantMode | None,
    typer.Option(
        "--requant",
        metavar=_choices(options.RequantMode),
        parser=options.as_requant,
        help="Integer arithmetic of a .tflite; default tflm.",
    ),
]
Optimize = Annotated[
    options.Optimize,
    typer.Option(
        "--optimize",
        metavar=_choices(options.Optimize),
        parser=options.as_optimize,
        help="What to prefer where they disagree.",
    ),
]
Stream = Annotated[
    int | None,
    typer.Option(
        "--stream", metavar="N", help="Read N new frames a run; the others wait in the state."
    ),
]
TimeAxis = Annotated[
    int | None,
    typer.Option(
        "--time-axis", metavar="AXIS", help="Of the inputs that --stream cuts, if not the first."
    ),
]
Journal = Annotated[
    str | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        help="Tuning journal whose best records to use; none for not even the board's own.",
    ),
]

# Of the verbs that use a project.
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Project.", show_default=False)]
BundledModel = Annotated[str | None, typer.Option("--model", help="Which model of a bundle.")]
Runner = Annotated[str | None, typer.Option("--runner", help=_RUNNER_HELP)]
Runners = Annotated[
    str | None,
    typer.Option("--runner", help=f"{_RUNNER_HELP} Several boards of one kind: ssh://a,ssh://b."),
]
OwnBoard = Annotated[
    str | None, typer.Option("--board", help="Path of the board, where it is none of ours.")
]
Threads = Annotated[
    int, typer.Option("--threads", help="Threads of a run, at most those of `compile --threads`.")
]
Cores = Annotated[
    bench_result.Cores | None,
    typer.Option(
        "--cores",
        metavar=_choices(bench_result.Cores),
        parser=bench_result.as_cores,
        help="Which cores to use, the fastest first.",
    ),
]
NoGovernor = Annotated[
    bool,
    typer.Option("--no-governor", help="Leave the board's frequency governor as it is."),
]

# Of any verb.
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """``name=1x3x224x224`` options.

    Raises:
        UsageError: one is malformed, or a name is given twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"\d+([x,]\d+)*|scalar", dims):
            raise UsageError(f"--shape {text!r} is malformed", remedy="write name=1x3x224x224")
        if name in shapes:
            raise UsageError(f"--shape {name!r} is given twice")
        words = [] if dims == "scalar" else re.split("[x,]", dims)
        shapes[name] = tuple(_dim(word, f"--shape {text!r}") for word in words)
    return shapes


def parse_dims(texts: Iterable[str]) -> dict[str, int]:
    """``name=64`` or ``name<=64`` options; both give the dimension that value.

    Raises:
        UsageError: one is malformed, or a name is given twice.
    """
    dims: dict[str, int] = {}
    for text in texts:
        found = re.fullmatch(r"(.+?)<?=(\d+)", text)
        if not found:
            raise UsageError(f"--dim {text!r} is malformed", remedy="write name=64")
        if found[1] in dims:
            raise UsageError(f"--dim {found[1]!r} is given twice")
        dims[found[1]] = _dim(found[2], f"--dim {text!r}")
    return dims


def _dim(word: str, option: str) -> int:
    if len(word) > _MOST_DIGITS or not 1 <= int(word) <= _MAX_DIM:
        raise UsageError(f"{option}: {word[:20]} is no dimension", remedy=f"use 1 to {_MAX_DIM}")
    return int(word)
