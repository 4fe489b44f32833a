"""simd.h on every ISA: the vocabulary against its definition on floats, the math against float64.

The programs beside this file are built with the header that a generated project gets. x86 variants
run where the processor has the ISA, NEON and those of Cortex-M under QEMU.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from aotgen.codegen.environment import render
from tests.cortex_m_runs import CC, cortex_m
from tests.support import require_tool

HERE = Path(__file__).parent
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-ffp-contract=off")
MAX_ULP = 4.0

Floats = np.ndarray


@dataclass(frozen=True)
class Isa:
    name: str
    flags: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()  # what /proc/cpuinfo must list for it to run here
    triple: str = ""  # of a cross compiler
    emulator: str = ""
    flushes: bool = False  # vectors read and write denormals as zero
    core: str = ""  # of a bare Cortex-M board
    memory_end: str = ""  # there: behind which an access is a fault, in a RAM that programs leave


ISAS = {
    isa.name: isa
    for isa in (
        Isa("scalar"),
        Isa("avx2", ("-mavx2", "-mfma"), ("avx2", "fma")),
        Isa(
            "avx512",
            ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
            ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
        ),
        Isa("neon", triple="aarch64-linux-gnu", emulator="qemu-aarch64"),
        Isa(
            "neon_armv7",
            ("-mcpu=cortex-a53", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
            triple="arm-linux-gnueabihf",
            emulator="qemu-arm",
            flushes=True,
        ),
        Isa("dsp", core="m4", memory_end="0x20400000u"),
        Isa("mve", core="m55", memory_end="0x20080000u", flushes=True),
    )
}
# clang where it can link
VARIANTS = [(isa, "gcc") for isa in ISAS]
VARIANTS += [(isa, "clang") for isa in ("scalar", "avx2", "avx512")]
TINY = np.float32(2.0**-126)

# The order of math_sample.c; the reference takes float64.
REFERENCE: dict[str, Callable[..., Floats]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "pow": np.power,
}
NEEDS = {"log1p": {"log"}} | {f: {"log", "log1p"} for f in ("asinh", "acosh", "atanh")}
UNARY = [name for name in REFERENCE if name != "pow"]


def header(isa: str, functions: list[str], folder: Path) -> Path:
    """Write simd.h as the code generator does; returns the folder to include."""
    folder.mkdir(parents=True, exist_ok=True)
    text = render(f"simd/{isa}.h.j2", math=functions)
    (folder / "simd.h").write_text(text)
    return folder


def compile_c(isa: Isa, compiler: str, source: str, include: Path, *options: str) -> None:
    command = [compiler]
    if isa.triple:
        require_tool(f"{isa.triple}-gcc")  # clang needs its headers and libraries
        gcc = compiler == "gcc"
        command = [f"{isa.triple}-gcc"] if gcc else ["clang", f"--target={isa.triple}"]
    if isa.core:
        command = [CC, f"-DMEMORY_END={isa.memory_end}"]
        options = (*cortex_m(isa.core).flags, *options)
        if "-c" in options:
            options = tuple(o for o in options if not o.endswith((".c", ".ld")) and o != "-T")
    require_tool(command[0])
    command += [*WARNINGS, *isa.flags, f"-I{include}", str(HERE / source), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def runner(isa: Isa) -> list[str]:
    """The words before a program built for `isa`; skips where it cannot run."""
    if isa.core:
        return list(cortex_m(isa.core).emulator)
    if isa.emulator:
        require_tool(isa.emulator)
        return [isa.emulator, "-L", f"/usr/{isa.triple}"]
    flags = Path("/proc/cpuinfo").read_text().split()
    missing = [flag for flag in isa.cpu if flag not in flags]
    if missing:
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    return []


def run(isa: Isa, program: Path, *arguments: str) -> str:
    done = subprocess.run([*runner(isa), str(program), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def native() -> Isa:
    """The widest ISA that runs here without emulation."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return next(
        ISAS[name]
        for name in ("avx512", "avx2", "scalar")
        if all(flag in flags for flag in ISAS[name].cpu)
    )


# ---- the vocabulary


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_vocabulary_follows_its_definition(isa: str, level: str, tmp_path: Path) -> None:
    include = header(isa, [], tmp_path)
    program = tmp_path / "vocabulary"
    compile_c(ISAS[isa], "gcc", "vocabulary.c", include, level, "-o", str(program), "-lm")
    assert run(ISAS[isa], program) == ""


def test_vocabulary_under_sanitizers(tmp_path: Path) -> None:
    isa = native()
    program = tmp_path / "vocabulary"
    options = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    include = header(isa.name, [], tmp_path)
    compile_c(isa, "gcc", "vocabulary.c", include, *options, "-o", str(program), "-lm")
    assert run(isa, program) == ""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("isa", ISAS)
