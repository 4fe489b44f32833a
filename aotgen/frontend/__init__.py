"""From a model file to a Graph: the first step of a model's journey. One package a file format.

The format is what the file says, not its name: a TFLite model has its identifier at byte 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from aotgen.errors import Problem, UsageError

if TYPE_CHECKING:
    from aotgen.frontend.onnx.reader import Source
    from aotgen.ir.graph import Graph

__all__ = ["Mode", "check", "is_tflite", "load"]

Mode = Literal["tflm", "litert"]


def is_tflite(source: Source) -> bool:
    """Whether a model is one of TFLite: by its identifier, or by the suffix of a path that cannot
    be read or is too short to tell.
    """
    if isinstance(source, bytes):
        return source[4:8] == b"TFL3"
    if not isinstance(source, str | Path):
        return False
    path = Path(source)
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except (OSError, ValueError):
        head = b""
    return head[4:8] == b"TFL3" or path.suffix.lower() == ".tflite"


def load(
    source: Source,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    requant: Mode | None = None,
) -> Graph:
    """The model as a typed static Graph.

    Args:
        source: path of an .onnx or .tflite file, its bytes, or a parsed ONNX model.
        shapes: whole shapes of graph inputs, in the file's layout.
        dims: values of an ONNX file's symbolic dimensions.
        name: of the graph; by default from the file's name.
        requant: of a .tflite file, whose integer arithmetic, byte for byte: "tflm" (also for None)
            or "litert".

    Raises:
        UsageError: the file cannot be read, or ``requant`` is given for an ONNX model.
        ModelError: the file is malformed; UnsupportedError: ``problems`` has all that cannot be
            compiled.
        ShapeError: a dimension is unbound, or a binding does not fit.
    """
    if is_tflite(source):
        from aotgen.frontend import tflite

        assert isinstance(source, str | bytes | Path)
        return tflite.load(source, shapes=shapes, dims=dims, name=name, requant=requant)
    from aotgen.frontend import onnx

    _only_tflite(requant)
    return onnx.load(source, shapes=shapes, dims=dims, name=name)


def check(
    source: Source,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    requant: Mode | None = None,
) -> list[Problem]:
    """All that cannot be compiled, in the file's order; empty when ``load`` would succeed.

    Raises:
        UsageError, ModelError, ShapeError: as ``load``, for what stops the reading itself.
    """
    if is_tflite(source):
        from aotgen.frontend import tflite

        assert isinstance(source, str | bytes | Path)
        return tflite.check(source, shapes=shapes, dims=dims, requant=requant)
    from aotgen.frontend import onnx

    _only_tflite(requant)
    return onnx.check(source, shapes=shapes, dims=dims)


def _only_tflite(requant: Mode | None) -> None:
    if requant is not None:
        raise UsageError(
            f"the requantization mode {requant!r} is for .tflite files; an ONNX model has its own",
            remedy="leave out --requant",
        )
