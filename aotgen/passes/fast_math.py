"""fast_math: exp, tanh, sigmoid and erf by shorter formulas, right to about 1e-5.

A node with the attribute ``fast_math`` calls the functions of ``templates/simd/fast_math.h.j2``
wherever its compute definition names one of these four. What it computes is the same function:
the interpreter, which is exact, stays its oracle.
"""

from __future__ import annotations

from aotgen.ir.graph import Graph
from aotgen.passes.base import Pass
from aotgen.passes.rewrite import is_f32, is_plain_node

OPS = frozenset(["exp", "tanh", "sigmoid", "erf", "softmax", "log_softmax", "gelu", "silu", "mish"])
"""Ops whose compute definitions call one of the four functions."""


class FastMath(Pass):
    """Mark the nodes that may be less exact."""

    name = "fast_math"
    level = 4

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in graph.nodes:
            if node.op not in OPS or "fast_math" in node.attrs:
                continue
            if is_plain_node(node) and is_f32(*node.outputs):
                node.attrs["fast_math"] = True
                changed = True
        return changed
