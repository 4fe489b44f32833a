"""Interval arithmetic over a quantized graph: what values each channel of an activation can take.

A forward analysis (Cousot and Cousot, "Abstract Interpretation", POPL 1977, with intervals as the
domain; Moore, "Interval Analysis", 1966). The channels of a value are the indices of its last axis;
an ``Interval`` has the bounds of each. Bounds are computed by the ops' own numpy semantics at the
ends of their inputs' intervals, and only where that is proven:

- sums of products: exactly, by the sign of each weight; then the requantization, which never
  decreases (or never increases) as long as no intermediate result wraps around, which is checked;
- ops of one or two 8-bit elements: for all 256 or 65536 inputs, monotonicity included;
- float32 ops that are monotone in each operand, as IEEE 754's rounded ones are, on finite bounds;
- pools, means and movements of elements by what they are.

Everything else may take any value of its type. Nothing is known of a float that may be infinite or
NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aotgen.ir import requant as requant_rules
from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array, DType, Requant
from aotgen.ops.registry import OpPattern, op_def
from aotgen.passes.channel_links import MOST_CHANNELS, Links, channels, links
from aotgen.passes.integer_product import Ints, integer_product
from aotgen.passes.layout import broadcasts
from aotgen.te.compute import int_range

_BYTES = (DType.I8, DType.U8)
_BOUNDED = (*_BYTES, DType.I16, DType.U16, DType.I32)
"""Integers whose range is of use where nothing else is known."""

_I32_MAX = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class Interval:
    """Lowest and highest element of each channel [C], both attained or not; int64 of integers,
    float32 of floats, which are finite."""

    lo: Array
    hi: Array

    @property
    def constant(self) -> Any:
        """By channel, whether it can take one value only."""
        return self.lo == self.hi


class Intervals:
    """The intervals of a graph's values.

    Args:
        graph: in execution order; dimensions may be symbolic, of which nothing is known then.
    """

    def __init__(self, graph: Graph) -> None:
        self._known: dict[Value, Interval] = {}
        self._sums: dict[Node, tuple[Ints, Ints]] = {}
        for node in graph.nodes:
            self._visit(node)

    def of(self, value: Value) -> Interval | None:
        """The interval of ``value``; None where nothing is known or it has no fixed channels."""
        if value not in self._known:
            found = _of_constant(value) if value.is_const else _of_type(value)
            if found is None:
                return None
            self._known[value] = found
        return self._known[value]

    def sums(self, node: Node) -> tuple[Ints, Ints] | None:
        """Bounds of the sums of a qconv or qmatmul, by output; None where nothing is known, as of
        sums that may wrap around."""
        return self._sums.get(node)

    def constant(self, value: Value) -> Any:
        """By channel of ``value``, whether it is proven to take one value only."""
        found = self.of(value)
        return np.zeros(channels(value), np.bool_) if found is None else found.constant

    def _visit(self, node: Node) -> None:
        if not all(v.type.is_static for v in (*node.args, *node.outputs)):
            return
        if node.op in ("qconv", "qmatmul"):
            found = [self._product(node, self.of(node.input(0)))]
        else:
            rule = _RULES.get(node.op) or (_element_wise if broadcasts(node) else None)
            if rule is None:
                return
            found = rule(node, [None if v is None else self.of(v) for v in node.inputs])
        for value, interval in zip(node.outputs, found, strict=False):
            if interval is not None:
                self._known[value] = interval

    def _product(self, node: Node, x: Interval | None) -> Interval | None:
        found = None if x is None else _sums(node, x)
        if found is None:
            return None
        self._sums[node] = found
        return _requantized(node.attrs["requant"], *found, node.output)


def _of_constant(value: Value) -> Interval | None:
    array = value.const
    if array is None or array.size == 0 or array.dtype.kind not in "iuf":
        return None
    if array.dtype.kind == "f" and not (array.dtype == np.float32 and np.isfinite(array).all()):
        return None
    rows = array.reshape(-1, channels(value))
    wide = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.int64)
    return Interval(rows.min(axis=0).astype(wide), rows.max(axis=0).astype(wide))


def _of_type(value: Value) -> Interval | None:
    """The whole range of an integer type."""
    if value.dtype not in _BOUNDED or not value.type.is_static or channels(value) > MOST_CHANNELS:
        return None
    (lo, hi), n = int_range(value.dtype), channels(value)
    return Interval(np.full(n, lo, np.int64), np.full(n, hi, np.int64))


def _sums(node: Node, x: Interval) -> tuple[Ints, Ints] | None:
    """See ``Intervals.sums``."""
    product = integer_product(node)
    if product is None or product.x_zero is None:
        return None
    lo, hi = product.range(x.lo, x.hi)
    requant: Requant | None = node.attrs["requant"]
    most = (1 << 46) if requant is not None and requant.wide else _I32_MAX
    return (lo, hi) if int(max(-lo.min(), hi.max())) <= most else None


def _requantized(requant: Requant | None, lo: Ints, hi: Ints, y: Value) -> Interval:
    """The outputs for sums between ``lo`` and ``hi``, by channel of ``y``."""
    if requant is None:
        return Interval(lo, hi)
    size = np.maximum(np.abs(lo), np.abs(hi)).astype(np.float64)
    safe = np.ones(len(lo), np.bool_)
    if requant.kind in ("tflm", "litert"):
        # What is multiplied by at most 2^shift, before or after rounding, is an int32.
        shift = np.asarray(requant.shift, np.float64)
        safe = size * np.exp2(shift if requant.wide else np.maximum(shift, 0)) < _I32_MAX
    acc = np.stack([lo, hi])
    narrow = acc if requant.wide else acc.astype(np.int32)
    ends = requant_rules.apply(requant, narrow, 1, y.dtype).astype(np.int64)
    least, most = ends.min(axis=0), ends.max(axis=0)
    return Interval(np.where(safe, least, requant.lo), np.where(safe, most, requant.hi))


def _element_wise(node: Node, inputs: Sequence[Interval | None]) -> list[Interval | None]:
    known = [x for x in inputs if x is not None]
    if len(known) != len(node.inputs) or links(node) is None or len(node.outputs) != 1:
        return []
    dtypes = {v.dtype for v in node.args}
    if dtypes <= set(_BYTES) and len(known) == 1:
        return [_of_table(node, known[0])]
    if dtypes <= set(_BYTES) and len(known) == 2:
        return [_of_pairs(node, known[0], known[1])]
    if node.op in _MONOTONE and all(d is DType.F32 for d in dtypes):
        return [_at_corners(node, known)]
    if node.op == "dequantize":
        return [_at_corners(node, known)]
    return []


def _evaluated(node: Node, arrays: list[Array]) -> Array | None:
    """The results as int64 or float32; None where one is not finite or of another kind."""
    with np.errstate(all="ignore"):
        found = op_def(node.op).numpy(node, list(arrays))[0]
    if found.dtype.kind in "iu":
        return found.astype(np.int64)
    return found if found.dtype == np.float32 and np.isfinite(found).all() else None


def _range_of(dtype: DType) -> Array:
    lo, hi = int_range(dtype)
    return np.arange(lo, hi + 1).astype(dtype.numpy)


def _of_table(node: Node, x: Interval) -> Interval | None:
    """A function of one byte: its extremes between the bounds."""
    if op_def(node.op).pattern is not OpPattern.ELEMENTWISE:
        return None
    places = _range_of(node.input(0).dtype)
    results = _evaluated(node, [places])
    if results is None:
        return None
    lo, hi = np.empty((2, len(x.lo)), results.dtype)
    bounds: dict[tuple[int, int], tuple[Any, Any]] = {}
    for c, ends in enumerate(zip(x.lo.tolist(), x.hi.tolist(), strict=True)):
        if ends not in bounds:
            part = results[ends[0] - int(places[0]) : ends[1] - int(places[0]) + 1]
            bounds[ends] = part.min(), part.max()
        lo[c], hi[c] = bounds[ends]
    return Interval(lo, hi)


def _of_pairs(node: Node, a: Interval, b: Interval) -> Interval | None:
    """A function of two bytes that is monotone in each, whatever the other one is."""
    places = [_range_of(node.input(i).dtype) for i in range(2)]
    results = _evaluated(node, [places[0][:, None], places[1][None, :]])
    if results is None or results.shape != (256, 256):
        return None
    for axis in range(2):
        steps = np.diff(results, axis=axis)
        if not np.all((steps >= 0).all(axis=axis) | (steps <= 0).all(axis=axis)):
            return None
    corners = [
        results[x - int(places[0][0]), y - int(places[1][0])]
        for x in (a.lo, a.hi)
        for y in (b.lo, b.hi)
    ]
    return Interval(np.min(corners, axis=0), np.max(corners, axis=0))


_MONOTONE = frozenset(
    {"add", "sub", "mul", "maximum", "minimum", "relu", "clip", "neg", "quantize"}
)
"""Float32 ops that are monotone in each operand while the others stay: their extremes over a box of
operands are at its corners, also after rounding.
"""


def _at_corners(node: Node, inputs: Sequence[Interval]) -> Interval | None:
    corners: list[Array] = []
    for choice in range(1 << len(inputs)):
        arrays = [x.hi if choice >> i & 1 else x.lo for i, x in enumerate(inputs)]
        given = [a.astype(v.dtype.numpy) for a, v in zip(arrays, node.args, strict=True)]
        result = _evaluated(node, given)
        if result is None:
            return None
        corners.append(result)
    return Interval(np.min(corners, axis=0), np.max(corners, axis=0))


def _moved(node: Node, inputs: Sequence[Interval | None]) -> list[Interval | None]:
    """Elements that only change places: of each output channel those of the channels linked to
    it."""
    found = links(node)
    return [] if found is None else [_union(found, j, inputs) for j in range(len(node.outputs))]


def _union(found: Links, target: int, inputs: Sequence[Interval | None]) -> Interval | None:
    pairs = [p for p in found.pairs if p.target == target]
    parts = [inputs[p.source] for p in pairs]
    if not pairs or any(x is None for x in parts):
        return None
    known = [x for x in parts if x is not None]
    n = 1 + max(int(p.outputs.max()) for p in pairs)
    first = known[0].lo.dtype
    top: Any = np.inf if first.kind == "f" else np.iinfo(first).max
    lo, hi = np.full(n, top, first), np.full(n, -top, first)
    for pair, x in zip(pairs, known, strict=True):
        np.minimum.at(lo, pair.outputs, x.lo[pair.inputs])
        np.maximum.at(hi, pair.outputs, x.hi[pair.inputs])
    return Interval(lo, hi)


def _pad(node: Node, inputs: Sequence[Interval | None]) -> list[Interval | None]:
    found, x = links(node), inputs[0]
    if found is None or x is None or x.lo.dtype.kind == "f":
        return []
    index, n = found.pairs[0].outputs, channels(node.output)
    if node.attrs["mode"] != "constant":
        return [x]
    value = int(np.asarray(node.attrs["value"]).astype(node.output.dtype.numpy))
    lo, hi = np.full((2, n), value, np.int64)
    rank = node.input(0).type.rank
    spatial = any(p > 0 and (i + 1) % rank for i, p in enumerate(node.attrs["pads"]))
    lo[index] = np.minimum(x.lo, value) if spatial else x.lo
    hi[index] = np.maximum(x.hi, value) if spatial else x.hi
    return [Interval(lo, hi)]


def _pool(node: Node, inputs: Sequence[Interval | None]) -> list[Interval | None]:
    """A maximum or a rounded mean lies between the extremes; a window with no element of the input
    gives the type's lowest value, or 0."""
    x, attrs = inputs[0], node.attrs
    if x is None or x.lo.dtype.kind == "f":
        return []
    spatial = len(attrs["kernel"])
    wide = any(p >= attrs["kernel"][i % spatial] for i, p in enumerate(attrs["pads"]))
    holes = any(d > 1 for d in attrs["dilations"])
    if any(attrs["pads"]) and (wide or holes):
        return []
    if "lo" in attrs:
        return [Interval(*(np.clip(v, attrs["lo"], attrs["hi"]) for v in (x.lo, x.hi)))]
    return [x]


