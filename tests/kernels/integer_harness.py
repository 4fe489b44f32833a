"""Kernels of integer ops as one C program, compared element by element with the ops' numpy rules.

Every tensor has a block of memory of its own, with only the border its template asked for, so that
a sanitizer sees what is read or written outside; ``gap`` elements between pixels, room between rows
and guard bytes around an output must stay as they are.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from kernels.harness import MAIN, WARNINGS, make_view, named

from aotgen.codegen.simd import simd_header
from aotgen.ir.graph import Group, Node, Value
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Config, Kernel, Need, Template, View, Views
from aotgen.schedule.registry import candidates
from aotgen.target.target import Target

FILL = 0x5A
"""The byte that outputs hold before a kernel runs."""

GUARD = 64
"""Elements in front of and behind an output."""


@dataclass
class IntegerCase:
    """A Group of one node and its inputs by name.

    Attributes:
        template: None for the one that plan would prefer.
        gap: extra elements between two pixels of every activation and of the output.
        split_rows: room between two rows of an output image: its pixels do not lie evenly.
        knobs: of the template, None for its default.
        inplace: the output overwrites the only activation.
    """

    name: str
    group: Group
    inputs: dict[str, np.ndarray]
    gap: int = 0
    template: Template | None = None
    split_rows: bool = False
    knobs: dict[str, int] | None = None
    inplace: bool = False

    @property
    def node(self) -> Node:
        return self.group.nodes[0]

    def expected(self) -> np.ndarray:
        arrays = [None if v is None else self._array(v) for v in self.node.inputs]
        return op_def(self.node.op).numpy(self.node, arrays)[0]

    def _array(self, value: Value) -> np.ndarray:
        return self.inputs[value.name] if value.const is None else value.const

    def chosen(self, target: Target) -> Template:
        return self.template or candidates(self.group, target)[0]


@dataclass
class Built:
    """A case rendered for a target; per argument its memory and the element it points at."""

    case: IntegerCase
    kernel: Kernel
    blocks: list[tuple[np.ndarray, int]]
    output: int
    view: View


def strided(data: np.ndarray, start: int, view: View) -> np.ndarray:
    """The elements of ``view`` whose element 0 is ``data[start]``, in logical order."""
    form, size = view.as_strided, data.itemsize
    return np.lib.stride_tricks.as_strided(
        data[start:], form.shape, [size * s for s in form.strides]
    )


def build(case: IntegerCase, target: Target) -> Built:
    group, template = case.group, case.chosen(target)
    reason = template.applies(group, target)
    assert reason is None, f"{case.name}: {reason}"
    config = Config.of(**case.knobs) if case.knobs else template.default(group, target)
    template.check(group, target, config)
    needs = template.needs(group, target, config)
    out_need = template.output_need(group, target, config)
    layouts: dict[str, tuple[View, int, int]] = {}
    for value in [*group.activations, group.output]:
        need = needs.get(value.name, out_need if value is group.output else Need())
        if case.split_rows and value is group.output:
            need = replace(need, border=((0, 0), (0, 0), (0, 1), (0, 0)))
        layouts[value.name] = make_view(value, need, 0 if need.dense else case.gap, None)
    overwritten = group.activations[0] if case.inplace else None
    views = Views(
        {k: v[0] for k, v in layouts.items()}, None if overwritten is None else overwritten.name
    )
    kernel = template.kernel(group, target, config, views)
    blocks: list[tuple[np.ndarray, int]] = []
    output = -1
    for k, arg in enumerate(kernel.args):
        if arg.const is not None:
            blocks.append((np.ascontiguousarray(arg.const.array).reshape(-1), 0))
        elif arg.value is not None:
            view, size, start = layouts[arg.value.name]
            data = np.zeros(size, arg.value.dtype.numpy)
            if arg.is_output:
                data = np.zeros(size + 2 * GUARD, data.dtype)
                data.view(np.uint8)[:] = FILL
                output, start = k, start + GUARD
                if overwritten is not None:
                    where = strided(data, start, view)
                    where[...] = case.inputs[overwritten.name].reshape(where.shape)
            else:
                where = strided(data, start, view)
                where[...] = case.inputs[arg.value.name].reshape(where.shape)
            blocks.append((data, start + arg.offset))
        else:
            blocks.append((np.full(max(1, arg.scratch_bytes), 0xFF, np.uint8), 0))
    return Built(case, kernel, blocks, output, views[group.output])


def program(built: Sequence[Built], target: Target, cut: int = 0) -> str:
    """The C source of all cases; with ``cut`` every kernel runs in two pieces of its rows."""
    words = frozenset().union(*(b.kernel.math for b in built))
    text = ["#define _POSIX_C_SOURCE 200809L", simd_header(target.isa, words)]
    names: dict[str, str] = {}
    table = []
    for i, b in enumerate(built):
        name = named(b.kernel, f"k{i}_{b.kernel.name}", names, text)
        args = ", ".join(
            f"({arg.ctype})b[{k}] + {start}"
            for k, (arg, (_, start)) in enumerate(zip(b.kernel.args, b.blocks, strict=True))
        )
        rows = b.kernel.rows
        pieces = [(0, min(cut, rows)), (min(cut, rows), rows)] if cut else [(0, rows)]
        calls = " ".join(f"{name}({args}, {r0}, {r1});" for r0, r1 in pieces)
        sizes = ", ".join(str(data.nbytes) for data, _ in b.blocks)
        text.append(f"static void run{i}(void **b) {{ {calls} }}")
        text.append(f"static const size_t bytes{i}[] = {{{sizes}}};")
        text.append(f"static const int role{i}[] = {{{', '.join('0' for _ in b.blocks)}}};")
        table.append(f"    {{run{i}, {len(b.blocks)}, bytes{i}, role{i}, {b.output}}},\n")
    return "\n".join(text) + MAIN.replace("@TABLE@", "".join(table))


def check(
    cases: Sequence[IntegerCase],
    target: Target,
    folder: Path,
    *,
    cc: str = "gcc",
    flags: Sequence[str] = (),
    emulator: Sequence[str] = (),
    cut: int = 0,
) -> None:
    """Assert that every case gives its numpy rule's elements and writes nothing else."""
    built = [build(c, target) for c in cases]
    source, exe = folder / "cases.c", folder / "cases"
    source.write_text(program(built, target, cut))
    command = [cc, *WARNINGS, *flags, str(source), "-o", str(exe), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    with (folder / "in.bin").open("wb") as f:
        for b in built:
            for data, _ in b.blocks:
                f.write(data.tobytes())
    run = [*emulator, str(exe), str(folder / "in.bin"), str(folder / "out.bin")]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    raw, at, wrong = (folder / "out.bin").read_bytes(), 0, []
    for b in built:
        before, start = b.blocks[b.output]
        data = np.frombuffer(raw[at : at + before.nbytes], before.dtype).copy()
        at += before.nbytes
        inside = strided(data, start, b.view)
        want = b.case.expected().reshape(inside.shape)
        if not np.array_equal(inside, want):
            wrong.append(f"{b.case.name}: {(inside != want).sum()} of {want.size} elements differ")
        inside[...] = strided(before, start, b.view)
        if not np.array_equal(data, before):
            wrong.append(f"{b.case.name}: written outside")
    assert not wrong, wrong[:20]
