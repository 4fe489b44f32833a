"""Loops of a known number of trips, written out: the body once a trip.

A trip count that depends on the data, and bodies that would grow the graph beyond ``MAX_NODES``,
are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts, refuses
from aotgen.ir.graph import Value

MAX_NODES = 2000
"""Nodes of all trips together."""

MAX_WRITTEN_OUT = 5 * MAX_NODES
"""Nodes of all loops of a model together: the trips of loops within loops multiply."""

_REMEDY = "export the model with the loop resolved, or with fewer trips"


def _size(graph: onnx.GraphProto) -> int:
    """Nodes of a body, at least one, those of graphs within it included."""
    inner = [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return max(len(graph.node), 1) + sum(_size(g) for g in inner)


def _expect_few(n: OnnxNode, trips: int) -> None:
    nodes = _size(n.get_graph("body"))
    if trips * nodes > MAX_NODES:
        n.refuse(
            f"its {trips} trips of {nodes} nodes would be written out; the limit is {MAX_NODES} "
            "nodes",
            _REMEDY,
        )


def _trip(n: OnnxNode, inputs: Sequence[Value]) -> list[Value]:
    """The body's outputs for one trip."""
    body = n.get_graph("body")
    if len(body.input) != len(inputs):
        n.refuse(f"its body has {len(body.input)} inputs, {len(inputs)} are given to it")
    if n.written_out > MAX_WRITTEN_OUT:
        n.refuse(f"loops within loops make more than {MAX_WRITTEN_OUT} nodes", _REMEDY)
    found: list[Value] = []
    for value in n.inline("body", inputs):
        if value is None:
            n.refuse("its body has a node that is not supported")
        found.append(value)
    return found


def _stacked(n: OnnxNode, parts: Sequence[Value], axis: int, backwards: bool) -> Value:
    """The outputs of all trips along a new ``axis``."""
    rank = len(parts[0].shape)
    axis = n.normalise_axis(axis, rank + 1)
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    for part in parts:
        if part.shape != parts[0].shape:
            n.refuse("the shape of an output changes from trip to trip")
    ordered = [n.reshape(part, shape) for part in parts]
    if backwards:
        ordered.reverse()
    return n.concat(ordered, axis)


def _element(n: OnnxNode, x: Value, axis: int, index: int) -> Value:
    """x without ``axis``, at ``index`` of it."""
    part = n.cut(x, axis, index, index + 1)
    return n.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


@converts("Scan", since=9)
def scan(n: OnnxNode) -> list[Value]:
    """States carried from trip to trip, inputs cut along an axis, outputs joined along one."""
    count = n.get_int("num_scan_inputs")
    given = [n.x(i) for i in range(len(n.inputs))]
    if not 1 <= count <= len(given):
        n.refuse(f"num_scan_inputs {count} does not fit its {len(given)} inputs")
    states, sources = given[: len(given) - count], given[len(given) - count :]
    axes = [
        n.normalise_axis(axis, len(x.shape))
        for axis, x in zip(_list(n, "scan_input_axes", count), sources, strict=True)
    ]
    lengths = {x.shape[axis] for x, axis in zip(sources, axes, strict=True)}
    if len(lengths) != 1:
        n.refuse(f"its {count} inputs to cut have {sorted(lengths)} elements")
    trips = lengths.pop()
    _expect_few(n, trips)
    backwards = _list(n, "scan_input_directions", count)
    parts: list[list[Value]] = []
    for trip in range(trips):
        cut = [
            _element(n, x, axis, trips - 1 - trip if back else trip)
            for x, axis, back in zip(sources, axes, backwards, strict=True)
        ]
        outputs = _trip(n, [*states, *cut])
        states = outputs[: len(states)]
        parts.append(outputs[len(states) :])
    if not parts:
        n.refuse("it makes no trip at all")
    joined = len(parts[0])
    out_axes = _list(n, "scan_output_axes", joined)
    reverse = _list(n, "scan_output_directions", joined)
    stacks = [
        _stacked(n, [trip[k] for trip in parts], out_axes[k], bool(reverse[k]))
        for k in range(joined)
    ]
    return [*states, *stacks]


refuses(
    "Scan",
    reason="Scan of opset 8, with an axis of batches, is not supported",
    remedy="export with opset 9 or newer",
)


def _only(n: OnnxNode, index: int, what: str) -> int:
    """The element of an input that has one."""
    values = n.need_ints(index, what)
    if len(values) != 1:
        n.refuse(f"{what} has {len(values)} elements, not one")
    return values[0]


def _list(n: OnnxNode, name: str, count: int) -> tuple[int, ...]:
    """An attribute with an entry each, zeros when absent."""
    values = n.get_ints(name)
    if values is not None and len(values) != count:
        n.refuse(f"{name} has {len(values)} entries, {count} are needed")
    return values or (0,) * count


@converts("Loop")
def loop(n: OnnxNode) -> list[Value]:
    """The trip count, and whether to go on, must be known; states may change their shape."""
    limit = None if n.optional(0) is None else _only(n, 0, "the trip count")
    goes_on = True if n.optional(1) is None else bool(_only(n, 1, "the condition"))
    states = [n.x(i) for i in range(2, len(n.inputs))]
    if limit is not None and n.optional(1) is None:
        _expect_few(n, limit)
    nodes = _size(n.get_graph("body"))
    parts: list[list[Value]] = []
    trip = 0
    while goes_on and (limit is None or trip < limit):
        if trip * nodes > MAX_NODES:
            n.refuse(
                f"its body of {nodes} nodes has made {trip} trips without an end; the limit is "
                f"{MAX_NODES} nodes",
                _REMEDY,
            )
        number = n.constant(np.array(trip, np.int64), "trip")
        outputs = _trip(n, [number, n.constant(np.array(True), "goes_on"), *states])
        known = n.evaluate(outputs[0])
        if known is None:
            n.refuse("whether it goes on depends on the model's inputs", _REMEDY)
        goes_on = bool(known.reshape(-1)[0])
        states = outputs[1 : 1 + len(states)]
        parts.append(outputs[1 + len(states) :])
        trip += 1
    if not parts and len(n.proto.output) > len(states):
        n.refuse("it makes no trip at all, so that its outputs have no shape")
    joined = len(parts[0]) if parts else 0
    return [*states, *(_stacked(n, [p[k] for p in parts], 0, False) for k in range(joined))]
