"""Storage resolution: what is zero-copy, what has a border, and where a copy is unavoidable."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.memory.relations import VIEW_OPS, Link
from aotgen.memory.storage import StorageMap, Use, resolve
from aotgen.schedule.base import Need, View

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


def growing(members: int) -> tuple[Graph, list[Value], list[Value]]:
    """x1, f([x1]), f([x1, x2]) and so on, as torch.cat of a growing list: (graph, features,
    concats).
    """
    g, x = graph_of((1, 4, 4, 8))
    features, concats = [g.add("relu", [x])], []
    for _ in range(members):
        joined = features[0]
        if len(features) > 1:
            joined = g.add("concat", list(features), axis=3)
            concats.append(joined)
        features.append(g.add("exp", [g.add("slice", [joined], **FIRST_CHANNELS)]))
    concats.append(g.add("concat", list(features), axis=3))
    return g, features, concats


FIRST_CHANNELS = {"starts": (0, 0, 0, 0), "ends": (1, 4, 4, 8), "steps": (1, 1, 1, 1)}


def test_concats_of_a_growing_list_share_the_last_one() -> None:
    g, features, concats = growing(4)
    y = g.add("relu", [concats[-1]])
    result = solve(g, [y], [(concats[1], Use("c", Need(border=BORDER, unit_inner=True)))])
    places = result.placements
    assert copies(result) == 0
    assert len({places[v.name].storage for v in [*features, *concats]}) == 1
    first = places[concats[-1].name].offset
    assert [places[v.name].offset - first for v in features] == [0, 8, 16, 24, 32]
    assert all(places[c.name].offset == first for c in concats)
    # The border that one reader asks for lies around all of them.
    assert all(places[c.name].view.border == BORDER for c in concats)
    assert places[concats[0].name].view.strides == (6 * 6 * 40, 6 * 40, 40, 1)


def test_a_run_from_the_middle_and_a_nested_concat_share_too() -> None:
    g, x = graph_of((1, 4, 4, 8))
    a, b, c, d = (g.add(op, [x]) for op in ("relu", "exp", "tanh", "sigmoid"))
    inner = g.add("concat", [b, c], axis=3)
    nested = g.add("concat", [a, inner], axis=3)
    flat = g.add("concat", [a, b, c, d], axis=3)
    result = solve(g, [g.add("relu", [v]) for v in (inner, nested, flat)])
    places = result.placements
    assert copies(result) == 0
    first = places[flat.name].offset
    assert [places[v.name].offset - first for v in (inner, nested)] == [8, 0]
    assert places[inner.name].storage is places[nested.name].storage is places[flat.name].storage


def test_concats_along_different_axes_do_not_share() -> None:
    g, x = graph_of((1, 4, 4, 8))
    a, b = g.add("relu", [x]), g.add("exp", [x])
    deep, wide = g.add("concat", [a, b], axis=3), g.add("concat", [a, b], axis=2)
    result = solve(g, [g.add("relu", [deep]), g.add("relu", [wide])])
    assert result.placements[deep.name].storage is not result.placements[wide.name].storage
    assert copies(result) == 2


def test_what_cannot_live_in_a_concat_is_copied_there_once() -> None:
    """x is the caller's: both concats need it, the shorter one is part of the longer."""
    g, x = graph_of((1, 4, 4, 8))
    a, b = g.add("relu", [x]), g.add("exp", [x])
    short, long = g.add("concat", [x, a], axis=3), g.add("concat", [x, a, b], axis=3)
    result = solve(g, [g.add("relu", [short]), g.add("relu", [long])])
    assert copies(result) == 1
    assert list(result.copies) == [g.nodes[2].name]
    assert result.placements[short.name].storage is result.placements[long.name].storage


def test_a_concat_stays_alone_where_the_longer_one_cannot_give_its_border() -> None:
    """The longer concat is a graph output: the caller's memory has no border."""
    g, x = graph_of((1, 4, 4, 8))
    a, b, c = (g.add(op, [x]) for op in ("relu", "exp", "tanh"))
    short, long = g.add("concat", [a, b], axis=3), g.add("concat", [a, b, c], axis=3)
    y = g.add("relu", [short])
    result = solve(g, [y, long], [(short, Use("y", Need(border=BORDER, unit_inner=True)))])
    places = result.placements
    assert places[short.name].storage.kind == "arena"
    assert places[long.name].storage.kind == "output"
    assert places[c.name].storage is places[long.name].storage
    assert copies(result) == 2


def test_a_dense_demand_on_the_shorter_concat_is_met() -> None:
    g, x = graph_of((1, 4, 4, 8))
    a, b, c = (g.add(op, [x]) for op in ("relu", "exp", "tanh"))
    short, long = g.add("concat", [a, b], axis=3), g.add("concat", [a, b, c], axis=3)
    y, z = g.add("relu", [short]), g.add("relu", [long])
    result = solve(g, [y, z], [(short, Use("y", Need(dense=True)))])
    assert result.placements[short.name].view.is_dense
    assert copies(result) == 2


def test_linking_looks_at_the_child_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 members are no matter of minutes: each costs one view or two."""
    g, x = graph_of((1, 2, 2, 1))
    members = [g.add("relu", [x]) for _ in range(2000)]
    y = g.add("exp", [g.add("concat", members, axis=3)])
    calls = []
    derive = Link.derive

    def counted(link: Link, view: View) -> tuple[View, int] | None:
        calls.append(link)
        return derive(link, view)

    monkeypatch.setattr(Link, "derive", counted)
    assert copies(solve(g, [y])) == 0
    assert len(calls) <= 2 * len(members)
