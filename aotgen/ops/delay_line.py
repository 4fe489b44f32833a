"""delay_line: a window of rows moves on. The oldest rows leave it, the others come to its front.

Attributes: axis, before which all extents are 1, and rows, how many leave. The output is what is
left, of fewer rows. It is the slice [rows:], but its kernel is right where the output lies on the
front of the input: how a state variable keeps its place while new rows are written behind it
(``memory/state_windows.py``).
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.ir.types import TensorType
from aotgen.ops.common import AnyArray, Arrays, expect_axis, fail, need, product, type_of
from aotgen.ops.registry import OpDef, OpPattern, register


def _infer(node: Node) -> list[TensorType]:
    x, axis, rows = type_of(node), int(node.attrs["axis"]), int(node.attrs["rows"])
    expect_axis(node, axis, x.rank)
    if product(x.max_shape[:axis]) != 1:
        fail(node, f"its rows do not lie in one piece: axis {axis} of {x.max_shape}")
    left = x.max_shape[axis] - rows
    if rows < 1 or left < 1:
        fail(node, f"{rows} of {x.max_shape[axis]} rows cannot leave")
    return [x.with_shape((*x.shape[:axis], left, *x.shape[axis + 1 :]))]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, axis = need(arrays), int(node.attrs["axis"])
    return [np.ascontiguousarray(x.take(range(int(node.attrs["rows"]), x.shape[axis]), axis))]


def _in_place(node: Node) -> list[tuple[Value, Value]]:
    return [(node.input(0), node.output)]


register(OpDef("delay_line", OpPattern.OPAQUE, _infer, _numpy, None, in_place=_in_place))
