"""lstm, gru, rnn: one direction of a recurrent network over a whole sequence.

The products with the input are not part of them: ``gates`` holds, for every step, the input's and
the bias' share of what goes into each gate. All three ops have the same inputs, of which every one
takes its own:

    gates    [T, N, G * H]  X W^T + bias of all steps; G = 4 (i o f c), 3 (z r h), 1
    r        [G * H, H]     recurrent weights, the gates in the same order
    rb       [H]            gru with linear_before_reset: the recurrent bias of gate h
    h0, c0   [N, H]         initial state; absent for zeros; c0 of lstm alone
    p        [3 * H]        lstm: peepholes i o f
    lengths  [N] int32      valid steps of each row; absent for T

Attributes: ``results``, which of ("y", "h", "c") the node has as outputs, in this order, where y is
[T, N, H], h and c the state [N, H] behind the last valid step; ``reverse``; ``clip``, the bound of
every gate's sum or None; ``activations``, a (name, alpha, beta) of ONNX for each gate function;
``input_forget`` and ``cell_clip``, the bound of the cell state or None (lstm);
``linear_before_reset`` (gru).

Behind a row's length y is 0. A row of length 0 ends in a state of zeros, whatever h0 and c0 are, as
in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Node, Value
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_float,
    expect_rank,
    expect_same_dtype,
    expect_shape,
    fail,
    maybe,
    need,
    optional_type,
    type_of,
)
from aotgen.ops.registry import OpDef, OpPattern, register

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Gates of each op."""

TRIMMED = frozenset({*GATES, "integer_lstm"})
"""Ops whose attribute ``results`` says which outputs they have."""

INPUTS = ("gates", "r", "rb", "h0", "c0", "p", "lengths")
"""Names of the inputs by position."""

RESULTS = ("y", "h", "c")

Activation = tuple[str, float, float]
F64 = npt.NDArray[np.float64]


def _sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


ACTIVATIONS: dict[str, Callable[[F64, float, float], F64]] = {
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "Clip": lambda x, alpha, beta: np.clip(x, alpha, beta),
    "Elu": lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(x), x),
    "HardSigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0.0, 1.0),
    "LeakyRelu": lambda x, alpha, beta: np.where(x < 0, alpha * x, x),
    "Relu": lambda x, alpha, beta: np.maximum(x, 0.0),
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "Sigmoid": lambda x, alpha, beta: _sigmoid(x),
    "Softplus": lambda x, alpha, beta: np.logaddexp(x, 0.0),
    "Softsign": lambda x, alpha, beta: x / (1.0 + np.abs(x)),
    "Tanh": lambda x, alpha, beta: np.tanh(x),
    "ThresholdedRelu": lambda x, alpha, beta: np.where(x < alpha, 0.0, x),
}
"""ONNX's gate functions of x, alpha and beta, and Clip: x within [alpha, beta]."""


def functions(op: str) -> int:
    """How many gate functions an op has: f g h of lstm, f g of gru, f of rnn."""
    return {"lstm": 3, "gru": 2, "rnn": 1}[op]


def trim_results(node: Node, live: set[Value]) -> bool:
    """Drop the outputs of a recurrent node that nothing reads, of which one must be left; whether
    there were any.
    """
    if node.op not in TRIMMED or all(v in live for v in node.outputs):
        return False
    kept = [(r, v) for r, v in zip(node.attrs["results"], node.outputs, strict=True) if v in live]
    if not kept:
        return False
    node.attrs = {**node.attrs, "results": tuple(r for r, _ in kept)}
    node.outputs = [v for _, v in kept]
    return True


def _infer(node: Node) -> list[TensorType]:
    gates, r = type_of(node, 0), type_of(node, 1)
    expect_float(node, gates)
    expect_rank(node, gates, 3, 3)
    expect_rank(node, r, 2, 2)
    t, n, width = gates.shape
    hidden = r.max_shape[1]
    expect_shape(node, "the recurrent weight", r, (GATES[node.op] * hidden, hidden))
    if gates.max_shape[2] != r.max_shape[0]:
        fail(node, f"gates of {width} columns do not fit a hidden size of {hidden}")
    rows = gates.max_shape[1]
    shapes = {2: (hidden,), 3: (rows, hidden), 4: (rows, hidden), 5: (3 * hidden,)}
    floats = [gates, r]
    for index, shape in shapes.items():
        found = optional_type(node, index)
        if found is not None:
            expect_shape(node, f"input {INPUTS[index]}", found, shape)
            floats.append(found)
    expect_same_dtype(node, floats)
    lengths = optional_type(node, 6)
    if lengths is not None:
        expect_shape(node, "input lengths", lengths, (rows,))
        if lengths.dtype is not DType.I32:
            fail(node, f"lengths are {lengths.dtype.value}, must be i32")
    _check_attrs(node)
    types = {
        "y": TensorType(gates.dtype, (t, n, hidden)),
        "h": TensorType(gates.dtype, (n, hidden)),
        "c": TensorType(gates.dtype, (n, hidden)),
    }
    return [types[name] for name in node.attrs["results"]]


