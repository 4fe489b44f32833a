"""Single-layer .tflite models with state: LSTM, RNN, SVDF and variables, with seeded weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tflite_builder import ModelBuilder

Steps = list[list[np.ndarray]]
"""For each run the model's inputs."""


@dataclass(frozen=True)
class Lstm:
    """A UNIDIRECTIONAL_SEQUENCE_LSTM (or LSTM, of one step) and its extents.

    Attributes:
        kind: "float", "int8", "int16" (activations, with int8 weights) or "hybrid".
        power: exponent of the cell state's scale.
        projected: rows of the projection; 0 for none.
    """

    steps: int = 3
    rows: int = 1
    features: int = 6
    units: int = 8
    kind: str = "float"
    op: str = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    activation: str = "TANH"
    clip: float = 0.0
    time_major: bool = False
    coupled: bool = False
    peepholes: bool = False
    layer_norm: bool = False
    projected: int = 0
    power: int = -11
    hidden_zero: int = -4
    seed: int = 0


@dataclass
class _Writer:
    """Adds a layer's constants."""

    b: ModelBuilder
    rng: np.random.Generator
    kind: str
    scales: dict[str, float] = field(default_factory=dict)

    def weight(self, name: str, shape: tuple[int, ...], size: float = 0.4) -> int:
        real = self.rng.uniform(-size, size, shape).astype(np.float32)
        if self.kind == "float":
            return self.b.const(name, real)
        scale = float(np.float32(self.rng.uniform(0.5, 1.5) * size / 127))
        self.scales[name] = scale
        values = np.clip(np.rint(real / scale), -127, 127).astype(np.int8)
        return self.b.const(name, values, scale, 0)

    def vector(self, name: str, size: int, scale: float = 0.0, low: float = -0.5) -> int:
        real = self.rng.uniform(low, 0.5 if low < 0 else 2 * low, size)
        if self.kind in ("float", "hybrid"):
            return self.b.const(name, real.astype(np.float32))
        dtype = np.int64 if self.kind == "int16" else np.int32
        return self.b.const(name, np.rint(real / scale).astype(dtype), scale, 0)


