"""Expression nodes of te: immutable, compared by structure, each knowing its element type and its
free axes.

Data (what is computed) and indices (where it is read) are separate languages: the nodes here are
data; their indices are ``aotgen.te.index.Index``. A node may be shared: printing gives a shared
node a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType
from aotgen.te.index import NO_AXES, Axis, Index

Combiner = Literal["sum", "prod", "max", "min", "max_nan", "min_nan", "or", "and"]
"""How a reduction joins two values. ``max`` and ``min`` may lose a NaN, ``max_nan`` and ``min_nan``
keep it.
"""


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a nest reads: a value from outside. ``const`` is its array when it is known;
    ``written``: the nest writes where it reads, so that no load may leave its loop.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    value: Value | None = None
    const: Array | None = None
    written: bool = False


@dataclass(frozen=True, eq=False)
class Expr:
    """Base of the nodes. Equality and hash are structural, and the hash is computed once."""

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return (type(self).__name__, *(getattr(self, f.name) for f in fields(self)))

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and self._hash == other._hash and self._key == other._key

    @cached_property
    def free(self) -> frozenset[Axis]:
        """The axes that this expression depends on and does not bind itself."""
        out: frozenset[Axis] = NO_AXES
        for child in self.children:
            out |= child.free
        return out

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __neg__(self) -> Expr:
        return call("neg", self)


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A literal. Floats are kept as the nearest value of their type."""

    value: int | float | bool
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        # repr tells -0.0 from 0.0 and lets NaN equal itself
        return ("Const", repr(self.value), self.type)


@dataclass(frozen=True, eq=False)
class Param(Expr):
    """A named value that exists already: an argument of an epilogue, or the result of an earlier
    stage.

    ``varies`` are the axes along which it differs.
    """

    name: str
    type: DType
    varies: frozenset[Axis] = NO_AXES

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def free(self) -> frozenset[Axis]:
        return self.varies


@dataclass(frozen=True, eq=False)
class FromIndex(Expr):
    """An index as data."""

    index: Index
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def free(self) -> frozenset[Axis]:
        return self.index.free


@dataclass(frozen=True, eq=False)
class InRange(Expr):
    """index >= 0, as a bool."""

    index: Index

    @property
    def dtype(self) -> DType:
        return DType.BOOL

    @property
    def free(self) -> frozenset[Axis]:
        return self.index.free


