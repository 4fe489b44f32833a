"""What is remembered of a Group lasts as long as its nodes do."""

from __future__ import annotations

from aotgen.ir.graph import Group, Node
from aotgen.schedule.group_memo import per_group


def test_a_group_with_other_nodes_is_looked_at_again() -> None:
    """Also where a new node lies in memory where an old one lay."""
    calls: list[str] = []

    @per_group
    def name_of(group: Group, prefix: str) -> str:
        calls.append(prefix)
        return prefix + group.nodes[0].name

    group = Group([Node("relu", [], [], name="n")], None, "group")
    assert [name_of(group, "a"), name_of(group, "a"), name_of(group, "b")] == ["an", "an", "bn"]
    assert calls == ["a", "b"]
    for i in range(50):
        group.nodes = [Node("relu", [], [], name=str(i))]
        assert name_of(group, "a") == f"a{i}"
