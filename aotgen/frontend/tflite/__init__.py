"""The TFLite reader: FlatBuffer files of schema 3.

``verify`` and ``reader`` prove the file sound, ``binding`` binds the shapes of its inputs,
``importer`` converts operator by operator with the functions that the family modules register.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aotgen.errors import Problem, UnsupportedError
from aotgen.frontend.tflite import (  # noqa: F401  (importing a family registers its converters)
    activations,
    conv,
    dense,
    elementwise,
    indexing,
    mediapipe,
    movement,
    pool,
    quantize,
    recurrent,
    reduce,
    refusals,
    resize,
    shape,
    softmax,
    svdf,
    variables,
)
from aotgen.frontend.tflite.importer import Importer
from aotgen.frontend.tflite.node import Mode
from aotgen.frontend.tflite.reader import Source, read
from aotgen.ir.graph import Graph

__all__ = ["check", "load"]


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
        source: path of a .tflite file, or its bytes.
        shapes: shapes of graph inputs whose dimensions the file leaves open.
        dims: values of named dimensions; a .tflite file has none.
        name: of the graph; by default from the file's name.
        requant: whose integer arithmetic, byte for byte: "tflm" (also for None) or "litert".

    Raises:
        UsageError: the file cannot be read.
        ModelError: the file is malformed; UnsupportedError: ``problems`` has all that cannot be
            compiled.
        ShapeError: a given shape does not fit.
    """
    importer = _run(source, shapes or {}, dims or {}, name, requant)
    if importer.problems:
        raise UnsupportedError(tuple(importer.problems))
    return importer.graph


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
    return _run(source, shapes or {}, dims or {}, None, requant).problems


def _run(
    source: Source,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    name: str | None,
    requant: Mode | None,
) -> Importer:
    importer = Importer(read(source), shapes=shapes, dims=dims, mode=requant or "tflm", name=name)
    with np.errstate(all="ignore"):
        importer.run()
    return importer
