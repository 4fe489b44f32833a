"""An op's compute definition applied to a node: the one way from the IR into te."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aotgen.errors import InternalError
from aotgen.ir.graph import Node
from aotgen.ops.registry import op_def
from aotgen.te.compute import Tensor
from aotgen.te.expr import Call, Expr
from aotgen.te.index import Index
from aotgen.te.simplify import Rewriter

FAST = {"exp": "fast_exp", "tanh": "fast_tanh", "sigmoid": "fast_sigmoid", "erf": "fast_erf"}
"""Functions of simd/math and what a node with the attribute ``fast_math`` calls instead."""


def definition(
    node: Node, operands: Sequence[Tensor | None], *, scratch: bool = True
) -> tuple[Tensor, ...]:
    """The tensors that ``node`` computes from its inputs' tensors.

    Args:
        scratch: whether rows can be kept in scratch memory.

    Raises:
        InternalError: the op has no compute definition.
    """
    op = op_def(node.op)
    rule = op.compute_rows if scratch and op.compute_rows is not None else op.compute
    if rule is None:
        raise InternalError(f"op {node.op!r} has no compute definition")
    made: tuple[Tensor, ...] = rule(node, operands)
    return tuple(map(_fast, made)) if node.attrs.get("fast_math") else made


def _fast(tensor: Tensor) -> Tensor:
    """The same tensor with the shorter formulas."""
    rewrite = Rewriter(leaf=_shorter)

    def element(*indices: Index) -> Expr:
        return rewrite(tensor.fn(*indices))

    return replace(tensor, fn=element, _known={})


def _shorter(expr: Expr) -> Expr:
    if isinstance(expr, Call) and expr.fn in FAST:
        return Call(FAST[expr.fn], expr.args, expr.type)
    return expr
