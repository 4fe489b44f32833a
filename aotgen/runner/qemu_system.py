"""Emulates a microcontroller board: qemu-system-arm, whose serial line is a pseudo-terminal.

The core stays stopped until the terminal is open, so that nothing it says is lost. Instructions
take constant time (``-icount``), so that the board's clock counts them exactly.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.runner.base import LinkError, last_words
from aotgen.runner.serial_port import DEFAULT_BAUD, SerialPort
from aotgen.target.board import Board

_START_S = 30.0
_END_S = 1.0

_SHIFT = 6

INSTRUCTION_NS = 1 << _SHIFT
"""Of the board's clock, that each instruction takes."""

EMULATOR = "qemu-system-arm"


class Terminal(SerialPort):
    """The serial line of an emulated board, which breaks when the emulator ends."""

    def __init__(self, device: str, machine: QemuMachine) -> None:
        super().__init__(device, DEFAULT_BAUD)
        self._machine = machine

    def _broken(self, error: object) -> LinkError:
        return self._machine.died() or super()._broken(error)


class QemuMachine:
    """A board that is being emulated, and the port of its serial line."""

    def __init__(self, board: Board, program: Path) -> None:
        """Start it.

        Args:
            board: a bare one.
            program: its firmware, an ELF file.

        Raises:
            UsageError: the board has no emulator.
            ToolchainError: QEMU is not installed.
            BoardError: it does not start.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self.port: SerialPort | None = None
        argv = machine_argv(board, program)
        # A file, not a pipe, which would fill up.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C is ours: it ends the emulator in order
            )
            self._until = time.monotonic() + _START_S
            self._buffer = b""
            self._receive("QMP")
            self._ask("qmp_capabilities")
            self.port = Terminal(self._terminal(), self)
            self._ask("cont")
        except BaseException:
            self.close()
            raise

    def reset(self) -> None:
        """As the board's reset button.

        Raises:
            BoardError: the emulator has died.
        """
        self._until = time.monotonic() + _START_S
        self._ask("system_reset")

    def close(self) -> None:
        """End it; may be called twice."""
        if self.port is not None:
            self.port.close()
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._log.close()

    def _terminal(self) -> str:
        """Path of the pseudo-terminal."""
        for entry in self._ask("query-chardev"):
            name = str(entry.get("filename", ""))
            if entry.get("label") == "serial" and name.startswith("pty:"):
                return name[len("pty:") :]
        raise BoardError(f"{EMULATOR} opened no pseudo-terminal")

    def _ask(self, command: str) -> Any:
        """What QEMU returns for a command of its monitor protocol."""
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps({"execute": command}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise self._gone() from error
        return self._receive("return")

    def _receive(self, key: str) -> Any:
        """The next message with ``key``; events are passed over."""
        process = self._process
        assert process is not None and process.stdout is not None
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                if not line.startswith(b"{"):
                    continue  # a word on the terminal
                message = json.loads(line)
                if "error" in message:
                    raise BoardError(f"{EMULATOR}: {message['error'].get('desc', message)}")
                if key in message:
                    return message[key]
                continue
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise BoardError(f"{EMULATOR} does not answer")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._gone()
            self._buffer += data

    def died(self) -> LinkError | None:
        """What to say when it has ended by itself; None while it runs."""
        if self._process is None:
            return None
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return None
        self._log.seek(0)
        words = last_words(self._log.read().decode(errors="replace"))
        return LinkError(f"{EMULATOR} ended{f': {words}' if words else ''}")

    def _gone(self) -> BoardError:
        return self.died() or BoardError(f"{EMULATOR} does not listen")


def machine_argv(board: Board, program: Path) -> list[str]:
    """How to start the emulator, its core stopped.

    Raises:
        UsageError: the board has no emulator.
        ToolchainError: QEMU is not installed.
    """
    if not board.emulated_machine:
        raise UsageError(
            f"board {board.name} has no emulator", remedy="use --runner serial:/dev/ttyX[:baud]"
        )
    found = shutil.which(EMULATOR)
    if found is None:
        raise ToolchainError(
            f"{EMULATOR} is not installed",
            remedy="on Debian and Ubuntu: apt-get install qemu-system-arm",
        )
    # It must not outlive us, not even when we are killed.
    guard = shutil.which("setpriv")
    return [
        *([guard, "--pdeathsig", "KILL"] if guard else []),
        found,
        *("-M", board.emulated_machine, "-nodefaults", "-display", "none"),
        *("-chardev", "pty,id=serial", "-serial", "chardev:serial"),
        *("-icount", f"shift={_SHIFT}", "-S", "-qmp", "stdio"),
        *("-kernel", str(program)),
    ]
