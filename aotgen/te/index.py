"""Index arithmetic, canonical by construction: every index is a linear form over atoms with known
ranges.

An ``Index`` is ``sum(coefficient * atom) + const``. An atom is a loop ``Axis`` or something that is
not linear: a floor division or remainder by a constant, a minimum or maximum, a choice, a value
read from memory. The functions here simplify while they build, with the ranges of the axes, so that
a division, a remainder or a comparison whose result is known never reaches the generated code. Two
indices are equal exactly when they are the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aotgen.te.expr import Expr

NO_AXES: frozenset[Axis] = frozenset()


@dataclass(frozen=True, eq=False)
class Axis:
    """A loop variable with values lo .. lo + extent - 1. Axes are equal only to themselves."""

    name: str
    extent: int
    lo: int = 0

    @property
    def hi(self) -> int:
        return self.lo + self.extent

    @property
    def range(self) -> tuple[int, int]:
        return (self.lo, self.lo + self.extent - 1)

    @property
    def free(self) -> frozenset[Axis]:
        return frozenset((self,))


@dataclass(frozen=True)
class Div:
    """floor(a / k), k >= 2."""

    a: Index
    k: int

    @cached_property
    def range(self) -> tuple[int, int]:
        lo, hi = self.a.range
        return (lo // self.k, hi // self.k)

    @property
    def free(self) -> frozenset[Axis]:
        return self.a.free


@dataclass(frozen=True)
class Mod:
    """a - k * floor(a / k), k >= 2."""

    a: Index
    k: int

    @property
    def range(self) -> tuple[int, int]:
        return (0, self.k - 1)

    @property
    def free(self) -> frozenset[Axis]:
        return self.a.free


@dataclass(frozen=True)
class Extremum:
    """min(a, b) or max(a, b)."""

    kind: Literal["min", "max"]
    a: Index
    b: Index

    @cached_property
    def range(self) -> tuple[int, int]:
        pick = min if self.kind == "min" else max
        (la, ha), (lb, hb) = self.a.range, self.b.range
        return (pick(la, lb), pick(ha, hb))

    @cached_property
    def free(self) -> frozenset[Axis]:
        return self.a.free | self.b.free


@dataclass(frozen=True)
class Choose:
    """cond ? a : b."""

    cond: Expr
    a: Index
    b: Index

    @cached_property
    def range(self) -> tuple[int, int]:
        (la, ha), (lb, hb) = self.a.range, self.b.range
        return (min(la, lb), max(ha, hb))

    @cached_property
    def free(self) -> frozenset[Axis]:
        return self.cond.free | self.a.free | self.b.free


@dataclass(frozen=True)
class Elem:
    """An integer read from memory, promised to lie within ``range``."""

    expr: Expr
    range: tuple[int, int]

    @property
    def free(self) -> frozenset[Axis]:
        return self.expr.free


Atom = Axis | Div | Mod | Extremum | Choose | Elem


@dataclass(frozen=True, eq=False)
class Index:
    """``sum(c * atom for atom, c in terms) + const``; no coefficient is 0 and no atom appears
    twice.
    """

    terms: tuple[tuple[Atom, int], ...]
    const: int

    @cached_property
    def _hash(self) -> int:
        return hash((frozenset(self.terms), self.const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Index)
            and self.const == other.const
            and len(self.terms) == len(other.terms)
            and dict(self.terms) == dict(other.terms)
        )

    @cached_property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value, by interval arithmetic."""
        lo = hi = self.const
        for atom, c in self.terms:
            a, b = atom.range
            lo += c * (a if c > 0 else b)
            hi += c * (b if c > 0 else a)
        return (lo, hi)

    @cached_property
    def free(self) -> frozenset[Axis]:
        return frozenset().union(*(atom.free for atom, _ in self.terms)) if self.terms else NO_AXES

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, axis: Axis) -> int | None:
        """The stride along ``axis``; None when the index does not depend on it linearly."""
        stride = 0
        for atom, c in self.terms:
            if atom is axis:
                stride = c
            elif axis in atom.free:
                return None
        return stride

    def __add__(self, other: IndexLike) -> Index:
        return add((self, 1), (as_index(other), 1))

    __radd__ = __add__

    def __sub__(self, other: IndexLike) -> Index:
        return add((self, 1), (as_index(other), -1))

    def __rsub__(self, other: IndexLike) -> Index:
        return add((as_index(other), 1), (self, -1))

    def __neg__(self) -> Index:
        return add((self, -1))

    def __mul__(self, k: int) -> Index:
        return add((self, k))

    __rmul__ = __mul__

    def __floordiv__(self, k: int) -> Index:
        return floordiv(self, k)

    def __mod__(self, k: int) -> Index:
        return floormod(self, k)


IndexLike = Index | int

ZERO = Index((), 0)


def as_index(value: IndexLike) -> Index:
    return value if isinstance(value, Index) else Index((), int(value))


def of_atom(atom: Atom) -> Index:
    """The index that is one atom, or a constant when its range is a single value."""
    lo, hi = atom.range
    return Index((), lo) if lo == hi else Index(((atom, 1),), 0)


