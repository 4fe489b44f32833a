"""Storage resolution: what is zero-copy, what has a border, and where a copy is unavoidable."""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.memory.relations import VIEW_OPS
from aotgen.memory.storage import StorageMap, Use, resolve
from aotgen.schedule.base import Need

BORDER = ((0, 0), (1, 1), (1, 1), (0, 0))


def graph_of(shape: tuple[int, ...]) -> tuple[Graph, Value]:
    x = Value("x", TensorType(DType.F32, shape))
    return Graph("g", [x], [], []), x


def solve(
    graph: Graph, outputs: Sequence[Value], uses: Sequence[tuple[Value, Use]] = ()
) -> StorageMap:
    graph.outputs = list(outputs)
    graph.groups = [Group([n], n if n.op not in VIEW_OPS else None, n.name) for n in graph.nodes]
    return resolve(graph, uses)


def copies(result: StorageMap) -> int:
    return sum(len(c) for c in result.copies.values())


def test_concat_members_live_in_the_concat() -> None:
    g, x = graph_of((1, 4, 4, 8))
    a, b = g.add("relu", [x]), g.add("exp", [x])
    c = g.add("concat", [a, b], axis=3)
    y = g.add("relu", [c])
    result = solve(g, [y], [(c, Use("y", Need(border=BORDER, unit_inner=True)))])
    places = result.placements
    assert copies(result) == 0
    assert places[a.name].storage is places[b.name].storage is places[c.name].storage
    assert places[a.name].view.strides == (6 * 6 * 16, 6 * 16, 16, 1)
    assert places[b.name].offset - places[a.name].offset == 8
    assert places[c.name].view.border == BORDER
    assert places[c.name].storage.elements == 6 * 6 * 16


def test_same_value_twice_in_a_concat_is_copied_once() -> None:
    g, x = graph_of((1, 4, 4, 8))
    a = g.add("relu", [x])
    c = g.add("concat", [a, a], axis=3)
    result = solve(g, [g.add("exp", [c])])
    assert copies(result) == 1


def test_concat_of_a_graph_input_copies_it() -> None:
    g, x = graph_of((2, 3))
    c = g.add("concat", [x, g.add("relu", [x])], axis=1)
    result = solve(g, [g.add("exp", [c])])
    assert copies(result) == 1
    assert result.placements["x"].storage.kind == "input"


def test_attention_heads_need_no_copy() -> None:
    """[1, S, H*E] -> heads -> matmul -> back: reshapes and transposes on both sides are views."""
    g, x = graph_of((1, 8, 12))
    q = g.add("relu", [x])
    heads = g.add("transpose", [g.add("reshape", [q], shape=(1, 8, 3, 4))], perm=(0, 2, 1, 3))
    mixed = g.add("exp", [heads])
    back = g.add("transpose", [mixed], perm=(0, 2, 1, 3))
    flat = g.add("reshape", [back], shape=(1, 8, 12))
    y = g.add("relu", [flat])
    unit = Need(unit_inner=True)
    result = solve(
        g,
        [y],
        [(heads, Use("m", unit)), (mixed, Use(None, unit)), (flat, Use("y", Need(dense=True)))],
    )
    assert copies(result) == 0
    assert result.placements[heads.name].view.strides[-1] == 1
    assert result.placements[mixed.name].view.strides == (96, 4, 12, 1)


def test_graph_input_that_needs_a_border_is_copied_for_its_reader() -> None:
    g, x = graph_of((1, 4, 4, 8))
    y = g.add("relu", [x])
    z = g.add("exp", [x])
    g.outputs = [y, z]
    relu = g.nodes[0].name
    result = solve(g, [y, z], [(x, Use(relu, Need(border=BORDER)))])
    copied = result.readers[(relu, "x")]
    assert copies(result) == 1
    assert result.placements[copied.name].view.border == BORDER
    assert result.placements["x"].view.border == ()


def test_nchw_output_is_copied_when_the_producer_writes_channels_last() -> None:
    g, x = graph_of((1, 4, 4, 8))
    y = g.add("relu", [x])
    t = g.add("transpose", [y], perm=(0, 3, 1, 2))
    result = solve(g, [t], [(y, Use(None, Need(unit_inner=True)))])
    assert copies(result) == 1
    # A nest writes in any order, so there nothing is copied.
    assert copies(solve(g, [t])) == 0


def test_split_parts_are_views() -> None:
    g, x = graph_of((2, 6, 4))
    a = g.add("relu", [x])
    node = g.make("split", [a], axis=1, sizes=(2, 4))
    g.nodes.append(node)
    p, q = (g.add("exp", [v]) for v in node.outputs)
    result = solve(g, [p, q])
    assert copies(result) == 0
    assert result.placements[node.outputs[1].name].offset == 8


def test_a_border_and_a_reshape_do_not_mix() -> None:
    g, x = graph_of((1, 4, 4, 2))
    a = g.add("relu", [x])
    flat = g.add("reshape", [a], shape=(1, 32))
    y, z = g.add("exp", [a]), g.add("exp", [flat])
    result = solve(g, [y, z], [(a, Use(g.nodes[2].name, Need(border=BORDER)))])
    assert copies(result) == 1
