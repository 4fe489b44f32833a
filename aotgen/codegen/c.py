"""Prints a Program as the C sources of a project: the model's list of calls, kernels, weights,
tools.

Every function returns text; ``project.py`` writes it. Values that templates need are computed here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from aotgen.codegen.c_text import COLUMNS, c_escape, comment_safe
from aotgen.codegen.environment import render
from aotgen.codegen.kernel_files import dims, kernel_files, printed
from aotgen.codegen.names import shorten
from aotgen.codegen.program import Layer, Operand, Program, WeightBlob
from aotgen.codegen.sharing import core_table, meetings, pool_bytes, threads_of
from aotgen.codegen.tensors import Tensor, stream_lines, tensors
from aotgen.errors import InternalError
from aotgen.ir.graph import Value
from aotgen.memory.row_streaming import Drop, Pace, Region
from aotgen.memory.states import StateSlot, fill_byte, state_bytes
from aotgen.memory.storage import Placement, Storage
from aotgen.target.board import Cluster
from aotgen.target.cortex_m import core_need

POINTER_BYTES = 8
"""Of the widest targets: what a context is at most sized for."""

REPEAT_MS = 50
"""How long a repeat of the bench program takes when nobody says how many runs it has."""


class Printer:
    """Prints one Program under a prefix.

    Attributes:
        base: what every template may print.
    """

    def __init__(
        self,
        program: Program,
        prefix: str,
        version: str,
        model: str,
        requant: str,
        bundle: str | None = None,
    ) -> None:
        """
        Args:
            program: to print.
            prefix: of the model's own symbols and files.
            version: of aotgen.
            model: its name.
            requant: whose integer arithmetic it has.
            bundle: prefix of what it shares with other models; None for a project of its own.
        """
        lib = bundle or prefix
        need = core_need(program.target.isa, program.target.bare)
        self.program = program
        self.inputs, self.outputs = tensors(program)
        buffers = [(s, b) for r in program.regions for s, b in r.buffers.items()]
        self.buffers = {s: (number, b.row_bytes) for number, (s, b) in enumerate(buffers)}
        """Number and bytes from row to row of the storages of which only some rows are kept."""
        self.base: dict[str, Any] = {
            "p": prefix,
            "P": prefix.upper(),
            # Whose the kernels, the clock and the pool of threads are, and where their files lie.
            "lib": lib,
            "LIB": lib.upper(),
            "in_bundle": bundle is not None,
            "root": bundle_root(bundle) if bundle else "${CMAKE_CURRENT_SOURCE_DIR}",
            "src": f"{bundle_root(bundle)}/src" if bundle else "src",
            "weights_name": f"{prefix}_weights" if bundle else "weights",
            "version": version,
            "model": comment_safe(model),
            "requant": requant,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "stream": stream_lines(program.graph.stream, self.outputs),
            "gpu": program.target.device == "gpu",
            "bare": program.target.bare,
            "core_words": need.words if need is not None else "",
            "threads": threads_of(program),
            "pool_bytes": pool_bytes(threads_of(program)),
            "arena_bytes": program.arena.bytes,
            "own_bytes": program.own_bytes,
            "row_buffers": len(buffers),
            "align": program.target.align,
            "state_bytes": state_bytes(program.states, program.target.align),
            "states": [self.state_context(i, slot) for i, slot in enumerate(program.states)],
            "weights_bytes": len(program.weights),
            "shared_bytes": len(program.shared),
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
            "what": f"{value.dtype.c}{dims(value.shape)}",
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
        size = place.storage.root.dtype.size
        ctype = f"const {place.storage.root.dtype.c}" if const else place.storage.root.dtype.c
        if place.storage in self.buffers:
            number, row_bytes = self.buffers[place.storage]
            return f"ROWS({ctype}, {start + offset * size}, {number}, {row_bytes})"
        if place.storage.kind in ("arena", "state"):
            return f"{base}({ctype}, {start + offset * size})"
        if offset == 0:
            return base
        return f"{base} + {offset}" if offset > 0 else f"{base} - {-offset}"

    def operand(self, layer: Layer, operand: Operand) -> str:
        arg = operand.arg
        if operand.place is not None:
            return self.pointer(operand.place, operand.offset, not arg.is_output)
        if arg.const is not None:
            ctype = re.sub(r"\b(const|restrict|AOT_RESTRICT)\b|\*", "", arg.ctype).strip()
            base = "SHARED" if operand.shared else "WEIGHTS"
            return f"{base}({ctype}, {self.weight_macro(layer, arg.const.role)})"
        ctype = re.sub(r"\b(restrict|AOT_RESTRICT)\b|\*", "", arg.ctype).strip()
        if layer.shared:
            align = self.program.target.align
            return f"SCRATCH({ctype}, {operand.offset}, {layer.kernel.scratch_bytes(align)})"
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
                beside = f" in {self.base['lib']}_weights" if operand.shared else ""
                source = f" from {const.source.name}" if const.source is not None else ""
                table.append(
                    {
                        "macro": macro,
                        "offset": operand.offset,
                        "text": comment_safe(
                            f"{array.dtype.name}[{array.size}]{beside}, {layer.name}{source}"
                        ),
                    }
                )
        return table

    def call(self, layer: Layer) -> str:
        args = [self.operand(layer, o) for o in layer.operands]
        rows = ("r0", "r1") if layer.shared else ("0", str(layer.kernel.rows))
        region = self.program.region_of(layer)
        if region is not None:
            units = region.units[layer.index]
            rows = ("r0", "r1") if units == 1 else (f"{units} * r0", f"{units} * r1")
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
        shapes = ", ".join(dims(v.shape) for v in layer.reads) or "constants"
        knobs = " ".join(f"{k}={v}" for k, v in layer.config.values)
        work = f"; {layer.macs} MACs" if layer.macs else ""
        made_by = f"{layer.template} {knobs}".strip()
        # TensorFlow joins the names of what it has fused by semicolons: lines break there.
        origin = ", ".join(layer.origin).replace(";", "; ") or "the graph"
        rows = self.rows_context(layer)
        width = COLUMNS - (16 if rows else 12)
        lines = textwrap.wrap(comment_safe(f"{made_by}; from {origin}"), width)
        places = [self.program.placements[v.name] for v in layer.outputs]
        return {
            "index": layer.index,
            "label": self.label(layer),
            "name": layer.name,
            "ops": " + ".join(layer.ops),
            "shapes": f"{shapes} -> {', '.join(dims(v.shape) for v in layer.outputs)}",
            "work": work,
            "origin_lines": lines,
            "call": self.call(layer),
            "share": f"{layer.kernel.rows}, {layer.kernel.grain}" if layer.shared else "",
            "outputs": [self.pointer(p, p.offset, True) for p in places],
            "views": [self.view_text(v) for v in layer.outputs],
            "rows": rows,
        }

    def _writers(self, storage: Storage, region: Region) -> list[str]:
        """The layers of a region whose outputs are in a storage."""
        places = self.program.placements
        layers = self.program.layers[region.first : region.last + 1]
        return [
            self.label(layer)
            for layer in layers
            if any(places[v.name].storage is storage for v in layer.outputs)
        ]

    def rows_context(self, layer: Layer) -> dict[str, Any] | None:
        """What the templates print of a layer that computes by rows with others: its own rows, and
        where it is the first of its region, the loop; None for any other layer.
        """
        region = self.program.region_of(layer)
        if region is None:
            return None
        offsets = self.program.offsets
        last = self.program.layers[region.last]
        return {
            "pace": _pace(region.paces[layer.index]),
            "opens": layer.index == region.first,
            "closes": layer.index == region.last,
            "steps": region.steps,
            "last": self.label(last),
            "buffers": [
                {
                    "number": self.buffers[storage][0],
                    "offset": offsets[storage],
                    "row_bytes": buffer.row_bytes,
                    "rows": buffer.rows,
                    "writers": " and ".join(self._writers(storage, region)),
                    "written": f"rows_at(step - 1, {_pace(buffer.written)})",
                    "dropped": _dropped(buffer.dropped),
                }
                for storage, buffer in region.buffers.items()
            ],
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

    def version_header(self, manifest: Mapping[str, Any]) -> str:
        """include/<model>_version.h: what the manifest says of the model, for the C program."""
        return self.render(
            "project/version.h.j2",
            model_sha256=manifest["model"]["sha256"],
            board=c_escape(manifest["board"]),
            weights_crc=manifest["weights_crc"],
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
        """The kernels' files by name, see ``kernel_files``."""
        return kernel_files(self.base, self.functions(), list(self.program.routines.values()))

    def functions(self) -> list[dict[str, Any]]:
        """What the kernel templates print of each function."""
        placements, align = self.program.placements, self.program.target.align
        return [printed(f, placements, align) for f in self.program.functions.values()]

    def weights_header(self, linked: bool) -> str:
        return self.render(
            "project/weights.h.j2",
            weights=self.weight_table(),
            bytes=len(self.program.weights),
            linked=linked,
        )

    def weights_source(self, kind: str) -> str:
        """See ``weights_source``."""
        return weights_source(self.base, self.program.weights, kind)

    def tools_context(self, weights_kind: str) -> dict[str, Any]:
        """What programs that run the model for a host print, beyond what every template does.

        Args:
            weights_kind: as in the options.
        """
        ranges = [
            {"layer": layer.index, **constant._asdict()}
            for layer in self.program.layers
            for constant in layer.weights
        ]
        return {
            "layers": self.program.layers,
            "weight_ranges": ranges,
            "weights_kind": weights_kind,
            "input_bytes": sum(t.bytes for t in self.inputs),
            "output_bytes": sum(t.bytes for t in self.outputs),
            "input_block_bytes": _block(self.inputs),
            "output_block_bytes": _block(self.outputs),
        }

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
        extra: dict[str, Any] = {
            **self.tools_context(weights_kind),
            "tolerance": tolerance,
            "steps": steps,
            "clusters": [{**c, "core": c_escape(c["core"])} for c in core_table(clusters)],
            "repeat_ms": REPEAT_MS,
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


def weights_source(base: Mapping[str, Any], weights: WeightBlob, kind: str) -> str:
    """weights.S that includes weights.bin, or weights.c with the bytes as text.

    Args:
        base: the names that its template prints.
        weights: the bytes.
        kind: "asm" or "c".
    """
    if kind == "asm":
        return render("project/weights.S.j2", **base, bytes=len(weights) or 1)
    data = b"".join(weights.chunks()) or b"\0"
    lines = [",".join(str(b) for b in data[i : i + 24]) + "," for i in range(0, len(data), 24)]
    return render("project/weights.c.j2", **base, bytes=len(data), size=len(data), lines=lines)


def bundle_root(bundle: str) -> str:
    """CMake's words for the folder of a bundle, wherever they are read."""
    return f"${{{bundle.upper()}_ROOT}}"


def _pace(pace: Pace) -> str:
    """The arguments of rows_at behind the step."""
    return f"{pace.slope}, {pace.offset}, {pace.per}, {pace.end}"


def _dropped(drop: Drop) -> str:
    """The rows that nothing reads any more when a step begins."""
    rows = f"rows_at(step - 1, {_pace(drop.pace)})"
    stride = f"{drop.stride} * " if drop.stride > 1 else ""
    pad = f" {'-' if drop.pad > 0 else '+'} {abs(drop.pad)}" if drop.pad else ""
    return f"{stride}{rows}{pad}"


def _block(tensors: list[Tensor]) -> int:
    last = tensors[-1] if tensors else None
    return last.block_offset + -(-max(last.bytes, 1) // 64) * 64 if last else 64
