"""Layout copies and border fills move exactly the elements they should, in C."""

from __future__ import annotations

import struct
import subprocess
from itertools import permutations
from pathlib import Path

import numpy as np
from te.nest_harness import ISA_FLAGS, MAIN, MATH, WARNINGS, elements, strided

from aotgen.codegen.environment import render
from aotgen.ir.types import DType
from aotgen.schedule.base import Kernel, View, dense_strides
from aotgen.schedule.opaque.copy import border_fill, copy_nest
from aotgen.target.target import Target

TARGET = Target("avx2")


def run_kernels(
    kernels: list[Kernel], blocks: list[list[tuple[np.ndarray, int]]], folder: Path
) -> list[np.ndarray]:
    """Run each kernel on (memory, element the pointer starts at) blocks; the last block of each."""
    text = [render("simd/avx2.h.j2", math=MATH)]
    calls = []
    for k, kernel in enumerate(kernels):
        text.append(kernel.body.replace("@KERNEL@", f"k{k}"))
        casts = ", ".join(f"({a.ctype})p[{n}]" for n, a in enumerate(kernel.args))
        head = f"static void c{k}(void **p, int32_t r0, int32_t r1)"
        text.append(f"{head} {{ k{k}({casts}, r0, r1); }}")
        calls.append(f"c{k}")
    text.append(f"#define CASES {len(calls)}")
    table = ", ".join(calls)
    text.append(f"static void (*const calls[])(void **, int32_t, int32_t) = {{{table}}};")
    (folder / "c.c").write_text("\n".join(text) + MAIN)
    command = ["gcc", *WARNINGS, *ISA_FLAGS["avx2"], "-O1", "-fsanitize=address,undefined"]
    subprocess.run([*command, "c.c", "-o", "c", "-lm"], cwd=folder, check=True)
    blob = b""
    for kernel, arrays in zip(kernels, blocks, strict=True):
        blob += struct.pack("<3i", len(arrays), kernel.rows, 0)
        for n, (array, start) in enumerate(arrays):
            size = array.itemsize
            blob += struct.pack("<3i", array.nbytes, start * size, int(n == len(arrays) - 1))
            blob += array.tobytes()
    (folder / "in").write_bytes(blob)
    subprocess.run(["./c", "in", "out"], cwd=folder, check=True)
    raw, at, found = (folder / "out").read_bytes(), 0, []
    for arrays in blocks:
        last = arrays[-1][0]
        found.append(np.frombuffer(raw, last.dtype, last.size, at))
        at += last.nbytes
    return found


def test_copies_of_all_permutations(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    kernels, blocks, wanted, views = [], [], [], []
    for shape in ((2, 3, 5, 7), (1, 40, 1, 35), (3, 17, 33, 2)):
        for perm in permutations(range(4)):
            dtype = [DType.F32, DType.I8, DType.I64][len(kernels) % 3]
            data = rng.integers(-100, 100, shape).astype(dtype.numpy)
            strides = [dense_strides(shape)[p] for p in perm]
            moved = tuple(shape[p] for p in perm)
            gap = len(kernels) % 2
            target = View(moved, dense_strides((*moved[:-1], moved[-1] + gap)), dtype)
            source = View(moved, tuple(strides), dtype)
            kernels.append(copy_nest(source, target, dtype, TARGET))
            blocks.append([(data.ravel(), 0), (np.zeros(elements(target), dtype.numpy), 0)])
            wanted.append(data.transpose(perm))
            views.append(target)
    results = run_kernels(kernels, blocks, tmp_path)
    for got, want, view in zip(results, wanted, views, strict=True):
        assert np.array_equal(strided(got, view), want)


def test_border_fill_writes_the_border_and_nothing_else(tmp_path: Path) -> None:
    kernels, blocks, wanted = [], [], []
    for shape, border in (
        ((1, 4, 5, 3), ((0, 0), (1, 2), (3, 1), (0, 0))),
        ((2, 4, 5, 3), ((0, 0), (1, 1), (1, 1), (0, 0))),
        ((2, 6, 4), ((0, 0), (2, 0), (0, 3))),
    ):
        sizes = [n + b + a for n, (b, a) in zip(shape, border, strict=True)]
        strides = dense_strides(tuple(sizes))
        start = sum(b * s for (b, _), s in zip(border, strides, strict=True))
        data = np.full(sizes, 7, np.float32)
        want = np.full(sizes, -1.5, np.float32)
        want[tuple(slice(b, b + n) for n, (b, _) in zip(shape, border, strict=True))] = 7
        view = View(shape, strides, DType.F32, border)
        kernels.append(border_fill(view, TARGET, -1.5))
        blocks.append([(data.ravel(), start)])
        wanted.append(want.ravel())
    for got, want in zip(run_kernels(kernels, blocks, tmp_path), wanted, strict=True):
        assert np.array_equal(got, want)
