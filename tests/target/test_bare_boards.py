"""Boards without an operating system: what board.toml says of them, and start-up code and hardware
layer of those that bring some, under QEMU.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotgen.codegen.environment import render
from aotgen.doctor.bare import diagnose_bare
from aotgen.errors import UsageError
from aotgen.runner.qemu_system import QemuMachine
from aotgen.target.board import Board, list_boards, load_board
from aotgen.target.toolchain_file import toolchain_text
from support import require_tool

BARE = [name for name in list_boards() if load_board(name).is_bare]
EMULATED = [name for name in BARE if load_board(name).emulated_machine]
CC = "arm-none-eabi-gcc"
MAIN = Path(__file__).with_name("bare_board.c")

MACROS = {
    "cortex-m": ("!__ARM_FEATURE_DSP", "__ARM_ARCH_6M__", "!__ARM_FP"),
    "cortex-m4": ("__ARM_FEATURE_DSP", "!__ARM_FEATURE_MVE", "__ARM_FP", "__ARM_PCS_VFP"),
    "cortex-m7": ("__ARM_FEATURE_DSP", "!__ARM_FEATURE_MVE", "__ARM_FP", "__ARM_PCS_VFP"),
    "cortex-m33": ("__ARM_FEATURE_DSP", "!__ARM_FEATURE_MVE", "__ARM_ARCH_8M_MAIN__", "__ARM_FP"),
    "cortex-m55": ("__ARM_FEATURE_DSP", "__ARM_FEATURE_MVE", "__ARM_PCS_VFP"),
}


@pytest.mark.parametrize("name", BARE)
def test_flags_and_toolchain_file(name: str) -> None:
    """The core is the one that the name says; the toolchain file chooses the same."""
    require_tool(CC)
    board = load_board(name)
    done = subprocess.run(
        [CC, *board.cflags(), "-dM", "-E", "-x", "c", os.devnull],
        capture_output=True,
        text=True,
        check=True,
    )
    defined = {line.split()[1] for line in done.stdout.splitlines()}
    core = board.clusters[0].core.replace("m0plus", "m")
    for macro in MACROS[core]:
        assert (macro.lstrip("!") in defined) != macro.startswith("!"), macro
    text = toolchain_text(board)
    assert text is not None
    assert f"set(AOTGEN_BOARD {name})\n" in text
    assert f"set(AOTGEN_CPU_FLAGS {' '.join(board.extra_cflags['gcc'])})\n" in text
    assert "CMAKE_CURRENT_LIST_DIR" not in text, "it needs another file"


def _board(folder: Path, text: str, *files: str) -> Path:
    folder.mkdir()
    (folder / "board.toml").write_text(text)
    for name in files:
        (folder / name).write_text(f"/* {name} */\n")
    return folder


OWN = """extends = "cortex-m33"
toolchain = ""
[memory]
ram_bytes = 1000
flash_bytes = 2000
[firmware]
sources = ["start.c", "uart.c", "uart.h"]
linker_script = "mine.ld"
images = ["hex"]
"""


def test_own_board(tmp_path: Path) -> None:
    folder = _board(tmp_path / "mine", OWN, "start.c", "uart.c", "uart.h")
    (folder / "mine.ld").write_text("MEMORY\nINCLUDE more.ld\nEND\n")
    (folder / "more.ld").write_text("{ more }\n")
    board = load_board(folder)
    assert (board.isa, board.is_bare, board.ram_bytes) == ("dsp", True, 1000)
    assert board.firmware.can_start
    assert board.firmware.texts() == {
        **{name: f"/* {name} */\n" for name in ("start.c", "uart.c", "uart.h")},
        "linker.ld": "MEMORY\n{ more }\nEND\n",
    }
    (tmp_path / "other").mkdir()
    (tmp_path / "other/board.toml").write_text(f'extends = "{folder}/board.toml"\n')
    assert load_board(tmp_path / "other").firmware == board.firmware
    (folder / "more.ld").write_text("INCLUDE mine.ld\n")
    with pytest.raises(UsageError, match="includes itself"):
        board.firmware.texts()


def test_own_board_without_a_toolchain_file(tmp_path: Path) -> None:
    text = (
        'system = "bare"\nisa = "dsp"\ntriple = "arm-none-eabi"\n[[clusters]]\ncore = "cortex-m4"\n'
        'count = 1\nl1_bytes = 16384\nl2_bytes = 65536\n[cflags]\ncommon = ["-mcpu=cortex-m4"]\n'
    )
    mine = toolchain_text(load_board(_board(tmp_path / "mine", text)))
    theirs = toolchain_text(load_board("cortex-m4"))
    assert mine is not None and theirs is not None
    assert "set(AOTGEN_CPU_FLAGS -mcpu=cortex-m4)\n" in mine
    start = "# What the toolchain files"
    assert mine[mine.index(start) :].strip() == theirs[theirs.index(start) :].strip()


FIRMWARE = 'extends = "cortex-m4"\n[firmware]\n'
BAD = {
    "missing": (f'{FIRMWARE}sources = ["a.c"]\nlinker_script = "b.ld"', "a.c, which is no file"),
    "no script": (f'{FIRMWARE}sources = ["x.c"]', "no linker script for its C sources"),
    "no sources": (f'{FIRMWARE}linker_script = "x.ld"', "a linker script and no C sources"),
    "image": (f'{FIRMWARE}sources = ["x.c"]\nlinker_script = "x.ld"\nimages = ["elf"]', "use bin"),
    "ours": (f'{FIRMWARE}sources = ["main.c"]\nlinker_script = "x.ld"', "rename the file"),
    "twice": (f'{FIRMWARE}sources = ["x.c", "y/../x.c"]\nlinker_script = "x.ld"', "two files x.c"),
    "type": (f"{FIRMWARE}sources = [1]", "list of strings"),
    "linux": ('extends = "rpi4"\n[firmware]\nsources = ["x.c"]', "without an operating system"),
    "system": ('extends = "cortex-m4"\nsystem = "rtos"', "use linux or bare"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_board_is_explained(case: str, tmp_path: Path) -> None:
    text, words = BAD[case]
    folder = _board(tmp_path / "b", text, "x.c", "x.ld", "main.c")
    with pytest.raises(UsageError) as caught:
        load_board(folder)
    assert words in f"{caught.value}; {caught.value.remedy}"


def test_one_thread_and_no_gpu() -> None:
    board = load_board("mps2-an386")
    with pytest.raises(UsageError, match="is a microcontroller, whose runs have one thread, not 2"):
        board.target(threads=2)
    with pytest.raises(UsageError, match="has no GPU"):
        board.target(device="gpu")


def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool(CC, "qemu-system-arm", "cmake")
    board = load_board("mps3-an547")
    report = diagnose_bare("qemu", board)
    assert not report.problems, str(report)
    rows = {check.check: check for check in report.checks}
    assert "machine mps3-an547" in rows["emulator"].found
    assert diagnose_bare("qemu", load_board("cortex-m4")).problems[0].check == "emulator"
    (lost,) = diagnose_bare(f"serial:{tmp_path}/tty:9600", board).problems
    assert lost.found == f"there is no {tmp_path}/tty"
    (lost,) = diagnose_bare("serial:/dev/serial/by-path/pci-0000:00:14.0-usb:9600", board).problems
    assert lost.found == "there is no /dev/serial/by-path/pci-0000:00:14.0-usb"
    with pytest.raises(UsageError, match="names no serial port"):
        diagnose_bare("serial", board)
    with pytest.raises(UsageError, match="is a microcontroller"):
        diagnose_bare("ssh://pi@pi", board)
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = {check.check: check.remedy for check in diagnose_bare("qemu", board).problems}
    assert "gcc-arm-none-eabi libnewlib-arm-none-eabi" in missing["compiler"]
    assert "qemu-system-arm" in missing["emulator"]


class Firmware:
    """A running test firmware."""

    def __init__(self, board: Board, program: Path) -> None:
        self.board = board
        self.machine = QemuMachine(board, program)
        self.port = self.machine.port
        assert self.port is not None

    def read(self, ends: str, seconds: float = 20.0) -> str:
        """What it says, until it ends so."""
        assert self.port is not None
        said, until = b"", time.monotonic() + seconds
        while not said.endswith(ends.encode()):
            left = until - time.monotonic()
            assert left > 0, f"no {ends!r} in {said!r}"
            said += self.port.read(left)
        return said.decode("latin-1")

    def ask(self, command: str) -> list[int]:
        """The numbers that it answers with; a ! after them is echoed."""
        assert self.port is not None
        self.port.write(f"{command}!".encode())
        return [int(word) for word in self.read("!").rstrip("!").split()]

    def crash(self, command: str) -> str:
        assert self.port is not None
        self.port.write(command.encode())
        return self.read("boot ")


@pytest.fixture(scope="module", params=EMULATED)
def firmware(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Firmware]:
    require_tool(CC, "qemu-system-arm")
    board = load_board(request.param)
    folder = tmp_path_factory.mktemp(board.name)
    for name, text in board.firmware.texts().items():
        (folder / name).write_text(text)
    for file in ("aot_core.c", "aot_core.h", "aot_hal.h"):
        (folder / file).write_text(render(f"firmware/{file}.j2"))
    (folder / "main.c").write_text(MAIN.read_text())
    program = folder / "test.elf"
    argv = [CC, "-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Werror", *board.cflags()]
    link = ["-nostartfiles", "--specs=nano.specs", "--specs=nosys.specs", "-T", "linker.ld"]
    sources = ["aot_core.c", *(path.name for path in board.firmware.c_files)]
    subprocess.run([*argv, "main.c", *sources, *link, "-o", str(program)], cwd=folder, check=True)
    running = Firmware(board, program)
    try:
        running.read("boot ")
        yield running
    finally:
        running.machine.close()


def test_memory_at_the_start_and_after_a_reset(firmware: Firmware) -> None:
    firmware.ask("k")
    firmware.crash("r")
    assert firmware.ask("m") == [42, 7, 0]
    assert firmware.ask("m") == [43, 7, 1]
    firmware.crash("r")
    assert firmware.ask("m") == [42, 7, 2]
    assert firmware.ask("f") == [6]


def test_counter_is_exact(firmware: Firmware) -> None:
    """The same instructions take the same ticks, but for one: an instruction is no whole number of
    them, so it matters where between two ticks the first reading is. The clocks agree.
    """
    assert firmware.port is not None
    counted = []
    for _ in range(2):
        firmware.port.write(b"c")  # alone: a byte that comes meanwhile is an interrupt
        counted.append(int(firmware.read(" ")))
    first, second = counted
    assert abs(first - second) <= 1
    # 64 ns an instruction; the loop has 5 to 8 of them.
    hz = 20_000_000 if firmware.board.name == "mps3-an547" else 25_000_000
    assert 5 <= first / hz / 64e-9 / 100_000 <= 8
    (milliseconds,) = firmware.ask("t")
    assert 99 <= milliseconds <= 101


def test_stack_is_measured(firmware: Firmware) -> None:
    size, before, after = firmware.ask("p")
    assert size == 0x8000
    assert 0 < before < 1024
    assert 20 * 256 <= after - before <= 20 * 400


def test_faults_are_reported_and_the_board_restarts(firmware: Firmware) -> None:
    """Also that of a stack that is full: the report has one of its own."""
    assert firmware.crash("o").startswith("stack overflow at ")
    assert firmware.crash("b").startswith("bus fault at ")
    assert firmware.crash("u").startswith("undefined instruction at ")
    assert firmware.ask("f") == [6]


def test_serial_line_passes_all_bytes(firmware: Firmware) -> None:
    """Much more than the queue holds, with nobody reading meanwhile on either side."""
    port = firmware.port
    assert port is not None
    data = bytes(b for b in range(256) if chr(b) not in "mkctpoubfr") * 24
    port.write(data)
    got, until = b"", time.monotonic() + 30
    while len(got) < len(data) and time.monotonic() < until:
        got += port.read(1.0)
    assert got == data
