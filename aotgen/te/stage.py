"""A Nest: what is left of a Group before loops are written.

A nest is outer parallel axes and a list of stages that run for each outer iteration. A stage has
parallel axes of its own and at most one reduction; its result is a scalar, a row that later stages
read, or elements of the output. Building one evaluates the output tensor at symbolic axes, splits
axes that indices divide, replaces tensor indices by flat offsets from the views, merges axes that
are contiguous everywhere, and lists the reductions in order of need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from aotgen.errors import InternalError
from aotgen.ir.types import DType
from aotgen.te.compute import Tensor
from aotgen.te.expr import Buffer, Expr, Load, Param, Reduce, Row, RowLoad
from aotgen.te.index import ZERO, Axis, Div, Index, Mod, as_index, atoms_of, flatten, of_atom
from aotgen.te.simplify import Rewriter, indices_of, substitute, walk

IMAGE_NAMES = {0: (), 1: ("i",), 2: ("n", "c"), 3: ("n", "w", "c"), 4: ("n", "h", "w", "c")}
IMAGE_NAMES[5] = ("n", "d", "h", "w", "c")
_OTHER_NAMES = re.compile(r"(x|p|t|v|at)\d*|y|io|r0|r1|VL")
"""Names of a kernel's pointers and bounds, and of the values that it names itself."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One step of an outer iteration.

    Attributes:
        kind: where the result goes.
        axes: parallel axes of its own, outermost first; none for a scalar.
        expr: the value; a Reduce node for a scalar, whose axes are the reduction's.
        name: of the result: a C variable, a scratch row, or the output.
        row: the row that a row stage fills.
    """

    kind: Literal["scalar", "row", "output"]
    axes: tuple[Axis, ...]
    expr: Expr
    name: str
    row: Row | None = None


@dataclass(frozen=True, eq=False)
class Nest:
    """A kernel's work.

    Attributes:
        outer: parallel axes around all stages, outermost first; the first one's range is [r0, r1).
        stages: in order; the last writes the output.
        store: flat offset of the output element at (outer, last stage's axes).
        dtype: of the output.
        row_store: by row: the flat offset within its memory, over its own axes; None when the
            output holds it. row_in_output: the row that lives in the output, if any. layouts: by
            constant that the nest reads: the order of its axes in memory.
    """

    outer: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    store: Index
    dtype: DType
    row_store: Mapping[Row, Index] = field(default_factory=dict)
    row_in_output: Row | None = None
    layouts: Mapping[Buffer, tuple[int, ...]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Extent of the outermost loop axis."""
        if self.outer:
            return self.outer[0].extent
        axes = self.stages[-1].axes
        return axes[0].extent if axes and len(self.stages) == 1 else 1


def output_axes(tensor: Tensor) -> tuple[tuple[Axis, ...], tuple[Index, ...]]:
    """Fresh axes over a tensor's shape and the indices they give; an extent of 1 needs no axis."""
    names = tensor.names or IMAGE_NAMES.get(len(tensor.shape)) or ()
    if len(names) != len(tensor.shape):
        names = tuple(f"i{k}" for k in range(len(tensor.shape)))
    axes: list[Axis] = []
    indices: list[Index] = []
    for name, extent in zip(names, tensor.shape, strict=True):
        if extent == 1:
            indices.append(ZERO)
        else:
            axes.append(Axis(name, extent))
            indices.append(of_atom(axes[-1]))
    return tuple(axes), tuple(indices)


def all_indices(expr: Expr) -> list[Index]:
    """Every index in an expression, once, in order."""
    found: dict[Index, None] = {}
    for node in walk(expr):
        for index in indices_of(node):
            found.setdefault(index)
    return list(found)


def split_axes(
    axes: tuple[Axis, ...], expr: Expr, stores: tuple[Index, ...]
) -> tuple[tuple[Axis, ...], Expr, tuple[Index, ...]]:
    """Split every axis v that is divided by a divisor k of its extent into (v / k, v % k), until
    none is left.
    """
    for _ in range(8):
        found = _splittable(axes, (*all_indices(expr), *stores))
        if found is None:
            break
        axis, k = found
        outer, inner = Axis(axis.name, axis.extent // k), Axis(f"{axis.name}i", k)
        whole = {axis: of_atom(outer) * k + of_atom(inner)}
        rewrite = Rewriter(whole)
        expr, stores = rewrite(expr), tuple(rewrite.index(s) for s in stores)
        at = axes.index(axis)
        axes = (*axes[:at], outer, inner, *axes[at + 1 :])
    return axes, expr, stores


def _splittable(axes: tuple[Axis, ...], indices: Sequence[Index]) -> tuple[Axis, int] | None:
    for index in indices:
        for atom in atoms_of(index):
            if not isinstance(atom, Div | Mod) or len(atom.a.terms) != 1 or atom.a.const:
                continue
            axis, c = atom.a.terms[0]
            if c == 1 and isinstance(axis, Axis) and axis in axes and axis.extent % atom.k == 0:
                return axis, atom.k
    return None


def flatten_loads(expr: Expr, strides: Mapping[Buffer, tuple[int, ...]]) -> Expr:
    """Every load at a flat offset, with the strides of its buffer's view."""
    return Rewriter(leaf=_flattener(strides))(expr)


def _flattener(strides: Mapping[Buffer, tuple[int, ...]]) -> Callable[[Expr], Expr]:
    def flat(node: Expr) -> Expr:
        if isinstance(node, Load) and len(node.indices) == len(strides[node.buffer]):
            return Load(node.buffer, (flatten(node.indices, strides[node.buffer]),))
        return node

    return flat


def mergeable(outer: Axis, inner: Axis, indices: Sequence[Index]) -> bool:
    """Whether every index sees (outer, inner) as one axis of extent outer * inner."""
    for index in indices:
        a, b = index.coefficient(outer), index.coefficient(inner)
        if a is None or b is None or a != b * inner.extent:
            return False
    return True


def merge_axes(
    axes: tuple[Axis, ...], expr: Expr, stores: tuple[Index, ...]
) -> tuple[tuple[Axis, ...], Expr, tuple[Index, ...]]:
    """Merge neighbours among ``axes`` that are contiguous in every index."""
    at = len(axes) - 1
    while at > 0:
        outer, inner = axes[at - 1], axes[at]
        if mergeable(outer, inner, (*all_indices(expr), *stores)):
            joined = Axis(inner.name, outer.extent * inner.extent)
            rewrite = Rewriter({outer: ZERO, inner: of_atom(joined)})
            expr, stores = rewrite(expr), tuple(rewrite.index(s) for s in stores)
            axes = (*axes[: at - 1], joined, *axes[at + 1 :])
            at = min(at, len(axes) - 1)
            if at == len(axes) - 1 and at > 0 and axes[at] is joined:
                continue
        at -= 1
    return axes, expr, stores


def merge_reductions(expr: Expr) -> Expr:
    """Merge neighbouring axes inside each reduction where its body allows it."""

    def merged(node: Expr) -> Expr:
        if not isinstance(node, Reduce):
            return node
        axes, bounds, body = list(node.axes), list(node.bounds), node.body
        at = len(axes) - 1
        while at > 0:
            outer, inner = axes[at - 1], axes[at]
            whole = all(
                b == (ZERO, as_index(a.extent))
                for a, b in zip(axes[at - 1 : at + 1], bounds[at - 1 : at + 1], strict=True)
            )
            rest = [i for k, pair in enumerate(bounds) if k not in (at - 1, at) for i in pair]
            if whole and mergeable(outer, inner, [*all_indices(body), *rest]):
                joined = Axis(outer.name, outer.extent * inner.extent)
                body = substitute(body, {outer: ZERO, inner: of_atom(joined)})
                axes[at - 1 : at + 1] = [joined]
                bounds[at - 1 : at + 1] = [(ZERO, as_index(joined.extent))]
            at -= 1
        if len(axes) == len(node.axes):
            return node
        return Reduce(node.combiner, tuple(axes), tuple(bounds), body)

    return Rewriter(leaf=merged)(expr)


def _needs_outer(expr: Expr) -> frozenset[Axis]:
    """Axes that a reduction or a row depends on: loops over them stand around all stages."""
    out: frozenset[Axis] = frozenset()
    for node in walk(expr):
        if isinstance(node, Reduce):
            out |= node.free
        elif isinstance(node, RowLoad):
            out |= node.row.free
    return out


def build(
    tensor: Tensor,
    store_strides: tuple[int, ...],
    strides: Mapping[Buffer, tuple[int, ...]],
    place: Callable[..., Index] | None = None,
) -> Nest:
    """The nest that writes ``tensor`` to memory with ``store_strides``.

    ``strides`` has those of every buffer that is read. A constant that is absent there gets
    the layout that the loops read best (``Nest.layouts``).
    """
    axes, indices = output_axes(tensor)
    expr = tensor(*indices)
    store = flatten(indices, store_strides) if place is None else place(*indices)
    store = Rewriter(leaf=_flattener(strides)).index(store)
    axes, expr, (store,) = split_axes(axes, expr, (store,))
    layouts = const_layouts(expr, axes, store, strides)
    packed = {b: packed_strides(b.shape, perm) for b, perm in layouts.items()}
    expr = merge_reductions(flatten_loads(expr, {**strides, **packed}))
    axes = tuple(sorted(axes, key=lambda a: -abs(store.coefficient(a) or 0)))

    bound = _needs_outer(expr) & frozenset(axes)
    outer = tuple(a for a in axes if a in bound)
    own = tuple(a for a in axes if a not in bound)
    outer, expr, (store,) = merge_axes(outer, expr, (store,))
    own, expr, (store,) = merge_axes(own, expr, (store,))
    if len(outer) + len(own) == 1 and (*outer, *own)[0] not in axes:
        # everything became one loop
        flat = (*outer, *own)[0]
        whole = Axis("i", flat.extent)
        rewrite = Rewriter({flat: of_atom(whole)})
        expr, store = rewrite(expr), rewrite.index(store)
        outer, own = ((whole,), own) if outer else (outer, (whole,))
    outer, own, expr, store = _unique_names(outer, own, expr, store)
    nest = _list_stages(outer, own, expr, store, tensor.dtype)
    return replace(nest, layouts=layouts)


def const_layouts(
    expr: Expr,
    axes: Sequence[Axis],
    store: Index,
    strides: Mapping[Buffer, tuple[int, ...]],
) -> dict[Buffer, tuple[int, ...]]:
    """For constants without a view the order of their axes in memory: the output's inner axis last
    where they have it.
    """
    inner = next((a for a in axes if store.coefficient(a) == 1), None)
    found: dict[Buffer, tuple[int, ...]] = {}
    for node in walk(expr):
        if not isinstance(node, Load) or node.buffer in strides:
            continue
        if node.buffer.const is None:
            raise InternalError(f"te: no view for {node.buffer.name!r}")
        order = list(range(len(node.indices)))
        for position, index in enumerate(node.indices):
            if inner is not None and index.coefficient(inner) == 1:
                order = [*order[:position], *order[position + 1 :], position]
                break
        found.setdefault(node.buffer, tuple(order))
    return found


def packed_strides(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...]:
    """Strides by axis of an array that lies in memory with its axes in the order ``perm``."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(perm):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _unique_names(
    outer: tuple[Axis, ...], own: tuple[Axis, ...], expr: Expr, store: Index
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Expr, Index]:
    """Give every axis of the nest a C name of its own, reduction axes included."""
    used: set[str] = set()

    def fresh(axis: Axis) -> Axis:
        base = f"{axis.name}_" if _OTHER_NAMES.fullmatch(axis.name) else axis.name
        name, k = base, 1
        while name in used:
            k += 1
            name = f"{base}{k}"
        used.add(name)
        return Axis(name, axis.extent, axis.lo)

    table: dict[Axis, Axis] = {a: fresh(a) for a in (*outer, *own)}
    for node in walk(expr):
        bound = node.axes if isinstance(node, Reduce) else ()
        if isinstance(node, RowLoad):
            bound = node.row.axes
        for axis in bound:
            if axis not in table:
                table[axis] = fresh(axis)
    rename = _Renamer(table)
    return (
        tuple(table[a] for a in outer),
        tuple(table[a] for a in own),
        rename(expr),
        rename.index(store),
    )


class _Renamer(Rewriter):
    """Replaces axes everywhere, also where reductions and rows bind them."""

    def __init__(self, table: Mapping[Axis, Axis]) -> None:
        super().__init__({a: Index(((b, 1),), 0) for a, b in table.items()}, deep=True)
        self._table = table

    def row(self, row: Row) -> Row:
        found = self._rows.get(row)
        if found is None:
            found = Row(tuple(self._table[a] for a in row.axes), self(row.body))
            self._rows[row] = found
        return found

    def _rebuild(self, expr: Expr) -> Expr:
        made = super()._rebuild(expr)
        if isinstance(made, Reduce):
            axes = tuple(self._table[a] for a in made.axes)
            return Reduce(made.combiner, axes, made.bounds, made.body)
        return made


def _list_stages(
    outer: tuple[Axis, ...], own: tuple[Axis, ...], expr: Expr, store: Index, dtype: DType
) -> Nest:
    """Turn reductions and rows that depend on outer axes only into stages, in order of need."""
    allowed = frozenset(outer)
    stages: list[Stage] = []
    named: dict[Expr, Expr] = {}
    rows: dict[Row, Row] = {}
    row_store: dict[Row, Index] = {}
    counts: dict[str, int] = {}

    def name(base: str) -> str:
        counts[base] = counts.get(base, 0) + 1
        return base if counts[base] == 1 else f"{base}_{counts[base]}"

    for node in walk(expr):
        if isinstance(node, RowLoad) and node.row not in rows and node.row.free <= allowed:
            body = Rewriter(nodes=named)(node.row.body)
            kept = Row(node.row.axes, body)
            rows[node.row] = kept
            stages.append(Stage("row", kept.axes, body, name("row"), kept))
            row_store[kept] = _dense(kept.axes)
        if isinstance(node, RowLoad) and node.row in rows:
            named[node] = RowLoad(rows[node.row], node.indices)
        if isinstance(node, Reduce) and node.free <= allowed:
            body = Rewriter(nodes=named)(node.body)
            reduce = Reduce(node.combiner, node.axes, node.bounds, body)
            label = name({"max_nan": "max", "min_nan": "min"}.get(node.combiner, node.combiner))
            stages.append(Stage("scalar", (), reduce, label))
            named[node] = Param(label, node.dtype, node.free)
    final = Rewriter(nodes=named)(expr)
    stages.append(Stage("output", own, final, "y"))
    home = _row_for_output(stages, own, dtype)
    return Nest(outer, tuple(stages), store, dtype, row_store, home)


def _dense(axes: tuple[Axis, ...]) -> Index:
    flat = ZERO
    for axis in axes:
        flat = flat * axis.extent + of_atom(axis)
    return flat


def _row_for_output(stages: list[Stage], own: tuple[Axis, ...], dtype: DType) -> Row | None:
    """The last row, when the output has its shape and type and the last stage reads it at the same
    place only.
    """
    rows = [s for s in stages if s.kind == "row"]
    if not rows or len(rows[-1].axes) != len(own):
        return None
    row = rows[-1].row
    assert row is not None
    if row.body.dtype is not dtype or [a.extent for a in row.axes] != [a.extent for a in own]:
        return None
    here = tuple(of_atom(a) for a in own)
    for node in walk(stages[-1].expr):
        if isinstance(node, RowLoad) and node.row == row and node.indices != here:
            return None
    return row
