"""An LSTM operator's inputs, states and order of axes, for float and integer layers alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType

INPUT_WEIGHTS, RECURRENT_WEIGHTS, PEEPHOLES, BIASES = (1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11), 12
PROJECTION, HIDDEN_STATE, CELL_STATE, LAYER_NORMS = 16, 18, 19, 20
"""Positions of an LSTM's inputs; those of several gates are in the order i f c o."""


@dataclass(frozen=True)
class Layer:
    """An LSTM's inputs.

    Attributes:
        node: the operator.
        x: [T, N, I].
        batch_major: whether the file has [N, T, I].
        coupled: no input gate of its own: it is 1 - f.
        size: of the cell state.
    """

    node: TfliteNode
    x: Value
    batch_major: bool
    coupled: bool
    size: int

    @property
    def steps(self) -> int:
        return self.x.shape[0]

    @property
    def rows(self) -> int:
        return self.x.shape[1]

    @property
    def gates(self) -> tuple[int, ...]:
        """Which of i f c o have weights, by number."""
        return (1, 2, 3) if self.coupled else (0, 1, 2, 3)

    @property
    def has_extras(self) -> bool:
        """Whether there is a projection or layer normalisation."""
        extras = (PROJECTION, *range(LAYER_NORMS, LAYER_NORMS + 4))
        return any(self.node.optional(i) is not None for i in extras)

    @property
    def has_peepholes(self) -> bool:
        return any(self.node.optional(i) is not None for i in PEEPHOLES)

    def matrix(self, positions: Sequence[int], what: str) -> list[Array]:
        """The weights of the gates at these inputs, each [size, columns]; in float32 those of a
        float layer.
        """
        real = self.x.dtype is DType.F32
        found = [
            scales.real_constant(self.node, positions[g], what)
            if real
            else self.node.const(positions[g], what)
            for g in self.gates
        ]
        if any(w.ndim != 2 or w.shape != found[0].shape or len(w) != self.size for w in found):
            shapes = ", ".join(str(list(w.shape)) for w in found)
            self.node.refuse(f"{what} of shapes {shapes} do not fit together")
        return found

    def vector(self, position: int, what: str) -> Array | None:
        """A constant [size], or None when it is absent."""
        if self.node.optional(position) is None:
            return None
        real = self.x.dtype is DType.F32
        found = (
            scales.real_constant(self.node, position, what)
            if real
            else self.node.const(position, what)
        )
        if found.size != self.size:
            self.node.refuse(f"{what} has {found.size} elements, needs {self.size}")
        return found.reshape(self.size)

    def state(self, position: int, size: int) -> Value:
        """A state [N, size] at the start of the run."""
        value = self.node.input(position)
        if value.type.numel != self.rows * size:
            shape = [self.rows, size]
            self.node.refuse(f"a state of shape {list(value.shape)} must be {shape}")
        return self.node.reshape(value, (self.rows, size))

    def set_state(self, position: int, value: Value) -> None:
        """Keep ``value`` for the next run where the file's tensor is a variable."""
        node = self.node
        if node.input_is_variable(position):
            node.set_variable(position, node.reshape(value, node.input(position).shape))

    def finished(self, y: Value) -> Value:
        """y [T, N, H] in the file's order of axes."""
        if self.node.op == "LSTM":
            return self.node.reshape(y, y.shape[1:])
        return swapped(self.node, y) if self.batch_major else y


def swapped(node: TfliteNode, x: Value) -> Value:
    """The first two axes of ``x`` in the other order."""
    if 1 in x.shape[:2]:
        return node.reshape(x, (x.shape[1], x.shape[0], *x.shape[2:]))
    return node.transpose(x, (1, 0, 2))


def sequence(node: TfliteNode) -> tuple[Value, bool]:
    """(x as [T, N, I], whether the file has [N, T, I]); an operator of one step has [N, I]."""
    x = node.input(0)
    if node.op in ("LSTM", "RNN"):
        if len(x.shape) != 2:
            node.refuse(f"an input of shape {list(x.shape)} is not [rows, features]")
        return node.reshape(x, (1, *x.shape)), False
    if len(x.shape) != 3:
        node.refuse(f"an input of shape {list(x.shape)} is not [rows, steps, features]")
    if node.options["time_major"]:
        return x, False
    return swapped(node, x), True


def clip_of(node: TfliteNode, option: str) -> float | None:
    bound = float(node.options.get(option, 0.0))
    return bound if 0 < bound < math.inf else None
