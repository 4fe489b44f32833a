"""fold_scale_axis: a constant factor per channel goes into the weights of the next conv or matmul.

    conv(x, W, b) * s = conv(x, s[o] W, s b)       forward, also through f with f(s x) = s f(x)
    conv(x * s, W, b) = conv(x, W s[c], b)         backward; zero padding stays zero
    conv(x + t, W, b) = conv(x, W, b + sum W t)    only where nothing is padded

Products are formed in float64 and rounded once to float32. Results differ by rounding. Weights that
another node reads too stay as they are: a second copy would cost flash.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Graph, Node, Value
from aotgen.passes.base import Pass
from aotgen.passes.canonical_math import Floats, channel_vector
from aotgen.passes.rewrite import Rewriter, constant_like, is_f32, is_plain_node, merged_origin

_LINEAR = frozenset({"avg_pool", "reduce_mean"})
"""f(s x) = s f(x) for every s per channel, as long as the channel axis is left alone."""
_POSITIVE = frozenset({"relu", "leaky_relu", "max_pool", "reduce_max"})
"""f(s x) = s f(x) for s > 0."""
_ANCHORS = frozenset({"conv", "conv_transpose", "matmul"})


class FoldScaleAxis(Pass):
    """Fold factors into the conv or matmul behind which they stand, else into the next one."""

    name = "fold_scale_axis"
    level = 3

    def run(self, graph: Graph) -> bool:
        rw = Rewriter(graph)
        while any([_fold(rw, node) for node in rw.nodes()]):
            pass
        return rw.modified


def _fold(rw: Rewriter, node: Node) -> bool:
    """Fold one factor or offset; True when that was possible."""
    if node.op == "mul":
        return _fold_forward(rw, node) is None or (
            rw.alive(node) and _fold_backward(rw, node) is None
        )
    return node.op == "add" and _fold_offset(rw, node) is None


def _operands(node: Node) -> tuple[Value, Floats] | None:
    """The data operand and the other one as a vector over the last axis, float64."""
    if not is_plain_node(node) or not is_f32(*node.args) or not node.output.shape:
        return None
    for x, c in (node.inputs, node.inputs[::-1]):
        if x is None or c is None or x.is_const or x.type != node.output.type:
            continue
        vector = channel_vector(c, x.shape[-1])
        if vector is not None:
            return x, vector
    return None


def _passes(node: Node, factor: Floats) -> bool:
    """A factor on ``node``'s input may as well be a factor on its output."""
    if len(node.outputs) != 1 or not is_plain_node(node) or not is_f32(node.output):
        return False
    if node.op.startswith("reduce_"):
        last = node.input(0).type.rank - 1
        if last in node.attrs["axes"]:
            return False
    return node.op in _LINEAR or (node.op in _POSITIVE and bool(np.all(factor > 0)))


def _fold_forward(rw: Rewriter, node: Node) -> str | None:
    """Into the weights of the anchor that the factor stands behind."""
    operands = _operands(node)
    if operands is None:
        return "not a factor per channel"
    x, factor = operands
    source = x
    while True:
        anchor = source.producer
        if anchor is None or rw.sole_user(source) is None:
            return "what it scales has other readers"
        if anchor.op in _ANCHORS:
            break
        if not _passes(anchor, factor):
            return f"does not commute with {anchor.op}"
        source = anchor.input(0)
    reason = _weights_reason(rw, anchor)
    if reason:
        return reason
    weights = _const(anchor.input(1))
    if anchor.op == "matmul":
        scaled = weights * (factor[:, None] if anchor.attrs["trans_b"] else factor)
    else:
        scaled = weights * factor.reshape(-1, *(1,) * (weights.ndim - 1))
    bias = anchor.optional(2)
    new_bias = None if bias is None else _const(bias) * factor
    return _reweigh(rw, anchor, scaled, new_bias, node, x)


