"""The op registry: an op's type rule, numpy semantics and compute definition live in one place.

An op family module (``aotgen/ops/<family>.py``) builds ``OpDef``s and registers them. Everybody
else asks ``op_def(name)``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aotgen.errors import InternalError
from aotgen.ir.types import Array, TensorType

if TYPE_CHECKING:
    from aotgen.ir.graph import Node, Value


class OpPattern(enum.IntEnum):
    """How an op may fuse, TVM's classes (Chen et al., OSDI 2018, section 3)."""

    ELEMENTWISE = 0  # output element i reads input elements i only
    BROADCAST = 1  # element-wise, with inputs of lower rank or extent 1
    INJECTIVE = 2  # every output element reads one element of an input, at another index
    REDUCE = 3  # a reduction, softmax or normalisation: te writes it as several stages
    ANCHOR = 4  # conv, matmul, pool: an anchor template implements it and may fuse an epilogue
    OPAQUE = 5  # nothing fuses with it


InferRule = Callable[["Node"], list[TensorType]]
"""Types of the outputs from ``node.inputs`` and ``node.attrs``; raises ModelError naming the node.
"""

NumpyRule = Callable[["Node", Sequence[Array | None]], list[Array]]
"""The op's meaning: arrays in, arrays out, in the IR's layouts. The oracle of every pass, template
and board.
"""


@dataclass(frozen=True)
class OpDef:
    """One canonical op.

    Attributes:
        name: as in ``Node.op``.
        pattern: how it fuses.
        infer: type rule.
        numpy: semantics.
        compute: te definition, ``compute(node, tensors) -> te.Nest``-like (see aotgen.te); None
            for anchors.
        macs: multiply-accumulates of a node, for reports; None counts as zero.
        compute_rows: another compute definition, with rows kept in scratch memory; preferred where
            there is such memory (not on a GPU). None where ``compute`` serves both.
        in_place: (input, output) pairs of a node whose kernels are right when both have the same
            memory; for a state that the node replaces. None for no such pairs.
    """

    name: str
    pattern: OpPattern
    infer: InferRule
    numpy: NumpyRule
    compute: Callable[..., Any] | None = None
    macs: Callable[[Node], int] | None = None
    compute_rows: Callable[..., Any] | None = None
    in_place: Callable[[Node], list[tuple[Value, Value]]] | None = None


_OPS: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add an op; a name can be registered once."""
    if op.name in _OPS:
        raise InternalError(f"op {op.name!r} is registered twice")
    _OPS[op.name] = op
    return op


def op_def(name: str) -> OpDef:
    """The definition of canonical op ``name``."""
    import aotgen.ops  # noqa: F401  (its import registers every family)

    try:
        return _OPS[name]
    except KeyError:
        raise InternalError(f"there is no op {name!r}") from None


def op_names() -> list[str]:
    """All registered ops, sorted."""
    import aotgen.ops  # noqa: F401

    return sorted(_OPS)
