"""Sums of 8-bit tensors in float32: every pair of values gives the fixed-point result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.integer_harness import IntegerCase, check

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import View, Views
from aotgen.schedule.nest import NestTemplate
from aotgen.target.board import ISA_CFLAGS, load_board
from aotgen.target.host import host_runs
from aotgen.target.target import Isa, Target
from support import require, require_tool


def attributes(rng: np.random.Generator, dtype: DType, relu: bool) -> dict[str, Any]:
    """Those of a TFLite ADD or SUB with random scales and zero points."""
    a, b = np.exp(rng.uniform(-4, -2, 2))
    out = max(a, b) * rng.uniform(0.8, 2.2)
    pairs = [quantize_multiplier(float(s / (2 * max(a, b)))) for s in (a, b)]
    multiplier, shift = quantize_multiplier(float(2 * max(a, b) / ((1 << 20) * out)))
    lo, hi = (-128, 127) if dtype is DType.I8 else (0, 255)
    zero = lo if relu else int(rng.integers(lo, hi + 1))
    return {
        "zeros": tuple(int(z) for z in rng.integers(lo, hi + 1, 2)),
        "left_shift": 20,
        "multipliers": tuple(m for m, _ in pairs),
        "shifts": tuple(s for _, s in pairs),
        "multiplier": multiplier,
        "shift": shift,
        "zero_point": zero,
        "lo": lo + 9 * (not relu),
        "hi": hi,
        "dtype": dtype,
        "quant": None,
    }


def cases() -> list[IntegerCase]:
    """All 65536 pairs of values each; the last one has equal scales, so that ties abound."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(24):
        dtype = DType.U8 if i % 3 == 2 else DType.I8
        attrs = attributes(rng, dtype, relu=i % 2 == 1)
        if i == 23:
            attrs |= {"multipliers": (1 << 30,) * 2, "shifts": (0, 0), "multiplier": 1 << 30}
            attrs |= {"shift": -19, "zeros": (3, -5)}
        values = np.arange(256).astype(np.uint8).view(dtype.numpy)
        grids = np.meshgrid(values, values, indexing="ij")
        inputs = {"a": np.ascontiguousarray(grids[0]), "b": np.ascontiguousarray(grids[1])}
        graph = Graph("case", [], [], [])
        operands = [Value(n, TensorType(dtype, v.shape)) for n, v in inputs.items()]
        node = graph.make("qadd" if i % 4 else "qsub", operands, name="sum", **attrs)
        made.append(IntegerCase(f"case {i}", Group([node], node, "sum"), inputs))
    return made


@pytest.mark.parametrize("isa", ("scalar", "avx2", "avx512"))
def test_x86(isa: Isa, tmp_path: Path) -> None:
    require(host_runs(isa), f"a CPU with {isa}")
    check(cases(), Target(isa), tmp_path, flags=("-O1", *ISA_CFLAGS[isa]))


@pytest.mark.parametrize("name", ("rpi4", "rpi3b-armv7"))
def test_arm(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    cc = f"{board.triple}-gcc"
    require_tool(cc, board.emulator[0])
    flags = ("-O1", *board.cflags())
    check(cases(), board.target(), tmp_path, cc=cc, flags=flags, emulator=board.emulator)


def test_almost_all_sums_have_a_short_form() -> None:
    target, nest = Target("avx2"), NestTemplate()
    short = 0
    for case in cases():
        tensors = [*case.group.activations, case.group.output]
        views = Views({v.name: View.dense(v.shape, v.dtype) for v in tensors})
        config = nest.default(case.group, target)
        short += "requantize" not in nest.kernel(case.group, target, config, views).body
    assert short >= 20
