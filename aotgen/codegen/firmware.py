"""The folder firmware/ of a project or a bundle for a microcontroller: what answers a host over the
serial line for each of its models, and where the board has it, what starts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotgen.codegen.c import Printer
from aotgen.codegen.environment import render
from aotgen.codegen.sizes import code_bytes
from aotgen.options import CompileOptions
from aotgen.runner.protocol import firmware_id
from aotgen.target.board import FLOAT_CFLAGS, ISA_CFLAGS, Board

DEVICE_FILES = (
    "aot_core.h",
    "aot_core.c",
    "aot_hal.h",
    "aot_link.h",
    "aot_link.c",
    "aot_device.h",
    "aot_device.c",
    "aot_view.c",
    "aot_bench.c",
    "aot_hal_default.c",
    "aot_mlperf.c",
    "main.c",
)
"""Templates in templates/firmware of the library <project>_device, which has aot_model_<model>.c of
each of its models beside them."""

_IMAGES = {"bin": ("binary", " -R .external"), "hex": ("ihex", "")}
"""By form of an image objcopy's name for it, and its options: a "bin" is memory without holes."""

FLASH_FOR_PROTOCOL = 32 * 1024
"""Of the flash what weights leave beside the model's code before they go to external memory; for
that code they leave twice its estimate."""

RAM_FOR_PROGRAM = 64 * 1024
"""Of the RAM what an arena leaves to the stack and the program before it goes there."""


@dataclass(frozen=True)
class DeviceOption:
    """A CMake option of the device library that defines a macro.

    Attributes:
        name: without the project's prefix.
        what: it does, in words.
    """

    name: str
    what: str


DEVICE_OPTIONS = (
    DeviceOption("MLPERF", "Answer the ASCII commands of the MLPerf Tiny benchmark too"),
)


@dataclass(frozen=True)
class ServedModel:
    """A model that a firmware runs for a host.

    Attributes:
        printer: its own.
        manifest: as it is written.
    """

    printer: Printer
    manifest: Mapping[str, Any]

    def source(self, options: CompileOptions) -> str:
        """aot_model_<model>.c."""
        identity = firmware_id(self.manifest)
        pairs = (f"0x{identity[i : i + 2]}" for i in range(0, len(identity), 2))
        return self.printer.render(
            "firmware/aot_model.c.j2",
            **self.printer.tools_context(options.weights),
            firmware_id_bytes=", ".join(pairs),
        )


def firmware_files(
    models: Sequence[ServedModel],
    base: Mapping[str, Any],
    board: Board,
    options: CompileOptions,
    cmake: Mapping[str, Any],
) -> dict[str, str]:
    """Files of firmware/ by path.

    One model is served at a time: arena and state are as large as the largest ones.

    Args:
        models: in the order in which a host chooses them by number.
        base: what the templates of the project or of the bundle print.
        board: a bare one.
        options: of the compilation.
        cmake: see ``cmake_context``, of the model with the largest arena.
    """
    bases = [model.printer.base for model in models]
    tensors = [io for model in models for io in model.printer.inputs]
    tools = [model.printer.tools_context(options.weights) for model in models]
    context = {
        **base,
        "models": bases,
        "board": board.name,
        "core": models[0].printer.program.target.core,
        "weights_kind": options.weights,
        "device_arena_bytes": max(model["arena_bytes"] for model in bases),
        "device_state_bytes": max(model["state_bytes"] for model in bases),
        "input_block_bytes": max(tool["input_block_bytes"] for tool in tools),
        "fills_reals": any(io.fill in ("float", "half") for io in tensors),
    }
    files = {f"firmware/{n}": render(f"firmware/{n}.j2", **context) for n in DEVICE_FILES}
    for model in models:
        files[f"firmware/aot_model_{model.printer.base['p']}.c"] = model.source(options)
        if options.weights == "bin":
            weights = f"firmware/{model.printer.base['weights_name']}.S"
            files[weights] = model.printer.weights_source("asm")
    files["firmware/firmware.cmake"] = render(
        "firmware/firmware.cmake.j2", **{**base, **cmake, "models": bases}
    )
    files.update({f"firmware/{name}": text for name, text in board.firmware.texts().items()})
    return files


def cmake_context(
    printer: Printer, board: Board, options: CompileOptions, beside: int = 0
) -> dict[str, Any]:
    """What CMakeLists.txt, firmware.cmake and the README of a bare board print; ``beside`` are the
    bytes that other models of the same bundle take in flash.
    """
    large = _too_large(printer, board, beside)
    return {
        "board": board.name,
        "can_start": board.firmware.can_start,
        "core_flags": " ".join(board.extra_cflags["gcc"]),
        "weights_kind": options.weights,
        "weights_section": ".external.rodata" if "weights" in large else "",
        "arena_section": ".external.bss" if "arena" in large else "",
        "external_names": " and ".join(large),
        "device_sources": [name for name in DEVICE_FILES if name.endswith(".c")],
        "device_headers": [name for name in DEVICE_FILES if name.endswith(".h")],
        "device_options": DEVICE_OPTIONS,
        "board_sources": sorted(path.name for path in board.firmware.c_files),
        "images": [
            {"suffix": image, "format": _IMAGES[image][0], "options": _IMAGES[image][1]}
            for image in board.firmware.images
        ],
    }


def _too_large(printer: Printer, board: Board, beside: int) -> list[str]:
    """What goes to a board's external memory because its own cannot hold it."""
    if not board.external_bytes:
        return []
    functions = printer.program.functions.values()
    code = 2 * code_bytes(functions, board.isa) + FLASH_FOR_PROTOCOL + beside
    needs = (
        ("weights", printer.base["weights_bytes"] + code, board.flash_bytes),
        ("arena", printer.base["arena_bytes"] + RAM_FOR_PROGRAM, board.ram_bytes),
    )
    return [name for name, need, has in needs if has and need > has]


def library_flags(board: Board) -> tuple[str, ...]:
    """Flags of every C file that do not choose the core: those come from the toolchain file, which
    in a user's firmware is the user's.
    """
    return (*ISA_CFLAGS[board.isa], *FLOAT_CFLAGS, "-ffunction-sections", "-fdata-sections")
