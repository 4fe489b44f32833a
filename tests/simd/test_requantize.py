"""Fixed-point scaling of accumulators: the same int32 from every ISA, from the interpreter and from
tflite-micro.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from aotgen.codegen.simd import simd_header
from aotgen.ir.requant import apply, quantize_multiplier
from aotgen.ir.types import DType, Requant
from tests.oracles import tflm
from tests.simd.test_simd import ISAS, VARIANTS, compile_c, runner
from tests.tflite_builder import ModelBuilder

PAIRS = 200
FEW, ALL = 1 << 15, 1 << 24
"""Accumulators a pair: in every run of the tests, and in the sweep."""


def pairs() -> np.ndarray:
    """int32 [PAIRS, 2]: multipliers and shifts, their extremes first."""
    rng = np.random.default_rng(7)
    multipliers = rng.integers(1 << 30, 1 << 31, PAIRS)
    shifts = rng.integers(-31, 31, PAIRS)
    ends = [(1 << 30, 0), (1 << 30, -31), (1 << 30, 30), ((1 << 31) - 1, 0), ((1 << 31) - 1, -31)]
    ends += [((1 << 31) - 1, 30), (0, 0), (1 << 30, 1), (1 << 30, -1), (1518500250, -8)]
    made = np.stack([multipliers, shifts], axis=1)
    made[: len(ends)] = ends
    return made.astype(np.int32)


def build(name: str, compiler: str, folder: Path) -> tuple[list[str], Path]:
    """(words before the program, the program) for an ISA."""
    isa = ISAS[name]
    words = runner(isa)
    (folder / "simd.h").write_text(simd_header(name, {"int8", "requantize"}))
    program = folder / "requantize"
    compile_c(isa, compiler, "requantize_sweep.c", folder, "-O2", "-o", str(program))
    return words, program


def sweep(name: str, compiler: str, count: int, folder: Path) -> None:
    words, program = build(name, compiler, folder)
    (folder / "pairs").write_bytes(pairs().tobytes())
    command = [*words, str(program), "sweep", str(count), str(folder / "pairs")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "compiler"), VARIANTS)
def test_words_are_exact(name: str, compiler: str, tmp_path: Path) -> None:
    sweep(name, compiler, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ISAS)
def test_words_are_exact_everywhere(name: str, tmp_path: Path) -> None:
    emulated = ISAS[name].core != ""  # 100 times slower
    sweep(name, "gcc", ALL // 256 if emulated else ALL, tmp_path)


def oracle_samples() -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Accumulators [n], tflite-micro's int16 outputs for them, and the real multiplier of each.

    A FULLY_CONNECTED of int16 with an int32 bias scales bias + 0 by its channel's own multiplier.
    """
    rng = np.random.default_rng(11)
    n = 6000
    x_scale = np.float32(0.75)
    scales = np.exp2(rng.uniform(-22, 2, n)).astype(np.float32)
    scales[:300] = np.exp2(rng.integers(-20, 2, 300)).astype(np.float32)  # ties are frequent
    reals = [float(x_scale) * float(s) / 0.75 for s in scales]
    acc = np.rint((rng.integers(-32000, 32000, n) + 0.5) / reals + rng.integers(-1, 2, n))
    acc = np.clip(acc, -(2.0**31), 2.0**31 - 1).astype(np.int32)
    acc[-20:] = np.int32(-(2**31))
    b = ModelBuilder()
    x = b.input("x", (1, 1), "int16", scale=x_scale, zero=0)
    w = b.const("w", np.zeros((n, 1), np.int8), scale=scales, zero=np.zeros(n, np.int64))
    bias = b.const("bias", acc, scale=x_scale * scales, zero=np.zeros(n, np.int64))
    b.output(b.op("FULLY_CONNECTED", [x, w, bias], out=("y", (1, n), "int16", 0.75, 0)))
    return acc, tflm(b.finish(), [np.zeros((1, 1), np.int16)])[0][0], reals


def test_interpreter_is_the_oracle() -> None:
    acc, expected, reals = oracle_samples()
    found = [quantize_multiplier(r) for r in reals]
    requant = Requant(
        "tflm", tuple(m for m, _ in found), tuple(s for _, s in found), (), 0, -32768, 32767
    )
    assert np.array_equal(apply(requant, acc, axis=0, dtype=DType.I16), expected)
    assert len(np.unique(expected)) > 1000


@pytest.mark.parametrize("name", ISAS)
def test_words_are_the_interpreter(name: str, tmp_path: Path) -> None:
    """On the oracle's accumulators, and on the extremes of all pairs."""
    words, program = build(name, "gcc", tmp_path)
    acc, expected, reals = oracle_samples()
    triples = [(a, *quantize_multiplier(r)) for a, r in zip(acc.tolist(), reals, strict=True)]
    ends = [-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 1]
    triples += [(a, m, s) for m, s in pairs().tolist() for a in ends]
    (tmp_path / "in").write_bytes(np.asarray(triples, np.int32).tobytes())
    command = [*words, str(program), "values", str(tmp_path / "in"), str(tmp_path / "out")]
    subprocess.run(command, check=True)
    got = np.fromfile(tmp_path / "out", np.int32).reshape(-1, 2)
    assert np.array_equal(np.clip(got[: len(acc), 0], -32768, 32767), expected)
    for column, kind in enumerate(("tflm", "litert")):
        requants = {
            (m, s): Requant(kind, (m,), (s,), (), 0, -(1 << 31), (1 << 31) - 1)  # type: ignore[arg-type]
            for _, m, s in triples
        }
        want = [
            int(apply(requants[m, s], np.asarray([a], np.int32), dtype=DType.I32)[0])
            for a, m, s in triples
        ]
        assert got[:, column].tolist() == want