@dataclass(frozen=True, eq=False)
class Call(Expr):
    """A function of one or more values; ``aotgen.te.c_printer`` says what each name prints as."""

    fn: str
    args: tuple[Expr, ...]
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, eq=False)
class Select(Expr):
    """cond ? a : b. Only the chosen side is evaluated where it reads memory."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        return self.a.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.a, self.b)


@dataclass(frozen=True, eq=False)
class Cast(Expr):
    """a converted to another element type, as C and numpy convert; to bool is ``a != 0``."""

    type: DType
    a: Expr

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a,)


@dataclass(frozen=True, eq=False)
class Load(Expr):
    """One element of a buffer. ``indices`` has one index per axis, or a single flat one after
    ``stage.flatten``.
    """

    buffer: Buffer
    indices: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @cached_property
    def free(self) -> frozenset[Axis]:
        return frozenset().union(*(i.free for i in self.indices)) if self.indices else NO_AXES


@dataclass(frozen=True, eq=False)
class Reduce(Expr):
    """The combination of ``body`` over ``axes``, each running over bounds [lo, hi) that may depend
    on outer axes.
    """

    combiner: Combiner
    axes: tuple[Axis, ...]
    bounds: tuple[tuple[Index, Index], ...]
    body: Expr

    @property
    def dtype(self) -> DType:
        return self.body.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.body,)

    @cached_property
    def free(self) -> frozenset[Axis]:
        out = self.body.free
        for lo, hi in self.bounds:
            out |= lo.free | hi.free
        return out - frozenset(self.axes)


@dataclass(frozen=True, eq=False)
class Row:
    """Values kept in memory between stages: ``body`` over ``axes``, computed once for each outer
    iteration.
    """

    axes: tuple[Axis, ...]
    body: Expr

    def __hash__(self) -> int:
        return hash(self.axes)

    def __eq__(self, other: object) -> bool:
        # A row's axes are its own: they tell it from other rows, however its body is written.
        return isinstance(other, Row) and self.axes == other.axes

    @property
    def free(self) -> frozenset[Axis]:
        return self.body.free - frozenset(self.axes)


@dataclass(frozen=True, eq=False)
class RowLoad(Expr):
    """One element of a row."""

    row: Row
    indices: tuple[Index, ...]

    @property
    def dtype(self) -> DType:
        return self.row.body.dtype

    @cached_property
    def free(self) -> frozenset[Axis]:
        out = self.row.free
        for index in self.indices:
            out |= index.free
        return out


ExprLike = Expr | int | float | bool

_BOOL_RESULT = frozenset(
    ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan", "isinf"]
)


def const(value: int | float | bool, dtype: DType) -> Const:
    """A literal of type ``dtype``, rounded to it."""
    if dtype is DType.BOOL:
        return Const(bool(value), dtype)
    if dtype.is_float:
        return Const(float(dtype.numpy.type(value)), dtype)
    return Const(int(value), dtype)


def as_expr(value: ExprLike, dtype: DType) -> Expr:
    return value if isinstance(value, Expr) else const(value, dtype)


_IDEMPOTENT = frozenset(["max", "min", "max_nan", "min_nan", "and", "or"])
_OF_EQUALS = {
    "equal": True,
    "less_equal": True,
    "greater_equal": True,
    "not_equal": False,
    "less": False,
    "greater": False,
    "xor": False,
}
"""Results for twice the same argument, unless that may be NaN."""


def call(fn: str, *args: Expr) -> Expr:
    """``fn`` of values of one type; comparisons give bool, everything else that type.

    Of twice the same argument it is decided now: compilers warn of a value compared to itself.
    """
    dtype = DType.BOOL if fn in _BOOL_RESULT else args[0].dtype
    if len(args) == 2 and args[0] == args[1]:
        if fn in _IDEMPOTENT:
            return args[0]
        if fn in _OF_EQUALS and dtype is DType.BOOL and not args[0].dtype.is_float:
            return Const(_OF_EQUALS[fn], DType.BOOL)
    return Call(fn, args, dtype)


def binary(fn: str, a: ExprLike, b: ExprLike) -> Expr:
    """A function of two values; a Python number takes the type of the other one."""
    if isinstance(a, Expr):
        return call(fn, a, as_expr(b, a.dtype))
    if isinstance(b, Expr):
        return call(fn, as_expr(a, b.dtype), b)
    raise TypeError("one operand must be an expression")


def cast(dtype: DType, a: Expr) -> Expr:
    """``a`` as ``dtype``; no node when it already is, a literal when it is a constant."""
    if a.dtype is dtype:
        return a
    if isinstance(a, Const):
        value = np.asarray(a.value, a.dtype.numpy).astype(dtype.numpy).item()
        return const(value, dtype)
    return Cast(dtype, a)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """cond ? a : b, decided now when the condition is constant."""
    if not isinstance(a, Expr):
        if not isinstance(b, Expr):
            raise TypeError("one side must be an expression")
        a = const(a, b.dtype)
    b = as_expr(b, a.dtype)
    if isinstance(cond, Const):
        return a if cond.value else b
    return a if a == b else Select(cond, a, b)


def in_range(index: Index) -> Expr:
    """index >= 0, decided now when the range of the index decides it."""
    lo, hi = index.range
    if lo >= 0:
        return Const(True, DType.BOOL)
    return Const(False, DType.BOOL) if hi < 0 else InRange(index)


def both(a: Expr, b: Expr) -> Expr:
    """a and b."""
    if isinstance(a, Const):
        return b if a.value else a
    if isinstance(b, Const):
        return a if b.value else b
    return call("and", a, b)
