"""Rules of canonicalize_ops about arithmetic.

    x - c = x + (-c);  x / c = x * (1 / c);  (x + c) + d = x + (c + d)
    x * 1 = x + 0 = pow(x, 1) = x
    max(min(x, hi), lo), clip(clip(x)) = clip(x);  clip(x, 0, inf) = relu(x)
    matmul(a, B) + c = matmul(a, B, c);  conv(x, W) + c = conv(x, W, c)
    decomposed layer_norm, gelu, silu, hard_swish, hard_sigmoid, mish = the op

A reciprocal, a sum of constants and a decomposed function in one piece round differently from the
model's own spelling: some units in the last place, which is why this is level 3.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Node, Value
from aotgen.passes.pattern import (
    Const,
    Match,
    Op,
    Product,
    Rewrite,
    Rule,
    Scalar,
    Var,
    close,
    scalar_of,
)
from aotgen.passes.rewrite import Rewriter, constant_like, is_f32

Floats = npt.NDArray[np.float64]

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)


def _same_type(match: Match, name: str = "x") -> str | None:
    """The rewrite gives ``x`` and the root one type: f32 of one shape."""
    if match[name].type != match.root.output.type or not is_f32(match[name]):
        return "the result has another shape than x, or is not f32"
    return None


def constant_array(match: Match, name: str) -> Floats:
    """The constant bound to ``name``, in float64."""
    array = match[name].const
    assert array is not None
    return array.astype(np.float64)


def _sub_to_add(rw: Rewriter, match: Match) -> str | None:
    if not is_f32(match["c"]):
        return "not in f32"
    c = constant_like(rw.graph, -constant_array(match, "c"), match["c"].name)
    rw.replace(match.root, "add", [match["x"], c], {})
    return None


def _div_to_mul(rw: Rewriter, match: Match) -> str | None:
    if not is_f32(match["c"]):
        return "not in f32"
    with np.errstate(all="ignore"):
        reciprocal = 1.0 / constant_array(match, "c")
    size = np.abs(reciprocal)
    if not np.all((size >= _SMALLEST) & (size <= _LARGEST)):
        return "a reciprocal overflows or is subnormal"
    c = constant_like(rw.graph, reciprocal, match["c"].name)
    rw.replace(match.root, "mul", [match["x"], c], {})
    return None


def _drop_neutral(rw: Rewriter, match: Match) -> str | None:
    node = match.root
    neutral = 0.0 if node.op in ("add", "sub") else 1.0
    if match["x"].type != node.output.type:
        return "broadcasts x"
    if scalar_of(match["c"]) != neutral:
        return "not the neutral element"
    rw.redirect(node.output, match["x"])
    return None


def _merge_constants(rw: Rewriter, match: Match) -> str | None:
    """(x op c) op d = x op (c op d), when that makes no larger constant."""
    node = match.root
    if not is_f32(match["x"], match["c"], match["d"]) or match["x"].is_const:
        return "not in f32"
    c, d = constant_array(match, "c"), constant_array(match, "d")
    with np.errstate(all="ignore"):
        merged = c + d if node.op == "add" else c * d
    if merged.size > max(c.size, d.size):
        return "the merged constant is larger"
    if not np.all(np.isfinite(merged.astype(np.float32))):
        return "the merged constant overflows"
    value = constant_like(rw.graph, merged, match["c"].name)
    rw.replace(node, node.op, [match["x"], value], {}, absorbed=match.inner)
    return None


_POWERS = {0.5: "sqrt", -1.0: "reciprocal"}


def _power(rw: Rewriter, match: Match) -> str | None:
    exponent = scalar_of(match["c"])
    reason = _same_type(match)
    if reason:
        return reason
    if exponent == 2.0:
        rw.replace(match.root, "mul", [match["x"], match["x"]], {})
    elif exponent in _POWERS:
        rw.replace(match.root, _POWERS[exponent], [match["x"]], {})
    else:
        return "no simpler spelling"
    return None


def _bound_to_clip(rw: Rewriter, match: Match) -> str | None:
    reason = _same_type(match)
    bound = scalar_of(match["c"])
    if reason or bound is None or math.isnan(bound):
        return reason or "not a number"
    low = match.root.op == "maximum"
    attrs = {"lo": bound if low else -math.inf, "hi": math.inf if low else bound}
    rw.replace(match.root, "clip", [match["x"]], attrs)
    return None


def _merge_clip(rw: Rewriter, match: Match) -> str | None:
    reason = _same_type(match)
    if reason:
        return reason
    outer, inner = match.root, match.node("inner")
    lo, hi = _bounds(inner)
    outer_lo, outer_hi = _bounds(outer)
    if max(lo, outer_lo) > min(hi, outer_hi):
        return "the ranges do not overlap"
    attrs = {"lo": max(lo, outer_lo), "hi": min(hi, outer_hi)}
    rw.replace(outer, "clip", [match["x"]], attrs, absorbed=[inner])
    return None


def _bounds(node: Node) -> tuple[float, float]:
    return (0.0, math.inf) if node.op == "relu" else (node.attrs["lo"], node.attrs["hi"])


def _clip_to_relu(rw: Rewriter, match: Match) -> str | None:
    lo, hi = _bounds(match.root)
    if (lo, hi) == (-math.inf, math.inf):
        rw.redirect(match.root.output, match["x"])
        return None
    if (lo, hi) != (0.0, math.inf) or not is_f32(match["x"]):
        return "not the range of relu"
    rw.replace(match.root, "relu", [match["x"]], {})
    return None


def channel_vector(value: Value, channels: int) -> Floats | None:
    """A constant that is one number for each index of the last axis, as float64 [channels]; else
    None."""
    if value.const is None or not is_f32(value):
        return None
    shape = value.shape
    if any(n != 1 for n in shape[:-1]) or (shape and shape[-1] not in (1, channels)):
        return None
    return np.broadcast_to(value.const.astype(np.float64).reshape(-1), (channels,))


def _into_bias(rw: Rewriter, match: Match) -> str | None:
    node, anchor = match.root, match.node("anchor")
    if node.output.type != anchor.output.type:
        return "broadcasts the result"
    total = channel_vector(match["c"], node.output.shape[-1])
    if total is None:
        return "not one number per channel"
    bias = anchor.optional(2)
    if bias is not None:
        if bias.const is None:
            return "the bias is not a constant"
        total = total + bias.const.astype(np.float64)
    value = constant_like(rw.graph, total, f"{anchor.name}.bias")
    inputs = [*anchor.inputs[:2], value]
    rw.replace(node, anchor.op, inputs, anchor.attrs, absorbed=[anchor], name=anchor.name)
    return None


def _layer_norm(rw: Rewriter, match: Match) -> str | None:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps) over the last axes."""
    reason = _same_type(match)
    if reason:
        return reason
    node, x = match.root, match["x"]
    mean, variance = match.node("mean"), match.node("variance")
    axes = mean.attrs["axes"]
    rank = x.type.rank
    if variance.attrs["axes"] != axes or axes != tuple(range(rank - len(axes), rank)) or not axes:
        return "does not normalise the last axes"
    if not (mean.attrs["keepdims"] and variance.attrs["keepdims"]):
        return "a mean loses its axes"
    eps = scalar_of(match["eps"])
    assert eps is not None
    ones = constant_like(rw.graph, np.ones(x.shape[rank - len(axes) :]), f"{node.name}.scale")
    attrs = {"axis": rank - len(axes), "eps": eps}
    rw.replace(node, "layer_norm", [x, ones, None], attrs, absorbed=match.inner)
    return None


