"""Element-wise unary ops: output element i depends on input element i only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_float,
    fail,
    in_float64,
    need,
    type_of,
)
from aotgen.ops.registry import InferRule, NumpyRule, OpDef, OpPattern, register
from aotgen.te.compute import elementwise, int_range
from aotgen.te.expr import Expr, call, const, select

Unary = Callable[[AnyArray, dict[str, Any]], Any]


def _infer_same(node: Node) -> list[TensorType]:
    return [type_of(node)]


def _infer_float(node: Node) -> list[TensorType]:
    expect_float(node, type_of(node))
    return [type_of(node)]


def _infer_bool(node: Node) -> list[TensorType]:
    return [type_of(node).with_dtype(DType.BOOL)]


def _infer_not(node: Node) -> list[TensorType]:
    if type_of(node).dtype is not DType.BOOL:
        fail(node, f"needs a bool input, not {type_of(node).dtype.value}")
    return [type_of(node)]


def _infer_bits(node: Node) -> list[TensorType]:
    if not type_of(node).dtype.is_int:
        fail(node, f"needs an integer input, not {type_of(node).dtype.value}")
    return [type_of(node)]


def _native(fn: Unary) -> NumpyRule:
    """``fn`` in the tensor's own type."""

    def rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        with np.errstate(all="ignore"):
            return [np.asarray(fn(need(arrays), node.attrs))]

    return rule


def _rounded(fn: Unary) -> NumpyRule:
    """``fn`` in float64, rounded once to the tensor's type."""

    def rule(node: Node, arrays: Arrays) -> list[AnyArray]:
        return [in_float64(lambda x: fn(x, node.attrs), need(arrays))]

    return rule


def erf(x: AnyArray) -> AnyArray:
    """The error function of a float64 array, by the C library's erf."""
    flat = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, count=x.size)
    return flat.reshape(x.shape)


def sigmoid(x: AnyArray) -> AnyArray:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def softplus(x: AnyArray) -> AnyArray:
    """log(1 + exp(x)) without overflow."""
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def _gelu(x: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    if attrs["approximate"] == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
        return np.asarray(0.5 * x * (1.0 + np.tanh(inner)))
    return np.asarray(0.5 * x * (1.0 + erf(x * math.sqrt(0.5))))


def _slope(attrs: Mapping[str, Any]) -> tuple[float, float]:
    """hard_swish's ramp: its slope (attribute alpha, 1/6) and offset (beta, 1/2)."""
    return float(attrs.get("alpha", 1.0 / 6.0)), float(attrs.get("beta", 0.5))


def _hard_swish(x: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    slope, offset = _slope(attrs)
    return np.asarray(x * np.clip(x * slope + offset, 0.0, 1.0))


def _clip(x: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    """min(hi, max(lo, x)): hi wins when lo > hi, and NaN stays NaN."""
    lo, hi = attrs["lo"], attrs["hi"]
    if x.dtype.kind != "f":
        info = np.iinfo(x.dtype)
        lo = info.min if lo <= info.min else min(math.ceil(lo), info.max)
        hi = info.max if hi >= info.max else max(math.floor(hi), info.min)
    return np.asarray(np.minimum(np.maximum(x, x.dtype.type(lo)), x.dtype.type(hi)))


def _isinf(x: AnyArray, attrs: dict[str, Any]) -> AnyArray:
    positive, negative = attrs.get("positive", True), attrs.get("negative", True)
    return np.asarray(np.isinf(x) & ((x > 0) & positive | (x < 0) & negative))


def _elu(x: AnyArray, alpha: float) -> AnyArray:
    return np.asarray(np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0))))


def _celu(x: AnyArray, alpha: float) -> AnyArray:
    return np.asarray(np.maximum(x, 0.0) + np.minimum(0.0, alpha * np.expm1(x / alpha)))


