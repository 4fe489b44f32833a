"""Rules of ops whose output's rows depend on some earlier rows, or are rows of another number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.ops.common import product
from aotgen.ops.registry import op_def
from aotgen.streaming.context import Context, Result, Results, with_entry
from aotgen.streaming.track import Track, before, padding, strided
from aotgen.te.compute import int_range


def reshape(context: Context) -> Results:
    """Rows stay rows, are joined to fewer or cut into more; a reshape that mixes them with another
    axis is none of these.
    """
    node, track = context.node, context.track
    old, new = node.input(0).shape, node.output.shape
    outer, inner = product(old[: track.axis]), product(old[track.axis + 1 :])
    found = [a for a, n in enumerate(new) if n > 1 and product(new[:a]) == outer]
    if not found:
        return None
    axis = found[0]
    shape, count = list(node.attrs["shape"]), new[axis]
    if track.extent % count == 0:
        stride = track.extent // count
        value, read = context.value(), track
        if stride > 1:
            value, read = strided(
                context.step,
                node,
                value,
                track,
                reach=stride,
                stride=stride,
                pad=0,
                fill=padding(value),
                extent=count,
            )
        ahead = None
        if track.before is not None and stride == 1:
            ahead = track.before.reshape(*new[:axis], 1, *new[axis + 1 :])
        read = replace(read, axis=axis, extent=count, before=ahead)
    elif count % track.extent == 0 and inner % (count // track.extent) == 0:
        # Rows of rows: a frame of several samples becomes as many rows.
        parts = count // track.extent
        value = context.value()
        read = Track(axis, track.rows * parts, track.rate / parts, track.delay * parts, count)
    else:
        return None
    shape[axis] = read.rows
    outputs = context.step.copy(node, [value], shape=tuple(shape))
    return [(outputs[0], read)]


def slice_(context: Context) -> Results:
    """Rows from ``start`` on are rows of another number; other axes are cut as before."""
    node, track = context.node, context.track
    axis, attrs, rank = track.axis, node.attrs, node.input(0).type.rank
    start, stride, extent = attrs["starts"][axis], attrs["steps"][axis], node.output.shape[axis]
    if stride < 1:
        return None
    if extent == 1:
        return _selected(context, start)
    value, read = (
        context.value(),
        replace(track, delay=track.delay + start, extent=extent, before=None),
    )
    if stride > 1:
        value, read = strided(
            context.step,
            node,
            value,
            track,
            reach=1,
            stride=stride,
            pad=-start,
            fill=padding(value),
            extent=extent,
        )
    others = [a for a in range(rank) if a != axis]
    whole = all(
        (attrs["starts"][a], attrs["steps"][a], node.output.shape[a])
        == (0, 1, node.input(0).shape[a])
        for a in others
    )
    if whole and stride == 1:
        return [(value, read)]
    starts = with_entry(attrs["starts"], axis, 0)
    ends = with_entry(attrs["ends"], axis, value.shape[axis])
    outputs = context.step.copy(node, [value], starts=starts, ends=ends)
    return [(outputs[0], read)]


def _selected(context: Context, row: int) -> Results:
    """One row of a window of ``extent``: as many rows behind the newest one in each step."""
    node, track, value = context.node, context.track, context.value()
    axis, back = track.axis, track.extent - row + context.waits(track)
    joined = context.step.history(
        value, axis, before(value, track, max(0, back - track.rows), padding(value))
    )
    place = joined.shape[axis] - back
    starts = with_entry(node.attrs["starts"], axis, place)
    ends = with_entry(node.attrs["ends"], axis, place + 1)
    return [(v, None) for v in context.step.copy(node, [joined], starts=starts, ends=ends)]


def split(context: Context) -> Results:
    """Along another axis: each part by rows. Along time: parts are rows of other numbers."""
    node, track = context.node, context.track
    axis = int(node.attrs["axis"])
    if axis != track.axis:
        return context.copied(replace(track, before=None))
    results: list[Result] = []
    start = 0
    for output in node.outputs:
        extent = output.shape[axis]
        if extent == 1:
            return None
        moved = replace(track, delay=track.delay + start, extent=extent, before=None)
        results.append((context.value(), moved))
        start += extent
    return results


def pad(context: Context) -> Results:
    """Rows in front are what a stream begins after; those at the end never come."""
    node, track = context.node, context.track
    rank, axis = node.input(0).type.rank, track.axis
    pads = tuple(node.attrs["pads"])
    front, end = pads[axis], pads[rank + axis]
    if (front or end) and node.attrs["mode"] != "constant":
        return None
    extent = node.output.shape[axis]
    if extent == 1:
        return None
    outputs = [context.value()]
    pads = with_entry(with_entry(pads, axis, 0), rank + axis, 0)
    if any(pads):
        outputs = context.step.copy(node, context.inputs, pads=pads)
    row = None
    if front > 0:
        shape = (*outputs[0].shape[:axis], 1, *outputs[0].shape[axis + 1 :])
        row = np.full(shape, node.attrs["value"], outputs[0].dtype.numpy)
    return [(outputs[0], Track(axis, track.rows, track.rate, track.delay - front, extent, row))]


def window(context: Context) -> Results:
    """Convolutions and pools: time is one of the axes between batch and channels."""
    node, track, value = context.node, context.track, context.value()
    rank, at = node.input(0).type.rank, context.track.axis - 1
    if not context.only_first() or not 0 <= at < rank - 2:
        return None
    extent = node.output.shape[track.axis]
    if extent == 1:
        return None
    weights = node.optional(1)
    kernel = (
        node.attrs["kernel"] if "kernel" in node.attrs else weights.shape[1:-1] if weights else ()
    )
    pads, spatial = tuple(node.attrs["pads"]), rank - 2
    fill = _fill(context)
    if fill is None and pads[at] > 0:
        return None
    read, given = strided(
        context.step,
        node,
        value,
        track,
        reach=(kernel[at] - 1) * node.attrs["dilations"][at] + 1,
        stride=node.attrs["strides"][at],
        pad=pads[at],
        fill=fill or 0,
        extent=extent,
    )
    attrs: dict[str, Any] = {"pads": with_entry(with_entry(pads, at, 0), spatial + at, 0)}
    if "ceil_extra" in node.attrs:
        attrs["ceil_extra"] = with_entry(tuple(node.attrs["ceil_extra"]), at, 0)
    outputs = context.step.copy(node, [read, *context.inputs[1:]], **attrs)
    return [(outputs[0], given)]


def _fill(context: Context) -> float | None:
    """What the rows in front of a window's input count as; None where only the run knows."""
    node = context.node
    if node.op == "max_pool":
        dtype = node.input(0).dtype
        return -np.inf if dtype.is_float else int_range(dtype)[0]
    if node.op == "qconv":
        zero = node.optional(3)
        if zero is None:
            return 0
        return None if zero.const is None else int(zero.const.reshape(-1)[0])
    return padding(context.value())


