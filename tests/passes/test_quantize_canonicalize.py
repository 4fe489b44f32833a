"""quantize_canonicalize: which QDQ patterns become integer ops, and with which numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from aotgen.ir import interpreter
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import DType, Quant
from aotgen.passes.dead_code import DeadCode
from aotgen.passes.quantize_canonicalize import QuantizeCanonicalize
from aotgen.passes.sink_transposes import SinkTransposes
from tests.passes.builders import NCHW, NHWC, Net

U8 = Quant((0.05,), (100,))


class QNet(Net):
    """A net whose tensors are quantized."""

    def dq(self, x: Value, quant: Quant = U8) -> Value:
        return self.op("dequantize", x, quant=quant)

    def q(self, x: Value, quant: Quant = U8, dtype: DType = DType.U8) -> Value:
        return self.op("quantize", x, quant=quant, dtype=dtype)

    def ints(self, dtype: DType, *shape: int) -> Value:
        info = np.iinfo(dtype.numpy)
        values = self.rng.integers(info.min, info.max + 1, shape).astype(dtype.numpy)
        return self.graph.constant(values, "ints")

    def feeds(self) -> dict[str, np.ndarray]:
        found = {}
        for value in self.graph.inputs:
            info = np.iinfo(value.dtype.numpy)
            array = self.rng.integers(info.min, info.max + 1, value.shape)
            found[value.name] = array.astype(value.dtype.numpy)
        return found


def rewritten(net: QNet, *outputs: Value, steps: int = 0) -> Counter:
    """The ops behind the pass, whose results may lie ``steps`` from the ones before."""
    graph: Graph = net.output(*outputs)
    feeds = net.feeds()
    before = interpreter.run(graph, feeds)
    for _ in range(2):
        SinkTransposes().run(graph)
        QuantizeCanonicalize().run(graph)
        DeadCode().run(graph)
    after = interpreter.run(graph, feeds)
    for name, want in before.items():
        got = after[name]
        assert got.dtype == want.dtype
        if want.dtype.kind == "f":
            assert np.allclose(got, want, rtol=1e-5, atol=1e-5)
        else:
            assert np.abs(got.astype(np.int64) - want.astype(np.int64)).max() <= steps
    return Counter(n.op for n in graph.nodes)


CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def conv(net: QNet, *, dtype: DType = DType.U8, groups: int = 1, bias: str = "int") -> Value:
    """conv of an input [1, 8, 6, 6], weights and bias by channel, all dequantized, in ONNX's
    layout.
    """
    x = net.input(1, 8, 6, 6, dtype=dtype)
    zero = 100 if dtype is DType.U8 else 0
    scale = tuple(float(s) for s in net.rng.uniform(0.01, 0.03, 8).astype(np.float32))
    w = net.dq(net.ints(DType.I8, 8, 8 // groups, 3, 3), Quant(scale, (0,) * 8, 0))
    b: Value | None = None
    if bias == "int":
        values = net.rng.integers(-3000, 3000, 8).astype(np.int32)
        both = tuple(float(np.float32(0.05) * np.float32(s)) for s in scale)
        b = net.dq(net.graph.constant(values, "b"), Quant(both, (0,) * 8, 0))
    elif bias == "float":
        b = net.const(8)
    real = net.dq(x, Quant((0.05,), (zero,)))
    inputs = [net.transpose(real, *NHWC), net.transpose(w, *NHWC), b]
    return net.transpose(net.op("conv", *inputs, groups=groups, **CONV), *NCHW)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("clamp", ["", "relu", "clip"])
def test_conv_becomes_one_integer_op(groups: int, clamp: str) -> None:
    net = QNet()
    y = conv(net, groups=groups)
    if clamp == "relu":
        y = net.op("relu", y)
    if clamp == "clip":
        y = net.clip(y, -3.0, 6.0)
    ops = rewritten(net, net.q(y, Quant((0.3,), (90,))), steps=1)
    assert ops == Counter({"qconv": 1, "transpose": 2})


def test_a_float_bias_is_added_to_the_dequantized_sums() -> None:
    net = QNet()
    ops = rewritten(net, net.q(conv(net, bias="float"), Quant((0.3,), (90,))), steps=1)
    assert ops["qconv"] == 1 and ops["conv"] == 0 and ops["add"] == 1 and ops["quantize"] == 1


def test_sums_without_a_quantize_are_dequantized() -> None:
    net = QNet()
    ops = rewritten(net, conv(net))
    assert ops["qconv"] == 1 and ops["dequantize"] == 1 and ops["conv"] == 0


def test_sums_that_int32_cannot_hold_stay_float() -> None:
    net = QNet()
    x = net.dq(net.input(4, 5000, dtype=DType.U16), Quant((0.001,), (0,)))
    w = net.dq(net.ints(DType.I8, 5000, 3), Quant((0.02,), (0,)))
    ops = rewritten(net, net.q(net.op("matmul", x, w, None, trans_b=False), Quant((60.0,), (9,))))
    assert ops["matmul"] == 1 and ops["qmatmul"] == 0


@pytest.mark.parametrize("trans_b", [False, True])
def test_matmul_of_two_activations(trans_b: bool) -> None:
    net = QNet()
    a = net.dq(net.input(2, 5, 7, dtype=DType.U8))
    shape = (2, 4, 7) if trans_b else (2, 7, 4)
    b = net.dq(net.input(*shape, name="b", dtype=DType.I8), Quant((0.1,), (3,)))
    y = net.q(net.op("matmul", a, b, None, trans_b=trans_b), Quant((0.9,), (128,)))
    assert rewritten(net, y, steps=1) == Counter({"qmatmul": 1})


def test_an_expression_of_one_tensor_is_a_table() -> None:
    net = QNet()
    x = net.dq(net.input(300, dtype=DType.U8))
    gate = net.dq(net.q(net.op("sigmoid", x), Quant((1 / 256,), (0,))), Quant((1 / 256,), (0,)))
    y = net.q(net.op("mul", x, gate), Quant((0.03,), (20,)))
    assert rewritten(net, y) == Counter({"lookup": 1})


def test_equal_scales_on_both_sides_leave_nothing() -> None:
    net = QNet()
    x = net.input(3, 4, dtype=DType.U8)
    y = net.reshape(net.q(net.dq(x)), 12)
    assert rewritten(net, y) == Counter({"reshape": 1})


def test_two_tensors_stay_an_elementwise_expression() -> None:
    net = QNet()
    a, b = (net.dq(net.input(40, name=n, dtype=DType.U8)) for n in "ab")
    ops = rewritten(net, net.q(net.op("add", a, b), Quant((0.1,), (7,))))
    assert ops == Counter({"dequantize": 2, "add": 1, "quantize": 1})


def test_joins_are_joins_of_integers() -> None:
    net = QNet()
    a, b = (net.input(3, 4, name=n, dtype=DType.U8) for n in "ab")
    joined = net.op("concat", net.dq(a), net.dq(b, Quant((0.02,), (4,))), axis=1)
    assert rewritten(net, net.q(joined)) == Counter({"lookup": 1, "concat": 1})


def test_maxima_and_movement_are_of_integers() -> None:
    net = QNet()
    x = net.dq(net.input(1, 6, 6, 8, dtype=DType.U8))
    pool = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    pooled = net.op("max_pool", x, ceil_extra=(0, 0), **pool)
    flat = net.reshape(pooled, 1, 72)
    assert rewritten(net, net.q(flat)) == Counter({"max_pool": 1, "reshape": 1})


def test_a_pool_of_nothing_but_pads_keeps_its_infinity() -> None:
    net = QNet()
    x = net.dq(net.input(1, 4, 4, 2, dtype=DType.U8))
    pool = {"kernel": (1, 1), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    y = net.op("max_pool", x, ceil_extra=(0, 0), **pool)
    assert rewritten(net, net.q(y, Quant((0.1,), (9,))))["dequantize"] == 1


def test_scales_by_channel_follow_a_transpose() -> None:
    net = QNet()
    x = net.input(2, 3, 4, dtype=DType.U8)
    by_channel = Quant((0.1, 0.2, 0.3), (1, 2, 3), 1)
    y = net.transpose(net.op("relu", net.dq(net.transpose(x, 0, 1, 2), by_channel)), 0, 2, 1)
    rewritten(net, y)
