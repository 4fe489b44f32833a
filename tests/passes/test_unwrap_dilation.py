"""unwrap_dilation: same bytes as before and as the reference, and no rearrangement is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotgen.frontend import load
from aotgen.ir.graph import Graph
from aotgen.ir.interpreter import run
from aotgen.passes.pipeline import run_passes
from tests.oracles import litert, tflm
from tests.tflite_builder import ModelBuilder

Feeds = list[np.ndarray]

I8_X, I8_Y = (0.05, 3), (0.5, -7)


def wrapped(
    dtype: str,
    *,
    size: tuple[int, int] = (11, 9),
    block: tuple[int, int] = (2, 3),
    pads: Any = ((2, 3), (3, 3)),
    crops: Any = ((0, 1), (0, 0)),
    op: str = "CONV_2D",
    padding: str = "VALID",
    activation: str = "NONE",
    bias_behind: bool = False,
) -> tuple[bytes, Feeds]:
    """SPACE_TO_BATCH_ND -> a 3x3 convolution of 4 channels -> BATCH_TO_SPACE_ND."""
    rng = np.random.default_rng(3)
    b = ModelBuilder()
    is_int = dtype == "int8"
    xq, yq = (I8_X, I8_Y) if is_int else ((), ())
    x = b.input("x", (1, *size, 4), dtype, *xq)
    extents = [(n + sum(p)) // d for n, d, p in zip(size, block, pads, strict=True)]
    batch = block[0] * block[1]
    blocks = b.const("block", np.array(block, np.int32))
    apart = b.op(
        "SPACE_TO_BATCH_ND",
        [x, blocks, b.const("pads", np.array(pads, np.int32))],
        out=("apart", (batch, *extents, 4), dtype, *xq),
    )
    shape = (4, 3, 3, 4) if op == "CONV_2D" else (1, 3, 3, 4)
    if is_int:
        scales = {"scale": [0.01] * 4, "zero": [0] * 4, "axis": 0 if op == "CONV_2D" else 3}
        w = b.const("w", rng.integers(-127, 128, shape).astype(np.int8), **scales)
        bias = b.const("bias", rng.integers(-999, 999, 4).astype(np.int32), [5e-4] * 4, [0] * 4)
    else:
        w = b.const("w", rng.standard_normal(shape).astype(np.float32))
        bias = b.const("bias", rng.standard_normal(4).astype(np.float32))
    inner = extents if padding == "SAME" else [n - 2 for n in extents]
    options = {"padding": padding, "stride_w": 1, "stride_h": 1}
    options["fused_activation_function"] = activation
    if op == "DEPTHWISE_CONV_2D":
        options["depth_multiplier"] = 1
    y = b.op(op, [apart, w, bias], out=("y", (batch, *inner, 4), dtype, *yq), options=options)
    if bias_behind:
        more = b.const("more", rng.standard_normal(4).astype(np.float32))
        y = b.op("ADD", [y, more], out=("sum", (batch, *inner, 4), dtype), options={})
        y = b.op("RELU6", [y], out=("relu", (batch, *inner, 4), dtype))
    out = [n * d - sum(c) for n, d, c in zip(inner, block, crops, strict=True)]
    joined = b.op(
        "BATCH_TO_SPACE_ND",
        [y, blocks, b.const("crops", np.array(crops, np.int32))],
        out=("joined", (1, *out, 4), dtype, *yq),
    )
    b.output(joined)
    if is_int:
        feed = rng.integers(-128, 128, (1, *size, 4)).astype(np.int8)
    else:
        feed = rng.standard_normal((1, *size, 4)).astype(np.float32)
    return b.finish(), [feed]


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


CASES = {
    "float": {"dtype": "float32"},
    "int8": {"dtype": "int8"},
    "depthwise": {"dtype": "int8", "op": "DEPTHWISE_CONV_2D", "activation": "RELU6"},
    "float depthwise": {"dtype": "float32", "op": "DEPTHWISE_CONV_2D", "activation": "RELU"},
    "bias behind": {"dtype": "float32", "bias_behind": True},
    "no pads": {
        "dtype": "int8",
        "size": (12, 12),
        "pads": ((0, 0), (0, 0)),
        "crops": ((0, 0),) * 2,
    },
    "padded inside": {"dtype": "int8", "padding": "SAME", "crops": ((1, 2), (0, 1))},
    "crops more": {"dtype": "float32", "crops": ((3, 0), (0, 4))},
    "one axis": {"dtype": "float32", "block": (2, 1), "pads": ((2, 3), (0, 0))},
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrapped_convolution_becomes_a_dilated_one(name: str) -> None:
    data, feeds = wrapped(**CASES[name])
    graph = load(data, requant="litert")
    before = run(graph, {"x": feeds[0]})["joined"]
    run_passes(graph, verify=True)
    assert not {"transpose", "reshape"} & set(ops(graph)), ops(graph)
    (conv,) = [n for n in graph.nodes if n.op in ("conv", "qconv")]
    assert conv.attrs["dilations"] == CASES[name].get("block", (2, 3))
    if name not in ("padded inside", "crops more"):
        assert not {"pad", "slice"} & set(ops(graph)), ops(graph)
    after = run(graph, {"x": feeds[0]})["joined"]
    wanted = litert(data, feeds)[0]
    if CASES[name]["dtype"] == "int8":
        np.testing.assert_array_equal(before, wanted)
        np.testing.assert_array_equal(after, wanted)
    else:
        np.testing.assert_allclose(before, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-5)


def test_one_dimensional_blocks_around_a_squeezed_convolution() -> None:
    """[1, T, C] -> blocks -> [b, 1, T/b, C] -> conv -> [b, T', C] -> [1, b*T', C]."""
    rng = np.random.default_rng(5)
    b = ModelBuilder()
    f = "float32"
    x = b.input("x", (1, 12, 3), f)
    block = b.const("block", np.array([4], np.int32))
    none = b.const("none", np.array([[4, 0]], np.int32))
    apart = b.op("SPACE_TO_BATCH_ND", [x, block, none], out=("apart", (4, 4, 3), f))
    axis = b.const("axis", np.array(1, np.int32))
    wide = b.op("EXPAND_DIMS", [apart, axis], out=("wide", (4, 1, 4, 3), f))
    w = b.const("w", rng.standard_normal((5, 1, 2, 3)).astype(np.float32))
    bias = b.const("bias", rng.standard_normal(5).astype(np.float32))
    y = b.op("CONV_2D", [wide, w, bias], out=("y", (4, 1, 3, 5), f),
             options={"padding": "VALID", "stride_w": 1, "stride_h": 1})  # fmt: skip
    flat = b.op("SQUEEZE", [y], out=("flat", (4, 3, 5), f), options={"squeeze_dims": [1]})
    crops = b.const("crops", np.zeros((1, 2), np.int32))
    b.output(b.op("BATCH_TO_SPACE_ND", [flat, block, crops], out=("joined", (1, 12, 5), f)))
    feed = rng.standard_normal((1, 12, 3)).astype(np.float32)
    data = b.finish()
    graph = load(data)
    run_passes(graph, verify=True)
    assert "transpose" not in ops(graph)
    (conv,) = [n for n in graph.nodes if n.op == "conv"]
    assert conv.attrs["dilations"] == (1, 4)
    got = run(graph, {"x": feed})["joined"]
    np.testing.assert_allclose(got, litert(data, [feed])[0], rtol=1e-5, atol=1e-6)


def test_int8_padding_that_is_not_the_zero_point_stays() -> None:
    """TFLite Micro pads blocks with the integer 0: the pad cannot join the convolution."""
    data, feeds = wrapped("int8")
    graph = load(data, requant="tflm")
    before = run(graph, {"x": feeds[0]})["joined"]
    np.testing.assert_array_equal(before, tflm(data, feeds)[0])
    run_passes(graph, verify=True)
    assert "pad" in ops(graph) and "transpose" not in ops(graph)
    np.testing.assert_array_equal(run(graph, {"x": feeds[0]})["joined"], before)


def test_strides_keep_the_blocks() -> None:
    data, _ = wrapped("float32")
    graph = load(data)
    (conv,) = [n for n in graph.nodes if n.op == "conv"]
    conv.attrs["strides"] = (2, 1)
    from aotgen.passes.unwrap_dilation import UnwrapDilation

    assert not UnwrapDilation().run(graph)
