"""combine_parallel_dense: products of one matrix with several constant ones become one wider one.

Query, key and value of self-attention, the gates of a recurrent cell.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.ir.types import Array
from aotgen.passes.combine_parallel import CombineParallel, constant, is_constant, joined_bias
from aotgen.passes.rewrite import Rewriter


class CombineParallelDense(CombineParallel):
    """matmul(a, B_i) with constant matrices B_i."""

    name = "combine_parallel_dense"

    def key(self, anchor: Node) -> Hashable | None:
        if anchor.op != "matmul" or anchor.input(1).type.rank != 2:
            return None
        if not anchor.input(1).is_const or not is_constant(anchor.optional(2)):
            return None
        return anchor.input(1).dtype

    def operands(self, rw: Rewriter, place: Node, anchors: Sequence[Node]) -> list[Value | None]:
        matrices = [_plain(a) for a in anchors]
        b = rw.graph.constant(np.concatenate(matrices, axis=1), anchors[0].input(1).name)
        return [b, joined_bias(rw.graph, anchors, 2, [m.shape[1] for m in matrices])]

    def attributes(self, anchor: Node) -> dict[str, Any]:
        return {**anchor.attrs, "trans_b": False}


def _plain(anchor: Node) -> Array:
    """The constant matrix as [K, N]."""
    b = constant(anchor.input(1))
    return b.T if anchor.attrs["trans_b"] else b