def _norm_affine(rw: Rewriter, match: Match) -> str | None:
    """A constant behind layer_norm that spans the normalised axes is its scale or its bias."""
    node, norm = match.root, match.node("norm")
    reason = _same_type(match, "norm")
    if reason:
        return reason
    scale, bias = norm.input(1), norm.optional(2)
    if scale.const is None or (bias is not None and bias.const is None):
        return "a parameter is not a constant"
    span = norm.output.shape[norm.attrs["axis"] :]
    c = constant_array(match, "c")
    c = c.reshape(tuple(n for i, n in enumerate(c.shape) if n != 1 or c.ndim - i <= len(span)))
    if c.ndim > len(span):
        return "differs from row to row"
    c = np.broadcast_to(c, span)
    params: list[Floats | None] = [
        scale.const.astype(np.float64),
        None if bias is None or bias.const is None else bias.const.astype(np.float64),
    ]
    if node.op == "mul":
        params = [p if p is None else p * c for p in params]
    else:
        params[1] = c if params[1] is None else params[1] + c
    values = [
        None if p is None else constant_like(rw.graph, np.broadcast_to(p, span), f"{norm.name}.{n}")
        for p, n in zip(params, ("scale", "bias"), strict=True)
    ]
    inputs = [norm.input(0), *values]
    rw.replace(node, "layer_norm", inputs, norm.attrs, absorbed=[norm], name=norm.name)
    return None


def _becomes(op: str, **attrs: object) -> Rewrite:
    """The rewrite of a whole match to ``op`` of ``x``."""

    def rewrite(rw: Rewriter, match: Match) -> str | None:
        reason = _same_type(match)
        if reason is None:
            rw.replace(match.root, op, [match["x"]], attrs, absorbed=match.inner)
        return reason

    return rewrite


