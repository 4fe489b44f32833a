"""Cases of the op sweep: operators that keep state from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.tflite.sweep_models import Case, Draw, Entry, Operand, constant


def _svdf(d: Draw, kind: str) -> Case:
    batch, depth, units = d.between(1, 2), d.between(1, 12), d.among(1, 2, 5, 8)
    rank, memory = d.among(1, 1, 2), d.between(1, 8)
    filters = units * rank
    options: dict[str, Any] = {"rank": rank, "fused_activation_function": "RELU"}
    state_shape = (batch, memory * filters)
    if kind == "float32":
        options["fused_activation_function"] = d.among("NONE", "RELU")
        weights = [
            constant(d.rng.standard_normal(shape).astype(np.float32))
            for shape in ((filters, depth), (filters, memory), (units,))
        ]
        inputs = [Operand((batch, depth), kind), *weights]
        inputs.append(Operand(state_shape, kind, variable=True))
        return Case("SVDF", kind, inputs, [Operand((batch, units), kind)], options)
    x = d.tensor((batch, depth), "int8")
    feature = constant(d.integers("int8", (filters, depth)), d.scale(), 0)
    state_type = "int16" if kind == "int8" else "int8"
    spread = {"int16": 9000.0, "int8": 40.0}[state_type]
    state_scale = float(np.float32(x.scale * feature.scale * 5400 * depth**0.5 / spread))
    time = constant(d.integers(state_type, (filters, memory)), d.scale(1e-4, 1e-2), 0)
    bias_scale = float(np.float32(state_scale * time.scale))
    steps = {"int16": 18900.0, "int8": 74.0}[state_type] * spread * (memory * rank) ** 0.5
    bias = constant((d.rng.uniform(-1, 1, units) * steps).astype(np.int32), bias_scale, 0)
    y = Operand((batch, units), "int8", *d.quant("int8", bias_scale * steps / 60))
    state = Operand(state_shape, state_type, state_scale, 0, variable=True)
    return Case("SVDF", kind, [x, feature, time, bias, state], [y], options)


def _lstm(d: Draw, kind: str) -> Case:
    """UNIDIRECTIONAL_SEQUENCE_LSTM without peepholes, projection and normalization."""
    batch, steps, depth, units = d.between(1, 2), d.between(1, 4), d.between(1, 7), d.between(1, 9)
    major = d.chance(0.4)
    lead = (steps, batch) if major else (batch, steps)
    options = {
        "fused_activation_function": "TANH",
        "time_major": major,
        "cell_clip": float(d.among(0.0, 0.0, 1.0)),
    }
    if kind == "float32":
        weights = [
            constant((d.rng.standard_normal((units, n)) * 0.5).astype(np.float32))
            for n in (*[depth] * 4, *[units] * 4)
        ]
        biases = [constant(d.rng.standard_normal(units).astype(np.float32)) for _ in range(4)]
        x, hidden = Operand((*lead, depth), kind), Operand((batch, units), kind, variable=True)
        cell, y = hidden, Operand((*lead, units), kind)
        more = []
    else:
        x = d.tensor((*lead, depth), kind, d.scale(4e-3, 0.05))
        scales = [d.scale(2e-3, 2e-2) for _ in range(8)]
        shapes = [(units, n) for n in (*[depth] * 4, *[units] * 4)]
        weights = [
            constant(np.maximum(d.integers("int8", shape), -127), scale, 0)
            for shape, scale in zip(shapes, scales, strict=True)
        ]
        wide = "int32" if kind == "int8" else "int64"
        biases = [
            constant(
                d.rng.integers(-3000, 3000, units).astype(wide), float(np.float32(x.scale * s)), 0
            )
            for s in scales[:4]
        ]
        scale, zero = (1 / 128, d.among(0, -5, 3)) if kind == "int8" else (1 / 32768, 0)
        hidden = Operand((batch, units), kind, scale, zero, variable=True)
        cell = Operand((batch, units), "int16", 2.0 ** -d.among(10, 11, 12), 0, variable=True)
        y = Operand((*lead, units), kind, scale, zero)
        more = [Operand((0,), "int16", 2.0**-12, 0) for _ in range(4)]
        more.append(Operand((0,), kind, scale, zero))
    inputs = [
        *(x, *weights),
        *(None, None, None),
        *biases,
        *(None, None),
        *(hidden, cell),
        *(None, None, None, None),
    ]
    return Case("UNIDIRECTIONAL_SEQUENCE_LSTM", kind, inputs, [y], options, more)


STATE = [
    Entry("SVDF", ("int8", "float32", "int8 state"), _svdf),
    Entry("UNIDIRECTIONAL_SEQUENCE_LSTM", ("int8", "float32", "int16"), _lstm),
]
