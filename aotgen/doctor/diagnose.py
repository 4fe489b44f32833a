"""Looks at a board through a runner: ``diagnose`` compares, ``describe`` writes its board.toml."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from pathlib import Path

from aotgen.doctor.checks import check_facts, check_folder, check_libc, check_spins
from aotgen.doctor.description import board_toml
from aotgen.doctor.facts import Facts, read_facts
from aotgen.doctor.files import BoardFiles
from aotgen.doctor.probe_program import ProbeRun, build_probe, needed_glibc, run_probe
from aotgen.doctor.report import Check, Report
from aotgen.errors import BoardError, ToolchainError
from aotgen.runner.base import Runner
from aotgen.target.board import Board, list_boards, load_board
from aotgen.target.host import architecture

_OLD_LIBC = re.compile(r"GLIBC_\d|version .* not found|symbol not found|libc\.so", re.IGNORECASE)


def diagnose(host: str, runner: Runner, board: Board | None = None, root: str = "") -> Report:
    """Check a board and what is needed to build for it.

    Args:
        host: what leads to it, for the report.
        runner: leads to it.
        board: what it should be; None takes this computer's for "local", else the one of ours
            that has its cores.
        root: folder on the board that stands for its ``/`` where /proc, /sys and /etc are read.

    Raises:
        BoardError: it cannot be reached.
    """
    files = BoardFiles(runner, root)
    start = time.perf_counter()
    files.text("/proc/version")
    seconds = time.perf_counter() - start
    facts = read_facts(files)
    if board is None:
        board = load_board("host") if host == "local" and not root else board_like(facts)
    checks = [
        Check("connection", "this computer" if host == "local" else f"answers ({seconds:.1f} s)"),
        _board_row(board, host),
        *check_facts(facts, board),
        *_check_programs(files, facts, board, host),
    ]
    return Report(host, board.name if board else "", tuple(checks))


def describe(host: str, runner: Runner, root: str = "") -> str:
    """The board.toml of a board.

    Args:
        host: see ``diagnose``; the board's default runner.
        runner: see ``diagnose``.
        root: see ``diagnose``.

    Raises:
        BoardError: it cannot be reached.
    """
    files = BoardFiles(runner, root)
    facts = read_facts(files)
    static = False
    if host != "local" and _is_board(files, facts):
        try:
            _, error, _ = _run(files, facts, _described(facts, host), [])
        except ToolchainError:
            error = ""  # without a compiler there is nothing to be too old for
        static = _wants_static(error, facts)
    return board_toml(facts, host, static)


def board_like(facts: Facts) -> Board | None:
    """The board of ours with the same architecture and cores; None when there is none."""
    have = Counter(cpu.core.name for cpu in facts.cpus)
    for name in list_boards():
        board = load_board(name)
        if board.is_bare or not board.triple or board.machine != facts.machine:
            continue
        if have == Counter(c.core for c in board.clusters for _ in range(c.count)):
            return board
    return None


def _board_row(board: Board | None, host: str) -> Check:
    if board is not None:
        return Check("board", f"{board.name}: {board.description}")
    remedy = f"describe it: mkdir my_board; aotgen boards probe {host} > my_board/board.toml"
    return Check("board", "none of ours has these cores", "", "warn", remedy)


def _check_programs(files: BoardFiles, facts: Facts, board: Board | None, host: str) -> list[Check]:
    """What takes a program of ours: compiler, C library, folder, clocks."""
    if not _is_board(files, facts):
        text = "not tried: /proc and /sys are of another computer than programs run on"
        return [Check("programs", text, status="skip")]
    wanted = board or _described(facts, host)
    cpus = [cluster.numbers[0] for cluster in facts.clusters]
    try:
        run, error, needed = _run(files, facts, wanted, cpus)
    except ToolchainError as missing:
        text = f"a compiler for {wanted.triple or 'this computer'}"
        return [Check("compiler", missing.args[0], text, "fail", missing.remedy)]
    if run is None and not _wants_static(error, facts):
        message, _, remedy = error.partition("\n")
        return [Check("programs", message, "run", "fail", remedy or "see docs/boards.md, Faults")]
    checks = [check_libc(run, error.partition("\n")[0], needed, wanted)]
    if run is not None:
        checks += [check_folder(run), *check_spins(run.spins, facts, bool(files.root))]
    return checks


def _wants_static(error: str, facts: Facts) -> bool:
    """Whether a program failed for want of its C library: an older one is there, or musl alone."""
    musl = bool(facts.loaders) and all("musl" in name for name in facts.loaders)
    return bool(error) and (musl or _OLD_LIBC.search(error) is not None)


def _is_board(files: BoardFiles, facts: Facts) -> bool:
    """Whether programs run on the computer whose files are read."""
    if not files.root:
        return True
    return architecture(files.output(["uname", "-m"]) or "") == facts.kernel_machine


def _run(
    files: BoardFiles, facts: Facts, board: Board, cpus: list[int]
) -> tuple[ProbeRun | None, str, tuple[int, int] | None]:
    """Build and run the probe program.

    Returns:
        What it found or None; why it did not run, and after a newline what to do; the glibc that
        it needs.

    Raises:
        ToolchainError: it cannot be built.
        BoardError: the board cannot be reached any more.
    """
    with tempfile.TemporaryDirectory(prefix="aotgen-") as name:
        program = build_probe(board, Path(name))
        needed = needed_glibc(program)
        try:
            return run_probe(files.runner, program, cpus), "", needed
        except BoardError as error:
            files.runner.read_text("/proc/version")  # raises when the link is lost
            return None, f"{error.args[0]}\n{error.remedy}", needed


def _described(facts: Facts, host: str) -> Board:
    """The board as its own board.toml would have it."""
    with tempfile.TemporaryDirectory(prefix="aotgen-") as name:
        folder = Path(name) / "board"
        folder.mkdir()
        (folder / "board.toml").write_text(board_toml(facts, host), encoding="utf-8")
        return load_board(folder)
