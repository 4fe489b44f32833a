"""Operators that select elements by their values."""

from __future__ import annotations

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts, refuses
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


@converts("TopK")
def top_k(n: OnnxNode) -> list[Value]:
    """Values and int64 positions, in order also with sorted=0, which leaves it open. k is an
    attribute before opset 10; from 11 on the smallest can be asked for.
    """
    x = n.x(0)
    if not x.shape:
        n.refuse("a scalar has no axis to choose from")
    if n.opset < 10:
        k = n.get_int("k")
    else:
        given = n.need_ints(1, "K")
        if len(given) != 1:
            n.refuse(f"K has {len(given)} elements, not one")
        k = given[0]
    axis = n.axis("axis", -1, len(x.shape))
    if not 0 <= k <= x.shape[axis]:
        n.refuse(f"K is {k}, but axis {axis} has {x.shape[axis]} elements")
    if x.dtype is DType.BOOL:
        n.refuse("element type bool is not supported here", "cast its input to an integer")
    largest = bool(n.get_int("largest", 1)) if n.opset >= 11 else True
    return n.emit_all("top_k", [x], axis=axis, k=k, largest=largest)


refuses(
    "Unique",
    reason="how many elements its result has depends on the data",
    remedy="end the model before it",
)
refuses(
    "NonMaxSuppression",
    reason="how many boxes its result has depends on the data",
    remedy="end the model before it, at boxes and scores, and suppress in the application",
)
