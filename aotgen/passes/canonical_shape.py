"""Rules of canonicalize_ops about shape, padding and windows. All are exact but the last.

reshape(reshape(x))       = reshape(x)
slice(slice(x))           = slice(x)
gather(x, constant range) = slice(x)
op(x)                     = x                   reshape, slice, pad, ... that change nothing
op(reshape(x))            = reshape(op(x))      so that an element-wise op can join x's kernel
conv(pad(x, 0))           = conv(x)             with larger pads; pools: ``_pad_into_window``
qconv(pad(x, zero point)) = qconv(x)            likewise
op(expand(x), y)          = op(x, y)            when y gives the result its shape
pool over the whole image = reduce_mean, reduce_max
"""

from __future__ import annotations

import math
from typing import Any

from aotgen.ir.graph import Node, Value
from aotgen.passes.layout import broadcasts
from aotgen.passes.pattern import Const, Match, Op, Rule, Scalar, Var
from aotgen.passes.rewrite import Rewriter, is_movable_node

ELEMENTWISE_UNARY = (
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "sqrt",
    "neg",
    "abs",
    "erf",
    "clip",
    "gelu",
    "silu",
    "hard_swish",
    "hard_sigmoid",
    "leaky_relu",
    "elu",
    "mish",
    "softplus",
)
BROADCAST = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "equal",
    "less",
    "greater",
    "less_equal",
    "greater_equal",
    "and",
    "or",
    "xor",
    "where",
    "prelu",
)
_NON_NEGATIVE = frozenset({"relu", "sigmoid", "abs", "exp", "softmax", "hard_sigmoid", "softplus"})


def _merge_reshape(rw: Rewriter, match: Match) -> str | None:
    rw.replace(match.root, "reshape", [match["x"]], match.root.attrs, absorbed=match.inner)
    return None


def _drop_no_op(rw: Rewriter, match: Match) -> str | None:
    """These ops change nothing when the type stays and no element moves."""
    node, x = match.root, match["x"]
    if x.type != node.output.type:
        return "the shape changes"
    if node.op == "slice" and any(step != 1 for step in node.attrs["steps"]):
        return "reversed"
    if node.op == "pad" and any(node.attrs["pads"]):
        return "pads on one side what it crops on the other"
    rw.redirect(node.output, x)
    return None


def _reshape_behind(rw: Rewriter, match: Match) -> str | None:
    """An element-wise op on the source of a reshape runs in that source's kernel."""
    node, reshaped = match.root, match.node("reshaped")
    x = match["x"]
    if x.producer is None or x.producer.op in ("reshape", "transpose", "slice", "split", "concat"):
        return "x is not computed by a kernel that the op could join"
    inputs = [x if v is match["reshaped"] else v for v in node.inputs]
    number = [v for v in node.args if v is not match["reshaped"]]
    if any(v.type.rank > x.type.rank or v.type.numel != 1 for v in number):
        return "the number has axes that x may not have"
    attrs = {"shape": node.output.type.shape}
    rw.compute_through(node, inputs, node.attrs, "reshape", attrs, origin=reshaped.origin)
    return None


_NOT_SPATIAL = "does not pad the spatial axes with a constant"


def _spatial_pads(pad: Node) -> tuple[int, ...] | None:
    """Begins, then ends of the spatial axes; None when it crops, or pads others or by a mode."""
    rank, pads = pad.input(0).type.rank, pad.attrs["pads"]
    outer = (pads[0], pads[rank - 1], pads[rank], pads[2 * rank - 1])
    if pad.attrs["mode"] != "constant" or any(outer) or min(pads) < 0:
        return None
    return (*pads[1 : rank - 1], *pads[rank + 1 : 2 * rank - 1])


def _with_pads(node: Node, pads: tuple[int, ...]) -> dict[str, Any]:
    """The node's attributes with ``pads`` added to its own."""
    own = zip(node.attrs["pads"], pads, strict=True)
    return {**node.attrs, "pads": tuple(a + b for a, b in own)}


