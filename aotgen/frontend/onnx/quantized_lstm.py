"""DynamicQuantizeLSTM of onnxruntime's domain.

onnxruntime quantizes the whole input once and the hidden state in every step. A few steps, which is
what streaming models have, are written out with exactly these products; longer sequences run as a
float LSTM with the weights' real values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aotgen.frontend.onnx.microsoft import DOMAIN as MICROSOFT
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.quantized import dynamic_quantize
from aotgen.frontend.onnx.recurrent import recurrent
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType

MAX_STEPS = 8
"""Most steps, those of both directions together, that are written out one by one."""


@dataclass(frozen=True)
class _Weights:
    """W or R of all directions: integers [D, K, 4H], scale and zero point [D, 1, 1 or 4H]."""

    values: Array
    scale: Array
    zero: Array

    def real(self) -> Array:
        """float32 [D, 4H, K], LSTM's own layout."""
        centred = (self.values.astype(np.int32) - self.zero.astype(np.int32)).astype(np.float32)
        return np.ascontiguousarray((centred * self.scale).transpose(0, 2, 1))


def _weights(n: OnnxNode, index: int, scale_at: int) -> _Weights:
    values = n.need(index, "the weight")
    if values.ndim != 3 or values.dtype not in (np.int8, np.uint8):
        n.refuse(f"a weight of shape {list(values.shape)} and type {values.dtype} does not fit")
    parts = []
    for at in (scale_at, scale_at + 1):
        part = n.need(at, "the weight's quantization")
        if part.shape[:1] != values.shape[:1] or part.size not in (len(part), values[:, 0].size):
            n.refuse(f"input {at} of shape {list(part.shape)} does not fit the weight")
        parts.append(part.reshape(len(values), 1, -1))
    return _Weights(values, *parts)


@converts("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(n: OnnxNode) -> list[Value | None]:
    """X [T, N, I], W [D, I, 4H], R [D, H, 4H], B [D, 8H], lengths, initial_h, initial_c, P, then
    scale and zero point of W and of R -> Y [T, D, N, H], Y_h and Y_c [D, N, H].
    """
    x = n.x(0)
    w, r = _weights(n, 1, 8), _weights(n, 2, 10)
    if len(x.shape) != 3 or x.dtype is not DType.F32:
        n.refuse(f"an input of type {x.type} does not fit", "use float32 [steps, batch, inputs]")
    if w.values.shape[::2] != r.values.shape[::2] or w.values.shape[1] != x.shape[2]:
        n.refuse(f"weights {list(w.values.shape)} and {list(r.values.shape)} do not fit")
    if x.shape[0] * len(w.values) <= MAX_STEPS and _is_plain(n):
        return _written_out(n, x, w, r)
    n.op = "LSTM"
    rest = [n.optional(i) for i in range(3, 8)]
    n.inputs = [x, n.constant(w.real(), "w"), n.constant(r.real(), "r"), *rest]
    return recurrent(n)


def _is_plain(n: OnnxNode) -> bool:
    """No lengths, peepholes, clip, coupled gates, nor other gate functions than LSTM's own."""
    named = n.get_strings("activations")
    own = all(name == ("Sigmoid", "Tanh", "Tanh")[k % 3] for k, name in enumerate(named))
    known = n.get_str("direction", "forward") in ("forward", "reverse", "bidirectional")
    absent = n.optional(4) is None and n.optional(7) is None and not n.has("clip")
    return own and known and absent and not n.get_int("input_forget", 0)


def _product(
    n: OnnxNode, a: tuple[Value, Value, Value], weights: _Weights, direction: int
) -> Value:
    """The real product of quantized rows [M, K] with a direction's weights: [M, 4H]."""
    values, scale, zero = a
    point = weights.zero[direction].reshape(-1)
    if (point == point[0]).all():
        point = point[:1]
    acc = n.emit(
        "qmatmul",
        [
            values,
            n.constant(weights.values[direction], "weight"),
            None,
            n.reshape(zero, (1,)),
            n.constant(point, "zero") if point.any() else None,
        ],
        trans_b=False,
        dtype=DType.I32,
        requant=None,
        quant=None,
    )
    own = weights.scale[direction].reshape(-1)
    factor = n.emit("mul", [n.reshape(scale, ()), n.constant(own if own.size > 1 else own[0])])
    return n.emit("mul", [n.cast(acc, DType.F32), factor])


def _written_out(n: OnnxNode, x: Value, w: _Weights, r: _Weights) -> list[Value | None]:
    steps, rows, inputs = x.shape
    directions, hidden = len(w.values), r.values.shape[1]
    quantized = dynamic_quantize(n, n.reshape(x, (steps * rows, inputs)))
    every: list[list[Value]] = [[] for _ in range(steps)]
    last: tuple[list[Value], list[Value]] = ([], [])
    for d in range(directions):
        gates = _biased(n, _product(n, quantized, w, d), d, hidden)
        h, c = (_initial(n, index, d, (rows, hidden)) for index in (5, 6))
        backward = d == 1 or n.get_str("direction", "forward") == "reverse"
        for t in range(steps)[:: -1 if backward else 1]:
            own = n.cut(gates, 0, t * rows, (t + 1) * rows) if steps > 1 else gates
            total = n.emit("add", [own, _product(n, dynamic_quantize(n, h), r, d)])
            i, o, f, g = n.emit_all("split", [total], axis=1, sizes=(hidden,) * 4)
            i, o, f = (n.emit("sigmoid", [v]) for v in (i, o, f))
            new = n.emit("mul", [i, n.emit("tanh", [g])])
            c = n.emit("add", [n.emit("mul", [f, c]), new])
            h = n.emit("mul", [o, n.emit("tanh", [c])])
            every[t].append(n.reshape(h, (1, 1, rows, hidden)))
        last[0].append(n.reshape(h, (1, rows, hidden)))
        last[1].append(n.reshape(c, (1, rows, hidden)))
    y = n.concat([n.concat(parts, 1) for parts in every], 0)
    outputs: list[Value | None] = [y, n.concat(last[0], 0), n.concat(last[1], 0)]
    return outputs[: len(n.proto.output)]


def _initial(n: OnnxNode, index: int, direction: int, shape: tuple[int, int]) -> Value:
    """A direction's initial state [N, H]; zeros when absent."""
    state = n.optional(index)
    if state is None:
        return n.constant(np.zeros(shape, np.float32), "zeros")
    if state.shape[1:] != shape or len(state.shape) != 3:
        n.refuse(f"an initial state of shape {list(state.shape)} does not fit {list(shape)}")
    return n.reshape(n.cut(state, 0, direction, direction + 1), shape)


def _biased(n: OnnxNode, gates: Value, direction: int, hidden: int) -> Value:
    """Plus both biases, B [D, 8H]."""
    if n.optional(3) is None:
        return gates
    bias = n.need(3, "the bias")
    if bias.ndim != 2 or bias.shape[1] != 8 * hidden:
        n.refuse(f"a bias of shape {list(bias.shape)} does not fit a hidden size of {hidden}")
    both = bias[direction].reshape(2, 4 * hidden)
    return n.emit("add", [gates, n.constant(both[0] + both[1], "bias")])
