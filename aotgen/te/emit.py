"""Writing expressions into nested blocks: what gets a name, and in which loop the name is computed.

An ``Emitter`` holds the blocks that are open, outermost first. Asked for the text of an expression,
it first writes whatever the expression needs: a value used twice, a value that an outer loop can
compute already, a text too long for a line. Inside a vector loop it writes the vector words of
simd.h; what does not vary along the lanes stays scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aotgen.errors import InternalError
from aotgen.ir.types import DType
from aotgen.te.c_printer import (
    INTEGER_COMPARE,
    REPEATS,
    SHIFT,
    VECTOR_COMPARE,
    CPrinter,
    atom_text,
    index_text,
)
from aotgen.te.expr import (
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    FromIndex,
    InRange,
    Load,
    Param,
    Reduce,
    Row,
    RowLoad,
    Select,
)
from aotgen.te.index import Axis, Choose, Elem, Index
from aotgen.te.simplify import Rewriter, indices_of, walk
from aotgen.te.vectorize import is_guard

LONG = 64
"""Characters after which an expression is given a name, so that lines stay within 100 columns."""

Block = list["str | Block"]


@dataclass
class Scope:
    """An open block: the axes whose loops it stands in and the names that it has given."""

    bound: frozenset[Axis]
    block: Block
    guard: bool = False
    names: dict[object, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lanes:
    """The vector loop being written.

    Attributes:
        axis: runs along the lanes.
        unroll: vectors an iteration.
        tail: text of the number of lanes that exist, None when all do.
    """

    axis: Axis
    unroll: int = 1
    tail: str | None = None


@dataclass(frozen=True)
class Place:
    """Where a row lives: a pointer, and the flat offset over the row's own axes."""

    pointer: str
    offset: Index


