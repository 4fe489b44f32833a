"""Writes a project folder: lowers the graph, prints the sources, records everything in
manifest.json.

Same input, same bytes out: nothing here depends on time, folder, hash seed or core count.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import aotgen
from aotgen.codegen import opencl
from aotgen.codegen.c import Printer
from aotgen.codegen.c_text import wrap
from aotgen.codegen.cmake import board_context, cmake_text, target_check
from aotgen.codegen.environment import render
from aotgen.codegen.firmware import ServedModel, cmake_context, firmware_files
from aotgen.codegen.less_memory import Partition, lower_least
from aotgen.codegen.lower import legalize_outputs
from aotgen.codegen.names import default_prefix, digest
from aotgen.codegen.program import Layer, Program
from aotgen.codegen.simd import simd_header
from aotgen.codegen.sizes import code_bytes
from aotgen.errors import Problem, UnsupportedError
from aotgen.frontend import is_tflite
from aotgen.ir.graph import Graph
from aotgen.ir.interpreter import Instance, run_drawn
from aotgen.ir.printer import print_graph
from aotgen.ir.types import Array
from aotgen.manifest import FORMAT
from aotgen.memory.states import legalize_states
from aotgen.options import CompileOptions, Optimize
from aotgen.passes.pipeline import Observer, runs_plan_step
from aotgen.schedule.conv.fuse_rows import fuse_rows
from aotgen.schedule.plan import Schedules, layout_text, plan_graph
from aotgen.target.board import Board, Cluster
from aotgen.target.target import Target
from aotgen.target.toolchain_file import toolchain_text
from aotgen.te.compute import int_range

if TYPE_CHECKING:
    from aotgen.tune.apply import JournalUse

TOLERANCE = "1e-4"
"""max|a - b| / max|b| that a float output of the test vectors may differ by."""

VECTOR_CASES = 2

Scheduler = Callable[[Graph, Target], Schedules]
"""Makes what a journal knows about a graph that is ready for plan."""

STATE_STEPS = 4
"""Successive runs of a test vector's case when the model keeps state."""


def build_program(
    graph: Graph,
    target: Target,
    prefix: str,
    options: CompileOptions,
    observer: Observer | None = None,
    scheduler: Scheduler | None = None,
) -> Program:
    """Plan and lower a graph with groups; the graph's outputs may get identity nodes.

    Args:
        options: which steps plan takes.
        observer: sees what fuse_rows merged, and the layouts when alter_op_layout changed some.
        scheduler: gives plan its measured times and configs.
    """
    if graph.states and target.device == "gpu":
        problem = Problem(
            graph.states[0].value.name,
            "state",
            "the model keeps state from run to run, which no GPU project does yet",
            "compile it with --device cpu",
        )
        raise UnsupportedError((problem,))
    legalize_outputs(graph)
    legalize_states(graph)
    step = "alter_op_layout"
    alters = runs_plan_step(step, options.opt_level, options.disabled_passes)
    blocks = alters and options.optimize == "speed"
    schedules = scheduler(graph, target) if scheduler is not None else None
    apart = Partition.of(graph)
    if runs_plan_step("fuse_rows", options.opt_level, options.disabled_passes):
        before = print_graph(graph)
        if fuse_rows(graph, target, schedules, blocks=blocks) and observer is not None:
            observer("fuse_rows", before, print_graph(graph))
    plan = plan_graph(graph, target, schedules, blocks=blocks)
    if observer is not None:
        before, after = layout_text(graph, plan, altered=False), layout_text(graph, plan)
        if before != after:
            observer(step, before, after)
    program = lower_least(
        graph,
        plan,
        apart,
        lambda: plan_graph(graph, target, schedules, blocks=blocks),
        target,
        prefix,
    )
    program.schedules = schedules
    return program


def printer_of(
    program: Program, prefix: str, options: CompileOptions, bundle: str | None = None
) -> Printer:
    """What prints ``program``, in ``bundle`` or alone; options without a requant mode are those of
    an ONNX model.
    """
    mode = options.requant or "onnx"
    return Printer(program, prefix, aotgen.__version__, program.graph.name, mode, bundle)


def prefix_of(graph: Graph, options: CompileOptions) -> str:
    """The prefix of the project's symbols and file names."""
    return options.prefix or default_prefix(graph.name)


