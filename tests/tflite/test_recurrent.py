"""Recurrent layers of .tflite files against both runtimes: several runs, whose state carries over,
in the interpreter and in generated C.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aotgen.codegen.project import generate
from aotgen.errors import UnsupportedError
from aotgen.frontend.tflite import load
from aotgen.ir.interpreter import Instance
from aotgen.ir.verifier import verify
from aotgen.ops import fixed_point16, quantized_recurrent
from aotgen.options import CompileOptions
from aotgen.passes.pipeline import run_passes
from aotgen.project import Project
from aotgen.target.board import load_board
from tests.e2e.quick_build import QuickModel
from tests.oracles import ORACLES, OracleLacks
from tests.tflite.recurrent_models import (
    Lstm,
    Steps,
    Svdf,
    lstm_model,
    rnn_model,
    svdf_model,
    variable_model,
)
from tests.tflite_builder import ModelBuilder

TOLERANCE = 1e-6
"""Of float layers, whose values are about 1."""

HYBRID_TOLERANCE = 0.02
"""LiteRT rounds the activations of a layer with int8 weights to int8 as well."""

Model = tuple[bytes, Steps]

INTEGER = {
    "lstm": lambda: lstm_model(Lstm(kind="int8")),
    "lstm of many units": lambda: lstm_model(
        Lstm(kind="int8", steps=9, rows=2, features=40, units=71, clip=1.5, power=-12), runs=4
    ),
    "lstm, saturating": lambda: lstm_model(
        Lstm(kind="int8", features=30, units=64, power=-10, time_major=True, rows=3, seed=3)
    ),
    "lstm, finest cell": lambda: lstm_model(Lstm(kind="int8", power=-15, hidden_zero=0, seed=1)),
    "lstm, coarsest cell": lambda: lstm_model(Lstm(kind="int8", power=-9, rows=2, seed=2)),
    "lstm, coupled gates": lambda: lstm_model(Lstm(kind="int8", coupled=True, units=37)),
    "lstm of int16": lambda: lstm_model(Lstm(kind="int16", rows=2, clip=0.7)),
    "lstm of one unit": lambda: lstm_model(Lstm(kind="int8", units=1, features=1)),
    "one step": lambda: lstm_model(Lstm(kind="int8", op="LSTM", rows=2)),
    "svdf": lambda: svdf_model(Svdf()),
    "svdf of rank 1": lambda: svdf_model(Svdf(rank=1, units=16, zero=0, memory=8, features=33)),
    "svdf with a state of int8": lambda: svdf_model(Svdf(state="int8", zero=7)),
    "svdf that remembers nothing": lambda: svdf_model(Svdf(memory=1, activation="NONE")),
}

FLOAT = {
    "lstm": lambda: lstm_model(Lstm()),
    "lstm, clipped": lambda: lstm_model(Lstm(rows=3, steps=5, time_major=True, clip=0.3)),
    "lstm, coupled gates": lambda: lstm_model(Lstm(coupled=True, rows=2, units=17)),
    "lstm, peepholes": lambda: lstm_model(Lstm(peepholes=True)),
    "lstm, coupled gates and peepholes": lambda: lstm_model(Lstm(peepholes=True, coupled=True)),
    "lstm, projection": lambda: lstm_model(Lstm(projected=5, rows=2, clip=0.5)),
    "lstm, all extras": lambda: lstm_model(
        Lstm(layer_norm=True, coupled=True, peepholes=True, projected=4, steps=2)
    ),
    "one step, layer norm": lambda: lstm_model(Lstm(op="LSTM", layer_norm=True, rows=2)),
    "rnn": lambda: rnn_model(),
    "rnn, time first": lambda: rnn_model(activation="RELU6", time_major=True),
    "rnn of one step": lambda: rnn_model("RNN", "RELU_N1_TO_1"),
    "rnn without activation": lambda: rnn_model("RNN", "NONE"),
    "svdf": lambda: svdf_model(Svdf(kind="float", activation="TANH")),
    "svdf without bias": lambda: svdf_model(Svdf(kind="float", bias=False, rank=1)),
}

LITERT_ALONE = {
    "lstm, relu": lambda: lstm_model(Lstm(activation="RELU")),
    "hybrid lstm": lambda: lstm_model(Lstm(kind="hybrid")),
    "hybrid lstm, projection": lambda: lstm_model(Lstm(kind="hybrid", projected=4)),
    "hybrid svdf": lambda: svdf_model(Svdf(kind="hybrid")),
}
"""What tflite-micro takes but computes as something else."""

LITERT_FAILS = {"svdf with a state of int8"}
"""What LiteRT takes but reads beyond its memory for."""


def expected(name: str, model: Model, mode: str) -> list[np.ndarray]:
    """What the mode's runtime computes, or the other one where it lacks the operator."""
    data, steps = model
    order = ["tflm", "litert"] if mode == "tflm" else ["litert", "tflm"]
    if name in LITERT_FAILS:
        order.remove("litert")
    lacks: list[OracleLacks] = []
    for other in order:
        try:
            return ORACLES[other](data, [x for step in steps for x in step], len(steps))
        except OracleLacks as error:
            lacks.append(error)
    raise lacks[0]


