"""Gather and scatter families."""

from __future__ import annotations

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


@converts("Gather")
def gather(n: OnnxNode) -> Value:
    x = n.x(0)
    return n.emit("gather", [x, n.x(1)], axis=n.axis("axis", 0, len(x.shape)))


@converts("GatherElements", since=11)
def gather_elements(n: OnnxNode) -> Value:
    x = n.x(0)
    return n.emit("gather_elements", [x, n.x(1)], axis=n.axis("axis", 0, len(x.shape)))


@converts("GatherND", since=11)
def gather_nd(n: OnnxNode) -> Value:
    return n.emit("gather_nd", [n.x(0), n.x(1)], batch_dims=n.get_int("batch_dims", 0))


@converts("Scatter", since=9)
@converts("ScatterElements", since=11)
def scatter_elements(n: OnnxNode) -> Value:
    x = n.x(0)
    return n.emit(
        "scatter_elements",
        [x, n.x(1), n.x(2)],
        axis=n.axis("axis", 0, len(x.shape)),
        reduction=n.get_str("reduction", "none"),
    )


@converts("ScatterND", since=11)
def scatter_nd(n: OnnxNode) -> Value:
    return n.emit("scatter_nd", [n.x(0), n.x(1), n.x(2)], reduction=n.get_str("reduction", "none"))


@converts("Compress", since=9)
def compress(n: OnnxNode) -> Value:
    """With a constant condition: a gather of the positions that hold."""
    x = n.x(0)
    positions = np.flatnonzero(n.need(1, "condition")).astype(np.int64)
    if n.has("axis"):
        axis = n.axis("axis", 0, len(x.shape))
    else:
        x, axis = n.reshape(x, (x.type.numel,)), 0
    positions = positions[positions < x.shape[axis]]
    return n.emit("gather", [x, n.constant(positions, "positions")], axis=axis)


@converts("ReverseSequence", since=10)
def reverse_sequence(n: OnnxNode) -> Value:
    """With constant lengths: a gather of each sequence's positions, the first ones reversed."""
    x = n.x(0)
    batch_axis, time_axis = n.get_int("batch_axis", 1), n.get_int("time_axis", 0)
    if sorted((batch_axis, time_axis)) != [0, 1] or len(x.shape) < 2:
        n.refuse(f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1")
    lengths = n.need_ints(1, "sequence_lens")
    n.expect_small(x.shape, DType.I64)
    steps = x.shape[time_axis]
    positions = np.tile(np.arange(steps, dtype=np.int64), (len(lengths), 1))
    for row, length in zip(positions, lengths, strict=True):
        row[:length] = row[:length][::-1]
    if time_axis == 0:
        positions = positions.T
    shape = positions.shape + (1,) * (len(x.shape) - 2)
    wide = np.broadcast_to(positions.reshape(shape), x.shape)
    indices = n.constant(np.ascontiguousarray(wide), "positions")
    return n.emit("gather_elements", [x, indices], axis=time_axis)
