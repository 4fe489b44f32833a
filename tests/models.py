"""Small ONNX models that tests build by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int | str, ...]],
    outputs: dict[str, tuple[int | str, ...]],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of float tensors."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def two_layers() -> onnx.ModelProto:
    """relu(x @ w1 + b1) @ w2: two layers with weights, [2, 8] to [2, 4]."""
    rng = np.random.default_rng(3)
    constants = {
        "w1": rng.standard_normal((8, 16), np.float32),
        "b1": rng.standard_normal(16, np.float32),
        "w2": rng.standard_normal((16, 4), np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "act"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    return model(nodes, {"x": (2, 8)}, {"y": (2, 4)}, constants)


def flip_weight_bit(project: Path, layer: int) -> None:
    """Change the lowest bit of one weight of ``two_layers``: too little to see in the results.

    Args:
        project: folder of a project of that model.
        layer: 0 for the first of its layers, 1 for the second.
    """
    path = project / "src" / "weights.bin"
    data = bytearray(path.read_bytes())
    name = ("w1", "w2")[layer]
    (weights,) = (w for w in two_layers().graph.initializer if w.name == name)
    data[data.index(numpy_helper.to_array(weights)[0, 0].tobytes())] ^= 1
    path.write_bytes(bytes(data))