def _check_attrs(node: Node) -> None:
    allowed = [r for r in RESULTS if r != "c" or node.op == "lstm"]
    results = node.attrs["results"]
    if not results or list(results) != [r for r in allowed if r in results]:
        fail(node, f"results are {results}, must be some of {tuple(allowed)} in this order")
    names = [name for name, _, _ in node.attrs["activations"]]
    if len(names) != functions(node.op) or not set(names) <= set(ACTIVATIONS):
        fail(node, f"has activations {names}, needs {functions(node.op)} known ones")
    if node.op != "lstm" and (node.optional(4) is not None or node.optional(5) is not None):
        fail(node, "only an lstm has c0 and peepholes")
    if node.optional(2) is not None and not node.attrs.get("linear_before_reset"):
        fail(node, "only a gru with linear_before_reset has a recurrent bias of its own")


class _Cell:
    """One step of each op, in float64."""

    def __init__(self, node: Node, arrays: Arrays) -> None:
        self.attrs = node.attrs
        self.r: F64 = need(arrays, 1).astype(np.float64)
        self.hidden = self.r.shape[1]
        self.rb = maybe(arrays, 2)
        self.p = maybe(arrays, 5)
        self.step = {"lstm": self.lstm, "gru": self.gru, "rnn": self.rnn}[node.op]

    def act(self, index: int, x: F64) -> F64:
        name, alpha, beta = self.attrs["activations"][index]
        return ACTIVATIONS[name](x, alpha, beta)

    def clip(self, x: F64) -> F64:
        bound = self.attrs["clip"]
        return x if bound is None else np.clip(x, -bound, bound)

    def gate(self, x: F64, index: int) -> F64:
        return x[..., index * self.hidden : (index + 1) * self.hidden]

    def weight(self, index: int) -> F64:
        return self.r[index * self.hidden : (index + 1) * self.hidden]

    def peephole(self, index: int, c: F64) -> F64 | float:
        if self.p is None:
            return 0.0
        part: F64 = self.p[index * self.hidden : (index + 1) * self.hidden].astype(np.float64)
        return part * c

    def lstm(self, x: F64, h: F64, c: F64) -> tuple[F64, F64]:
        """i, o, f, c gates; h of the activations is not clipped."""
        total = x + h @ self.r.T
        i = self.act(0, self.clip(self.gate(total, 0) + self.peephole(0, c)))
        if self.attrs["input_forget"]:
            f = 1.0 - i
        else:
            f = self.act(0, self.clip(self.gate(total, 2) + self.peephole(2, c)))
        fresh = f * c + i * self.act(1, self.clip(self.gate(total, 3)))
        bound = self.attrs.get("cell_clip")
        if bound is not None:
            fresh = np.clip(fresh, -bound, bound)
        o = self.act(0, self.clip(self.gate(total, 1) + self.peephole(1, fresh)))
        return o * self.act(2, fresh), fresh

    def gru(self, x: F64, h: F64, c: F64) -> tuple[F64, F64]:
        """z, r, h gates."""
        z = self.act(0, self.clip(self.gate(x, 0) + h @ self.weight(0).T))
        r = self.act(0, self.clip(self.gate(x, 1) + h @ self.weight(1).T))
        if self.attrs["linear_before_reset"]:
            product = h @ self.weight(2).T
            product = r * (product if self.rb is None else product + self.rb)
        else:
            product = (r * h) @ self.weight(2).T
        fresh = self.act(1, self.clip(self.gate(x, 2) + product))
        return (1.0 - z) * fresh + z * h, c

    def rnn(self, x: F64, h: F64, c: F64) -> tuple[F64, F64]:
        return self.act(0, self.clip(x + h @ self.r.T)), c


def _state(arrays: Arrays, index: int, rows: int, hidden: int, empty: AnyArray) -> F64:
    """Initial state as a fresh array, zero where absent or where the row has no steps."""
    given = maybe(arrays, index)
    state = np.zeros((rows, hidden)) if given is None else given.astype(np.float64)
    state[empty] = 0.0
    return state


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    gates = need(arrays, 0)
    steps, rows, _ = gates.shape
    cell = _Cell(node, arrays)
    given = maybe(arrays, 6)
    lengths = np.full(rows, steps) if given is None else given
    h, c = (_state(arrays, k, rows, cell.hidden, lengths <= 0) for k in (3, 4))
    y = np.zeros((steps, rows, cell.hidden))
    with np.errstate(all="ignore"):
        for t in reversed(range(steps)) if node.attrs["reverse"] else range(steps):
            new_h, new_c = cell.step(gates[t].astype(np.float64), h, c)
            valid = (t < lengths)[:, None]
            h, c = np.where(valid, new_h, h), np.where(valid, new_c, c)
            y[t] = np.where(valid, h, 0.0)
    found = {"y": y, "h": h, "c": c}
    return [found[name].astype(gates.dtype) for name in node.attrs["results"]]


def _macs(node: Node) -> int:
    t, n, width = node.input(0).type.max_shape
    return t * n * width * node.input(1).type.max_shape[1]


def _register(ops: Sequence[str]) -> None:
    for op in ops:
        register(OpDef(op, OpPattern.OPAQUE, _infer, _numpy, None, macs=_macs))


_register(tuple(GATES))
