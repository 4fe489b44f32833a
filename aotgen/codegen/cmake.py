"""What CMakeLists.txt of a project prints: sources, flags, libraries, the emulator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import aotgen
from aotgen.codegen.c import Printer
from aotgen.codegen.c_text import c_escape
from aotgen.codegen.environment import render
from aotgen.codegen.firmware import cmake_context, library_flags
from aotgen.options import CompileOptions
from aotgen.target.board import Board
from aotgen.target.cortex_m import needs_of
from aotgen.target.target import Isa

_MACHINES: dict[Isa, tuple[str, str]] = {
    "neon": ("AArch64", "aarch64|arm64"),
    "neon_armv7": ("32-bit ARM", "arm|thumb"),
    "avx2": ("x86-64", "x86_64|amd64"),
    "avx512": ("x86-64", "x86_64|amd64"),
}
"""What a compiler for an instruction set is for: in words, and as the beginning of its triple.
Plain C is for any but on a bare board."""


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
    return printer.render(
        "project/CMakeLists.txt.j2",
        sources=sources,
        weights_source=weights_source(printer.base, board, options),
        weights_files=[{"name": printer.base["p"], "file": "weights.bin"}],
        **library_context(printer, board),
        **board_context(printer, board, options),
    )


def library_context(printer: Printer, board: Board) -> dict[str, Any]:
    """What CMakeLists.txt prints of the library, whichever models are in it."""
    machine, triples = _machine(printer.program.target.isa, board)
    return {
        "machine": machine,
        "machine_triples": triples,
        "package_version": ".".join(re.findall(r"\d+", aotgen.__version__)[:3]),
        "release_flags": ";".join(board.optimisation(printer.program.target.optimize)),
        "c_flags": _compiler_flags(board),
        "libraries": _libraries(printer),
        "emulator": board.emulator,
    }


def target_check(base: Mapping[str, Any], board: Board) -> dict[str, str]:
    """The header by which a library for a microcontroller tells that it is compiled for another
    core than the board's, by its path; nothing where any core will do.

    Args:
        base: what the templates of the library print.
        board: that its kernels are for.
    """
    needs = needs_of(board)
    if not needs:
        return {}
    text = render(
        "project/aot_target.h.j2",
        p=base["p"],
        board=c_escape(board.name),
        needs=needs,
        core_flags=c_escape(" ".join(board.extra_cflags["gcc"])),
    )
    return {"src/aot_target.h": text}


def _machine(isa: Isa, board: Board) -> tuple[str, str]:
    if board.is_bare:
        return "Cortex-M", "arm|thumb"
    return _MACHINES.get(isa, ("", ""))


def board_context(
    printer: Printer, board: Board, options: CompileOptions, beside: int = 0
) -> dict[str, Any]:
    """What CMakeLists.txt and the README print of a board and of where weights lie.

    Args:
        printer: of the model.
        board: that it is for.
        options: of the compilation.
        beside: bytes that other models of its bundle take in flash.
    """
    if board.is_bare:
        return cmake_context(printer, board, options, beside)
    return {
        "board": board.name,
        "weights_kind": options.weights,
        "weights_section": "",
    }


def weights_source(base: Mapping[str, Any], board: Board, options: CompileOptions) -> str:
    """The file that has the weights, which may get a section of its own; empty for none.

    Args:
        base: what templates print, of a model or of what several share.
        board: that it is for.
        options: of the compilation.
    """
    if options.weights == "bin":
        return "firmware/weights.S" if board.is_bare else ""
    name = f"{base['src']}/{base['weights_name']}"
    return f"{name}.S" if options.weights == "asm" else f"{name}.c"


def _libraries(printer: Printer) -> list[str]:
    """What a program must be linked with, in CMake's words."""
    device = ["OpenCL"] if printer.base["gpu"] else []
    return ["m", *device, *(["Threads::Threads"] if printer.base["threads"] > 1 else [])]


def _compiler_flags(board: Board) -> str:
    """Generator expressions that choose a board's flags by compiler."""
    if board.is_bare:
        return f'"$<$<COMPILE_LANGUAGE:C>:{";".join(library_flags(board))}>"'
    parts = []
    for compiler, name in (("gcc", "GNU"), ("clang", "Clang,AppleClang")):
        flags = ";".join(board.cflags(compiler))
        parts.append(f'"$<$<C_COMPILER_ID:{name}>:$<$<COMPILE_LANGUAGE:C>:{flags}>>"')
    return "\n    ".join(parts)
