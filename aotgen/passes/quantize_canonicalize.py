"""quantize_canonicalize: QDQ graphs compute in integers where that gives the same numbers.

    conv(dequantize(x), dequantize(w), b) = dequantize(qconv(x, w, b'))       matmul likewise
    quantize(relu, clip(dequantize(qconv))) = qconv with a Requant of kind onnx
    quantize(f(dequantize(x))) = lookup(x)                8-bit x, f any element-wise expression
    op(dequantize(x)) = dequantize(op(x))                 ops that move elements, maxima
    quantize(concat(...)) = concat(quantize(...))

Everything else stays as written: dequantize, the float op, quantize, which fuse_ops joins to one
nest. An integer sum is taken only where no input can overflow int32. What is rounded is the exact
sum, where a float convolution rounds its own rounding errors: results may lie one step apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array, DType, Quant, Requant
from aotgen.ops.quantized import QUANTIZED
from aotgen.ops.registry import op_def
from aotgen.passes.base import Pass
from aotgen.passes.layout import broadcasts
from aotgen.passes.rewrite import Rewriter, merged_origin
from aotgen.te.compute import int_range

_ANCHORS = {"conv": "qconv", "matmul": "qmatmul"}
_BYTES = (DType.I8, DType.U8)
_MOVES = frozenset({"reshape", "slice", "split", "gather", "max_pool", "resize", "reduce_max"})
"""Ops whose results are elements of their first input."""


class QuantizeCanonicalize(Pass):
    """Turn dequantize, op, quantize into integer ops where that is exact."""

    name = "quantize_canonicalize"
    level = 3

    def run(self, graph: Graph) -> bool:
        if not any(n.op in ("quantize", "dequantize") for n in graph.nodes):
            return False
        rw = Rewriter(graph)
        again = True
        while again:
            again = False
            for node in rw.nodes():
                if rw.alive(node):
                    again |= _rewrite(rw, node)
        return rw.modified


def _rewrite(rw: Rewriter, node: Node) -> bool:
    if not all(v.type.is_static for v in (*node.args, *node.outputs)):
        return False
    if node.op in _ANCHORS:
        return _integer_anchor(rw, node)
    if node.op == "quantize":
        return _requantize(rw, node) or _look_up(rw, node) or _split_concat(rw, node)
    if node.op == "concat":
        return _sink_concat(rw, node)
    return node.op in _MOVES and _sink(rw, node)


def _integers(value: Value) -> tuple[Value, Quant] | None:
    """x and its quantization where ``value`` is dequantize(x) with one scale."""
    node = value.producer
    if node is None or node.op != "dequantize" or node.attrs["quant"].axis is not None:
        return None
    return (node.input(0), node.attrs["quant"]) if node.input(0).dtype in QUANTIZED else None


@dataclass(frozen=True)
class _Weights:
    """Integers known while compiling, with their quantization."""

    array: Array
    quant: Quant

    @property
    def scale(self) -> Array:
        return np.asarray(self.quant.scale, np.float32)

    @property
    def zero(self) -> Array:
        return np.asarray(self.quant.zero_point, np.int64)

    def centred(self) -> Array:
        """The integers less their zero points, as float64."""
        shape = [-1 if a == self.quant.axis else 1 for a in range(self.array.ndim)]
        zero = self.zero.reshape(shape if self.quant.axis is not None else ())
        return np.asarray(self.array.astype(np.float64) - zero)


def _weights(value: Value) -> _Weights | None:
    """A dequantized constant; transposes and reshapes may stand on both sides of dequantize."""
    moves: list[Node] = []
    while value.const is None:
        node = value.producer
        if node is None or node.op not in ("transpose", "reshape", "dequantize"):
            return None
        moves.append(node)
        value = node.input(0)
    array = value.const
    quant: Quant | None = None
    for move in reversed(moves):
        axis = None if quant is None else quant.axis
        if move.op == "dequantize":
            quant = move.attrs["quant"]
            continue
        if move.op == "reshape":
            after = _reshaped_axis(array.shape, axis, move.output.shape)
            array = array.reshape(move.output.shape)
        else:
            perm = move.attrs["perm"]
            after = None if axis is None else perm.index(axis)
            array = array.transpose(perm)
        if axis is not None and after is None:
            return None
        quant = None if quant is None else replace(quant, axis=after)
    return None if quant is None else _Weights(np.ascontiguousarray(array), quant)


def _reshaped_axis(old: Sequence[int], axis: int | None, new: Sequence[int]) -> int | None:
    """The axis of ``new`` that runs over the same elements as ``axis`` of ``old``."""
    if axis is None:
        return None
    before = math.prod(old[:axis])
    for candidate, extent in enumerate(new):
        if extent == old[axis] and math.prod(new[:candidate]) == before:
            return candidate
    return None


def _integer_anchor(rw: Rewriter, node: Node) -> bool:
    """conv or matmul of dequantized operands: the int32 sums, dequantized."""
    value = node.input(0)
    moved = value.producer if value.producer and value.producer.op == "transpose" else None
    x = _integers(value if moved is None else moved.input(0))
    if x is None or node.output.dtype is not DType.F32:
        return False
    source, quant = x
    rank = node.input(1).type.rank
    channels = node.output.shape[-1]
    if node.op == "conv":
        axis = 0
    else:
        axis = rank - 2 if node.attrs["trans_b"] else rank - 1
    w = _weights(node.input(1))
    second: Value
    if w is not None and w.array.dtype.kind in "iu" and w.array.dtype.itemsize <= 2:
        if w.quant.axis not in (None, axis):
            return False
        scales = np.float32(quant.scale[0]) * w.scale
        zero = _zero_of(rw, w.zero, w.array.dtype)
        bias, rest = _integer_bias(node.optional(2), scales, channels)
        others = tuple(a for a in range(w.array.ndim) if a != axis)
        sums = np.abs(w.centred()).sum(axis=others)
        if node.op == "matmul" and w.array.ndim > 2:
            sums = np.abs(w.centred()).sum(axis=-1 if node.attrs["trans_b"] else -2)
        limit = sums.max(initial=0.0) * _farthest(source.dtype, quant.zero_point[0])
        second = rw.graph.constant(w.array, node.input(1).name)
    else:
        other = _integers(node.input(1))
        if other is None:
            return False
        second, b = other
        scales = np.float32(quant.scale[0]) * np.asarray(b.scale, np.float32)
        zero = _zero_of(rw, np.asarray(b.zero_point), second.dtype.numpy)
        bias, rest = None, node.optional(2)
        depth = math.prod(second.shape) // max(1, channels)
        farthest = _farthest(source.dtype, quant.zero_point[0])
        limit = depth * farthest * _farthest(second.dtype, b.zero_point[0])
    if bias is not None:
        limit += np.abs(bias.astype(np.float64)).max(initial=0.0)
    if limit >= 2**31:
        return False
    if moved is not None:
        source = rw.insert_before(
            node, "transpose", [source], origin=moved.origin, perm=moved.attrs["perm"]
        )
    inputs = [
        source,
        second,
        None if bias is None else rw.graph.constant(bias, f"{node.name}.bias"),
        _zero_of(rw, np.asarray(quant.zero_point), source.dtype.numpy),
        zero,
    ]
    attrs = {**node.attrs, "dtype": DType.I32, "requant": None, "quant": None}
    parts = [v.producer for v in (node.input(0), node.input(1)) if v.producer is not None]
    origin = merged_origin(node)
    acc = rw.insert_before(node, _ANCHORS[node.op], inputs, name=node.name, origin=origin, **attrs)
    last = None if scales.size == 1 else acc.type.rank - 1
    real = Quant(tuple(float(s) for s in scales), (0,) * scales.size, last)
    if rest is None:
        rw.replace(node, "dequantize", [acc], {"quant": real}, absorbed=parts)
    else:
        value = rw.insert_before(node, "dequantize", [acc], origin=origin, quant=real)
        rw.replace(node, "add", [value, rest], {}, absorbed=parts)
    return True


def _farthest(dtype: DType, zero: int) -> int:
    """The largest distance of a value of ``dtype`` from its zero point."""
    lo, hi = int_range(dtype)
    return max(hi - zero, zero - lo)


def _zero_of(rw: Rewriter, zero: Array, dtype: np.dtype[np.generic]) -> Value | None:
    """A zero point as an input of qconv or qmatmul; None when it is 0 throughout."""
    if not zero.any():
        return None
    if (zero == zero[0]).all():
        zero = zero[:1]
    return rw.graph.constant(zero.astype(dtype), "zero")


def _integer_bias(
    bias: Value | None, scales: Array, channels: int
) -> tuple[Array | None, Value | None]:
    """(the int32 bias in units of ``scales``, the float bias where there is no such)."""
    if bias is None:
        return None, None
    found = _weights(bias)
    if found is None or found.array.dtype != np.int32 or found.array.size != channels:
        return None, bias
    if found.quant.axis is None and found.scale.size != 1:
        return None, bias
    near = np.abs(found.scale.astype(np.float64) - scales) <= 1e-5 * scales.astype(np.float64)
    return (found.array.reshape(-1), None) if near.all() else (None, bias)


def _steps(value: float, quant: Quant, dtype: DType) -> int:
    """quantize of one number."""
    lo, hi = int_range(dtype)
    with np.errstate(all="ignore"):
        steps = np.rint(np.float32(value) / np.float32(quant.scale[0]))
    return int(np.clip(np.float64(steps) + quant.zero_point[0], lo, hi))


def _requantize(rw: Rewriter, node: Node) -> bool:
    """quantize(clamps(dequantize(sums))): quantize is monotone, so a clamp of real numbers is a
    clamp of quantized ones.
    """
    quant, dtype = node.attrs["quant"], node.attrs["dtype"]
    if not node.attrs.get("ties_to_even", True):
        return False  # a Requant of kind onnx rounds halves to even
    value, clamps = node.input(0), []
    inner = value.producer
    while inner is not None and inner.op in ("relu", "clip") and rw.sole_user(value) is not None:
        clamps.append(inner)
        value = inner.input(0)
        inner = value.producer
    if inner is None or inner.op != "dequantize" or quant.axis is not None:
        return False
    acc = inner.input(0)
    anchor = acc.producer
    if anchor is None or anchor.op not in _ANCHORS.values() or anchor.attrs["requant"] is not None:
        return False
    if rw.sole_user(value) is None or rw.sole_user(acc) is None:
        return False
    real = inner.attrs["quant"]
    if real.axis not in (None, acc.type.rank - 1):
        return False
    lo, hi = int_range(dtype)
    for clamp in reversed(clamps):
        below, above = -math.inf, math.inf
        if clamp.op == "clip":
            below, above = clamp.attrs["lo"], clamp.attrs["hi"]
        low = _steps(0.0 if clamp.op == "relu" else below, quant, dtype)
        high = _steps(above, quant, dtype)
        lo, hi = (min(max(v, low), high) for v in (lo, hi))
    factors = np.asarray(real.scale, np.float32) / np.float32(quant.scale[0])
    requant = Requant("onnx", (), (), tuple(float(f) for f in factors), quant.zero_point[0], lo, hi)
    rw.replace(
        node,
        anchor.op,
        anchor.inputs,
        {**anchor.attrs, "requant": requant, "dtype": dtype, "quant": quant},
        absorbed=[anchor, inner, *reversed(clamps)],
        name=anchor.name,
    )
    return True


@dataclass
class _Expression:
    """An element-wise expression of 8-bit tensors: its nodes in execution order, and its leaves."""

    nodes: list[Node]
    leaves: list[Value]


def _expression(root: Node) -> _Expression | None:
    """What ``root`` computes from 8-bit tensors and numbers alone; None when it reads more."""
    found = _Expression([], [])
    state: dict[Node, bool] = {}
    shape = root.output.shape

    def visit(node: Node) -> bool:
        if node in state:
            return state[node]
        state[node] = False
        if len(state) > 64 or len(node.outputs) != 1 or not broadcasts(node):
            return False
        if node.output.shape != shape:
            return False
        quant = node.attrs.get("quant")
        if quant is not None and quant.axis is not None:
            return False
        if node.op == "dequantize" and node.input(0).dtype in _BYTES:
            if node.input(0) not in found.leaves:
                found.leaves.append(node.input(0))
        else:
            for value in node.args:
                if value.is_const and value.type.numel == 1:
                    continue
                if value.producer is None or not visit(value.producer):
                    return False
        found.nodes.append(node)
        state[node] = True
        return True

    return found if visit(root) else None


def _table_of(value: Value) -> tuple[Value, Array]:
    """The 8-bit tensor that ``value`` is a function of, and the function's table."""
    node = value.producer
    lo, hi = int_range(value.dtype)
    table: Array = np.arange(lo, hi + 1).astype(value.dtype.numpy)
    while node is not None and node.op == "lookup" and node.attrs["dtype"] in _BYTES:
        own = np.asarray(node.attrs["table"], node.attrs["dtype"].numpy)
        table = table[own.astype(np.int32) - int_range(node.attrs["dtype"])[0]]
        value = node.input(0)
        node = value.producer
    return value, table


