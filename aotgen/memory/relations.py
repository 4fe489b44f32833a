"""Affine relations between a view op's input and output: the geometry behind zero-copy.

``reshape``, ``transpose``, ``slice``, ``split`` and ``concat`` move no numbers when one side can be
read as a strided view of the other. A ``Link`` says which side is the parent (it owns the memory)
and derives the child's view from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aotgen.ir.graph import Node, Value
from aotgen.schedule.base import Border, View

VIEW_OPS = frozenset({"reshape", "transpose", "concat", "slice", "split"})


def is_view_op(node: Node) -> bool:
    """reshape, transpose, concat, split, and slice with positive steps: no arithmetic, and no copy
    where memory can be arranged for it.
    """
    if node.op == "slice":
        return all(step > 0 for step in node.attrs["steps"])
    return node.op in VIEW_OPS


@dataclass(frozen=True, eq=False)
class Link:
    """``child`` lives inside ``parent``'s memory, related by view op ``node``.

    Attributes:
        child: the smaller side, or the one that comes first or last in a row of equals.
        parent: whose memory it is.
        node: the view op that relates them. For a concat within a longer one, the longer one's.
        down: the child is an output of ``node``; otherwise an input of it, or a run of its inputs.
        start: of a concat or a split: where the child begins along the node's axis.
    """

    child: Value
    parent: Value
    node: Node
    down: bool
    start: int = 0

    def derive(self, view: View) -> tuple[View, int] | None:
        """The child's view and its distance in elements from the parent's element 0; None when it
        is no strided view, or the parent is none.
        """
        if view.layout != "strided":
            return None
        rule = {
            "reshape": self._reshape,
            "transpose": self._transpose,
            "concat": self._concat,
            "slice": self._slice,
            "split": self._split,
        }[self.node.op]
        return rule(view)

    def lift(self, border: Border) -> Border | None:
        """What border the parent must have for the child to have ``border``; None when that cannot
        be.
        """
        if not any(b != (0, 0) for b in border):
            return tuple((0, 0) for _ in self.parent.shape)
        node = self.node
        if node.op == "transpose":
            perm = node.attrs["perm"]
            if self.down:
                lifted = [(0, 0)] * len(perm)
                for axis, source in enumerate(perm):
                    lifted[source] = border[axis]
                return tuple(lifted)
            return tuple(border[source] for source in perm)
        if node.op == "reshape":
            axes = _unit_axis_map(self.child.shape, self.parent.shape)
            if axes is None:
                return None
            lifted = [(0, 0)] * len(self.parent.shape)
            for axis, pair in enumerate(border):
                if pair != (0, 0):
                    target = axes.get(axis)
                    if target is None:
                        return None
                    lifted[target] = pair
            return tuple(lifted)
        for axis, pair in enumerate(border):
            if pair != (0, 0) and self.child.shape[axis] != self.parent.shape[axis]:
                return None
        return border

    def _transpose(self, view: View) -> tuple[View, int]:
        perm: tuple[int, ...] = self.node.attrs["perm"]
        if not self.down:
            inverse = [0] * len(perm)
            for axis, source in enumerate(perm):
                inverse[source] = axis
            perm = tuple(inverse)
        border = tuple(view.border[p] for p in perm) if view.border else ()
        return (
            replace(
                view,
                shape=tuple(view.shape[p] for p in perm),
                strides=tuple(view.strides[p] for p in perm),
                border=border,
            ),
            0,
        )

    def _reshape(self, view: View) -> tuple[View, int] | None:
        shape = self.child.shape
        strides = reshape_strides(view.shape, view.strides, shape)
        if strides is None:
            return None
        border: Border = ()
        axes = _unit_axis_map(shape, view.shape)
        if view.border and axes is not None:
            border = tuple(view.border[axes[a]] if a in axes else (0, 0) for a in range(len(shape)))
        return replace(view, shape=shape, strides=strides, border=border), 0

    def _slice(self, view: View) -> tuple[View, int] | None:
        attrs = self.node.attrs
        starts, steps = attrs["starts"], attrs["steps"]
        if not self.down or any(s <= 0 for s in steps):
            return None
        offset = sum(a * s for a, s in zip(starts, view.strides, strict=True))
        strides = tuple(s * k for s, k in zip(view.strides, steps, strict=True))
        return self._part(view, strides), offset

    def _split(self, view: View) -> tuple[View, int] | None:
        return self._piece(view) if self.down else None

    def _concat(self, view: View) -> tuple[View, int] | None:
        return None if self.down else self._piece(view)

    def _piece(self, view: View) -> tuple[View, int]:
        step = view.strides[self.node.attrs["axis"]]
        return self._part(view, view.strides), self.start * step

    def _part(self, view: View, strides: tuple[int, ...]) -> View:
        """The child's box inside the parent: borders stay only along axes that it spans whole."""
        shape = self.child.shape
        border: Border = ()
        if view.border:
            whole = [
                shape[a] == view.shape[a] and strides[a] == view.strides[a]
                for a in range(len(shape))
            ]
            border = tuple(b if w else (0, 0) for b, w in zip(view.border, whole, strict=True))
        return replace(view, shape=shape, strides=strides, border=border)


def reshape_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides that read a strided tensor under shape ``new`` without a copy, or None.

    Walks both shapes in runs of equal element count; a run of old axes must be contiguous among
    themselves.
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result = [0] * len(new)
    position = 0
    axis = 0
    while axis < len(new):
        if new[axis] == 1:
            axis += 1
            continue
        if position == len(old):
            return None
        last = axis
        have, want = old[position][0], new[axis]
        while have != want:
            if have < want:
                position += 1
                if position == len(old):
                    return None
                if old[position - 1][1] != old[position][0] * old[position][1]:
                    return None
                have *= old[position][0]
            else:
                last += 1
                if last == len(new):
                    return None
                want *= new[last]
        stride = old[position][1]
        for target in range(last, axis - 1, -1):
            result[target] = stride
            stride *= new[target]
        position += 1
        axis = last + 1
    inner = 1
    for target in range(len(new) - 1, -1, -1):
        if new[target] == 1:
            result[target] = inner
        inner = result[target] * new[target]
    return tuple(result)


def _unit_axis_map(child: tuple[int, ...], parent: tuple[int, ...]) -> dict[int, int] | None:
    """Child axis -> parent axis when the shapes differ only by axes of extent 1, else None."""
    if child == parent:
        return {a: a for a in range(len(child))}
    kept = [a for a, n in enumerate(child) if n != 1]
    goal = [a for a, n in enumerate(parent) if n != 1]
    if [child[a] for a in kept] != [parent[a] for a in goal]:
        return None
    return dict(zip(kept, goal, strict=True))
