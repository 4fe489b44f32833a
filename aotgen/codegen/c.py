"""Prints a Program as the C sources of a project: the model's list of calls, kernels, weights,
tools.

Every function returns text; ``project.py`` writes it. Values that templates need are computed here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aotgen.codegen.c_text import COLUMNS
from aotgen.codegen.environment import render
from aotgen.codegen.names import Namer, shorten
from aotgen.codegen.program import Function, Layer, Operand, Program
from aotgen.errors import InternalError
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType
from aotgen.memory.storage import Placement, Storage
from aotgen.schedule.base import Kernel

POINTER_BYTES = 8
"""Of the widest targets: what a context is at most sized for."""

KERNELS_PER_FILE = 6
"""Kernels of one template in one file: enough to read, few enough that files compile side by side.
"""


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
    def what(self) -> str:
        """Its C type, and what the type does not tell."""
        return f"{self.ctype} (bits of fp16)" if self.value.dtype is DType.F16 else self.ctype

    @property
    def escaped(self) -> str:
        return c_escape(self.label)


def c_escape(text: str) -> str:
    """``text`` for a C string literal: printable ASCII, all else as octal escapes of its UTF-8
    bytes.
    """
    out = []
    for byte in text.encode("utf-8", "surrogatepass"):
        char = chr(byte)
        plain = 32 <= byte < 127 and char not in '"\\?'
        out.append(char if plain else f"\\{byte:03o}")
    return "".join(out)


def comment_safe(text: str) -> str:
    """``text`` for a C comment: one line of printable ASCII that cannot end the comment or continue
    the line.
    """
    flat = "".join(c if 32 <= ord(c) < 127 else "?" for c in text)
    return flat.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").replace("??", "? ?")


def tensors(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """The graph's inputs and outputs with C names that are unique among each other."""
    graph = program.graph
    inputs = _tensors(program, "input", graph.inputs, [v.name for v in graph.inputs])
    names = graph.output_names or [v.name for v in graph.outputs]
    return inputs, _tensors(program, "output", graph.outputs, names)


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


class Printer:
    """Prints one Program under a prefix."""

    def __init__(self, program: Program, prefix: str, version: str, model: str) -> None:
        self.program = program
        self.inputs, self.outputs = tensors(program)
        self.base: dict[str, Any] = {
            "p": prefix,
            "P": prefix.upper(),
            "version": version,
            "model": comment_safe(model),
            "inputs": self.inputs,
            "outputs": self.outputs,
            "gpu": program.target.device == "gpu",
            "arena_bytes": program.arena.bytes,
            "state_bytes": 0,
            "weights_bytes": len(program.weights),
            "ctx_bytes": POINTER_BYTES * (10 + len(program.functions)),
        }
        self.external = {t.value.name: t for t in [*self.inputs, *self.outputs]}

    def render(self, path: str, /, **extra: Any) -> str:
        return render(path, **self.base, **extra)

    def label(self, layer: Layer) -> str:
        return f"L{layer.index:02d}"

    def storage_base(self, storage: Storage) -> tuple[str, int]:
        """(C expression of a pointer to the storage's elements, or "" for the arena; byte offset in
        the arena).
        """
        if storage.kind == "arena":
            return "", self.program.offsets[storage]
        return self.external[storage.root.name].variable, 0

    def pointer(self, place: Placement, offset: int, const: bool) -> str:
        """C expression for element ``offset`` of a storage."""
        base, start = self.storage_base(place.storage)
        ctype = f"const {place.storage.root.dtype.c}" if const else place.storage.root.dtype.c
        if not base:
            return f"ARENA({ctype}, {start + offset * place.storage.root.dtype.size})"
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
        return f"ARENA({ctype}, {operand.offset})"

    def weight_macro(self, layer: Layer, role: str) -> str:
        return shorten(f"W_{self.label(layer)}_{role.upper()}", 60)

    def weight_table(self) -> list[dict[str, Any]]:
        table = []
        taken: set[str] = set()
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
        return f"{layer.function}({', '.join([*args, '0', str(layer.kernel.rows)])});"

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
        files = {"kernels.h": self.render("project/kernels.h.j2", functions=functions)}
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

    def tools(self, weights_kind: str, tolerance: str) -> dict[str, str]:
        """test/ and bench/ sources by path."""
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
            "input_bytes": sum(t.bytes for t in self.inputs),
            "output_bytes": sum(t.bytes for t in self.outputs),
            "input_block_bytes": _block(self.inputs),
            "output_block_bytes": _block(self.outputs),
        }
        paths = {
            "test/tool.h": "tool.h",
            "test/tool.c": "tool.c",
            "test/test.c": "test.c",
            "test/run.c": "run.c",
            "bench/bench.c": "bench.c",
        }
        return {path: self.render(f"project/{name}.j2", **extra) for path, name in paths.items()}


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
