"""Prints a Program as the C sources of a project: the model's list of calls, kernels, weights,
tools.

Every function returns text; ``project.py`` writes it. Values that templates need are computed here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aotgen.codegen.c_text import COLUMNS, c_escape, comment_safe
from aotgen.codegen.environment import render
from aotgen.codegen.names import shorten
from aotgen.codegen.program import Function, Layer, Operand, Program
from aotgen.codegen.sharing import core_table, meetings, pool_bytes, threads_of
from aotgen.codegen.tensors import Tensor, tensors
from aotgen.errors import InternalError
from aotgen.ir.graph import Value
from aotgen.ir.types import Array
from aotgen.memory.states import StateSlot, fill_byte, state_bytes
from aotgen.memory.storage import Placement, Storage
from aotgen.schedule.base import Kernel
from aotgen.target.board import Cluster

POINTER_BYTES = 8
"""Of the widest targets: what a context is at most sized for."""

REPEAT_MS = 50
"""How long a repeat of the bench program takes when nobody says how many runs it has."""

KERNELS_PER_FILE = 6
"""Kernels of one template in one file: enough to read, few enough that files compile side by side.
"""


class Printer:
    """Prints one Program under a prefix."""

    def __init__(
        self, program: Program, prefix: str, version: str, model: str, requant: str
    ) -> None:
        self.program = program
        self.inputs, self.outputs = tensors(program)
        self.base: dict[str, Any] = {
            "p": prefix,
            "P": prefix.upper(),
            "version": version,
            "model": comment_safe(model),
            "requant": requant,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "gpu": program.target.device == "gpu",
            "threads": threads_of(program),
            "pool_bytes": pool_bytes(threads_of(program)),
            "arena_bytes": program.arena.bytes,
            "state_bytes": state_bytes(program.states),
            "states": [self.state_context(i, slot) for i, slot in enumerate(program.states)],
            "weights_bytes": len(program.weights),
            "ctx_bytes": POINTER_BYTES * (10 + len(program.functions)),
        }
        self.external = {t.value.name: t for t in [*self.inputs, *self.outputs]}

    def render(self, path: str, /, **extra: Any) -> str:
        return render(path, **self.base, **extra)

    def label(self, layer: Layer) -> str:
        return f"L{layer.index:02d}"

    def state_context(self, index: int, slot: StateSlot) -> dict[str, Any]:
        """What the templates print of a state variable: where it lies, and what it starts from: one
        byte all over, or a constant of the weights.
        """
        value = slot.state.value
        return {
            "name": comment_safe(value.name),
            "what": f"{value.dtype.c}{_dims(value.shape)}",
            "offset": slot.offset,
            "bytes": slot.bytes,
            "fill": fill_byte(slot.state.initial),
            "weights_macro": f"W_STATE{index}",
        }

    def storage_base(self, storage: Storage) -> tuple[str, int]:
        """(C expression of a pointer to the storage's elements, or the macro of the arena or the
        state buffer; byte offset there).
        """
        if storage.kind in ("arena", "state"):
            return storage.kind.upper(), self.program.offsets[storage]
        return self.external[storage.root.name].variable, 0

    def pointer(self, place: Placement, offset: int, const: bool) -> str:
        """C expression for element ``offset`` of a storage."""
        base, start = self.storage_base(place.storage)
        ctype = f"const {place.storage.root.dtype.c}" if const else place.storage.root.dtype.c
        if place.storage.kind in ("arena", "state"):
            return f"{base}({ctype}, {start + offset * place.storage.root.dtype.size})"
        if offset == 0:
            return base
        return f"{base} + {offset}" if offset > 0 else f"{base} - {-offset}"

    def operand(self, layer: Layer, operand: Operand) -> str:
        arg = operand.arg
        if operand.place is not None:
            return self.pointer(operand.place, operand.offset, not arg.is_output)
        if arg.const is not None:
            ctype = re.sub(r"\b(const|restrict|AOT_RESTRICT)\b|\*", "", arg.ctype).strip()
            return f"WEIGHTS({ctype}, {self.weight_macro(layer, arg.const.role)})"
        ctype = re.sub(r"\b(restrict|AOT_RESTRICT)\b|\*", "", arg.ctype).strip()
        if layer.shared:
            return f"SCRATCH({ctype}, {operand.offset}, {layer.kernel.scratch_bytes})"
        return f"ARENA({ctype}, {operand.offset})"

    def weight_macro(self, layer: Layer, role: str) -> str:
        return shorten(f"W_{self.label(layer)}_{role.upper()}", 60)

    def weight_table(self) -> list[dict[str, Any]]:
        table: list[dict[str, Any]] = []
        taken: set[str] = set()
        for index, slot in enumerate(self.program.states):
            value = slot.state.value
            if value.name in self.program.initial:
                where = self.program.initial[value.name]
                text = comment_safe(f"initial value of state {value.name}")
                table.append({"macro": f"W_STATE{index}", "offset": where, "text": text})
        for layer in self.program.layers:
            for operand in layer.operands:
                const = operand.arg.const
                if const is None:
                    continue
                macro = self.weight_macro(layer, const.role)
                if macro in taken:
                    raise InternalError(f"two constants of layer {layer.name!r} are named {macro}")
                taken.add(macro)
                array = const.array
                source = f" from {const.source.name}" if const.source is not None else ""
                table.append(
                    {
                        "macro": macro,
                        "offset": operand.offset,
                        "text": comment_safe(
                            f"{array.dtype.name}[{array.size}], {layer.name}{source}"
                        ),
                    }
                )
        return table

    def call(self, layer: Layer) -> str:
        args = [self.operand(layer, o) for o in layer.operands]
        rows = ("r0", "r1") if layer.shared else ("0", str(layer.kernel.rows))
        return f"{layer.function}({', '.join([*args, *rows])});"

    def view_text(self, value: Value) -> dict[str, Any]:
        # Blocks of channels have an axis more: the elements keep their logical order.
        view = self.program.placements[value.name].view.as_strided
        return {
            "ndim": len(view.shape),
            "bytes": view.dtype.size,
            "dims": ", ".join(map(str, view.shape)) or "0",
            "strides": ", ".join(map(str, view.strides)) or "0",
        }

    def layer_context(self, layer: Layer) -> dict[str, Any]:
        shapes = ", ".join(_dims(v.shape) for v in layer.reads) or "constants"
        knobs = " ".join(f"{k}={v}" for k, v in layer.config.values)
        work = f"; {layer.macs} MACs" if layer.macs else ""
        made_by = f"{layer.template} {knobs}".strip()
        origin = ", ".join(layer.origin) or "the graph"
        lines = textwrap.wrap(comment_safe(f"{made_by}; from {origin}"), COLUMNS - 12)
        places = [self.program.placements[v.name] for v in layer.outputs]
        return {
            "index": layer.index,
            "label": self.label(layer),
            "name": layer.name,
            "ops": " + ".join(layer.ops),
            "shapes": f"{shapes} -> {', '.join(_dims(v.shape) for v in layer.outputs)}",
            "work": work,
            "origin_lines": lines,
            "call": self.call(layer),
            "share": f"{layer.kernel.rows}, {layer.kernel.grain}" if layer.shared else "",
            "outputs": [self.pointer(p, p.offset, True) for p in places],
            "views": [self.view_text(v) for v in layer.outputs],
        }

    def header(self) -> str:
        return self.render(
            "project/model.h.j2",
            layers=len(self.program.layers),
            kernel_count=max(len(self.program.functions), 1),
            cl_meaning="required: from " + self.base["p"] + "_cl_open, or your own"
            if self.base["gpu"]
            else "reserved for OpenCL; NULL",
        )

    def source(self, weights_linked: bool, **device: Any) -> str:
        """src/<model>.c; ``device`` has what the OpenCL host needs (``opencl.context``)."""
        layers = [self.layer_context(layer) for layer in self.program.layers]
        for layer, meet in zip(layers, meetings(self.program.layers), strict=True):
            layer["meet"] = meet
        views = 0
        for layer in layers:
            layer["first_view"] = views
            views += len(layer["views"])
        return self.render(
            "project/model_cl.c.j2" if self.base["gpu"] else "project/model.c.j2",
            layers=layers,
            view_count=views,
            macs=sum(layer.macs for layer in self.program.layers),
            arena_lower_bound=self.program.arena.lower_bound,
            weights_linked=weights_linked,
            **device,
        )

    def kernels(self) -> dict[str, str]:
        """src/kernels.h and src/kernels_*.c by file name; a template's kernels share files."""
        placements = self.program.placements
        functions = [printed(f, placements) for f in self.program.functions.values()]
        routines = list(self.program.routines.values())
        files = {
            "kernels.h": self.render("project/kernels.h.j2", functions=functions),
        }
        if routines:
            files["routines.h"] = self.render("project/routines.h.j2", routines=routines)
            files["routines.c"] = self.render(
                "project/routines.c.j2",
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
                includes = sorted({h for e in chunk for h in e["includes"]})
                files[name] = self.render(
                    "project/kernels.c.j2",
                    functions=chunk,
                    file=name,
                    template=template,
                    includes=includes,
                    calls_routines=any(e["calls_routines"] for e in chunk),
                )
        return files

    def weights_header(self, linked: bool) -> str:
        return self.render(
            "project/weights.h.j2",
            weights=self.weight_table(),
            bytes=len(self.program.weights),
            linked=linked,
        )

    def weights_source(self, kind: str) -> str:
        """weights.S that includes weights.bin, or weights.c with the bytes as text."""
        if kind == "asm":
            return self.render("project/weights.S.j2", bytes=len(self.program.weights) or 1)
        data = b"".join(self.program.weights.chunks()) or b"\0"
        lines = [",".join(str(b) for b in data[i : i + 24]) + "," for i in range(0, len(data), 24)]
        return self.render("project/weights.c.j2", bytes=len(data), size=len(data), lines=lines)

    def tools(
        self, weights_kind: str, tolerance: str, steps: int, clusters: Sequence[Cluster] = ()
    ) -> dict[str, str]:
        """test/ and bench/ sources by path.

        Args:
            weights_kind: as in the options.
            tolerance: of float outputs of the test vectors, as C.
            steps: runs of a case of the test vectors.
            clusters: of the board; empty where they are found out when the tools run.
        """
        ranges = [
            {"layer": layer.index, "offset": offset, "bytes": size}
            for layer in self.program.layers
            for offset, size in layer.weights
        ]
        extra: dict[str, Any] = {
            "layers": self.program.layers,
            "weight_ranges": ranges,
            "weights_kind": weights_kind,
            "tolerance": tolerance,
            "steps": steps,
            "clusters": [{**c, "core": c_escape(c["core"])} for c in core_table(clusters)],
            "repeat_ms": REPEAT_MS,
            "input_bytes": sum(t.bytes for t in self.inputs),
            "output_bytes": sum(t.bytes for t in self.outputs),
            "input_block_bytes": _block(self.inputs),
            "output_block_bytes": _block(self.outputs),
        }
        paths = {
            "test/tool.h": "tool.h",
            "test/tool.c": "tool.c",
            "test/tool_threads.c": "tool_threads.c",
            "test/test.c": "test.c",
            "test/run.c": "run.c",
            "bench/bench.c": "bench.c",
            "bench/board.h": "board.h",
            "bench/board.c": "board.c",
            "bench/governor.c": "governor.c",
        }
        files = {path: self.render(f"project/{name}.j2", **extra) for path, name in paths.items()}
        return {**files, "bench/count_region.h": self.render("runtime/count_region.h.j2")}


def printed(function: Function, placements: Mapping[str, Placement]) -> dict[str, Any]:
    """What the kernel templates print of a function: its text without ``static``, the contract of
    its arguments under its title, and its parameter list.
    """
    name = re.escape(function.name)
    text = re.sub(
        rf"^static\s+void\s+{name}\(", f"void {function.name}(", function.text, flags=re.M
    )
    # One brace style, whoever wrote the text.
    text = re.sub(r"^((?:static|AOT_INLINE|void)\b[^\n;]*\)) \{$", r"\1\n{", text, flags=re.M)
    contract = "".join(f" * {line}\n" for line in _contract(function.kernel, placements))
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
    }


