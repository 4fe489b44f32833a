"""Looks at what a microcontroller board takes on this computer: compiler, C library, emulator,
serial port. The board itself has no system that could be asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aotgen.doctor.report import Check, Report
from aotgen.errors import ToolchainError, UsageError
from aotgen.runner.qemu_system import EMULATOR
from aotgen.runner.serial_port import parse_serial
from aotgen.target.board import Board
from aotgen.target.toolchain import compiler_of, compiler_packages, find_tool, require_cmake

_PROBE = """#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__ARM_FEATURE_MVE)
#include <arm_mve.h>
#endif
int main(void) { return 0; }
"""
"""Whether the compiler has the core, and the C library for its ABI."""

_TIMEOUT_S = 60


def diagnose_bare(host: str, board: Board) -> Report:
    """Check what is needed to build for a bare board and to reach it.

    Args:
        host: "local" for the tools alone, "qemu" for the emulated board,
            ``serial:/dev/ttyX[:baud]`` for a real one.
        board: a bare one.

    Raises:
        UsageError: ``host`` leads to no such board.
    """
    kind = host.partition(":")[0]
    if kind not in ("local", "qemu", "serial"):
        raise UsageError(
            f"{host} does not lead to {board.name}, which is a microcontroller",
            remedy="use local (the tools alone), qemu or serial:/dev/ttyX",
        )
    checks = [Check("board", f"{board.name}: {board.description}"), *_check_tools(board)]
    checks.append(_check_firmware(board))
    if kind == "qemu":
        checks.append(_check_emulator(board))
    if kind == "serial":
        checks.append(_check_port(parse_serial(host)[0]))
    return Report(host, board.name, tuple(checks))


def _check_tools(board: Board) -> Iterator[Check]:
    try:
        compiler = compiler_of(board)
    except ToolchainError as missing:
        yield Check("compiler", missing.args[0], f"{board.triple}-gcc", "fail", missing.remedy)
    else:
        assert compiler is not None  # bare boards have a cross compiler
        tool = find_tool(compiler)
        yield Check("compiler", f"{compiler} {tool.version_text if tool else ''}".strip())
        yield _check_program(compiler, board)
    for name in ("objcopy", "size"):
        program = f"{board.triple}-{name}"
        if shutil.which(program) is None:
            remedy = f"on Debian and Ubuntu: apt-get install binutils-{board.triple}"
            yield Check(name, f"{program} is not installed", "", "fail", remedy)
    try:
        yield Check("cmake", require_cmake().version_text)
    except ToolchainError as missing:
        yield Check("cmake", missing.args[0], "", "fail", missing.remedy)


def _check_program(compiler: str, board: Board) -> Check:
    """Links an empty program for the core."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(_PROBE, encoding="utf-8")
        argv = [compiler, *board.cflags(), "--specs=nano.specs", "--specs=nosys.specs"]
        try:
            done = subprocess.run(
                [*argv, str(source), "-o", str(Path(folder, "probe.elf"))],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
            status, said = done.returncode, done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            status, said = 1, str(error)
    core = board.clusters[0].core
    if status == 0:
        return Check("core", f"{core}, with its C library")
    lines = [line.strip() for line in said.splitlines() if "error" in line] or ["no reason given"]
    packages = compiler_packages(board)
    remedy = f"on Debian and Ubuntu: apt-get install {packages}; MVE needs GCC 10 or newer"
    return Check("core", lines[0][:120], f"{core}, with its C library", "fail", remedy)


def _check_firmware(board: Board) -> Check:
    if board.firmware.can_start:
        return Check("firmware", "start-up code, hardware layer and linker script")
    text = "yours: the project builds libraries, for which aot_hal.h wants three functions"
    return Check("firmware", text)


def _check_emulator(board: Board) -> Check:
    if not board.emulated_machine:
        text = "QEMU has no such board"
        return Check("emulator", text, "", "fail", "use serial:/dev/ttyX, or an mps2 or mps3 board")
    tool = find_tool(EMULATOR)
    if tool is None:
        remedy = "on Debian and Ubuntu: apt-get install qemu-system-arm"
        return Check("emulator", f"{EMULATOR} is not installed", "", "fail", remedy)
    found = f"{EMULATOR} {tool.version_text}"
    try:
        done = subprocess.run(
            [str(tool.path), "-M", "help"], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        machines = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("emulator", f"{found} does not run: {error}", "", "fail", "install it again")
    if board.emulated_machine not in machines:
        text = f"{found} without machine {board.emulated_machine}"
        return Check("emulator", text, "", "fail", "install a newer QEMU")
    return Check("emulator", f"{found}, machine {board.emulated_machine}")


def _check_port(port: str) -> Check:
    """A serial port; whether firmware answers there is what ``aotgen validate`` finds out."""
    if not os.path.exists(port):
        remedy = (
            "look at `ls /dev/tty*` before and after plugging it in; is the cable one for data?"
        )
        return Check("serial port", f"there is no {port}", "", "fail", remedy)
    if not os.access(port, os.R_OK | os.W_OK):
        remedy = "`sudo usermod -aG dialout $USER`, then log in again"
        return Check("serial port", f"no permission for {port}", "", "fail", remedy)
    return Check("serial port", f"{port} is there")
