"""Prints kernels, and the routines that they share, as the C files of a library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aotgen.codegen.environment import render
from aotgen.codegen.program import Function
from aotgen.ir.types import Array
from aotgen.memory.storage import Placement
from aotgen.schedule.base import Kernel, Routine

KERNELS_PER_FILE = 6
"""Kernels of one template in one file: enough to read, few enough that files compile side by side.
"""

_FPU_REGISTER = re.compile(r"\bregister vf s\d")
"""Where assembly of a Cortex-M's float kernels keeps its sums."""


def kernel_files(
    base: Mapping[str, Any], functions: Sequence[dict[str, Any]], routines: Sequence[Routine]
) -> dict[str, str]:
    """kernels.h, kernels_*.c and the routines' files by name; a template's kernels share files.

    Args:
        base: the names that the templates print.
        functions: of ``Printer.functions``.
        routines: that they call.
    """
    files = {"kernels.h": render("project/kernels.h.j2", **base, functions=functions)}
    if routines:
        files["routines.h"] = render("project/routines.h.j2", **base, routines=routines)
        files["routines.c"] = render(
            "project/routines.c.j2",
            **base,
            routines=routines,
            includes=sorted({h for r in routines for h in r.includes}),
        )
    by_template: dict[str, list[dict[str, Any]]] = {}
    for entry in functions:
        by_template.setdefault(entry["template"], []).append(entry)
    for template, entries in by_template.items():
        for part in range(0, len(entries), KERNELS_PER_FILE):
            chunk = entries[part : part + KERNELS_PER_FILE]
            suffix = f"_{part // KERNELS_PER_FILE}" if part else ""
            name = f"kernels_{template}{suffix}.c"
            files[name] = render(
                "project/kernels.c.j2",
                **base,
                functions=chunk,
                file=name,
                template=template,
                includes=sorted({h for e in chunk for h in e["includes"]}),
                calls_routines=any(e["calls_routines"] for e in chunk),
                needs_fpu=any(e["needs_fpu"] for e in chunk),
            )
    return files


def printed(function: Function, placements: Mapping[str, Placement], align: int) -> dict[str, Any]:
    """What the kernel templates print of a function: its text without ``static``, the contract of
    its arguments under its title, and its parameter list.
    """
    name = re.escape(function.name)
    text = re.sub(
        rf"^static\s+void\s+{name}\(", f"void {function.name}(", function.text, flags=re.M
    )
    # One brace style, whoever wrote the text.
    text = re.sub(r"^((?:static|AOT_INLINE|void)\b[^\n;]*\)) \{$", r"\1\n{", text, flags=re.M)
    contract = "".join(f" * {line}\n" for line in _contract(function.kernel, placements, align))
    text = re.sub(
        rf"/\*((?:(?!\*/).)*)\*/\n(void\s+{name}\()",
        lambda m: f"/*{m[1].rstrip()}\n *\n{contract} */\n{m[2]}",
        text,
        flags=re.S,
    )
    match = re.search(rf"^void\s+{name}\((.*?)\)", text, flags=re.M | re.S)
    parameters = " ".join(match.group(1).split()) if match else ""
    return {
        "name": function.name,
        "text": text.strip("\n"),
        "parameters": parameters,
        "template": function.template,
        "includes": function.kernel.includes,
        "calls_routines": bool(function.routines),
        "needs_fpu": _FPU_REGISTER.search(text) is not None,
    }


def _contract(kernel: Kernel, placements: Mapping[str, Placement], align: int) -> Iterator[str]:
    """One line a parameter: shape and strides, packed size, or scratch."""
    for arg in kernel.args:
        if arg.value is not None:
            view = placements[arg.value.name].view
            order = "dense" if view.is_dense else f"strides {list(view.strides)}"
            if view.block:
                order = f"NCHW{view.block}c, blocks {view.block_stride} apart, pixels' {order}"
            yield f"{arg.name}: {view.dtype.c} {dims(view.shape)}, {order}"
        elif arg.const is not None:
            yield f"{arg.name}: {_element(arg.const.array)} [{arg.const.array.size}], packed"
        else:
            yield f"{arg.name}: scratch of {arg.scratch_bytes} bytes, aligned to {align}"
    units = "units along the output's rows" if kernel.by_rows else "parts of the output"
    yield f"r0, r1: which of the {kernel.rows} {units} to compute"


def _element(array: Array) -> str:
    """The type of an element; where it is a record of several, its size."""
    if array.dtype.kind == "V":
        return f"records of {array.dtype.itemsize} bytes"
    return str(array.dtype.name)


def dims(shape: tuple[int, ...]) -> str:
    """Extents as comments have them: [1x8x8x16]."""
    return f"[{'x'.join(map(str, shape)) or 'scalar'}]"
