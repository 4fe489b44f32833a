"""Builds kernels straight from templates into one C program, runs it (also under qemu or a
sanitizer) and compares.

A ``Case`` is one Group with concrete inputs. Its tensors get their own memory blocks with exactly
the border the template asked for, so that a sanitizer sees any access outside; ``gap`` makes pixel
strides differ from the channel count.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from aotgen.codegen.simd import simd_header
from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.ops.registry import op_def
from aotgen.schedule.base import Arg, Config, Kernel, Need, Template, View, Views
from aotgen.target.target import Target

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-std=c99", "-ffp-contract=off"]
ISA_FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-march=x86-64-v4"],
    "neon": [],
    "neon_armv7": ["-mcpu=cortex-a53", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"],
}

UNTOUCHED = 7777.0
"""Of outputs before a kernel runs."""


def flags_of(isa: str) -> list[str]:
    return ISA_FLAGS.get(isa, [])  # those of a Cortex-M core come with its compiler's


@dataclass
class Case:
    """One Group, its inputs and what it must give.

    Attributes:
        template: the template to render.
        gap: extra elements between two pixels of every activation and of the output.
        physical: by input name, the order of its axes in memory (NCHW: (0, 3, 1, 2)).
        config: of a target; None for the default.
    """

    name: str
    group: Group
    template: Template
    inputs: dict[str, np.ndarray]
    gap: int = 0
    physical: dict[str, tuple[int, ...]] = field(default_factory=dict)
    config: Callable[[Target], Config] | None = None
    expected: np.ndarray | None = None

    def oracle(self) -> np.ndarray:
        """The group's output in float64 by numpy's rules of every op."""
        if self.expected is not None:
            return self.expected
        env: dict[str, np.ndarray] = {k: v.astype(np.float64) for k, v in self.inputs.items()}
        for node in self.group.nodes:
            args = []
            for v in node.inputs:
                if v is None:
                    args.append(None)
                elif v.const is not None:
                    wide = v.const.astype(np.float64) if v.dtype is DType.F32 else v.const
                    args.append(wide)
                else:
                    args.append(env[v.name])
            for value, array in zip(node.outputs, op_def(node.op).numpy(node, args), strict=True):
                env[value.name] = array
        return env[self.group.output.name]


@dataclass
class Block:
    """Memory of one argument: its floats, and the element the pointer starts at."""

    data: np.ndarray
    start: int
    output: bool


@dataclass
class Built:
    """A case rendered for a target."""

    case: Case
    kernel: Kernel
    blocks: list[Block]
    out_view: View

    def result(self, data: np.ndarray) -> np.ndarray:
        block = next(b for b in self.blocks if b.output)
        return elements(data[block.start :], self.out_view).reshape(self.out_view.shape)


def elements(data: np.ndarray, view: View) -> np.ndarray:
    """The elements of a view whose pointer is ``data``'s start, in logical order; blocks of
    channels have the last axis in two.
    """
    strided = view.as_strided
    return np.lib.stride_tricks.as_strided(data, strided.shape, [4 * s for s in strided.strides])


def make_view(
    value: Value, need: Need, gap: int, order: tuple[int, ...] | None
) -> tuple[View, int, int]:
    """(view, floats of its block, element its pointer starts at)."""
    shape = value.shape
    rank = len(shape)
    border = tuple(need.border) or ((0, 0),) * rank
    if need.layout == "nchwc":
        view = View.blocked(shape, value.dtype, need.block, border)
        start = sum(b[0] * s for b, s in zip(border, view.strides, strict=True))
        return view, shape[0] * view.strides[0], start
    sizes = [n + b + e for n, (b, e) in zip(shape, border, strict=True)]
    if gap and rank and order is None:
        sizes[-1] += gap
    strides = [0] * rank
    step = 1
    for axis in reversed(order or range(rank)):
        strides[axis] = step
        step *= sizes[axis]
    start = sum(b[0] * s for b, s in zip(border, strides, strict=True))
    if gap and rank and order is None:
        start += gap // 2
    return View(shape, tuple(strides), value.dtype, tuple(border)), step, start


def build(case: Case, target: Target) -> Built:
    chosen = case.config or (lambda t: case.template.default(case.group, t))
    config = chosen(target)
    case.template.check(case.group, target, config)
    needs = case.template.needs(case.group, target, config)
    out_need = case.template.output_need(case.group, target, config)
    layouts: dict[str, tuple[View, int, int]] = {}
    for v in [*case.group.activations, case.group.output]:
        need = needs.get(v.name, out_need if v is case.group.output else Need())
        gap = 0 if need.dense else case.gap
        layouts[v.name] = make_view(v, need, gap, case.physical.get(v.name))
    views = Views({k: v[0] for k, v in layouts.items()})
    kernel = case.template.kernel(case.group, target, config, views)
    blocks = []
    for arg in kernel.args:
        if arg.const is not None:
            blocks.append(Block(np.ascontiguousarray(arg.const.array).reshape(-1), 0, False))
        elif arg.value is not None:
            view, size, start = layouts[arg.value.name]
            data = np.zeros(size, np.float32)
            if arg.is_output:
                data[:] = UNTOUCHED
            else:
                target_view = elements(data[start:], view)
                if case.gap:
                    data[:] = 0.0
                target_view[...] = case.inputs[arg.value.name].reshape(target_view.shape)
            blocks.append(Block(data, start + arg.offset, arg.is_output))
        else:
            blocks.append(
                Block(np.full(max(1, arg.scratch_bytes // 4), np.nan, np.float32), 0, False)
            )
    return Built(case, kernel, blocks, views[case.group.output])


MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef void (*runner)(void **b);
/* role of a block: 0 constant, 1 input, 2 further input, 3 output, 4 scratch */
static const struct {
    runner run;
    int count;
    const size_t *bytes;
    const int *role;
    int output;
} cases[] = {
@TABLE@};
enum { CASES = sizeof cases / sizeof *cases };
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void **load(FILE *f, int i, void **shared) {
    void **b = malloc((size_t)cases[i].count * sizeof *b);
    for (int k = 0; k < cases[i].count; k++) {
        const int role = cases[i].role[k];
        const size_t n = cases[i].bytes[k];
        if (shared && role) { /* activations pass from case to case as in a network */
            b[k] = shared[role == 4 ? 3 : role == 2 ? 2 : (role == 3) ^ (i & 1)];
            if (fread(b[k], 1, n, f) != n) exit(3);
            continue;
        }
        b[k] = NULL;
        if (posix_memalign(&b[k], 64, n) || fread(b[k], 1, n, f) != n) exit(3);
    }
    return b;
}
int main(int argc, char **argv) {
    FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
    const int rounds = argc > 3 ? atoi(argv[3]) : 0;
    if (!in || !out) return 2;
    if (rounds) { /* all cases resident, run one after the other as in a network */
        void **all[CASES];
        double best[CASES];
        double whole = 1e9;
        void *shared[4] = {0};
        size_t most = 0;
        for (int i = 0; i < CASES; i++)
            for (int k = 0; k < cases[i].count; k++)
                if (cases[i].role[k] && cases[i].bytes[k] > most) most = cases[i].bytes[k];
        for (int k = 0; k < 4; k++)
            if (posix_memalign(&shared[k], 64, most)) return 3;
        for (int i = 0; i < CASES; i++) all[i] = load(in, i, shared), best[i] = 1e9;
        for (int r = 0; r < rounds; r++) {
            double begin = now(), t = begin;
            for (int i = 0; i < CASES; i++) {
                cases[i].run(all[i]);
                const double u = now();
                if (u - t < best[i]) best[i] = u - t;
                t = u;
            }
            if (t - begin < whole) whole = t - begin;
        }
        for (int i = 0; i < CASES; i++) fwrite(&best[i], sizeof best[i], 1, out);
        fwrite(&whole, sizeof whole, 1, out);
        return fclose(out);
    }
    for (int i = 0; i < CASES; i++) {
        void **b = load(in, i, NULL);
        cases[i].run(b);
        fwrite(b[cases[i].output], 1, cases[i].bytes[cases[i].output], out);
        for (int k = 0; k < cases[i].count; k++) free(b[k]);
        free(b);
    }
    return fclose(out);
}
"""


