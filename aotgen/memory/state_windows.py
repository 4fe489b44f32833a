"""State variables that are windows over time: new rows are written behind the rows that are kept.

A streaming layer reads what a variable kept and the new rows as one tensor, and lets the variable
keep the last rows of it:

    window = concat(state, x)         state := window[-kept:]

With memory for the new rows as well the variable is that tensor: a run begins by moving its last
rows to the front, x is computed where it belongs, and nothing is copied into a window in the arena
and back.

    front = delay_line(state)         window = concat(front, x)         state := window
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Graph, Group, Node, State, Value
from aotgen.ops.common import product


def widen_states(graph: Graph) -> None:
    """Let every variable that is kept in this way have its window's memory, where it keeps no fewer
    rows than come new: each new row costs memory of its own.

    Args:
        graph: with groups, in their final order. The moves come first in it.
    """
    users = graph.users()
    moves: list[Group] = []
    for state in graph.states:
        window = _window_of(graph, state, users)
        if window is None:
            continue
        moves.append(_widen(graph, state, window))
    if moves:
        graph.groups = [*moves, *(graph.groups or ())]
        _drop_unread(graph)
        graph.nodes = [node for group in graph.groups for node in group.nodes]


def _window_of(graph: Graph, state: State, users: dict[Value, list[Node]]) -> Node | None:
    """The concat of a variable and new rows whose last rows the variable keeps."""
    kept, keeper = state.value, state.update.producer
    if len(users[kept]) != 1 or kept in graph.results or keeper is None or keeper.op != "slice":
        return None
    (join,) = users[kept]
    window = keeper.input(0)
    if join.op != "concat" or join.output is not window or window in graph.results:
        return None
    axis, total = int(join.attrs["axis"]), window.shape[int(join.attrs["axis"])]
    rows = kept.shape[axis]
    first = len(join.inputs) > 1 and join.input(0) is kept and join.inputs.count(kept) == 1
    starts = tuple(total - rows if a == axis else 0 for a in range(window.type.rank))
    cut = keeper.attrs["starts"] == starts and keeper.attrs["ends"] == window.shape
    if not first or not cut or any(step != 1 for step in keeper.attrs["steps"]):
        return None
    in_one_piece = product(window.shape[:axis]) == 1
    if not in_one_piece or total - rows > rows or sum(r is state.update for r in graph.results) > 1:
        return None
    return join


def _widen(graph: Graph, state: State, join: Node) -> Group:
    """Let ``state`` keep all of the window; the Group that moves it on."""
    axis, old = int(join.attrs["axis"]), state.value
    window = join.output
    fresh = window.shape[axis] - old.shape[axis]
    # The rows in front leave before anything reads them.
    first = np.repeat(state.initial.take([0], axis), fresh, axis)
    state.initial = np.concatenate([first, state.initial], axis)
    state.value = Value(old.name, old.type.with_shape(window.shape))
    state.update = window
    node = graph.make("delay_line", [state.value], name=f"{old.name}.front", axis=axis, rows=fresh)
    join.inputs = [node.output, *join.inputs[1:]]
    return Group([node], None, node.name)


def _drop_unread(graph: Graph) -> None:
    """Remove the slices that only variables took."""
    read = {v for g in graph.groups or () for n in g.nodes for v in n.args} | set(graph.results)
    graph.groups = [
        g
        for g in graph.groups or ()
        if g.nodes[-1].op != "slice" or len(g.nodes) > 1 or g.output in read
    ]