def _fold_backward(rw: Rewriter, node: Node) -> str | None:
    """Into the weights of the anchor that reads the scaled value."""
    operands = _operands(node)
    if operands is None:
        return "not a factor per channel"
    x, factor = operands
    target: Value = node.output
    while True:
        user = rw.sole_user(target)
        if user is None:
            return "several nodes read the product"
        if user.op in _ANCHORS:
            break
        if not _passes(user, factor):
            return f"does not commute with {user.op}"
        target = user.output
    reason = _weights_reason(rw, user)
    if reason or user.input(0) is not target:
        return reason or "scales the weights"
    weights = _const(user.input(1))
    if user.op == "matmul":
        scaled = weights * (factor if user.attrs["trans_b"] else factor[:, None])
    else:
        scaled = weights * _by_input_channel(user, factor)
    bias = user.optional(2)
    return _reweigh(rw, user, scaled, None if bias is None else _const(bias), node, x)


def _fold_offset(rw: Rewriter, node: Node) -> str | None:
    """A constant per channel in front of an anchor goes into its bias."""
    operands = _operands(node)
    if operands is None:
        return "not a constant per channel"
    x, offset = operands
    user = rw.sole_user(node.output)
    if user is None or user.op not in ("conv", "matmul") or user.input(0) is not node.output:
        return "no conv or matmul alone reads the sum"
    reason = _weights_reason(rw, user)
    if reason or (user.op == "conv" and any(user.attrs["pads"])):
        return reason or "the padding is not offset"
    weights = _const(user.input(1))
    if user.op == "matmul":
        if weights.ndim != 2:
            return "one bias for several matrices"
        total = weights @ offset if user.attrs["trans_b"] else offset @ weights
    else:
        total = np.sum(
            weights * _by_input_channel(user, offset), axis=tuple(range(1, weights.ndim))
        )
    bias = user.optional(2)
    if bias is not None:
        total = total + _const(bias)
    return _reweigh(rw, user, None, total, node, x)


def _by_input_channel(anchor: Node, vector: Floats) -> Floats:
    """``vector`` over the input channels, shaped to multiply w [O,*K,C/groups]."""
    w, groups = anchor.input(1), anchor.attrs["groups"]
    rows = np.repeat(vector.reshape(groups, -1), w.shape[0] // groups, axis=0)
    return rows.reshape(w.shape[0], *(1,) * (w.type.rank - 2), -1)


def _const(value: Value) -> Floats:
    assert value.const is not None
    return value.const.astype(np.float64)


def _weights_reason(rw: Rewriter, anchor: Node) -> str | None:
    """Why the anchor's weights must stay as they are, or None."""
    if not is_plain_node(anchor) or not is_f32(*anchor.args):
        return "quantized, or not in f32"
    weights, bias = anchor.input(1), anchor.optional(2)
    if not weights.is_const or (bias is not None and not bias.is_const):
        return "the weights are not constants"
    if len(rw.users(weights)) != 1 or anchor.input(0) is weights:
        return "other nodes read the weights"
    return None


def _reweigh(
    rw: Rewriter,
    anchor: Node,
    weights: Floats | None,
    bias: Floats | None,
    folded: Node,
    x: Value,
) -> str | None:
    """Give ``anchor`` new weights and bias, and let ``folded``'s readers read its operand ``x``."""
    inputs: list[Value | None] = list(anchor.inputs)
    inputs += [None] * (3 - len(inputs))
    for index, array in ((1, weights), (2, bias)):
        if array is None:
            continue
        if not np.all(np.isfinite(array.astype(np.float32))):
            return "a folded constant overflows"
        old = inputs[index]
        inputs[index] = constant_like(rw.graph, array, old.name if old else f"{anchor.name}.bias")
    new = rw.replace(anchor, anchor.op, inputs, anchor.attrs)
    new.origin = merged_origin(anchor, folded)
    rw.redirect(folded.output, x)
    return None
