"""The ONNX reader: opsets 7 to the newest that the installed onnx package knows.

``reader`` proves the file sound, ``binding`` binds every dimension, ``importer`` converts node by
node with the functions that the op family modules register, and folds shape chains on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from aotgen.errors import Problem, UnsupportedError
from aotgen.frontend.onnx import (  # noqa: F401  (importing a family registers its converters)
    arithmetic,
    control,
    einsum,
    elementwise,
    index,
    linear,
    loops,
    microsoft,
    microsoft_attention,
    ml,
    ml_linear,
    ml_trees,
    norm,
    pool,
    quantized,
    quantized_lstm,
    recurrent,
    reduce,
    resize,
    roi,
    sampling,
    search,
    shape,
    signal,
)
from aotgen.frontend.onnx.binding import bind_inputs
from aotgen.frontend.onnx.importer import Importer
from aotgen.frontend.onnx.inference import write_out_functions
from aotgen.frontend.onnx.reader import Source, read
from aotgen.ir.graph import Graph

__all__ = ["check", "load"]


def load(
    source: Source,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Graph:
    """The model as a typed static Graph.

    Args:
        source: path of an .onnx file, its bytes, or a parsed model (external data needs the path).
        shapes: whole shapes of graph inputs, in the file's layout.
        dims: values of the file's symbolic dimensions.
        name: of the graph; by default from the file's name.

    Raises:
        UsageError: the file cannot be read.
        ModelError: the file is malformed; UnsupportedError: ``problems`` has all that cannot be
            compiled.
        ShapeError: a dimension is unbound, or a binding does not fit.
    """
    importer = _run(source, shapes or {}, dims or {}, name)
    if importer.problems:
        raise UnsupportedError(tuple(importer.problems))
    return importer.graph


def check(
    source: Source,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> list[Problem]:
    """All that cannot be compiled, in the file's order; empty when ``load`` would succeed.

    Raises:
        UsageError, ModelError, ShapeError: as ``load``, for what stops the reading itself.
    """
    return _run(source, shapes or {}, dims or {}, None).problems


def _run(
    source: Source,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    name: str | None,
) -> Importer:
    file = read(source)
    inputs = bind_inputs(file.proto.graph, shapes, dims, file.label)
    proto = write_out_functions(file.proto, file.opsets.get("", 0), inputs.types)
    importer = Importer(replace(file, proto=proto), inputs, name or file.stem or "model")
    with np.errstate(all="ignore"):
        importer.run()
    return importer
