"""Places with a microcontroller: a board at a serial port, or an emulated one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.runner.base import Place, last_words
from aotgen.runner.qemu_system import INSTRUCTION_NS, QemuMachine
from aotgen.runner.serial_link import SerialLink
from aotgen.runner.serial_model import SerialModel
from aotgen.runner.serial_port import Port, SerialPort, parse_serial
from aotgen.target.firmware import FIRMWARE_IMAGES

if TYPE_CHECKING:
    from aotgen.project import Project
    from aotgen.runner.model import PlacedModel
    from aotgen.target.board import Board

_FLASH_S = 180.0


class SerialBoard(Place):
    """A board at a serial port. What flashes it, if anything, is its board.toml's [flash] command;
    else it runs the project's firmware already.
    """

    def __init__(self, spec: str, alone: bool = True) -> None:
        """
        Args:
            spec: ``serial:/dev/ttyX[:baud]``.
            alone: whether no other board is in use: else it is flashed only by a command that says
                at which {port}.

        Raises:
            UsageError: the spec is malformed.
        """
        self.name = spec
        self._device, self._baud = parse_serial(spec)
        self._link: SerialLink | None = None
        self._flashed: Path | None = None
        self._alone = alone

    def flashes(self, board: Board) -> bool:
        """Whether a project's firmware is written to the board before its model runs."""
        named = any("{port}" in word for word in board.flash_command)
        return bool(board.flash_command) and (self._alone or named)

    def model(self, project: Project) -> PlacedModel:
        board = project.board
        if not board.is_bare:
            raise UsageError(
                f"board {board.name} runs programs, and none of them over a serial line",
                remedy="use --runner ssh://user@host",
            )
        if self.flashes(board) and self._flashed != project.info.root:
            # One firmware has all models of a bundle.
            self.close()
            flash(project, self._device)
            self._flashed = project.info.root
        if self._link is None:
            self._link = SerialLink(self._open())
        return SerialModel(project.info, board, self._link, self.name)

    def start(self, board: Board, program: Path) -> SerialLink:
        """Flash a program, an ELF file beside which its other forms are, and talk to it.

        Raises:
            UsageError: board.toml does not say how a program is flashed.
            ToolchainError, BoardError: see ``flash``; or the port cannot be opened.
        """
        require_flash(board)
        self.close()
        paths = {"elf": str(program)}
        paths |= {f: str(program.with_suffix(f".{f}")) for f in FIRMWARE_IMAGES}
        paths["port"] = self._device
        run_flash(board, _filled(board.flash_command, paths))
        return self.reopen()

    def reopen(self) -> SerialLink:
        """Talk to the program that was started, after the port was lost.

        Raises:
            BoardError: the port cannot be opened.
        """
        self.close()
        self._link = SerialLink(self._open())
        return self._link

    def reset(self) -> bool:
        """Restart the board; False since nothing but its user can do that."""
        return False

    def _open(self) -> Port:
        return SerialPort(self._device, self._baud)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None


class QemuBoard(Place):
    """A board that QEMU emulates. Its times say nothing about the board; its instructions are
    exact.
    """

    name = "qemu"

    def __init__(self, program: Path | None = None) -> None:
        """``program`` is a project's firmware that is built already; None builds it when needed."""
        self.machine: QemuMachine | None = None
        self._program = program
        self._started: tuple[Board, Path] | None = None

    def model(self, project: Project) -> PlacedModel:
        program = self._program or project.firmware().program("firmware")
        link = self.start(project.board, program)
        return SerialModel(project.info, project.board, link, self.name, INSTRUCTION_NS)

    def start(self, board: Board, program: Path) -> SerialLink:
        """Emulate a program and talk to it.

        Raises:
            BoardError: see ``QemuMachine``.
        """
        self._started = board, program
        return self.reopen()

    def reopen(self) -> SerialLink:
        """The same with the program that was started, after the emulator has died."""
        assert self._started is not None
        self.close()  # what was built may be new
        self.machine = QemuMachine(*self._started)
        assert self.machine.port is not None
        return SerialLink(self.machine.port)

    def reset(self) -> bool:
        """Restart the board; False where none is emulated.

        Raises:
            BoardError: the emulator has died.
        """
        if self.machine is not None:
            self.machine.reset()
        return self.machine is not None

    def close(self) -> None:
        if self.machine is not None:
            self.machine.close()
        self.machine = None