def _sum(node: Node, inputs: Sequence[Interval | None]) -> list[Interval | None]:
    """A rescaled sum of equal elements, at both ends."""
    x, attrs, value = inputs[0], node.attrs, node.input(0)
    if x is None or value.dtype not in _BYTES or links(node) is None:
        return []
    count = value.type.numel // max(1, node.output.type.numel)
    if count * 510 * 2.0 ** max(0, attrs["shift"]) > _I32_MAX or attrs["multiplier"] < 0:
        return []
    arrays = [np.broadcast_to(end.astype(value.dtype.numpy), value.shape) for end in (x.lo, x.hi)]
    ends = [op_def(node.op).numpy(node, [a])[0].reshape(-1, channels(value))[0] for a in arrays]
    return [Interval(*(e.astype(np.int64) for e in ends))]


def _resize(node: Node, inputs: Sequence[Interval | None]) -> list[Interval | None]:
    """Nearest elements, or means whose fixed-point weights are whole in sum."""
    x = node.input(0)
    fixed = node.op == "resize_bilinear_int" and x.dtype in (DType.I8, DType.I16)
    exact = node.op == "resize" and node.attrs["mode"] == "nearest"
    return _moved(node, inputs) if (fixed or exact) and x.dtype.is_int else []


_Rule = Callable[[Node, Sequence[Interval | None]], list[Interval | None]]
"""Intervals of the inputs to those of the outputs; fewer where nothing is known."""

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("reshape", "transpose", "concat", "split", "slice"), _moved),
    **dict.fromkeys(("reduce_max", "reduce_min"), _moved),
    **dict.fromkeys(("max_pool", "qavg_pool"), _pool),
    **dict.fromkeys(("resize", "resize_bilinear_int"), _resize),
    "pad": _pad,
    "qreduce_sum": _sum,
}
