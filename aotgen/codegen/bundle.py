"""Writes a bundle: several models as one library.

What models can share is there once: kernels, the routines that they call, the words of simd.h, the
clock, the pool of threads. Its names begin with the bundle's. Each model keeps its header, its list
of calls and its weights, and in ``models/<model>`` what a project has beside its library:
manifest.json, the model file, and the programs that check and time it. So that folder is a project
to all verbs; its CMakeLists.txt builds the bundle's library. For a microcontroller there is one
firmware that serves all models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aotgen
from aotgen.codegen.c import Printer, bundle_root
from aotgen.codegen.c import weights_source as weights_text
from aotgen.codegen.cmake import board_context, library_context, target_check, weights_source
from aotgen.codegen.environment import render
from aotgen.codegen.firmware import ServedModel, firmware_files
from aotgen.codegen.kernel_files import kernel_files
from aotgen.codegen.program import Function, Program, WeightBlob
from aotgen.codegen.project import (
    build_program,
    clock_sources,
    describe,
    library_sources,
    manifest_text,
    model_files,
    plain_build,
    printer_of,
    runtime_sources,
    tool_files,
    write_model,
    write_texts,
)
from aotgen.codegen.shared_constants import share_constants
from aotgen.codegen.simd import simd_header
from aotgen.codegen.sizes import code_bytes, own_code_bytes
from aotgen.ir.graph import Graph
from aotgen.manifest import FORMAT, MODELS_FOLDER
from aotgen.options import CompileOptions
from aotgen.schedule.base import Routine
from aotgen.target.board import Board
from aotgen.target.target import Target
from aotgen.target.toolchain_file import toolchain_text
from aotgen.tune.apply import JournalUse


@dataclass
class BundledModel:
    """A model that is going to be part of a bundle.

    Attributes:
        graph: optimised, with groups.
        options: of its compilation; the prefix is set.
        file: the model file, or what is in it.
        tuning: the journal.
    """

    graph: Graph
    options: CompileOptions
    file: bytes | Path
    tuning: JournalUse | None = None

    @property
    def prefix(self) -> str:
        return self.options.prefix or ""


@dataclass
class _Member:
    """A model of the bundle, ready to print."""

    model: BundledModel
    printer: Printer
    manifest: dict[str, Any]

    @property
    def folder(self) -> str:
        return f"{MODELS_FOLDER}/{self.model.prefix}"

    @property
    def weights_bytes(self) -> int:
        return len(self.printer.program.weights)


def generate_bundle(
    models: Sequence[BundledModel],
    name: str,
    board: Board,
    target: Target,
    share_arena: bool,
    out: Path,
) -> dict[str, Any]:
    """Write the bundle into the empty folder ``out``.

    Args:
        models: in the order in which headers and lists name them; their prefixes differ.
        name: prefix of the library and of what its models share.
        board: whose flags and toolchain it gets.
        target: what kernels are rendered for.
        share_arena: whether the models never run at once, so that one arena serves them all.
        out: an existing, empty folder.

    Returns:
        The bundle's manifest.
    """
    programs = [_program(model, name, target) for model in models]
    kind = models[0].options.weights
    # Bytes that the application brings are whole for each model.
    shared = share_constants(programs) if kind != "bin" else WeightBlob(target.align)
    members = [
        _member(model, program, name, board, target)
        for model, program in zip(models, programs, strict=True)
    ]
    functions, printed, routines = _shared_code(members)
    manifest = _describe(members, functions, name, board, target, share_arena)
    base = _base(members, manifest)
    files = {
        f"include/{name}.h": render("project/bundle/bundle.h.j2", **base),
        **target_check(base, board),
        **{f"src/{f}": text for f, text in kernel_files(base, printed, routines).items()},
        "src/simd.h": simd_header(
            target.isa, frozenset().union(*(m.printer.program.math for m in members))
        ),
    }
    if len(shared):
        files[f"src/{name}_weights.{'S' if kind == 'asm' else 'c'}"] = weights_text(
            base, shared, kind
        )
        files[f"src/{name}_weights.h"] = render(
            "project/weights.h.j2", **base, weights=[], bytes=len(shared), linked=True
        )
    if base["threads"] > 1:
        files[f"include/{name}_pool.h"] = render("project/bundle/pool_header.h.j2", **base)
        files.update(runtime_sources(base, "aot_threads"))
    if not board.is_bare:
        files.update(clock_sources(base))
    for member in members:
        options = member.model.options
        files.update(model_files(member.printer, options, member.manifest))
        if not board.is_bare:
            tools = tool_files(member.printer, board, options, member.manifest)
            files.update({f"{member.folder}/{path}": text for path, text in tools.items()})
        files[f"{member.folder}/manifest.json"] = manifest_text(member.manifest)
    files.update(_build_files(members, base, board, library_sources(files)))
    files["manifest.json"] = manifest_text(manifest)
    write_texts(files, out)
    blobs = {m.printer.base["weights_name"]: m.printer.program.weights for m in members}
    if len(shared):
        blobs[f"{name}_weights"] = shared
    for blob_name, blob in blobs.items() if kind != "c" else ():
        blob.write(out / f"src/{blob_name}.bin")
    for member in members:
        write_model(member.model.graph, member.model.file, out / member.folder)
    return manifest


def _program(model: BundledModel, name: str, target: Target) -> Program:
    """Plan and lower a model; its kernels are named as the bundle's."""
    scheduler = model.tuning.schedules if model.tuning is not None else None
    return build_program(model.graph, target, name, model.options, scheduler=scheduler)


