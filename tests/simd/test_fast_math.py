"""The shorter formulas of opt level 4 against float64, on every ISA."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from simd.test_simd import ISAS, compile_c, header, run

FUNCTIONS = ["fast_exp", "fast_tanh", "fast_sigmoid", "fast_erf"]


@pytest.mark.parametrize("isa", ISAS)
def test_errors_are_as_the_header_says(isa: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate(
        [rng.uniform(-87.3, 88.3, 1 << 16), rng.standard_normal(1 << 16), [np.nan, -np.inf, np.inf]]
        + [[0.0, -0.0, 1e-30, -1e-30, 89.0, -100.0, 1e30, -1e30, 5.9, 6.1, -6.1, 0.5, 1.0]]
    ).astype(np.float32)
    assert x.size % 16 == 0
    program, given, got = tmp_path / "sample", tmp_path / "in.bin", tmp_path / "out.bin"
    include = header(isa, FUNCTIONS, tmp_path)
    compile_c(ISAS[isa], "gcc", "fast_sample.c", include, "-O2", "-o", str(program), "-lm")
    x.tofile(given)
    run(ISAS[isa], program, str(given), str(got))
    results = np.fromfile(got, np.float32).reshape(4, 2, x.size)
    for name, (vector, scalar) in zip(FUNCTIONS, results, strict=True):
        assert np.isnan(vector[1 << 17])
        assert np.isnan(scalar[1 << 17])
        bits = [np.delete(y, 1 << 17).view(np.int32) for y in (vector, scalar)]
        np.testing.assert_array_equal(*bits, name)
    wide = x.astype(np.float64)
    ordinary = np.abs(wide) <= 87.3
    e, t, s, f = (pair[0].astype(np.float64) for pair in results)
    with np.errstate(over="ignore"):
        relative = np.abs(e[ordinary] / np.exp(wide[ordinary]) - 1)
        assert relative.max() < 1e-5
        assert np.abs(s[ordinary] * (1 + np.exp(-wide[ordinary])) - 1).max() < 1e-5
    finite = ~np.isnan(wide)
    assert np.abs(t - np.tanh(wide))[finite].max() < 1e-6
    erf = np.vectorize(math.erf, otypes=[np.float64])
    assert np.abs(f - erf(wide))[finite].max() < 3e-6
    assert e[(1 << 17) + 1] < 1e-37
    assert np.isposinf(e[(1 << 17) + 2])
    assert (np.abs(t[finite]) <= 1).all()
    assert (np.abs(f[finite]) <= 1).all()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_each_is_complete_and_free_of_warnings(
    function: str, compiler: str, tmp_path: Path
) -> None:
    source = tmp_path / "one.c"
    source.write_text(
        f'#include "simd.h"\nextern float f(float x);\n'
        f"float f(float x) {{ return s_{function}(x); }}\n"
        f"extern vf g(vf v);\nvf g(vf v) {{ return v{function}(v); }}\n"
    )
    for isa in ("scalar", "avx2"):
        include = header(isa, [function], tmp_path / isa)
        compile_c(ISAS[isa], compiler, str(source), include, "-O1", "-c", "-o", "/dev/null")
