"""Builds ``templates/board/probe.c.j2`` for a board, runs it there and reads what it prints."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotgen.codegen.environment import render
from aotgen.errors import BoardError, ToolchainError
from aotgen.runner.base import Runner
from aotgen.target.board import Board
from aotgen.target.toolchain import compiler_of

REPEAT = 9
TIMEOUT_S = 120.0

ADDS = 32
"""Additions in a turn of the loop: enough that its counter costs next to nothing."""

_GLIBC_VERSION = re.compile(rb"GLIBC_(\d+)\.(\d+)")


@dataclass(frozen=True)
class Spin:
    """Times of one loop on one CPU.

    Attributes:
        cpu: its number.
        pinned: whether it was that CPU.
        adds: dependent additions of a measurement, one a cycle.
        wall_ms: of the measurements.
        cpu_ms: what of it the CPU spent on the loop.
    """

    cpu: int
    pinned: bool
    adds: float
    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]

    @property
    def mhz(self) -> float:
        """The clock that the fastest measurement comes to."""
        return self.adds / min(self.cpu_ms) / 1000

    @property
    def spread(self) -> float:
        """By how much of the fastest measurement's CPU time the median is slower."""
        return statistics.median(self.cpu_ms) / min(self.cpu_ms) - 1

    @property
    def lost(self) -> float:
        """The share of the time that other programs had."""
        return max(0.0, 1 - sum(self.cpu_ms) / sum(self.wall_ms))


@dataclass(frozen=True)
class ProbeRun:
    """What the program found out.

    Attributes:
        folder: of the board, in which programs are put.
        free_bytes: there; negative when not told.
        libc: version of the board's glibc; empty for another library.
        spins: one for each CPU that was asked for.
    """

    folder: str
    free_bytes: int
    libc: str
    spins: tuple[Spin, ...]


def build_probe(board: Board, folder: Path) -> Path:
    """The program, built like those of a project.

    Args:
        board: what to build for.
        folder: an existing one.

    Raises:
        ToolchainError: the board's compiler is missing or fails.
    """
    source, program = folder / "probe.c", folder / "aotgen-probe"
    source.write_text(render("board/probe.c.j2", adds=ADDS), encoding="utf-8")
    compiler = compiler_of(board) or "cc"
    argv = [compiler, "-std=c99", "-O2", *(["-static"] if board.static else [])]
    argv += ["-pthread", str(source), "-o", str(program)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{compiler} does not build a program: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ToolchainError(f"{compiler} does not build a program: {lines[-1]}")
    return program


def needed_glibc(program: Path) -> tuple[int, int] | None:
    """The glibc that a program's symbols ask for; None when it is static."""
    found = [(int(m[1]), int(m[2])) for m in _GLIBC_VERSION.finditer(program.read_bytes())]
    return max(found, default=None)


def run_probe(runner: Runner, program: Path, cpus: Sequence[int]) -> ProbeRun:
    """Run it on the board.

    Args:
        runner: leads to the board.
        program: see ``build_probe``.
        cpus: to measure the clock of.

    Raises:
        BoardError: it cannot be run there, or prints something else.
    """
    runner.deploy(program)
    done = runner.run(program, [str(REPEAT), *map(str, cpus)], TIMEOUT_S)
    return parse_probe(done.stdout)


def parse_probe(stdout: str) -> ProbeRun:
    """What the program printed.

    Raises:
        BoardError: it is not what it prints.
    """
    try:
        about, *spins = [json.loads(line) for line in stdout.splitlines()]
        return ProbeRun(
            folder=str(about["folder"]),
            free_bytes=int(about["free_bytes"]),
            libc=str(about["libc"]),
            spins=tuple(_spin(entry) for entry in spins),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BoardError(f"the probe program printed no result: {stdout[:200]!r}") from error


def _spin(entry: dict[str, Any]) -> Spin:
    wall, cpu = zip(*[(float(w), float(c)) for w, c in entry["times_ms"]], strict=True)
    if min(wall) <= 0 or min(cpu) <= 0:
        raise ValueError("no times")
    return Spin(int(entry["cpu"]), entry["pinned"] is True, float(entry["adds"]), wall, cpu)