def _member(
    model: BundledModel, program: Program, name: str, board: Board, target: Target
) -> _Member:
    """What prints a program whose constants have their places."""
    printer = printer_of(program, model.prefix, model.options, name)
    manifest = describe(program, printer, board, target, model.options, model.file, model.tuning)
    return _Member(model, printer, {**manifest, "bundle": name})


def _shared_code(
    members: Sequence[_Member],
) -> tuple[list[Function], list[dict[str, Any]], list[Routine]]:
    """The functions of all models, each once, as they are and as they are printed, and the routines
    that they call. A function's name has a hash of its body.
    """
    functions: dict[str, Function] = {}
    printed: dict[str, dict[str, Any]] = {}
    routines: dict[str, Routine] = {}
    for member in members:
        program = member.printer.program
        for function, entry in zip(
            program.functions.values(), member.printer.functions(), strict=True
        ):
            functions.setdefault(function.name, function)
            printed.setdefault(function.name, entry)
        for routine_name, routine in program.routines.items():
            routines.setdefault(routine_name, routine)
    return list(functions.values()), list(printed.values()), list(routines.values())


def _describe(
    members: Sequence[_Member],
    functions: Sequence[Function],
    name: str,
    board: Board,
    target: Target,
    share_arena: bool,
) -> dict[str, Any]:
    """The bundle's manifest; those of the models have the rest."""
    # One behind the other, each on an aligned address.
    align = target.align
    arenas, states = (
        [-(-int(m.manifest[key]) // align) * align for m in members]
        for key in ("arena_bytes", "state_bytes")
    )
    shared = len(members[0].printer.program.shared)
    weights = shared + sum(m.weights_bytes for m in members)
    code = code_bytes(functions, target.isa)
    used = {m.model.prefix: list(m.printer.program.functions.values()) for m in members}
    own = own_code_bytes(used, target.isa)
    api = [m.manifest["api"] for m in members]
    return {
        "format": FORMAT,
        "tool": {"name": "aotgen", "version": aotgen.__version__},
        "bundle": name,
        "board": board.name,
        "isa": target.isa,
        "share_arena": share_arena,
        "models": [
            {
                "prefix": m.model.prefix,
                "folder": m.folder,
                "model": m.manifest["model"],
                "arena_bytes": m.manifest["arena_bytes"],
                "state_bytes": m.manifest["state_bytes"],
                "weights_bytes": m.manifest["weights_bytes"],
                "code_bytes": own[m.model.prefix],
                "macs": m.manifest["macs"],
            }
            for m in members
        ],
        "api": {
            "ctx_bytes": sum(each["ctx_bytes"] for each in api),
            "threads": api[0]["threads"],
            "pool_bytes": api[0]["pool_bytes"],
        },
        "kernels": len(functions),
        "arena_bytes": max(arenas) if share_arena else sum(arenas),
        "arenas_bytes": {"shared": max(arenas), "separate": sum(arenas)},
        "state_bytes": sum(states),
        "weights_bytes": weights,
        "shared_weights_bytes": shared,
        "shared_code_bytes": code - sum(own.values()),
        "flash_bytes": weights + code,
    }


def _base(members: Sequence[_Member], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the templates of the bundle's own files print: of what holds for all models any model's
    word, and what they have together.
    """
    name, one = str(manifest["bundle"]), members[0].printer.base
    same = ("version", "gpu", "bare", "core_words", "threads", "pool_bytes", "align")
    return {
        **{key: one[key] for key in same},
        "p": name,
        "P": name.upper(),
        "lib": name,
        "LIB": name.upper(),
        "in_bundle": True,
        "weights_name": f"{name}_weights",  # of the constants that several models have
        "root": bundle_root(name),
        "src": f"{bundle_root(name)}/src",
        "models": [m.printer.base for m in members],
        "share_arena": manifest["share_arena"],
        "arena_bytes": manifest["arena_bytes"],
        "state_bytes": manifest["state_bytes"],
        "weights_bytes": manifest["weights_bytes"],
        "shared_bytes": manifest["shared_weights_bytes"],
    }


def _build_files(
    members: Sequence[_Member], base: Mapping[str, Any], board: Board, sources: Sequence[str]
) -> dict[str, str]:
    """CMake's files, the toolchain's, the README, and a microcontroller's firmware.

    Args:
        members: the models.
        base: what the templates print.
        board: that it is for.
        sources: names of the library's files in src/.
    """
    options = members[0].model.options
    total = base["weights_bytes"]
    contexts = [
        {
            **m.printer.base,
            **library_context(m.printer, board),
            **board_context(m.printer, board, options, total - m.weights_bytes),
            "weights_source": weights_source(m.printer.base, board, options),
        }
        for m in members
    ]
    # The firmware's arena is that of the largest model.
    largest = max(contexts, key=lambda c: int(c["arena_bytes"]))
    shared = {
        **largest,
        **base,
        "models": contexts,
        "device_arena_bytes": largest["arena_bytes"],
        "shared_source": weights_source(base, board, options),
        "sources": sources,
        "weights_files": [
            {"name": c["p"], "file": f"{c['weights_name']}.bin"}
            for c in contexts
            if c["weights_kind"] == "bin"
        ],
    }
    files = {
        "CMakeLists.txt": render("project/bundle/CMakeLists.txt.j2", **shared),
        "library.cmake": render("project/bundle/library.cmake.j2", **shared),
    }
    if board.is_bare:
        served = [ServedModel(m.printer, m.manifest) for m in members]
        files.update(firmware_files(served, base, board, options, shared))
    else:
        for member, context in zip(members, contexts, strict=True):
            files[f"{member.folder}/CMakeLists.txt"] = render(
                "project/bundle/model.cmake.j2", **context
            )
    toolchain = toolchain_text(board)
    if toolchain is not None:
        files["toolchain.cmake"] = toolchain
    files["README.md"] = render(
        "project/bundle/README.md.j2",
        **{**shared, **plain_build(board, sources, options.optimize)},
        toolchain_hint=" -DCMAKE_TOOLCHAIN_FILE=toolchain.cmake" if toolchain else "",
    )
    return files