def generate(
    graph: Graph,
    board: Board,
    target: Target,
    options: CompileOptions,
    out: Path,
    model: bytes | Path,
    observer: Observer | None = None,
    tuning: JournalUse | None = None,
    scheduler: Scheduler | None = None,
    vectors: bool = True,
) -> dict[str, Any]:
    """Write the project of ``graph`` into the empty folder ``out``.

    Args:
        graph: optimised, with groups.
        board: whose flags and toolchain the project gets.
        target: what kernels are rendered for.
        options: of the compilation, recorded in the manifest.
        out: an existing, empty folder.
        model: the model file, or what is in it; kept in test/ so that ``validate`` works wherever
            the folder goes.
        observer: see ``build_program``.
        tuning: the journal.
        scheduler: see ``build_program``; None is the journal's.
        vectors: whether the project gets test vectors.

    Returns:
        The manifest.
    """
    prefix = prefix_of(graph, options)
    if scheduler is None and tuning is not None:
        scheduler = tuning.schedules
    program = build_program(graph, target, prefix, options, observer, scheduler)
    printer = printer_of(program, prefix, options)
    manifest = describe(program, printer, board, target, options, model, tuning)
    files = {
        **model_files(printer, options, manifest),
        **target_check(printer.base, board),
        **kernel_sources(printer, target, program),
        **thread_sources(printer),
        **tool_files(printer, board, options, manifest),
    }
    if not board.is_bare:
        files.update(clock_sources(printer.base))
    sources = library_sources(files)
    files["CMakeLists.txt"] = cmake_text(printer, board, options, sources)
    toolchain = toolchain_text(board)
    if toolchain is not None:
        files["toolchain.cmake"] = toolchain
    files["README.md"] = printer.render(
        "project/README.md.j2",
        **board_context(printer, board, options),
        **plain_build(board, sources, options.optimize),
        toolchain_hint=" -DCMAKE_TOOLCHAIN_FILE=toolchain.cmake" if toolchain else "",
    )
    files["manifest.json"] = manifest_text(manifest)
    write_texts(files, out)
    if options.weights != "c":
        program.weights.write(out / "src/weights.bin")
    write_model(graph, model, out, vectors)
    return manifest


def model_files(
    printer: Printer, options: CompileOptions, manifest: Mapping[str, Any]
) -> dict[str, str]:
    """What a model has of its own in the library, by path: its headers, its list of calls, where
    its constants lie, and unless the application brings them, the constants.
    """
    p, weights = printer.base["p"], printer.base["weights_name"]
    linked = options.weights != "bin"
    on_device = opencl.context(printer) if printer.base["gpu"] else {}
    files = {
        f"include/{p}.h": printer.header(),
        f"include/{p}_version.h": printer.version_header(manifest),
        f"src/{p}.c": printer.source(linked, **on_device),
        f"src/{weights}.h": printer.weights_header(linked),
    }
    if options.weights == "asm":
        files[f"src/{weights}.S"] = printer.weights_source("asm")
    elif options.weights == "c":
        files[f"src/{weights}.c"] = printer.weights_source("c")
    return files


def tool_files(
    printer: Printer, board: Board, options: CompileOptions, manifest: Mapping[str, Any]
) -> dict[str, str]:
    """What runs, checks and times a model, by path: test/ and bench/, or firmware/."""
    if board.is_bare:
        cmake = cmake_context(printer, board, options)
        served = ServedModel(printer, manifest)
        return firmware_files([served], printer.base, board, options, cmake)
    steps = steps_of(printer.program.graph)
    return printer.tools(options.weights, TOLERANCE, steps, _fixed_clusters(board))


def library_sources(files: Collection[str]) -> list[str]:
    """The names in src/ of the library's own C and assembly files among these paths, sorted."""
    return sorted(
        path.removeprefix("src/")
        for path in files
        if path.startswith("src/") and path.endswith((".c", ".S")) and "aot_clock" not in path
    )


def plain_build(board: Board, sources: Sequence[str], optimize: Optimize) -> dict[str, str]:
    """What a README prints of a build without CMake."""
    flags = board.optimisation(optimize)
    return {
        "release_flags": " ".join(flags),
        "plain_cc": f"{board.triple}-gcc" if board.triple else "cc",
        "plain_flags": " ".join([*flags, *board.cflags()]),
        "plain_sources": " ".join(f"src/{source}" for source in sources),
    }


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """manifest.json."""
    return json.dumps(manifest, indent=1) + "\n"


