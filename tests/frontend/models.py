"""Small hand-made models for the frontend's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from aotgen.frontend.onnx import load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify

Dims = Sequence[int | str | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Dims],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    dtypes: Mapping[str, int] | None = None,
    **extra: Any,
) -> onnx.ModelProto:
    """A model; inputs and outputs are float32 unless ``dtypes`` says otherwise."""
    kinds = dict(dtypes or {})
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), list(dims))
            for name, dims in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None)
            for name in outputs
        ],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **extra
    )


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node; names of inputs and outputs are separated by spaces, a dash is an absent one."""
    names = ["" if n == "-" else n for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def onnxruntime_results(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def assert_as_onnxruntime(
    proto: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    *,
    dims: Mapping[str, int] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Frontend and interpreter against onnxruntime, dtype and shape included."""
    bound = None if dims is not None else {n: a.shape for n, a in feeds.items()}
    graph = load(proto, shapes=bound, dims=dims)
    verify(graph)
    got = list(run(graph, dict(feeds)).values())
    want = onnxruntime_results(proto, feeds)
    assert len(got) == len(want)
    for have, expected in zip(got, want, strict=True):
        assert have.dtype == expected.dtype
        assert have.shape == expected.shape
        np.testing.assert_allclose(have, expected, rtol=rtol, atol=atol)


def ramp(*shape: int, seed: int = 0) -> np.ndarray:
    """Seeded normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
