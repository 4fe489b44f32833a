"""A project for a microcontroller: built by itself for every board, run where QEMU has the board,
and within the firmware of others.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cmake_support import ROOT, Build

import aotgen
from aotgen.builder import build_project
from aotgen.errors import ToolchainError
from aotgen.ir.interpreter import run
from aotgen.project import Project
from aotgen.target.board import list_boards, load_board
from support import require_tool

MODEL = ROOT / "examples/cmake_app/digits_int8.tflite"
CC = "arm-none-eabi-gcc"
BARE = [name for name in list_boards() if load_board(name).is_bare]


@pytest.fixture(autouse=True)
def _tools() -> None:
    require_tool(CC, "cmake", "ninja", "qemu-system-arm")


def compiled(board: str | Path, folder: Path, **options: object) -> Project:
    return aotgen.compile(MODEL, board, folder, prefix="digits", **options)  # type: ignore[arg-type]


def built(project: Project, *definitions: str, build_type: str = "Release") -> Path:
    """The build folder; warnings are errors."""
    build = build_project(
        project.info,
        project.board,
        build_type,  # type: ignore[arg-type]
        definitions=["DIGITS_WERROR=ON", *definitions],
    )
    return build.folder


def pixels(seed: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    return {"input": rng.integers(-128, 128, (1, 8, 8, 1)).astype(np.int8)}


def answers(project: Project, runner: str = "qemu") -> bool:
    """Whether the firmware computes what the interpreter does."""
    graph = aotgen.load(MODEL)
    feeds = pixels(3)
    return np.array_equal(project.run(feeds, runner=runner)["output"], run(graph, feeds)["output"])


@pytest.mark.parametrize("name", BARE)
def test_builds_by_itself(name: str, tmp_path: Path) -> None:
    """Libraries for all; for boards that bring start-up code firmware and its sizes."""
    project = compiled(name, tmp_path / "a project")
    folder = built(project)
    assert (folder / "libdigits.a").is_file()
    assert (folder / "libdigits_device.a").is_file()
    board = project.board
    for form in ("elf", *board.firmware.images):
        assert (folder / f"digits_firmware.{form}").is_file() == board.firmware.can_start
    files = {str(path.relative_to(project.folder)) for path in project.folder.rglob("*")}
    assert not files & {"src/aot_clock.c", "test/test.c", "bench/bench.c", "src/aot_threads.c"}
    assert ("firmware/linker.ld" in files) == board.firmware.can_start
    log = (folder / "aotgen-build.log").read_text()
    sizes = re.search(r"text\s+data\s+bss.*\n\s*(\d+)", log)
    assert (sizes is not None) == board.firmware.can_start
    if sizes is not None:
        assert project.info.data["weights_bytes"] < int(sizes[1]) < 64 * 1024


@pytest.mark.parametrize(
    ("name", "weights"), [("mps2-an386", "c"), ("mps2-an500", "asm"), ("mps3-an547", "bin")]
)
def test_firmware_answers(name: str, weights: str, tmp_path: Path) -> None:
    assert answers(compiled(name, tmp_path / "p", weights=weights))


WARNING_BOARDS = [
    pytest.param(name, marks=[] if name == "mps3-an547" else pytest.mark.slow) for name in BARE
]


@pytest.mark.parametrize("name", WARNING_BOARDS)
def test_no_warnings_at_any_level(name: str, tmp_path: Path) -> None:
    project = compiled(name, tmp_path / "p")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", *project.board.cflags()]
    folders = [f"-I{project.folder}/{part}" for part in ("include", "src", "firmware")]
    sources = [str(p) for part in ("src", "firmware") for p in (project.folder / part).glob("*.c")]
    for level in ("-O1", "-Os", "-O2", "-O3"):
        for trace in ((), ("-DDIGITS_TRACE", "-DDIGITS_MLPERF")):
            subprocess.run(
                [CC, *flags, *folders, level, *trace, "-c", *sources], cwd=tmp_path, check=True
            )


def test_options_of_the_build(tmp_path: Path) -> None:
    """Optimisation and sections are the user's to choose."""
    project = compiled("mps2-an386", tmp_path / "p")
    section = "DIGITS_WEIGHTS_SECTION=.external.rodata"
    arena = "DIGITS_ARENA_SECTION=.external.bss"
    folder = built(project, section, arena, "DIGITS_RELEASE_FLAGS=-O3")
    table = symbols(folder / "digits_firmware.elf")
    external = range(0x21000000, 0x22000000)
    assert table["digits_weights"] in external
    assert any(address in external for name, address in table.items() if name == "arena")
    commands = subprocess.run(
        ["ninja", "-C", str(folder), "-t", "commands", "digits_firmware"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (line,) = [line for line in commands.splitlines() if line.endswith("/firmware/aot_link.c")]
    assert line.rindex(" -O3") > line.rfind(" -O2")
    small = built(project, build_type="MinSizeRel")
    assert 0 <= symbols(small / "digits_firmware.elf")["digits_weights"] < 0x400000


def symbols(program: Path) -> dict[str, int]:
    done = subprocess.run(
        ["arm-none-eabi-nm", str(program)], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return {row[2]: int(row[0], 16) for row in rows if len(row) == 3}


@pytest.mark.parametrize("name", ["mps2-an386", "mps3-an547"])
def test_what_is_too_large_lies_in_external_memory(name: str, tmp_path: Path) -> None:
    """Of a board with little flash and RAM; it still computes the same."""
    folder = tmp_path / "small"
    folder.mkdir()
    memory = "[memory]\nram_bytes = 60000\nflash_bytes = 30000\n"
    (folder / "board.toml").write_text(f'extends = "{name}"\n{memory}')
    project = compiled(folder, tmp_path / "p")
    readme = " ".join((project.folder / "README.md").read_text().split())
    assert "lies in external memory: weights and arena" in readme
    external = {"mps2-an386": 0x21000000, "mps3-an547": 0x60000000}[name]
    table = symbols(built(project) / "digits_firmware.elf")
    assert external <= table["digits_weights"] < external + 0x100000
    assert answers(project)


def test_other_compilers_are_refused(tmp_path: Path) -> None:
    project = compiled("cortex-m4", tmp_path / "p")
    with pytest.raises(ToolchainError, match="clang does not build for board cortex-m4"):
        project.build(compiler="clang")


APP = """
cmake_minimum_required(VERSION 3.16)
project(app C CXX ASM)
%s
add_executable(app.elf app.cpp)
target_link_libraries(app.elf PRIVATE %s)
# C++ without its library, which is a package of its own.
target_compile_options(app.elf PRIVATE -fno-exceptions -fno-rtti)
set_target_properties(app.elf PROPERTIES LINKER_LANGUAGE C)
target_link_options(app.elf PRIVATE --specs=nano.specs --specs=nosys.specs)
"""

APP_SOURCE = r"""
#include "digits.h"
#include <stddef.h>
%s
static unsigned char arena[DIGITS_ARENA_BYTES] DIGITS_ALIGNED;

int main()
{
    digits_ctx ctx;
    digits_config config = {};
    config.arena = arena;
    return digits_init(&ctx, &config) + digits_run(&ctx, nullptr, nullptr);
}
"""

HAL = """
#include "aot_hal.h"
#include "aot_device.h"
extern "C" void aot_hal_put(const void *, size_t) {}
extern "C" int aot_hal_get() { return -1; }
extern "C" uint32_t aot_hal_micros() { return 0; }
void serve()
{
    (void)digits_device_open(nullptr);
    digits_device_serve();
}
"""

TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_CXX_COMPILER arm-none-eabi-g++)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
foreach(language C CXX ASM)
  set(CMAKE_${language}_FLAGS_INIT "CORE -mthumb")
endforeach()
"""

M4 = "-mcpu=cortex-m4 -mfloat-abi=soft"


def app(folder: Path, find: str, libraries: str, source: str = "", core: str = M4) -> Build:
    """A user's firmware, C++, whose toolchain file is its own."""
    folder.mkdir(exist_ok=True)
    (folder / "CMakeLists.txt").write_text(APP % (find, libraries))
    (folder / "app.cpp").write_text(APP_SOURCE % source)
    (folder / "toolchain.cmake").write_text(TOOLCHAIN.replace("CORE", core))
    return Build(folder, folder / "b")


def use(folder: Path) -> str:
    return f"-DCMAKE_TOOLCHAIN_FILE={folder}/toolchain.cmake"


@pytest.fixture(scope="module")
def m4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    require_tool(CC)
    yield compiled("cortex-m4", tmp_path_factory.mktemp("m4") / "p")


def test_added_to_a_firmware(m4: Project, tmp_path: Path) -> None:
    """The library alone, for the user's core and ABI."""
    build = app(tmp_path / "app", f'add_subdirectory("{m4.folder}" digits)', "digits::digits")
    build.make(use(build.source))
    assert not (build.folder / "digits/libdigits_device.a").exists()
    done = subprocess.run(
        ["arm-none-eabi-readelf", "-A", str(build.folder / "app.elf")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Tag_ABI_VFP_args" not in done.stdout  # soft floats, as the user's toolchain file says


def test_installed_for_a_firmware(m4: Project, tmp_path: Path) -> None:
    """With the device library, which needs three functions and nothing else."""
    toolchain = tmp_path / "toolchain.cmake"
    toolchain.write_text(TOOLCHAIN.replace("CORE", M4))
    build = Build(m4.folder, tmp_path / "b")
    build.make(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
    build.install(tmp_path / "installed")
    (tmp_path / "installed").rename(tmp_path / "moved")
    found = app(tmp_path / "app", "find_package(digits 0.1 REQUIRED)", "digits::digits_device", HAL)
    found.make(use(found.source), f"-DCMAKE_PREFIX_PATH={tmp_path}/moved")


CORES = {
    "cortex-m0plus": "-mcpu=cortex-m0plus -mfloat-abi=soft",
    "cortex-m3": "-mcpu=cortex-m3 -mfloat-abi=soft",
    "cortex-m4": M4,
    "cortex-m7": "-mcpu=cortex-m7 -mfloat-abi=hard",
    "cortex-m33": "-mcpu=cortex-m33 -mfloat-abi=hard",
    "cortex-m33+nodsp": "-mcpu=cortex-m33+nodsp -mfloat-abi=hard",
    "cortex-m55": "-mcpu=cortex-m55 -mfloat-abi=hard",
    "cortex-m55+nomve": "-mcpu=cortex-m55+nomve -mfloat-abi=hard",
}

# By board the cores that its projects may be built for; what is missing in others.
WANTED = {
    "cortex-m": ({*CORES}, ""),
    "cortex-m4": ({"cortex-m4", "cortex-m7"}, "the DSP extension|an Armv7E-M core"),
    "cortex-m7": ({"cortex-m4", "cortex-m7"}, "the DSP extension|an Armv7E-M core"),
    # GCC before 13 cannot tell an M55 without Helium from an M33.
    "cortex-m33": (
        {"cortex-m33", "cortex-m55+nomve"},
        "the DSP extension|an Armv8-M core without Helium",
    ),
    "cortex-m55": ({"cortex-m55"}, r"Helium \(MVE\)"),
    "mps2-an386": ({"cortex-m7"}, "the DSP extension|an Armv7E-M core|floats in FPU registers"),
}


@pytest.mark.parametrize("board", WANTED)
def test_each_core_with_each_toolchain(board: str, tmp_path: Path) -> None:
    """The header that CMake asks and that the library is compiled with."""
    wanted, missing = WANTED[board]
    header = compiled(board, tmp_path / "p").folder / "src/aot_target.h"
    assert header.exists() == (board != "cortex-m")
    if not header.exists():
        return
    for core, flags in CORES.items():
        argv = [CC, "-mthumb", *flags.split(), "-fsyntax-only", str(header)]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert (done.returncode == 0) == (core in wanted), (core, done.stderr)
        if core not in wanted:
            start = rf'"digits was compiled for board {board} and needs [^:"]*({missing})'
            assert re.search(start, done.stderr), done.stderr


def test_plain_c_is_for_any_core(tmp_path: Path) -> None:
    project = compiled("cortex-m", tmp_path / "p")
    toolchain = tmp_path / "toolchain.cmake"
    toolchain.write_text(TOOLCHAIN.replace("CORE", CORES["cortex-m55"]))
    Build(project.folder, tmp_path / "b").make(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")


def test_a_computers_core_is_no_microcontrollers(tmp_path: Path) -> None:
    """A board of the user's with the DSP instructions and an operating system."""
    require_tool("arm-linux-gnueabihf-gcc")
    board = tmp_path / "board"
    board.mkdir()
    (board / "board.toml").write_text('extends = "rpi3b-armv7"\nisa = "dsp"\n')
    folder = compiled(board, tmp_path / "p").folder
    argv = ["arm-linux-gnueabihf-gcc", "-std=c99", "-O1", "-fsyntax-only", f"-I{folder}/include"]
    sources = [str(path) for path in sorted(folder.glob("src/*.c"))]
    subprocess.run([*argv, f"-I{folder}/src", "-Wall", "-Werror", *sources], check=True)


def test_another_core_is_told(m4: Project, tmp_path: Path) -> None:
    add = f'add_subdirectory("{m4.folder}" digits)'
    for name, find, core in (
        ("flags", add, "-mcpu=cortex-m3"),
        ("options", f"add_compile_options(-mcpu=cortex-m3)\n{add}", "-mfloat-abi=soft"),
        ("m55", add, "-mcpu=cortex-m55 -mfloat-abi=hard"),
    ):
        build = app(tmp_path / name, find, "digits", core=core)
        done = build.configure(use(build.source))
        assert done.returncode != 0
        message = " ".join(done.stdout.split())
        what = "an Armv7E-M core" if name == "m55" else "a core with the DSP extension"
        assert f"digits was compiled for board cortex-m4 and needs {what}" in message
        assert "give the compiler the flags of the board (-mcpu=cortex-m4 -mthumb" in message


def test_another_core_is_told_by_the_compiler(m4: Project, tmp_path: Path) -> None:
    """Where CMake cannot know the flags before it has all of them."""
    flag = "add_compile_options($<$<COMPILE_LANGUAGE:C>:-mcpu=cortex-m3>)"
    build = app(tmp_path / "app", f'{flag}\nadd_subdirectory("{m4.folder}" digits)', "digits")
    assert build.configure(use(build.source)).returncode == 0
    done = build.build()
    assert done.returncode != 0
    assert "for board cortex-m4 and needs a core with the DSP extension" in done.stdout


def test_another_toolchain_file_is_told(m4: Project, tmp_path: Path) -> None:
    """Of another board of ours, for a project by itself."""
    other = compiled("cortex-m55", tmp_path / "m55").folder / "toolchain.cmake"
    done = Build(m4.folder, tmp_path / "b").configure(f"-DCMAKE_TOOLCHAIN_FILE={other}")
    assert done.returncode != 0
    assert "board cortex-m4 and needs an Armv7E-M core" in " ".join(done.stdout.split())


def test_another_compiler(tmp_path: Path) -> None:
    """Plain C, and weights that are aligned, for one that is neither gcc nor clang."""
    folder = compiled("cortex-m", tmp_path / "p", weights="c").folder
    flags = (
        "-U__GNUC__",
        "-std=c11",
        "-pedantic",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-mcpu=cortex-m3",
    )
    for source in sorted(folder.glob("src/*.c")):
        made = tmp_path / f"{source.stem}.o"
        include = (f"-I{folder}/include", f"-I{folder}/src")
        subprocess.run(
            [CC, *flags, *include, "-mthumb", "-c", str(source), "-o", str(made)], check=True
        )
    table = subprocess.run(
        ["arm-none-eabi-objdump", "-h", str(tmp_path / "weights.o")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r"\.rodata .* 2\*\*3$", table, re.MULTILINE)


def test_a_core_without_fpu_is_told(tmp_path: Path) -> None:
    """Kernels of floats use its registers; those of int8 work without (``M4``)."""
    require_tool(CC)
    model = ROOT / "examples/digits/digits.onnx"
    project = aotgen.compile(model, "cortex-m4", tmp_path / "p", prefix="digits")
    build = app(tmp_path / "app", f'add_subdirectory("{project.folder}" digits)', "digits")
    assert build.configure(use(build.source)).returncode == 0
    done = build.build()
    assert done.returncode != 0
    assert "digits needs a core with an FPU" in done.stdout


def test_a_core_of_the_folders_options(m4: Project, tmp_path: Path) -> None:
    """Flags that the user's project adds for all of its targets."""
    m7 = "-mcpu=cortex-m7"
    find = f'add_compile_options({m7})\nadd_link_options({m7})\nadd_subdirectory("{m4.folder}" d)'
    build = app(tmp_path / "app", find, "digits", core="-mfloat-abi=soft")
    build.make(use(build.source))


def test_compiler_of_this_computer_is_told(m4: Project, tmp_path: Path) -> None:
    done = Build(m4.folder, tmp_path / "b").configure("-DCMAKE_C_COMPILER=gcc")
    assert done.returncode != 0
    message = " ".join(done.stdout.split())
    assert "digits was compiled for board cortex-m4 (Cortex-M), and " in message
