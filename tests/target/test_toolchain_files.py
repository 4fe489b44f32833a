"""What board_support has beside board.toml: toolchain files and the `run` of each board."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import models
import pytest

import aotgen
from aotgen.errors import UsageError
from aotgen.resources import board_support_dir
from aotgen.target.board import Board, list_boards, load_board
from aotgen.target.toolchain_file import toolchain_text
from support import require_tool

LINUX_BOARDS = [
    name for name in list_boards() if load_board(name).triple and not load_board(name).is_bare
]
PROGRAM = """#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        printf("[%s]", argv[i]);
    return 7;
}
"""


def _board(folder: Path, text: str) -> Board:
    folder.mkdir()
    (folder / "board.toml").write_text(text)
    return load_board(folder)


@pytest.mark.parametrize("name", LINUX_BOARDS)
def test_toolchain_file_says_what_board_toml_says(name: str) -> None:
    board = load_board(name)
    text = toolchain_text(board)
    assert text is not None
    assert f"set(AOTGEN_TRIPLE {board.triple})\n" in text
    assert f"set(AOTGEN_EMULATOR {' '.join(board.emulator)})\n" in text
    assert "CMAKE_CURRENT_LIST_DIR" not in text, "it needs another file"
    run = (board.folder / "run").read_text()
    cpu = board.emulator[board.emulator.index("-cpu") + 1]
    assert f" {board.machine} {cpu} {board.triple} " in run


def test_shared_lines_exist_once() -> None:
    for name in LINUX_BOARDS:
        lines = (board_support_dir() / name / "toolchain.cmake").read_text().splitlines()
        assert len(lines) <= 6


def test_board_without_a_toolchain_file_gets_one(tmp_path: Path) -> None:
    text = (
        'isa = "neon"\ntriple = "aarch64-linux-gnu"\n[[clusters]]\ncore = "x"\ncount = 1\n'
        'l1_bytes = 32768\nl2_bytes = 524288\n[emulator]\nargv = ["qemu-aarch64"]\n'
    )
    mine = toolchain_text(_board(tmp_path / "mine", text))
    assert mine is not None
    theirs = toolchain_text(load_board("rpi4"))
    assert theirs is not None
    start = "# What the toolchain files"
    assert mine[mine.index(start) :].strip() == theirs[theirs.index(start) :].strip()
    assert toolchain_text(load_board("host")) is None


def test_own_toolchain_file_is_inlined(tmp_path: Path) -> None:
    board = _board(tmp_path / "b", 'extends = "rpi4"\ntoolchain = "t.cmake"\nstatic = true\n')
    with pytest.raises(UsageError, match=r"t\.cmake"):
        toolchain_text(board)
    (board.folder / "t.cmake").write_text('include("${CMAKE_CURRENT_LIST_DIR}/u.cmake")\n')
    (board.folder / "u.cmake").write_text("set(U 1)\n")
    text = toolchain_text(board)
    assert text is not None
    assert text.startswith("set(U 1)\n")
    assert 'set(CMAKE_EXE_LINKER_FLAGS_INIT "-static")' in text
    (board.folder / "u.cmake").write_text('include("${CMAKE_CURRENT_LIST_DIR}/t.cmake")\n')
    with pytest.raises(UsageError, match="includes itself"):
        toolchain_text(board)


@pytest.mark.parametrize("name", [n for n in list_boards() if not load_board(n).is_bare])
def test_run_runs_programs_of_the_board(name: str, tmp_path: Path) -> None:
    """Arguments and exit status pass through; a link to it works as well."""
    board = load_board(name)
    compiler = f"{board.triple}-gcc" if board.triple else "gcc"
    require_tool(compiler, *board.emulator[:1])
    source, program = tmp_path / "p.c", tmp_path / "p"
    source.write_text(PROGRAM)
    subprocess.run([compiler, str(source), "-o", str(program)], check=True)
    link = tmp_path / "run"
    link.symlink_to(board.folder / "run")
    for run in (board.folder / "run", link):
        done = subprocess.run([run, program, "a b", "", "*"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (7, "[a b][][*]")


def test_run_says_what_is_missing(tmp_path: Path) -> None:
    for tool in ("sh", "dirname", "readlink", "uname"):
        found = next(p for p in ("/bin", "/usr/bin") if Path(p, tool).exists())
        (tmp_path / tool).symlink_to(Path(found, tool))
    run = board_support_dir() / "rpi4/run"
    environment = {**os.environ, "PATH": str(tmp_path)}
    machine = os.uname().machine
    if machine not in ("aarch64", "arm64"):
        done = subprocess.run([run, "x"], capture_output=True, text=True, env=environment)
        assert done.returncode == 127
        assert "apt-get install qemu-user" in done.stderr
    done = subprocess.run([run], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "usage" in done.stderr


FAST = {("rpi5", "gcc"), ("rk3399", "clang"), ("rpi3b-armv7", "clang")}


@pytest.mark.parametrize(
    ("name", "compiler"),
    [
        pytest.param(name, compiler, marks=[] if (name, compiler) in FAST else pytest.mark.slow)
        for name in LINUX_BOARDS
        for compiler in ("gcc", "clang")
    ],
)
def test_programs_run_by_the_wrapper(name: str, compiler: str, tmp_path: Path) -> None:
    """``run`` as CMAKE_CROSSCOMPILING_EMULATOR: ctest compares a model's test vectors."""
    board = load_board(name)
    require_tool("cmake", "ctest", f"{board.triple}-gcc", board.emulator[0], compiler)
    model = tmp_path / "net.onnx"
    model.write_bytes(models.two_layers().SerializeToString())
    project = aotgen.compile(model, board=name, output=tmp_path / "p")
    out = tmp_path / "build"
    arguments = [
        f"-DCMAKE_TOOLCHAIN_FILE={project.folder}/toolchain.cmake",
        f"-DCMAKE_CROSSCOMPILING_EMULATOR={board.folder}/run",
        *([f"-DCMAKE_C_COMPILER={compiler}"] if compiler == "clang" else []),
    ]
    for argv in (
        ["cmake", "-S", project.folder, "-B", out, *arguments],
        ["cmake", "--build", out, "--parallel", "2"],
        ["ctest", "--test-dir", out, "--output-on-failure"],
    ):
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    if board.machine != os.uname().machine:
        test = (out / "CTestTestfile.cmake").read_text()
        assert f"{board.folder}/run" in test


