"""What all readers share: emitting canonical ops, folding what is known while reading, refusing.

A converter emits ops for one operator of the file. An op whose inputs are all constants is computed
at once when its result is small; of larger ones ``evaluate`` finds the elements when an operator
must know them (the fold_constant pass does the rest). Both use the canonical op's own numpy
semantics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array
from aotgen.ops.registry import op_def

MAX_TENSOR_BYTES = (1 << 31) - 1
"""The largest tensor that is read or computed: generated C counts bytes of a tensor in int32_t."""

MAX_EVALUATED_BYTES = 1 << 28
"""The largest value that is computed while reading, because an operator must know its elements."""

FOLD_BYTES = 1 << 16
"""A constant result up to this size is computed while reading; larger ones stay nodes until
somebody asks.
"""


class Refused(Exception):
    """A converter's answer when the operator cannot be expressed; becomes a Problem.

    Attributes:
        reason: what is not supported about it.
        remedy: what the user can do, or "".
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


def one_line(error: BaseException) -> str:
    """The gist of a library's error: its first line that says something, whitespace collapsed."""
    for line in str(error).splitlines():
        text = " ".join(line.split())
        if text:
            return text[:300]
    return type(error).__name__


class Emitter:
    """Adds canonical nodes to a graph under construction.

    Attributes:
        graph: what is being built.
        fold_always: ops that are computed from constants up to MAX_EVALUATED_BYTES, not FOLD_BYTES.
        fold_never: ops that stay nodes also over constants.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        fold_always: Collection[str] = ("reshape",),
        fold_never: Collection[str] = (),
    ) -> None:
        self.graph = graph
        self.fold_always = frozenset(fold_always)
        self.fold_never = frozenset(fold_never)
        self._known: dict[Value, Array | None] = {}
        self._permuted: dict[tuple[Value, tuple[int, ...]], Value] = {}

    def permuted(self, value: Value, perm: tuple[int, ...]) -> Value:
        """A constant, permuted and contiguous; the same Value for the same request."""
        key = (value, perm)
        if key not in self._permuted:
            assert value.const is not None
            array = np.ascontiguousarray(value.const.transpose(perm))
            self._permuted[key] = self.graph.constant(array, f"{value.name}.t")
        return self._permuted[key]

    def emit(
        self, op: str, inputs: Sequence[Value | None], owner: str, attrs: Mapping[str, Any]
    ) -> list[Value]:
        """A canonical node, or its folded results.

        Args:
            op: name in the op registry.
            inputs: None for one that is absent.
            owner: label of the file's operator that asks.
            attrs: of the node.

        Raises:
            Refused: the result is larger than MAX_TENSOR_BYTES.
            ModelError: the op's type rule refuses the inputs.
        """
        if op == "concat":
            inputs = [v for v in inputs if v is None or v.type.numel] or inputs[:1]
        node = self.graph.make(op, inputs, name=f"{owner}.{op}", origin=(owner,), **attrs)
        nbytes = sum(v.type.nbytes for v in node.outputs)
        if nbytes > MAX_TENSOR_BYTES:
            raise Refused(
                f"its result ({node.output.type}) has more than {MAX_TENSOR_BYTES} bytes",
                "bind smaller input shapes",
            )
        if nbytes == 0:  # nothing to compute, whatever the inputs
            return [
                self.graph.constant(np.empty(v.shape, v.dtype.numpy), v.name.removesuffix(".out"))
                for v in node.outputs
            ]
        limit = MAX_EVALUATED_BYTES if op in self.fold_always else FOLD_BYTES
        # A reshaped constant is a view: no size is too large.
        fits = op == "reshape" or nbytes <= limit
        if fits and op not in self.fold_never and all(v.is_const for v in node.args):
            return [
                self.graph.constant(array, v.name.removesuffix(".out"))
                for v, array in zip(node.outputs, self._compute(node), strict=True)
            ]
        self.graph.nodes.append(node)
        return node.outputs

    def evaluate(self, value: Value) -> Array | None:
        """The values of ``value`` if they follow from constants alone, else None. Remembered.

        Raises:
            Refused: an intermediate result is larger than MAX_EVALUATED_BYTES.
        """
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self._known:
                stack.pop()
            elif top.const is not None or top.producer is None:
                self._known[top] = top.const
            else:
                node = top.producer
                missing = [v for v in node.args if v not in self._known]
                if missing:
                    stack += missing
                else:
                    self._evaluate_node(node)
        return self._known[value]

    def _evaluate_node(self, node: Node) -> None:
        if any(self._known[v] is None for v in node.args):
            self._known.update({v: None for v in node.outputs})
            return
        nbytes = sum(v.type.nbytes for v in node.outputs)
        if nbytes > MAX_EVALUATED_BYTES:
            raise Refused(
                f"it needs the elements of a constant of {nbytes} bytes, computed by node "
                f"{node.origin[0]!r}; the limit is {MAX_EVALUATED_BYTES}",
                "bind smaller input shapes",
            )
        for value, array in zip(node.outputs, self._compute(node), strict=True):
            self._known[value] = array

    def _compute(self, node: Node) -> list[Array]:
        arrays = [
            None if v is None else (v.const if v.const is not None else self._known[v])
            for v in node.inputs
        ]
        with np.errstate(all="ignore"):
            results = op_def(node.op).numpy(node, arrays)
        return [
            np.asarray(array, v.dtype.numpy).reshape(v.shape)
            for v, array in zip(node.outputs, results, strict=True)
        ]


def drop_unused(graph: Graph) -> None:
    """Remove the nodes that folding has left without a reader."""
    needed = {id(v) for v in graph.results}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(id(v) in needed for v in node.outputs):
            kept.append(node)
            needed.update(id(v) for v in node.args)
    graph.nodes = kept[::-1]


def name_outputs(graph: Graph) -> None:
    """A value that an operator only passed on takes the graph output's name."""
    names = set(graph.output_names)
    sources = {id(v) for v in graph.sources}
    taken = {v.name for v in graph.values()}
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        if value.name not in names and id(value) not in sources and name not in taken:
            value.name = name
            taken.add(name)