def write_texts(files: Mapping[str, str], out: Path) -> None:
    """Write files by their paths in ``out``; long lines of C are wrapped."""
    for path, text in files.items():
        target_path = out / path
        target_path.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith((".c", ".h")):
            text = wrap(text)
        target_path.write_text(text, encoding="utf-8", newline="\n")


def write_model(graph: Graph, model: bytes | Path, out: Path, vectors: bool = True) -> None:
    """Keep the model file in test/ of ``out``, beside its test vectors."""
    kept = out / ("test/model.tflite" if is_tflite(model) else "test/model.onnx")
    kept.parent.mkdir(exist_ok=True)
    if isinstance(model, Path):
        shutil.copyfile(model, kept)
    else:
        kept.write_bytes(model)
    (out / "test/vectors.bin").write_bytes(test_vectors(graph) if vectors else b"")


def _sha256(model: bytes | Path) -> str:
    if isinstance(model, bytes):
        return digest(model, 64)
    found = hashlib.sha256()
    with model.open("rb") as file:
        while chunk := file.read(1 << 22):
            found.update(chunk)
    return found.hexdigest()


def kernel_sources(printer: Printer, target: Target, program: Program) -> dict[str, str]:
    """Kernels and what they include, by path: C files with simd.h, or the OpenCL program with its
    host runtime.
    """
    if target.device == "gpu":
        runtime = {
            f"src/{n}": printer.render(f"runtime/{n}.j2") for n in ("aot_opencl.c", "aot_opencl.h")
        }
        return {"src/kernels.cl": opencl.program_text(printer), **runtime}
    files = {f"src/{name}": text for name, text in printer.kernels().items()}
    return {"src/simd.h": simd_header(target.isa, program.math), **files}


def thread_sources(printer: Printer) -> dict[str, str]:
    """The thread pool by path; nothing where a run has one thread."""
    return runtime_sources(printer.base, "aot_threads") if printer.base["threads"] > 1 else {}


def clock_sources(base: Mapping[str, Any]) -> dict[str, str]:
    """The clock for traces and the bench program by path."""
    return runtime_sources(base, "aot_clock")


def runtime_sources(base: Mapping[str, Any], name: str) -> dict[str, str]:
    """A part of the runtime by path.

    Args:
        base: the names that its templates print.
        name: of the part.
    """
    return {f"src/{name}{end}": render(f"runtime/{name}{end}.j2", **base) for end in (".c", ".h")}


def _fixed_clusters(board: Board) -> tuple[Cluster, ...]:
    """The board's cores; none for this computer, whose projects do not depend on its cores."""
    return board.clusters if board.triple else ()


def steps_of(graph: Graph) -> int:
    """Runs of one test vector's case."""
    return STATE_STEPS if graph.states else 1


def test_vectors(graph: Graph) -> bytes:
    """Seeded inputs and the interpreter's outputs, case after case, as test.c reads them.

    A model with state runs ``STATE_STEPS`` times in each case, from its initial state.
    """
    rng = np.random.default_rng(20)
    parts: list[bytes] = []
    names = graph.output_names or [v.name for v in graph.outputs]
    for _ in range(VECTOR_CASES):
        instance = Instance(graph)
        for _ in range(steps_of(graph)):
            feeds, results = run_drawn(instance, sample_inputs(graph, rng))
            parts.extend(feeds[v.name].tobytes() for v in graph.inputs)
            parts.extend(np.ascontiguousarray(results[name]).tobytes() for name in names)
    return b"".join(parts)


