"""LSTM, GRU and RNN as the reader takes them apart, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from models import model
from onnx import ModelProto, helper

from aotgen.frontend.onnx import check, load
from aotgen.ir.graph import Node

T, N, I, H = 3, 2, 4, 5  # noqa: E741  (the names of ONNX's text)


def proto(
    op: str = "LSTM",
    steps: int = T,
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 14,
    **attrs: Any,
) -> ModelProto:
    """One node with constant weights and all its outputs."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    given = {
        "W": np.ones((1, gates * H, I), np.float32),
        "R": np.ones((1, gates * H, H), np.float32),
        "B": np.arange(2 * gates * H, dtype=np.float32)[None],
        **(constants or {}),
    }
    order = ["W", "R", "B", "lengths", "h0", "c0", "P"]
    names = ["X", *(name if name in given else "" for name in order)]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    shapes = {"Y": (steps, 1, N, H), "Y_h": (1, N, H), "Y_c": (1, N, H)}
    node = helper.make_node(op, names, outputs, "net", hidden_size=H, **attrs)
    return model([node], {"X": (steps, N, I)}, {o: shapes[o] for o in outputs}, given, opset)


def recurrent(p: ModelProto) -> Node:
    (node,) = [n for n in load(p).nodes if n.op in ("lstm", "gru", "rnn")]
    return node


def reason(p: ModelProto) -> str:
    (problem,) = check(p)
    return f"{problem.reason}; {problem.remedy}"


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_all_steps_share_one_product(op: str, opset: int) -> None:
    graph = load(proto(op, opset=opset))
    assert [n.op for n in graph.nodes][:2] == ["matmul", op.lower()]
    assert graph.nodes[1].attrs["results"] == ("y", "h", "c")[: len(graph.outputs)]


def test_both_biases_are_one() -> None:
    b = np.arange(8 * H, dtype=np.float32)
    bias = load(proto()).nodes[0].input(2)
    np.testing.assert_array_equal(bias.const, b[: 4 * H] + b[4 * H :])


def test_a_gru_that_resets_behind_the_product_keeps_a_bias_inside() -> None:
    node = recurrent(proto("GRU", linear_before_reset=1))
    np.testing.assert_array_equal(node.input(2).const, np.arange(5 * H, 6 * H))
    assert recurrent(proto("GRU")).optional(2) is None


def test_what_says_nothing_is_dropped() -> None:
    zeros = np.zeros((1, N, H), np.float32)
    whole = np.full(N, T, np.int32)
    node = recurrent(proto(constants={"h0": zeros, "c0": zeros, "lengths": whole}))
    assert node.inputs[2:] == [None] * 5


def test_activations_take_parameters_in_turn() -> None:
    """Those that have none take none; what is left has ONNX's defaults."""
    p = proto(
        activations=["HardSigmoid", "Tanh", "Elu"],
        activation_alpha=[0.25],
        activation_beta=[0.75],
    )
    assert recurrent(p).attrs["activations"] == (
        ("HardSigmoid", 0.25, 0.75),
        ("Tanh", 0.0, 0.0),
        ("Elu", 1.0, 0.0),
    )


@pytest.mark.parametrize(
    "attrs, words",
    [
        ({"activations": ["Affine", "Tanh", "Tanh"]}, "Affine has no default for alpha"),
        ({"activations": ["Tanh"]}, "1 activations, not 3"),
        ({"activations": ["Tanh", "Tanh", "Swish"]}, "'Swish' is not one of ONNX's"),
        ({"direction": "sideways"}, "direction 'sideways'"),
        ({"clip": -1.0}, "clip -1.0"),
        ({"layout": 2}, "layout 2"),
    ],
)
def test_refused_attributes(attrs: dict[str, Any], words: str) -> None:
    assert words in reason(proto(**attrs))


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("lengths", np.array([1, T + 1], np.int32), "must lie between 0 and 3"),
        ("R", np.ones((1, 4 * H, H + 1), np.float32), "hidden_size 5 does not fit"),
        ("W", np.ones((1, 4 * H, I + 1), np.float32), "'W') has shape [1, 20, 5], needs"),
        ("h0", np.ones((1, N + 1, H), np.float32), "'h0') has shape [1, 3, 5], needs [1, 2, 5]"),
    ],
)
def test_refused_inputs(name: str, value: np.ndarray, words: str) -> None:
    assert words in reason(proto(constants={name: value}))
