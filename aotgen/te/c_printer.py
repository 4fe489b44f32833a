"""How nodes of te print as C99: scalars of every element type, and float vectors in the words of
simd.h.

Only the text of one operation is decided here; which operations, in which loop and under which
name, is ``aotgen.te.lower``. Arguments arrive as finished C text that may stand next to any
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aotgen.codegen import literals
from aotgen.errors import InternalError
from aotgen.ir.types import DType
from aotgen.te.expr import Const
from aotgen.te.index import Axis, Div, Extremum, Index, Mod

MATH = frozenset(
    ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "pow"]
    + ["asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"]
    + ["fast_exp", "fast_tanh", "fast_sigmoid", "fast_erf"]
)
"""Functions of simd/math: ``s_exp`` of one float, ``vexp`` of a vector."""

FIXED_POINT = frozenset(["srdhm", "rounding_shift", "requantize_tflm", "requantize_litert"])
"""Functions of int32 values in simd/requantize: ``s_srdhm`` of scalars, ``visrdhm`` of vectors."""

SATURATE = {
    (-(1 << 7), (1 << 7) - 1): "s_saturate_s8",
    (-(1 << 15), (1 << 15) - 1): "s_saturate_s16",
    (0, (1 << 8) - 1): "s_saturate_u8",
    (0, (1 << 16) - 1): "s_saturate_u16",
}
"""Clamps of int32 values that the DSP extension has."""

FIXED_MATH = frozenset(
    ["spare_bits", "one_over", "log_at_least_one", "inverse_root", "inverse_root_shift"]
)
"""Functions of one int32 in simd/fixed_math: ``s_one_over``; there are none of vectors."""

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "rem": "%",
    "bit_and": "&",
    "bit_or": "|",
    "bit_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
COMPARE = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
LOGIC = {"and": "&&", "or": "||", "xor": "!="}
LIBM = {
    "sqrt": "sqrt",
    "abs": "fabs",
    "floor": "floor",
    "ceil": "ceil",
    "round": "rint",
    "trunc": "trunc",
    "fmod": "fmod",
    "exp2": "exp2",
    "log2": "log2",
}

VECTOR = {
    "add": "vadd",
    "sub": "vsub",
    "mul": "vmul",
    "div": "vdiv",
    "max": "vmax",
    "min": "vmin",
    "max_nan": "vmax_nan",
    "min_nan": "vmin_nan",
    "neg": "vneg",
    "abs": "vabs",
    "sqrt": "vsqrt",
    "floor": "vfloor",
    "ceil": "vceil",
    "round": "vround",
    "trunc": "vtrunc",
    "fma": "vfma",
    "relu": "relu",
    **{name: f"v{name}" for name in sorted(MATH)},
}
VECTOR_COMPARE = {
    "equal": "veq",
    "not_equal": "vne",
    "less": "vlt",
    "less_equal": "vle",
    "greater": "vgt",
    "greater_equal": "vge",
}
INTEGER = {
    "add": "viadd",
    "sub": "visub",
    "mul": "vimul",
    "max": "vimax",
    "min": "vimin",
    "neg": "visub",
    "bit_and": "viand",
    "bit_or": "vior",
    "bit_xor": "vixor",
    **{name: f"vi{name}" for name in sorted(FIXED_POINT)},
}
"""Functions of int32 values in vectors, and the words of simd.h."""
SHIFT = {"shift_left": "vishl", "shift_right": "vishr"}
"""Likewise, by an amount that is a literal."""
INTEGER_COMPARE = {
    "equal": ("vieq", False),
    "not_equal": ("vieq", True),
    "less": ("vilt", False),
    "less_equal": ("vigt", True),
    "greater": ("vigt", False),
    "greater_equal": ("vilt", True),
}
"""Comparisons of int32 vectors: the word, and whether its result is negated."""

REPEATS = frozenset(["max", "min", "max_nan", "min_nan", "relu", "isnan", "isinf", "sign", "abs"])
"""Scalar functions whose text mentions an argument more than once: the arguments must be names."""

_UNSIGNED = {1: "uint32_t", 2: "uint32_t", 4: "uint32_t", 8: "uint64_t"}


class CPrinter:
    """Scalar and vector C. ``math`` collects the functions of simd/math that the text uses."""

    int_type = "int32_t"
    read_only = "const "
    half_prefix = "s_"

    def __init__(self, saturates: bool = False) -> None:
        """``saturates``: whether simd/requantize has clamps to the range of a type in one
        instruction.
        """
        self.math: set[str] = set()
        self.saturates = saturates

    def saturate(self, lo: int, hi: int, a: str) -> str | None:
        """An int32 clamped, where there is an instruction for it."""
        word = SATURATE.get((lo, hi)) if self.saturates else None
        if word is None:
            return None
        self.math.add("requantize")
        return f"{word}({a})"

    def ctype(self, dtype: DType) -> str:
        return dtype.c

    def literal(self, node: Const) -> str:
        value, dtype = node.value, node.type
        if dtype is DType.BOOL:
            return "1" if value else "0"
        if dtype is DType.F32:
            return _signed(literals.f32(float(value)))
        if dtype is DType.F64:
            return _signed(literals.f64(float(value)))
        if dtype is DType.I64:
            return _signed(literals.i64(int(value)))
        if dtype is DType.U64:
            return f"UINT64_C({int(value)})"
        if dtype is DType.U32:
            return f"{int(value)}u"
        if dtype is DType.F16:
            return f"0x{int(np.float16(value).view(np.uint16)):04x}"
        return _signed(literals.i32(int(value)))

    def vector_literal(self, node: Const) -> str:
        text = literals.f32(float(node.value))
        return "vzero()" if text == "0.0f" else f"vset1({text})"

    def call(self, fn: str, dtype: DType, of: DType, args: Sequence[str]) -> str:
        """``fn`` with result type ``dtype`` of arguments of type ``of``."""
        a = args[0]
        b = args[1] if len(args) > 1 else ""
        if fn in COMPARE:
            return f"({a} {COMPARE[fn]} {b})"
        if fn in LOGIC:
            return f"({a} {LOGIC[fn]} {b})"
        if fn == "not":
            return f"(!{a})"
        if fn == "relu":
            zero = self.literal(Const(0, dtype))
            return f"({a} < {zero} ? {zero} : {a})"
        if fn in ("max", "min"):
            return f"({a} {'>' if fn == 'max' else '<'} {b} ? {a} : {b})"
        if fn in ("max_nan", "min_nan"):
            sign = ">" if fn == "max_nan" else "<"
            keep = f" || {a} != {a}" if of.is_float else ""
            return f"({a} {sign} {b}{keep} ? {a} : {b})"
        if fn == "isnan":
            return f"({a} != {a})" if of.is_float else "0"
        return self._float(fn, dtype, args) if dtype.is_float else self._int(fn, dtype, args)

    def _float(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        a = args[0]
        if fn in ("add", "sub", "mul", "div"):
            return f"({a} {INFIX[fn]} {args[1]})"
        if fn == "neg":
            return f"(-{a})"
        if fn == "fma":
            return f"({a} * {args[1]} + {args[2]})"
        if fn in LIBM:
            return f"{self.libm(LIBM[fn], dtype)}({', '.join(args)})"
        if fn in MATH:
            return self.special(fn, dtype, args)
        raise InternalError(f"te function {fn!r} has no text for {dtype.value}")

    def libm(self, name: str, dtype: DType) -> str:
        return f"{name}f" if dtype is DType.F32 else name

    def special(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        """A function of simd/math, or of the C library for double."""
        if dtype is DType.F32:
            self.math.add(fn)
            return f"s_{fn}({', '.join(args)})"
        if fn == "sigmoid":
            return f"(1.0 / (1.0 + exp(-{args[0]})))"
        return f"{fn}({', '.join(args)})"

    def _int(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        """Integer arithmetic wraps around, as numpy's does."""
        c, wide, a = self.ctype(dtype), self._wide(dtype), args[0]
        if fn in ("add", "sub", "mul", "shift_left"):
            if fn == "shift_left":
                return f"({c})(({wide}){a} << {args[1]})"
            return f"({c})(({wide}){a} {INFIX[fn]} ({wide}){args[1]})"
        if fn == "neg":
            return f"({c})(0 - ({wide}){a})"
        if fn == "abs":
            return a if c.startswith("u") else f"({c})({a} < 0 ? 0 - ({wide}){a} : ({wide}){a})"
        if fn in INFIX:
            return f"({c})({a} {INFIX[fn]} {args[1]})"
        if fn == "bit_not":
            return f"({c})(~{a})"
        if fn in FIXED_POINT and dtype is DType.I32:
            self.math.add("requantize")
            return f"s_{fn}({', '.join(args)})"
        if fn in FIXED_MATH and dtype is DType.I32:
            self.math |= {"requantize", "fixed_math"}
            return f"s_{fn}({a})"
        if fn == "pow":
            return f"({c})pow((double){a}, (double){args[1]})"
        raise InternalError(f"te function {fn!r} has no text for {dtype.value}")

    def _wide(self, dtype: DType) -> str:
        return _UNSIGNED[dtype.size]

    def cast(self, to: DType, of: DType, a: str) -> str:
        """``a`` as another type; a negative float becomes an unsigned integer by way of int64, as
        numpy does it.
        """
        if DType.F16 in (to, of):
            return self.half_cast(to, of, a)
        if to is DType.BOOL:
            return f"({a} != 0)"
        if of is DType.BOOL or not of.is_float or to.is_float or to in (DType.I32, DType.I64):
            return f"({self.ctype(to)}){a}"
        c = self.ctype(to)
        if to is DType.U64:
            return f"({a} < 0 ? ({c})(int64_t){a} : ({c}){a})"
        return f"({c})(int64_t){a}"

    def half_cast(self, to: DType, of: DType, a: str) -> str:
        """A cast from or to fp16, by way of float: integers that float rounds are beyond fp16's
        range, and a double has its own function.
        """
        if to is of:
            return a
        if of is DType.F16:
            self.math.add("f16_to_f32")
            wide = f"{self.half_prefix}f16_to_f32({a})"
            return wide if to is DType.F32 else self.cast(to, DType.F32, wide)
        name = "f64_to_f16" if of is DType.F64 else "f32_to_f16"
        self.math.add(name)
        value = a if of in (DType.F32, DType.F64) else self.cast(DType.F32, of, a)
        return f"{self.half_prefix}{name}({value})"

    def select(self, cond: str, a: str, b: str) -> str:
        return f"({cond} ? {a} : {b})"

    def vector_call(self, fn: str, args: Sequence[str]) -> str:
        """A float function of vectors."""
        if fn in MATH:
            self.math.add(fn)
        if fn == "relu":
            return f"vmax(vzero(), {args[0]})"
        return f"{VECTOR[fn]}({', '.join(args)})"

    def integer_call(self, fn: str, args: Sequence[str]) -> str:
        """A function of int32 vectors."""
        if fn in FIXED_POINT:
            self.math.add("requantize")
        if fn == "neg":
            return f"visub(viset1(0), {args[0]})"
        return f"{INTEGER[fn]}({', '.join(args)})"

    def integer_mask(self, fn: str, args: Sequence[str]) -> str:
        """A comparison of int32 vectors."""
        word, negated = INTEGER_COMPARE[fn]
        text = f"{word}({args[0]}, {args[1]})"
        return f"vm_not({text})" if negated else text

    def mask_call(self, fn: str, args: Sequence[str]) -> str:
        """A truth value of vectors."""
        if fn == "isnan":
            return f"vne({args[0]}, {args[0]})"
        if fn in VECTOR_COMPARE:
            return f"{VECTOR_COMPARE[fn]}({args[0]}, {args[1]})"
        if fn == "not":
            return f"vm_not({args[0]})"
        return f"vm_{fn}({args[0]}, {args[1]})"

    def load(self, pointer: str, offset: str) -> str:
        return f"{pointer}[{offset}]"

    def wide_index(self, text: str) -> str:
        """An index expression that was computed from data."""
        return f"({self.int_type}){text}"


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def index_text(index: Index, name: Callable[[object], str], order: Callable[[object], int]) -> str:
    """The C text of an index: terms by loop order, constant last. ``name`` gives the text of an
    atom.
    """
    terms = sorted(
        enumerate(index.terms), key=lambda t: (t[1][1] < 0, -abs(t[1][1]), order(t[1][0]), t[0])
    )
    parts: list[str] = []
    first_negative = bool(terms) and terms[0][1][1] < 0
    if first_negative and index.const > 0:
        parts.append(str(index.const))
    for _, (atom, c) in terms:
        text = name(atom)
        product = text if abs(c) == 1 else f"{text} * {abs(c)}"
        sign = "-" if c < 0 else "+"
        if parts:
            parts.append(f" {sign} {product}")
        else:
            parts.append(product if c > 0 else f"-{product}")
    if first_negative and index.const > 0:
        return "".join(parts)
    if index.const or not parts:
        if parts:
            parts.append(f" {'-' if index.const < 0 else '+'} {abs(index.const)}")
        else:
            parts.append(str(index.const))
    return "".join(parts)


def atom_text(atom: object, text: Callable[[Index], str]) -> str:
    """The C text of a non-linear atom; C's division truncates, so operands that may be negative are
    shifted first.
    """
    if isinstance(atom, Axis):
        return atom.name
    if isinstance(atom, Div | Mod):
        lo = atom.a.range[0]
        up = -(lo // atom.k) if lo < 0 else 0
        inner = text(atom.a + up * atom.k)
        if isinstance(atom, Mod):
            return f"({inner}) % {atom.k}"
        return f"(({inner}) / {atom.k} - {up})" if up else f"({inner}) / {atom.k}"
    if isinstance(atom, Extremum):
        a, b = text(atom.a), text(atom.b)
        return f"({a} {'<' if atom.kind == 'min' else '>'} {b} ? {a} : {b})"
    raise InternalError("this atom is printed by the lowering")
