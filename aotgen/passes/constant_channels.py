"""constant_channels: channels of quantized activations that nothing depends on are removed.

Interval arithmetic (``intervals``) proves which channels can only take one value: their bias is at
the clamp, their scale is next to nothing, or what they are computed from is constant. A sum of
products that reads such a channel has its share in the bias instead. Then a channel is needed only
if it is an output of the graph, if an op reads it that does not compute channel by channel, or if
a needed sum of products reads it with a weight that is not 0: liveness, backward, to the least
fixed point. What is not needed is not computed, from its producer's weights on.

    y = conv(x, w) + b    x[c] = v is proven:    b + sum over taps of w[c] (v - zero), w without c

With pads a tap that sees both x[c] and pads can be in the bias only if v is what pads hold, the
zero point. The results are the same, bit by bit, in every kind of requantization: sums of integers
have no order, and what wraps around wraps around alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aotgen.errors import InternalError
from aotgen.ir import requant as requant_rules
from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array, Requant, TensorType
from aotgen.ops.registry import op_def
from aotgen.passes.base import Pass
from aotgen.passes.channel_links import (
    MOST_CHANNELS,
    Indices,
    Links,
    Mask,
    channels,
    links,
    without_channels,
)
from aotgen.passes.integer_product import (
    IntegerProduct,
    Ints,
    integer_product,
    wrapped,
)
from aotgen.passes.intervals import Intervals

MULTIPLE = 8
"""Counts of channels stay multiples of this, or what they were: a tail of 4 costs kernels of x86
more than 4 channels fewer gain on NEON and Cortex-M.
"""

FLASH_MULTIPLE = 4
"""The same where flash matters most: weights of microcontrollers' kernels are packed by fours, so
that with fewer channels there are more kinds of kernels, and no fewer bytes.
"""


class ConstantChannels(Pass):
    """Fold constant channels into biases; remove those that nothing needs."""

    name = "constant_channels"
    level = 3

    def __init__(self, multiple: int = MULTIPLE) -> None:
        """``multiple`` is what counts of channels stay multiples of, or what they were."""
        self.multiple = multiple

    def run(self, graph: Graph) -> bool:
        if not any(node.op in ("qconv", "qmatmul") for node in graph.nodes):
            return False
        intervals = Intervals(graph)
        classes = _Classes(graph)
        needed = _needed(graph, classes, intervals)
        kept = _padded(graph, classes, needed, self.multiple)
        if kept[classes.used].all():
            return False
        _Removal(graph, classes, intervals, needed, kept).run()
        return True


class _Classes:
    """Channels that can only be removed together, as a partition of all channels of a graph.

    Attributes:
        links: of each node that computes channel by channel.
        products: the nodes that are sums over the channels of their first input.
        count: of classes' labels; a class is labelled by its first channel.
        used: the labels of the classes.
        fixed: by label, whether the class has a channel that must stay as it is.
    """

    def __init__(self, graph: Graph) -> None:
        self.links: dict[Node, Links] = {}
        self.products: list[Node] = []
        self._first: dict[Value, int] = {}
        self.count = 0
        for node in graph.nodes:
            found = links(node)
            if found is not None:
                self.links[node] = found
            elif _is_product(node):
                self.products.append(node)
        for value in graph.values():
            if not value.is_const and channels(value) <= MOST_CHANNELS:
                self._first[value] = self.count
                self.count += channels(value)
        self._labels = np.arange(self.count)
        self._join(graph.nodes)
        self.used = np.flatnonzero(self._labels == np.arange(self.count))
        self.fixed = np.zeros(self.count, np.bool_)
        for value in self._whole(graph):
            self.fixed[self.of(value)] = True

    def of(self, value: Value) -> Indices:
        """The labels of an activation's channels; none where it has too many."""
        first = self._first.get(value, 0)
        return self._labels[first : first + (channels(value) if value in self._first else 0)]

    def mask(self, value: Value, flags: Mask) -> Mask:
        """``flags``, which are by label, by channel."""
        return flags[self.of(value)] if value in self._first else np.ones(channels(value), np.bool_)

    def _join(self, nodes: Sequence[Node]) -> None:
        """Label each class by its lowest channel; labels run along the nodes and back."""
        pairs: list[tuple[Indices, Indices]] = []
        for node in nodes:
            for link in self.links[node].pairs if node in self.links else ():
                x, y = node.inputs[link.source], node.outputs[link.target]
                if x is not None and not x.is_const:
                    pairs.append((link.inputs + self._first[x], link.outputs + self._first[y]))
        labels = self._labels
        while True:
            before = labels.copy()
            for a, b in [*pairs, *reversed(pairs)]:
                least = np.minimum(labels[a], labels[b])
                np.minimum.at(labels, a, least)
                np.minimum.at(labels, b, least)
            if np.array_equal(labels, before):
                return

    def _whole(self, graph: Graph) -> Iterable[Value]:
        """Activations that must keep all their channels."""
        yield from (v for v in (*graph.sources, *graph.results) if not v.is_const)
        products = set(self.products)
        for node in graph.nodes:
            if node in self.links:
                inputs: list[Value | None] = [node.inputs[i] for i in self.links[node].whole]
            elif node in products:
                inputs = node.inputs[1:]
            else:
                inputs = node.inputs
                yield from node.outputs
            yield from (v for v in inputs if v is not None and not v.is_const)


