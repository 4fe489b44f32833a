"""Which memory every value lives in, and as what strided view.

Runs after plan has chosen a template for every Group. Values related by view ops share one
``Storage`` wherever every producer and consumer accepts the resulting strides; what remains becomes
explicit copies. Every cell of a storage has one logical content as long as the storage lives: what
is placed or copied there is the same number by whichever value it is read. Convolutions ask for a
zero border (``Need.border``): the root of their input's storage is laid out with it, so kernels
never test bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from aotgen.ir.graph import Graph, Node, Value
from aotgen.memory.concat_runs import ConcatRuns, axis_of
from aotgen.memory.relations import Link, is_view_op
from aotgen.schedule.base import Border, Need, View, dense_strides


@dataclass(eq=False)
class Storage:
    """One piece of memory.

    Attributes:
        root: the value whose logical elements, plus border, fill it in row-major order.
        kind: in the arena, the caller's memory for a graph input or output, or the state buffer.
        view: the root's view, with its border.
        origin: elements before the root's logical element 0.
        elements: elements in all.
    """

    root: Value
    kind: Literal["arena", "input", "output", "state"]
    view: View
    origin: int
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * self.root.dtype.size

    @property
    def has_border(self) -> bool:
        return any(b != (0, 0) for b in self.view.border)


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a value is: its storage, the element offset of its logical element 0, and its view."""

    storage: Storage
    offset: int
    view: View


@dataclass(frozen=True, eq=False)
class Copy:
    """A layout copy that no zero-copy view could avoid.

    ``source`` may be a constant. ``link`` is set when the copy does the work of a view op: the
    source's elements are read through ``link.derive`` (or written through it, for a concat member).
    """

    source: Value
    target: Value
    link: Link | None = None


