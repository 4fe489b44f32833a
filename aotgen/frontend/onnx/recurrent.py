"""LSTM, GRU and RNN: the products with the input of all steps and directions become one matmul, and
each direction one canonical op that runs the recurrence (``aotgen.ops.recurrent``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType
from aotgen.ops.recurrent import ACTIVATIONS, GATES, Activation, functions

_STANDARD = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}

_PARAMETERS: dict[str, tuple[float | None, ...]] = {
    "Affine": (None, None),
    "Elu": (1.0,),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01,),
    "ScaledTanh": (None, None),
    "ThresholdedRelu": (1.0,),
}
"""Default alpha and beta of the functions that have them, which are those of the ONNX operators;
None where ONNX has none.
"""

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class _Shape:
    """Extents of a node; ``batch_first`` is layout=1."""

    steps: int
    rows: int
    inputs: int
    hidden: int
    directions: int
    gates: int
    batch_first: bool

    @property
    def width(self) -> int:
        """Columns of one direction's gates."""
        return self.gates * self.hidden


@converts("LSTM", "GRU", "RNN")
def recurrent(n: OnnxNode) -> list[Value | None]:
    """X [T, N, I] (layout 1: [N, T, I]), W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H], lengths [N],
    initial_h and initial_c [D, N, H] (layout 1: [N, D, H]), P [D, 3*H] -> Y [T, D, N, H] (layout 1:
    [N, T, D, H]), Y_h and Y_c like the initial states.
    """
    op = n.op.lower()
    reverse = _DIRECTIONS.get(n.get_str("direction", "forward"))
    if reverse is None:
        n.refuse(f"direction {n.get_str('direction')!r} is none of {', '.join(_DIRECTIONS)}")
    shape = _shape(n, op, len(reverse))
    lengths = _lengths(n, shape)
    gates, rb = _gates(n, shape, op)
    initial = [_initial(n, index, shape) for index in ((5, 6) if op == "lstm" else (5,))]
    peepholes = n.optional(7) if op == "lstm" else None
    if peepholes is not None:
        _expect(n, 7, peepholes, (shape.directions, 3 * shape.hidden))
    activations = _activations(n, op, shape.directions)
    clip = n.get_float("clip") if n.has("clip") else None
    if clip is not None and not clip >= 0.0:
        n.refuse(f"clip {clip} must not be negative")
    results, y_is_h = _results(n, op, shape, lengths)
    made: list[dict[str, Value]] = []
    for d in range(shape.directions):
        outputs = n.emit_all(
            op,
            [
                gates[d],
                _part(n, n.x(2), d),
                rb[d],
                initial[0][d],
                initial[1][d] if op == "lstm" else None,
                None if peepholes is None else _part(n, peepholes, d),
                lengths,
            ],
            results=results,
            reverse=reverse[d],
            clip=clip,
            activations=activations[d],
            **_flags(n, op),
        )
        found = dict(zip(results, outputs, strict=True))
        if y_is_h:
            found["y"] = n.reshape(found["h"], (1, shape.rows, shape.hidden))
        made.append(found)
    names = ("y", "h", "c")[: len(n.proto.output)]
    return [_joined(n, shape, name, made) if n.is_used(i) else None for i, name in enumerate(names)]


def _flags(n: OnnxNode, op: str) -> dict[str, bool]:
    if op == "lstm":
        return {"input_forget": bool(n.get_int("input_forget", 0))}
    if op == "gru":
        return {"linear_before_reset": bool(n.get_int("linear_before_reset", 0))}
    return {}


