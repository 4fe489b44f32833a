"""Random LSTM, GRU and RNN nodes with onnxruntime's answers, the same for the same seed.

onnxruntime has no layout=1: there the answer is that of layout=0 for the same tensors, transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import compose, helper, numpy_helper

from tests.e2e.fuzz_models import info, session

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
PARAMETERS = {
    "Sigmoid": 0,
    "Tanh": 0,
    "Relu": 0,
    "Affine": 2,
    "LeakyRelu": 1,
    "HardSigmoid": 2,
    "Elu": 1,
    "Softsign": 0,
    "Softplus": 0,
    "ThresholdedRelu": 1,
    "ScaledTanh": 2,
}
"""Gate functions and how many of alpha and beta they take."""
BOUNDED = ("Sigmoid", "Tanh", "HardSigmoid", "Softsign", "ScaledTanh")
INPUTS = ("X", "W", "R", "B", "lengths", "h0", "c0", "P")
OPSETS = (7, 14, 22)


@dataclass
class Case:
    """A model, feeds for it, and what its outputs must be."""

    name: str
    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    expected: list[np.ndarray]


class _Draw:
    """Draws the parts of one node."""

    def __init__(self, seed: int, opset: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.op = self.pick("LSTM", "LSTM", "GRU", "GRU", "RNN")
        self.steps = int(self.pick(1, 1, 2, 3, 5, 7))
        self.rows = int(self.pick(1, 1, 2, 3, 5, 17))
        self.inputs = int(self.pick(1, 3, 8, 19))
        self.hidden = int(self.pick(1, 2, 3, 4, 7, 8, 16, 17, 33, 64))
        self.direction = self.pick("forward", "reverse", "bidirectional")
        self.directions = 2 if self.direction == "bidirectional" else 1
        self.batch_first = opset >= 14 and self.chance(0.3)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def floats(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def tensors(self) -> dict[str, np.ndarray]:
        """The node's inputs in layout 0."""
        t, n, i, h, d = self.steps, self.rows, self.inputs, self.hidden, self.directions
        g = GATES[self.op] * h
        found = {
            "X": self.floats(t, n, i),
            "W": self.floats(d, g, i, scale=i**-0.5),
            "R": self.floats(d, g, h, scale=h**-0.5),
        }
        if self.chance(0.7):
            found["B"] = self.floats(d, 2 * g, scale=0.5)
        if self.chance(0.4):
            found["lengths"] = self.rng.integers(0, t + 1, n).astype(np.int32)
        if self.chance(0.6):
            found["h0"] = self.floats(d, n, h) * self.pick(1, 1, 1, 0)
        if self.op == "LSTM" and self.chance(0.6):
            found["c0"] = self.floats(d, n, h)
        if self.op == "LSTM" and self.chance(0.4):
            found["P"] = self.floats(d, 3 * h, scale=0.5)
        return found

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"hidden_size": self.hidden, "direction": self.direction}
        if self.chance(0.3):
            found["clip"] = float(np.float32(self.rng.uniform(0.2, 1.5)))
        if self.op == "LSTM" and self.chance(0.2):
            found["input_forget"] = 1
        if self.op == "GRU" and self.chance(0.5):
            found["linear_before_reset"] = 1
        if self.chance(0.5):
            # Gates without bounds make a long sequence explode.
            first = BOUNDED if self.steps > 1 else tuple(PARAMETERS)
            names = []
            for _ in range(self.directions):
                names.append(self.pick(*first))
                names += [self.pick(*PARAMETERS) for _ in range(FUNCTIONS[self.op] - 1)]
            wanted = [PARAMETERS[name] for name in names]
            alphas = [float(self.rng.uniform(0.1, 0.9)) for k in wanted if k >= 1]
            betas = [float(self.rng.uniform(0.1, 0.9)) for k in wanted if k >= 2]
            found["activations"] = names
            found.update({"activation_alpha": alphas} if alphas else {})
            found.update({"activation_beta": betas} if betas else {})
        return found


def _turned(value: np.ndarray, name: str) -> np.ndarray:
    """A tensor of layout 0 in layout 1."""
    if name == "Y":
        return np.ascontiguousarray(value.transpose(2, 0, 1, 3))
    return np.ascontiguousarray(value.swapaxes(0, 1))


def _model(
    draw: _Draw,
    tensors: dict[str, np.ndarray],
    attrs: dict[str, Any],
    used: Sequence[str],
    constants: set[str],
    opset: int,
) -> onnx.ModelProto:
    names = INPUTS if draw.op == "LSTM" else INPUTS[:6]
    given = [name if name in tensors else "" for name in names]
    while not given[-1]:
        given.pop()
    every = ("Y", "Y_h", "Y_c")[: 3 if draw.op == "LSTM" else 2]
    outputs = [name if name in used else "" for name in every]
    nodes = [helper.make_node(draw.op, given, outputs, name="net", **attrs)]
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [info(k, v) for k, v in tensors.items() if k not in constants],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in used],
        [numpy_helper.from_array(v, k) for k, v in tensors.items() if k in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def draw(seed: int, opset: int = 14) -> Case:
    """The case of a seed; weights are mostly constants, lengths and initial states sometimes."""
    for attempt in range(20):
        d = _Draw(seed * 100 + attempt, opset)
        tensors, attrs = d.tensors(), d.attributes()
        every = ["Y", "Y_h", "Y_c"][: 3 if d.op == "LSTM" else 2]
        used = [name for name in every if d.chance(0.7)] or [d.pick(*every)]
        constants = set() if d.chance(0.15) else {"W", "R", "B", "P"}
        constants |= {"lengths"} if d.chance(0.3) else set()
        constants |= {"h0", "c0"} if d.chance(0.3) else set()
        constants &= set(tensors)
        proto = _model(d, tensors, attrs, used, constants, opset)
        feeds = {k: v for k, v in tensors.items() if k not in constants}
        expected = session(proto).run(used, feeds)
        if any(not np.isfinite(e).all() or np.abs(e).max() > 50 for e in expected):
            continue
        if d.batch_first:
            turned = {"X", "h0", "c0"}
            tensors = {k: _turned(v, k) if k in turned else v for k, v in tensors.items()}
            proto = _model(d, tensors, {**attrs, "layout": 1}, used, constants, opset)
            feeds = {k: v for k, v in tensors.items() if k not in constants}
            expected = [_turned(e, k) for e, k in zip(expected, used, strict=True)]
        what = f"{d.op} T={d.steps} N={d.rows} I={d.inputs} H={d.hidden} {sorted(tensors)} {attrs}"
        return Case(f"{seed}: {what}", proto, feeds, expected)
    raise AssertionError(f"no case for seed {seed}")


def merged(cases: Sequence[Case]) -> Case:
    """All cases side by side in one model; tensors of case i are named ``c<i>_``."""
    parts = [compose.add_prefix(c.proto, f"c{i}_") for i, c in enumerate(cases)]
    graph = helper.make_graph(
        [n for p in parts for n in p.graph.node],
        "many",
        [v for p in parts for v in p.graph.input],
        [v for p in parts for v in p.graph.output],
        [t for p in parts for t in p.graph.initializer],
    )
    proto = helper.make_model(graph, opset_imports=parts[0].opset_import, ir_version=8)
    feeds = {f"c{i}_{k}": v for i, c in enumerate(cases) for k, v in c.feeds.items()}
    names = "; ".join(c.name for c in cases)
    return Case(names, proto, feeds, [e for c in cases for e in c.expected])
