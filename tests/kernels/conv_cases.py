"""Cases of convolution variants with onnxruntime's answer as the expected value."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from kernels.harness import Case
from onnx import TensorProto, helper, numpy_helper

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Template


def _first(x: np.ndarray) -> np.ndarray:
    """Channels first."""
    return np.moveaxis(x, -1, 1)


def onnx_model(op: str, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, attrs: dict[str, Any]):
    """A model of one Conv or ConvTranspose, its operands channels-first."""
    operands = ["x", "w"] + ([] if b is None else ["b"])
    initializers = [numpy_helper.from_array(np.ascontiguousarray(w), "w")]
    if b is not None:
        initializers.append(numpy_helper.from_array(b, "b"))
    graph = helper.make_graph(
        [helper.make_node(op, operands, ["y"], **attrs)],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def conv_operands(
    op: str,
    x: tuple[int, ...],
    outputs: int,
    kernel: tuple[int, ...],
    *,
    groups: int = 1,
    bias: bool = True,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """x [N,*S,C], w [F,*K,C/g] and bias, seeded."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal(x, np.float32)
    w = rng.standard_normal((outputs, *kernel, x[-1] // groups), np.float32)
    w /= np.float32(np.sqrt(w[0].size))
    return data, w, rng.standard_normal(outputs, np.float32) if bias else None


def onnx_weights(op: str, w: np.ndarray, groups: int) -> np.ndarray:
    """ONNX's order: Conv [F, C/g, *K], ConvTranspose [C, F/g, *K]."""
    if op == "Conv":
        return _first(w)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    moved = np.moveaxis(split, -1, 1)  # g, C/g, F/g, *K
    return moved.reshape(-1, *moved.shape[2:])


def variant_case(
    name: str,
    template: Template,
    op: str,
    x: tuple[int, ...],
    outputs: int,
    kernel: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    dilations: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    groups: int = 1,
    bias: bool = True,
    seed: int = 0,
    relu: bool = False,
    add: bool = False,
    scale: bool = False,
    **kwargs: object,
) -> Case:
    """A group of a Conv or ConvTranspose; ``scale``, ``add`` and ``relu`` append an epilogue."""
    axes = len(x) - 2
    data, w, b = conv_operands(op, x, outputs, kernel, groups=groups, bias=bias, seed=seed)
    attrs: dict[str, Any] = {
        "strides": strides or (1,) * axes,
        "pads": pads or (0,) * 2 * axes,
        "dilations": dilations or (1,) * axes,
    }
    extra = {} if op == "Conv" else {"output_padding": output_padding or (0,) * axes}
    model = onnx_model(
        op, _first(data), onnx_weights(op, w, groups), b, {**attrs, **extra, "group": groups}
    )
    (y,) = session(model).run(None, {"x": np.ascontiguousarray(_first(data))})
    expected = np.moveaxis(y, 1, -1).astype(np.float64)

    graph = Graph("case", [], [], [])
    ir_op = "conv" if op == "Conv" else "conv_transpose"
    node = graph.make(
        ir_op,
        [
            Value("x", TensorType(DType.F32, x)),
            graph.constant(w, "weights"),
            None if b is None else graph.constant(b, "b"),
        ],
        name="conv",
        groups=groups,
        **attrs,
        **extra,
    )
    assert node.output.shape == expected.shape, (node.output.shape, expected.shape)
    nodes, inputs = [node], {"x": data}
    rng = np.random.default_rng(seed + 1)
    if scale:
        factor = rng.standard_normal(outputs).astype(np.float32)
        nodes.append(graph.make("mul", [node.output, graph.constant(factor, "f")], name="scale"))
        expected = expected * factor
    if add:
        r = rng.standard_normal(expected.shape).astype(np.float32)
        value = Value("residual", node.output.type)
        nodes.append(graph.make("add", [nodes[-1].output, value], name="sum"))
        inputs["residual"] = r
        expected = expected + r
    if relu:
        nodes.append(graph.make("relu", [nodes[-1].output], name="relu"))
        expected = np.maximum(expected, 0)
    group = Group(nodes, node, "conv")
    return Case(name, group, template, inputs, expected=expected, **kwargs)  # type: ignore[arg-type]
