"""How large the machine code of a program will be, before a compiler has seen it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aotgen.codegen.program import Function
from aotgen.target.target import Isa

_LINE_BYTES = {
    "scalar": 10,
    "neon": 10,
    "neon_armv7": 10,
    "avx2": 14,
    "avx512": 16,
    "dsp": 8,
    "mve": 8,
}


_INSTRUCTION_BYTES = 4
"""Of a line of a routine's assembly: most of Thumb-2's instructions."""


def code_bytes(functions: Collection[Function], isa: Isa) -> int:
    """Estimated machine code of kernels and of the routines that they call: an instruction set's
    bytes for each line of C, measured over the example networks, and an instruction for each line
    of assembly.
    """
    routines = {name: r.text for f in functions for name, r in f.routines.items()}
    lines = sum(f.text.count("\n") for f in functions)
    assembly = 0
    for text in routines.values():
        instructions = sum(line.lstrip().startswith('"') for line in text.splitlines())
        assembly += instructions
        lines += text.count("\n") - instructions
    return lines * _LINE_BYTES[isa] + assembly * _INSTRUCTION_BYTES


def own_code_bytes(used: Mapping[str, Collection[Function]], isa: Isa) -> dict[str, int]:
    """Of the functions that several models use, estimated bytes of what each has of its own: that
    would go with it. Functions of one name are the same one.
    """

    def together(models: Collection[str]) -> int:
        functions = {f.name: f for model in models for f in used[model]}
        return code_bytes(functions.values(), isa)

    whole = together(used.keys())
    return {model: whole - together(used.keys() - {model}) for model in used}