def flash(project: Project, port: str) -> None:
    """Build a project's firmware and write it to its board, which is at a serial port.

    Raises:
        UsageError: the board's [flash] command asks for a file that there is none of.
        ToolchainError: the project does not build, or the command's program is not installed.
        BoardError: the command fails.
    """
    run_flash(project.board, flash_argv(project, project.board.flash_command, port))


def require_flash(board: Board) -> None:
    """
    Raises:
        UsageError: board.toml does not say how a program is flashed.
    """
    if not board.flash_command:
        raise UsageError(
            f"board {board.name} has no [flash] command, without which no program gets there",
            remedy="say in its board.toml how a program is flashed (docs/serial.md)",
        )


def run_flash(board: Board, argv: Sequence[str]) -> None:
    """Call what flashes a board; see ``flash``."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FLASH_S,
        )
    except FileNotFoundError as error:
        raise ToolchainError(
            f"{argv[0]}, which flashes board {board.name}, is not installed",
            remedy="install it, or change [flash] command in its board.toml",
        ) from error
    except OSError as error:
        raise ToolchainError(f"cannot start {argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise BoardError(f"{argv[0]} was stopped after {_FLASH_S:g} s") from error
    if done.returncode != 0:
        words = last_words(done.stderr) or last_words(done.stdout)
        raise BoardError(
            f"flashing board {board.name} failed: {words or f'status {done.returncode}'}",
            remedy=f"the command was: {' '.join(argv)}",
        )


def flash_argv(project: Project, command: Sequence[str], port: str) -> list[str]:
    """``command`` with the paths of the built firmware in place of {elf}, {bin} and {hex}, and the
    serial port in place of {port}.

    Raises:
        UsageError: it asks for a file that there is none of.
    """
    asked = set(re.findall(r"\{(\w+)\}", " ".join(command))) - {"port"}
    firmware = project.board.firmware
    forms = {"elf", *firmware.images} if firmware.can_start else set()
    if asked - forms:
        raise UsageError(
            f"board {project.board.name}: [flash] command asks for"
            f" {', '.join(f'{{{name}}}' for name in sorted(asked - forms))}, which is not built",
            remedy="name the files of your own firmware, or give the board start-up code, linker"
            " script and images ([firmware] in board.toml)",
        )
    paths = {"port": port}
    if asked:
        build = project.firmware()
        elf = build.program("firmware")
        paths["elf"] = str(elf)
        paths |= {form: str(elf.with_suffix(f".{form}")) for form in firmware.images}
    return _filled(command, paths)


def _filled(command: Sequence[str], paths: Mapping[str, str]) -> list[str]:
    return [re.sub(r"\{(\w+)\}", lambda m: paths.get(m[1], m[0]), word) for word in command]


def place_of(board: Board, spec: str) -> SerialBoard | QemuBoard:
    """The place that a spec names for a microcontroller.

    Raises:
        UsageError: it names none.
    """
    if spec == "serial":
        raise UsageError(
            f"nothing says at which serial port board {board.name} is",
            remedy="use --runner serial:/dev/ttyX[:baud]",
        )
    if spec.startswith("serial:"):
        return SerialBoard(spec)
    if spec == "qemu":
        if not board.emulated_machine:
            raise UsageError(
                f"board {board.name} has no emulator", remedy="use --runner serial:/dev/ttyX[:baud]"
            )
        return QemuBoard()
    raise UsageError(
        f"board {board.name} is a microcontroller, which runner {spec!r} does not reach",
        remedy="use --runner serial:/dev/ttyX[:baud]"
        + (" or qemu" if board.emulated_machine else ""),
    )
