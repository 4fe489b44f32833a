"""SVDF: a recurrent layer that keeps the last values of each filter's feature.

For each of U * rank filters: the product of the input with the filter's feature weights enters a
memory of M values, and the memory is weighted by the filter's time weights. The sums of a unit's
filters, a bias and an activation make its output (Nakkiran et al., "Compressing Deep Neural
Networks using a Rank-Constrained Topology", Interspeech 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aotgen.frontend.tflite import anchors, scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, Requant
from aotgen.te.compute import int_range

STATE = 4


@dataclass(frozen=True)
class _Shape:
    """Extents: rows N, filters F, memory M, units U; F = U * rank."""

    rows: int
    filters: int
    memory: int
    units: int


def _shape(node: TfliteNode) -> _Shape:
    x, feature, time = node.input(0), node.input(1), node.input(2)
    if len(x.shape) != 2 or len(feature.shape) != 2 or len(time.shape) != 2:
        node.refuse("its input and weights must have two axes")
    filters, memory = time.shape
    rank = int(node.options["rank"])
    if feature.shape != (filters, x.shape[1]) or rank < 1 or filters % rank:
        shapes = f"{list(feature.shape)} and {list(time.shape)} with rank {rank}"
        node.refuse(f"weights {shapes} do not fit an input {list(x.shape)}")
    if node.input(STATE).type.numel != x.shape[0] * filters * memory:
        node.refuse(f"a state of shape {list(node.input(STATE).shape)} does not fit")
    return _Shape(x.shape[0], filters, memory, filters // rank)


@converter("SVDF")
def svdf(node: TfliteNode) -> Value:
    """x [N, I], feature weights [F, I], time weights [F, M], bias [U] -> [N, U]; the state is
    [N, F * M].
    """
    shape = _shape(node)
    x, feature, time = node.input(0), node.input(1), node.input(2)
    weights = (feature.dtype, time.dtype)
    if x.dtype is DType.F32 and all(d in (DType.F32, DType.I8) for d in weights):
        return _float(node, shape)
    if x.dtype is feature.dtype is DType.I8 and time.dtype is node.input(STATE).dtype:
        return _integer(node, shape)
    node.refuse(
        f"input {x.dtype.value}, weights {feature.dtype.value} and {time.dtype.value} are not "
        "supported",
        "use float32, or int8 with a state of int8 or int16",
    )


def _filtered(node: TfliteNode, shape: _Shape, feature: Value, time: Value, **attrs: Any) -> Value:
    """The op ``svdf``, whose memory is kept for the next run."""
    held = node.reshape(node.input(STATE), (shape.rows, shape.filters * shape.memory))
    bias = node.optional(3)
    if bias is not None:
        bias = node.reshape(bias, (shape.units,))
    y, memory = node.emit_all("svdf", [feature, time, bias, held], units=shape.units, **attrs)
    if node.input_is_variable(STATE):
        node.set_variable(STATE, node.reshape(memory, node.input(STATE).shape))
    return y


def _float(node: TfliteNode, shape: _Shape) -> Value:
    """In float32 on the weights' real values; of int8 weights LiteRT rounds the input, too."""
    x = node.input(0)
    feature = node.constant(scales.real_constant(node, 1, "the feature weights"), "feature")
    time = node.constant(scales.real_constant(node, 2, "the time weights"), "time")
    newest = node.emit("matmul", [x, feature, None], trans_b=True)
    y = _filtered(node, shape, newest, time, requant=None, dtype=DType.F32, quant=None)
    return node.activation(y)


def _integer(node: TfliteNode, shape: _Shape) -> Value:
    """The new feature on the scale of the state, sums in int32, and one rescale.

    Both runtimes clamp to the range of the output's type and ignore the activation otherwise.
    LiteRT lacks a state of int8, which is computed as tflite-micro does.
    """
    state = node.input(STATE)
    x_scale, x_zero = scales.of_input(node, 0)
    s_scale, s_zero = scales.of_input(node, STATE)
    y_scale, y_zero = scales.of_output(node)
    w_scale, t_scale = (_weight_scale(node, i) for i in (1, 2))
    if s_zero or node.output_dtype() is not DType.I8:
        node.refuse(
            f"a state with zero point {s_zero} or an output of {node.output_dtype().value} is not "
            "supported",
            "quantize the state symmetrically and the output to int8",
        )
    low, high = int_range(state.dtype)
    multiplier, shift = quantize_multiplier(float(x_scale * w_scale / s_scale))
    feature = node.emit(
        "qmatmul",
        [
            node.input(0),
            node.input(1),
            None,
            anchors.zero_value(node, x_zero, DType.I8),
            None,
        ],
        trans_b=True,
        dtype=state.dtype,
        requant=Requant("tflm", (multiplier,), (shift,), (), 0, low, high),
        quant=state.type.quant,
    )
    multiplier, shift = quantize_multiplier(float(s_scale * t_scale / y_scale))
    requant = Requant("tflm", (multiplier,), (shift,), (), y_zero, -128, 127)
    quant = node.output_quant()
    time = node.input(2)
    return _filtered(node, shape, feature, time, requant=requant, dtype=DType.I8, quant=quant)


def _weight_scale(node: TfliteNode, index: int) -> np.float32:
    scale, zero = scales.per_tensor(node, node.input(index).type.quant, f"weight {index}")
    if zero:
        node.refuse(f"its weight {index} has zero point {zero}", "quantize it symmetrically")
    return scale