def _expect(n: OnnxNode, index: int, value: Value, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        have, want = list(value.shape), list(shape)
        n.refuse(f"input {index} ({n.proto.input[index]!r}) has shape {have}, needs {want}")


def _shape(n: OnnxNode, op: str, directions: int) -> _Shape:
    """Extents, with every operand checked against them."""
    x, w, r = n.x(0), n.x(1), n.x(2)
    if x.dtype not in (DType.F32, DType.F16):
        n.refuse(f"element type {x.dtype.value} is not supported here", "cast its inputs to float")
    layout = n.get_int("layout", 0)
    if layout not in (0, 1) or len(x.shape) != 3 or len(w.shape) != 3 or len(r.shape) != 3:
        shapes = f"{list(x.shape)}, {list(w.shape)}, {list(r.shape)}"
        n.refuse(f"layout {layout} and operands {shapes} do not fit together")
    steps, rows = x.shape[:2] if layout == 0 else x.shape[1::-1]
    hidden = r.shape[2]
    if n.has("hidden_size") and n.get_int("hidden_size") != hidden:
        n.refuse(f"hidden_size {n.get_int('hidden_size')} does not fit weights {list(r.shape)}")
    shape = _Shape(steps, rows, x.shape[2], hidden, directions, GATES[op], layout == 1)
    if 0 in (steps, rows, shape.inputs, hidden):
        n.refuse(f"an input {list(x.shape)} and hidden size {hidden} leave nothing to compute")
    _expect(n, 1, w, (directions, shape.width, shape.inputs))
    _expect(n, 2, r, (directions, shape.width, hidden))
    return shape


def _lengths(n: OnnxNode, shape: _Shape) -> Value | None:
    """sequence_lens [N] int32, None where they are known to be whole sequences."""
    value = n.optional(4)
    if value is None:
        return None
    _expect(n, 4, value, (shape.rows,))
    known = n.known(4)
    if known is None:
        return n.cast(value, DType.I32)
    if int(known.min()) < 0 or int(known.max()) > shape.steps:
        n.refuse(f"sequence_lens {known.tolist()} must lie between 0 and {shape.steps}")
    if int(known.min()) == shape.steps:
        return None
    return n.constant(known.astype(np.int32), "lengths")


def _part(n: OnnxNode, value: Value, d: int, axis: int = 0) -> Value:
    """Direction ``d`` of an operand, without its direction axis."""
    shape = (*value.shape[:axis], *value.shape[axis + 1 :])
    if value.const is not None:
        return n.constant(np.ascontiguousarray(value.const.take(d, axis)), f"direction{d}")
    if value.shape[axis] > 1:
        value = n.cut(value, axis, d, d + 1)
    return n.reshape(value, shape)


def _columns(n: OnnxNode, value: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """``value`` cut along ``axis``."""
    if len(sizes) == 1:
        return [value]
    return n.emit_all("split", [value], axis=axis, sizes=tuple(sizes))


def _gates(n: OnnxNode, shape: _Shape, op: str) -> tuple[list[Value], list[Value | None]]:
    """By direction: X W^T with the bias [T, N, G*H], and the bias that stays in the recurrence."""
    d, width = shape.directions, shape.width
    bias, rb = _bias(n, shape, op)
    weight = n.reshape(n.x(1), (d * width, shape.inputs))
    direct = bias if bias is not None and bias.is_const else None
    total = n.emit("matmul", [n.x(0), weight, direct], trans_b=True)
    if bias is not None and direct is None:
        total = n.emit("add", [total, bias])
    parts = _columns(n, total, 2, (width,) * d)
    return [n.transpose(p, (1, 0, 2)) if shape.batch_first else p for p in parts], rb


def _bias(n: OnnxNode, shape: _Shape, op: str) -> tuple[Value | None, list[Value | None]]:
    """([D * G*H] of all directions, by direction the [H] that is added inside the reset of a gru).

    Wb and Rb are one sum, but for Rb of the h gate of a gru with linear_before_reset.
    """
    d, width = shape.directions, shape.width
    b = n.optional(3)
    if b is None:
        return None, [None] * d
    _expect(n, 3, b, (d, 2 * width))
    inside = op == "gru" and bool(n.get_int("linear_before_reset", 0))
    known = n.known(3)
    if known is not None:
        b = n.constant(known, "bias")
    w, r = _columns(n, b, 1, (width, width))
    rb: list[Value | None] = [None] * d
    if inside:
        outside, own = _columns(n, r, 1, (width - shape.hidden, shape.hidden))
        rb = [_part(n, own, k) for k in range(d)]
        none = n.constant(np.zeros((d, shape.hidden), b.dtype.numpy), "zeros")
        r = n.emit("concat", [outside, none], axis=1)
    return n.reshape(n.emit("add", [w, r]), (d * width,)), rb


def _initial(n: OnnxNode, index: int, shape: _Shape) -> list[Value | None]:
    """By direction the initial state [N, H]; None for zeros."""
    value = n.optional(index)
    d = shape.directions
    if value is None:
        return [None] * d
    axis = 1 if shape.batch_first else 0
    want = (shape.rows, d) if shape.batch_first else (d, shape.rows)
    _expect(n, index, value, (*want, shape.hidden))
    known = n.known(index)
    if known is not None:
        if not known.any():
            return [None] * d
        value = n.constant(known, "state")
    return [_part(n, value, k, axis) for k in range(d)]


def _results(
    n: OnnxNode, op: str, shape: _Shape, lengths: Value | None
) -> tuple[tuple[str, ...], bool]:
    """(outputs of the canonical op, whether Y is the state behind the only step)."""
    used = {name: n.is_used(i) for i, name in enumerate(("y", "h", "c"))}
    y_is_h = used["y"] and not used["h"] and shape.steps == 1 and lengths is None
    if y_is_h:
        used["y"], used["h"] = False, True
    if op != "lstm":
        used["c"] = False
    return tuple(name for name, wanted in used.items() if wanted), y_is_h


def _joined(n: OnnxNode, shape: _Shape, name: str, made: Sequence[dict[str, Value]]) -> Value:
    """The directions' outputs as one tensor of the file's layout."""
    axis = (2 if name == "y" else 1) if shape.batch_first else (1 if name == "y" else 0)
    parts = []
    for found in made:
        value = found[name]
        if name == "y" and shape.batch_first:
            value = n.transpose(value, (1, 0, 2))
        parts.append(n.reshape(value, (*value.shape[:axis], 1, *value.shape[axis:])))
    return n.concat(parts, axis)


def _activations(n: OnnxNode, op: str, directions: int) -> list[tuple[Activation, ...]]:
    """By direction the gate functions. Alphas and betas are taken from their lists in the order of
    the functions that have them, as in onnxruntime.
    """
    count = functions(op)
    names = n.get_strings("activations") or _STANDARD[op] * directions
    if len(names) != count * directions:
        n.refuse(f"it has {len(names)} activations, not {count * directions}")
    known = {name.lower(): name for name in ACTIVATIONS}
    alphas, betas = list(n.get_floats("activation_alpha")), list(n.get_floats("activation_beta"))
    made: list[Activation] = []
    for given in names:
        name = known.get(given.lower())
        if name is None:
            n.refuse(f"activation {given!r} is not one of ONNX's", f"use {', '.join(ACTIVATIONS)}")
        values = [0.0, 0.0]
        for k, default in enumerate(_PARAMETERS.get(name, ())):
            source = (alphas, betas)[k]
            value = source.pop(0) if source else default
            if value is None:
                n.refuse(
                    f"activation {name} has no default for {('alpha', 'beta')[k]}",
                    "give activation_alpha and activation_beta",
                )
            values[k] = float(np.float32(value))
        made.append((name, values[0], values[1]))
    return [tuple(made[d * count : (d + 1) * count]) for d in range(directions)]
