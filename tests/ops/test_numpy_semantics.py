"""The numpy semantics of the ops against onnxruntime, one node at a time.

onnxruntime computes in NCHW and float32; inputs and outputs are transposed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from aotgen.ir.graph import Graph, Value
from aotgen.ir.interpreter import evaluate
from aotgen.ir.types import DType, TensorType

RNG = np.random.default_rng(7)


def ours(op: str, *arrays: np.ndarray | None, **attrs: Any) -> list[np.ndarray]:
    """Outputs of one canonical op; ``evaluate`` also checks them against the type rule."""
    graph = Graph("test", [], [], [])
    values = [
        None if a is None else Value(f"x{i}", TensorType(DType.of(a.dtype), a.shape))
        for i, a in enumerate(arrays)
    ]
    return evaluate(graph.make(op, values, **attrs), list(arrays))


def theirs(
    op: str,
    *arrays: np.ndarray | None,
    outputs: int = 1,
    opset: int = 21,
    domain: str = "",
    **attrs: Any,
) -> list[np.ndarray]:
    """Outputs of one ONNX operator in onnxruntime."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    out_names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, out_names, domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    outs = [helper.make_empty_tensor_value_info(n) for n in out_names]
    imports = [helper.make_opsetid("", opset)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(
        helper.make_graph([node], "g", infos, outs), opset_imports=imports, ir_version=10
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        onnx.shape_inference.infer_shapes(model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    return list(session.run(None, feeds))


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def last(x: np.ndarray) -> np.ndarray:
    """NC... to N...C."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def first(x: np.ndarray) -> np.ndarray:
    """N...C to NC..."""
    return np.moveaxis(x, -1, 1)


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-6) -> None:
    """Equal type and shape; values within ``tolerance`` of the largest magnitude."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=tolerance * scale)


UNARY: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("relu", "Relu", {}, {}),
    ("sigmoid", "Sigmoid", {}, {}),
    ("tanh", "Tanh", {}, {}),
    ("exp", "Exp", {}, {}),
    ("reciprocal", "Reciprocal", {}, {}),
    ("neg", "Neg", {}, {}),
    ("abs", "Abs", {}, {}),
    ("erf", "Erf", {}, {}),
    ("sin", "Sin", {}, {}),
    ("cos", "Cos", {}, {}),
    ("floor", "Floor", {}, {}),
    ("ceil", "Ceil", {}, {}),
    ("round", "Round", {}, {}),
    ("sign", "Sign", {}, {}),
    ("softplus", "Softplus", {}, {}),
    ("softsign", "Softsign", {}, {}),
    ("hard_swish", "HardSwish", {}, {}),
    ("mish", "Mish", {}, {}),
    ("selu", "Selu", {"alpha": 1.6, "gamma": 1.1}, {"alpha": 1.6, "gamma": 1.1}),
    ("celu", "Celu", {"alpha": 0.7}, {"alpha": 0.7}),
    ("thresholded_relu", "ThresholdedRelu", {"alpha": 0.7}, {"alpha": 0.7}),
    ("gelu", "Gelu", {"approximate": "none"}, {"approximate": "none"}),
    ("gelu", "Gelu", {"approximate": "tanh"}, {"approximate": "tanh"}),
    ("leaky_relu", "LeakyRelu", {"alpha": 0.2}, {"alpha": 0.2}),
    ("elu", "Elu", {"alpha": 0.8}, {"alpha": 0.8}),
    ("hard_sigmoid", "HardSigmoid", {"alpha": 0.3, "beta": 0.4}, {"alpha": 0.3, "beta": 0.4}),
    ("isnan", "IsNaN", {}, {}),
    ("isinf", "IsInf", {}, {}),
]


@pytest.mark.parametrize(("op", "onnx_op", "attrs", "onnx_attrs"), UNARY)
def test_unary(op: str, onnx_op: str, attrs: dict[str, Any], onnx_attrs: dict[str, Any]) -> None:
    x = np.concatenate([3 * normal(200), np.arange(-5, 5.5, 0.5, np.float32)])
    close(ours(op, x, **attrs)[0], theirs(onnx_op, x, **onnx_attrs)[0])


@pytest.mark.parametrize(("op", "onnx_op"), [("sqrt", "Sqrt"), ("log", "Log")])
def test_unary_of_positive_numbers(op: str, onnx_op: str) -> None:
    x = np.abs(normal(200)) + np.float32(1e-3)
    close(ours(op, x)[0], theirs(onnx_op, x)[0])


def test_rsqrt() -> None:
    x = np.abs(normal(50)) + np.float32(0.1)
    close(ours("rsqrt", x)[0], (1 / np.sqrt(x.astype(np.float64))).astype(np.float32), 0)


@pytest.mark.parametrize("op", ["relu", "sigmoid", "tanh", "clip", "softplus", "mish", "gelu"])
def test_nan_stays_nan(op: str) -> None:
    attrs = {"clip": {"lo": 0.0, "hi": 6.0}, "gelu": {"approximate": "none"}}.get(op, {})
    assert np.isnan(ours(op, np.array([np.nan], np.float32), **attrs)[0]).all()


def test_no_overflow_far_from_zero() -> None:
    x = np.array([-1e4, -100, 100, 1e4], np.float32)
    np.testing.assert_array_equal(ours("softplus", x)[0], [0, np.exp(-100, dtype="f"), 100, 1e4])
    np.testing.assert_array_equal(ours("sigmoid", x)[0][[0, 2, 3]], [0, 1, 1])
    np.testing.assert_array_equal(ours("mish", x)[0][[0, 3]], [0, 1e4])


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
def test_clip(dtype: str) -> None:
    x = (normal(100) * 50).astype(dtype)
    lo, hi = np.array(-20, dtype), np.array(30, dtype)
    close(ours("clip", x, lo=-20.0, hi=30.0)[0], theirs("Clip", x, lo, hi)[0])
    np.testing.assert_array_equal(ours("clip", x, lo=-np.inf, hi=np.inf)[0], x)


BINARY = [
    ("add", "Add"),
    ("sub", "Sub"),
    ("mul", "Mul"),
    ("div", "Div"),
    ("maximum", "Max"),
    ("minimum", "Min"),
    ("equal", "Equal"),
    ("less", "Less"),
    ("greater", "Greater"),
    ("less_equal", "LessOrEqual"),
    ("greater_equal", "GreaterOrEqual"),
]


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
@pytest.mark.parametrize(("op", "onnx_op"), BINARY)
def test_binary_with_broadcasting(op: str, onnx_op: str, dtype: str) -> None:
    a = (normal(2, 3, 1, 5) * 9).astype(dtype)
    b = (normal(4, 1) * 9).astype(dtype)
    if dtype != "float32":
        b[b == 0] = 3
    close(ours(op, a, b)[0], theirs(onnx_op, a, b)[0], 0)


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod(fmod: int) -> None:
    a = np.array([-7, -4, 0, 4, 7, 8], np.int32)
    b = np.array([3, -3, 5, -5, 3, -8], np.int32)
    close(ours("mod", a, b, fmod=bool(fmod))[0], theirs("Mod", a, b, fmod=fmod)[0])
    x, y = normal(40), normal(40)
    close(ours("mod", x, y, fmod=True)[0], theirs("Mod", x, y, fmod=1)[0], 1e-6)


def test_pow() -> None:
    a, b = np.abs(normal(50)), normal(50)
    close(ours("pow", a, b)[0], theirs("Pow", a, b)[0])
    i, j = np.arange(-4, 5, dtype=np.int32), np.full(9, 3, np.int32)
    close(ours("pow", i, j)[0], theirs("Pow", i, j)[0])


@pytest.mark.parametrize(("op", "onnx_op"), [("and", "And"), ("or", "Or"), ("xor", "Xor")])
def test_logic(op: str, onnx_op: str) -> None:
    a, b = normal(3, 4) > 0, normal(4) > 0
    close(ours(op, a, b)[0], theirs(onnx_op, a, b)[0])
    close(ours("not", a)[0], theirs("Not", a)[0])


@pytest.mark.parametrize(
    ("op", "onnx_op", "attrs"),
    [
        ("bit_and", "BitwiseAnd", {}),
        ("bit_or", "BitwiseOr", {}),
        ("bit_xor", "BitwiseXor", {}),
        ("shift_left", "BitShift", {"direction": "LEFT"}),
        ("shift_right", "BitShift", {"direction": "RIGHT"}),
    ],
)
def test_bits(op: str, onnx_op: str, attrs: dict[str, Any]) -> None:
    a, b = np.arange(7, dtype=np.uint32) * 37, np.arange(7, dtype=np.uint32)
    close(ours(op, a, b)[0], theirs(onnx_op, a, b, **attrs)[0])


def test_where_prelu_cast() -> None:
    c, a, b = normal(3, 1) > 0, normal(3, 4), normal(1, 4)
    close(ours("where", c, a, b)[0], theirs("Where", c, a, b)[0])
    close(ours("prelu", a, b)[0], theirs("PRelu", a, b)[0])
    x = normal(20) * 10
    want = theirs("Cast", x, to=onnx.TensorProto.INT32)[0]
    close(ours("cast", x, dtype=DType.I32)[0], want)


CONVS = [
    # channels, filters, spatial, kernel, strides, pads, dilations, groups
    (3, 8, (9, 11), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    (4, 6, (8, 7), (3, 2), (1, 2), (0, 2, 1, 0), (2, 1), 2),
    (6, 6, (8, 8), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6),
    (4, 12, (8, 8), (5, 3), (2, 1), (2, 1, 2, 1), (1, 2), 4),
    (5, 7, (6, 6), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (3, 4, (15,), (4,), (3,), (1, 2), (2,), 1),
    (2, 4, (5, 6, 7), (3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 1, 1), (1, 1, 2), 2),
]


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_conv(case: tuple[Any, ...], with_bias: bool) -> None:
    c, f, spatial, kernel, strides, pads, dilations, groups = case
    x, w = normal(2, c, *spatial), normal(f, c // groups, *kernel)
    bias = normal(f) if with_bias else None
    attrs = {"strides": strides, "pads": pads, "dilations": dilations}
    want = theirs("Conv", *([x, w] if bias is None else [x, w, bias]), group=groups, **attrs)[0]
    close(first(ours("conv", last(x), last(w), bias, groups=groups, **attrs)[0]), want)


@pytest.mark.parametrize(
    "case",
    [
        # channels, filters, spatial, kernel, strides, pads, dilations, groups, output_padding
        (3, 4, (5, 6), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, (1, 1)),
        (4, 6, (5, 4), (2, 3), (1, 3), (0, 1, 1, 2), (2, 1), 2, (0, 2)),
        (4, 4, (6,), (4,), (2,), (1, 1), (1,), 4, (0,)),
        (2, 3, (3, 4, 3), (2, 2, 3), (2, 1, 2), (0, 0, 0, 0, 0, 0), (1, 1, 1), 1, (1, 0, 0)),
    ],
)
def test_conv_transpose(case: tuple[Any, ...]) -> None:
    c, f, spatial, kernel, strides, pads, dilations, groups, extra = case
    x, w, bias = normal(2, c, *spatial), normal(c, f // groups, *kernel), normal(f)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra}
    want = theirs("ConvTranspose", x, w, bias, group=groups, **attrs)[0]
    # ONNX [C, O/g, *K] to [O, *K, C/g].
    v = w.reshape(groups, c // groups, f // groups, *kernel)
    v = np.moveaxis(v, 1, -1).reshape(f, *kernel, c // groups)
    close(first(ours("conv_transpose", last(x), v, bias, groups=groups, **attrs)[0]), want)


@pytest.mark.parametrize(
    ("a", "b"),
    [((4, 5), (5, 3)), ((2, 4, 5), (5, 3)), ((3, 1, 4, 5), (2, 5, 3)), ((1, 5), (7, 5, 2))],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y, bias = normal(*a), normal(*b), normal(b[-1])
    want = theirs("MatMul", x, y)[0]
    close(ours("matmul", x, y, None, trans_b=False)[0], want)
    t = np.ascontiguousarray(np.swapaxes(y, -1, -2))
    close(ours("matmul", x, t, bias, trans_b=True)[0], want + bias)


POOLS = [
    # spatial, kernel, strides, pads, dilations
    ((9, 8), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((9, 8), (2, 3), (1, 2), (0, 1, 1, 0), (2, 1)),
    ((13,), (4,), (3,), (2, 1), (1,)),
    ((5, 6, 7), (2, 3, 2), (1, 2, 2), (0, 1, 0, 1, 1, 1), (1, 1, 1)),
]


@pytest.mark.parametrize("case", POOLS)
def test_pool(case: tuple[Any, ...]) -> None:
    spatial, kernel, strides, pads, dilations = case
    x = normal(2, 3, *spatial)
    theirs_attrs = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
    }
    attrs = {
        "kernel": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "ceil_extra": (0,) * len(spatial),
    }
    close(first(ours("max_pool", last(x), **attrs)[0]), theirs("MaxPool", x, **theirs_attrs)[0])
    for include in (0, 1):
        want = theirs("AveragePool", x, count_include_pad=include, **theirs_attrs)[0]
        got = ours("avg_pool", last(x), count_include_pad=bool(include), **attrs)[0]
        close(first(got), want)


@pytest.mark.parametrize("include", [0, 1])
def test_ceil_mode_pads_never_count(include: int) -> None:
    x = normal(1, 2, 8, 8)
    want = theirs(
        "AveragePool",
        x,
        kernel_shape=(3, 3),
        strides=(2, 2),
        pads=(1, 1, 0, 0),
        ceil_mode=1,
        count_include_pad=include,
    )[0]
    # 9 padded rows, windows at 0, 2, 4, 6: the last one ends at row 8, so ceil mode adds nothing.
    attrs = {"kernel": (3, 3), "strides": (2, 2), "dilations": (1, 1)}
    common = {"count_include_pad": bool(include), **attrs}
    got = ours("avg_pool", last(x), pads=(1, 1, 0, 0), ceil_extra=(0, 0), **common)[0]
    close(first(got), want)
    want = theirs(
        "AveragePool",
        x,
        kernel_shape=(3, 3),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        ceil_mode=1,
        count_include_pad=include,
    )[0]
    # 10 padded rows, windows at 0, 2, 4, 6, 8: the last one reaches row 10, one beyond.
    got = ours("avg_pool", last(x), pads=(1, 1, 2, 2), ceil_extra=(1, 1), **common)[0]
    close(first(got), want)


REDUCTIONS = [
    ("reduce_sum", "ReduceSum"),
    ("reduce_mean", "ReduceMean"),
    ("reduce_max", "ReduceMax"),
    ("reduce_min", "ReduceMin"),
    ("reduce_prod", "ReduceProd"),
    ("reduce_l1", "ReduceL1"),
    ("reduce_l2", "ReduceL2"),
    ("reduce_sum_square", "ReduceSumSquare"),
    ("reduce_log_sum_exp", "ReduceLogSumExp"),
]


@pytest.mark.parametrize(("op", "onnx_op"), REDUCTIONS)
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)])
def test_reduce(op: str, onnx_op: str, axes: tuple[int, ...]) -> None:
    x = normal(3, 4, 5)
    for keep in (0, 1):
        want = theirs(onnx_op, x, np.array(axes, np.int64), keepdims=keep)[0]
        close(ours(op, x, axes=axes, keepdims=bool(keep))[0], want)


@pytest.mark.parametrize(("op", "onnx_op"), [("argmax", "ArgMax"), ("argmin", "ArgMin")])
@pytest.mark.parametrize("select_last", [0, 1])
def test_arg(op: str, onnx_op: str, select_last: int) -> None:
    x = RNG.integers(0, 4, (3, 9, 2)).astype(np.float32)
    want = theirs(onnx_op, x, axis=1, keepdims=0, select_last_index=select_last)[0]
    close(ours(op, x, axis=1, keepdims=False, select_last=bool(select_last))[0], want)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumsum(exclusive: int, reverse: int) -> None:
    x = normal(3, 7)
    want = theirs("CumSum", x, np.array(1, np.int64), exclusive=exclusive, reverse=reverse)[0]
    close(ours("cumsum", x, axis=1, exclusive=bool(exclusive), reverse=bool(reverse))[0], want)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_and_lp_norm(axis: int) -> None:
    x = normal(3, 4, 5) * 20
    close(ours("softmax", x, axis=axis)[0], theirs("Softmax", x, axis=axis)[0])
    close(ours("log_softmax", x, axis=axis)[0], theirs("LogSoftmax", x, axis=axis)[0])
    for p in (1, 2):
        want = theirs("LpNormalization", x, axis=axis, p=p)[0]
        close(ours("lp_norm", x, axis=axis, p=p)[0], want)


@pytest.mark.parametrize("axis", [1, 2])
def test_layer_norm(axis: int) -> None:
    x = normal(3, 4, 5)
    scale, bias = normal(*x.shape[axis:]), normal(*x.shape[axis:])
    want = theirs("LayerNormalization", x, scale, bias, axis=axis, epsilon=1e-3)[0]
    close(ours("layer_norm", x, scale, bias, axis=axis, eps=1e-3)[0], want)
    want = theirs("LayerNormalization", x, scale, axis=axis, epsilon=1e-3)[0]
    close(ours("layer_norm", x, scale, None, axis=axis, eps=1e-3)[0], want)


def test_rms_norm() -> None:
    x, scale = normal(3, 4, 5), normal(5)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-3) * scale
    close(ours("rms_norm", x, scale, axis=2, eps=1e-3)[0], want.astype(np.float32), 0)


def test_channel_norms() -> None:
    x, scale, bias = normal(2, 6, 4, 5), normal(6), normal(6)
    mean, var = normal(6), np.abs(normal(6)) + np.float32(0.1)
    want = theirs("InstanceNormalization", x, scale, bias, epsilon=1e-3)[0]
    close(first(ours("instance_norm", last(x), scale, bias, eps=1e-3)[0]), want)
    want = theirs("GroupNormalization", x, scale, bias, num_groups=3, epsilon=1e-3)[0]
    close(first(ours("group_norm", last(x), scale, bias, groups=3, eps=1e-3)[0]), want)
    want = theirs("BatchNormalization", x, scale, bias, mean, var, epsilon=1e-3)[0]
    got = ours("batch_norm", last(x), scale, bias, mean, var, axis=3, eps=1e-3)[0]
    close(first(got), want)


@pytest.mark.parametrize("size", [3, 5])
def test_lrn(size: int) -> None:
    x = normal(2, 7, 3, 3) * 3
    attrs = {"size": size, "alpha": 0.3, "beta": 0.7, "bias": 1.5}
    close(first(ours("lrn", last(x), **attrs)[0]), theirs("LRN", x, **attrs)[0])