@dataclass
class StorageMap:
    """The result: placements of all activations, and the copies to run.

    Attributes:
        placements: by value name.
        copies: name of a view op's node, or of the Group that reads a copy -> copies to run there.
        readers: (Group name, value name) -> the copied value that the Group reads instead.
    """

    placements: dict[str, Placement] = field(default_factory=dict)
    copies: dict[str, list[Copy]] = field(default_factory=dict)
    readers: dict[tuple[str, str], Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Use:
    """One template's demand on a value's view; ``group`` is None for the producer's demand on its
    output.
    """

    group: str | None
    need: Need


def root_view(value: Value, border: Border, block: int = 0) -> tuple[View, int, int]:
    """(view, origin, elements) of a row-major tensor with a border around it; with ``block`` of one
    in blocks of so many channels, whose border lies around the spatial axes.
    """
    if block:
        view = View.blocked(value.shape, value.dtype, block, border)
        origin = sum(view.border_of(a)[0] * s for a, s in enumerate(view.strides))
        return view, origin, value.shape[0] * view.strides[0]
    pairs = border or tuple((0, 0) for _ in value.shape)
    extents = tuple(n + b[0] + b[1] for n, b in zip(value.shape, pairs, strict=True))
    strides = dense_strides(extents)
    origin = sum(b[0] * s for b, s in zip(pairs, strides, strict=True))
    elements = 1
    for n in extents:
        elements *= n
    kept = tuple(pairs) if any(b != (0, 0) for b in pairs) else ()
    return View(value.shape, strides, value.dtype, kept), origin, elements


def join_borders(rank: int, borders: Iterable[Border]) -> Border:
    """The least border that holds all of ``borders``; () when none is needed."""
    total = [(0, 0)] * rank
    for border in borders:
        if border:
            total = [(max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(total, border, strict=True)]
    return tuple(total) if any(b != (0, 0) for b in total) else ()


Views = dict[Value, tuple[View, int]]
"""Each value's view and the element offset of its logical element 0 in the storage."""


@dataclass(eq=False)
class _Class:
    """Values that share a storage: its root first, every other behind the one it is linked to."""

    storage: Storage
    views: Views

    @property
    def root(self) -> Value:
        return self.storage.root

    @property
    def border(self) -> Border:
        return self.storage.view.border


class _Resolver:
    """Builds the forest of links and checks every use against it."""

    def __init__(self, graph: Graph, uses: dict[Value, list[Use]]) -> None:
        self.graph = graph
        self.uses = uses
        self.parent: dict[Value, Link] = {}
        self.classes: dict[Value, _Class] = {}
        self.blocks = {
            value: use.need.block
            for value, wanted in uses.items()
            for use in wanted
            if use.group is None and use.need.block
        }
        """Channels of a block of the values that their producers write in blocks."""
        self.inputs = set(graph.inputs)
        self.outputs = set(graph.outputs)
        self.states = {v for s in graph.states for v in (s.value, s.update)}
        self.runs = ConcatRuns(graph)
        self.result = StorageMap()
        self.copied: list[Copy] = []
        self.pending: dict[Node, list[Copy]] = {}

    def is_external(self, value: Value) -> bool:
        return value in self.inputs or value in self.outputs or value in self.states

    def class_of(self, value: Value) -> _Class:
        found = self.classes.get(value)
        if found is None:
            wanted = [u.need.border for u in self.uses.get(value, ())]
            found = self.lay_out([value], join_borders(len(value.shape), wanted))
            assert found is not None, value.name
            self.classes[value] = found
        return found

    def lay_out(self, members: Sequence[Value], border: Border) -> _Class | None:
        """The class of ``members``, root first, with this border around the root; None when some
        view does not exist.
        """
        root = members[0]
        if border and self.is_external(root):
            return None
        block = self.blocks.get(root, 0)
        if block and self.is_external(root):
            return None
        view, origin, elements = root_view(root, border, block)
        kind: Literal["arena", "input", "output", "state"] = "arena"
        if root in self.inputs:
            kind = "input"
        elif root in self.outputs:
            kind = "output"
        elif root in self.states:
            kind = "state"
        views: Views = {root: (view, origin)}
        if not self.derive([self.parent[v] for v in members[1:]], views):
            return None
        return _Class(Storage(root, kind, view, origin, elements), views)

    def derive(self, links: Iterable[Link], views: Views) -> bool:
        """Add the views of the links' children to ``views``; whether all of them exist."""
        for link in links:
            view, base = views[link.parent]
            derived = link.derive(view)
            if derived is None:
                return False
            views[link.child] = (derived[0], base + derived[1])
        return True

    def content(self, views: Views) -> bool:
        """Whether every use of these values accepts its view."""
        return all(
            use.need.met_by(view)
            for value, (view, _) in views.items()
            for use in self.uses.get(value, ())
        )

    def try_link(self, link: Link) -> bool:
        """Add the link when the merged class satisfies all its uses.

        Looks at the child's class alone as long as the parent's storage keeps its border.
        """
        child, parent = link.child, link.parent
        if child in self.parent or child.is_const or parent.is_const or self.is_external(child):
            return False
        below, above = self.class_of(child), self.class_of(parent)
        if below is above or child.dtype is not parent.dtype:
            return False
        links = [link, *(self.parent[v] for v in below.views if v is not child)]
        views: Views = {parent: above.views[parent]}
        if not self.derive(links, views):
            return False
        del views[parent]
        if self.content(views):
            self.parent[child] = link
            above.views.update(views)
            self.classes.update(dict.fromkeys(views, above))
            return True
        border = self.lifted(link, below.border)
        if border is None or border == above.border:
            return False
        self.parent[child] = link
        wider = self.lay_out([*above.views, *below.views], border)
        if wider is not None and self.content(wider.views):
            self.classes.update(dict.fromkeys(wider.views, wider))
            return True
        del self.parent[child]
        return False

    def lifted(self, link: Link, border: Border) -> Border | None:
        """The border of the storage that ``link`` leads to, when its child needs ``border``; None
        when it cannot be had.
        """
        wanted: Border | None = border
        above = self.class_of(link.parent)
        step: Link | None = link
        while step is not None:
            if not wanted:
                return above.border
            wanted = step.lift(wanted)
            if wanted is None:
                return None
            step = self.parent.get(step.parent)
        return join_borders(len(above.root.shape), [above.border, wanted or ()])

    def meets_uses(self, value: Value, uses: list[Use]) -> bool:
        """Whether a value alone in its memory can meet these uses."""
        border = join_borders(len(value.shape), [u.need.border for u in uses])
        alone = self.lay_out([value], border)
        if alone is None:
            return False
        view, _ = alone.views[value]
        return all(use.need.met_by(view) for use in uses)

    def relax(self) -> None:
        """Uses that a value cannot meet even alone read a copy of it instead."""
        for value in list(self.graph.values()):
            uses = self.uses.get(value)
            if not uses or value.is_const or self.meets_uses(value, uses):
                continue
            kept: list[Use] = []
            moved: list[Use] = []
            for use in sorted(uses, key=lambda u: u.group is not None):
                if use.group is None or self.meets_uses(value, [*kept, use]):
                    kept.append(use)
                else:
                    moved.append(use)
            self.uses[value] = kept
            for block in sorted({use.need.block for use in moved}):
                alike = [use for use in moved if use.need.block == block]
                copied = Value(self.graph.unique_name(f"{value.name}.copy"), value.type)
                self.uses[copied] = alike
                self.blocks[copied] = block
                for use in alike:
                    assert use.group is not None
                    self.result.readers[(use.group, value.name)] = copied
                self.copied.append(Copy(value, copied))

    def run(self) -> StorageMap:
        self.relax()
        for node in self.graph.nodes:
            if is_view_op(node):
                self.link_node(node)
        copies = {c.target: c for c in self.copied}
        for value in [*self.graph.values(), *copies]:
            if not value.is_const:
                found = self.class_of(value)
                view, offset = found.views[value]
                self.result.placements[value.name] = Placement(found.storage, offset, view)
        self.copy_members()
        for (group, _), target in self.result.readers.items():
            copy = copies.pop(target, None)
            if copy is not None:
                self.result.copies.setdefault(group, []).append(copy)
        return self.result

    def link_node(self, node: Node) -> None:
        if node.op == "concat":
            self.link_concat(node)
            return
        source = node.input(0)
        start = 0
        for output in node.outputs:
            # Upwards first: the producer writes the order that the consumer reads, and what follows
            # stays dense.
            up = Link(source, output, node, down=False)
            if node.op in ("reshape", "transpose") and self.try_link(up):
                continue
            down = Link(output, source, node, down=True, start=start)
            if node.op == "split":
                start += output.shape[node.attrs["axis"]]
            if self.try_link(down):
                continue
            self.result.copies.setdefault(node.name, []).append(Copy(source, output, down))

    def link_concat(self, node: Node) -> None:
        """Place a concat inside a longer one that holds it, then its members inside the concat."""
        target, axis = node.output, axis_of(node)
        for host, start in self.runs.hosts(node):
            if self.try_link(Link(target, host.output, host, down=False, start=start)):
                break
        start = 0
        for source in node.args:
            link = Link(source, target, node, down=False, start=start)
            if not self.try_link(link):
                self.pending.setdefault(node, []).append(Copy(source, target, link))
            start += source.shape[axis]

    def copy_members(self) -> None:
        """Record copies of concat members that are not linked to the concat, nor in its memory by
        way of another concat, nor copied there by an earlier one.
        """
        done: set[tuple[Value, Storage, int, tuple[int, ...]]] = set()
        for node, copies in self.pending.items():
            place = self.result.placements[node.output.name]
            for copy in copies:
                assert copy.link is not None
                derived = copy.link.derive(place.view)
                if derived is not None:
                    view, skip = derived
                    there = Placement(place.storage, place.offset + skip, view)
                    key = (copy.source, place.storage, there.offset, view.strides)
                    if key in done or self.lies_at(copy.source, there, axis_of(node)):
                        continue
                    done.add(key)
                self.result.copies.setdefault(node.name, []).append(copy)

    def lies_at(self, value: Value, there: Placement, axis: int) -> bool:
        """Whether ``value`` is placed there, or is a concat of values that are."""
        waiting = [(value, there.offset)]
        while waiting:
            part, offset = waiting.pop()
            place = None if part.is_const else self.result.placements[part.name]
            if (
                place is not None
                and place.storage is there.storage
                and place.offset == offset
                and place.view.strides == there.view.strides
            ):
                continue
            node = part.producer
            if node is None or node.op != "concat" or axis_of(node) != axis:
                return False
            for member in node.args:
                waiting.append((member, offset))
                offset += member.shape[axis] * there.view.strides[axis]
        return True


def resolve(graph: Graph, uses: Iterable[tuple[Value, Use]]) -> StorageMap:
    """Place every activation of ``graph``.

    Args:
        graph: with groups; its view ops are Groups of their own.
        uses: what the chosen templates ask of each value's view.
    """
    table: dict[Value, list[Use]] = {}
    for value, use in uses:
        table.setdefault(value, []).append(use)
    return _Resolver(graph, table).run()
