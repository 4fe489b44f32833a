"""Writes a bundle: several models as one library.

What models can share is there once: kernels, the routines that they call, the words of simd.h, the
clock, the pool of threads. Its names begin with the bundle's. Each model keeps its header, its list
of calls and its weights, and in ``models/<model>`` what a project has beside its library:
manifest.json, the model file, and the programs or the firmware that check and time it. So that
folder is a project to all verbs; its CMakeLists.txt builds the bundle's library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aotgen
from aotgen.codegen.c import Printer, bundle_root
from aotgen.codegen.cmake import board_context, library_context, weights_source
from aotgen.codegen.environment import render
from aotgen.codegen.kernel_files import kernel_files
from aotgen.codegen.program import Function
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
    write_weights,
)
from aotgen.codegen.simd import simd_header
from aotgen.codegen.sizes import code_bytes
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
    members = [_member(model, name, board, target) for model in models]
    functions, printed, routines = _shared_code(members)
    manifest = _describe(members, functions, name, board, target, share_arena)
    base = _base(members, manifest)
    files = {
        f"include/{name}.h": render("project/bundle/bundle.h.j2", **base),
        **{f"src/{f}": text for f, text in kernel_files(base, printed, routines).items()},
        "src/simd.h": simd_header(
            target.isa, frozenset().union(*(m.printer.program.math for m in members))
        ),
    }
    if base["threads"] > 1:
        files[f"include/{name}_pool.h"] = render("project/bundle/pool_header.h.j2", **base)
        files.update(runtime_sources(base, "aot_threads"))
    if not board.is_bare:
        files.update(clock_sources(base))
    for member in members:
        options = member.model.options
        files.update(model_files(member.printer, options))
        tools = tool_files(member.printer, board, options, member.manifest)
        files.update({f"{member.folder}/{path}": text for path, text in tools.items()})
        files[f"{member.folder}/manifest.json"] = manifest_text(member.manifest)
    files.update(_build_files(members, base, board, library_sources(files)))
    files["manifest.json"] = manifest_text(manifest)
    write_texts(files, out)
    for member in members:
        model, weights = member.model, f"src/{member.printer.base['weights_name']}.bin"
        write_weights(member.printer.program, model.options, out / weights)
        write_model(model.graph, model.file, out / member.folder)
    return manifest


def _member(model: BundledModel, name: str, board: Board, target: Target) -> _Member:
    """Plan and lower a model; its kernels are named as the bundle's."""
    scheduler = model.tuning.schedules if model.tuning is not None else None
    program = build_program(model.graph, target, name, model.options, scheduler=scheduler)
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
    weights = sum(m.weights_bytes for m in members)
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
                "macs": m.manifest["macs"],
            }
            for m in members
        ],
        "kernels": len(functions),
        "arena_bytes": max(arenas) if share_arena else sum(arenas),
        "state_bytes": sum(states),
        "weights_bytes": weights,
        "flash_bytes": weights + code_bytes(functions, target.isa),
    }


def _base(members: Sequence[_Member], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the templates of the bundle's own files print: of what holds for all models any model's
    word, and what they have together.
    """
    name, one = str(manifest["bundle"]), members[0].printer.base
    same = ("version", "gpu", "bare", "core_macro", "core_words", "threads", "pool_bytes", "align")
    return {
        **{key: one[key] for key in same},
        "p": name,
        "P": name.upper(),
        "lib": name,
        "LIB": name.upper(),
        "in_bundle": True,
        "root": bundle_root(name),
        "src": f"{bundle_root(name)}/src",
        "models": [m.printer.base for m in members],
        "share_arena": manifest["share_arena"],
        "arena_bytes": manifest["arena_bytes"],
        "state_bytes": manifest["state_bytes"],
        "weights_bytes": manifest["weights_bytes"],
    }


def _build_files(
    members: Sequence[_Member], base: Mapping[str, Any], board: Board, sources: Sequence[str]
) -> dict[str, str]:
    """CMake's files, the toolchain's and the README.

    Args:
        members: the models.
        base: what the templates print.
        board: that it is for.
        sources: names of the library's files in src/.
    """
    total = sum(m.weights_bytes for m in members)
    contexts = []
    for m in members:
        options = m.model.options
        beside = total - m.weights_bytes
        context = {
            **m.printer.base,
            **library_context(m.printer, board),
            **board_context(m.printer, board, options, beside),
            "weights_source": weights_source(m.printer, board, options),
        }
        contexts.append(context)
    shared = {
        **contexts[0],
        **base,
        "models": contexts,
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
    for member, context in zip(members, contexts, strict=True):
        files[f"{member.folder}/CMakeLists.txt"] = render(
            "project/bundle/model.cmake.j2", **context
        )
    toolchain = toolchain_text(board)
    if toolchain is not None:
        files["toolchain.cmake"] = toolchain
    files["README.md"] = render(
        "project/bundle/README.md.j2",
        **{**shared, **plain_build(board, sources, members[0].model.options.optimize)},
        toolchain_hint=" -DCMAKE_TOOLCHAIN_FILE=toolchain.cmake" if toolchain else "",
    )
    return files
