"""A node of the original model and its inputs in the step: what a rule works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aotgen.ir.graph import Node, Value
from aotgen.streaming.track import StepGraph, Track

Result = tuple[Value, Track | None]
Results = list[Result] | None
"""The step's values of a node's outputs and how they arrive: None as a whole. No results where a
row of the output depends on more than a fixed number of rows.
"""


@dataclass(frozen=True)
class Context:
    """A node of the original model, and what its inputs are in the step.

    Attributes:
        step: the graph being made.
        node: of the original model.
        inputs: the step's values, parallel to ``node.inputs``.
        tracks: of those that arrive by rows; the others are there as a whole.
        waits: how many rows a window of rows with this track waits for others.
    """

    step: StepGraph
    node: Node
    inputs: list[Value | None]
    tracks: Mapping[int, Track]
    waits: Callable[[Track], int]

    @property
    def track(self) -> Track:
        """That of input 0."""
        return self.tracks[0]

    def value(self, index: int = 0) -> Value:
        found = self.inputs[index]
        assert found is not None
        return found

    def only_first(self) -> bool:
        """No input but the first one arrives by rows."""
        return set(self.tracks) == {0}

    def copied(self, track: Track, **attrs: Any) -> list[Result]:
        """The node on the step's inputs, with attributes changed; each output has ``track``."""
        return [(v, track) for v in self.step.copy(self.node, self.inputs, **attrs)]


Rule = Callable[[Context], Results]


def aligned(context: Context) -> tuple[list[Value | None], Track] | None:
    """The inputs that arrive by rows, each as late as the latest of them; None where their rows do
    not go together.
    """
    tracks = context.tracks
    first = next(iter(tracks.values()))
    if any(
        (t.rows, t.rate, t.extent) != (first.rows, first.rate, first.extent)
        for t in tracks.values()
    ):
        return None
    delay = max(t.delay for t in tracks.values())
    values = list(context.inputs)
    for index, track in tracks.items():
        values[index], _ = context.step.delayed(context.value(index), track, delay)
    return values, replace(first, delay=delay, before=None)


def with_entry(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])
