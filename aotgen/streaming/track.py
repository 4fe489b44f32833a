"""What is known of a value whose rows arrive over time, and the building blocks of a step's graph.

Rows are counted in two ways. Row j of the *stream* is the j-th that the steps together give, from 0
at a reset; row r of the *model* is the r-th that the original model would compute on the whole
recording. They are the same but for a delay: row j of the stream is row j - delay of the model. A
window that ends before its last row is there cannot be computed; the delay is how long it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array
from aotgen.ops.registry import op_def


@dataclass(frozen=True)
class Track:
    """How a value of the original model comes in a step.

    Attributes:
        axis: the axis of time, in the original value and in the step's.
        rows: new rows in each step: the extent of the step's value along ``axis``.
        rate: frames of the input from one row to the next.
        delay: row j of the stream is row j - delay of the model; below 0 where rows that the
            model pads in front are not part of the stream.
        extent: rows of the original value.
        before: one row (extent 1 along ``axis``), of which the rows of the model consist that a
            negative delay leaves out; None for padding of the consumer's own.
    """

    axis: int
    rows: int
    rate: Fraction
    delay: int
    extent: int
    before: Array | None = None

    def latency(self, window: int) -> Fraction:
        """Frames from the end of a window of ``window`` frames to the step whose last row is the
        last one that the model computes for that window.
        """
        return (self.delay + self.extent) * self.rate - window


class StrideError(Exception):
    """So few new frames give no whole number of rows; a multiple of ``frames`` may."""

    def __init__(self, node: Node, frames: int) -> None:
        super().__init__(node.name)
        self.node = node
        self.frames = frames


class StepGraph:
    """The graph of a step while it is made.

    Attributes:
        graph: the step's graph.
        kept: concatenations of what a state keeps and the new rows, so that equal ones are made
            once.
    """

    def __init__(self, original: Graph) -> None:
        self.graph = Graph(original.name, [], [], [])
        # New names must not take one that a value or a node of the original brings along later.
        for value in original.values():
            self.graph.used_names.setdefault(value.name, 0)
        for node in original.nodes:
            self.graph.used_names.setdefault(node.name, 0)
        self._histories: dict[tuple[Value, int, bytes], Value] = {}

    def copy(self, node: Node, inputs: Sequence[Value | None], **attrs: object) -> list[Value]:
        """``node`` on other inputs and with ``attrs`` changed, under its own names; its outputs."""
        made = Node(node.op, list(inputs), [], {**node.attrs, **attrs}, node.name, node.origin)
        made.outputs = [
            Value(old.name, type, producer=made)
            for old, type in zip(node.outputs, op_def(node.op).infer(made), strict=True)
        ]
        self.graph.nodes.append(made)
        return made.outputs

    def rows_of(self, value: Value, axis: int, start: int, end: int) -> Value:
        """Rows [start, end) of ``value``."""
        shape = value.shape
        if (start, end) == (0, shape[axis]):
            return value
        starts = tuple(start if a == axis else 0 for a in range(len(shape)))
        ends = tuple(end if a == axis else n for a, n in enumerate(shape))
        ones = (1,) * len(shape)
        name = f"{value.name}.rows"
        return self.graph.add("slice", [value], name=name, starts=starts, ends=ends, steps=ones)

    def history(self, value: Value, axis: int, initial: Array) -> Value:
        """The last rows of the steps before, then those of ``value``, along ``axis``.

        Args:
            value: of this step.
            initial: the rows before the first step's; it says how many are kept.
        """
        kept = initial.shape[axis]
        if kept == 0:
            return value
        key = value, axis, initial.tobytes()
        if key not in self._histories:
            state = self.graph.add_state(
                f"{value.name}.last", value.type.with_shape(initial.shape), initial
            )
            joined = self.graph.add(
                "concat", [state.value, value], name=f"{value.name}.history", axis=axis
            )
            state.update = self.rows_of(joined, axis, joined.shape[axis] - kept, joined.shape[axis])
            self._histories[key] = joined
        return self._histories[key]

    def delayed(self, value: Value, track: Track, delay: int) -> tuple[Value, Track]:
        """``value`` as it was ``delay`` - ``track.delay`` rows ago."""
        waits = delay - track.delay
        if waits == 0:
            return value, track
        rows = before(value, track, waits, padding(value))
        joined = self.history(value, track.axis, rows)
        late = self.rows_of(joined, track.axis, 0, track.rows)
        return late, replace(track, delay=delay)


def padding(value: Value) -> float:
    """What stands for nothing in a value: 0, or a quantized one's zero point."""
    quant = value.type.quant
    return quant.zero_point[0] if quant is not None and quant.axis is None else 0


def before(value: Value, track: Track, count: int, fill: float) -> Array:
    """The ``count`` rows that a stream has before its first one: what the model itself puts there,
    and before that ``fill``.
    """
    axis = track.axis
    shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
    rows = np.full(shape, fill, value.dtype.numpy)
    own = min(count, max(0, -track.delay))
    if own and track.before is not None:
        place = [slice(None)] * len(shape)
        place[axis] = slice(count - own, count)
        rows[tuple(place)] = track.before
    return rows


def whole_rows(node: Node, track: Track, stride: int) -> int:
    """New rows of a step behind a stride.

    Raises:
        StrideError: they are no whole number.
    """
    if track.rows % stride:
        raise StrideError(node, (track.rate * stride).numerator)
    return track.rows // stride


def strided(
    step: StepGraph,
    node: Node,
    value: Value,
    track: Track,
    *,
    reach: int,
    stride: int,
    pad: int,
    fill: float,
    extent: int,
) -> tuple[Value, Track]:
    """The rows that windows along time read in a step, and the track of what they give.

    Row r of the model reads rows [r * stride - pad, r * stride - pad + reach) of ``value``. A
    step's first window begins at the first of the rows that are returned.

    Args:
        fill: of the padding in front.
        extent: rows that the original node computes.

    Raises:
        StrideError: the step's new rows are no multiple of ``stride``.
    """
    rows = whole_rows(node, track, stride)
    keep = max(reach - stride, 0)
    # The windows of a step end with its last row, or earlier: where they would begin between two
    # strides of the model, or before its first row.
    lead = keep + track.delay - pad
    delay = max(0, -(-lead // stride))
    late = delay * stride - lead
    joined = step.history(value, track.axis, before(value, track, keep + late, fill))
    read = step.rows_of(joined, track.axis, 0, keep + track.rows)
    return read, Track(track.axis, rows, track.rate * stride, delay, extent)
