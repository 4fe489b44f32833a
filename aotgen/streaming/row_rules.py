"""Rules of ops whose output's rows depend on the same rows of their inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.ir.types import Array
from aotgen.ops.registry import op_def
from aotgen.streaming.context import Context, Results, aligned
from aotgen.streaming.track import StepGraph, Track


def broadcast(context: Context) -> Results:
    """Element-wise, numpy's broadcasting; further inputs may be parameters of another axis."""
    node, rank = context.node, context.node.output.type.rank
    axes = {t.axis + rank - node.input(i).type.rank for i, t in context.tracks.items()}
    if len(axes) != 1:
        return None
    (axis,) = axes
    if node.op == "batch_norm":
        if int(node.attrs["axis"]) == axis or not context.only_first():
            return None
        return context.copied(replace(context.track, before=None))
    quants = [node.attrs.get("quant"), *(v.type.quant for v in node.args)]
    if any(q is not None and q.axis is not None and q.axis == axis for q in quants):
        return None
    inputs: list[Value | None] = list(context.inputs)
    for index, value in enumerate(inputs):
        if value is None or index in context.tracks:
            continue
        own = axis - (rank - value.type.rank)
        if own < 0 or value.shape[own] == 1:
            continue
        fixed = one_row(context.step, value, own)
        if fixed is None:
            return None
        inputs[index] = fixed
    together = aligned(replace(context, inputs=inputs))
    if together is None:
        return None
    values, track = together
    ahead = before_of(node, values, context) if track.delay < 0 else None
    track = replace(track, axis=axis, before=ahead)
    return [(v, track) for v in context.step.copy(node, values)]


def before_of(node: Node, values: list[Value | None], context: Context) -> Array | None:
    """What the model's rows in front of the stream become in an element-wise node: known where all
    its inputs are.
    """
    rows: list[Array | None] = []
    for index, value in enumerate(values):
        if value is None or index not in context.tracks:
            if value is not None and value.const is None:
                return None
            rows.append(None if value is None else value.const)
            continue
        row = context.tracks[index].before
        if row is None:
            return None
        rows.append(row)
    return op_def(node.op).numpy(node, rows)[0]


def one_row(step: StepGraph, value: Value, axis: int) -> Value | None:
    """A constant all of whose rows along ``axis`` are equal, as one row of it."""
    if value.const is None:
        return None
    row = value.const.take([0], axis)
    if not np.array_equal(np.broadcast_to(row, value.const.shape), value.const):
        return None
    return step.graph.constant(row, value.name, value.type.with_shape(row.shape))


def transpose(context: Context) -> Results:
    track, perm = context.track, tuple(context.node.attrs["perm"])
    ahead = None if track.before is None else track.before.transpose(perm)
    return context.copied(replace(track, axis=perm.index(track.axis), before=ahead))


def concat(context: Context) -> Results:
    axis, track = int(context.node.attrs["axis"]), next(iter(context.tracks.values()))
    if axis == track.axis or any(t.axis != track.axis for t in context.tracks.values()):
        return None
    inputs: list[Value | None] = list(context.inputs)
    for index, value in enumerate(inputs):
        if index in context.tracks or value is None:
            continue
        row = one_row(context.step, value, track.axis)
        if row is None or row.const is None:
            return None
        rows = np.repeat(row.const, track.rows, track.axis)
        inputs[index] = context.step.graph.constant(
            rows, value.name, value.type.with_shape(rows.shape)
        )
    together = aligned(replace(context, inputs=inputs))
    if together is None:
        return None
    values, joined = together
    return [(v, joined) for v in context.step.copy(context.node, values)]


def matmul(context: Context) -> Results:
    """Rows of the left operand are rows of the product."""
    node, track = context.node, context.track if 0 in context.tracks else None
    left, right = node.input(0).type, node.input(1).type
    if track is None or not context.only_first() or track.axis == left.rank - 1:
        return None
    if node.output.type.rank != left.rank or right.rank > 2:
        return None
    return context.copied(replace(track, before=None))


def reduce(context: Context) -> Results:
    track, axes = context.track, tuple(context.node.attrs["axes"])
    return _reduced(context, track, axes)


def arg(context: Context) -> Results:
    return _reduced(context, context.track, (int(context.node.attrs["axis"]),))


def _reduced(context: Context, track: Track, axes: tuple[int, ...]) -> Results:
    if track.axis in axes:
        return None
    gone = 0 if context.node.attrs["keepdims"] else sum(a < track.axis for a in axes)
    return context.copied(replace(track, axis=track.axis - gone, before=None))


def along_axis(context: Context) -> Results:
    """Softmax and norms along one axis that is not time."""
    if int(context.node.attrs["axis"]) == context.track.axis or not context.only_first():
        return None
    return context.copied(replace(context.track, before=None))


def from_axis(context: Context) -> Results:
    """Norms over an axis and all behind it."""
    if context.track.axis >= int(context.node.attrs["axis"]) or not context.only_first():
        return None
    return context.copied(replace(context.track, before=None))


def last_axis(context: Context) -> Results:
    """What runs along the last axis."""
    if context.track.axis == context.node.input(0).type.rank - 1 or not context.only_first():
        return None
    return context.copied(replace(context.track, before=None))


def gather(context: Context) -> Results:
    """Constant positions of another axis."""
    node, track = context.node, context.track
    axis, indices = int(node.attrs["axis"]), node.input(1)
    if not context.only_first() or axis == track.axis:
        return None
    moved = track.axis + (indices.type.rank - 1 if axis < track.axis else 0)
    return context.copied(replace(track, axis=moved, before=None))