def test_no_warnings_at_any_level(isa: str, compiler: str, tmp_path: Path) -> None:
    include = header(isa, list(REFERENCE), tmp_path)
    if ISAS[isa].core and compiler != "gcc":
        pytest.skip("Cortex-M projects are for GCC")
    levels = {"vocabulary.c": ("-O1",), "math_sample.c": ("-O0", "-O1")}  # other tests have more
    if compiler == "clang":  # whose warnings come before it optimizes
        levels = {"vocabulary.c": ("-O2",), "math_sample.c": ("-O2",)}
    for source, own in levels.items():
        for level in own:
            compile_c(ISAS[isa], compiler, source, include, level, "-c", "-o", "/dev/null")


@pytest.mark.parametrize("function", REFERENCE)
def test_a_function_brings_what_it_needs(function: str, tmp_path: Path) -> None:
    """Each function alone in the header: complete, and no other math function beside it."""
    include = header("scalar", [function], tmp_path)
    x, v = ("x, x", "v, v") if function == "pow" else ("x", "v")
    (tmp_path / "one.c").write_text(
        f'#include "simd.h"\nextern float f(float x);\n'
        f"float f(float x) {{ return s_{function}({x}); }}\n"
        f"extern vf g(vf v);\nvf g(vf v) {{ return v{function}({v}); }}\n"
    )
    compile_c(
        ISAS["scalar"], "gcc", str(tmp_path / "one.c"), include, "-O1", "-c", "-o", "/dev/null"
    )
    text = (include / "simd.h").read_text()
    brought = {name for name in REFERENCE if f"vf v{name}(" in text}
    assert brought == {function} | NEEDS.get(function, set())


def test_without_math_functions_the_header_has_none(tmp_path: Path) -> None:
    text = (header("avx2", [], tmp_path) / "simd.h").read_text()
    assert " s_" not in text
    assert text.rstrip().endswith("#endif")


# ---- the math functions


def sample() -> tuple[Floats, Floats]:
    """About 2^18 floats x: all exponents, usual values, and where formulas change; y: for pow."""
    rng = np.random.default_rng(1)
    low_bits = rng.integers(0, 1 << 15, 1 << 17, dtype=np.uint32)
    everywhere = (np.arange(1 << 17, dtype=np.uint32) << 15 | low_bits).view(np.float32)
    usual = rng.uniform(-110, 110, 1 << 16).astype(np.float32)
    small = rng.normal(0, 2, 1 << 16).astype(np.float32)
    turns = (np.arange(1, 4097) * (np.pi / 2)).astype(np.float32)
    edges = np.array(
        [0.0, np.inf, np.nan, 1.0, 2.0, 0.5, 1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38,
         0.92, 4.0, 10.0, 18.0, 88.72283, 88.72284, 87.33655, 103.97208, 104.0, 89.0, 12866.0,
         0.70710677, 1.4142135, 3.0, 4194304.0, 8388607.0, 8388608.0, 16777216.0, 0.34657359, 5e-8,
         1.4901161e-08, 1048576.0, 89.41599],
        np.float32,
    )  # fmt: skip
    with np.errstate(over="ignore"):
        around = [np.nextafter(edges, np.float32(to)) for to in (np.inf, 0)]
    near = np.concatenate([edges, *around])
    near = np.concatenate([near, -near])
    x = np.concatenate([everywhere, usual, small, turns, np.repeat(near, len(near))])
    # pow: results of all magnitudes; small whole, half and odd exponents; every pair of edges
    n = len(x) - len(near) ** 2
    with np.errstate(all="ignore"):
        log2 = np.log2(np.abs(x[:n].astype(np.float64)))
        y = (rng.uniform(-150, 130, n) / log2).astype(np.float32)
    y[::4] = rng.integers(-9, 10, len(y[::4]))
    y[1::8] = rng.integers(-9, 10, len(y[1::8])) / 2
    y = np.concatenate([y, np.tile(near, len(near))])
    pad = -len(x) % 16
    return np.pad(x, (0, pad), constant_values=1), np.pad(y, (0, pad), constant_values=1)


def taken(values: Floats, isa: str) -> Floats:
    """Those of a sample that an ISA gets: of a Cortex-M, whose emulator counts instructions, every
    fourth 16 of them.
    """
    if not ISAS[isa].core:
        return values
    outer = values.shape[:-1]
    return values.reshape(*outer, -1, 16)[..., ::4, :].reshape(*outer, -1)


def flushed(values: Floats) -> Floats:
    """Denormals as zeros of their sign."""
    return np.where(np.abs(values) < TINY, np.copysign(np.float32(0), values), values)


