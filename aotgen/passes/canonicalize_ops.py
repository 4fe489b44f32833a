"""canonicalize_ops: one spelling for each computation, the one that kernels know best.

The rules are in three modules: ``canonical_shape`` (what moves or pads elements; all exact),
``canonical_math`` (arithmetic, decomposed activations and normalisations) and ``canonical_norm``
(normalisation over pixels); those change results by rounding only.
"""

from __future__ import annotations

from aotgen.ir.graph import Graph
from aotgen.passes.base import Pass
from aotgen.passes.canonical_math import MATH_RULES
from aotgen.passes.canonical_norm import NORM_RULES
from aotgen.passes.canonical_shape import SHAPE_RULES
from aotgen.passes.pattern import apply_rules
from aotgen.passes.rewrite import Rewriter


class CanonicalizeOps(Pass):
    """Apply all rules until none applies."""

    name = "canonicalize_ops"
    level = 3

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        apply_rules(rw, (*SHAPE_RULES, *MATH_RULES, *NORM_RULES))
        return rw.modified
