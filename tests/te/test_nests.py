"""Nests of every op: the generated C gives what the ops' numpy rules give, on every ISA, without a
warning from either compiler, and clean under the sanitizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from cortex_m_runs import CC, cortex_m
from te.nest_cases import all_cases, fused, norms, reductions
from te.nest_harness import Build, compare, run_build

from aotgen.target.target import Target
from support import SANITIZE, halves, require_tool, share

CONFIGURATIONS = [
    pytest.param("scalar", "gcc", SANITIZE, id="scalar-gcc-sanitized"),
    pytest.param("avx2", "gcc", ["-O1"], id="avx2-gcc", marks=pytest.mark.slow),
    pytest.param("avx512", "clang", ["-O1"], id="avx512-clang"),
]


def runs_here(isa: str) -> bool:
    flag = {"avx2": "avx2", "avx512": "avx512f"}.get(isa)
    cpu = Path("/proc/cpuinfo")
    return flag is None or (cpu.exists() and f" {flag} " in cpu.read_text())


@pytest.mark.parametrize(("isa", "compiler", "flags"), CONFIGURATIONS)
def test_nests_match_numpy(isa: str, compiler: str, flags: Sequence[str], tmp_path: Path) -> None:
    require_tool(compiler)
    if not runs_here(isa):
        pytest.skip(f"needs a core with {isa}")
    build = Build(all_cases(), Target(isa))  # type: ignore[arg-type]
    results = run_build(build, tmp_path, compiler, flags)
    wrong = [compare(c, r) for c, r in zip(build.cases, results, strict=True)]
    assert [w for w in wrong if w] == []


def test_flash_nests_match_numpy(tmp_path: Path) -> None:
    cases = [c for c in all_cases() if c.name.startswith(("pad", "concat", "chain pad", "conv "))]
    build = Build(cases, Target("scalar", optimize="flash"))
    results = run_build(build, tmp_path, "gcc", SANITIZE)
    wrong = [compare(c, r) for c, r in zip(build.cases, results, strict=True)]
    assert [w for w in wrong if w] == []


@pytest.mark.parametrize(("core", "part"), halves("m4", "m55"))
def test_nests_match_numpy_on_cortex_m(core: str, part: int, tmp_path: Path) -> None:
    m = cortex_m(core)
    made = share(all_cases(), part)
    if core == "m55":  # MVE takes denormals for zero, whose sign is none
        made = [c for c in made if not c.name.startswith("sign ")]
    for at in range(0, len(made), 100):
        build = Build(made[at : at + 100], m.target)
        results = run_build(build, tmp_path, CC, m.flags, m.emulator)
        wrong = [compare(c, r) for c, r in zip(build.cases, results, strict=True)]
        assert [w for w in wrong if w] == []


@pytest.mark.parametrize(
    ("isa", "triple", "emulator"),
    [
        ("neon", "aarch64-linux-gnu", "qemu-aarch64"),
        ("neon_armv7", "arm-linux-gnueabihf", "qemu-arm"),
    ],
)
def test_neon_nests_match_numpy(isa: str, triple: str, emulator: str, tmp_path: Path) -> None:
    require_tool(f"{triple}-gcc", emulator)
    build = Build([*reductions(), *norms(), *fused()], Target(isa))  # type: ignore[arg-type]
    results = run_build(build, tmp_path, f"{triple}-gcc -static", ["-O1"], [emulator])
    wrong = [compare(c, r) for c, r in zip(build.cases, results, strict=True)]
    assert [w for w in wrong if w] == []
