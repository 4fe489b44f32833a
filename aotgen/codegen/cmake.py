"""What CMakeLists.txt of a project prints: sources, flags, libraries, the emulator."""

from __future__ import annotations

import re
from collections.abc import Sequence

import aotgen
from aotgen.codegen.c import Printer
from aotgen.options import CompileOptions
from aotgen.target.board import Board
from aotgen.target.target import Isa

_MACHINES: dict[Isa, tuple[str, str]] = {
    "neon": ("AArch64", "aarch64|arm64"),
    "neon_armv7": ("32-bit ARM", "arm|thumb"),
    "dsp": ("Cortex-M", "arm|thumb"),
    "mve": ("Cortex-M", "arm|thumb"),
    "avx2": ("x86-64", "x86_64|amd64"),
    "avx512": ("x86-64", "x86_64|amd64"),
}
"""What a compiler for an instruction set is for: in words, and as the beginning of its triple.
Plain C is for any."""


def cmake_text(
    printer: Printer, board: Board, options: CompileOptions, sources: Sequence[str]
) -> str:
    """CMakeLists.txt.

    Args:
        printer: of the project.
        board: whose flags and emulator it gets.
        options: of the compilation.
        sources: names of the library's files in src/.
    """
    machine, triples = _MACHINES.get(printer.program.target.isa, ("", ""))
    return printer.render(
        "project/CMakeLists.txt.j2",
        sources=sources,
        weights_kind=options.weights,
        board=board.name,
        machine=machine,
        machine_triples=triples,
        package_version=".".join(re.findall(r"\d+", aotgen.__version__)[:3]),
        release_flags=";".join(board.release_flags),
        c_flags=_compiler_flags(board),
        libraries=_libraries(printer),
        emulator=board.emulator,
    )


def _libraries(printer: Printer) -> list[str]:
    """What a program must be linked with, in CMake's words."""
    device = ["OpenCL"] if printer.base["gpu"] else []
    return ["m", *device, *(["Threads::Threads"] if printer.base["threads"] > 1 else [])]


def _compiler_flags(board: Board) -> str:
    """Generator expressions that choose a board's flags by compiler."""
    parts = []
    for compiler, name in (("gcc", "GNU"), ("clang", "Clang,AppleClang")):
        flags = ";".join(board.cflags(compiler))
        parts.append(f'"$<$<C_COMPILER_ID:{name}>:$<$<COMPILE_LANGUAGE:C>:{flags}>>"')
    return "\n    ".join(parts)