def program(built: Sequence[Built], target: Target, cut: int = 0) -> str:
    """The C source of all cases; with ``cut`` every kernel runs in two pieces of its rows."""
    math = sorted(frozenset().union(*(b.kernel.math for b in built)))
    text = [
        "#define _POSIX_C_SOURCE 200809L",
        simd_header(target.isa, math),
    ]
    names: dict[str, str] = {}
    table = []
    for i, b in enumerate(built):
        name = named(b.kernel, f"k{i}_{b.kernel.name}", names, text)
        args = []
        for k, (arg, block) in enumerate(zip(b.kernel.args, b.blocks, strict=True)):
            args.append(
                f"({arg.ctype})b[{k}] + {block.start}"
                if block.start >= 0
                else f"({arg.ctype})b[{k}]"
            )
        rows = b.kernel.rows
        pieces = [(0, min(cut, rows)), (min(cut, rows), rows)] if cut else [(0, rows)]
        calls = " ".join(f"{name}({', '.join(args)}, {r0}, {r1});" for r0, r1 in pieces)
        text.append(f"static void run{i}(void **b) {{ {calls} }}")
        sizes = ", ".join(str(x.data.nbytes) for x in b.blocks)
        text.append(f"static const size_t bytes{i}[] = {{{sizes}}};")
        output = next(k for k, x in enumerate(b.blocks) if x.output)
        roles = ", ".join(str(role(arg, k)) for k, arg in enumerate(b.kernel.args))
        text.append(f"static const int role{i}[] = {{{roles}}};")
        table.append(f"    {{run{i}, {len(b.blocks)}, bytes{i}, role{i}, {output}}},\n")
    return "\n".join(text) + MAIN.replace("@TABLE@", "".join(table))