def _is_product(node: Node) -> bool:
    """A qconv of one group or a qmatmul whose operands but the first are constants."""
    if node.op == "qconv" and int(node.attrs["groups"]) != 1:
        return False
    if node.op not in ("qconv", "qmatmul") or node.input(0).is_const:
        return False
    values = (node.input(0), node.output)
    quantized = [v.type.quant for v in values if v.type.quant is not None]
    if any(q.axis is not None for q in quantized) or not all(v.type.is_static for v in values):
        return False
    if max(map(channels, values)) > MOST_CHANNELS:
        return False
    return integer_product(node) is not None


def _reads(node: Node, intervals: Intervals) -> Mask:
    """[O, C]: whether output o of a product depends on channel c of its input."""
    product = _product(node)
    x = intervals.of(node.input(0))
    reads = product.weights[0] != 0  # [O, taps, C]
    if x is not None:
        known, _ = product.known_inputs(x.lo, x.hi)
        reads &= ~known
    found: Mask = reads.any(axis=1)
    found[intervals.constant(node.output)] = False
    return found


def _product(node: Node) -> IntegerProduct:
    product = integer_product(node)
    if product is None:
        raise InternalError(f"{node!r} is no sum of products")
    return product


def _needed(graph: Graph, classes: _Classes, intervals: Intervals) -> Mask:
    """By label, whether a class is needed."""
    needed = classes.fixed.copy()
    reads = [(node, _reads(node, intervals)) for node in reversed(classes.products)]
    done: dict[Node, int] = {}
    changed = True
    while changed:
        changed = False
        for node, matrix in reads:
            rows = needed[classes.of(node.output)]
            count = int(rows.sum())
            if done.get(node) == count:
                continue
            done[node] = count
            labels = classes.of(node.input(0))[matrix[rows].any(axis=0)]
            changed = changed or not needed[labels].all()
            needed[labels] = True
    return needed


def _padded(graph: Graph, classes: _Classes, needed: Mask, multiple: int) -> Mask:
    """By label, whether a class is kept: the needed ones, and so many others that counts of
    channels are multiples of ``multiple`` where something is removed at all.
    """
    kept = needed.copy()
    changed = True
    while changed:
        changed = False
        for node in graph.nodes:
            for value in node.outputs:
                changed = _pad_value(classes.of(value), kept, multiple) or changed
    return kept


def _pad_value(labels: Indices, kept: Mask, multiple: int) -> bool:
    """Keep more classes of a value, the first ones, until the count of its channels is fine."""
    mask = kept[labels]
    count, changed = int(mask.sum()), False
    while (count == 0 or count % multiple) and count < len(labels):
        kept[labels[int(np.argmin(mask))]] = changed = True
        mask = kept[labels]
        count = int(mask.sum())
    return changed