def lstm_model(layer: Lstm, runs: int = 3) -> tuple[bytes, Steps]:
    """(the model, inputs of successive runs)."""
    rng, b = np.random.default_rng(layer.seed), ModelBuilder()
    w = _Writer(b, rng, layer.kind)
    real = layer.kind in ("float", "hybrid")
    dtype = "float32" if real else layer.kind
    x_scale, x_zero = {"int8": (0.02, 3), "int16": (1 / 8192, 0)}.get(layer.kind, (None, None))
    h_scale, h_zero = {
        "int8": (float(np.float32(0.0077)), layer.hidden_zero),
        "int16": (1 / 32768, 0),
    }.get(layer.kind, (None, None))
    one = layer.op == "LSTM"
    shape = (layer.rows, layer.steps, layer.features)
    if layer.time_major:
        shape = (layer.steps, layer.rows, layer.features)
    if one:
        shape = (layer.rows, layer.features)
    x = b.input("x", shape, dtype, x_scale, x_zero)
    n, p = layer.units, layer.projected or layer.units
    gates = "fco" if layer.coupled else "ifco"

    def each(names: str, make: Any) -> list[int | None]:
        return [make(g) if g in names else None for g in "ifco"]

    inputs: list[int | None] = [x]
    inputs += each(gates, lambda g: w.weight(f"w{g}", (n, layer.features)))
    inputs += each(gates, lambda g: w.weight(f"r{g}", (n, p)))
    peep = "fo" if layer.coupled else "ifo"
    inputs += [
        w.vector(f"p{g}", n, 2.0**-14) if layer.peepholes and g in peep else None for g in "ifo"
    ]
    inputs += each(gates, lambda g: w.vector(f"b{g}", n, (x_scale or 1) * w.scales.get(f"w{g}", 1)))
    inputs += [w.weight("proj", (p, n)) if layer.projected else None, None]
    inputs += [
        b.tensor("h", (layer.rows, p), dtype, h_scale, h_zero, is_variable=True),
        b.tensor(
            "c",
            (layer.rows, n),
            "float32" if real else "int16",
            None if real else 2.0**layer.power,
            None if real else 0,
            is_variable=True,
        ),
    ]
    norms = gates if layer.layer_norm else ""
    inputs += each(norms, lambda g: w.vector(f"n{g}", n, low=0.5))
    more: dict[str, Any] = {}
    if not real:
        between = [b.tensor(f"between{k}", (0,), "float32") for k in range(4)]
        more["intermediates"] = [*between, b.tensor("between4", (0,), dtype, h_scale, h_zero)]
    options: dict[str, Any] = {
        "fused_activation_function": layer.activation,
        "cell_clip": layer.clip,
    }
    if not one:
        options["time_major"] = layer.time_major
    out = ("y", (*shape[:-1], p), dtype, h_scale, h_zero)
    b.output(b.op(layer.op, inputs, out=out, options=options, **more))
    return b.finish(), [[draw(rng, shape, dtype)] for _ in range(runs)]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal floats, or integers over the whole range of their type."""
    if dtype == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def rnn_model(
    op: str = "UNIDIRECTIONAL_SEQUENCE_RNN",
    activation: str = "TANH",
    time_major: bool = False,
    seed: int = 0,
) -> tuple[bytes, Steps]:
    """A plain recurrent layer in float32."""
    rng, b = np.random.default_rng(seed), ModelBuilder()
    w = _Writer(b, rng, "float")
    rows, steps, features, units = 2, 4, 5, 7
    shape: tuple[int, ...] = (steps, rows, features) if time_major else (rows, steps, features)
    if op == "RNN":
        shape = (rows, features)
    x = b.input("x", shape, "float32")
    inputs = [
        x,
        w.weight("w", (units, features)),
        w.weight("r", (units, units)),
        w.vector("b", units),
        b.tensor("h", (rows, units), "float32", is_variable=True),
    ]
    options: dict[str, Any] = {"fused_activation_function": activation}
    if op != "RNN":
        options["time_major"] = time_major
    b.output(b.op(op, inputs, out=("y", (*shape[:-1], units), "float32"), options=options))
    return b.finish(), [[draw(rng, shape, "float32")] for _ in range(3)]


@dataclass(frozen=True)
class Svdf:
    """An SVDF; ``kind``: "float", "int8" or "hybrid"; ``state`` of the integer one: its type."""

    rows: int = 2
    features: int = 9
    units: int = 5
    rank: int = 2
    memory: int = 4
    kind: str = "int8"
    state: str = "int16"
    zero: int = -128
    bias: bool = True
    activation: str = "RELU"
    seed: int = 0


def svdf_model(layer: Svdf, runs: int = 6) -> tuple[bytes, Steps]:
    """(the model, inputs of successive runs)."""
    rng, b = np.random.default_rng(layer.seed), ModelBuilder()
    filters = layer.units * layer.rank
    shape = (layer.rows, layer.features)
    held = (layer.rows, filters * layer.memory)
    out: tuple[Any, ...] = ("y", (layer.rows, layer.units), "float32")
    if layer.kind != "int8":
        w = _Writer(b, rng, layer.kind)
        x = b.input("x", shape, "float32")
        feature = w.weight("feature", (filters, layer.features))
        time = w.weight("time", (filters, layer.memory))
        bias = w.vector("bias", layer.units) if layer.bias else None
        state = b.tensor("state", held, "float32", is_variable=True)
        dtype = "float32"
    else:
        x_scale, f_scale, y_scale = (
            float(np.float32(rng.uniform(a, c)))
            for a, c in ((0.01, 0.05), (0.005, 0.02), (0.05, 0.2))
        )
        wide = layer.state == "int16"
        s_scale = float(np.float32(rng.uniform(0.002, 0.005) * (1 if wide else 40)))
        t_scale = float(np.float32(rng.uniform(0.001, 0.004) * (1 if wide else 8)))
        x = b.input("x", shape, "int8", x_scale, int(rng.integers(-128, 100)))
        values = rng.integers(-127, 128, (filters, layer.features)).astype(np.int8)
        feature = b.const("feature", values, f_scale, 0)
        most = 2000 if wide else 127
        values = rng.integers(-most, most + 1, (filters, layer.memory)).astype(layer.state)
        time = b.const("time", values, t_scale, 0)
        values = rng.integers(-9000, 9000, layer.units).astype(np.int32)
        bias = b.const("bias", values, s_scale * t_scale, 0) if layer.bias else None
        state = b.tensor("state", held, layer.state, s_scale, 0, is_variable=True)
        out = ("y", (layer.rows, layer.units), "int8", y_scale, layer.zero)
        dtype = "int8"
    options = {"rank": layer.rank, "fused_activation_function": layer.activation}
    inputs = [x, feature, time, bias, state]
    b.output(b.op("SVDF", inputs, out=out, options=options, version=3))
    return b.finish(), [[draw(rng, shape, dtype)] for _ in range(runs)]


def variable_model(*, set_before_read: bool = False, frames: int = 2) -> tuple[bytes, Steps]:
    """A window of three frames of int8 in a variable that CALL_ONCE fills: y is all four frames.

    Two assignments in a row: the first is seen by a read, the second by the next run.
    """
    rng, b = np.random.default_rng(5), ModelBuilder()
    q = (0.1, 3)
    x = b.input("x", (1, frames, 4), "int8", *q)
    init = b.subgraph("init")
    b.op("CALL_ONCE", [], outs=[], options={"init_subgraph_index": 1})
    handle = {"container": "", "shared_name": "window"}
    kept = b.op("VAR_HANDLE", [], out=("window", (), "RESOURCE"), options=handle)
    if set_before_read:
        fresh = b.const("fresh", np.full((1, 3, 4), -7, np.int8), *q)
        b.op("ASSIGN_VARIABLE", [kept, fresh], outs=[])
    old = b.op("READ_VARIABLE", [kept], out=("old", (1, 3, 4), "int8", *q))
    every = b.op(
        "CONCATENATION",
        [old, x],
        out=("every", (1, 3 + frames, 4), "int8", *q),
        options={"axis": 1},
        version=2,
    )
    begin, size, one = (
        b.const(n, np.array(v, np.int32))
        for n, v in (("begin", (0, frames, 0)), ("end", (1, 3 + frames, 4)), ("one", (1, 1, 1)))
    )
    newest = b.op(
        "STRIDED_SLICE", [every, begin, size, one], out=("newest", (1, 3, 4), "int8", *q), version=2
    )
    b.op("ASSIGN_VARIABLE", [kept, newest], outs=[])
    b.output(every)
    own = init.op("VAR_HANDLE", [], out=("own", (), "RESOURCE"), options=handle)
    values = init.const("values", rng.integers(-128, 128, (1, 3, 4)).astype(np.int8), *q)
    init.op("ASSIGN_VARIABLE", [own, values], outs=[])
    return b.finish(), [[draw(rng, (1, frames, 4), "int8")] for _ in range(5)]
