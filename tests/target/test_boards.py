"""Boards: the ones we ship, a user's own, and what is wrong with a bad one."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from pathlib import Path

import pytest

from aotgen.errors import ToolchainError, UsageError
from aotgen.target.board import list_boards, load_board
from aotgen.target.host import architecture, choose_isa, detect_host
from aotgen.target.toolchain import compiler_of, find_tool, require_cmake
from aotgen.target.toolchain import require_tool as need_tool
from support import require_tool


def test_the_boards_we_promise_exist() -> None:
    assert set(list_boards()) >= {
        "host",
        "host-avx2",
        "host-scalar",
        "rpi3b",
        "rpi3b-armv7",
        "rpi4",
        "rpi5",
        "rk3399",
        "cortex-m",
        "cortex-m4",
        "cortex-m7",
        "cortex-m33",
        "cortex-m55",
        "mps2-an386",
        "mps2-an500",
        "mps3-an547",
    }


@pytest.mark.parametrize("name", list_boards())
def test_board_is_sound(name: str) -> None:
    board = load_board(name)
    assert board.name == name
    assert board.description
    threads = 1 if board.is_bare else 2
    target = board.target(threads=threads, optimize="flash")
    assert (target.isa, target.threads, target.optimize) == (board.isa, threads, "flash")
    assert 8 * 1024 <= target.l1_bytes <= target.l2_bytes
    for compiler in ("gcc", "clang"):
        assert "-ffp-contract=off" in board.cflags(compiler)
        assert not any(flag.startswith("-march=native") for flag in board.cflags(compiler))
    if board.triple:
        assert board.toolchain is not None
        assert board.toolchain.is_file()
        assert board.emulator or board.is_bare


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", list_boards())
def test_compiler_takes_the_flags(name: str, compiler: str, tmp_path: Path) -> None:
    """Flags allow what the ISA's kernels use, and compile for every board with both compilers."""
    board = load_board(name)
    uses = {
        "avx512": "#include <immintrin.h>\n__m512 f(__m512 a) { return _mm512_and_ps(a, a); }",
        "avx2": "#include <immintrin.h>\n__m256 f(__m256 a) { return _mm256_fmadd_ps(a, a, a); }",
        "neon": "#include <arm_neon.h>\nfloat32x4_t f(float32x4_t a) { return vabsq_f32(a); }",
        "scalar": "float f(float a) { return a; }",
        "neon_armv7": "#include <arm_neon.h>\n"
        "float32x4_t f(float32x4_t a) { return vfmaq_f32(a, a, a); }",
        "dsp": "#include <arm_acle.h>\nint f(int a) { return __smlad(a, a, a); }",
        "mve": "#include <arm_mve.h>\nint f(int8x16_t a) { return vmladavq_s8(a, a); }",
    }
    if board.is_bare and compiler == "clang":
        with pytest.raises(ToolchainError, match="does not build for board"):
            compiler_of(board, compiler)
        return
    require_tool(compiler)
    try:
        program = compiler_of(board, compiler)
    except ToolchainError:
        require_tool(f"{board.triple}-gcc")
        raise
    source = tmp_path / "t.c"
    source.write_text(uses[board.isa] + "\n")
    cross = [f"--target={board.triple}"] if compiler == "clang" and board.triple else []
    assert program is not None
    argv = [program, *cross, *board.cflags(compiler), *board.release_flags]
    subprocess.run([*argv, "-Werror", "-c", str(source), "-o", str(tmp_path / "t.o")], check=True)


def test_near_misses_are_suggested() -> None:
    with pytest.raises(UsageError, match="did you mean rk3399"):
        load_board("rk3999")
    with pytest.raises(UsageError, match="boards list"):
        load_board("mainframe")


def test_gpu_only_where_there_is_one() -> None:
    assert load_board("rk3399").target(device="gpu").device == "gpu"
    with pytest.raises(UsageError, match="no GPU"):
        load_board("rpi5").target(device="gpu")


def _board(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "board.toml").write_text(text)
    return folder


def test_own_board_extends_ours(tmp_path: Path) -> None:
    folder = _board(
        tmp_path / "camera",
        'extends = "rpi4"\ndescription = "camera"\n'
        "[memory]\nram_bytes = 1000\nflash_bytes = 2000\n",
    )
    ours, base = load_board(folder), load_board("rpi4")
    assert (ours.name, ours.ram_bytes, ours.flash_bytes) == ("camera", 1000, 2000)
    same = {"name": "rpi4", "description": base.description, "folder": base.folder}
    memory = {"ram_bytes": base.ram_bytes, "flash_bytes": base.flash_bytes}
    assert dataclasses.replace(ours, **same, **memory) == base
    assert load_board(str(folder)) == ours
    assert load_board(folder / "board.toml") == ours


