"""What the converters of domain ai.onnx.ml share: attributes, labels, and what happens to scores.

The operators' text leaves much open; where it does, onnxruntime's behaviour is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType

DOMAIN = "ai.onnx.ml"

POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""In the order of TreeEnsemble's numbers."""


def floats(n: OnnxNode, name: str) -> Array:
    """A list of floats as float32, empty when absent."""
    return np.array(n.get_floats(name), np.float32)


def ints(n: OnnxNode, name: str) -> Array:
    """A list of integers as int64, empty when absent."""
    return np.array(n.get_ints(name) or (), np.int64)


def floats_or_tensor(n: OnnxNode, name: str) -> Array:
    """``name`` as float32, or ``name``_as_tensor in its own type (opset 3 on) flattened."""
    tensor = n.get_tensor(f"{name}_as_tensor")
    if tensor is None or tensor.size == 0:
        return floats(n, name)
    if tensor.dtype not in (np.float32, np.float64):
        n.refuse(f"{name}_as_tensor is {tensor.dtype}, not float or double")
    return tensor.reshape(-1)


def as_float(n: OnnxNode, x: Value) -> Value:
    """``x`` as f32; these operators compute with floats whatever they are given."""
    if x.dtype is DType.BOOL:
        n.refuse("a bool input is not supported", "cast its input to float")
    return n.cast(x, DType.F32)


def rows(n: OnnxNode, x: Value) -> Value:
    """[C] as [1, C]; [N, C] as it is."""
    if len(x.shape) == 1:
        return n.reshape(x, (1, x.shape[0]))
    if len(x.shape) != 2:
        n.refuse(f"its input has rank {len(x.shape)}, not 1 or 2")
    return x


def int_labels(n: OnnxNode, name: str) -> Array:
    """Integer class labels; string ones are refused when the label is used."""
    if n.get_strings("classlabels_strings") and n.is_used(0):
        n.refuse(
            "its class labels are strings",
            "train or convert the model with integer labels, or use the scores alone",
        )
    return ints(n, name)


def labels_of(n: OnnxNode, position: Value, labels: Array) -> Value:
    """The label at each position; the position itself where labels are 0, 1, 2 ..."""
    if not len(labels) or np.array_equal(labels, np.arange(len(labels))):
        return n.cast(position, DType.I64)
    return n.emit("gather", [n.constant(labels, "labels"), position], axis=0)


def choose(n: OnnxNode, condition: Value, yes: int, no: int) -> Value:
    """int64 ``yes`` where ``condition`` holds, else ``no``."""
    return n.emit(
        "where",
        [condition, n.constant(np.array(yes, np.int64)), n.constant(np.array(no, np.int64))],
    )


def post_transform(n: OnnxNode, scores: Value, kind: str) -> Value:
    """``kind`` over each row of scores [N, K], K at least 2 or ``kind`` one of single scores."""
    if kind == "LOGISTIC":
        return n.emit("sigmoid", [scores])
    if kind == "SOFTMAX":
        return n.emit("softmax", [scores], axis=1)
    if kind == "SOFTMAX_ZERO":
        return _softmax_zero(n, scores)
    if kind == "PROBIT":
        return probit(n, scores)
    if kind != "NONE":
        n.refuse(f"post_transform={kind!r} is not known")
    return scores


def _softmax_zero(n: OnnxNode, scores: Value) -> Value:
    """Softmax over the scores that are not 0 (beyond 1e-7); those keep score * exp(-max)."""
    tiny = n.scalar(1e-7, scores)
    seen = n.emit("greater", [n.emit("abs", [scores]), tiny])
    top = n.emit("reduce_max", [scores], axes=(1,), keepdims=True)
    power = n.emit("exp", [n.emit("sub", [scores, top])])
    shrunk = n.emit("mul", [scores, n.emit("exp", [n.emit("neg", [top])])])
    each = n.emit("where", [seen, power, shrunk])
    total = n.emit("reduce_sum", [each], axes=(1,), keepdims=True)
    return n.emit("div", [each, total])


def probit(n: OnnxNode, x: Value) -> Value:
    """sqrt(2) * erfinv(2 x - 1) with Winitzki's approximation of erfinv, as onnxruntime has it:
    sign(y) sqrt(sqrt(b^2 - l / 0.147) - b), l = log((1 - y)(1 + y)), b = 2 / (pi 0.147) + l / 2.
    """

    def number(value: float) -> Value:
        return n.scalar(value, x)

    y = n.emit("sub", [n.emit("mul", [x, number(2.0)]), number(1.0)])
    outside = n.emit("mul", [n.emit("sub", [number(1.0), y]), n.emit("add", [number(1.0), y])])
    log = n.emit("log", [outside])
    b = n.emit("add", [number(2.0 / (3.14159 * 0.147)), n.emit("mul", [log, number(0.5)])])
    inner = n.emit("sub", [n.emit("mul", [b, b]), n.emit("div", [log, number(0.147)])])
    root = n.emit("sqrt", [n.emit("sub", [n.emit("sqrt", [inner]), b])])
    sign = n.emit("where", [n.emit("less", [y, number(0.0)]), number(-1.0), number(1.0)])
    return n.emit("mul", [n.emit("mul", [sign, root]), number(1.41421356)])


def pair(n: OnnxNode, first: Value, second: Value) -> Value:
    """[N, 1] and [N, 1] side by side."""
    return n.emit("concat", [first, second], axis=1)


def complement(n: OnnxNode, score: Value) -> Value:
    """1 - score."""
    return n.emit("sub", [n.scalar(1.0, score), score])


def column(n: OnnxNode, scores: Value, index: int) -> Value:
    """Column ``index`` of [N, K] as [N, 1]."""
    return scores if scores.shape[1] == 1 else n.cut(scores, 1, index, index + 1)


def vector(n: OnnxNode, x: Value) -> Value:
    """[N, 1] as [N]."""
    return n.reshape(x, (x.shape[0],))


def need_length(n: OnnxNode, name: str, values: Sequence[object] | Array, wanted: int) -> None:
    if len(values) != wanted:
        n.refuse(f"{name} has {len(values)} entries, {wanted} are needed", "export the model again")