def named(kernel: Kernel, name: str, names: dict[str, str], text: list[str]) -> str:
    """The C name of a kernel: that of an equal one before it, else ``name``; then it and the
    routines that are new are added to ``text``.
    """
    body, routines = kernel.linked("shared")
    for full, routine in routines.items():
        if full not in names:
            names[full] = full
            text += [f"#include <{header}>" for header in sorted(routine.includes)]
            text += [f"{routine.prototype};", routine.text]
    if body not in names:
        names[body] = name
        text.append(body.replace("@KERNEL@", name))
    return names[body]


def role(arg: Arg, position: int) -> int:
    """How the timing loop places an argument: see MAIN."""
    if arg.const is not None:
        return 0
    if arg.value is None:
        return 4
    return 3 if arg.is_output else 1 if position == 0 else 2


def compile_program(
    built: Sequence[Built],
    target: Target,
    folder: Path,
    cc: str,
    extra: Sequence[str],
    cut: int = 0,
) -> Path:
    source, exe = folder / f"{target.isa}.c", folder / f"{target.isa}_{Path(cc).name}"
    source.write_text(program(built, target, cut))
    command = [cc, *WARNINGS, *flags_of(target.isa), *extra, str(source), "-o", str(exe), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return exe


def write_blocks(built: Sequence[Built], path: Path) -> None:
    with path.open("wb") as f:
        for b in built:
            for block in b.blocks:
                f.write(block.data.tobytes())


def run_cases(
    cases: Sequence[Case],
    target: Target,
    folder: Path,
    *,
    cc: str = "gcc",
    extra: Sequence[str] = ("-O2",),
    emulator: Sequence[str] = (),
    cut: int = 0,
) -> list[np.ndarray]:
    """Outputs of all cases from one program."""
    built = [build(c, target) for c in cases]
    exe = compile_program(built, target, folder, cc, extra, cut)
    write_blocks(built, folder / "in.bin")
    done = subprocess.run(
        [*emulator, str(exe), str(folder / "in.bin"), str(folder / "out.bin")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[:4000]
    raw = np.fromfile(folder / "out.bin", np.float32)
    results, at = [], 0
    for b in built:
        size = next(x.data.size for x in b.blocks if x.output)
        results.append(b.result(raw[at : at + size]))
        at += size
    return results


def check_cases(
    cases: Sequence[Case], target: Target, folder: Path, tolerance: float = 1e-5, **kwargs: object
) -> None:
    """Assert every case within ``tolerance`` of the oracle, relative to its largest value."""
    results = run_cases(cases, target, folder, **kwargs)  # type: ignore[arg-type]
    wrong = []
    for case, got in zip(cases, results, strict=True):
        want = case.oracle()
        assert got.shape == want.shape, case.name
        scale = max(float(np.abs(want).max()), 1e-3)
        error = float(np.abs(got - want).max()) / scale
        if not error <= tolerance:
            wrong.append(f"{case.name}: {error:.2e}")
    assert not wrong, wrong


def time_cases(
    cases: Sequence[Case],
    target: Target,
    folder: Path,
    *,
    rounds: int,
    cc: str = "gcc",
    extra: Sequence[str] = ("-O3",),
    prefix: Sequence[str] = (),
) -> tuple[list[float], float]:
    """(least seconds of every case, least seconds of all in a row)."""
    built = [build(c, target) for c in cases]
    exe = compile_program(built, target, folder, cc, extra)
    write_blocks(built, folder / "in.bin")
    subprocess.run(
        [*prefix, str(exe), str(folder / "in.bin"), str(folder / "t.bin"), str(rounds)], check=True
    )
    times = np.fromfile(folder / "t.bin", np.float64)
    return [float(t) for t in times[:-1]], float(times[-1])


def conv_case(
    name: str,
    template: Template,
    x: tuple[int, ...],
    outputs: int,
    kernel: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    dilations: tuple[int, ...] | None = None,
    groups: int = 1,
    bias: bool = True,
    seed: int = 0,
    relu: bool = False,
    add: bool = False,
    **kwargs: object,
) -> Case:
    """A conv group with seeded values; ``add`` and ``relu`` append an epilogue."""
    axes = len(x) - 2
    rng = np.random.default_rng(seed)
    graph = Graph("case", [], [], [])
    xv = Value("x", TensorType(DType.F32, x))
    w = rng.standard_normal((outputs, *kernel, x[-1] // groups), np.float32)
    w /= np.float32(np.sqrt(w[0].size))
    wv = graph.constant(w, "weights")
    bv = graph.constant(rng.standard_normal(outputs, np.float32), "b") if bias else None
    node = graph.make(
        "conv",
        [xv, wv, bv],
        name="conv",
        strides=strides or (1,) * axes,
        pads=pads or (0,) * 2 * axes,
        dilations=dilations or (1,) * axes,
        groups=groups,
    )
    nodes, inputs = [node], {"x": rng.standard_normal(x, np.float32)}
    if add:
        r = Value("residual", node.output.type)
        nodes.append(graph.make("add", [nodes[-1].output, r], name="sum"))
        inputs["residual"] = rng.standard_normal(node.output.shape, np.float32)
    if relu:
        nodes.append(graph.make("relu", [nodes[-1].output], name="relu"))
    return Case(name, Group(nodes, node, "conv"), template, inputs, **kwargs)  # type: ignore[arg-type]


def matmul_case(
    name: str,
    template: Template,
    a: tuple[int, ...],
    b: tuple[int, ...],
    *,
    const_b: bool = True,
    trans_b: bool = False,
    bias: bool = True,
    seed: int = 0,
    **kwargs: object,
) -> Case:
    """A matmul group with seeded values."""
    rng = np.random.default_rng(seed)
    graph = Graph("case", [], [], [])
    av = Value("a", TensorType(DType.F32, a))
    inputs = {"a": rng.standard_normal(a, np.float32)}
    values = rng.standard_normal(b, np.float32) / np.float32(np.sqrt(a[-1]))
    if const_b:
        bv = graph.constant(values, "weights")
    else:
        bv, inputs["b"] = Value("b", TensorType(DType.F32, b)), values
    n = b[-2] if trans_b else b[-1]
    cv = graph.constant(rng.standard_normal(n, np.float32), "c") if bias else None
    node = graph.make("matmul", [av, bv, cv], name="matmul", trans_b=trans_b)
    return Case(name, Group([node], node, "matmul"), template, inputs, **kwargs)  # type: ignore[arg-type]


def pool_case(
    name: str,
    template: Template,
    op: str,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    dilations: tuple[int, ...] | None = None,
    include: bool = False,
    extra: tuple[int, ...] | None = None,
    seed: int = 0,
    **kwargs: object,
) -> Case:
    """A pooling group with seeded values."""
    axes = len(x) - 2
    attrs: dict[str, object] = {
        "kernel": kernel,
        "strides": strides or (1,) * axes,
        "pads": pads or (0,) * 2 * axes,
        "dilations": dilations or (1,) * axes,
        "ceil_extra": extra or (0,) * axes,
    }
    if op == "avg_pool":
        attrs["count_include_pad"] = include
    graph = Graph("case", [], [], [])
    node = graph.make(op, [Value("x", TensorType(DType.F32, x))], name="pool", **attrs)
    inputs = {"x": np.random.default_rng(seed).standard_normal(x, np.float32)}
    return Case(name, Group([node], node, "pool"), template, inputs, **kwargs)  # type: ignore[arg-type]


def followed_by(case: Case, op: str, constants: int = 0, **attrs: object) -> Case:
    """``case`` with one more node behind its last, which takes ``constants`` seeded channel
    vectors.
    """
    graph = Graph("case", [], [], [])
    output = case.group.output
    rng = np.random.default_rng(7)
    extra = [
        graph.constant(rng.standard_normal(output.shape[-1], np.float32), f"{op}{i}")
        for i in range(constants)
    ]
    node = graph.make(op, [output, *extra], name=op, **attrs)
    group = Group([*case.group.nodes, node], case.group.anchor, case.group.name)
    return replace(case, name=f"{case.name}, {op}", group=group)
