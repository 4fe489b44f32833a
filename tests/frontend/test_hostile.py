"""Models that break an operator's rules in ways that onnx's checker lets pass."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from frontend.models import model, node, ramp
from frontend.test_bad_input import fails
from onnx import TensorProto, helper

from aotgen.errors import UnsupportedError


def value(name: str, shape: list[int], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def refused(proto: onnx.ModelProto, *words: str) -> None:
    fails(UnsupportedError, proto, *words)


@pytest.mark.parametrize(
    ("attributes", "word"),
    [
        ({"strides": [0, 0]}, "strides"),
        ({"dilations": [-1, 1]}, "dilations"),
        ({"pads": [-2, -2, -2, -2]}, "pads"),
        ({"output_padding": [-1, -1]}, "output_padding"),
    ],
)
def test_transposed_convolution(attributes: dict[str, list[int]], word: str) -> None:
    constants = {"w": ramp(2, 3, 3, 3)}
    nodes = [node("ConvTranspose", "x w", **attributes)]
    refused(model(nodes, {"x": [1, 2, 4, 4]}, constants=constants), word)


def test_split_into_more_parts_than_outputs() -> None:
    nodes = [node("Split", "x", "y", num_outputs=2**50)]
    refused(model(nodes, {"x": [4, 2]}, opset=18), "num_outputs")


def test_slice_of_an_axis_twice() -> None:
    zeros, ones = np.zeros(2, np.int64), np.ones(2, np.int64)
    constants = {"starts": zeros, "ends": ones, "axes": np.array([0, -2])}
    refused(
        model([node("Slice", "x starts ends axes")], {"x": [4, 2]}, constants=constants), "axes"
    )


@pytest.mark.parametrize("k", [[1, 2], []])
def test_top_k_of_several(k: list[int]) -> None:
    constants = {"k": np.array(k, np.int64)}
    refused(model([node("TopK", "x k", "y i")], {"x": [4]}, constants=constants), "K has")


def scan(count: int, outputs: int = 2) -> onnx.ModelProto:
    """Running sums over the rows of x."""
    body = helper.make_graph(
        [node("Add", "s e", "t"), node("Identity", "t", "o")],
        "body",
        [value("s", [2]), value("e", [2])],
        [value("t", [2]), value("o", [2])][:outputs],
    )
    nodes = [node("Scan", "s0 x", "y z", body=body, num_scan_inputs=count)]
    return model(nodes, {"s0": [2], "x": [3, 2]}, ["y", "z"])


@pytest.mark.parametrize("count", [-1, 0, 3, 2**62])
def test_scan_over_inputs_that_it_has_not(count: int) -> None:
    refused(scan(count), "num_scan_inputs")


def test_output_that_no_body_computes() -> None:
    """It is refused rather than left out of the project."""
    refused(scan(1, outputs=1), "'z'")


def loop(body: onnx.GraphProto, x: str, y: str) -> onnx.NodeProto:
    """A Loop of M trips with one state."""
    return helper.make_node("Loop", ["M", "", x], [y], body=body)


def test_loops_within_loops() -> None:
    """Each level doubles the nodes: the limit holds for all of them together."""

    def body(k: int, *inner: onnx.NodeProto) -> onnx.GraphProto:
        nodes = inner or (node("Add", f"s{k} s{k}", f"t{k}"),)
        return helper.make_graph(
            [node("Identity", f"c{k}", f"d{k}"), *nodes],
            f"body{k}",
            [
                value(f"i{k}", [], TensorProto.INT64),
                value(f"c{k}", [], TensorProto.BOOL),
                value(f"s{k}", [2]),
            ],
            [value(f"d{k}", [], TensorProto.BOOL), value(f"t{k}", [2])],
        )

    graph = body(0)
    for k in range(1, 20):
        graph = body(k, loop(graph, f"s{k}", f"t{k}"))
    constants = {"M": np.array(2, np.int64)}
    proto = model([loop(graph, "x", "y")], {"x": [2]}, constants=constants)
    refused(proto, "loops within loops")


@pytest.mark.parametrize("trips", [[], [1, 2]])
def test_loop_of_several_trip_counts(trips: list[int]) -> None:
    body = helper.make_graph(
        [node("Identity", "c", "d"), node("Add", "s s", "t")],
        "body",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [2])],
        [value("d", [], TensorProto.BOOL), value("t", [2])],
    )
    constants = {"M": np.array(trips, np.int64)}
    proto = model([loop(body, "x", "y")], {"x": [2]}, constants=constants)
    refused(proto, "the trip count has")


def trees(**changed: list[int]) -> onnx.ModelProto:
    """Two trees of one decision each."""
    attributes: dict[str, object] = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0, 0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
        "target_treeids": [0, 0, 1, 1],
        "target_nodeids": [1, 2, 1, 2],
        "target_ids": [0, 0, 0, 0],
        "target_weights": [1.0, 2.0, 3.0, 4.0],
        "n_targets": 1,
        **changed,
    }
    tree = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes
    )
    proto = model([tree], {"x": [2, 4]})
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    return proto


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"nodes_truenodeids": [0, 0, 0, 1, 0, 0]}, "below itself"),
        ({"nodes_featureids": [-1, 0, 0, 1, 0, 0]}, "feature -1"),
        ({"nodes_featureids": [4, 0, 0, 1, 0, 0]}, "feature"),
        ({"post_transform": "ODD"}, "ODD"),
    ],
)
def test_trees(changed: dict, word: str) -> None:
    refused(trees(**changed), word)


def test_zero_point_of_another_type() -> None:
    constants = {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.int8)}
    nodes = [node("DequantizeLinear", "x scale zero")]
    dtypes = {"x": TensorProto.UINT8}
    refused(model(nodes, {"x": [4]}, constants=constants, dtypes=dtypes), "zero point")