def _look_up(rw: Rewriter, node: Node) -> bool:
    """quantize(f(dequantize(x), ...)) of one 8-bit tensor x is a table of 256 elements."""
    same = _integers(node.input(0))
    if same is not None and same[1] == node.attrs["quant"] and same[0].dtype is node.output.dtype:
        rw.redirect(node.output, same[0])
        return True
    found = _expression(node)
    if found is None or not found.leaves:
        return False
    known: dict[Value, Array] = {}
    sources: list[Value] = []
    for leaf in found.leaves:
        source, known[leaf] = _table_of(leaf)
        if source not in sources:
            sources.append(source)
    if len(sources) != 1:
        return False
    for part in found.nodes:
        arrays = [
            None if v is None else (v.const.reshape(()) if v.const is not None else known[v])
            for v in part.inputs
        ]
        with np.errstate(all="ignore"):
            known[part.output] = op_def(part.op).numpy(part, arrays)[0]
    table = tuple(int(v) for v in np.broadcast_to(known[node.output], 256))
    attrs = {"table": table, "dtype": node.output.dtype, "quant": node.attrs["quant"]}
    rw.replace(node, "lookup", sources, attrs, absorbed=found.nodes[:-1])
    return True


def _split_concat(rw: Rewriter, node: Node) -> bool:
    """quantize(concat(...)) = concat(quantize(...)): the parts may then share its memory."""
    inner = node.input(0).producer
    quant = node.attrs["quant"]
    if inner is None or inner.op != "concat" or quant.axis is not None:
        return False
    if rw.sole_user(inner.output) is None:
        return False
    parts = [
        rw.insert_before(node, "quantize", [v], origin=node.origin, **node.attrs)
        for v in inner.args
    ]
    rw.replace(node, "concat", parts, inner.attrs, absorbed=[inner], name=inner.name)
    return True