class _Removal:
    """Edits a graph so that its values have only the channels that are kept."""

    def __init__(
        self, graph: Graph, classes: _Classes, intervals: Intervals, needed: Mask, kept: Mask
    ) -> None:
        self.graph = graph
        self.links = classes.links
        self.products = set(classes.products)
        self.intervals = intervals
        values = [v for v in graph.values() if not v.is_const]
        self.kept: dict[Value, Mask] = {v: classes.mask(v, kept) for v in values}
        self.needed: dict[Value, Mask] = {v: classes.mask(v, needed) for v in values}

    def run(self) -> None:
        """All decisions are made on the graph as it was, then types change."""
        changed = [node for node in self.graph.nodes if self._is_touched(node)]
        edits = [(node, *self._edited(node)) for node in changed]
        for node, inputs, attrs in edits:
            node.inputs, node.attrs = inputs, attrs
            for value, found in zip(node.outputs, op_def(node.op).infer(node), strict=True):
                if found.max_shape != (*value.shape[:-1], int(self.kept[value].sum())):
                    raise InternalError(f"without channels {node!r} has the type {found}")
                value.type = found

    def _is_touched(self, node: Node) -> bool:
        """Sums must not read what makes up the number of their inputs: it may have lost inputs of
        its own, and is any number."""
        summing = node in self.products or (node.op == "qconv" and node in self.links)
        flags = self.needed if summing else self.kept
        return not all(flags[v].all() for v in (*node.args, *node.outputs) if not v.is_const)

    def _edited(self, node: Node) -> tuple[list[Value | None], dict[str, Any]]:
        """The node's inputs and attributes without the channels that are not kept."""
        if node in self.products:
            return self._product(node)
        if node.op == "qconv":
            return self._grouped(node)
        inputs = list(node.inputs)
        for link in self.links[node].pairs:
            value, mask = node.inputs[link.source], self.kept[node.outputs[link.target]]
            if value is not None and value.is_const:
                inputs[link.source] = self._sliced(value, -1, np.flatnonzero(mask[link.outputs]))
        if node.op == "concat":
            inputs = [v for v in inputs if v is not None and v.type.numel]
        return inputs, without_channels(node, self.kept)

    def _sliced(self, value: Value, axis: int, index: Indices) -> Value:
        """A constant with the elements ``index`` of an axis."""
        array = value.const
        assert array is not None
        if len(index) == array.shape[axis]:
            return value
        axis %= array.ndim
        return self._constant(value, np.take(array, index, axis), axis, index)

    def _constant(self, like: Value, array: Array, axis: int, index: Indices) -> Value:
        """A constant in place of ``like``, of which ``index`` of an axis is left."""
        kind, quant = like.type, like.type.quant
        if quant is not None and quant.axis == axis:
            scale, zero = (tuple(v[i] for i in index) for v in (quant.scale, quant.zero_point))
            quant = replace(quant, scale=scale, zero_point=zero)
        type = TensorType(kind.dtype, tuple(array.shape), quant)
        return self.graph.constant(np.ascontiguousarray(array), like.name, type)

    def _product(self, node: Node) -> tuple[list[Value | None], dict[str, Any]]:
        """A sum over channels: what is known of those that nothing needs goes into the bias."""
        product, x = _product(node), self.intervals.of(node.input(0))
        rows, columns = self._rows(node.output), np.flatnonzero(self.kept[node.input(0)])
        weights, bias = product.weights[0][rows.source], product.bias[rows.source]
        out = ~self.needed[node.input(0)]
        if x is not None:
            _, value = product.known_inputs(x.lo, x.hi)
            share = weights[:, :, out].astype(np.int64) * value[:, out]
            bias = bias + share.sum(axis=(1, 2))
        weights[:, :, out] = 0
        fixed = self.intervals.constant(node.output)[rows.source]
        if fixed.any():
            weights[fixed] = 0
            bias[fixed] = self._least_sums(node)[rows.source][fixed]
        weights[rows.idle], bias[rows.idle] = 0, 0
        return self._with_constants(node, product, rows, weights[:, :, columns], bias)

    def _grouped(self, node: Node) -> tuple[list[Value | None], dict[str, Any]]:
        """A convolution that loses groups."""
        product, rows = _product(node), self._rows(node.output)
        weights = product.weights.reshape(-1, *product.weights.shape[2:])[rows.source]
        bias = product.bias[rows.source]
        weights[rows.idle], bias[rows.idle] = 0, 0
        inputs, attrs = self._with_constants(node, product, rows, weights, bias)
        return inputs, {**attrs, "groups": without_channels(node, self.kept)["groups"]}

    def _rows(self, y: Value) -> _Rows:
        return _Rows(self.kept[y], self.needed[y])

    def _with_constants(
        self, node: Node, product: IntegerProduct, rows: _Rows, weights: Any, bias: Ints
    ) -> tuple[list[Value | None], dict[str, Any]]:
        """Inputs and attributes with these weights [rows, taps, channels] and this bias."""
        w, old, attrs = node.input(1), node.optional(2), dict(node.attrs)
        zeros = product.weight_zero[rows.source]
        array = (weights + zeros[:, None, None]).astype(w.dtype.numpy)
        if node.op == "qmatmul":
            array = array[:, 0] if attrs["trans_b"] else array[:, 0].T
            axis = 0 if attrs["trans_b"] else 1
        else:
            array, axis = array.reshape(len(array), *w.shape[1:-1], array.shape[-1]), 0
        inputs = [*node.inputs, *[None] * (5 - len(node.inputs))]
        inputs[1] = self._constant(w, array, axis, rows.source)
        sums = wrapped(bias, node)
        if old is not None:
            inputs[2] = self._constant(old, sums, 0, rows.source)
        elif sums.any():
            inputs[2] = self.graph.constant(sums, f"{node.name}.bias")
        zero = node.optional(4)
        if zero is not None and zero.type.numel > 1:
            inputs[4] = self._constant(zero, zeros.astype(zero.dtype.numpy), 0, rows.source)
        attrs["requant"] = rows.requant(attrs["requant"])
        while inputs[-1] is None:
            inputs.pop()
        return inputs, attrs

    def _least_sums(self, node: Node) -> Ints:
        """For each constant output of a product the sum next to 0 that gives this constant; kernels
        may prove more of small ones.
        """
        want, found = self.intervals.of(node.output), self.intervals.sums(node)
        requant: Requant | None = node.attrs["requant"]
        if want is None or found is None:
            raise InternalError(f"{node!r} has constant outputs of sums that are not known")
        if requant is None:
            return found[0]
        lo, hi = found

        def gives(sums: Ints) -> Mask:
            acc = wrapped(sums, node)[None]
            return np.asarray(requant_rules.apply(requant, acc, 1, node.output.dtype)[0] == want.lo)

        good, bad = np.where(hi < 0, hi, np.maximum(lo, 0)), np.zeros(len(lo), np.int64)
        good = np.where(gives(bad), bad, good)
        # The sums that give one value are neighbours, so that between a good and a bad one there is
        # one place where they change.
        while (np.abs(good - bad) > 1).any():
            middle = bad + (good - bad) // 2
            fine = gives(middle)
            good, bad = np.where(fine, middle, good), np.where(fine, bad, middle)
        return good


class _Rows:
    """The outputs of a product that are left.

    Attributes:
        source: which ones they were.
        idle: by output that is left, whether nothing needs it: it makes up the number.
    """

    def __init__(self, kept: Mask, needed: Mask) -> None:
        self.source: Indices = np.flatnonzero(kept)
        self.idle: Mask = ~needed[self.source]

    def requant(self, rule: Requant | None) -> Requant | None:
        """``rule`` for these outputs; idle ones have parameters of one that is not."""
        if rule is None:
            return None
        used = np.flatnonzero(~self.idle)
        index = self.source.copy()
        if len(used):
            index[self.idle] = self.source[used[0]]

        def chosen(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in index) if len(values) > 1 else values

        return replace(
            rule,
            multiplier=chosen(rule.multiplier),
            shift=chosen(rule.shift),
            scale=chosen(rule.scale),
        )