MACROS = {
    "rpi5": ("__ARM_FEATURE_DOTPROD", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"),
    "rk3399": ("__ARM_FEATURE_CRC32", "!__ARM_FEATURE_DOTPROD"),
    "rpi4": ("__ARM_FEATURE_CRC32", "!__ARM_FEATURE_DOTPROD"),
    "rpi3b": ("__ARM_FEATURE_CRC32", "!__ARM_FEATURE_DOTPROD"),
    "rpi3b-armv7": ("__ARM_NEON", "__ARM_FEATURE_FMA", "__ARM_PCS_VFP", "__ARM_FEATURE_IDIV"),
}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", list(MACROS))
def test_flags_allow_what_the_cores_have(name: str, compiler: str) -> None:
    """And no more: one binary runs on all cores of mixed clusters."""
    board = load_board(name)
    program = f"{board.triple}-gcc" if compiler == "gcc" else compiler
    require_tool(program)
    cross = [f"--target={board.triple}"] if compiler == "clang" else []
    done = subprocess.run(
        [program, *cross, *board.cflags(compiler), "-dM", "-E", "-x", "c", os.devnull],
        capture_output=True,
        text=True,
        check=True,
    )
    defined = {line.split()[1] for line in done.stdout.splitlines()}
    for macro in MACROS[name]:
        assert (macro.lstrip("!") in defined) != macro.startswith("!"), macro


@pytest.mark.parametrize("name", LINUX_BOARDS)
def test_clusters_are_complete(name: str) -> None:
    """Every core once, the fastest cluster first, with what a peak is computed from."""
    board = load_board(name)
    cpus = sorted(cpu for cluster in board.clusters for cpu in cluster.cpus)
    assert cpus == list(range(sum(cluster.count for cluster in board.clusters)))
    peaks = [cluster.peak_gflops for cluster in board.clusters]
    assert peaks == sorted(peaks, reverse=True)
    assert all(c.clock_mhz and c.flops_per_cycle and c.int8_ops_per_cycle for c in board.clusters)
    assert board.ram_bytes


def test_peaks_of_cores() -> None:
    """Published figures: GFLOP/s of one core."""
    big, little = load_board("rk3399").clusters
    assert (big.peak_gflops, little.peak_gflops) == (14.4, pytest.approx(11.3, abs=0.05))
    assert load_board("rpi5").clusters[0].peak_gflops == 38.4


CLUSTER = 'core = "x"\nl1_bytes = 32768\nl2_bytes = 524288\n'


def test_cpu_numbers(tmp_path: Path) -> None:
    """Given, or counted from the slowest cluster on, as Linux does on ARM."""
    head = f'isa = "neon"\n[[clusters]]\ncount = 2\n{CLUSTER}'
    board = _board(tmp_path / "a", f"{head}[[clusters]]\ncount = 4\n{CLUSTER}")
    assert [c.cpus for c in board.clusters] == [(4, 5), (0, 1, 2, 3)]
    for folder, more, words in (
        ("b", "cpus = [1]\n", "count"),
        ("c", "cpus = [1, 1]\n", "share"),
        ("d", 'cpus = ["a", "b"]\n', "list of numbers"),
    ):
        with pytest.raises(UsageError, match=words):
            _board(tmp_path / folder, f"{head}{more}")
