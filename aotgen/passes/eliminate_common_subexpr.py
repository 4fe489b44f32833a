"""eliminate_common_subexpr: equal nodes with equal inputs are computed once; equal constants are
stored once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from aotgen.ir.graph import Graph, Node, Value
from aotgen.passes.base import Pass
from aotgen.passes.rewrite import Rewriter, merged_origin, type_of


class EliminateCommonSubexpr(Pass):
    """The first of several equal nodes stays and takes over the origins of the others."""

    name = "eliminate_common_subexpr"
    level = 3

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        _share_constants(rw)
        seen: dict[Hashable, int] = {}
        kept: list[Node] = []
        for node in rw.nodes():
            inputs = tuple(None if v is None else id(v) for v in node.inputs)
            attrs = tuple(sorted(node.attrs.items()))
            key = (node.op, inputs, attrs, tuple(type_of(node)))
            index = seen.setdefault(key, len(kept))
            if index == len(kept):
                kept.append(node)
                continue
            first = kept[index]
            first.origin = merged_origin(first, node)
            for old, new in zip(list(node.outputs), first.outputs, strict=True):
                rw.redirect(old, new)
        return rw.modified


def _share_constants(rw: Rewriter) -> None:
    seen: dict[Hashable, list[Value]] = {}
    for value in list(rw.graph.constants()):
        array = value.const
        assert array is not None
        flat = array.reshape(-1)
        probe = np.concatenate([flat[:16], flat[-16:]]).tobytes()
        twins = seen.setdefault((value.type, probe), [])
        # Bytes are compared, not numbers: -0.0 is not 0.0, and a NaN equals itself.
        data = array.tobytes() if twins else b""
        for twin in twins:
            if twin.const is not None and twin.const.tobytes() == data:
                rw.redirect(value, twin)
                break
        else:
            twins.append(value)
