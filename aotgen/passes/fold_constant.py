"""fold_constant: nodes that read only constants are computed now, by their own numpy semantics."""

from __future__ import annotations

import warnings

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ops.registry import op_def
from aotgen.passes.base import Pass
from aotgen.passes.rewrite import Rewriter, is_plain_node

GROWTH_LIMIT_BYTES = 16 * 1024
"""A folded constant may be larger than the constants that it replaces up to this size: flash is
dear."""


class FoldConstant(Pass):
    """Constants in, constants out. What expand, tile and the like would blow up stays."""

    name = "fold_constant"
    level = 2

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        for node in rw.nodes():
            if rw.alive(node):
                fold(rw, node)
        return rw.modified


def fold(rw: Rewriter, node: Node) -> str | None:
    """Replace the node's outputs by constants; else the reason why not."""
    if not node.args or not all(v.is_const for v in node.args):
        return "an input is not a constant"
    if not is_plain_node(node):
        return "quantized"
    before = sum(v.type.nbytes for v in node.args)
    after = sum(v.type.nbytes for v in node.outputs)
    # Integer weights that no integer op reads: kernels want to lay them out.
    if node.op != "dequantize" and after > max(before, GROWTH_LIMIT_BYTES):
        return f"the result ({after} bytes) is larger than its inputs ({before} bytes)"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # log(0), 1/0: the model's own business, as at run time
        arrays = op_def(node.op).numpy(node, [None if v is None else v.const for v in node.inputs])
    for old, array in zip(list(node.outputs), arrays, strict=True):
        new = array.astype(old.dtype.numpy, copy=False).reshape(old.shape)
        rw.redirect(old, Value(rw.graph.unique_name(old.name), old.type, const=new))
    return None