def _pad_into_window(rw: Rewriter, match: Match) -> str | None:
    """Explicit zeros in front of a conv, average or max pool become its own pads.

    An average pool must count them: it does when it has no other pads or counts those too. A max
    pool ignores its pads: right for -inf, and for zeros when x has no negative element and each
    window sees one element of x.
    """
    node, pad, x = match.root, match.node("padded"), match["x"]
    pads = _spatial_pads(pad)
    if pads is None:
        return _NOT_SPATIAL
    reason = _pad_reason(node, x, pad.attrs["value"], pads)
    if reason:
        return reason
    attrs = _with_pads(node, pads)
    if node.op == "avg_pool":
        attrs["count_include_pad"] = True
    rw.replace(node, node.op, [x, *node.inputs[1:]], attrs, absorbed=[pad], name=node.name)
    return None


def _is_static_node(node: Node) -> bool:
    return all(v.type.is_static for v in (*node.args, *node.outputs))


def _pad_into_integer_conv(rw: Rewriter, match: Match) -> str | None:
    """Explicit zero points in front of an integer conv become its own pads."""
    node = match.root
    pad, zero = node.input(0).producer, node.optional(3)
    if pad is None or pad.op != "pad":
        return "does not follow a pad"
    pads = _spatial_pads(pad)
    if pads is None:
        return _NOT_SPATIAL
    if zero is not None and zero.const is None:
        return "its zero point is known only at run time"
    known = 0 if zero is None or zero.const is None else int(zero.const.reshape(-1)[0])
    if int(pad.attrs["value"]) != known:
        return "does not pad with the zero point"
    inputs = [pad.input(0), *node.inputs[1:]]
    rw.replace(node, "qconv", inputs, _with_pads(node, pads), absorbed=[pad], name=node.name)
    return None


def _pad_reason(node: Node, x: Value, value: float, pads: tuple[int, ...]) -> str | None:
    extra = node.attrs.get("ceil_extra") or ()
    if node.op == "max_pool":
        if value == -math.inf:
            return None
        known = x.producer is not None and _is_non_negative(x.producer)
        plain = not any(node.attrs["pads"]) and all(d == 1 for d in node.attrs["dilations"])
        limits = node.attrs["kernel"] * 2
        if value == 0 and known and plain and all(p < k for p, k in zip(pads, limits, strict=True)):
            return None
        return "the padding could be a maximum"
    if value != 0:
        return "does not pad with zeros"
    if node.op == "avg_pool" and not node.attrs["count_include_pad"]:
        spatial = len(pads) // 2
        own = list(node.attrs["pads"])
        for axis, cells in enumerate(extra):
            own[spatial + axis] -= cells
        if any(own):
            return "the pool does not count its own pads"
    return None


def _is_non_negative(node: Node) -> bool:
    return node.op in _NON_NEGATIVE or (node.op == "clip" and node.attrs["lo"] >= 0)


def _drop_expand(rw: Rewriter, match: Match) -> str | None:
    """numpy's broadcasting does the work of an expand in front of an element-wise op."""
    node = match.root
    for index, value in enumerate(node.inputs):
        inner = None if value is None else value.producer
        if inner is None or inner.op != "expand" or not inner.output.type.is_static:
            continue
        source = inner.input(0)
        others = [v.shape for i, v in enumerate(node.inputs) if v is not None and i != index]
        if not broadcasts(node) or _broadcast([source.shape, *others]) != node.output.shape:
            continue
        inputs = [source if i == index else v for i, v in enumerate(node.inputs)]
        rw.replace(node, node.op, inputs, node.attrs, absorbed=[inner], name=node.name)
        return None
    return "no expand that the other operands make superfluous"


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(len(s) for s in shapes)
    full = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in axis if n != 1), 1) for axis in zip(*full, strict=True))


def _global_pool(rw: Rewriter, match: Match) -> str | None:
    node, x = match.root, match["x"]
    if node.attrs["kernel"] != x.shape[1:-1] or any(node.attrs["pads"]):
        return "the window is not the image"
    if any(n != 1 for n in node.output.shape[1:-1]) or any(d != 1 for d in node.attrs["dilations"]):
        return "the window is not the image"
    op = "reduce_mean" if node.op == "avg_pool" else "reduce_max"
    rw.replace(node, op, [x], {"axes": tuple(range(1, x.type.rank - 1)), "keepdims": True})
    return None


