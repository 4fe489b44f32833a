"""Where state variables live: a buffer of their own, and when a run may write to it.

A variable's new value is computed where it stays when nothing reads the old one any more by then;
otherwise it waits in the arena and is copied as soon as nothing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotgen.ir.graph import Graph, Group, Node, State, Value
from aotgen.ir.types import Array
from aotgen.memory.relations import is_view_op
from aotgen.memory.state_windows import widen_states
from aotgen.ops.registry import op_def


@dataclass(frozen=True, eq=False)
class StateSlot:
    """A variable's place: ``offset`` in bytes in the state buffer, a multiple of the
    target's alignment.
    """

    state: State
    offset: int

    @property
    def bytes(self) -> int:
        return self.state.value.type.nbytes


def state_slots(graph: Graph, align: int) -> list[StateSlot]:
    """The places of all variables, in their order, one behind the other, each aligned to ``align``
    bytes.
    """
    slots: list[StateSlot] = []
    offset = 0
    for state in graph.states:
        slots.append(StateSlot(state, offset))
        offset += -(-max(state.value.type.nbytes, 1) // align) * align
    return slots


def state_bytes(slots: Sequence[StateSlot], align: int) -> int:
    """Bytes of the whole buffer, a multiple of ``align``."""
    return slots[-1].offset + -(-max(slots[-1].bytes, 1) // align) * align if slots else 0


def fill_byte(array: Array) -> int | None:
    """The byte that all of the array's memory consists of; None when bytes differ."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if data.size == 0 or (data == data[0]).all():
        return int(data[0]) if data.size else 0
    return None


def legalize_states(graph: Graph) -> None:
    """Let every variable be set to a value that may be computed in the variable's own memory.

    Variables that are windows get the window's memory (``widen_states``), and it
    inserts ``identity`` nodes where that is not so; each is a Group of its own. Runs when the order
    of the Groups no longer changes.

    Args:
        graph: with groups; its outputs are legal (``legalize_outputs``).
    """
    widen_states(graph)
    taken: set[Value] = {*graph.inputs, *graph.outputs}
    for state in graph.states:
        if state.update.is_const or state.update in taken or _aliases_state(graph, state.update):
            end = len(graph.groups or ())
            state.update = _insert_copy(graph, end, state.update, f"{state.value.name}.next")
        taken.add(state.update)
    # These copies read no variable's memory, so that they are in no other variable's way.
    for state in [s for s in graph.states if not _may_write_early(graph, s)]:
        groups = graph.groups or []
        made = next(i for i, g in enumerate(groups) if state.update in g.outputs)
        place = max(made, _last_read(groups, state.value)) + 1
        state.update = _insert_copy(graph, place, state.update, f"{state.value.name}.keep")


def _insert_copy(graph: Graph, place: int, value: Value, name: str) -> Value:
    """A copy of ``value`` as the Group number ``place``."""
    node = graph.make("identity", [value], name=name)
    assert graph.groups is not None
    graph.groups.insert(place, Group([node], None, node.name))
    graph.nodes = [node for group in graph.groups for node in group.nodes]
    return node.output


def _is_view(group: Group) -> bool:
    return len(group.nodes) == 1 and is_view_op(group.nodes[0])


def _aliases_state(graph: Graph, value: Value) -> bool:
    """Whether ``value`` is what a variable held, or a part of it that may be read there."""
    held = {state.value for state in graph.states}
    node: Node | None
    while value not in held:
        node = value.producer
        if node is None or not is_view_op(node) or node.op == "concat":
            return False
        value = node.input(0)
    return True


def _may_write_early(graph: Graph, state: State) -> bool:
    """Whether the new value can be computed in the variable's memory: the old one was read before
    that is first written to, or by the very kernel that replaces it in place.
    """
    groups = graph.groups or []
    last = _last_read(groups, state.value)
    first = _first_write(groups, state.update)
    if last < first:
        return True
    if last > first:
        return False
    node = groups[first].nodes[-1]
    rule = op_def(node.op).in_place
    return (
        rule is not None
        and len(groups[first].nodes) == 1
        and any((state.value, front) in rule(node) for front in _fronts(state.update))
    )


def _fronts(value: Value) -> list[Value]:
    """The values that may lie where ``value`` begins: itself, and the first part of a concat."""
    found = [value]
    while (node := found[-1].producer) is not None and node.op == "concat":
        found.append(node.input(0))
    return found


def _last_read(groups: Sequence[Group], value: Value) -> int:
    """Index of the last Group that may read ``value``'s memory; -1 for none."""
    aliases = {value}
    last = -1
    for index, group in enumerate(groups):
        if aliases.isdisjoint(group.activations):
            continue
        last = index
        if _is_view(group) and group.nodes[0].op != "concat":
            aliases.update(group.outputs)
    return last


def _first_write(groups: Sequence[Group], value: Value) -> int:
    """Index of the first Group that may write to ``value``'s memory: its own, or that of a value
    which a view op lets live there.
    """
    made_by = {v: index for index, group in enumerate(groups) for v in group.outputs}
    first = len(groups)
    waiting = [value]
    while waiting:
        index = made_by.get(waiting.pop())
        if index is None:
            continue
        first = min(first, index)
        # A part of a tensor that is a variable's new value is copied there.
        if _is_view(groups[index]) and groups[index].nodes[0].op not in ("slice", "split"):
            waiting += groups[index].activations
    return first
