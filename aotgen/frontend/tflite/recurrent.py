"""Recurrent layers: UNIDIRECTIONAL_SEQUENCE_LSTM, LSTM, UNIDIRECTIONAL_SEQUENCE_RNN and RNN.

The product of the input of all steps is a matmul of its own; a loop over time follows, one op. The
hidden and the cell state are variable tensors, which the model keeps from run to run. Float layers
with a projection or layer normalisation are written out step by step instead.

Float layers with int8 weights (dynamic range) run in float32 on the weights' real values, where
LiteRT rounds the activations of every step to int8 as well.
"""

from __future__ import annotations

import numpy as np

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.integer_lstm import integer
from aotgen.frontend.tflite.lstm_layer import (
    BIASES,
    CELL_STATE,
    HIDDEN_STATE,
    INPUT_WEIGHTS,
    LAYER_NORMS,
    PEEPHOLES,
    PROJECTION,
    RECURRENT_WEIGHTS,
    Layer,
    clip_of,
    sequence,
    swapped,
)
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType

MAX_STEPS = 32
"""Most steps of a layer that is written out."""

_LAYER_NORM_EPS = 1e-8

ACTIVATIONS: dict[str, tuple[str, float, float]] = {
    "NONE": ("Affine", 1.0, 0.0),
    "RELU": ("Relu", 0.0, 0.0),
    "RELU6": ("Clip", 0.0, 6.0),
    "RELU_N1_TO_1": ("Clip", -1.0, 1.0),
    "TANH": ("Tanh", 0.0, 0.0),
}
"""Fused activations as the gate functions of the recurrent ops."""


def _gate_function(node: TfliteNode) -> tuple[str, float, float]:
    if node.fused not in ACTIVATIONS:
        node.refuse(f"fused activation {node.fused} is not supported", "use TANH or RELU")
    return ACTIVATIONS[node.fused]


def _cell_function(node: TfliteNode) -> tuple[str, float, float]:
    """The activation of a float LSTM's cell. LiteRT's kernel leaves the output undefined without
    one; tflite-micro's takes tanh whatever the file says.
    """
    if node.fused == "NONE":
        node.refuse("an LSTM without an activation is not supported", "use TANH")
    return _gate_function(node)


@converter("UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM")
def lstm(node: TfliteNode) -> Value:
    """x [N, T, I] (LSTM: [N, I]), weights [H, I] and [H, H] of each gate -> y [N, T, H]."""
    if len(node.inputs) < 20 or node.options.get("kernel_type", "FULL") != "FULL":
        node.refuse(
            "the basic LSTM kernel is not supported",
            "export UNIDIRECTIONAL_SEQUENCE_LSTM, as TensorFlow 2 does",
        )
    x, batch_major = sequence(node)
    forget = node.input(2)
    if len(forget.shape) != 2 or forget.shape[1] != x.shape[2]:
        node.refuse(f"weights {list(forget.shape)} do not fit {x.shape[2]} features")
    layer = Layer(node, x, batch_major, node.optional(1) is None, forget.shape[0])
    if x.dtype is DType.F32 and forget.dtype in (DType.F32, DType.I8):
        return _written_out(layer) if layer.has_extras else _float(layer)
    if x.dtype in (DType.I8, DType.I16) and forget.dtype is DType.I8:
        return integer(layer)
    node.refuse(
        f"input {x.dtype.value} with weights {forget.dtype.value} is not supported",
        "use float32, or int8 weights with activations of int8 or int16",
    )


# float layers