def _merge_slice(rw: Rewriter, match: Match) -> str | None:
    """A slice of a slice, both with steps of 1."""
    node, inner = match.root, match.node("inner")
    if any(s != 1 for s in (*node.attrs["steps"], *inner.attrs["steps"])):
        return "a step is not 1"
    base = inner.attrs["starts"]
    attrs = {
        "starts": tuple(a + b for a, b in zip(base, node.attrs["starts"], strict=True)),
        "ends": tuple(a + b for a, b in zip(base, node.attrs["ends"], strict=True)),
        "steps": node.attrs["steps"],
    }
    rw.replace(node, "slice", [match["x"]], attrs, absorbed=[inner])
    return None


def _gather_as_slice(rw: Rewriter, match: Match) -> str | None:
    """Constant indices that count upwards in equal steps select a slice."""
    node, x, indices = match.root, match["x"], match["indices"].const
    assert indices is not None
    axis, rank = node.attrs["axis"], x.type.rank
    extent = x.shape[axis]
    rows = [int(i) for i in indices.reshape(-1)]
    rows = [i + extent if i < 0 else i for i in rows]
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    if not rows or step < 1 or rows != list(range(rows[0], rows[-1] + 1, step)):
        return "the indices are no upward range"
    if not 0 <= rows[0] <= rows[-1] < extent:
        return "an index is out of range"
    here = [a == axis for a in range(rank)]
    attrs = {
        "starts": tuple(rows[0] if h else 0 for h in here),
        "ends": tuple(rows[-1] + 1 if h else n for h, n in zip(here, x.shape, strict=True)),
        "steps": tuple(step if h else 1 for h in here),
    }
    if indices.ndim == 1:
        rw.replace(node, "slice", [x], attrs)
        return None
    part = rw.insert_before(node, "slice", [x], name=node.name, origin=node.origin, **attrs)
    rw.replace(node, "reshape", [part], {"shape": node.output.type.shape})
    return None


_x = Var("x")
_reshaped = Op("reshape", _x, name="reshaped")

SHAPE_RULES = (
    Rule(
        "no-op",
        Op(("reshape", "slice", "pad", "expand", "tile", "concat", "split"), _x),
        _drop_no_op,
        admits=is_movable_node,
    ),
    Rule(
        "reshape of reshape",
        Op("reshape", Op("reshape", _x)),
        _merge_reshape,
        shared=True,
        admits=is_movable_node,
    ),
    Rule(
        "slice of slice",
        Op("slice", Op("slice", _x, name="inner")),
        _merge_slice,
        shared=True,
        admits=is_movable_node,
    ),
    Rule("op of reshape", Op(ELEMENTWISE_UNARY, _reshaped), _reshape_behind),
    Rule("op of reshape and number", Op(("mul", "add"), _reshaped, Scalar()), _reshape_behind),
    Rule(
        "pad of window",
        Op(("max_pool", "avg_pool"), Op("pad", _x, name="padded")),
        _pad_into_window,
        shared=True,
    ),
    Rule(
        "pad of conv",
        Op("conv", Op("pad", _x, name="padded"), Var("w")),
        _pad_into_window,
        shared=True,
    ),
    Rule(
        "pad of conv with bias",
        Op("conv", Op("pad", _x, name="padded"), Var("w"), Var("b")),
        _pad_into_window,
        shared=True,
    ),
    Rule(
        "pad of integer conv",
        Op("qconv"),
        _pad_into_integer_conv,
        shared=True,
        admits=_is_static_node,
    ),
    Rule("expand", Op(BROADCAST), _drop_expand, shared=True),
    Rule("gather of range", Op("gather", _x, Const("indices")), _gather_as_slice),
    Rule("global pool", Op(("avg_pool", "max_pool"), _x), _global_pool),
)