def _sink_concat(rw: Rewriter, node: Node) -> bool:
    """concat(dequantize(...)) = dequantize(concat(...)) where all scales are equal."""
    found = [_integers(v) for v in node.args]
    if any(f is None for f in found):
        return False
    parts = [f for f in found if f is not None]
    (first, quant), rest = parts[0], parts[1:]
    if any(v.dtype is not first.dtype or q != quant for v, q in rest):
        return False
    inputs = [v for v, _ in parts]
    rw.compute_through(node, inputs, node.attrs, "dequantize", {"quant": quant}, origin=node.origin)
    return True


def _sink(rw: Rewriter, node: Node) -> bool:
    """op(dequantize(x)) = dequantize(op(x)): what is moved is smaller, and may meet a quantize."""
    found = _integers(node.input(0))
    if found is None or node.outputs[0].dtype is not DType.F32:
        return False
    if node.op == "resize" and node.attrs["mode"] != "nearest":
        return False
    if node.op == "max_pool" and not _has_a_cell(node):
        return False
    source, quant = found
    grows = sum(v.type.numel for v in node.outputs) > source.type.numel
    readers = [u for v in node.outputs for u in rw.users(v)]
    if grows and not (readers and all(u.op == "quantize" for u in readers)):
        return False
    inputs = [source, *node.inputs[1:]]
    producer = node.input(0).producer
    origin = producer.origin if producer is not None else ()
    rw.compute_through(node, inputs, node.attrs, "dequantize", {"quant": quant}, origin=origin)
    return True


def _has_a_cell(node: Node) -> bool:
    """Every window of a pool covers a cell of the input: the maximum of none has no integer."""
    a = node.attrs
    pads = a["pads"]
    half = len(pads) // 2
    spans = zip(a["kernel"], a["dilations"], pads[:half], pads[half:], strict=True)
    return all(d == 1 and max(b, e) < k for k, d, b, e in spans)