def _float(layer: Layer) -> Value:
    """The op ``lstm``, whose gates are in the order i o f c."""
    node, size = layer.node, layer.size
    weights = layer.matrix(INPUT_WEIGHTS, "the input weight")
    recurrent = layer.matrix(RECURRENT_WEIGHTS, "the recurrent weight")
    biases = [layer.vector(BIASES + g, "a bias") for g in layer.gates]
    peepholes = [layer.vector(p, "a peephole") for p in PEEPHOLES]
    if layer.coupled:
        # i = 1 - sigmoid(z) = sigmoid(-z), and the op then has f = 1 - i.
        weights.insert(0, -weights[0])
        recurrent.insert(0, -recurrent[0])
        biases.insert(0, None if biases[0] is None else -biases[0])
        peepholes[0] = None if peepholes[1] is None else -peepholes[1]
    if recurrent[0].shape != (size, size):
        node.refuse(f"recurrent weights {list(recurrent[0].shape)} do not fit {size} units")
    order = (0, 3, 1, 2)
    w = node.constant(np.concatenate([weights[g] for g in order]), "w")
    r = node.constant(np.concatenate([recurrent[g] for g in order]), "r")
    bias = _joined([biases[g] for g in order], size)
    p = None
    if layer.has_peepholes:
        p = node.constant(_joined([peepholes[k] for k in (0, 2, 1)], size), "p")
    flat = node.reshape(layer.x, (layer.steps * layer.rows, layer.x.shape[2]))
    gates = node.emit("matmul", [flat, w, node.constant(bias, "bias")], trans_b=True)
    gates = node.reshape(gates, (layer.steps, layer.rows, 4 * size))
    activation = _cell_function(node)
    h0, c0 = layer.state(HIDDEN_STATE, size), layer.state(CELL_STATE, size)
    y, h, c = node.emit_all(
        "lstm",
        [gates, r, None, h0, c0, p, None],
        results=("y", "h", "c"),
        reverse=False,
        clip=None,
        cell_clip=clip_of(node, "cell_clip"),
        activations=(("Sigmoid", 0.0, 0.0), activation, activation),
        input_forget=layer.coupled,
    )
    layer.set_state(HIDDEN_STATE, h)
    layer.set_state(CELL_STATE, c)
    return layer.finished(y)


def _joined(parts: list[Array | None], size: int) -> Array:
    """The parts one after the other; one that is absent is zeros."""
    return np.concatenate([np.zeros(size, np.float32) if p is None else p for p in parts])


def _written_out(layer: Layer) -> Value:
    """Step by step, with a projection [P, H] of the hidden state or layer normalisation."""
    node, size = layer.node, layer.size
    if layer.steps > MAX_STEPS:
        node.refuse(
            f"a layer with a projection or layer normalisation has {layer.steps} steps, at most "
            f"{MAX_STEPS} are supported",
            "feed it fewer steps at a time: it keeps its state from run to run",
        )
    weights = layer.matrix(INPUT_WEIGHTS, "the input weight")
    recurrent = layer.matrix(RECURRENT_WEIGHTS, "the recurrent weight")
    width = recurrent[0].shape[1]
    projection = node.optional(PROJECTION)
    if width != size and projection is None:
        node.refuse(f"recurrent weights {list(recurrent[0].shape)} do not fit {size} units")
    cell = _WrittenCell(layer, weights, recurrent)
    h, c = layer.state(HIDDEN_STATE, width), layer.state(CELL_STATE, size)
    outputs = []
    for t in range(layer.steps):
        x = node.reshape(node.cut(layer.x, 0, t, t + 1), layer.x.shape[1:])
        h, c = cell.step(x, h, c)
        outputs.append(node.reshape(h, (1, layer.rows, width)))
    layer.set_state(HIDDEN_STATE, h)
    layer.set_state(CELL_STATE, c)
    return layer.finished(node.concat(outputs, 0))


