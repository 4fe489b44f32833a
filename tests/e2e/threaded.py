"""Projects for several threads, run by any number of them, and part by part on one.

Layers are shared whatever they cost, so that small models test what large ones do.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import aotgen
from aotgen.codegen import sharing
from tests.e2e.quick_build import STRICT, QuickModel, Watched

MAX_THREADS = 4
RATES = ((1, 1), (1, 3), (1, 1, 1), (5, 1, 2), (1, 1, 1, 1), (9, 9, 2, 1))
"""Shares of two to four threads."""


def compile_shared(
    model: onnx.ModelProto | Path,
    folder: Path,
    board: str = "host",
    threads: int = MAX_THREADS,
    weights: str = "bin",
) -> aotgen.Project:
    """Compile for ``threads`` threads, every layer with several rows shared."""
    path = model
    if isinstance(model, onnx.ModelProto):
        path = folder / "net.onnx"
        onnx.save(model, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "SHARED_SECONDS", 0.0)
        return aotgen.compile(
            path,
            board=board,
            output=folder / f"threads{threads}",
            threads=threads,
            weights=weights,  # type: ignore[arg-type]
        )


class ThreadedModel(QuickModel):
    """A model with a pool."""

    def __init__(self, project: aotgen.Project, extra: tuple[str, ...] = ()) -> None:
        super().__init__(project, extra=("-pthread", *extra))
        self.pool = Watched(self.manifest["api"]["pool_bytes"], 64)

    def call(self, name: str, *arguments: object) -> int:
        function = getattr(self.library, f"{self.manifest['prefix']}_{name}")
        return int(function(*arguments))

    def use(self, rates: Sequence[int]) -> None:
        """Run by as many threads as there are rates, from now on."""
        given = (ctypes.c_int32 * len(rates))(*rates)
        pool = ctypes.c_void_p(self.pool.address)
        assert self.call("pool_open", pool, len(rates), None, given) == 0
        members = {
            "arena": self.arena.address,
            "state": self.state.address,
            "weights": self.weights.address,
            "pool": self.pool.address,
            "trace": ctypes.cast(self._callback, ctypes.c_void_p).value,
        }
        names = self.manifest["api"]["config"]
        config = (ctypes.c_void_p * len(names))(*(members.get(name) for name in names))
        assert self.functions.init(self.context.address, ctypes.addressof(config)) == 0

    def close(self) -> None:
        self.call("pool_close", ctypes.c_void_p(self.pool.address))
        self.pool.check("pool")


def run_in_parts(project: aotgen.Project, parts: int) -> None:
    """Let src/<model>.c compute every shared layer in ``parts`` parts, the last one first, on one
    thread: what a part leaves to another one, or takes from it, shows every time.
    """
    (path,) = [p for p in (project.folder / "src").glob("*.c") if p.stem == project.info.prefix]
    text = path.read_text()
    prefix = project.info.prefix
    part = f"""
static int part_of(int part, int32_t rows, int32_t grain, int32_t *r0, int32_t *r1)
{{
    const {prefix}_worker w = {{NULL, part, (uint32_t)part * {prefix.upper()}_WHOLE / {parts}u,
        ((uint32_t)part + 1u) * {prefix.upper()}_WHOLE / {parts}u}};
    return {prefix}_share(&w, rows, grain, r0, r1);
}}
"""
    text = text.replace("(size_t)worker->index * (bytes)", "(size_t)part * (bytes)")
    text = text.replace("/* One run as its threads see it. */", part)
    text, shared = re.subn(
        rf"if \({prefix}_share\(worker, (\d+), (\d+), &r0, &r1\)\)",
        rf"for (int part = {parts - 1}; part >= 0; part--)\n"
        r"        if (part_of(part, \1, \2, &r0, &r1))",
        text,
    )
    assert shared == sum(layer["shared"] for layer in project.manifest["layers"])
    path.write_text(text)


def outputs_of(model: QuickModel, feeds: Mapping[str, np.ndarray], steps: int = 1) -> bytes:
    """The bytes of all outputs and of all traced values, of some steps from the initial state. A
    value that several layers write parts of counts as the last one leaves it: what it holds before
    is whatever the arena held.
    """
    last = {
        name: (layer["index"], position)
        for layer in model.manifest["layers"]
        for position, name in enumerate(layer["outputs"])
    }
    found = []
    model.reset()
    for _ in range(steps):
        found += [a.tobytes() for a in model.run(feeds)]
        found += [model.traced[layer][position][1] for layer, position in sorted(last.values())]
    return b"".join(found)


def check_threads(
    model: onnx.ModelProto | Path, feeds: Mapping[str, np.ndarray], folder: Path, board: str
) -> aotgen.Project:
    """The same bytes from a project for one thread, from one for several by one thread, by part
    and by several threads.
    """
    steps = 2
    one = QuickModel(compile_shared(model, folder, board, 1))
    want = outputs_of(one, feeds, steps)
    project = compile_shared(model, folder, board)
    several = ThreadedModel(project)
    assert outputs_of(several, feeds, steps) == want, "one thread of several"
    for rates in RATES:
        several.use(rates)
        try:
            assert outputs_of(several, feeds, steps) == want, f"threads of rates {rates}"
        finally:
            several.close()
    if any(layer["shared"] for layer in project.manifest["layers"]):
        run_in_parts(project, MAX_THREADS)
        parts = QuickModel(project)
        assert outputs_of(parts, feeds, steps) == want, "by part, the last one first"
    return project


def compile_objects(
    project: aotgen.Project, into: Path, level: str, *extra: str, compiler: str = "gcc"
) -> list[Path]:
    """Compile every C file of a project, warnings being errors.

    Returns:
        The object files, in the folder ``into``.
    """
    folder, prefix = project.folder.resolve(), project.info.prefix.upper()
    sources = [p for name in ("src", "test", "bench") for p in sorted((folder / name).glob("*.c"))]
    command = [compiler, level, "-g", *STRICT, *project.board.cflags(compiler), *extra]
    command += [f"-I{folder / name}" for name in ("include", "src", "test", "bench")]
    command += [
        f"-D{prefix}_TRACE",
        f'-D{prefix}_VECTORS="{folder}/test/vectors.bin"',
        f'-D{prefix}_WEIGHTS_PATH="{folder}/src/weights.bin"',
    ]
    done = subprocess.run(
        [*command, "-c", *map(str, sources)], capture_output=True, text=True, cwd=into
    )
    assert done.returncode == 0, done.stderr[:4000]
    return [into / f"{p.stem}.o" for p in sources]


def compile_tool(
    project: aotgen.Project, tool: str, program: Path, level: str, *extra: str
) -> Path:
    """Build one of a project's programs, its weights read from the file, without CMake."""
    objects = compile_objects(project, program.parent, level, *extra)
    used = [str(p) for p in objects if p.stem == tool or p.stem not in ("run", "test", "bench")]
    command = ["gcc", *extra, *used, "-o", str(program), "-lm", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return program
