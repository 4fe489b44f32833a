"""canonicalize_cast: casts that change nothing go, and of two casts in a row one stays where that
is exact."""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Graph, Node
from aotgen.passes.base import Pass
from aotgen.passes.rewrite import Rewriter, is_plain_node


class CanonicalizeCast(Pass):
    """cast(x: T, T) = x;  cast(cast(x: A, B), C) = cast(x, C) when B holds every value of A."""

    name = "canonicalize_cast"
    level = 3

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        for node in rw.nodes():
            if node.op == "cast" and is_plain_node(node):
                _merge(rw, node)
        return rw.modified


def _merge(rw: Rewriter, node: Node) -> str | None:
    source = node.input(0)
    if source.dtype is node.output.dtype:
        rw.redirect(node.output, source)
        return None
    inner = source.producer
    if inner is None or inner.op != "cast" or not is_plain_node(inner):
        return "not a cast of a cast"
    first = inner.input(0)
    if not np.can_cast(first.dtype.numpy, source.dtype.numpy, "safe"):
        return f"{source.dtype.value} does not hold every {first.dtype.value}"
    if first.dtype is node.output.dtype:
        rw.redirect(node.output, first)
    else:
        rw.replace(node, "cast", [first], node.attrs, absorbed=[inner])
    return None