class _WrittenCell:
    """Emits one step of a float layer."""

    def __init__(self, layer: Layer, weights: list[Array], recurrent: list[Array]) -> None:
        node = self.node = layer.node
        self.layer = layer
        self.w = [node.constant(w, "w") for w in weights]
        self.r = [node.constant(r, "r") for r in recurrent]
        self.bias = [self._constant(BIASES + g, "a bias") for g in layer.gates]
        self.norm = [self._constant(LAYER_NORMS + g, "a layer norm") for g in layer.gates]
        peepholes = {0: 9, 1: 10, 3: 11}
        self.peephole = {
            g: self._constant(peepholes[g], "a peephole") for g in layer.gates if g in peepholes
        }
        activation = _cell_function(node)[0]
        if activation not in ("Tanh", "Relu"):
            node.refuse(f"fused activation {node.fused} is not supported here", "use TANH or RELU")
        self.activation = activation.lower()

    def _constant(self, position: int, what: str) -> Value | None:
        found = self.layer.vector(position, what)
        return None if found is None else self.node.constant(found, "row")

    def _gate(self, gate: int, x: Value, h: Value, cell: Value | None) -> Value:
        node, k = self.node, self.layer.gates.index(gate)
        norm, bias = self.norm[k], self.bias[k]
        own = node.emit("matmul", [x, self.w[k], None if norm is not None else bias], trans_b=True)
        total = node.emit("add", [own, node.emit("matmul", [h, self.r[k], None], trans_b=True)])
        peephole = self.peephole.get(gate)
        if peephole is not None and cell is not None:
            total = node.emit("add", [total, node.emit("mul", [cell, peephole])])
        if norm is not None:
            total = node.emit("layer_norm", [total, norm, bias], axis=1, eps=_LAYER_NORM_EPS)
        return node.emit(self.activation if gate == 2 else "sigmoid", [total])

    def _clipped(self, x: Value, option: str) -> Value:
        bound = clip_of(self.node, option)
        return x if bound is None else self.node.emit("clip", [x], lo=-bound, hi=bound)

    def step(self, x: Value, h: Value, c: Value) -> tuple[Value, Value]:
        node = self.node
        forget = self._gate(1, x, h, c)
        if self.layer.coupled:
            into = node.emit("sub", [node.scalar(1.0, forget), forget])
        else:
            into = self._gate(0, x, h, c)
        new = node.emit("mul", [into, self._gate(2, x, h, None)])
        c = node.emit("add", [node.emit("mul", [forget, c]), new])
        c = self._clipped(c, "cell_clip")
        out = self._gate(3, x, h, c)
        h = node.emit("mul", [out, node.emit(self.activation, [c])])
        if node.optional(PROJECTION) is not None:
            bias = node.optional(PROJECTION + 1)
            weights = scales.real_constant(node, PROJECTION, "the projection")
            h = node.emit("matmul", [h, node.constant(weights, "projection"), bias], trans_b=True)
            h = self._clipped(h, "proj_clip")
        return h, c


# plain recurrent layers


@converter("UNIDIRECTIONAL_SEQUENCE_RNN", "RNN")
def rnn(node: TfliteNode) -> Value:
    """h = act(W x + R h + b); x [N, T, I] (RNN: [N, I]), W [H, I], R [H, H], b [H]."""
    x, batch_major = sequence(node)
    bias, state = node.input(3), node.input(4)
    if x.dtype is not DType.F32:
        node.refuse(f"an input of type {x.dtype.value} is not supported", "use float32")
    w = node.constant(scales.real_constant(node, 1, "the weight"), "w")
    r = node.constant(scales.real_constant(node, 2, "the recurrent weight"), "r")
    steps, rows, features = x.shape
    if len(w.shape) != 2 or w.shape[1] != features or r.shape != (w.shape[0],) * 2:
        node.refuse(f"weights {list(w.shape)} and {list(r.shape)} do not fit {features} features")
    size = w.shape[0]
    flat = node.reshape(x, (steps * rows, features))
    gates = node.emit("matmul", [flat, w, node.reshape(bias, (size,))], trans_b=True)
    y, h = node.emit_all(
        "rnn",
        [
            node.reshape(gates, (steps, rows, size)),
            r,
            None,
            node.reshape(state, (rows, size)),
            None,
            None,
            None,
        ],
        results=("y", "h"),
        reverse=False,
        clip=None,
        activations=(_gate_function(node),),
    )
    if node.input_is_variable(4):
        node.set_variable(4, node.reshape(h, state.shape))
    if node.op == "RNN":
        return node.reshape(y, (rows, size))
    return swapped(node, y) if batch_major else y