BAD = {
    "not toml": ("isa = ", "not TOML"),
    "unknown isa": ('isa = "mmx"\n[[clusters]]\ncore="x"\ncount=1\nl1_bytes=1\nl2_bytes=1', "mmx"),
    "no isa": ('description = "x"', "isa is missing"),
    "wrong type": ('isa = "neon"\ndescription = 3', "description must be"),
    "negative": ('isa = "scalar"\n[memory]\nram_bytes = -1', "ram_bytes"),
    "cluster": ('isa = "neon"\n[[clusters]]\ncore = "x"', "count is missing"),
    "base": ('extends = "rpi"\n', "there is no board 'rpi'"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_board_is_explained(case: str, tmp_path: Path) -> None:
    text, words = BAD[case]
    with pytest.raises(UsageError, match=words):
        load_board(_board(tmp_path / "b", text))


def test_chips_go_by_their_cores() -> None:
    with pytest.raises(UsageError, match=r"no board 'stm32f411'.* by its core"):
        load_board("stm32f411")


def test_folder_that_is_named_like_a_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _board(tmp_path / "camera", 'extends = "rpi4"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"write \./camera"):
        load_board("camera")
    assert load_board("./camera").name == "camera"


def test_board_that_extends_itself(tmp_path: Path) -> None:
    folder = _board(tmp_path / "b", "")
    (folder / "board.toml").write_text(f'extends = "{folder}/board.toml"\n')
    with pytest.raises(UsageError, match="extends itself"):
        load_board(folder)


def test_isa_from_cpu_flags() -> None:
    avx2 = frozenset({"avx2", "fma", "sse2"})
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    assert choose_isa("x86_64", avx512)[0] == "avx512"
    assert choose_isa("x86_64", avx512 - {"avx512dq"})[0] == "avx2"
    assert choose_isa("x86_64", avx2 - {"fma"})[0] == "scalar"
    assert choose_isa("aarch64", frozenset({"fp", "asimd"}))[0] == "neon"
    assert choose_isa("armv7l", frozenset({"neon", "vfpv4", "idiva"}))[0] == "neon_armv7"
    assert choose_isa("armv7l", frozenset({"neon", "vfpv3"}))[0] == "scalar"  # no FMA
    assert choose_isa("armv6l", frozenset({"vfp"}))[0] == "scalar"
    assert choose_isa("riscv64", frozenset())[0] == "scalar"


def test_vnni_where_the_cpu_has_it(tmp_path: Path) -> None:
    """A feature beyond the instruction set: a compiler flag, and what templates see."""
    avx512 = frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"})
    assert "avx512_vnni" in choose_isa("x86_64", avx512 | {"avx512_vnni", "avx512_bf16"})[1]
    assert "avx512_vnni" not in choose_isa("x86_64", avx512)[1]
    text = 'extends = "host"\nisa = "avx512"\nfeatures = ["avx512f"{}]\n'
    plain = load_board(_board(tmp_path / "plain", text.format("")))
    vnni = load_board(_board(tmp_path / "vnni", text.format(', "avx512_vnni"')))
    assert "-mavx512vnni" in vnni.cflags() and "-mavx512vnni" not in plain.cflags()
    assert "avx512_vnni" in vnni.target().features


def test_architectures_are_spelled_as_in_triples() -> None:
    assert [architecture(m) for m in ("armv7l", "armv8l", "aarch64")] == ["arm", "arm", "aarch64"]
    assert architecture("armv6l") == "armv6l"  # runs no ARMv7 program


def test_host_from_files(tmp_path: Path) -> None:
    """An imagined kernel's files: absurd caches are capped, missing ones have defaults."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags\t\t: sse2 avx2 fma\ncpu MHz\t\t: 3000.5\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\n")
    facts = detect_host(tmp_path)
    assert (facts.clock_mhz, facts.ram_bytes) == (3000, 1024 * 1024)
    assert (facts.l1_bytes, facts.l2_bytes) == (32 * 1024, 512 * 1024)
    index = tmp_path / "sys/devices/system/cpu/cpu0/cache/index0"
    index.mkdir(parents=True)
    for name, text in (
        ("level", "2"),
        ("type", "Unified"),
        ("size", "512M"),
        ("ways_of_associativity", "16"),
    ):
        (index / name).write_text(text + "\n")
    assert detect_host(tmp_path).l2_bytes == 4 * 1024 * 1024
    if platform.machine() == "x86_64":
        assert facts.isa == "avx2"


def test_tools_are_found_with_versions() -> None:
    cmake = require_cmake()
    assert cmake.version >= (3, 16)
    assert find_tool("no-such-program-of-ours") is None
    with pytest.raises(ToolchainError, match="apt-get install ninja-thing"):
        need_tool("no-such-program-of-ours", "ninja-thing")
