"""From the text of ``--runner`` to the place that it names."""

from __future__ import annotations

import re
from collections.abc import Callable

from aotgen.errors import UsageError
from aotgen.runner.base import Place, Runner
from aotgen.runner.local import LocalRunner
from aotgen.runner.qemu import QemuRunner
from aotgen.target.board import Board

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def place_for(
    spec: str | None, board: Board, progress: Callable[[str], None] | None = None
) -> Place:
    """Where a project's model runs: the runner that ``spec`` asks for, or a microcontroller.

    Args:
        spec: see ``runner_for``; of a microcontroller ``qemu`` or ``serial:/dev/ttyX[:baud]``.
        board: that the project was compiled for.
        progress: see ``runner_for``.

    Raises:
        UsageError: see ``runner_for``.
        ToolchainError: the board's emulator is not installed.
    """
    if not board.is_bare:
        return runner_for(spec, board, progress)
    from aotgen.runner.serial import place_of

    return place_of(board, board.default_runner if spec is None else spec)


def runner_for(
    spec: str | None, board: Board | None, progress: Callable[[str], None] | None = None
) -> Runner:
    """The runner of programs that ``spec`` asks for.

    Args:
        spec: ``local``, ``qemu``, ``ssh://user@host[:port]`` or a Host alias of the ssh config;
            None is this computer where the board is of its architecture, else the board's default
            runner.
        board: the board that the programs are built for; None when that is not known.
        progress: gets texts on the progress of large uploads.

    Raises:
        UsageError: the spec is malformed, or the board is a microcontroller, which runs no
            programs.
        ToolchainError: the board's emulator is not installed.
    """
    if board is not None and board.is_bare:
        raise UsageError(
            f"board {board.name} is a microcontroller, where no programs run for this",
            remedy="run, validate and bench work there",
        )
    if spec is None:
        spec = "local" if board is None or board.runs_here else board.default_runner
    if spec == "local":
        if board is not None and not board.runs_here:
            raise UsageError(
                f"this computer cannot run programs of board {board.name} ({board.machine})",
                remedy="use --runner qemu",
            )
        return LocalRunner()
    if spec == "qemu":
        if board is None:
            raise UsageError("runner 'qemu' is no board", remedy="use ssh://user@host or local")
        return QemuRunner(board)
    if spec.startswith("serial:"):
        raise UsageError(
            f"runner {spec!r} is for microcontrollers: no programs run over a serial line",
            remedy="use --runner local, qemu or ssh://user@host",
        )
    return _ssh_runner(spec, progress)


def _ssh_runner(spec: str, progress: Callable[[str], None] | None) -> Runner:
    # paramiko takes a quarter of a second to load.
    from aotgen.runner.ssh import SshRunner
    from aotgen.runner.ssh_config import SshConfig, Target, parse_target

    if spec.startswith("ssh://"):
        target = parse_target(spec[len("ssh://") :], f"runner {spec!r}")
        return SshRunner(target, progress=progress)
    if not _WORD.fullmatch(spec):
        raise UsageError(
            f"runner {spec!r} is malformed",
            remedy="use --runner local, qemu or ssh://user@host",
        )
    config = SshConfig()
    if not config.has(spec):
        raise UsageError(
            f"there is no runner {spec!r}, and no Host {spec} in {config.source}",
            remedy=f"use --runner local, qemu or ssh://user@{spec}",
        )
    return SshRunner(Target(spec), config, progress=progress)
