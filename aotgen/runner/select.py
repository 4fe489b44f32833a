"""From the text of ``--runner`` to a Runner."""

from __future__ import annotations

import re

from aotgen.errors import UsageError
from aotgen.runner.base import Runner
from aotgen.runner.local import LocalRunner
from aotgen.runner.qemu import QemuRunner
from aotgen.target.board import Board

_HOST_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def runner_for(spec: str | None, board: Board) -> Runner:
    """The runner that ``spec`` asks for.

    Args:
        spec: ``local``, ``qemu``, ``ssh://user@host[:port]``, a Host alias of the ssh config, or
            ``serial:/dev/ttyX[:baud]``; None is this computer where the board is of its
            architecture, else the board's default runner.
        board: the board that the programs are built for.

    Raises:
        UsageError: the spec is malformed, or this version has no such runner.
        ToolchainError: the board's emulator is not installed.
    """
    if spec is None:
        spec = "local" if board.runs_here else board.default_runner
    if spec == "local":
        if not board.runs_here:
            raise UsageError(
                f"this computer cannot run programs of board {board.name} ({board.machine})",
                remedy="use --runner qemu",
            )
        return LocalRunner()
    if spec == "qemu":
        return QemuRunner(board)
    if spec.startswith("ssh://") or spec.startswith("serial:"):
        kind = spec.split(":", 1)[0]
        raise UsageError(
            f"runner {spec!r}: {kind} runners are not available yet",
            remedy="use --runner local or qemu",
        )
    if _HOST_ALIAS.fullmatch(spec):
        raise UsageError(
            f"there is no runner {spec!r}, and a host of the ssh config cannot be used yet",
            remedy="use --runner local or qemu",
        )
    raise UsageError(
        f"runner {spec!r} is malformed",
        remedy="use --runner local or qemu",
    )
