"""combine_parallel_batch_matmul: batched products that share their left operand become one.

The right operands are concatenated along their columns. Where they are computed, their producers
write into the concatenation, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.passes.combine_parallel import CombineParallel, constant
from aotgen.passes.rewrite import Rewriter, merged_origin


class CombineParallelBatchMatmul(CombineParallel):
    """matmul(a, b_i) without bias, where each b_i has the batch axes of the result."""

    name = "combine_parallel_batch_matmul"

    def key(self, anchor: Node) -> Hashable | None:
        if anchor.op != "matmul" or anchor.optional(2) is not None:
            return None
        b, batch = anchor.input(1), anchor.output.shape[:-2]
        if not batch or b.shape[:-2] != batch:
            return None
        return (anchor.attrs["trans_b"], b.dtype)

    def operands(self, rw: Rewriter, place: Node, anchors: Sequence[Node]) -> list[Value | None]:
        values = [a.input(1) for a in anchors]
        axis = values[0].type.rank - (2 if place.attrs["trans_b"] else 1)
        if all(v.is_const for v in values):
            whole = np.concatenate([constant(v) for v in values], axis=axis)
            return [rw.graph.constant(whole, values[0].name)]
        origin = merged_origin(*anchors)
        name = f"{anchors[0].name}.columns"
        return [rw.insert_before(place, "concat", values, name=name, origin=origin, axis=axis)]
