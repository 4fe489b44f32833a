"""The graph's inputs and outputs as the public header and the tools name them."""

from __future__ import annotations

from dataclasses import dataclass

from aotgen.codegen.c_text import c_escape, comment_safe
from aotgen.codegen.literals import f32
from aotgen.codegen.names import Namer
from aotgen.codegen.program import Program
from aotgen.errors import InternalError
from aotgen.ir.graph import StreamInfo, Value
from aotgen.ir.types import DType, Quant
from aotgen.ops.quantized import QUANTIZED
from aotgen.streaming.text import stream_text
from aotgen.te.compute import int_range


@dataclass(frozen=True)
class Tensor:
    """A graph input or output as the public header names it."""

    role: str
    number: int
    label: str
    value: Value
    c_name: str
    slot: int
    block_offset: int

    @property
    def ctype(self) -> str:
        return self.value.dtype.c

    @property
    def macro(self) -> str:
        return f"{self.role.upper()}_{self.c_name.upper()}"

    @property
    def variable(self) -> str:
        return f"{'in' if self.role == 'input' else 'out'}_{self.c_name}"

    @property
    def elements(self) -> int:
        return self.value.type.numel

    @property
    def bytes(self) -> int:
        return self.value.type.nbytes

    @property
    def dims(self) -> str:
        return "][".join(str(d) for d in self.value.shape) or "1"

    @property
    def kind(self) -> str:
        """How the tools treat it: as float, double, fp16, or as bytes."""
        kinds = {DType.F32: "f", DType.F64: "d", DType.F16: "h"}
        return kinds.get(self.value.dtype, "i")

    @property
    def fill(self) -> str:
        """How the bench program fills it: with floats, fp16, random bytes, or zeros where only some
        integers make sense.
        """
        if self.kind != "i":
            return "half" if self.kind == "h" else "float"
        dtype = self.value.dtype
        return "bytes" if self.quantized or dtype in (DType.I8, DType.U8) else "zeros"

    @property
    def what(self) -> str:
        """Its C type, and what the type does not tell."""
        return f"{self.ctype} (bits of fp16)" if self.value.dtype is DType.F16 else self.ctype

    @property
    def escaped(self) -> str:
        return c_escape(self.label)

    @property
    def comment(self) -> str:
        return comment_safe(self.label)

    @property
    def quantized(self) -> bool:
        """Whether the header has its scale and zero point: those of one pair for all elements."""
        quant = self.value.type.quant
        return quant is not None and quant.axis is None and self.value.dtype in QUANTIZED

    @property
    def scale(self) -> str:
        return f32(self.quant.scale[0])

    @property
    def zero_point(self) -> int:
        return self.quant.zero_point[0]

    @property
    def meaning(self) -> str:
        """What an element stands for, for the README; empty when it is the number itself."""
        if not self.quantized:
            return ""
        return f"; an element stands for `{self.scale[:-1]} * (element - ({self.zero_point}))`"

    @property
    def steps_below(self) -> int:
        """Steps from the zero point down to the lowest value, 0 or negative."""
        return int_range(self.value.dtype)[0] - self.zero_point

    @property
    def steps_above(self) -> int:
        """Steps from the zero point up to the highest value."""
        return int_range(self.value.dtype)[1] - self.zero_point

    @property
    def quant(self) -> Quant:
        quant = self.value.type.quant
        if quant is None:
            raise InternalError(f"{self.label} is not quantized")
        return quant


def tensors(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """The graph's inputs and outputs with C names that are unique among each other."""
    graph = program.graph
    inputs = _tensors(program, "input", graph.inputs, [v.name for v in graph.inputs])
    names = graph.output_names or [v.name for v in graph.outputs]
    return inputs, _tensors(program, "output", graph.outputs, names)


def stream_lines(info: StreamInfo | None, outputs: list[Tensor]) -> list[str]:
    """What the header says of a streaming model; nothing of another."""
    return [] if info is None else stream_text(info, [t.comment for t in outputs])


def _tensors(program: Program, role: str, values: list[Value], labels: list[str]) -> list[Tensor]:
    namer = Namer(32)
    result: list[Tensor] = []
    offset = 0
    for number, (value, label) in enumerate(zip(values, labels, strict=True)):
        place = program.placements.get(value.name)
        slot = program.offsets[place.storage] if place is not None else 0
        c_name = namer.name(label, f"{role}{number}")
        result.append(Tensor(role, number, label, value, c_name, slot, offset))
        offset += -(-max(value.type.nbytes, 1) // 64) * 64
    return result