def _contract(kernel: Kernel, placements: Mapping[str, Placement]) -> Iterator[str]:
    """One line a parameter: shape and strides, packed size, or scratch."""
    for arg in kernel.args:
        if arg.value is not None:
            view = placements[arg.value.name].view
            order = "dense" if view.is_dense else f"strides {list(view.strides)}"
            if view.block:
                order = f"NCHW{view.block}c, blocks {view.block_stride} apart, pixels' {order}"
            yield f"{arg.name}: {view.dtype.c} {_dims(view.shape)}, {order}"
        elif arg.const is not None:
            yield f"{arg.name}: {_element(arg.const.array)} [{arg.const.array.size}], packed"
        else:
            yield f"{arg.name}: scratch of {arg.scratch_bytes} bytes, aligned to 64"
    yield f"r0, r1: which of the {kernel.rows} units along the output's rows to compute"


def _element(array: Array) -> str:
    """The type of an element; where it is a record of several, its size."""
    if array.dtype.kind == "V":
        return f"records of {array.dtype.itemsize} bytes"
    return str(array.dtype.name)


def _dims(shape: tuple[int, ...]) -> str:
    return f"[{'x'.join(map(str, shape)) or 'scalar'}]"


def _block(tensors: list[Tensor]) -> int:
    last = tensors[-1] if tensors else None
    return last.block_offset + -(-max(last.bytes, 1) // 64) * 64 if last else 64
