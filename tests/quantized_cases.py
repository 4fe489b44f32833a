"""One model with a case for every quantized operator and many of its forms.

Every case adds nodes of its own, so that one onnxruntime session, one import and one compiled
project serve them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
Array = np.ndarray


@dataclass
class Builder:
    """A model as it grows.

    Attributes:
        feeds: inputs by name.
        steps: by output, how many quantization steps (or, for floats, relative error) it may be
            from onnxruntime.
    """

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def fed(self, array: Array) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = np.asarray(array)
        return name

    def const(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> str:
        """The node's (first) output."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        domain = attrs.pop("domain", "")
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names[0]

    def output(self, name: str, steps: float = 0) -> None:
        self.steps[name] = steps

    def ints(self, dtype: Any, *shape: int, spread: float = 1.0) -> Array:
        """Random values over the type's range, its ends included."""
        info = np.iinfo(dtype)
        middle, half = (info.min + info.max) / 2, (info.max - info.min) / 2 * spread
        values = self.random.uniform(middle - half, middle + half, shape)
        return np.rint(values).astype(dtype)

    def floats(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    def scale(self, *shape: int, about: float = 0.05) -> Array:
        return (about * self.random.uniform(0.3, 1.7, shape)).astype(np.float32)

    def dq(self, x: str, scale: Any, zero: Any, dtype: Any, **attrs: Any) -> str:
        return self.node(
            "DequantizeLinear", [x, self.const(scale), self.const(zero, dtype)], **attrs
        )

    def q(self, x: str, scale: Any, zero: Any, dtype: Any, **attrs: Any) -> str:
        return self.node("QuantizeLinear", [x, self.const(scale), self.const(zero, dtype)], **attrs)

    def model(self, opset: int = 21) -> onnx.ModelProto:
        def info(name: str, array: Array) -> onnx.ValueInfoProto:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, kind, array.shape)

        graph = helper.make_graph(
            self.nodes,
            "quantized",
            [info(n, a) for n, a in self.feeds.items()],
            [onnx.ValueInfoProto(name=n) for n in self.steps],
            self.constants,
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return with_output_types(model)


def with_output_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with the outputs' types, as onnxruntime finds them."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for found, output in zip(session(bare).get_outputs(), model.graph.output, strict=True):
        kind = {
            "tensor(float)": TensorProto.FLOAT,
            "tensor(int32)": TensorProto.INT32,
            "tensor(uint8)": TensorProto.UINT8,
            "tensor(int8)": TensorProto.INT8,
            "tensor(uint16)": TensorProto.UINT16,
            "tensor(int16)": TensorProto.INT16,
        }[found.type]
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, found.shape))
    return model


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime as the model is written: without optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = [o.name for o in model.graph.output]
    return dict(zip(names, session(model).run(names, dict(feeds)), strict=True))