def recurrent(context: Context) -> Results:
    """A loop over time forwards: what it hands from step to step is a state."""
    node = context.node
    if not context.only_first() or node.attrs["reverse"] or node.optional(6) is not None:
        return None
    step, gates = context.step, context.value()
    gates, track = step.delayed(gates, context.track, max(0, context.track.delay))
    kinds = ("h", "c") if node.op == "lstm" else ("h",)
    hidden, batch = node.input(1).shape[1], gates.shape[1]
    inputs: list[Value | None] = [gates, *context.inputs[1:]]
    inputs += [None] * (6 - len(inputs))
    states = []
    for place, kind in enumerate(kinds, start=3):
        start = inputs[place]
        type = gates.type.with_shape((batch, hidden))
        initial = np.zeros((batch, hidden), type.dtype.numpy) if start is None else start.const
        if initial is None:
            return None
        states.append(step.graph.add_state(f"{node.name}.{kind}", type, initial))
        inputs[place] = states[-1].value
    wanted = tuple(node.attrs["results"])
    results = tuple(r for r in ("y", "h", "c") if r in wanted or r in kinds)
    names = dict(zip(wanted, (v.name for v in node.outputs), strict=True))
    made = Node(node.op, inputs, [], {**node.attrs, "results": results}, node.name, node.origin)
    types = op_def(node.op).infer(made)
    made.outputs = [
        Value(names.get(r) or step.graph.unique_name(f"{node.name}.{r}.next"), t, producer=made)
        for r, t in zip(results, types, strict=True)
    ]
    step.graph.nodes.append(made)
    by_result = dict(zip(results, made.outputs, strict=True))
    for state, kind in zip(states, kinds, strict=True):
        state.update = by_result[kind]
    return [
        (by_result[r], replace(track, axis=0, before=None) if r == "y" else None) for r in wanted
    ]
