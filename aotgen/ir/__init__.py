"""The intermediate representation: graph, types, printer, verifier, interpreter, requantization.

A model enters here from a frontend, is rewritten by passes, and leaves through plan and codegen.
"""

from __future__ import annotations

from aotgen.ir.graph import Attrs, Graph, Group, Node, Value
from aotgen.ir.types import (
    Array,
    Dim,
    DType,
    Quant,
    Requant,
    Shape,
    Sym,
    TensorType,
    dim_max,
)

__all__ = [
    "Array",
    "Attrs",
    "DType",
    "Dim",
    "Graph",
    "Group",
    "Node",
    "Quant",
    "Requant",
    "Shape",
    "Sym",
    "TensorType",
    "Value",
    "dim_max",
]
