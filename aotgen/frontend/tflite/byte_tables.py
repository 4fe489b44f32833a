"""Operators behind a table of 8-bit values: what depends on one 8-bit value alone is a table too.

x * sigmoid(x), the swish of most quantized networks, is thus one look-up, as sigmoid alone is. The
tables are filled by the ops' own numpy semantics, so the results stay the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgen.frontend.tflite.node import TfliteNode
from aotgen.ir.graph import Node, Value
from aotgen.ir.types import Array, DType
from aotgen.ops.fixed_point import limits
from aotgen.ops.registry import op_def

BYTES = (DType.I8, DType.U8)


def emit(node: TfliteNode, op: str, inputs: Sequence[Value], **attrs: Any) -> Value:
    """Emit element-wise ``op``, or a look-up in its stead where its inputs are a look-up of an
    8-bit value, that value itself, and single constants.
    """
    root = _root(inputs)
    if root is None or node.output_dtype() not in BYTES:
        return node.emit(op, inputs, **attrs)
    lo, hi = limits(root.dtype)
    every = np.arange(lo, hi + 1).astype(root.dtype.numpy)
    arrays = [_operand(v, root, every) for v in inputs]
    result = op_def(op).numpy(Node(op, list(inputs), [], attrs), arrays)[0]
    return node.emit(
        "lookup",
        [root],
        table=tuple(int(v) for v in result),
        dtype=node.output_dtype(),
        quant=node.output_quant(),
    )


def _root(inputs: Sequence[Value]) -> Value | None:
    """The one 8-bit value that all inputs are functions of, at least one of them by a table."""
    roots: list[Value] = []
    for value in inputs:
        if value.const is not None and value.const.size == 1:
            continue
        source = _looked_up(value)
        roots.append(value if source is None else source)
    tables = any(_looked_up(v) is not None for v in inputs)
    if not tables or any(r is not roots[0] for r in roots):
        return None
    rank = max(len(v.shape) for v in inputs)
    return roots[0] if rank == len(roots[0].shape) else None


def _looked_up(value: Value) -> Value | None:
    """What ``value`` is a look-up of."""
    producer = value.producer
    return producer.input(0) if producer is not None and producer.op == "lookup" else None


def _operand(value: Value, root: Value, every: Array) -> Array:
    """``value`` for each value of ``root``."""
    if value.const is not None:
        return value.const.reshape(())
    if value is root:
        return every
    assert value.producer is not None
    return np.asarray(value.producer.attrs["table"], value.dtype.numpy)
