"""legalize_f16: fp16 is stored, float32 is computed with.

y = op(x...)    becomes   y32 = op(x32...)   with x32 = cast(x, f32)
output y        becomes   y = cast(y32, f16)
cast(y, T)      becomes   cast(cast(y32, f16), T): a cast that the model itself has does round

No target has fp16 arithmetic yet. Inputs and outputs of the model stay fp16 in the caller's memory;
between operators nothing is rounded to fp16, as in onnxruntime's CPU provider, which surrounds
operators by casts and cancels those that meet. Constants become float32 (exact).
"""

from __future__ import annotations

import numpy as np

from aotgen.errors import InternalError
from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import DType
from aotgen.passes.base import Pass


class LegalizeF16(Pass):
    """Every op on fp16 tensors but the cast becomes the op on float32."""

    name = "legalize_f16"
    level = 0

    def run(self, graph: Graph) -> bool:
        if all(_is_legal(node) for node in graph.nodes):
            return False
        _Legalizer(graph).run()
        return True


def _is_f16(value: Value | None) -> bool:
    return value is not None and value.dtype is DType.F16


def _is_legal(node: Node) -> bool:
    """It does not touch fp16, or only converts what is in memory."""
    if not any(map(_is_f16, [*node.args, *node.outputs])):
        return True
    return node.op == "cast" and not (_is_f16(node.input(0)) and node.input(0).is_const)


class _Legalizer:
    """One rewrite of a graph's nodes, in order.

    Attributes:
        nodes: the new ones so far.
        wide: the float32 value of an fp16 one: computed in its place, or read from it.
        missing: fp16 values that nothing computes any more.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.wide: dict[Value, Value] = {}
        self.missing: set[Value] = set()

    def run(self) -> None:
        for node in self.graph.nodes:
            if not any(map(_is_f16, [*node.args, *node.outputs])):
                self.nodes.append(node)
            elif node.op == "cast":
                self._cast(node)
            else:
                self._compute(node)
        for value in self.graph.results:
            self._store(value)
        self.graph.nodes = self.nodes

    def _compute(self, node: Node) -> None:
        """The same op on float32; outputs of other types stay the values that they are."""
        inputs = [None if v is None else self._widen(v) for v in node.inputs]
        made = self.graph.make(node.op, inputs, name=node.name, origin=node.origin, **node.attrs)
        made.name = node.name
        for position, (old, new) in enumerate(zip(node.outputs, made.outputs, strict=True)):
            wanted = old.type.with_dtype(DType.F32) if _is_f16(old) else old.type
            if new.type != wanted:
                raise InternalError(f"{node!r} on float32 gives {new!r}")
            if _is_f16(old):
                self.wide[old] = new
                self.missing.add(old)
            else:
                made.outputs[position] = old
                old.producer = made
        self.nodes.append(made)

    def _cast(self, node: Node) -> None:
        """A cast of the model reads and gives what is in memory."""
        source = node.input(0)
        if source.is_const:
            node.inputs = [self._widen(source)]
        else:
            self._store(source)
        self.nodes.append(node)

    def _widen(self, value: Value) -> Value:
        """``value`` as float32, where it is fp16."""
        if not _is_f16(value):
            return value
        if value not in self.wide:
            name = f"{value.name}.f32"
            if value.const is not None:
                self.wide[value] = self.graph.constant(value.const.astype(np.float32), name)
            else:
                made = self.graph.make("cast", [value], name=name, dtype=DType.F32)
                self.nodes.append(made)
                self.wide[value] = made.output
        return self.wide[value]

    def _store(self, value: Value) -> None:
        """Compute an fp16 value, of which there is only a float32 one, in memory."""
        if value not in self.missing:
            return
        self.missing.remove(value)
        name = self.graph.unique_name(f"{value.name}.f16")
        node = Node("cast", [self.wide[value]], [value], {"dtype": DType.F16}, name)
        value.producer = node
        self.nodes.append(node)
