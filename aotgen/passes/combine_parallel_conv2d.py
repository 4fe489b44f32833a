"""combine_parallel_conv2d: convolutions of one input with equal windows become one wider one.

The heads of an inception block or of a detector: their outputs are slices of its channels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.passes.combine_parallel import CombineParallel, constant, is_constant, joined_bias
from aotgen.passes.rewrite import Rewriter


class CombineParallelConv2d(CombineParallel):
    """Ungrouped convolutions with constant weights, of any number of spatial axes."""

    name = "combine_parallel_conv2d"

    def key(self, anchor: Node) -> Hashable | None:
        if anchor.op != "conv" or anchor.attrs["groups"] != 1:
            return None
        if not anchor.input(1).is_const or not is_constant(anchor.optional(2)):
            return None
        window = tuple(tuple(anchor.attrs[key]) for key in ("strides", "pads", "dilations"))
        return (anchor.input(1).shape[1:], window, anchor.input(1).dtype)

    def operands(self, rw: Rewriter, place: Node, anchors: Sequence[Node]) -> list[Value | None]:
        weights = np.concatenate([constant(a.input(1)) for a in anchors])
        extents = [a.input(1).shape[0] for a in anchors]
        name = anchors[0].input(1).name
        return [rw.graph.constant(weights, name), joined_bias(rw.graph, anchors, 2, extents)]