class Emitter:
    """Turns expressions into C text and declarations."""

    def __init__(self, printer: CPrinter, pointers: dict[Buffer, str]) -> None:
        self.printer = printer
        self.pointers = pointers
        self.scopes: list[Scope] = [Scope(frozenset(), [])]
        self.lanes: Lanes | None = None
        self.unit = 0
        self.places: dict[Row, Place] = {}
        self.uses: dict[Expr, int] = {}
        self._guarded = 0
        self._counter: dict[str, int] = {}
        self._loads: dict[Expr, bool] = {}
        self._writes = any(buffer.written for buffer in pointers)
        self._axis_order: dict[Axis, int] = {}

    # ---- blocks

    def line(self, text: str) -> None:
        """A line in the innermost block."""
        self.scopes[-1].block.append(text)

    def open(self, header: str, axes: Iterable[Axis] = (), guard: bool = False) -> None:
        """Start a block; its ``header`` line is written now, so that later names of outer blocks
        precede it not.
        """
        for axis in axes:
            self._axis_order.setdefault(axis, len(self._axis_order))
        bound = self.scopes[-1].bound | frozenset(axes)
        self.scopes.append(Scope(bound, [header], guard))

    def close(self) -> None:
        """End the innermost block."""
        scope = self.scopes.pop()
        header, body = scope.block[0], scope.block[1:]
        assert isinstance(header, str)
        self.scopes[-1].block += [f"{header} {{" if header else "{", body, "}"]

    def fresh(self, base: str) -> str:
        k = self._counter.get(base, 0)
        self._counter[base] = k + 1
        return base if k == 0 and "_" in base else f"{base}{k}"

    def count_uses(self, *exprs: Expr) -> None:
        """Count how often each node is an argument in what is written next, to decide what gets a
        name.
        """
        self.uses = {}
        for expr in exprs:
            for node in walk(expr, rows=False):
                for child in node.children:
                    self.uses[child] = self.uses.get(child, 0) + 1

    def has_load(self, expr: Expr) -> bool:
        found = self._loads.get(expr)
        if found is None:
            if isinstance(expr, Load | RowLoad) or indices_of(expr):
                found = any(isinstance(n, Load | RowLoad) for n in walk(expr))
            else:
                found = any(self.has_load(child) for child in expr.children)
            self._loads[expr] = found
        return found

    def home(self, free: frozenset[Axis], loads: bool) -> int:
        """The outermost open block that can compute something with these axes; loads stay inside a
        guard.
        """
        first = 0
        if loads:
            first = max((k for k, s in enumerate(self.scopes) if s.guard), default=0)
        for k in range(first, len(self.scopes)):
            if free <= self.scopes[k].bound:
                return k
        missing = ", ".join(sorted(a.name for a in free - self.scopes[-1].bound))
        raise InternalError(f"te: axis {missing} is used outside its loop")

    def home_of(self, expr: Expr) -> int:
        """The outermost open block that can compute ``expr``: the innermost one, when it reads what
        the same loops write.
        """
        if self._writes and any(isinstance(n, Load) and n.buffer.written for n in walk(expr)):
            return len(self.scopes) - 1
        return self.home(expr.free, self.has_load(expr))

    def known(self, key: object) -> str | None:
        for scope in reversed(self.scopes):
            if key in scope.names:
                return scope.names[key]
        return None

    def declare(self, scope: int, key: object, ctype: str, base: str, text: str) -> str:
        """``const ctype name = text`` in an open block."""
        name = self.fresh(base)
        self.scopes[scope].block.append(f"const {ctype} {name} = {bare(text)};")
        self.scopes[scope].names[key] = name
        return name

    # ---- indices

    def index(self, index: Index) -> str:
        """C text of an index in the lanes' current vector."""
        if self.lanes is not None and self.unit:
            stride = index.coefficient(self.lanes.axis) or 0
            index = index + stride * self.unit * self.vl
        return index_text(index, self._atom, self._order)

    vl = 1

    def _order(self, atom: object) -> int:
        return self._axis_order.get(atom, 99) if isinstance(atom, Axis) else 50

    def _atom(self, atom: object) -> str:
        if isinstance(atom, Axis):
            return atom.name
        found = self.known(atom)
        if found is not None:
            return found
        loads = isinstance(atom, Elem | Choose)
        text = self.atom_expression(atom)
        if loads and self._guarded:
            return f"({text})"
        free: frozenset[Axis] = atom.free  # type: ignore[attr-defined]
        return self.declare(self.home(free, loads), atom, self.printer.int_type, "at", text)

    def atom_expression(self, atom: object) -> str:
        """C text that computes an atom."""
        if isinstance(atom, Elem):
            return self.printer.wide_index(self.scalar(atom.expr))
        if isinstance(atom, Choose):
            cond = self.scalar(atom.cond)
            return self.printer.select(cond, self.index_part(atom.a), self.index_part(atom.b))
        return atom_text(atom, self.index)

    def index_part(self, index: Index) -> str:
        text = self.index(index)
        return text if text.isalnum() else f"({text})"

    # ---- scalars

    def scalar(self, expr: Expr) -> str:
        """C text of a value that is the same in all lanes."""
        if isinstance(expr, Const):
            return self.printer.literal(expr)
        if isinstance(expr, Param):
            return expr.name
        found = self.known(expr)
        if found is not None:
            return found
        if isinstance(expr, Reduce):
            return self.inline_reduce(expr)
        text = self._scalar_text(expr)
        loads = self.has_load(expr)
        if loads and self._guarded:
            return text
        home = self.home_of(expr)
        trivial = isinstance(expr, FromIndex | InRange)
        outer = home < len(self.scopes) - 1 and not trivial
        shared = self.uses.get(expr, 0) > 1 and not trivial
        if outer or shared or len(text) > LONG:
            ctype = self.printer.ctype(expr.dtype)
            return self.declare(home, expr, ctype, "t", narrow(self.printer, expr, text))
        return text

    def named(self, expr: Expr) -> str:
        """The value as something that can be written twice."""
        text = self.scalar(expr)
        if text.replace("_", "").isalnum() or isinstance(expr, Const) or self._guarded:
            return text
        home = self.home_of(expr)
        return self.declare(
            home, expr, self.printer.ctype(expr.dtype), "t", narrow(self.printer, expr, text)
        )

    def _scalar_text(self, expr: Expr) -> str:
        p = self.printer
        if isinstance(expr, Load):
            return p.load(self.pointers[expr.buffer], self.index(expr.indices[0]))
        if isinstance(expr, RowLoad):
            place = self.places[expr.row]
            return p.load(place.pointer, self.index(self._row_offset(expr)))
        if isinstance(expr, Call):
            saturated = self._saturated(expr)
            if saturated is not None:
                return saturated
            give = self.named if expr.fn in REPEATS else self.scalar
            return p.call(expr.fn, expr.type, expr.args[0].dtype, [give(a) for a in expr.args])
        if isinstance(expr, Cast):
            twice = expr.type is DType.U64 and expr.a.dtype.is_float
            a = self.named(expr.a) if twice else self.scalar(expr.a)
            return p.cast(expr.type, expr.a.dtype, a)
        if isinstance(expr, FromIndex):
            ctype = p.ctype(expr.type)
            text = self.index(expr.index)
            simple = text.isalnum()
            if ctype != p.int_type:
                return f"({ctype}){text}" if simple else f"({ctype})({text})"
            return text if simple else f"({text})"
        if isinstance(expr, InRange):
            return self.in_range(expr.index)
        if isinstance(expr, Select):
            cond = self.scalar(expr.cond)
            guarded = int(is_guard(expr.cond))
            self._guarded += guarded
            a, b = self.scalar(expr.a), self.scalar(expr.b)
            self._guarded -= guarded
            return p.select(cond, a, b)
        raise InternalError(f"te: cannot print {type(expr).__name__}")

    def _saturated(self, expr: Call) -> str | None:
        """min(max(a, lo), hi) where the printer has a word for it."""
        if expr.fn != "min" or expr.type is not DType.I32 or not self.printer.saturates:
            return None
        inner, high = expr.args
        if not (isinstance(inner, Call) and inner.fn == "max" and isinstance(high, Const)):
            return None
        a, low = inner.args
        if not isinstance(low, Const):
            return None
        word = self.printer.saturate(int(low.value), int(high.value), "")
        return word and self.printer.saturate(int(low.value), int(high.value), self.scalar(a))

    def in_range(self, index: Index) -> str:
        """index >= 0, written as a comparison of an axis with a bound where it is one."""
        if len(index.terms) == 1 and abs(index.terms[0][1]) == 1:
            atom, c = index.terms[0]
            sign, bound = (">=", -index.const) if c > 0 else ("<=", index.const)
            return f"({self.index(Index(((atom, 1),), 0))} {sign} {bound})"
        return f"({self.index(index)} >= 0)"

    def _row_offset(self, expr: RowLoad) -> Index:
        place = self.places[expr.row]
        table = dict(zip(expr.row.axes, expr.indices, strict=True))
        return Rewriter(table).index(place.offset)

    def inline_reduce(self, expr: Reduce) -> str:
        raise InternalError("te: a reduction stands where no loop can be written")

    # ---- vectors

    def vector(self, expr: Expr) -> str:
        """C text of a float value as a vector."""
        lanes = self.lanes
        assert lanes is not None
        if isinstance(expr, Param) and lanes.axis in expr.free:
            return expr.name if lanes.unroll == 1 else f"{expr.name}{self.unit}"
        return self._lane_text(expr, "vf", self._vector_text)

    def integers(self, expr: Expr) -> str:
        """C text of an integer as a vector of 32-bit lanes, see ``vectorize.vectorisable``."""
        assert self.lanes is not None
        widens = isinstance(expr, Cast) and expr.a.dtype is not DType.F32
        if isinstance(expr, Cast) and widens and self.lanes.axis in expr.free:
            return self.integers(expr.a)
        return self._lane_text(expr, "vi", self._integers_text)

    def _lane_text(self, expr: Expr, ctype: str, write: Callable[[Expr], str]) -> str:
        """The text of a vector of type ``ctype``, named where it is used again or too long."""
        assert self.lanes is not None
        if self.lanes.axis not in expr.free:
            return self._splat(expr)
        key = (expr, self.unit)
        found = self.known(key)
        if found is not None:
            return found
        if isinstance(expr, Reduce):
            return self.inline_reduce(expr)
        text = write(expr)
        home = self.home_of(expr)
        outer = home < len(self.scopes) - 1
        if outer or self.uses.get(expr, 0) > 1 or len(text) > LONG:
            return self.declare(home, key, ctype, "v", text)
        return text

    def _splat(self, expr: Expr) -> str:
        is_float = expr.dtype is DType.F32
        if isinstance(expr, Const):
            literal = self.printer.literal(expr)
            return self.printer.vector_literal(expr) if is_float else f"viset1({bare(literal)})"
        key = ("splat", expr)
        found = self.known(key)
        if found is not None:
            return found
        text = f"{'vset1' if is_float else 'viset1'}({bare(self.scalar(expr))})"
        home = self.home_of(expr)
        assert self.lanes is not None
        if home < len(self.scopes) - 1 or self.lanes.unroll > 1:
            return self.declare(home, key, "vf" if is_float else "vi", "v", text)
        return text

    def _vector_text(self, expr: Expr) -> str:
        p = self.printer
        if isinstance(expr, Load):
            return self._vector_load(self.pointers[expr.buffer], expr.indices[0])
        if isinstance(expr, RowLoad):
            return self._vector_load(self.places[expr.row].pointer, self._row_offset(expr))
        if isinstance(expr, Call):
            return p.vector_call(expr.fn, [self.vector(a) for a in expr.args])
        if isinstance(expr, Cast) and expr.a.dtype is DType.I32:
            return f"vcvt_i2f({self.integers(expr.a)})"
        if isinstance(expr, Cast):
            return f"vsel({self.mask(expr.a)}, vset1(1.0f), vzero())"
        assert isinstance(expr, Select) and self.lanes is not None
        if self.lanes.axis in expr.cond.free:
            return f"vsel({self.mask(expr.cond)}, {self.vector(expr.a)}, {self.vector(expr.b)})"
        return self._branch(expr)

    def _integers_text(self, expr: Expr) -> str:
        p = self.printer
        if isinstance(expr, Call) and expr.fn in SHIFT:
            by = expr.args[1]
            assert isinstance(by, Const)
            return f"{SHIFT[expr.fn]}({self.integers(expr.args[0])}, {int(by.value)})"
        if isinstance(expr, Call):
            return p.integer_call(expr.fn, [self.integers(a) for a in expr.args])
        if isinstance(expr, Load):
            return self._integer_load(expr.dtype, self.pointers[expr.buffer], expr.indices[0])
        if isinstance(expr, RowLoad):
            pointer = self.places[expr.row].pointer
            return self._integer_load(expr.dtype, pointer, self._row_offset(expr))
        if isinstance(expr, Cast):
            return f"vcvt_f2i({self.vector(expr.a)})"
        assert isinstance(expr, Select) and self.lanes is not None
        if self.lanes.axis in expr.cond.free:
            a, b = self.integers(expr.a), self.integers(expr.b)
            return f"visel({self.mask(expr.cond)}, {a}, {b})"
        return self._branch(expr)

    def _integer_load(self, dtype: DType, pointer: str, offset: Index) -> str:
        assert self.lanes is not None
        self.printer.math.add("int8")
        suffix = "" if dtype is DType.I32 else f"_{'su'[dtype.value[0] == 'u']}{8 * dtype.size}"
        where = f"&{pointer}[{self.index(offset)}]"
        tail = self.lanes.tail
        return f"viload{suffix}({where})" if tail is None else f"viload{suffix}_n({where}, {tail})"

    def _branch(self, expr: Select) -> str:
        """A choice that is the same in all lanes: an if statement."""
        is_float = expr.dtype is DType.F32
        cond, name = self.scalar(expr.cond), self.fresh("v")
        self.line(f"{'vf' if is_float else 'vi'} {name};")
        for header, side in ((f"if ({bare(cond)})", expr.a), ("else", expr.b)):
            self.open(header, guard=True)
            text = self.vector(side) if is_float else self.integers(side)
            self.line(f"{name} = {text};")
            self.close()
        self.scopes[-1].names[(expr, self.unit)] = name
        return name

    def _vector_load(self, pointer: str, offset: Index) -> str:
        assert self.lanes is not None
        stride = offset.coefficient(self.lanes.axis)
        where = f"&{pointer}[{self.index(offset)}]"
        if stride != 1:
            return f"vload_stride({where}, {stride})"
        return (
            f"vload({where})" if self.lanes.tail is None else f"vload_n({where}, {self.lanes.tail})"
        )

    def mask(self, expr: Expr) -> str:
        """A truth value that varies along the lanes."""
        assert isinstance(expr, Call)
        if expr.fn in INTEGER_COMPARE and expr.args[0].dtype is not DType.F32:
            return self.printer.integer_mask(expr.fn, [self.integers(a) for a in expr.args])
        give = self.vector if expr.fn in VECTOR_COMPARE or expr.fn == "isnan" else self.mask
        return self.printer.mask_call(expr.fn, [give(a) for a in expr.args])


def bare(text: str) -> str:
    """``text`` without a pair of parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def narrow(printer: CPrinter, expr: Expr, text: str) -> str:
    """C computes small integers as int: cast them back explicitly."""
    small = expr.dtype.size < 4 and not isinstance(expr, Load | RowLoad | Cast | FromIndex)
    return f"({printer.ctype(expr.dtype)})({bare(text)})" if small else text


def render_block(block: Block, depth: int = 0) -> str:
    """The text of nested blocks, four spaces a level; codegen breaks the long lines."""
    out: list[str] = []
    for item in block:
        if isinstance(item, str):
            out.append(" " * (4 * depth) + item)
        else:
            out.append(render_block(item, depth + 1))
    return "\n".join(line for line in out if line)
