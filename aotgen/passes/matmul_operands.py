"""Transposes in front of a matmul go into ``trans_b`` or the order of a constant operand (exact).

Steps of ``sink_transposes``.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node
from aotgen.passes import layout
from aotgen.passes.rewrite import Rewriter, is_plain_node


def use_trans_b(rw: Rewriter, node: Node) -> bool:
    """A constant b is stored [.., K, N]; another b's transposed last axis becomes ``trans_b``."""
    b = node.input(1)
    if b.const is not None:
        if not node.attrs["trans_b"]:
            return False
        stored = np.ascontiguousarray(np.swapaxes(b.const, -1, -2))
        inputs = [node.input(0), rw.graph.constant(stored, b.name), *node.inputs[2:]]
        rw.replace(node, "matmul", inputs, {**node.attrs, "trans_b": False})
        return True
    inner = b.producer
    if inner is None or inner.op != "transpose" or not is_plain_node(inner):
        return False
    perm = inner.attrs["perm"]
    rank = len(perm)
    if perm[-2] != rank - 1:
        return False
    # The innermost axis of the source stays innermost: what is left of it is a strided view.
    rest = (*perm[:-2], perm[-1], perm[-2])
    source = inner.input(0)
    if not layout.is_identity(rest):
        source = rw.insert_before(node, "transpose", [source], origin=inner.origin, perm=rest)
    attrs = {**node.attrs, "trans_b": not node.attrs["trans_b"]}
    rw.replace(
        node,
        "matmul",
        [node.input(0), source, *node.inputs[2:]],
        attrs,
        absorbed=[inner],
        name=node.name,
    )
    return True


def fold_flatten(rw: Rewriter, node: Node) -> bool:
    """matmul(reshape(transpose(x)), W) with axes flattened into K: the rows of the constant W are
    permuted."""
    flat, b = node.input(0).producer, node.input(1)
    if flat is None or flat.op != "reshape" or b.const is None or b.type.rank != 2:
        return False
    inner = flat.input(0).producer
    if (
        inner is None
        or inner.op != "transpose"
        or not is_plain_node(inner)
        or node.attrs["trans_b"]
    ):
        return False
    x, perm = inner.input(0), inner.attrs["perm"]
    lead = flat.output.type.rank - 1
    shape = inner.output.shape
    if perm[:lead] != tuple(range(lead)) or shape[:lead] != flat.output.shape[:lead]:
        return False
    if layout.moves_only_units(x.shape, perm):
        return False
    columns = b.shape[1]
    cube = b.const.reshape(*shape[lead:], columns)
    back = [axis - lead for axis in layout.inverse(perm)[lead:]]
    rows = np.ascontiguousarray(cube.transpose(*back, len(back))).reshape(b.shape)
    source = rw.insert_before(
        node, "reshape", [x], name=flat.name, origin=flat.origin, shape=flat.attrs["shape"]
    )
    weights = rw.graph.constant(rows, b.name)
    rw.replace(node, "matmul", [source, weights, *node.inputs[2:]], node.attrs)
    return True