def _gated(rw: Rewriter, match: Match) -> str | None:
    """x * hard_sigmoid(x), which keeps a slope and offset that are not hard_swish's own."""
    gate = match.node("gate").attrs
    slope, offset = float(gate["alpha"]), float(gate["beta"])
    usual = close(slope, 1 / 6) and close(offset, 0.5)
    attrs = {} if usual else {"alpha": slope, "beta": offset}
    return _becomes("hard_swish", **attrs)(rw, match)


def _silu(rw: Rewriter, match: Match) -> str | None:
    """x * sigmoid(alpha * x)."""
    alpha = scalar_of(match["alpha"])
    if alpha is None or not math.isfinite(alpha):
        return "alpha is not finite"
    return _becomes("silu", alpha=alpha)(rw, match)


_x, _c, _d = Var("x"), Const("c"), Const("d")
_half = math.sqrt(0.5)
_slope = math.sqrt(2 / math.pi)
_gelu_tanh_arguments = (
    Product(_slope, Op("add", _x, Product(0.044715, _x, _x, _x))),
    Product(_slope, _x, Op("add", Product(0.044715, _x, _x), Scalar(1.0))),
)
_centred = Op("sub", _x, Op("reduce_mean", _x, name="mean"), name="centred")
_square = (
    Op("pow", Var("centred"), Scalar(2.0)),
    Op("mul", Var("centred"), Var("centred")),
)
_SIXTH = {"alpha": 1 / 6, "beta": 0.5}


def _layer_norm_patterns() -> list[Op]:
    """The usual spellings: divide by the deviation, or multiply by its reciprocal."""
    patterns = []
    for square in _square:
        spread = Op("add", Op("reduce_mean", square, name="variance"), Scalar(name="eps"))
        patterns.append(Op("div", _centred, Op("sqrt", spread)))
        patterns.append(Op("mul", _centred, Op("rsqrt", spread)))
        patterns.append(Op("mul", _centred, Op("reciprocal", Op("sqrt", spread))))
        patterns.append(Op("mul", _centred, Op("div", Scalar(1.0), Op("sqrt", spread))))
    return patterns


MATH_RULES = (
    *(Rule("layer_norm", p, _layer_norm) for p in _layer_norm_patterns()),
    *(
        Rule(
            "gelu",
            Product(0.5, _x, Op("add", inner, Scalar(1.0))),
            _becomes("gelu", approximate=how),
        )
        for inner, how in [
            (Op("erf", Product(_half, _x)), "none"),
            *((Op("tanh", p), "tanh") for p in _gelu_tanh_arguments),
        ]
    ),
    Rule(
        "hard_swish",
        Product(1 / 6, _x, Op("clip", Op("add", _x, Scalar(3.0)), attrs={"lo": 0.0, "hi": 6.0})),
        _becomes("hard_swish"),
    ),
    Rule("hard_swish", Product(1.0, _x, Op("hard_sigmoid", _x, name="gate")), _gated),
    Rule(
        "hard_sigmoid",
        Product(1 / 6, Op("clip", Op("add", _x, Scalar(3.0)), attrs={"lo": 0.0, "hi": 6.0})),
        _becomes("hard_sigmoid", **_SIXTH),
    ),
    Rule("silu", Product(1.0, _x, Op("sigmoid", _x)), _becomes("silu")),
    Rule("silu", Product(1.0, _x, Op("sigmoid", Op("mul", _x, Scalar(name="alpha")))), _silu),
    Rule("mish", Product(1.0, _x, Op("tanh", Op("softplus", _x))), _becomes("mish")),
    Rule("neutral", Op(("add", "mul"), _x, _c), _drop_neutral),
    Rule("neutral", Op(("sub", "div", "pow"), _x, _c), _drop_neutral),
    Rule("sub of constant", Op("sub", _x, _c), _sub_to_add),
    Rule("div by constant", Op("div", _x, _c), _div_to_mul),
    Rule("pow", Op("pow", _x, _c), _power),
    Rule("constants", Op("add", Op("add", _x, _c), _d), _merge_constants),
    Rule("constants", Op("mul", Op("mul", _x, _c), _d), _merge_constants),
    Rule("bound", Op(("maximum", "minimum"), _x, Scalar(name="c")), _bound_to_clip),
    Rule("clip of clip", Op(("clip", "relu"), Op(("clip", "relu"), _x, name="inner")), _merge_clip),
    Rule("clip as relu", Op("clip", _x), _clip_to_relu),
    Rule("layer_norm affine", Op(("mul", "add"), Op("layer_norm", name="norm"), _c), _norm_affine),
    Rule(
        "bias",
        Op("add", Op(("conv", "matmul", "conv_transpose"), name="anchor"), _c),
        _into_bias,
    ),
)
