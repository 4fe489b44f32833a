"""TFLite's integer LSTM: int8 weights, activations of int8 or int16, a cell state of int16.

Computed as the mode's runtime does where it has the layer: tflite-micro lacks coupled gates and
the operator LSTM, LiteRT lacks activations of int16; each then is computed as the other one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgen.frontend.tflite import anchors, scales
from aotgen.frontend.tflite.lstm_layer import (
    BIASES,
    CELL_STATE,
    HIDDEN_STATE,
    INPUT_WEIGHTS,
    RECURRENT_WEIGHTS,
    Layer,
    clip_of,
)
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import Array, DType, Quant, Requant

GATE_POWER = -12
"""The gates' sums of an integer LSTM count steps of 2^-12, the gates themselves steps of 2^-15."""

_CELL_POWERS = range(-15, -8)
"""Exponents of the cell state's scale that tanh is defined for."""

WIDEST_SHIFT = 14
"""Left shifts beyond it leave the arithmetic of 64-bit sums no bit to round."""


def integer(layer: Layer) -> Value:
    """The op ``integer_lstm`` behind an integer product of all steps' inputs."""
    node, size = layer.node, layer.size
    if layer.has_extras or layer.has_peepholes:
        node.refuse(
            "an integer LSTM with peepholes, a projection or layer normalisation is not supported",
            "export the layer without them, or leave it float",
        )
    if node.fused != "TANH":
        node.refuse(f"an integer LSTM with activation {node.fused} is not supported", "use TANH")
    mode = node.mode
    if layer.coupled or node.op == "LSTM":
        mode = "litert"
    if layer.x.dtype is DType.I16:
        if layer.coupled:
            node.refuse("coupled gates with activations of int16 are not supported")
        mode = "tflm"
    x_scale, x_zero = scales.of_input(node, 0)
    h_scale, h_zero = scales.of_input(node, HIDDEN_STATE)
    h0, c0 = layer.state(HIDDEN_STATE, size), layer.state(CELL_STATE, size)
    if h0.dtype is not layer.x.dtype or c0.dtype is not DType.I16:
        node.refuse(f"states of {h0.dtype.value} and {c0.dtype.value} do not fit its input")
    power = _cell_power(node)
    wide = layer.x.dtype is DType.I16
    gates = _input_share(layer, (x_scale, x_zero), mode, wide)
    recurrent = layer.matrix(RECURRENT_WEIGHTS, "the recurrent weight")
    if recurrent[0].shape != (size, size):
        node.refuse(f"recurrent weights {list(recurrent[0].shape)} do not fit {size} units")
    factors = [
        quantize_multiplier(_gate_factor(mode, h_scale, _weight_scale(node, RECURRENT_WEIGHTS[g])))
        for g in layer.gates
    ]
    _expect_room(node, factors, wide)
    hidden = 2.0**-30 / float(h_scale)
    y, h, c = node.emit_all(
        "integer_lstm",
        [gates, node.constant(np.concatenate(recurrent), "r"), h0, c0],
        results=("y", "h", "c"),
        mode=mode,
        gate_scale=tuple(factors),
        zero_point=h_zero,
        cell_power=power,
        cell_clip=_integer_clip(node, power),
        hidden_scale=quantize_multiplier(hidden),
        wide=wide,
        dtype=h0.dtype,
        quant=Quant((float(h_scale),), (h_zero,)),
    )
    layer.set_state(HIDDEN_STATE, h)
    layer.set_state(CELL_STATE, c)
    return layer.finished(y)


def _weight_scale(node: TfliteNode, position: int) -> np.float32:
    scale, zero = scales.per_tensor(node, node.input(position).type.quant, "weight")
    if zero:
        node.refuse(f"its weight {position} has zero point {zero}", "quantize it symmetrically")
    return scale


def _gate_factor(mode: str, x: np.float32, w: np.float32) -> float:
    """From a sum of products to steps of 2^-12: tflite-micro multiplies in double, LiteRT in
    float32.
    """
    product = float(x) * float(w) if mode == "tflm" else float(w * x)
    return product * 2.0**-GATE_POWER


def _expect_room(node: TfliteNode, factors: Sequence[tuple[int, int]], wide: bool) -> None:
    """Refuse multipliers and shifts that 64-bit sums have no room for."""
    if wide and max(shift for _, shift in factors) > WIDEST_SHIFT:
        node.refuse("its scales multiply 64-bit sums by too much", "quantize the model again")


def _cell_power(node: TfliteNode) -> int:
    scale, zero = scales.of_input(node, CELL_STATE)
    power = scales.pot_exponent(scale)
    if power is None or zero or power not in _CELL_POWERS:
        low, high = _CELL_POWERS[0], _CELL_POWERS[-1]
        node.refuse(
            f"its cell state has scale {scale}, zero point {zero}",
            f"quantize it with a power of two from 2^{low} to 2^{high} and zero point 0",
        )
    return power


def _integer_clip(node: TfliteNode, power: int) -> int:
    bound = clip_of(node, "cell_clip")
    if bound is None:
        return 0
    steps = int(min(bound * 2.0**-power, 32767.0))
    if steps == 0:
        node.refuse(f"a cell clip of {bound} is less than a step of its cell state")
    return steps


def _input_share(layer: Layer, x: tuple[np.float32, int], mode: str, wide: bool) -> Value:
    """gates [T, N, G * H] int16: the products with the input, and the biases."""
    node, size = layer.node, layer.size
    weights = layer.matrix(INPUT_WEIGHTS, "the input weight")
    parts: list[tuple[int, int]] = []
    biases: list[Array] = []
    for g in layer.gates:
        factor = _gate_factor(mode, x[0], _weight_scale(node, INPUT_WEIGHTS[g]))
        parts += [quantize_multiplier(factor)] * size
        bias = layer.vector(BIASES + g, "a bias")
        biases.append(np.zeros(size) if bias is None else bias)
    _expect_room(node, parts, wide)
    multiplier, shift = (tuple(p[k] for p in parts) for k in (0, 1))
    requant = Requant("tflm", multiplier, shift, (), 0, -32768, 32767, wide)
    bias = np.concatenate(biases).astype(np.int64 if wide else np.int32)
    inputs: list[Value | None] = [
        node.reshape(layer.x, (layer.steps * layer.rows, layer.x.shape[2])),
        node.constant(np.concatenate(weights), "w"),
        node.constant(bias, "bias"),
        anchors.zero_value(node, x[1], layer.x.dtype),
        None,
    ]
    attrs: dict[str, Any] = {"dtype": DType.I16, "requant": requant, "quant": None}
    gates = node.emit("qmatmul", inputs, trans_b=True, **attrs)
    return node.reshape(gates, (layer.steps, layer.rows, len(layer.gates) * size))