# name -> (type rule, semantics)
_OPS: dict[str, tuple[InferRule, NumpyRule]] = {
    # Exact in the tensor's own type.
    "identity": (_infer_same, _native(lambda x, a: x)),
    "relu": (_infer_same, _native(lambda x, a: np.maximum(x, x.dtype.type(0)))),
    "sqrt": (_infer_float, _native(lambda x, a: np.sqrt(x))),
    "reciprocal": (_infer_float, _native(lambda x, a: x.dtype.type(1) / x)),
    "neg": (_infer_same, _native(lambda x, a: np.negative(x))),
    "abs": (_infer_same, _native(lambda x, a: np.abs(x))),
    "floor": (_infer_float, _native(lambda x, a: np.floor(x))),
    "ceil": (_infer_float, _native(lambda x, a: np.ceil(x))),
    "round": (_infer_float, _native(lambda x, a: np.rint(x))),
    "sign": (_infer_same, _native(lambda x, a: np.sign(x))),
    "clip": (_infer_same, _native(_clip)),
    "leaky_relu": (_infer_float, _native(lambda x, a: np.where(x < 0, x * float(a["alpha"]), x))),
    "thresholded_relu": (
        _infer_float,
        _native(lambda x, a: np.where(x > float(a["alpha"]), x, x.dtype.type(0))),
    ),
    "not": (_infer_not, _native(lambda x, a: np.logical_not(x))),
    "bit_not": (_infer_bits, _native(lambda x, a: np.invert(x))),
    "isnan": (_infer_bool, _native(lambda x, a: np.isnan(x))),
    "isinf": (_infer_bool, _native(_isinf)),
    # Computed in float64, rounded once.
    "sigmoid": (_infer_float, _rounded(lambda x, a: sigmoid(x))),
    "tanh": (_infer_float, _rounded(lambda x, a: np.tanh(x))),
    "exp": (_infer_float, _rounded(lambda x, a: np.exp(x))),
    "log": (_infer_float, _rounded(lambda x, a: np.log(x))),
    "rsqrt": (_infer_float, _rounded(lambda x, a: 1.0 / np.sqrt(x))),
    "erf": (_infer_float, _rounded(lambda x, a: erf(x))),
    "sin": (_infer_float, _rounded(lambda x, a: np.sin(x))),
    "cos": (_infer_float, _rounded(lambda x, a: np.cos(x))),
    "tan": (_infer_float, _rounded(lambda x, a: np.tan(x))),
    "asin": (_infer_float, _rounded(lambda x, a: np.arcsin(x))),
    "acos": (_infer_float, _rounded(lambda x, a: np.arccos(x))),
    "atan": (_infer_float, _rounded(lambda x, a: np.arctan(x))),
    "sinh": (_infer_float, _rounded(lambda x, a: np.sinh(x))),
    "cosh": (_infer_float, _rounded(lambda x, a: np.cosh(x))),
    "asinh": (_infer_float, _rounded(lambda x, a: np.arcsinh(x))),
    "acosh": (_infer_float, _rounded(lambda x, a: np.arccosh(x))),
    "atanh": (_infer_float, _rounded(lambda x, a: np.arctanh(x))),
    "softplus": (_infer_float, _rounded(lambda x, a: softplus(x))),
    "softsign": (_infer_float, _rounded(lambda x, a: x / (1.0 + np.abs(x)))),
    "silu": (_infer_float, _rounded(lambda x, a: x * sigmoid(x * float(a.get("alpha", 1.0))))),
    "hard_swish": (_infer_float, _rounded(_hard_swish)),
    "hard_sigmoid": (
        _infer_float,
        _rounded(lambda x, a: np.clip(a["alpha"] * x + a["beta"], 0.0, 1.0)),
    ),
    "mish": (_infer_float, _rounded(lambda x, a: x * np.tanh(softplus(x)))),
    "elu": (_infer_float, _rounded(lambda x, a: _elu(x, a["alpha"]))),
    "selu": (_infer_float, _rounded(lambda x, a: a["gamma"] * _elu(x, a["alpha"]))),
    "celu": (_infer_float, _rounded(lambda x, a: _celu(x, a["alpha"]))),
    "gelu": (_infer_float, _rounded(_gelu)),
}

Attributes = Mapping[str, Any]


def te_softplus(x: Expr) -> Expr:
    return call("relu", x) + call("log1p", call("exp", -call("abs", x)))


def _te_elu(x: Expr, alpha: float) -> Expr:
    low = call("min", const(0, x.dtype), x)
    return select(call("greater", x, const(0, x.dtype)), x, call("expm1", low) * alpha)


