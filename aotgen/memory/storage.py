"""Which memory every value lives in, and as what strided view.

Runs after plan has chosen a template for every Group. Values related by view ops share one
``Storage`` wherever every producer and consumer accepts the resulting strides; what remains becomes
explicit copies. Convolutions ask for a zero border (``Need.border``): the root of their input's
storage is laid out with it, so kernels never test bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from aotgen.ir.graph import Graph, Node, Value
from aotgen.memory.relations import Border, Link, is_view_op
from aotgen.schedule.base import Need, View, dense_strides


@dataclass(eq=False)
class Storage:
    """One piece of memory.

    Attributes:
        root: the value whose logical elements, plus border, fill it in row-major order.
        kind: in the arena, or the caller's memory for a graph input or output.
        view: the root's view, with its border.
        origin: elements before the root's logical element 0.
        elements: elements in all.
    """

    root: Value
    kind: Literal["arena", "input", "output"]
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


def root_view(value: Value, border: Border) -> tuple[View, int, int]:
    """(view, origin, elements) of a row-major tensor with a border around it."""
    pairs = border or tuple((0, 0) for _ in value.shape)
    extents = tuple(n + b[0] + b[1] for n, b in zip(value.shape, pairs, strict=True))
    strides = dense_strides(extents)
    origin = sum(b[0] * s for b, s in zip(pairs, strides, strict=True))
    elements = 1
    for n in extents:
        elements *= n
    kept = tuple(pairs) if any(b != (0, 0) for b in pairs) else ()
    return View(value.shape, strides, value.dtype, kept), origin, elements


class _Resolver:
    """Builds the forest of links and checks every use against it."""

    def __init__(self, graph: Graph, uses: dict[Value, list[Use]]) -> None:
        self.graph = graph
        self.uses = uses
        self.parent: dict[Value, Link] = {}
        self.children: dict[Value, list[Link]] = {}
        self.inputs = set(graph.inputs)
        self.outputs = set(graph.outputs)
        self.result = StorageMap()
        self.copied: list[Copy] = []

    def root(self, value: Value) -> Value:
        while value in self.parent:
            value = self.parent[value].parent
        return value

    def members(self, root: Value) -> Iterator[Value]:
        """``root`` and everything below it, parents first."""
        yield root
        for link in self.children.get(root, []):
            yield from self.members(link.child)

    def border_of(self, value: Value) -> Border | None:
        """The border that ``value`` must have for itself and all below it; None when it cannot be
        had.
        """
        total = [(0, 0)] * len(value.shape)
        wanted = [u.need.border for u in self.uses.get(value, ()) if u.need.border]
        for link in self.children.get(value, []):
            below = self.border_of(link.child)
            lifted = None if below is None else link.lift(below)
            if lifted is None:
                return None
            wanted.append(lifted)
        for border in wanted:
            total = [(max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(total, border, strict=True)]
        return tuple(total)

    def is_external(self, value: Value) -> bool:
        return value in self.inputs or value in self.outputs

    def layout(self, root: Value) -> tuple[Storage, dict[Value, tuple[View, int]]] | None:
        """Storage of a class and the views of its members, or None when some view does not
        exist.
        """
        border = self.border_of(root)
        if border is None:
            return None
        if self.is_external(root) and any(b != (0, 0) for b in border):
            return None
        view, origin, elements = root_view(root, border)
        kind: Literal["arena", "input", "output"] = "arena"
        if root in self.inputs:
            kind = "input"
        elif root in self.outputs:
            kind = "output"
        storage = Storage(root, kind, view, origin, elements)
        views = {root: (view, origin)}
        for value in self.members(root):
            for link in self.children.get(value, []):
                parent_view, base = views[value]
                derived = link.derive(parent_view)
                if derived is None:
                    return None
                views[link.child] = (derived[0], base + derived[1])
        return storage, views

    def accepted(self, root: Value) -> bool:
        """Whether every use of every member is content."""
        found = self.layout(root)
        if found is None:
            return False
        return all(
            use.need.met_by(view)
            for value, (view, _) in found[1].items()
            for use in self.uses.get(value, ())
        )

    def try_link(self, link: Link) -> bool:
        """Add the link when the merged class satisfies all its uses."""
        child, parent = link.child, link.parent
        if child in self.parent or child.is_const or parent.is_const or self.is_external(child):
            return False
        if self.root(parent) is child or child.dtype is not parent.dtype:
            return False
        self.parent[child] = link
        self.children.setdefault(parent, []).append(link)
        if self.accepted(self.root(parent)):
            return True
        del self.parent[child]
        self.children[parent].pop()
        return False

    def relax(self) -> None:
        """Uses that a value cannot meet even alone read a copy of it instead."""
        for value in list(self.graph.values()):
            uses = self.uses.get(value)
            if not uses or value.is_const or self.accepted(value):
                continue
            kept: list[Use] = []
            moved: list[Use] = []
            for use in sorted(uses, key=lambda u: u.group is not None):
                self.uses[value] = [*kept, use]
                if use.group is None or self.accepted(value):
                    kept.append(use)
                else:
                    moved.append(use)
            self.uses[value] = kept
            if moved:
                copied = Value(self.graph.unique_name(f"{value.name}.copy"), value.type)
                self.uses[copied] = moved
                for use in moved:
                    assert use.group is not None
                    self.result.readers[(use.group, value.name)] = copied
                self.copied.append(Copy(value, copied))

    def run(self) -> StorageMap:
        self.relax()
        for node in self.graph.nodes:
            if is_view_op(node):
                self.link_node(node)
        seen: set[Value] = set()
        copies = [c.target for c in self.copied]
        for value in [*self.graph.values(), *copies]:
            if value.is_const:
                continue
            root = self.root(value)
            if root in seen:
                continue
            seen.add(root)
            found = self.layout(root)
            assert found is not None, root.name
            storage, views = found
            for member, (view, offset) in views.items():
                self.result.placements[member.name] = Placement(storage, offset, view)
        for (group, _), target in self.result.readers.items():
            copy = next(c for c in self.copied if c.target is target)
            done = self.result.copies.setdefault(group, [])
            if not any(copy in c for c in self.result.copies.values()):
                done.append(copy)
        return self.result

    def link_node(self, node: Node) -> None:
        if node.op == "concat":
            self.link_concat(node)
            return
        source = node.input(0)
        for output in node.outputs:
            # Upwards first: the producer writes the order that the consumer reads, and what follows
            # stays dense.
            up = Link(source, output, node, down=False)
            if node.op in ("reshape", "transpose") and self.try_link(up):
                continue
            down = Link(output, source, node, down=True)
            if self.try_link(down):
                continue
            self.result.copies.setdefault(node.name, []).append(Copy(source, output, down))

    def link_concat(self, node: Node) -> None:
        target = node.output
        for index, source in enumerate(node.args):
            link = Link(source, target, node, down=False, index=index)
            if not self.try_link(link):
                self.result.copies.setdefault(node.name, []).append(Copy(source, target, link))


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
