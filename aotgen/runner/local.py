"""Runs programs on this computer, by themselves or under an emulator."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from aotgen.errors import BoardError, ToolchainError
from aotgen.runner.base import (
    COMMAND_TIMEOUT_S,
    DEFAULT_TIMEOUT_S,
    MAX_TEXT_BYTES,
    Argument,
    Download,
    Runner,
    RunResult,
    Upload,
    failure,
)
from aotgen.runner.output import LineReader, Output


class LocalRunner(Runner):
    """Programs run where they lie; files are passed by path."""

    name = "local"

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        """``prefix`` is put before the program: an emulator with its options."""
        self.prefix = tuple(prefix)

    def emulates(self, machine: str) -> bool:
        return bool(self.prefix)

    def deploy(self, *programs: Path) -> None:
        for program in programs:
            if not program.is_file():
                raise BoardError(f"there is no program {program}", remedy="build the project first")

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: LineReader | None = None,
    ) -> RunResult:
        argv = [*self.prefix, str(program.resolve()), *(_text(a) for a in arguments)]
        return _call(argv, program.name, timeout, on_line)

    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        return _call(list(argv), argv[0], timeout, None)

    def read_text(self, path: str) -> str | None:
        try:
            with open(path, "rb") as file:
                return file.read(MAX_TEXT_BYTES).decode(errors="replace")
        except OSError:
            return None

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


def _call(argv: list[str], name: str, timeout: float, on_line: LineReader | None) -> RunResult:
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
    stdout, stderr = Output(name, on_line), Output(name)
    try:
        _read_to_end(process, stdout, stderr, start + timeout)
    except BaseException as error:
        _kill(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise BoardError(f"{name} was stopped after {timeout:g} s") from None
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    seconds = time.perf_counter() - start
    out, err = stdout.finish(), stderr.finish()
    if process.returncode != 0:
        raise failure(name, process.returncode, out, err)
    return RunResult(out, err, seconds)


def _read_to_end(
    process: subprocess.Popen[bytes], stdout: Output, stderr: Output, deadline: float
) -> None:
    """Feed the pipes to their outputs until both are closed and the program has ended.

    Raises:
        subprocess.TimeoutExpired: that takes past ``deadline`` (of time.perf_counter).
    """
    with selectors.DefaultSelector() as selector:
        for pipe, output in ((process.stdout, stdout), (process.stderr, stderr)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, output)
        while selector.get_map():
            left = deadline - time.perf_counter()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data.feed(data)
                else:
                    selector.unregister(key.fileobj)
    process.wait(max(deadline - time.perf_counter(), 0.0))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole group: a child may live on, and hold the pipes, when the program has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