def add(*parts: tuple[Index, int]) -> Index:
    """``sum(k * index)``, equal atoms collected, ``k * (a // k) + a % k`` joined to ``a``."""
    total: dict[Atom, int] = {}
    const = 0
    for index, k in parts:
        const += k * index.const
        for atom, c in index.terms:
            total[atom] = total.get(atom, 0) + k * c
    terms = {atom: c for atom, c in total.items() if c}
    for atom, c in terms.items():
        if isinstance(atom, Mod) and terms.get(Div(atom.a, atom.k)) == c * atom.k:
            whole = Div(atom.a, atom.k)
            rest = tuple((t, v) for t, v in terms.items() if t != atom and t != whole)
            return add((Index(rest, const), 1), (atom.a, c))
    return Index(tuple(terms.items()), const)


def _split(a: Index, k: int) -> tuple[Index, Index]:
    """(q, r) with a = k * q + r, r the part that k does not divide."""
    q = tuple((atom, c // k) for atom, c in a.terms if c % k == 0)
    r = tuple((atom, c) for atom, c in a.terms if c % k)
    return Index(q, a.const // k), Index(r, a.const % k)


def floordiv(a: Index, k: int) -> Index:
    """floor(a / k) for a constant k >= 1."""
    if k < 1:
        raise ValueError("an index is divided by a positive constant only")
    if k == 1:
        return a
    q, r = _split(a, k)
    lo, hi = r.range
    if lo // k == hi // k:
        return q + lo // k
    g = math.gcd(k, *(c for _, c in r.terms))
    if g > 1:  # floor((g t + c) / (g k')) = floor((t + floor(c / g)) / k')
        r = Index(tuple((atom, c // g) for atom, c in r.terms), r.const // g)
        return q + floordiv(r, k // g)
    if len(r.terms) == 1 and r.const == 0 and r.terms[0][1] == 1:
        inner = r.terms[0][0]
        if isinstance(inner, Div):
            return q + floordiv(inner.a, inner.k * k)
    return q + of_atom(Div(r, k))


def floormod(a: Index, k: int) -> Index:
    """a - k * floor(a / k) for a constant k >= 1."""
    if k < 1:
        raise ValueError("an index is divided by a positive constant only")
    if k == 1:
        return ZERO
    _, r = _split(a, k)
    lo, hi = r.range
    if lo // k == hi // k:
        return r - k * (lo // k)
    g = math.gcd(k, *(c for _, c in r.terms), r.const)
    if g > 1:
        r = Index(tuple((atom, c // g) for atom, c in r.terms), r.const // g)
        return floormod(r, k // g) * g
    return of_atom(Mod(r, k))


def minimum(a: IndexLike, b: IndexLike) -> Index:
    """min(a, b)."""
    a, b = as_index(a), as_index(b)
    lo, hi = (a - b).range
    if hi <= 0:
        return a
    return b if lo >= 0 else of_atom(Extremum("min", a, b))


def maximum(a: IndexLike, b: IndexLike) -> Index:
    """max(a, b)."""
    a, b = as_index(a), as_index(b)
    lo, hi = (a - b).range
    if hi <= 0:
        return b
    return a if lo >= 0 else of_atom(Extremum("max", a, b))


def ceildiv(a: IndexLike, k: int) -> Index:
    """ceil(a / k) for a constant k >= 1."""
    return floordiv(as_index(a) + (k - 1), k)


def flatten(indices: Iterable[Index], strides: Iterable[int]) -> Index:
    """``sum(index * stride)``."""
    return add(*((i, s) for i, s in zip(indices, strides, strict=True)))


def unflatten(flat: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Indices into a row-major ``shape`` of element ``flat``."""
    out: list[Index] = []
    for position, extent in enumerate(reversed(shape)):
        outermost = position == len(shape) - 1
        out.append(flat if outermost else floormod(flat, extent))
        flat = floordiv(flat, extent)
    return tuple(reversed(out))


def atoms_of(index: Index) -> Iterable[Atom]:
    """The atoms of ``index`` and of the indices inside them; not of expressions inside ``Elem`` and
    ``Choose``.
    """
    for atom, _ in index.terms:
        yield atom
        if isinstance(atom, Div | Mod):
            yield from atoms_of(atom.a)
        elif isinstance(atom, Extremum | Choose):
            yield from atoms_of(atom.a)
            yield from atoms_of(atom.b)


def evaluate(index: Index, values: Callable[[Axis], int]) -> int:
    """The value of an index without ``Elem`` and ``Choose`` atoms, for tests and tables."""
    total = index.const
    for atom, c in index.terms:
        if isinstance(atom, Axis):
            total += c * values(atom)
        elif isinstance(atom, Div):
            total += c * (evaluate(atom.a, values) // atom.k)
        elif isinstance(atom, Mod):
            total += c * (evaluate(atom.a, values) % atom.k)
        elif isinstance(atom, Extremum):
            pick = min if atom.kind == "min" else max
            total += c * pick(evaluate(atom.a, values), evaluate(atom.b, values))
        else:
            raise ValueError("an index that reads memory has no value of its own")
    return total
