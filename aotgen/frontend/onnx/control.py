"""Control flow: an If whose condition is known is replaced by the branch that it takes."""

from __future__ import annotations

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value


@converts("If")
def if_known(n: OnnxNode) -> list[Value | None]:
    """Exporters test shapes with it: with bound dimensions only one branch is left."""
    condition = n.known(0)
    if condition is None:
        n.refuse(
            "control flow that depends on the model's inputs is not supported",
            "export the model with the branch resolved",
        )
    if condition.size != 1:
        n.refuse(f"its condition has {condition.size} elements, not one")
    return n.inline("then_branch" if condition.reshape(-1)[0] else "else_branch")
