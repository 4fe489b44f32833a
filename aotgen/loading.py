"""From a model file to a Graph in Groups: what compiling, tuning and validating begin with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aotgen.errors import ModelError, ShapeError
from aotgen.options import CompileOptions, IoType, RequantMode
from aotgen.target.board import Board
from aotgen.target.target import Target

if TYPE_CHECKING:
    from aotgen.ir.graph import Graph

Shapes = Mapping[str, Sequence[int]]

PassObserver = Callable[[str, str, str], None]
"""Called for each pass that changed the graph: the pass's name, the printed graph before and after.
"""

Progress = Callable[[str], None]
"""Called with what the compiler is doing whenever it starts something new."""


def load(
    path: str | os.PathLike[str],
    shapes: Shapes | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    requant: RequantMode | None = None,
    io_type: IoType = "native",
) -> Graph:
    """Read a model file into a typed static Graph, before any pass.

    Args:
        path: an .onnx or a .tflite file.
        shapes: shape of an input by its name, in the file's own layout, where the file leaves it
            open.
        dims: value of a symbolic dimension by its name.
        requant: of a .tflite file, see ``CompileOptions``.
        io_type: see ``CompileOptions``.

    Raises:
        UsageError: the file cannot be read, or ``requant`` is given for an ONNX file.
        ModelError: it is malformed.
        UnsupportedError: it uses operators that aotgen cannot compile; ``problems`` lists all of
            them.
        ShapeError: a dimension is unbound, ``shapes`` names an input that does not exist, or an
            input or output has no elements.
    """
    from aotgen.frontend import load as frontend_load
    from aotgen.frontend.io_type import float_io

    bound = {name: tuple(int(d) for d in shape) for name, shape in (shapes or {}).items()}
    mode = requant_of(Path(path), requant)
    graph = frontend_load(Path(path), shapes=bound, dims=dict(dims or {}), requant=mode)
    if io_type == "float":
        float_io(graph, ties_to_even=mode is None)
    for role, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if value.type.numel == 0:
                raise ShapeError(
                    f"{role} {value.name!r} ({value.type}) has no elements: there is nothing to "
                    "compile"
                )
    return graph


def requant_of(path: Path, requant: RequantMode | None) -> RequantMode | None:
    """``requant``, or what a .tflite file has where it is None. The reader refuses one for ONNX."""
    from aotgen.frontend import is_tflite

    return requant or ("tflm" if is_tflite(path) else None)


def load_for(path: str | os.PathLike[str], options: CompileOptions) -> Graph:
    """``load`` with what of ``options`` it takes; with ``options.stream`` the step of it, behind
    the simplifications.
    """
    graph = load(
        path, options.shapes, options.dims, requant=options.requant, io_type=options.io_type
    )
    if options.stream is None:
        return graph
    from aotgen.passes.pipeline import simplify
    from aotgen.streaming import stream

    simplify(graph, opt_level=options.opt_level, disabled=options.disabled_passes)
    return stream(graph, options.stream, options.time_axis)


def optimise(graph: Graph, options: CompileOptions, observer: PassObserver | None = None) -> Graph:
    """Run the passes of ``options`` on a loaded graph and partition it into Groups.

    Args:
        graph: from ``load``; it may be changed in place.
        options: which passes run.
        observer: called with (pass name, printed graph before, printed graph after) for each pass
            that changed something.
    """
    from aotgen.passes.pipeline import run_passes

    return run_passes(
        graph,
        opt_level=options.opt_level,
        disabled=options.disabled_passes,
        optimize=options.optimize,
        on_pass=observer,
    )


def target_of(board: Board, options: CompileOptions) -> Target:
    """The board's Target under these options."""
    device = options.device
    if device == "auto":
        device = "gpu" if board.gpu_preferred else "cpu"
    return board.target(threads=options.threads, optimize=options.optimize, device=device)


def self_contained(path: Path) -> bytes | Path:
    """A model that ``load`` has accepted: its file, or its bytes with external data drawn in."""
    from aotgen.frontend import is_tflite

    # "location" is the key that every reference to external data has.
    if is_tflite(path) or not _mentions(path, b"location"):
        return path
    import onnx
    from google.protobuf.message import EncodeError

    from aotgen.frontend.onnx.tensors import is_external

    if not is_external(onnx.load(str(path), load_external_data=False)):
        return path
    try:
        whole: bytes = onnx.load(str(path)).SerializeToString(deterministic=True)
        return whole
    except (ValueError, EncodeError) as error:
        raise ModelError(
            f"{path}: the model and its external data do not fit into one file of 2 GB"
        ) from error


def _mentions(path: Path, text: bytes) -> bool:
    """Whether a file contains ``text``, without holding all of it."""
    end = b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            if text in end + chunk:
                return True
            end = chunk[-len(text) :]
    return False