Results = Callable[..., Floats]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """(isa, compiler, denormals of the sample are flushed) -> float32 [function][vector, scalar
    form][what the ISA takes of the sample]
    """
    root = tmp_path_factory.mktemp("math")
    done: dict[tuple[str, str, bool], Floats] = {}

    def evaluate(isa: str, compiler: str, flush: bool = False) -> Floats:
        key = isa, compiler, flush
        if key not in done:
            x, y = (taken(part, isa) for part in sample())
            np.concatenate([flushed(x), flushed(y)] if flush else [x, y]).tofile(root / "in.bin")
            folder = root / f"{isa}_{compiler}_{flush}"
            include = header(isa, list(REFERENCE), folder)
            program, out = folder / "math_sample", folder / "out.bin"
            compile_c(
                ISAS[isa], compiler, "math_sample.c", include, "-O2", "-o", str(program), "-lm"
            )
            run(ISAS[isa], program, str(root / "in.bin"), str(out))
            done[key] = np.fromfile(out, np.float32).reshape(len(REFERENCE), 2, -1)
        return done[key]

    return evaluate


def ulps(got: Floats, reference: Floats) -> Floats:
    """|got - reference| in units of the reference's last place, 2^-149 for denormals.

    Infinity counts as 2^128.
    """
    limit = 2.0**128
    exponent = np.maximum(np.frexp(np.clip(reference, -limit, limit))[1], -125)
    difference = np.clip(got.astype(np.float64), -limit, limit) - np.clip(reference, -limit, limit)
    return np.abs(np.ldexp(difference, 24 - exponent))


@pytest.mark.parametrize("function", REFERENCE)
def test_math_is_within_4_ulp_of_float64(function: str, results: Results) -> None:
    with np.errstate(all="ignore"):
        x, y = (a.astype(np.float64) for a in sample())
        want = REFERENCE[function](x, y) if function == "pow" else REFERENCE[function](x)
    got = results("scalar", "gcc")[list(REFERENCE).index(function), 0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    error = ulps(got[numbers], want[numbers])
    worst = int(np.argmax(error))
    assert error[worst] <= MAX_ULP, (x[numbers][worst], y[numbers][worst], got[numbers][worst])
    # zeros keep their sign, which the distance does not see
    zeros = numbers & (want == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


def test_math_under_sanitizers(tmp_path: Path) -> None:
    include = header("scalar", list(REFERENCE), tmp_path)
    np.concatenate([part[::8] for part in sample()]).tofile(tmp_path / "in.bin")
    program = tmp_path / "math_sample"
    options = (
        "-O1",
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize-recover=all",
    )
    compile_c(ISAS["scalar"], "gcc", "math_sample.c", include, *options, "-o", str(program), "-lm")
    run(ISAS["scalar"], program, str(tmp_path / "in.bin"), str(tmp_path / "out.bin"))


@pytest.mark.parametrize(("isa", "compiler"), VARIANTS)
def test_math_has_the_same_bits_everywhere(isa: str, compiler: str, results: Results) -> None:
    """Vector and scalar form, every ISA, both compilers. Which NaN it is, they may choose. A unit
    that flushes denormals may give the function of the flushed argument, and lose denormals on the
    way.
    """

    def bits(values: Floats) -> Floats:
        return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)

    want = taken(results("scalar", "gcc")[:, 0], isa)
    got = bits(results(isa, compiler))
    flushes = ISAS[isa].flushes
    of_flushed = taken(results("scalar", "gcc", flush=True)[:, 0], isa) if flushes else want
    x, y = (taken(part, isa) for part in sample())
    for f, function in enumerate(REFERENCE):
        for form in range(2):
            wrong = got[f, form] != bits(want[f])
            if form == 0 and flushes:
                with np.errstate(invalid="ignore"):
                    lost = np.abs(got[f, form].view(np.float32) - of_flushed[f]) <= 2 * TINY
                wrong &= ~lost & (got[f, form] != bits(of_flushed[f]))
            differ = np.flatnonzero(wrong)
            assert differ.size == 0, (function, form, x[differ[:5]], y[differ[:5]])


def sweep(function: str, step: int, folder: Path) -> tuple[float, int]:
    """Largest error in ulp and number of wrong lanes over every step-th float."""
    isa = native()
    program = folder / "math_sweep"
    if not program.exists():
        include = header(isa.name, UNARY, folder)
        compile_c(isa, "gcc", "math_sweep.c", include, "-O2", "-o", str(program), "-lm")
    _, ulp, _, wrong = run(isa, program, function, str(step)).split()
    return float(ulp), int(wrong)


def test_sweep_of_every_8191st_float(tmp_path: Path) -> None:
    for function in UNARY:
        ulp, wrong = sweep(function, 8191, tmp_path)
        assert ulp <= MAX_ULP and wrong == 0, function


@pytest.mark.slow
@pytest.mark.parametrize("function", UNARY)
def test_sweep_of_all_floats(function: str, tmp_path: Path) -> None:
    """All 2^32 floats; several minutes a function."""
    ulp, wrong = sweep(function, 1, tmp_path)
    assert ulp <= MAX_ULP and wrong == 0
