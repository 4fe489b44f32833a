"""How nests print as OpenCL C 1.2: one work item for each iteration of the parallel axes.

Scalars only; the device's own compiler vectorises across work items. Up to three axes become
dimensions of the NDRange, the innermost one first; more are taken apart from the last dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgen.ir.types import DType
from aotgen.te.c_printer import CPrinter
from aotgen.te.emit import Block
from aotgen.te.expr import Const
from aotgen.te.index import Axis
from aotgen.te.lower import Lowering

_TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.I8: "char",
    DType.U8: "uchar",
    DType.BOOL: "uchar",
    DType.I16: "short",
    DType.U16: "ushort",
    DType.F16: "ushort",
    DType.I32: "int",
    DType.U32: "uint",
    DType.I64: "long",
    DType.U64: "ulong",
}
_C_NAMES = {
    "float": "float",
    "double": "double",
    "int8_t": "char",
    "uint8_t": "uchar",
    "int16_t": "short",
    "uint16_t": "ushort",
    "int32_t": "int",
    "uint32_t": "uint",
    "int64_t": "long",
    "uint64_t": "ulong",
}
_UNSIGNED = {1: "uint", 2: "uint", 4: "uint", 8: "ulong"}


class ClPrinter(CPrinter):
    """OpenCL C: built-in math, its own names of the integer types."""

    int_type = "int"
    half_prefix = ""

    def ctype(self, dtype: DType) -> str:
        return _TYPES[dtype]

    def ctype_of(self, pointer: str) -> str:
        """The element type of a C pointer type such as ``const float *``."""
        return _C_NAMES[pointer.replace("const", "").replace("*", "").strip()]

    def literal(self, node: Const) -> str:
        if node.type in (DType.I64, DType.U64):
            value = int(node.value)
            if value == -(2**63):
                return "(-9223372036854775807L - 1)"
            text = f"{value}{'L' if node.type is DType.I64 else 'UL'}"
            return f"({text})" if value < 0 else text
        if node.type is DType.I32 and int(node.value) == -(2**31):
            return "(-2147483647 - 1)"
        return super().literal(node)

    def libm(self, name: str, dtype: DType) -> str:
        return name

    def special(self, fn: str, dtype: DType, args: Sequence[str]) -> str:
        fn = fn.removeprefix("fast_")  # the device's own functions are as fast as they come
        one = "1.0f" if dtype is DType.F32 else "1.0"
        if fn == "sigmoid":
            return f"({one} / ({one} + exp(-{args[0]})))"
        return f"{fn}({', '.join(args)})"

    def cast(self, to: DType, of: DType, a: str) -> str:
        if DType.F16 in (to, of):
            return self.half_cast(to, of, a)
        if to is DType.BOOL:
            return f"({a} != 0)"
        if of.is_float and to is DType.U64:
            return f"({a} < 0 ? (ulong)(long){a} : (ulong){a})"
        if of.is_float and not to.is_float and to not in (DType.I32, DType.I64):
            return f"({self.ctype(to)})(long){a}"
        return f"({self.ctype(to)}){a}"

    def _wide(self, dtype: DType) -> str:
        return _UNSIGNED[dtype.size]


class ClLowering(Lowering):
    """Writes a nest as the body of a work item."""

    def emit_items(self) -> tuple[Block, tuple[int, ...]]:
        """The body and the NDRange."""
        single = len(self.nest.stages) == 1
        axes = [*self.nest.outer, *(self.nest.stages[0].axes if single else ())]
        size = self._items(axes)
        if single:
            self._fill((), self.nest.stages[0].expr, self.output_place, None)
        else:
            self._stages()
        self.close_items()
        return self.scopes[0].block, size

    def _items(self, axes: list[Axis]) -> tuple[int, ...]:
        """Declare the parallel axes from the work item's ids."""
        self.open("", axes)
        inner = list(reversed(axes))
        for dimension, axis in enumerate(inner[:2]):
            self.line(f"const int {axis.name} = (int)get_global_id({dimension});")
        rest = inner[2:]
        if len(rest) == 1:
            self.line(f"const int {rest[0].name} = (int)get_global_id(2);")
        elif rest:
            self.line("int item = (int)get_global_id(2);")
            for position, axis in enumerate(rest):
                last = position == len(rest) - 1
                self.line(f"const int {axis.name} = {'item' if last else f'item % {axis.extent}'};")
                if not last:
                    self.line(f"item /= {axis.extent};")
        sizes = [a.extent for a in inner[:2]]
        if rest:
            total = 1
            for axis in rest:
                total *= axis.extent
            sizes.append(total)
        return tuple(sizes) or (1,)

    def close_items(self) -> None:
        """The work item's block is the function's own."""
        scope = self.scopes.pop()
        self.scopes[-1].block += scope.block[1:]