def distance(got: Array, expected: Array) -> float:
    """Quantization steps between integers; of floats the error relative to the largest."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if expected.dtype.kind == "f":
        top = float(np.max(np.abs(expected), initial=1e-30))
        return float(np.max(np.abs(got.astype(np.float64) - expected), initial=0)) / top
    return float(np.max(np.abs(got.astype(np.int64) - expected.astype(np.int64)), initial=0))


def quantize_cases(b: Builder) -> None:
    """QuantizeLinear and DequantizeLinear: ties, ends of the range, infinities, per axis."""
    ties = np.concatenate([np.arange(-300, 300) / 2, [np.inf, -np.inf, 1e30, -1e30, np.nan]])
    for dtype, zero in [
        (np.uint8, 0), (np.uint8, 255), (np.uint8, 128), (np.int8, -128), (np.int8, 127),
        (np.int8, 0), (np.uint16, 65535), (np.uint16, 300), (np.int16, -32768), (np.int16, 7),
    ]:  # fmt: skip
        x = b.fed(ties.astype(np.float32))
        q = b.q(x, 1.0, zero, dtype)
        b.output(q)
        b.output(b.q(b.fed(b.floats(501, scale=40.0)), 0.37, zero, dtype))
        b.output(b.dq(b.fed(b.ints(dtype, 301)), 0.0371, zero, dtype))
    for dtype, axis in [(np.int8, 0), (np.uint8, 1), (np.int16, -1), (np.uint8, 2)]:
        shape = (3, 4, 5)
        n = shape[axis]
        zeros = b.ints(dtype, n, spread=0.3)
        y = b.q(b.fed(b.floats(*shape)), b.scale(n), zeros, dtype, axis=axis)
        b.output(y)
        b.output(b.dq(y, b.scale(n), zeros, dtype, axis=axis))
    b.output(b.dq(b.fed(b.ints(np.int32, 7, 3, spread=0.01)), b.scale(3), [0, 0, 0], np.int32))
    b.output(b.node("QuantizeLinear", [b.fed(b.floats(9)), b.const(0.1)]))
    # scales known only at run time
    scale, zero = b.fed(b.scale()), b.fed(np.array(5, np.int8))
    y = b.node("QuantizeLinear", [b.fed(b.floats(4, 7)), scale, zero])
    b.output(y)
    b.output(b.node("DequantizeLinear", [y, scale, zero]))
    scale, zero = b.fed(b.scale(7)), b.fed(b.ints(np.uint8, 7))
    y = b.node("QuantizeLinear", [b.fed(b.floats(4, 7)), scale, zero], axis=1)
    b.output(y)
    b.output(b.node("DequantizeLinear", [y, scale, zero], axis=1))
    for x in (b.floats(5, 9), np.abs(b.floats(31)), -np.abs(b.floats(31)), np.zeros(6, np.float32)):
        b.nodes.append(
            helper.make_node(
                "DynamicQuantizeLinear", [b.fed(x)], [f"dyn{len(b.nodes)}_{k}" for k in range(3)]
            )
        )
        for name in b.nodes[-1].output:
            b.output(name)


CONVS: list[dict[str, Any]] = [
    # shape [N, C, *S], out channels, kernel, and the attributes
    {"x": (1, 3, 9, 8), "o": 5, "k": (3, 3), "pads": (1, 1, 1, 1)},
    {"x": (2, 4, 7, 6), "o": 6, "k": (1, 1)},
    {"x": (1, 8, 7, 9), "o": 8, "k": (3, 3), "group": 8, "pads": (1, 1, 1, 1)},
    {"x": (1, 8, 11, 9), "o": 8, "k": (3, 3), "group": 8, "pads": (0, 0, 1, 1), "strides": (2, 2)},
    {"x": (1, 6, 8, 8), "o": 12, "k": (3, 3), "group": 3, "pads": (1, 0, 0, 1)},
    {"x": (1, 5, 12, 10), "o": 4, "k": (5, 2), "strides": (2, 3), "pads": (2, 1, 2, 0)},
    {"x": (1, 4, 11, 13), "o": 3, "k": (3, 3), "dilations": (2, 3), "pads": (2, 3, 2, 3)},
    {"x": (1, 3, 10, 10), "o": 33, "k": (3, 3), "auto_pad": "SAME_UPPER", "strides": (2, 2)},
    {"x": (2, 5, 17), "o": 7, "k": (4,), "pads": (1, 2)},
    {"x": (1, 2, 5, 6, 4), "o": 3, "k": (2, 3, 2), "pads": (1, 1, 0, 0, 1, 1)},
    {"x": (1, 64, 5, 5), "o": 40, "k": (1, 1)},
    {"x": (1, 16, 6, 6), "o": 17, "k": (3, 3), "pads": (1, 1, 1, 1)},
    {"x": (1, 2, 6, 6), "o": 8, "k": (3, 3), "group": 2, "pads": (1, 1, 1, 1)},
]
TYPES = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]


def _conv_operands(
    b: Builder, case: Mapping[str, Any], types: tuple[Any, Any]
) -> tuple[Array, Array]:
    kernel, group = case["k"], case.get("group", 1)
    x = b.ints(types[0], *case["x"])
    # Less than the whole range: onnxruntime's u8 x s8 kernels may saturate pairs on old cores.
    w = b.ints(types[1], case["o"], case["x"][1] // group, *kernel, spread=0.5)
    return x, w


def _conv_attrs(case: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in case.items() if k not in ("x", "o", "k")}


def conv_cases(b: Builder) -> None:
    """ConvInteger and QLinearConv: types, pads, groups, extreme zero points, scales by channel."""
    for number, case in enumerate(CONVS):
        for t, types in enumerate(TYPES):
            x, w = _conv_operands(b, case, types)
            depth, o = w[0].size, case["o"]
            lo, hi = np.iinfo(types[0]).min, np.iinfo(types[0]).max
            zero = [lo, hi, int(b.random.integers(lo, hi))][(number + t) % 3]
            w_zero = 0 if types[1] == np.int8 else [0, 255, 131][number % 3]
            per_channel = number % 2 == 1
            w_scale = b.scale(o) if per_channel else b.scale()
            out = np.float32(depth**0.5 * 0.05 * 0.05 * 40)
            y_zero = [hi, lo, int(b.random.integers(lo, hi))][(number + t) % 3]
            xs, ws = b.fed(x), b.const(w, types[1])
            inputs = [
                xs, b.const(0.05), b.const(zero, types[0]),
                ws, b.const(w_scale),
                b.const(np.full(o if per_channel else (), w_zero), types[1]),
                b.const(out), b.const(y_zero, types[0]),
            ]  # fmt: skip
            if number % 3:
                inputs.append(b.const(b.random.integers(-9000, 9000, o), np.int32))
            b.output(b.node("QLinearConv", inputs, **_conv_attrs(case)))
            if types[0] == np.uint8:  # onnxruntime has no ConvInteger of int8 inputs
                zeros = [b.const(zero, types[0]), b.const(w_zero, types[1])]
                b.output(b.node("ConvInteger", [xs, ws, *zeros], **_conv_attrs(case)))
    x, w = _conv_operands(b, CONVS[0], TYPES[0])
    run_time = b.fed(np.array(77, np.uint8))
    b.output(b.node("ConvInteger", [b.fed(x), b.const(w, np.int8), run_time], pads=(1, 1, 1, 1)))
    b.output(b.node("ConvInteger", [b.fed(x), b.fed(w)]))


def matmul_cases(b: Builder) -> None:
    """MatMulInteger, QLinearMatMul, QGemm and the dynamic products."""
    shapes = [((5, 7), (7, 9)), ((1, 64), (64, 33)), ((3, 4, 6), (6, 5)), ((2, 4, 6), (2, 6, 5))]
    shapes += [((2, 1, 3, 4), (5, 4, 2))]
    for number, (left, right) in enumerate(shapes):
        for types in TYPES:
            a, w = b.ints(types[0], *left), b.ints(types[1], *right, spread=0.5)
            columns = right[-1]
            a_zero = int(b.random.choice([np.iinfo(types[0]).min, np.iinfo(types[0]).max, 3]))
            b_zero = b.ints(types[1], spread=0.2) if types[1] == np.uint8 else 0
            by_column = number % 2 == 0 and len(right) == 2
            x, bias = b.fed(a), b.const(w, types[1])
            zeros = [b.const(a_zero, types[0]), b.const(b_zero, types[1])]
            if types[0] == np.uint8:
                b.output(b.node("MatMulInteger", [x, bias, *zeros]))
            scale = b.scale(columns) if by_column else b.scale()
            inputs = [
                x, b.const(0.04), zeros[0], bias, b.const(scale),
                b.const(np.full(scale.shape, b_zero), types[1]),
                b.const(0.04 * 0.05 * 60 * right[-2] ** 0.5), b.const(7, types[0]),
            ]  # fmt: skip
            b.output(b.node("QLinearMatMul", inputs))
    # zero points by column, of constant weights and of ones known only at run time
    for feed in (False, True):
        w, zeros = b.ints(np.uint8, 12, 9), b.ints(np.uint8, 9)
        right = (
            [b.fed(w), b.fed(zeros)] if feed else [b.const(w, np.uint8), b.const(zeros, np.uint8)]
        )
        x = b.fed(b.ints(np.uint8, 4, 12))
        b.output(b.node("MatMulInteger", [x, right[0], b.const(7, np.uint8), right[1]]))
    kernels, zeros = b.ints(np.uint8, 6, 4, 3, 3), b.ints(np.uint8, 6)
    inputs = [
        b.fed(b.ints(np.uint8, 1, 4, 7, 7)), b.const(0.05), b.const(3, np.uint8),
        b.const(kernels, np.uint8), b.const(b.scale(6)), b.const(zeros, np.uint8),
        b.const(0.6), b.const(100, np.uint8),
    ]  # fmt: skip
    b.output(b.node("QLinearConv", inputs, pads=(1, 1, 1, 1)))
    for number in range(6):
        types, trans_b, float_out = TYPES[number % 3], number % 2, number >= 4
        w = b.ints(types[1], *((9, 12) if trans_b else (12, 9)), spread=0.5)
        scale = b.scale(9) if number % 2 else b.scale()
        inputs = [
            b.fed(b.ints(types[0], 4, 12)), b.const(0.04), b.const(5, types[0]),
            b.const(w, types[1]), b.const(scale), b.const(np.full(scale.shape, 0), types[1]),
            b.const(b.random.integers(-3000, 3000, 9), np.int32),
        ]  # fmt: skip
        if not float_out:
            inputs += [b.const(0.4), b.const(3, types[0])]
        b.output(
            b.node("QGemm", inputs, domain=MICROSOFT, transB=trans_b, alpha=1.0 + number / 4),
            1e-6 if float_out else 0,
        )
    for w_type in (np.int8, np.uint8):
        w, zero = b.ints(w_type, 11, 6, spread=0.5), int(w_type == np.uint8) * 120
        a, bias = b.fed(b.floats(3, 11)), b.const(b.floats(6))
        tail = [b.const(b.scale()), b.const(zero, w_type)]
        y = b.node("DynamicQuantizeMatMul", [a, b.const(w, w_type), *tail, bias], domain=MICROSOFT)
        b.output(y, 1e-6)
        x = b.fed(b.ints(np.uint8, 3, 11))
        inputs = [x, b.const(w, w_type), b.fed(b.scale()), tail[0], b.const(9, np.uint8), tail[1]]
        b.output(b.node("MatMulIntegerToFloat", [*inputs, bias], domain=MICROSOFT), 1e-6)


def elementwise_cases(b: Builder) -> None:
    """onnxruntime's element-wise and pooling operators: a step apart where its kernels round in
    another order than its definition.
    """
    for dtype in (np.uint8, np.int8):
        for op, right in [
            ("Add", (3, 7, 5)),
            ("Mul", (3, 7, 5)),
            ("Add", (5,)),
            ("Mul", (1, 7, 1)),
        ]:
            inputs = [
                b.fed(b.ints(dtype, 3, 7, 5)), b.const(0.03), b.const(9, dtype),
                b.fed(b.ints(dtype, *right)), b.const(0.11), b.const(100, dtype),
                b.const(0.11 if op == "Add" else 0.3), b.const(60, dtype),
            ]  # fmt: skip
            b.output(b.node(f"QLinear{op}", inputs, domain=MICROSOFT), 1)
        for op, attrs in [("Sigmoid", {}), ("LeakyRelu", {"alpha": 0.2})]:
            inputs = [
                b.fed(b.ints(dtype, 500)), b.const(0.07), b.const(30, dtype),
                b.const(0.05 if attrs else 1 / 256),
                b.const(0 if attrs else np.iinfo(dtype).min, dtype),
            ]  # fmt: skip
            b.output(b.node(f"QLinear{op}", inputs, domain=MICROSOFT, **attrs), 1)
        parts = []
        for scale, zero in ((0.05, 3), (0.02, 100), (0.05, 7)):
            parts += [b.fed(b.ints(dtype, 2, 3, 4)), b.const(scale), b.const(zero, dtype)]
        head = [b.const(0.05), b.const(3, dtype)]
        b.output(b.node("QLinearConcat", [*head, *parts], domain=MICROSOFT, axis=1), 1)
        for axis, opset in ((-1, 13), (1, 13), (1, 12)):
            inputs = [
                b.fed(b.ints(dtype, 2, 6, 5)), b.const(0.06), b.const(11, dtype),
                b.const(1 / 256), b.const(np.iinfo(dtype).min, dtype),
            ]  # fmt: skip
            b.output(b.node("QLinearSoftmax", inputs, domain=MICROSOFT, axis=axis, opset=opset), 1)
        pool = [b.fed(b.ints(dtype, 1, 5, 9, 8)), b.const(0.05), b.const(9, dtype)]
        pool += [b.const(0.03), b.const(17, dtype)]
        for attrs in (
            {"kernel_shape": (3, 3)},
            {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 1, 1, 1)},
            {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1},
        ):
            b.output(b.node("QLinearAveragePool", pool, domain=MICROSOFT, **attrs), 1)
        b.output(b.node("QLinearGlobalAveragePool", pool, domain=MICROSOFT, channels_last=0), 1)
        b.output(b.node("QLinearGlobalAveragePool", pool, domain=MICROSOFT, channels_last=1), 1)
        where = [b.fed(b.random.integers(0, 2, (4, 5)).astype(bool)), b.fed(b.ints(dtype, 4, 5))]
        where += [b.const(0.05), b.const(9, dtype), b.fed(b.ints(dtype, 5)), b.const(0.02)]
        where += [b.const(2, dtype), b.const(0.05), b.const(20, dtype)]
        b.output(b.node("QLinearWhere", where, domain=MICROSOFT), 1)


def qdq_cases(b: Builder) -> None:
    """dequantize, op, quantize: a step apart from onnxruntime's float arithmetic."""
    for number, case in enumerate(CONVS):
        types = TYPES[number % 3]
        x, w = _conv_operands(b, case, types)
        o = case["o"]
        per_channel = number % 2 == 0
        w_scale = b.scale(o) if per_channel else b.scale()
        zero = np.full(w_scale.shape, 0 if types[1] == np.int8 else 128)
        real = b.dq(b.fed(x), 0.05, 17, types[0])
        inputs = [real, b.dq(b.const(w, types[1]), w_scale, zero, types[1], axis=0)]
        if number % 3 != 2:
            scale = (np.float32(0.05) * w_scale).astype(np.float32)
            bias = b.random.integers(-4000, 4000, o)
            if number % 3 == 0:
                inputs.append(
                    b.dq(b.const(bias, np.int32), scale, np.zeros(scale.shape), np.int32, axis=0)
                )
            else:
                inputs.append(b.const(b.floats(o)))
        y = b.node("Conv", inputs, **_conv_attrs(case))
        if number % 4 == 1:
            y = b.node("Relu", [y])
        if number % 4 == 2:
            y = b.node("Clip", [y, b.const(-0.5), b.const(6.0)])
        if number % 4 != 3:
            y = b.q(y, 0.05 * w[0].size ** 0.5, 20, types[0])
        b.output(y, 1 if number % 4 != 3 else 1e-5)
    for trans in (0, 1):
        a = b.dq(b.fed(b.ints(np.uint8, 6, 20)), 0.02, 100, np.uint8)
        w = b.ints(np.int8, *((9, 20) if trans else (20, 9)))
        right = b.dq(b.const(w, np.int8), b.scale(9), np.zeros(9), np.int8, axis=1 - trans)
        y = b.node("Gemm", [a, right, b.const(b.floats(9))], transB=trans)
        b.output(b.q(y, 0.1, 128, np.uint8), 1)
        b.output(y, 1e-5)
    a = b.dq(b.fed(b.ints(np.int8, 2, 3, 8)), 0.02, 5, np.int8)
    c = b.dq(b.fed(b.ints(np.int8, 2, 5, 8)), 0.03, -4, np.int8)
    scores = b.node("MatMul", [a, b.node("Transpose", [c], perm=(0, 2, 1))])
    b.output(b.q(scores, 0.2, 0, np.int8), 1)
    # one 8-bit tensor through expressions
    x = b.dq(b.fed(b.ints(np.uint8, 300)), 0.04, 120, np.uint8)
    gate = b.dq(b.q(b.node("Sigmoid", [x]), 1 / 256, 0, np.uint8), 1 / 256, 0, np.uint8)
    b.output(b.q(b.node("Mul", [x, gate]), 0.03, 20, np.uint8), 1)
    b.output(b.q(b.node("Tanh", [x]), 1 / 128, 128, np.uint8), 1)
    b.output(b.q(b.node("HardSwish", [x]), 0.03, 128, np.uint8), 1)
    b.output(b.q(b.node("Relu", [x]), 0.02, 0, np.uint8), 1)
    b.output(b.q(x, 0.04, 120, np.uint8), 0)
    b.output(b.q(x, 0.07, 3, np.int8), 1)
    # movement, maxima, joins
    image = b.dq(b.fed(b.ints(np.int8, 1, 4, 8, 6)), 0.05, 3, np.int8)
    other = b.dq(b.fed(b.ints(np.int8, 1, 2, 8, 6)), 0.02, -9, np.int8)
    pooled = b.node("MaxPool", [image], kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(2, 2))
    b.output(b.q(pooled, 0.05, 3, np.int8), 0)
    b.output(b.q(b.node("AveragePool", [image], kernel_shape=(2, 2)), 0.05, 3, np.int8), 1)
    b.output(b.q(b.node("GlobalAveragePool", [image]), 0.05, 3, np.int8), 1)
    b.output(b.q(b.node("Concat", [image, other], axis=1), 0.05, 3, np.int8), 1)
    b.output(b.q(b.node("Concat", [image, image], axis=2), 0.05, 3, np.int8), 0)
    b.output(b.q(b.node("Reshape", [image, b.const([4, -1], np.int64)]), 0.05, 3, np.int8), 0)
    b.output(b.q(b.node("Transpose", [image], perm=(0, 2, 3, 1)), 0.05, 3, np.int8), 0)
    scales = b.const([1, 1, 2, 2])
    grown = b.node("Resize", [image, "", scales], mode="nearest")
    b.output(b.q(grown, 0.05, 3, np.int8), 0)
    parts = b.node("Split", [image, b.const([1, 3], np.int64)], 2, axis=1)
    b.output(b.q(parts, 0.05, 3, np.int8), 0)
    b.output(b.q(parts[:-1] + "1", 0.02, 3, np.int8), 1)
    b.output(b.q(b.node("Add", [image, b.node("Relu", [image])]), 0.09, 3, np.int8), 1)
    # a float image, read plane by plane
    photo = b.q(b.fed(b.floats(1, 3, 9, 21)), 0.02, -7, np.int8)
    first = b.dq(b.const(b.ints(np.int8, 5, 3, 3, 3), np.int8), 0.01, 0, np.int8)
    seen = b.node("Conv", [b.dq(photo, 0.02, -7, np.int8), first], strides=(2, 2))
    b.output(b.q(seen, 0.1, 4, np.int8), 1)
    # 16 bits: sums that int32 cannot hold stay float
    wide = b.dq(b.fed(b.ints(np.uint16, 1, 64, 5, 5)), 0.001, 32768, np.uint16)
    w = b.dq(b.const(b.ints(np.int8, 8, 64, 3, 3), np.int8), 0.01, 0, np.int8)
    b.output(b.q(b.node("Conv", [wide, w]), 0.01, 32768, np.uint16), 1)
    few = b.dq(b.fed(b.ints(np.int16, 1, 4, 5, 5)), 0.001, 0, np.int16)
    w = b.dq(b.const(b.ints(np.int8, 8, 4, 1, 1), np.int8), 0.01, 0, np.int8)
    b.output(b.q(b.node("Conv", [few, w]), 0.01, 0, np.int16), 1)


