"""Graph -> Graph: from a model over a window of time to a step that reads its new frames.

Node by node, by the rules of ``rules.py``. Where a node needs more of its input than a fixed number
of rows (a mean over all of time, a fully connected layer behind a flatten), the input's last rows
are kept, as many as the original model has there, and from there on the step computes what the
original does. All such windows end with the same frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from aotgen.errors import Problem, ShapeError, UnsupportedError, UsageError
from aotgen.ir.graph import Graph, Node, StreamInfo, StreamOutput, Value
from aotgen.ops.common import product
from aotgen.ops.registry import OpPattern, op_def
from aotgen.streaming.context import Context
from aotgen.streaming.rules import apply
from aotgen.streaming.track import StepGraph, StrideError, Track, before, padding


@dataclass(frozen=True)
class Clock:
    """How an input tells time.

    Attributes:
        axis: of the input as the model file has it.
        frame: elements along ``axis`` that are one frame.
    """

    axis: int
    frame: int


def stream(graph: Graph, frames: int, axis: int | None = None) -> Graph:
    """The step model of ``graph``: each run reads ``frames`` new frames.

    Args:
        graph: with static shapes, after the simplifications; it is not changed.
        frames: new frames of every input in a run.
        axis: of the inputs, along which time runs; None for ``clock_of``'s.

    Returns:
        A graph whose inputs are ``frames`` long and whose outputs are the new rows, or the whole
        output where it depends on the whole window; ``stream`` tells which.

    Raises:
        UsageError: the model's strides need another number of frames.
        UnsupportedError: the model keeps state of its own.
        ShapeError: no input has an axis of time, or they differ in length.
    """
    _refuse(graph)
    clocks = {v: c for v in graph.inputs if (c := clock_of(graph, v, axis)) is not None}
    lengths = {v.name: v.shape[c.axis] // c.frame for v, c in clocks.items()}
    if not clocks:
        names = ", ".join(f"{v.name} {v.type}" for v in graph.inputs) or "none"
        raise ShapeError(f"--stream: no input has an axis of time (inputs: {names})")
    if len(set(lengths.values())) != 1:
        text = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise ShapeError(f"--stream: the inputs differ in their number of frames ({text})")
    window = next(iter(lengths.values()))
    return _converted(graph, clocks, frames, window)


def _refuse(graph: Graph) -> None:
    if graph.states:
        problem = Problem(
            graph.states[0].value.name,
            "state",
            "the model keeps state from run to run itself, so it already runs step by step",
            "compile it without --stream",
        )
        raise UnsupportedError((problem,))
    for value in graph.values():
        if not value.type.is_static:
            raise ShapeError(
                f"--stream: {value.name} {value.type} has a dimension known only at run time"
            )


def clock_of(graph: Graph, value: Value, axis: int | None = None) -> Clock | None:
    """Where an input's time is: the first axis of more than one element in the order of the model's
    own computation, which is channels-last; of a flat input, in the order that it is reshaped to.
    None for an input without. ``axis`` says it of an input of three axes or more.
    """
    if axis is not None and value.type.rank >= 3:
        inside = axis < value.type.rank and value.shape[axis] > 1
        return Clock(axis, 1) if inside else None
    users, now = graph.users(), value
    while True:
        readers = users[now]
        if len(readers) == 1 and op_def(readers[0].op).pattern is OpPattern.ELEMENTWISE:
            now = readers[0].output
            continue
        break
    node = readers[0] if len(readers) == 1 else None
    if value.type.rank < 3:
        if node is None or node.op != "reshape" or node.output.type.rank < 3:
            return None
        long = _first_long(node.output.shape)
        if long is None or product(node.output.shape[:long]) != 1:
            return None
        last = value.type.rank - 1
        return Clock(last, value.shape[last] // node.output.shape[long])
    if node is not None and node.op == "transpose":
        long = _first_long(node.output.shape)
        return None if long is None else Clock(node.attrs["perm"][long], 1)
    long = _first_long(value.shape)
    return None if long is None else Clock(long, 1)


def _first_long(shape: tuple[int, ...]) -> int | None:
    return next((a for a, n in enumerate(shape) if n > 1), None)


def _converted(graph: Graph, clocks: dict[Value, Clock], frames: int, window: int) -> Graph:
    try:
        first = _Converter(graph, clocks, frames, window, None)
        result = first.run()
        if len(set(first.latencies)) > 1:
            result = _Converter(graph, clocks, frames, window, max(first.latencies)).run()
        return result
    except StrideError as error:
        whole, node = error.frames, error.node
    while True:
        try:
            _Converter(graph, clocks, whole, window, None).run()
            break
        except StrideError as error:
            whole, node = error.frames, error.node
    name = node.origin[0] if node.origin else node.name
    raise UsageError(
        f"--stream {frames}: the strides of the model, the last of them in {node.op} node {name!r},"
        f" take {whole} frames together",
        remedy=f"use a multiple of {whole}",
    )


class _Converter:
    """One conversion.

    Attributes:
        latencies: of each window that was kept, see ``Track.latency``.
    """

    def __init__(
        self,
        graph: Graph,
        clocks: dict[Value, Clock],
        frames: int,
        window: int,
        latency: Fraction | None,
    ) -> None:
        self.original = graph
        self.clocks = clocks
        self.frames = frames
        self.window = window
        self.latency = latency
        self.latencies: list[Fraction] = []
        self.step = StepGraph(graph)
        self.values: dict[Value, Value] = {}
        self.tracks: dict[Value, Track] = {}
        self.whole: dict[Value, Fraction] = {}
        """Values that are there as a whole and depend on the input's time, with their latency."""
        self.windows: dict[Value, Value] = {}

    def run(self) -> Graph:
        for value in self.original.inputs:
            self.add_input(value)
        for node in self.original.nodes:
            self.add_node(node)
        result = self.step.graph
        result.outputs = [self.now(v) for v in self.original.outputs]
        result.output_names = list(
            self.original.output_names or [v.name for v in self.original.outputs]
        )
        result.stream = StreamInfo(
            self.frames, self.window, tuple(self.describe(v) for v in self.original.outputs)
        )
        return result

    def add_input(self, value: Value) -> None:
        clock, shape = self.clocks.get(value), value.shape
        if clock is not None:
            rows = self.frames * clock.frame
            axis = clock.axis
            self.tracks[value] = Track(axis, rows, Fraction(1, clock.frame), 0, shape[axis])
            shape = (*shape[:axis], rows, *shape[axis + 1 :])
        made = Value(value.name, value.type.with_shape(shape))
        self.step.graph.inputs.append(made)
        self.values[value] = made

    def now(self, value: Value) -> Value:
        """The step's value for one of the original; constants stay."""
        return value if value.is_const else self.values[value]

    def add_node(self, node: Node) -> None:
        inputs = [None if v is None else self.now(v) for v in node.inputs]
        tracks = {i: self.tracks[v] for i, v in enumerate(node.inputs) if v in self.tracks}
        results = None
        if tracks and not any(v in self.whole for v in node.args):
            results = apply(Context(self.step, node, inputs, tracks, self.waits))
        if results is None:
            # None of its inputs arrives by rows, or it needs all of their rows.
            inputs = [None if v is None else self.whole_of(v) for v in node.inputs]
            results = [(v, None) for v in self.step.copy(node, inputs)]
        late = [self.whole[v] for v in node.args if v in self.whole]
        late += [self.late(track) for track in tracks.values()]
        for old, (new, track) in zip(node.outputs, results, strict=True):
            self.values[old] = new
            if track is not None:
                self.tracks[old] = track
            elif late:
                self.whole[old] = max(late)

    def whole_of(self, value: Value) -> Value:
        """``value`` as a whole: the last rows of one that arrives by rows, as many as the original
        has.
        """
        if value not in self.tracks:
            return self.now(value)
        if value not in self.windows:
            track, new = self.tracks[value], self.values[value]
            rows = track.extent + self.waits(track)
            initial = before(new, track, max(0, rows - track.rows), padding(new))
            joined = self.step.history(new, track.axis, initial)
            start = joined.shape[track.axis] - rows
            self.windows[value] = self.step.rows_of(joined, track.axis, start, start + track.extent)
            self.whole[value] = self.late(track)
        return self.windows[value]

    def waits(self, track: Track) -> int:
        """How many rows a window waits, so that all windows end with the same frame."""
        own = track.latency(self.window)
        self.latencies.append(own)
        # To whole rows: upwards.
        return 0 if self.latency is None else int(-((own - self.latency) // track.rate))

    def late(self, track: Track) -> Fraction:
        """The latency of a window."""
        own = track.latency(self.window)
        if self.latency is None:
            return own
        return own - (own - self.latency) // track.rate * track.rate

    def describe(self, value: Value) -> StreamOutput:
        track = self.tracks.get(value)
        if track is None:
            return StreamOutput(None, None, None, None, float(self.whole.get(value, 0)))
        late = max(Fraction(0), track.latency(self.window))
        return StreamOutput(track.axis, track.rows, float(track.rate), track.delay, float(late))
