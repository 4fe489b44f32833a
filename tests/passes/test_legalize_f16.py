"""legalize_f16: which nodes it leaves, what it keeps, and how far its numbers are from
onnxruntime's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from passes.builders import Net, ops

import aotgen
from aotgen.ir import interpreter
from aotgen.ir.graph import Graph
from aotgen.ir.types import DType
from aotgen.ir.verifier import verify
from aotgen.passes.legalize_f16 import LegalizeF16
from aotgen.passes.pipeline import run_passes

HALF = TensorProto.FLOAT16


def legal(graph: Graph) -> Graph:
    assert LegalizeF16().run(graph)
    verify(graph)
    for node in graph.nodes:
        touches = any(v.dtype is DType.F16 for v in (*node.args, *node.outputs))
        assert not touches or node.op == "cast"
    assert not LegalizeF16().run(graph), "a second run finds nothing"
    return graph


def half_net(*shape: int) -> tuple[Net, object]:
    net = Net()
    return net, net.input(*shape, dtype=DType.F16)


def test_one_cast_at_each_edge() -> None:
    net, x = half_net(3, 4)
    graph = net.output(net.op("exp", net.op("add", x, x)))
    assert ops(legal(graph)) == {"cast": 2, "add": 1, "exp": 1}
    assert graph.inputs[0].dtype is DType.F16 and graph.outputs[0].dtype is DType.F16


def test_float32_graph_is_left_alone() -> None:
    net = Net()
    assert not LegalizeF16().run(net.output(net.op("exp", net.input(3))))


def test_outputs_that_nothing_computes_stay_what_they_are() -> None:
    """An input or a constant that is an output is copied, bit by bit."""
    net, x = half_net(3)
    constant = net.graph.constant(np.array([1.5, -2], np.float16), "c")
    graph = net.output(x, constant, net.op("neg", x))
    legal(graph)
    assert graph.outputs[0] is graph.inputs[0] and graph.outputs[1] is constant


def test_value_that_is_read_and_given_out() -> None:
    """It is rounded for the caller, and not for the reader; twice given out, rounded once."""
    net, x = half_net(4)
    third = net.op("mul", x, net.op("reciprocal", net.op("add", net.op("add", x, x), x)))
    graph = net.output(third, net.op("sub", third, x), third)
    assert ops(legal(graph))["cast"] == 3
    data = np.array([1, 2, 3, 5], np.float16)
    got = interpreter.run(graph, {"x": data})
    assert got["y0"].dtype == np.float16
    np.testing.assert_array_equal(got["y0"], np.full(4, 1 / 3, np.float16))
    wide = np.float32(1 / 3) - data.astype(np.float32)
    np.testing.assert_array_equal(got["y1"], wide.astype(np.float16))


def test_casts_of_the_model_round() -> None:
    """2048 + 1 is no fp16: a cast to another type reads 2048."""
    net, x = half_net(1)
    total = net.op("add", x, net.graph.constant(np.ones(1, np.float16), "one"))
    graph = net.output(
        net.op("cast", total, dtype=DType.F32),
        net.op("cast", total, dtype=DType.I32),
        net.op("cast", net.op("cast", net.op("cast", x, dtype=DType.F32), dtype=DType.F16),
               dtype=DType.F64),
    )  # fmt: skip
    legal(graph)
    got = interpreter.run(graph, {"x": np.array([2048], np.float16)})
    assert [float(v[0]) for v in got.values()] == [2048, 2048, 2048]
    assert [v.dtype for v in got.values()] == [np.float32, np.int32, np.float64]


@pytest.mark.parametrize("level", range(5))
def test_every_level_compiles_fp16(level: int) -> None:
    net, x = half_net(2, 3)
    y = net.op("cast", net.op("add", x, x), dtype=DType.I16)
    graph = net.output(net.op("exp", net.op("cast", y, dtype=DType.F16)), y)
    run_passes(graph, opt_level=level, verify=True)
    got = interpreter.run(graph, {"x": np.full((2, 3), 0.75, np.float16)})
    np.testing.assert_array_equal(got["y0"], np.full((2, 3), np.exp(1), np.float16))
    np.testing.assert_array_equal(got["y1"], np.full((2, 3), 1))


def node(op: str, *inputs: str, outputs: tuple[str, ...] = ("y",), **attrs: object):
    return [helper.make_node(op, list(inputs), list(outputs), **attrs)]


# name: nodes that compute y from x [2, 4, 6, 6] (and constants: w, c, a of 4, i, s), type of y
RNG = np.random.default_rng(5)
CONSTANTS = {
    "w": RNG.normal(0, 0.3, (5, 4, 3, 3)).astype(np.float16),
    "m": RNG.normal(0, 0.3, (6, 8)).astype(np.float16),
    "c": RNG.normal(0, 1, (4, 1, 1)).astype(np.float16),
    "a": RNG.uniform(0.5, 1, 4).astype(np.float16),
    "b6": RNG.uniform(0.5, 1, 6).astype(np.float16),
    "i": np.array([3, 0, 1], np.int64),
    "k": np.array([2], np.int64),
    "sizes": np.array([2, 4, 9, 9], np.int64),
}
CASES = {
    "conv": (node("Conv", "x", "w", pads=[1, 1, 1, 1]), HALF),
    "matmul": (node("MatMul", "x", "m"), HALF),
    "batch norm": (node("BatchNormalization", "x", "a", "a", "a", "a"), HALF),
    "layer norm": (node("LayerNormalization", "x", "b6", "b6"), HALF),
    "instance norm": (node("InstanceNormalization", "x", "a", "a"), HALF),
    "softmax": (node("Softmax", "x", axis=1), HALF),
    "gelu": (node("Erf", "x"), HALF),
    "pool": (node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2]), HALF),
    "mean": (node("ReduceMean", "x", axes=[1, 2], keepdims=0), HALF),
    "concat": (node("Concat", "x", "x", axis=1), HALF),
    "gather": (node("Gather", "x", "i", axis=1), HALF),
    "greater": (node("Greater", "x", "c"), TensorProto.BOOL),
    "arg max": (node("ArgMax", "x", axis=2), TensorProto.INT64),
    "resize": (node("Resize", "x", "", "", "sizes", mode="linear"), HALF),
    "to int": (node("Cast", "x", to=TensorProto.INT32), TensorProto.INT32),
    "to bool": (node("Cast", "x", to=TensorProto.BOOL), TensorProto.BOOL),
    "transpose": (node("Transpose", "x", perm=[3, 1, 0, 2]), HALF),
    "split": (
        node("Split", "x", outputs=("p", "q"), axis=1) + node("Mul", "p", "q"),
        HALF,
    ),
    "where": (
        node("Greater", "x", "c", outputs=("g",)) + node("Where", "g", "x", "c"),
        HALF,
    ),
    "pad": (
        node("Constant", outputs=("p",), value_ints=[0, 0, 1, 1, 0, 0, 2, 0])
        + node("Pad", "x", "p"),
        HALF,
    ),
}


def half_model(name: str) -> onnx.ModelProto:
    nodes, kind = CASES[name]
    used = {n for part in nodes for n in part.input}
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("x", HALF, (2, 4, 6, 6))],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(v, k) for k, v in CONSTANTS.items() if k in used],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    model = half_model(name)
    path = tmp_path / "half.onnx"
    path.write_bytes(model.SerializeToString())
    x = np.random.default_rng(6).normal(0, 2, (2, 4, 6, 6)).astype(np.float16)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, {"x": x})[0]
    graph = run_passes(aotgen.load(path), verify=True)
    got = interpreter.run(graph, {"x": x})["y"]
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype != np.float16:
        np.testing.assert_array_equal(got, want)
        return
    # both compute in float32: at most one step of fp16 apart, where a sum lies between two
    step = np.spacing(np.maximum(np.abs(want), np.float16(2.0**-14))).astype(np.float64)
    assert (np.abs(got.astype(np.float64) - want.astype(np.float64)) <= step).all()