def lstm_cases(b: Builder, longest: int = 12) -> None:
    """DynamicQuantizeLSTM: written out for a few steps, float with real weights for many."""
    forms = [
        (1, "forward", np.uint8, False), (3, "reverse", np.int8, True),
        (2, "bidirectional", np.int8, False), (12, "forward", np.uint8, False),
    ]  # fmt: skip
    for steps, direction, dtype, per_channel in [f for f in forms if f[0] <= longest]:
        inputs, hidden, d = 6, 5, 2 if direction == "bidirectional" else 1
        x = b.fed(b.floats(steps, 1, inputs))
        parts = []
        for rows in (inputs, hidden):
            shape = (d, 4 * hidden) if per_channel else (d,)
            zero = np.full(shape, 130 if dtype == np.uint8 else 0)
            weights = b.const(b.ints(dtype, d, rows, 4 * hidden), dtype)
            parts.append((weights, b.const(b.scale(*shape, about=0.01)), b.const(zero, dtype)))
        (w, w_scale, w_zero), (r, r_scale, r_zero) = parts
        states = [b.fed(b.floats(d, 1, hidden)) for _ in range(2)]
        bias = b.const(b.floats(d, 8 * hidden, scale=0.1))
        names = [x, w, r, bias, "", *states, "", w_scale, w_zero, r_scale, r_zero]
        y = b.node(
            "DynamicQuantizeLSTM",
            names,
            3,
            domain=MICROSOFT,
            hidden_size=hidden,
            direction=direction,
        )
        for k in range(3):
            b.output(y[:-1] + str(k), 1e-5 if steps <= 3 else 0.08)


def everything(seed: int = 0) -> Builder:
    b = Builder(seed)
    for part in (quantize_cases, conv_cases, matmul_cases, elementwise_cases, qdq_cases):
        part(b)
    lstm_cases(b, longest=3)
    return b