def sample_inputs(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Inputs a model is likely to accept: standard normal floats, quantized integers over their
    whole range, other integers small and not negative, random booleans.
    """
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        dtype, shape = value.dtype, value.shape
        if dtype.is_float:
            feeds[value.name] = rng.standard_normal(shape).astype(dtype.numpy)
        elif value.type.quant is not None:
            low, high = int_range(dtype)
            feeds[value.name] = rng.integers(low, high, shape, endpoint=True).astype(dtype.numpy)
        else:
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype.numpy)
    return feeds


def describe(
    program: Program,
    printer: Printer,
    board: Board,
    target: Target,
    options: CompileOptions,
    model: bytes | Path,
    tuning: JournalUse | None = None,
) -> dict[str, Any]:
    """The manifest of a program."""
    arena = program.arena
    prefix = printer.base["p"]
    return {
        "format": FORMAT,
        "tool": {"name": "aotgen", "version": aotgen.__version__},
        "model": {"name": program.graph.name, "sha256": _sha256(model)},
        "prefix": prefix,
        "board": board.name,
        "isa": target.isa,
        "device": target.device,
        "cflags": list(board.cflags()),
        "options": options.as_manifest(),
        "requant": printer.base["requant"],
        "api": {
            "ctx_bytes": printer.base["ctx_bytes"],
            "arena_align": program.target.align,
            "config": ["arena", "state", "weights", "pool", "cl", "trace", "user"],
            "threads": printer.base["threads"],
            "pool_bytes": printer.base["pool_bytes"],
        },
        "stream": None if program.graph.stream is None else asdict(program.graph.stream),
        "inputs": [_tensor(t) for t in printer.inputs],
        "outputs": [_tensor(t) for t in printer.outputs],
        "tuning": None if tuning is None else tuning.summary(program),
        "layers": [_layer(program, layer) for layer in program.layers],
        "arena": {
            "bytes": arena.bytes,
            "lower_bound": arena.lower_bound,
            "peak_layer": arena.peak_step,
            "buffers": [
                {
                    "name": a.name,
                    "offset": arena.offsets[a.name],
                    "bytes": a.bytes,
                    "first_layer": a.first,
                    "last_layer": a.last,
                }
                for a in program.allocations
            ],
        },
        "arena_bytes": arena.bytes,
        "arena_own_bytes": program.own_bytes,
        "state_bytes": printer.base["state_bytes"],
        "states": [
            {
                "name": slot.state.value.name,
                "dtype": slot.state.value.dtype.numpy.name,
                "shape": list(slot.state.value.shape),
                "offset": slot.offset,
                "bytes": slot.bytes,
            }
            for slot in program.states
        ],
        "weights_bytes": len(program.weights),
        "weights_crc": f"{program.weights.crc_of_all():08x}",
        "params": sum(int(v.const.size) for v in program.graph.constants() if v.const is not None),
        "macs": sum(layer.macs for layer in program.layers),
        "flash_bytes": len(program.weights) + code_bytes(program.functions.values(), target.isa),
    }


def _tensor(tensor: Any) -> dict[str, Any]:
    value = tensor.value
    quant = value.type.quant
    return {
        "name": tensor.label,
        "c_name": tensor.c_name,
        "dtype": value.dtype.numpy.name,
        "shape": list(value.shape),
        "bytes": tensor.bytes,
        "quant": None if quant is None else asdict(quant),
    }


def _layer(program: Program, layer: Layer) -> dict[str, Any]:
    weights = sum(constant.bytes for constant in layer.weights)
    choice, schedules = layer.choice, program.schedules
    tuned = choice is not None and choice.source == "tuned" and choice.measured
    entry: Mapping[str, Any] = {
        "index": layer.index,
        "name": layer.name,
        "op": "+".join(layer.ops),
        "origin": list(layer.origin),
        "template": layer.template,
        "knobs": layer.config.as_dict(),
        "schedule": None if choice is None else choice.source,
        "task": schedules.key(layer.group) if schedules and layer.group else None,
        "seconds": choice.seconds if choice is not None and tuned else None,
        "kernel": layer.function,
        "output": layer.output.name,
        "outputs": [v.name for v in layer.outputs],
        "dtype": layer.output.dtype.numpy.name,
        "shape": list(layer.output.shape),
        "layout": program.placements[layer.output.name].view.layout_name,
        "macs": layer.macs,
        "weights_bytes": weights,
        "weights_crc": f"{program.layer_crc(layer):08x}" if layer.weights else None,
        "scratch_bytes": layer.kernel.scratch_bytes(program.target.align),
        "shared": layer.shared,
        "parts": layer.kernel.units if layer.shared else 1,
        "layout_copy": layer.group is None,
        "by_rows": program.region_of(layer) is not None,
    }
    return dict(entry)


def analyze(
    graph: Graph,
    board: Board,
    target: Target,
    options: CompileOptions,
    model: bytes | Path,
    tuning: JournalUse | None = None,
) -> dict[str, Any]:
    """The manifest that ``generate`` would write, without rendering a project.

    Args:
        graph: optimised, with groups.
        board: see ``generate``.
        target: see ``generate``.
        options: see ``generate``.
        model: see ``generate``.
        tuning: see ``generate``.
    """
    prefix = prefix_of(graph, options)
    scheduler = tuning.schedules if tuning is not None else None
    program = build_program(graph, target, prefix, options, scheduler=scheduler)
    printer = printer_of(program, prefix, options)
    return describe(program, printer, board, target, options, model, tuning)
