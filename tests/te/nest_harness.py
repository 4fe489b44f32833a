"""Builds nest kernels of many Groups into one C program and runs it on exact-size heap blocks.

Each argument of each kernel lies in a block of its own with no slack, so that a sanitizer sees
every access outside. The expected values are those of the ops' numpy rules.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aotgen.codegen.simd import PARTS, simd_header
from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Config, Kernel, View, Views, dense_strides
from aotgen.schedule.nest import NestTemplate
from aotgen.target.target import Target

WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off"]
ISA_FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-march=x86-64-v4"],
    "neon": [],
    "neon_armv7": ["-mcpu=cortex-a53", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"],
}
MATH = ["exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "sin", "cos", "tan", "pow"]

MAIN = r"""
#include <stdio.h>
#include <stdlib.h>

static void *xmalloc(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p) exit(2);
    return p;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    if (!in || !out) return 2;
    for (int c = 0; c < CASES; c++) {
        int32_t head[3];
        if (fread(head, 4, 3, in) != 3) return 2;
        void *block[16];
        void *pointer[16];
        int32_t info[16][3];
        for (int a = 0; a < head[0]; a++) {
            if (fread(info[a], 4, 3, in) != 3) return 2;
            block[a] = xmalloc((size_t)info[a][0]);
            pointer[a] = (char *)block[a] + info[a][1];
            if (fread(block[a], 1, (size_t)info[a][0], in) != (size_t)info[a][0]) return 2;
        }
        /* in two parts, as two threads would */
        const int32_t half = head[1] / 2;
        if (half) calls[c](pointer, 0, half);
        calls[c](pointer, half, head[1]);
        for (int a = 0; a < head[0]; a++) {
            if (info[a][2]) fwrite(block[a], 1, (size_t)info[a][0], out);
            free(block[a]);
        }
    }
    fclose(in);
    return fclose(out);
}
"""


def value(name: str, shape: Sequence[int], dtype: DType = DType.F32) -> Value:
    return Value(name, TensorType(dtype, tuple(shape)))


@dataclass
class Case:
    """One Group with concrete inputs.

    Attributes:
        gap: extra elements between the rows of the last axis of activations and output.
        inplace: name of the activation that the output overwrites.
        tolerance: of max |a - b| / max |b|.
    """

    name: str
    group: Group
    inputs: dict[str, np.ndarray]
    gap: int = 0
    inplace: str | None = None
    tolerance: float = 2e-6

    def expected(self) -> list[np.ndarray]:
        env: dict[str, Any] = dict(self.inputs)
        for node in self.group.nodes:
            args = [
                None if v is None else v.const if v.const is not None else env[v.name]
                for v in node.inputs
            ]
            results = op_def(node.op).numpy(node, args)
            env.update({v.name: r for v, r in zip(node.outputs, results, strict=True)})
        return [env[v.name] for v in self.group.outputs]

    def views(self) -> Views:
        by_name = {}
        for v in (*self.group.activations, *self.group.outputs):
            shape = v.shape
            if self.gap and shape:
                wide = (*shape[:-1], shape[-1] + self.gap)
                by_name[v.name] = View(shape, dense_strides(wide), v.dtype)
            else:
                by_name[v.name] = View.dense(shape, v.dtype)
        return Views(by_name, self.inplace)


@dataclass
class Build:
    """Cases rendered for one target."""

    cases: list[Case]
    target: Target
    kernels: list[Kernel] = field(default_factory=list)

    def render(self) -> str:
        template = NestTemplate()
        lines = [simd_header(self.target.isa, [*MATH, *PARTS])]
        calls = []
        for k, case in enumerate(self.cases):
            assert template.applies(case.group, self.target) is None, case.name
            if case.inplace:
                source = next(v for v in case.group.activations if v.name == case.inplace)
                assert template.may_alias(case.group, source) == "same_index", case.name
            kernel = template.kernel(case.group, self.target, Config(), case.views())
            self.kernels.append(kernel)
            lines.append(kernel.body.replace("@KERNEL@", f"k{k}_{kernel.name}"))
            casts = ", ".join(f"({a.ctype})p[{n}]" for n, a in enumerate(kernel.args))
            lines.append(
                f"static void call_{k}(void **p, int32_t r0, int32_t r1) "
                f"{{ k{k}_{kernel.name}({casts}, r0, r1); }}"
            )
            calls.append(f"call_{k}")
        lines.append(f"#define CASES {len(calls)}")
        lines.append(
            f"static void (*const calls[])(void **, int32_t, int32_t) = {{{', '.join(calls)}}};"
        )
        return "\n".join(lines) + MAIN

    def arguments(self, k: int) -> list[tuple[int, bytes, bool, int]]:
        """(bytes, data, is an output, bytes of an element) of the arguments of case ``k``."""
        case, kernel = self.cases[k], self.kernels[k]
        views, out = case.views(), []
        for arg in kernel.args:
            if arg.scratch_bytes:
                data = np.full(arg.scratch_bytes, 0x5A, np.uint8)
            elif arg.const is not None:
                data = arg.const.array
            else:
                assert arg.value is not None
                view = views[arg.value]
                data = np.zeros(elements(view), view.dtype.numpy)
                data.view(np.uint8)[:] = 0x5A if view.dtype is not DType.BOOL else 0
                source = case.inplace if arg.is_output else arg.value.name
                if source is not None:
                    strided(data, view)[...] = case.inputs[source]
            raw = np.ascontiguousarray(data).tobytes()
            out.append((len(raw), raw, arg.is_output, data.itemsize))
        return out

    def blob(self) -> bytes:
        out = []
        for k, kernel in enumerate(self.kernels):
            out.append(struct.pack("<3i", len(kernel.args), kernel.rows, 0))
            for size, raw, is_output, _ in self.arguments(k):
                out.append(struct.pack("<3i", size, 0, int(is_output)) + raw)
        return b"".join(out)

    def results(self, raw: bytes, skip: int = 0) -> list[list[np.ndarray]]:
        """The outputs in what the program wrote; ``skip`` elements precede each."""
        at, found = 0, []
        for case, kernel in zip(self.cases, self.kernels, strict=True):
            views, one = case.views(), []
            for arg in kernel.args:
                if arg.is_output:
                    assert arg.value is not None
                    view = views[arg.value]
                    at += skip * view.dtype.size
                    n = elements(view)
                    data = np.frombuffer(raw, view.dtype.numpy, n, at)
                    at += n * view.dtype.size
                    one.append(strided(data, view).copy())
            found.append(one)
        return found


def elements(view: View) -> int:
    """Elements from the first to the last one of a view."""
    return 1 + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))


def strided(data: np.ndarray, view: View) -> np.ndarray:
    item = view.dtype.size
    return np.lib.stride_tricks.as_strided(data, view.shape, [item * s for s in view.strides])


def run_build(
    build: Build,
    folder: Path,
    compiler: str = "gcc",
    flags: Sequence[str] = (),
    runner: Sequence[str] = (),
) -> list[list[np.ndarray]]:
    """Compile and run; the outputs of every case."""
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / "nests.c", folder / "nests"
    source.write_text(build.render())
    command = [
        *compiler.split(),
        *WARNINGS,
        *ISA_FLAGS.get(build.target.isa, []),
        *(flags or ["-O1"]),
    ]
    done = subprocess.run(
        [*command, str(source), "-o", str(program), "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]
    (folder / "in.bin").write_bytes(build.blob())
    done = subprocess.run(
        [*runner, str(program), str(folder / "in.bin"), str(folder / "out.bin")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:4000]
    return build.results((folder / "out.bin").read_bytes())


def compare(case: Case, got: Sequence[np.ndarray]) -> str | None:
    """What differs, or None."""
    for want, have in zip(case.expected(), got, strict=True):
        if want.dtype.kind != "f":
            if not np.array_equal(want, have):
                return f"{case.name}: {int((want != have).sum())} of {want.size} elements differ"
            continue
        same = (want == have) | (np.isnan(want) & np.isnan(have))
        finite = np.isfinite(want) & np.isfinite(have)
        if not np.all(same | finite):
            return f"{case.name}: NaN or infinity differ"
        with np.errstate(invalid="ignore"):
            error = np.abs(want.astype(np.float64) - have)
        scale = max(float(np.max(np.abs(want[finite]), initial=0.0)), 1e-30)
        worst = float(np.max(error[finite & ~same], initial=0.0)) / scale
        if worst > case.tolerance:
            return f"{case.name}: relative error {worst:.3g}"
    return None


def single(
    op: str, inputs: Sequence[Value | np.ndarray | None], graph: Graph | None = None, **attrs: Any
) -> Group:
    """A Group of one node; arrays become constants."""
    graph = graph or Graph("t", [], [], [])
    values = [
        i if i is None or isinstance(i, Value) else graph.constant(np.asarray(i), "c")
        for i in inputs
    ]
    return Group([graph.make(op, values, **attrs)], None, op)
