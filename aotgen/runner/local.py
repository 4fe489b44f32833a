"""Runs programs on this computer, by themselves or under an emulator."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from aotgen.errors import BoardError, ToolchainError
from aotgen.runner.base import (
    DEFAULT_TIMEOUT_S,
    Argument,
    Download,
    Runner,
    RunResult,
    Upload,
    failure,
)


class LocalRunner(Runner):
    """Programs run where they lie; files are passed by path."""

    name = "local"

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        """``prefix`` is put before the program: an emulator with its options."""
        self.prefix = tuple(prefix)

    def deploy(self, *programs: Path) -> None:
        for program in programs:
            if not program.is_file():
                raise BoardError(f"there is no program {program}", remedy="build the project first")

    def run(
        self, program: Path, arguments: Sequence[Argument] = (), timeout: float = DEFAULT_TIMEOUT_S
    ) -> RunResult:
        argv = [*self.prefix, str(program.resolve()), *(_text(a) for a in arguments)]
        start = time.perf_counter()
        try:
            # A session of its own, so that a timeout takes the program's children with it.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise BoardError(f"cannot start {argv[0]}: {error.strerror}") from error
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise BoardError(f"{program.name} was stopped after {timeout:g} s") from None
        except BaseException:
            _kill(process)
            raise
        seconds = time.perf_counter() - start
        stdout, stderr = out.decode(errors="replace"), err.decode(errors="replace")
        if process.returncode != 0:
            raise failure(program.name, process.returncode, stdout, stderr)
        return RunResult(stdout, stderr, seconds)

    def close(self) -> None:
        return None


def emulator(argv: Sequence[str]) -> tuple[str, ...]:
    """``argv`` with its program's full path.

    Raises:
        ToolchainError: the emulator is not installed.
    """
    found = shutil.which(argv[0]) or shutil.which(f"{argv[0]}-static")
    if found is None:
        raise ToolchainError(
            f"{argv[0]} is not installed", remedy="on Debian and Ubuntu: apt-get install qemu-user"
        )
    return (found, *argv[1:])


def _text(argument: Argument) -> str:
    if isinstance(argument, Upload | Download):
        return str(argument.path.resolve())
    return argument


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
