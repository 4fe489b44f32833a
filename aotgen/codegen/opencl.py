"""What the OpenCL host template prints: kernel launches instead of C calls.

Kernels take (buffer, element offset) pairs, never sub-buffers, so the arena map is the one of the
CPU. Graph inputs and outputs live in their arena slots on the device; the host's arena is the
staging memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aotgen.codegen.c_text import c_escape
from aotgen.codegen.environment import render
from aotgen.codegen.program import Layer, Operand
from aotgen.memory.storage import Placement

if TYPE_CHECKING:
    from aotgen.codegen.c import Printer


def context(printer: Printer) -> dict[str, Any]:
    """Extra values for project/model_cl.c.j2."""
    names = list(printer.program.functions)
    index = {name: i for i, name in enumerate(names)}
    return {
        "source_lines": _source_lines(printer),
        "kernel_names": names,
        "launches": {
            layer.index: _launches(printer, layer, index) for layer in printer.program.layers
        },
        "regions": {layer.index: _region(printer, layer) for layer in printer.program.layers},
    }


def program_text(printer: Printer) -> str:
    """All kernels of the program as one OpenCL C source."""
    head = f"/* kernels.cl - the kernels of {printer.base['p']}, OpenCL C 1.2. */\n"
    head += "#pragma OPENCL FP_CONTRACT OFF\n"
    parts = ("requantize", "fixed_math")
    names = printer.program.math - set(parts)
    if names:
        head += render("kernels/half.cl.j2", names=sorted(names))
    for part in parts:
        if part in printer.program.math:
            head += render(f"kernels/{part}.cl.j2")
    return head + "\n".join(f.text.strip("\n") + "\n" for f in printer.program.functions.values())


def _source_lines(printer: Printer) -> list[str]:
    return [f'"{c_escape(line)}\\n"' for line in program_text(printer).splitlines()]


def _byte_offset(printer: Printer, place: Placement, offset: int) -> int:
    """Of an element, in the device's arena."""
    return printer.program.offsets[place.storage] + offset * place.storage.root.dtype.size


def _argument(printer: Printer, operand: Operand) -> dict[str, Any]:
    arg = operand.arg
    if operand.place is not None:
        size = operand.place.storage.root.dtype.size
        return {
            "buffer": "arena_buffer",
            "offset": _byte_offset(printer, operand.place, operand.offset) // size,
            "comment": arg.value.name if arg.value is not None else "",
        }
    if arg.const is not None:
        size = arg.const.array.itemsize
        return {
            "buffer": "weights_buffer",
            "offset": operand.offset // size,
            "comment": arg.const.role,
        }
    return {"buffer": "arena_buffer", "offset": operand.offset // 4, "comment": "scratch"}


def _launch(kernel: int, arguments: list[dict[str, Any]], size: tuple[int, ...]) -> dict[str, Any]:
    padded = (*size, 1, 1, 1)[:3]
    return {
        "kernel": kernel,
        "buffers": [a["buffer"] for a in arguments],
        "offsets": ", ".join(str(a["offset"]) for a in arguments),
        "from_weights": ", ".join(
            "1" if a["buffer"] == "weights_buffer" else "0" for a in arguments
        ),
        "count": len(arguments),
        "dimensions": max(len(size), 1),
        "size": ", ".join(str(n) for n in padded),
    }


def _launches(printer: Printer, layer: Layer, index: dict[str, int]) -> list[dict[str, Any]]:
    """The border fills of a layer, then its own kernel."""
    result = []
    for function, storage in layer.fills:
        kernel = printer.program.functions[function].kernel
        place = Placement(storage, storage.origin, storage.view)
        argument = {
            "buffer": "arena_buffer",
            "offset": _byte_offset(printer, place, storage.origin) // storage.root.dtype.size,
        }
        result.append(_launch(index[function], [argument], kernel.global_size))
    arguments = [_argument(printer, o) for o in layer.operands]
    result.append(_launch(index[layer.function], arguments, layer.kernel.global_size))
    return result


def _region(printer: Printer, layer: Layer) -> dict[str, int]:
    """The bytes of the arena that a trace reads back, and where in them element 0 is."""
    place = printer.program.placements[layer.output.name]
    start = printer.program.offsets[place.storage]
    return {
        "start": start,
        "bytes": place.storage.bytes,
        "element": start + place.offset * place.storage.root.dtype.size,
    }
