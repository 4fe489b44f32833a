"""simplify_inference: what only training needs goes away.

batch_norm(x) = x * s + t   with  s = scale / sqrt(var + eps),  t = bias - mean * s
identity(x)   = x
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Graph, Node
from aotgen.passes.base import Pass
from aotgen.passes.rewrite import Rewriter, constant_like, is_f32, is_plain_node


class SimplifyInference(Pass):
    """Normalisation by stored statistics becomes a product and a sum; identities go."""

    name = "simplify_inference"
    level = 0

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        for node in rw.nodes():
            if node.op == "identity":
                rw.redirect(node.output, node.input(0))
            elif node.op == "batch_norm":
                _expand_batch_norm(rw, node)
        return rw.modified


def _expand_batch_norm(rw: Rewriter, node: Node) -> str | None:
    if not is_plain_node(node) or not is_f32(*node.args):
        return "not in f32"
    scale, bias, mean, var = (None if v is None else v.const for v in node.inputs[1:5])
    if scale is None or bias is None or mean is None or var is None:
        return "a parameter is not a constant"
    x = node.input(0)
    factor = scale.astype(np.float64) / np.sqrt(var.astype(np.float64) + node.attrs["eps"])
    offset = bias.astype(np.float64) - mean.astype(np.float64) * factor
    shape = (-1,) + (1,) * (x.type.rank - 1 - node.attrs["axis"])
    s = constant_like(rw.graph, factor.reshape(shape), f"{node.name}.factor")
    t = constant_like(rw.graph, offset.reshape(shape), f"{node.name}.offset")
    product = rw.insert_before(node, "mul", [x, s], name=f"{node.name}.mul", origin=node.origin)
    rw.replace(node, "add", [product, t], {})
    return None
