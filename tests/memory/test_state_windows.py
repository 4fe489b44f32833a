"""Variables that are windows: which get the window's memory, and that steps stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotgen.ir.graph import Graph, Value
from aotgen.ir.interpreter import Instance
from aotgen.ir.types import DType, TensorType
from aotgen.ir.verifier import verify
from aotgen.memory.state_windows import widen_states
from aotgen.memory.states import legalize_states
from aotgen.passes.fuse_ops import single_groups


def window(
    kept: int = 3,
    fresh: int = 1,
    *,
    outer: int = 1,
    read_twice: bool = False,
    output: bool = False,
    first: bool = True,
    start: int | None = None,
) -> Graph:
    """y = the sum of a window of ``kept`` + ``fresh`` rows of 4; the options spoil the pattern."""
    g = Graph("window", [], [], [])
    x = Value("x", TensorType(DType.F32, (outer, fresh, 4)))
    g.inputs = [x]
    fresh_rows = g.add("relu", [x])
    initial = np.full((outer, kept, 4), 2, np.float32)
    state = g.add_state("kept", TensorType(DType.F32, initial.shape), initial)
    parts = [state.value, fresh_rows] if first else [fresh_rows, state.value]
    rows = g.add("concat", parts, axis=1)
    begin = fresh if start is None else start
    state.update = g.add(
        "slice", [rows], starts=(0, begin, 0), ends=(outer, begin + kept, 4), steps=(1, 1, 1)
    )
    y = g.add("reduce_sum", [rows], axes=(1,), keepdims=False)
    g.outputs = [y, *([g.add("neg", [state.value])] if read_twice else []), *([rows] * output)]
    g.output_names = [f"y{i}" for i in range(len(g.outputs))]
    single_groups(g)
    verify(g)
    return g


def steps(graph: Graph) -> list[dict[str, Any]]:
    rng, instance = np.random.default_rng(1), Instance(graph)
    shape = graph.inputs[0].shape
    return [instance.step({"x": rng.standard_normal(shape).astype(np.float32)}) for _ in range(6)]


@pytest.mark.parametrize(("kept", "fresh"), [(3, 1), (3, 2), (3, 3), (1, 1), (7, 2)])
def test_a_window_takes_the_place_of_what_it_keeps(kept: int, fresh: int) -> None:
    graph, expected = window(kept, fresh), steps(window(kept, fresh))
    legalize_states(graph)
    verify(graph)
    (state,) = graph.states
    assert state.value.shape == (1, kept + fresh, 4)
    # One move and no copy: what is kept moves up before anything is written behind it.
    assert [node.op for node in graph.nodes] == ["delay_line", "relu", "concat", "reduce_sum"]
    for got, want in zip(steps(graph), expected, strict=True):
        np.testing.assert_array_equal(got["y0"], want["y0"])


@pytest.mark.parametrize(
    "options",
    [
        {"fresh": 4},  # more rows of memory than it saves
        {"outer": 2},  # rows in two pieces
        {"read_twice": True},
        {"output": True},
        {"first": False},
        {"start": 0},  # the first rows, not the last
    ],
)
def test_other_variables_stay(options: dict[str, Any]) -> None:
    graph = window(**options)
    before = [node.op for node in graph.nodes]
    widen_states(graph)
    assert [node.op for node in graph.nodes] == before
    expected = steps(window(**options))
    legalize_states(graph)
    for got, want in zip(steps(graph), expected, strict=True):
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value)