def feeds_of(names: list[str], step: list[np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip(names, step, strict=True))


def interpreted(data: bytes, steps: Steps, mode: str) -> list[np.ndarray]:
    graph = load(data, requant=mode)
    verify(graph)
    instance, names = Instance(graph), [v.name for v in graph.inputs]
    return [next(iter(instance.step(feeds_of(names, step)).values())) for step in steps]


@pytest.mark.parametrize("mode", ["tflm", "litert"])
@pytest.mark.parametrize("name", INTEGER)
def test_integer_layers_are_equal(name: str, mode: str) -> None:
    model = INTEGER[name]()
    want = expected(name, model, mode)
    for got, right in zip(interpreted(*model, mode), want, strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("name", FLOAT)
def test_float_layers_are_close(name: str) -> None:
    model = FLOAT[name]()
    want = expected(name, model, "litert")
    for got, right in zip(interpreted(*model, "litert"), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", LITERT_ALONE)
def test_what_litert_alone_computes_is_close(name: str) -> None:
    data, steps = LITERT_ALONE[name]()
    want = ORACLES["litert"](data, [x for step in steps for x in step], len(steps))
    limit = HYBRID_TOLERANCE if "hybrid" in name else TOLERANCE
    for got, right in zip(interpreted(data, steps, "tflm"), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=0, atol=limit)


def build(data: bytes, mode: str, folder: Path, board: str = "host", *extra: str) -> QuickModel:
    the_board = load_board(board)
    graph = run_passes(load(data, requant=mode), verify=True)
    folder.mkdir()
    options = CompileOptions(weights="bin")
    generate(graph, the_board, the_board.target(), options, folder, b"none")
    return QuickModel(Project(folder, the_board), extra=extra)


UBSAN = ("-fsanitize=undefined", "-fno-sanitize-recover")

COMPILED = [
    ("lstm of many units", "tflm", "host", ()),
    ("lstm of many units", "litert", "host", ()),
    ("lstm of many units", "litert", "host-avx2", ()),
    ("lstm of many units", "tflm", "host-scalar", UBSAN),
    ("lstm, saturating", "litert", "host-scalar", UBSAN),
    ("lstm, coupled gates", "tflm", "host", ()),
    ("lstm of int16", "tflm", "host", UBSAN),
    ("lstm of one unit", "tflm", "host", ()),
    ("svdf", "tflm", "host", UBSAN),
    ("svdf of rank 1", "litert", "host-avx2", ()),
    ("svdf with a state of int8", "tflm", "host", ()),
]


@pytest.mark.parametrize("name, mode, board, extra", COMPILED)
def test_compiled_integer_layers_are_equal(
    name: str, mode: str, board: str, extra: tuple[str, ...], tmp_path: Path
) -> None:
    data, steps = INTEGER[name]()
    want = expected(name, (data, steps), mode)
    model = build(data, mode, tmp_path / "project", board, *extra)
    names = [t["name"] for t in model.manifest["inputs"]]
    for _ in range(2):
        for step, right in zip(steps, want, strict=True):
            np.testing.assert_array_equal(model.run(feeds_of(names, step))[0], right)
        model.reset()


@pytest.mark.parametrize("name", ["lstm, clipped", "lstm, projection", "rnn, time first", "svdf"])
def test_compiled_float_layers_are_close(name: str, tmp_path: Path) -> None:
    data, steps = FLOAT[name]()
    want = expected(name, (data, steps), "litert")
    model = build(data, "litert", tmp_path / "project")
    names = [t["name"] for t in model.manifest["inputs"]]
    for _ in range(2):
        for step, right in zip(steps, want, strict=True):
            got = model.run(feeds_of(names, step))[0]
            np.testing.assert_allclose(got, right, rtol=0, atol=TOLERANCE)
        model.reset()


def test_an_integer_layer_keeps_its_state_in_place(tmp_path: Path) -> None:
    data, _ = INTEGER["lstm"]()
    model = build(data, "tflm", tmp_path / "project")
    assert not [layer for layer in model.manifest["layers"] if layer["name"].endswith("_keep")]


def test_table_functions_are_tflite_micros() -> None:
    x = np.arange(-32768, 32768).astype(np.int16).reshape(1, -1)
    functions = {
        "LOGISTIC": quantized_recurrent.table_sigmoid,
        "TANH": lambda v: quantized_recurrent.table_tanh(v, -12),
    }
    for op, function in functions.items():
        b = ModelBuilder()
        out = ("y", x.shape, "int16", 2.0**-15, 0)
        b.output(b.op(op, [b.input("x", x.shape, "int16", 2.0**-12, 0)], out=out))
        want = ORACLES["tflm"](b.finish(), [x])[0]
        np.testing.assert_array_equal(function(x.astype(np.int64)), want)


def test_fixed_point_functions_are_functions() -> None:
    x = np.arange(-32768, 32768)
    steps = fixed_point16.sigmoid(x) / 32768
    assert np.abs(steps - 1 / (1 + np.exp(-x / 4096))).max() < 4e-4
    for power in range(-15, -8):
        with np.errstate(over="ignore"):
            real = np.tanh(x * 2.0**power)
        assert np.abs(fixed_point16.tanh(x, power) / 32768 - real).max() < 1e-3


REFUSED = {
    "peepholes": Lstm(kind="int8", peepholes=True),
    "projection": Lstm(kind="int8", projected=4),
    "power of two": Lstm(kind="int8", power=-8),
    "without an activation": Lstm(activation="NONE"),
    "steps, at most": Lstm(projected=4, steps=33),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_supported_is_said(reason: str) -> None:
    data, _ = lstm_model(REFUSED[reason])
    with pytest.raises(UnsupportedError, match=reason):
        load(data)


# variables


@pytest.mark.parametrize("set_before_read", [False, True])
@pytest.mark.parametrize("mode", ["tflm", "litert"])
def test_variables(mode: str, set_before_read: bool, tmp_path: Path) -> None:
    data, steps = variable_model(set_before_read=set_before_read)
    want = ORACLES[mode](data, [x for step in steps for x in step], len(steps))
    for got, right in zip(interpreted(data, steps, mode), want, strict=True):
        np.testing.assert_array_equal(got, right)
    model = build(data, mode, tmp_path / "project")
    assert bool(model.manifest["states"]) is not set_before_read
    for _ in range(2):
        for step, right in zip(steps, want, strict=True):
            np.testing.assert_array_equal(model.run({"x": step[0]})[0], right)
        model.reset()


def test_a_variable_that_nothing_set_is_refused() -> None:
    b = ModelBuilder()
    x = b.input("x", (2,), "float32")
    v = b.op("VAR_HANDLE", [], out=("v", (), "RESOURCE"), options={"shared_name": "v"})
    old = b.op("READ_VARIABLE", [v], out=("old", (2,), "float32"))
    b.output(b.op("ADD", [x, old], out=("y", (2,), "float32")))
    b.op("ASSIGN_VARIABLE", [v, x], outs=[])
    with pytest.raises(UnsupportedError, match="before anything sets it"):
        load(b.finish())


def test_an_initial_value_must_be_known() -> None:
    b = ModelBuilder()
    x = b.input("x", (2,), "float32")
    init = b.subgraph("init")
    handle = {"shared_name": "v"}
    b.op("CALL_ONCE", [], outs=[], options={"init_subgraph_index": 1})
    v = b.op("VAR_HANDLE", [], out=("v", (), "RESOURCE"), options=handle)
    own = init.op("VAR_HANDLE", [], out=("own", (), "RESOURCE"), options=handle)
    unknown = init.input("unknown", (2,), "float32")
    init.op("ASSIGN_VARIABLE", [own, unknown], outs=[])
    old = b.op("READ_VARIABLE", [v], out=("old", (2,), "float32"))
    b.output(b.op("ADD", [x, old], out=("y", (2,), "float32")))
    with pytest.raises(UnsupportedError, match="takes 1 inputs"):
        load(b.finish())
