"""Scan and Loop of a known number of trips, written out and compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.e2e.node_cases import Case, check, floats, refusal


def body(nodes: Sequence[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any]):
    """A subgraph; shapes by name, of floats unless a pair (type, shape)."""

    def infos(named: dict[str, Any]) -> list[onnx.ValueInfoProto]:
        pairs = {
            k: v if isinstance(v, tuple) and len(v) == 2 and isinstance(v[1], list) else (1, v)
            for k, v in named.items()
        }
        return [helper.make_tensor_value_info(k, t, s) for k, (t, s) in pairs.items()]

    return helper.make_graph(list(nodes), "body", infos(inputs), infos(outputs))


def test_scan(tmp_path: Path) -> None:
    """A running sum; cuts along other axes, backwards; outputs joined along other axes."""
    total = body(
        [
            helper.make_node("Mul", ["x", "x"], ["square"]),
            helper.make_node("Add", ["state", "square"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        {"state": [3], "x": [3]},
        {"next": [3], "row": [3]},
    )
    two = body(
        [
            helper.make_node("Add", ["a", "b"], ["sum"]),
            helper.make_node("Sub", ["a", "b"], ["difference"]),
        ],
        {"a": [2, 4], "b": [2, 4]},
        {"sum": [2, 4], "difference": [2, 4]},
    )
    cases = [
        Case("Scan", [floats(3), floats(5, 3)], {"body": total, "num_scan_inputs": 1}, 2, ""),
        Case(
            "Scan",
            [floats(3), floats(3, 5)],
            {
                "body": total,
                "num_scan_inputs": 1,
                "scan_input_axes": [-1],
                "scan_input_directions": [1],
                "scan_output_axes": [1],
                "scan_output_directions": [1],
            },
            2,
            "",
        ),
        Case(
            "Scan",
            [floats(2, 6, 4), floats(2, 4, 6)],
            {
                "body": two,
                "num_scan_inputs": 2,
                "scan_input_axes": [1, 2],
                "scan_input_directions": [0, 1],
                "scan_output_axes": [-1, 0],
            },
            2,
            "",
        ),
    ]
    check(cases, tmp_path)


def loop_body() -> onnx.GraphProto:
    """v := v * 2 + trip; goes on while trip < 4."""
    nodes = [
        helper.make_node("Cast", ["trip"], ["t"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Constant", [], ["four"], value_int=4),
        helper.make_node("Mul", ["v", "two"], ["twice"]),
        helper.make_node("Add", ["twice", "t"], ["next"]),
        helper.make_node("Less", ["trip", "four"], ["goes_on_out"]),
        helper.make_node("Concat", ["next", "next"], ["seen"], axis=0),
    ]
    return body(
        nodes,
        {"trip": (TensorProto.INT64, []), "goes_on": (TensorProto.BOOL, []), "v": [3]},
        {"goes_on_out": (TensorProto.BOOL, []), "next": [3], "seen": [6]},
    )


def test_loop(tmp_path: Path) -> None:
    """Three trips by the count, and five by the condition."""
    cases = [
        Case(
            "Loop",
            [np.array(count, np.int64), np.array(True), floats(3)],
            {"body": loop_body()},
            2,
            "",
            constants=(0, 1),
        )
        for count in (3, 100)
    ]
    check(cases, tmp_path)


def test_endless_loops_are_refused() -> None:
    """A condition that the data decide, and more trips than can be written out."""
    endless = Case(
        "Loop",
        [np.array(10**6, np.int64), np.array(True), floats(3)],
        {"body": loop_body()},
        2,
        "",
        constants=(0,),
    )
    assert "known only at run time" in refusal(endless)
    total = body(
        [helper.make_node("Add", ["state", "x"], ["next"])], {"state": [3], "x": [3]}, {"next": [3]}
    )
    long = Case("Scan", [floats(3), floats(2001, 3)], {"body": total, "num_scan_inputs": 1}, 1, "")
    assert "the limit is 2000 nodes" in refusal(long)
