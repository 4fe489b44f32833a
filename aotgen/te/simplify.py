"""Rewriting: replace axes by indices and simplify again with what is then known.

``substitute`` is the only rewriting the schedule needs: an axis that is split, merged, narrowed to
a segment or fixed to a value is replaced by an index over new axes, and every index and condition
is rebuilt by the functions of ``index`` and ``expr``, which drop the divisions, remainders and
tests that the new ranges decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from aotgen.te.c_printer import FIXED_POINT, MATH
from aotgen.te.expr import (
    Call,
    Cast,
    Const,
    Expr,
    FromIndex,
    InRange,
    Load,
    Reduce,
    Row,
    RowLoad,
    Select,
    both,
    call,
    cast,
    const,
    in_range,
    select,
)
from aotgen.te.index import (
    Axis,
    Choose,
    Div,
    Elem,
    Extremum,
    Index,
    Mod,
    add,
    floordiv,
    floormod,
    maximum,
    minimum,
    of_atom,
)


class Rewriter:
    """Rebuilds expressions bottom-up; ``axes`` gives the index that replaces an axis, ``nodes``
    replaces whole nodes.

    ``leaf`` is called on every rebuilt node and may return another one. Shared nodes are rebuilt
    once.
    """

    def __init__(
        self,
        axes: Mapping[Axis, Index] | None = None,
        nodes: Mapping[Expr, Expr] | None = None,
        leaf: Callable[[Expr], Expr] | None = None,
        deep: bool = False,
    ) -> None:
        self._axes = axes or {}
        self._nodes = nodes or {}
        self._leaf = leaf
        self._everywhere = deep or leaf is not None or bool(nodes)
        self._seen: dict[Expr, Expr] = {}
        self._rows: dict[Row, Row] = {}
        self._indices: dict[Index, Index] = {}

    def index(self, index: Index) -> Index:
        """``index`` with axes replaced."""
        if not self._everywhere and not any(axis in index.free for axis in self._axes):
            return index
        found = self._indices.get(index)
        if found is None:
            parts = [(self._atom(atom), c) for atom, c in index.terms]
            found = add(*parts, (Index((), index.const), 1))
            self._indices[index] = found
        return found

    def _atom(self, atom: object) -> Index:
        if isinstance(atom, Axis):
            return self._axes.get(atom) or of_atom(atom)
        if isinstance(atom, Div):
            return floordiv(self.index(atom.a), atom.k)
        if isinstance(atom, Mod):
            return floormod(self.index(atom.a), atom.k)
        if isinstance(atom, Extremum):
            join = minimum if atom.kind == "min" else maximum
            return join(self.index(atom.a), self.index(atom.b))
        if isinstance(atom, Choose):
            return choose(self(atom.cond), self.index(atom.a), self.index(atom.b))
        assert isinstance(atom, Elem)
        return elem(self(atom.expr), atom.range)

    def row(self, row: Row) -> Row:
        """``row`` with its body rewritten; the same object for the same row."""
        found = self._rows.get(row)
        if found is None:
            body = self(row.body)
            found = row if body is row.body else Row(row.axes, body)
            self._rows[row] = found
        return found

    def __call__(self, expr: Expr) -> Expr:
        """``expr`` rewritten."""
        if expr in self._nodes:
            return self._nodes[expr]
        if not self._everywhere and not any(axis in expr.free for axis in self._axes):
            return expr
        found = self._seen.get(expr)
        if found is None:
            found = self._rebuild(expr)
            if self._leaf is not None:
                found = self._leaf(found)
            self._seen[expr] = found
        return found

    def _rebuild(self, expr: Expr) -> Expr:
        if isinstance(expr, Call):
            args = tuple(self(a) for a in expr.args)
            if expr.fn == "and":
                return both(*args)
            if len(args) == 2 and args[0] == args[1]:
                return call(expr.fn, *args)
            return Call(expr.fn, args, expr.type)
        if isinstance(expr, Select):
            return select(self(expr.cond), self(expr.a), self(expr.b))
        if isinstance(expr, Cast):
            return cast(expr.type, self(expr.a))
        if isinstance(expr, Load):
            return Load(expr.buffer, tuple(self.index(i) for i in expr.indices))
        if isinstance(expr, FromIndex):
            return from_index(self.index(expr.index), expr)
        if isinstance(expr, InRange):
            return in_range(self.index(expr.index))
        if isinstance(expr, RowLoad):
            return RowLoad(self.row(expr.row), tuple(self.index(i) for i in expr.indices))
        if isinstance(expr, Reduce):
            bounds = tuple((self.index(lo), self.index(hi)) for lo, hi in expr.bounds)
            return Reduce(expr.combiner, expr.axes, bounds, self(expr.body))
        return expr


def from_index(index: Index, like: FromIndex) -> Expr:
    """An index as data of the type of ``like``; a literal when it is constant."""
    return const(index.const, like.type) if index.is_const else FromIndex(index, like.type)


def elem(expr: Expr, bounds: tuple[int, int]) -> Index:
    """An integer expression as an index within ``bounds``."""
    if isinstance(expr, Const):
        return Index((), int(expr.value))
    if isinstance(expr, FromIndex):
        return expr.index
    return of_atom(Elem(expr, bounds))


def choose(cond: Expr, a: Index, b: Index) -> Index:
    """cond ? a : b as an index."""
    if isinstance(cond, Const):
        return a if cond.value else b
    return a if a == b else of_atom(Choose(cond, a, b))


def substitute(expr: Expr, axes: Mapping[Axis, Index]) -> Expr:
    """``expr`` with every axis of ``axes`` replaced."""
    return Rewriter(axes)(expr) if axes else expr


def walk(expr: Expr, rows: bool = True) -> Iterator[Expr]:
    """Every node once, children first, into reductions, the expressions inside indices and, with
    ``rows``, rows.
    """
    seen = {expr}
    open_nodes = [(expr, iter(_parts(expr, rows)))]
    while open_nodes:
        node, parts = open_nodes[-1]
        part = next((p for p in parts if p not in seen), None)
        if part is None:
            open_nodes.pop()
            yield node
        else:
            seen.add(part)
            open_nodes.append((part, iter(_parts(part, rows))))


def _parts(node: Expr, rows: bool) -> list[Expr]:
    """The expressions right below a node: children, those in its indices and, with ``rows``, its
    row's body.
    """
    found = list(node.children)

    def visit_index(index: Index) -> None:
        for atom, _ in index.terms:
            if isinstance(atom, Div | Mod):
                visit_index(atom.a)
            elif isinstance(atom, Extremum):
                visit_index(atom.a)
                visit_index(atom.b)
            elif isinstance(atom, Choose):
                found.append(atom.cond)
                visit_index(atom.a)
                visit_index(atom.b)
            elif isinstance(atom, Elem):
                found.append(atom.expr)

    for index in indices_of(node):
        visit_index(index)
    if rows and isinstance(node, RowLoad):
        found.append(node.row.body)
    return found


def indices_of(node: Expr) -> tuple[Index, ...]:
    """The indices that a node itself carries."""
    if isinstance(node, Load | RowLoad):
        return node.indices
    if isinstance(node, FromIndex | InRange):
        return (node.index,)
    if isinstance(node, Reduce):
        return tuple(i for pair in node.bounds for i in pair)
    return ()


_COSTLY = MATH | FIXED_POINT | {"div", "sqrt"}


def heavy(expr: Expr) -> bool:
    """Whether an expression calls a math function, so that vectors pay even with strided loads."""
    return any(isinstance(n, Call) and n.fn in _COSTLY for n in walk(expr, rows=False))