def te_clip(x: Expr, attrs: Attributes) -> Expr:
    """Bounds come first, so that a NaN stays; a bound that cuts nothing is left out."""
    lo, hi = attrs["lo"], attrs["hi"]
    if not x.dtype.is_float:
        least, most = int_range(x.dtype)
        lo = None if lo <= least else min(math.ceil(lo), most)
        hi = None if hi >= most else max(math.floor(hi), least)
    else:
        lo, hi = (None if lo == -math.inf else lo), (None if hi == math.inf else hi)
    if lo == 0 and x.dtype.is_float:
        x = call("relu", x)
    elif lo is not None:
        x = call("max", const(lo, x.dtype), x)
    return x if hi is None else call("min", const(hi, x.dtype), x)


def _te_sign(x: Expr, attrs: Attributes) -> Expr:
    zero = const(0, x.dtype)
    if x.dtype.c.startswith("u"):
        return select(call("greater", x, zero), const(1, x.dtype), zero)
    below = select(call("less", x, zero), const(-1, x.dtype), x)
    return select(call("greater", x, zero), const(1, x.dtype), below)


def _te_isinf(x: Expr, attrs: Attributes) -> Expr:
    if not x.dtype.is_float or not (attrs.get("positive", True) or attrs.get("negative", True)):
        return const(False, DType.BOOL)
    if not attrs.get("negative", True):
        return call("equal", x, const(math.inf, x.dtype))
    if not attrs.get("positive", True):
        return call("equal", x, const(-math.inf, x.dtype))
    return call("equal", call("abs", x), const(math.inf, x.dtype))


def _te_gelu(x: Expr, attrs: Attributes) -> Expr:
    if attrs["approximate"] == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
        return x * 0.5 * (call("tanh", inner) + 1.0)
    return x * 0.5 * (call("erf", x * math.sqrt(0.5)) + 1.0)


def _te_ramp(x: Expr, slope: float, offset: float) -> Expr:
    """slope * x + offset within 0..1."""
    ramp = x * slope + offset
    return call("min", const(1, x.dtype), call("relu", ramp))


def _te_silu(x: Expr, attrs: Attributes) -> Expr:
    alpha = float(attrs.get("alpha", 1.0))
    return x * call("sigmoid", x if alpha == 1.0 else x * alpha)


def _te_leaky(x: Expr, attrs: Attributes) -> Expr:
    return select(call("less", x, const(0, x.dtype)), x * float(attrs["alpha"]), x)


def _te_thresholded(x: Expr, attrs: Attributes) -> Expr:
    zero = const(0, x.dtype)
    return select(call("greater", x, const(attrs["alpha"], x.dtype)), x, zero)


def _te_celu(x: Expr, attrs: Attributes) -> Expr:
    alpha = float(attrs["alpha"])
    low = call("expm1", x / alpha) * alpha
    return call("relu", x) + call("min", const(0, x.dtype), low)


_COMPUTE: dict[str, Callable[[Expr, Attributes], Expr]] = {
    "identity": lambda x, a: x,
    "clip": te_clip,
    "sign": _te_sign,
    "isnan": lambda x, a: call("isnan", x) if x.dtype.is_float else const(False, DType.BOOL),
    "isinf": _te_isinf,
    "reciprocal": lambda x, a: 1.0 / x,
    "rsqrt": lambda x, a: 1.0 / call("sqrt", x),
    "leaky_relu": _te_leaky,
    "thresholded_relu": _te_thresholded,
    "softplus": lambda x, a: te_softplus(x),
    "softsign": lambda x, a: x / (call("abs", x) + 1.0),
    "silu": _te_silu,
    "hard_swish": lambda x, a: x * _te_ramp(x, *_slope(a)),
    "hard_sigmoid": lambda x, a: _te_ramp(x, a["alpha"], a["beta"]),
    "mish": lambda x, a: x * call("tanh", te_softplus(x)),
    "elu": lambda x, a: _te_elu(x, a["alpha"]),
    "selu": lambda x, a: _te_elu(x, a["alpha"]) * float(a["gamma"]),
    "celu": _te_celu,
    "gelu": _te_gelu,
}


def _te_call(name: str) -> Callable[[Expr, Attributes], Expr]:
    return lambda x, attrs: call(name, x)


for _name, (_infer, _numpy) in _OPS.items():
    _compute = elementwise(_COMPUTE.get(_name) or _te_call(_name))
    register(OpDef(_name, OpPattern.ELEMENTWISE, _infer, _numpy, _compute))
