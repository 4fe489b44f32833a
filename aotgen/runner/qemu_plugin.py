"""Counts what a program executes under user-mode QEMU, with a plugin for QEMU's code generator.

The plugin is C in ``board_support/qemu_plugin``, built when it is first used. It counts regions
that the program marks, by two hints that are no-operations on every ARM core:

    AArch64     hint #0x50                  begins a region
                hint #0x51                  ends it
    A32         .inst 0xe320f050, ...f051   (templates/runtime/count_region.h.j2 has all three)
    Thumb       .inst.w 0xf3af8050, ...8051

- A region's end appends one line to the log, whole (one write), so that lines of several processes
  do not mix: ``{"pid": p, "region": n, "complete": true, ...}``.
- ``n`` counts the regions that this process ended, from 1. A child of fork() starts at 1 again and
  has a ``pid`` of its own, which is what its getpid() returns; a region that was open when it was
  forked is its parent's alone. Lines are in the order in which regions ended.
- A begin in an open region drops what that one counted; an end without a begin does nothing. A
  region still open when the process exits (exit or _exit) is reported with ``complete`` false. A
  process that dies from a signal reports nothing more.
- Caches stay warm from region to region and see what runs between them; a forked child inherits
  their contents. To count a warm run, run once before the region.
- Counts are of one thread. ``threads`` is the most that the process had at a time meanwhile.
- Counts are the same in each run of the same program with the same arguments. It gets no
  environment, which would move the stack.

``instructions`` are those executed, LDM, STM, VLDM and VSTM of 32-bit ARM once for each register.
``operations`` has classes (``cost_model.UNITS``), where each load and store counts once for each
register that it moves, so that they are more. Prefetch instructions fetch nothing here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotgen.builder import first_error
from aotgen.cache import cache_folder
from aotgen.errors import BoardError, ToolchainError, UsageError
from aotgen.resources import board_support_dir
from aotgen.target.board import Board, Cluster
from aotgen.target.cost_model import UNITS
from aotgen.target.toolchain import require_tool

_CFLAGS = ("-std=c99", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")

_NEXT_INTERFACE = 9
"""The first version of QEMU that does not load plugins of interface 1."""

_REMEDY = (
    "use a dynamically linked QEMU 4.2 to 8.2, as Debian 12's qemu-user is (not qemu-user-static)"
)


@dataclass(frozen=True)
class Counts:
    """What one region executed.

    Attributes:
        pid: of the process.
        region: which one of that process's, from 1.
        complete: False when the process exited in it.
        threads: most that the process had at a time meanwhile.
        instructions: executed ones.
        operations: by class.
        issue_cycles: what their issue takes by the board's cost model, misses excluded; None where
            it has none.
        l1_misses: of the simulated L1 data cache.
        l2_misses: of the L2 behind it; 0 where the board has none.
    """

    pid: int
    region: int
    complete: bool
    threads: int
    instructions: int
    operations: Mapping[str, int]
    issue_cycles: float | None
    l1_misses: int
    l2_misses: int

    @classmethod
    def of_instructions(cls, instructions: int) -> Counts:
        """Where nothing else was counted."""
        return cls(0, 1, True, 1, instructions, {}, None, 0, 0)


def modelled_seconds(counts: Counts, board: Board, cluster: Cluster | None = None) -> float:
    """Seconds that a region takes on the board's core, by its cost model.

    Args:
        counts: of a runner for the same board and cluster.
        board: whose core it is.
        cluster: one of the board's; None is the fastest.

    Raises:
        UsageError: board.toml has no cost model or no clock for the core.
    """
    cluster = cluster or board.clusters[0]
    model = cluster.cost_model
    if model is None or counts.issue_cycles is None:
        raise UsageError(
            f"board {board.name} has no cost model for {cluster.core}",
            remedy="measure on the board (--runner ssh://...), or give the cluster a cost_model",
        )
    if not cluster.clock_mhz:
        raise UsageError(f"board {board.name} has no clock_mhz for {cluster.core}")
    missing = counts.l1_misses * model.l1_miss + counts.l2_misses * model.l2_miss
    return (counts.issue_cycles + missing) / (cluster.clock_mhz * 1e6)


def plugin_words(emulator: str, cluster: Cluster, log: Path) -> tuple[str, ...]:
    """Arguments of QEMU that load the plugin with the cluster's caches and weights.

    Args:
        emulator: full path of QEMU.
        cluster: whose caches are simulated.
        log: what the plugin appends to.

    Raises:
        ToolchainError: this QEMU runs no such plugins, or the plugin cannot be built.
        UsageError: the cluster's caches are no caches.
    """
    _check_caches(cluster)
    _check_emulator(emulator)
    # By its key: a path with "=" in it would be taken for another option.
    options = [f"file={_built_plugin()}", f"out={log.resolve()}", f"line={cluster.line_bytes}"]
    options.append(f"l1={cluster.l1_bytes}:{cluster.l1_ways}")
    if cluster.l2_bytes:
        options.append(f"l2={cluster.l2_bytes}:{cluster.l2_ways}")
    model = cluster.cost_model
    if model is not None:
        options.append(f"issue={round(1000 / model.issue_width)}")
        options.append(f"overlap={round(1000 * model.overlap)}")
        options += [
            f"cost={name}:{unit}:{round(1000 * model.cycles[name])}"
            for unit, names in enumerate(UNITS.values())
            for name in names
        ]
    # QEMU splits at commas, and takes two for one.
    return ("-plugin", ",".join(option.replace(",", ",,") for option in options))


def read_log(log: Path, board: Board, cluster: Cluster) -> list[Counts]:
    """The regions that have ended so far, in that order.

    Args:
        log: as ``plugin_words``; it need not be there.
        board: for messages.
        cluster: as ``plugin_words``.

    Raises:
        BoardError: it has something else than the plugin's lines.
    """
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    try:
        return [_counts(json.loads(line), cluster.cost_model is not None) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise BoardError(
            f"the emulator of board {board.name} left counts that make no sense ({error!r})"
        ) from error


def _counts(data: dict[str, Any], weighted: bool) -> Counts:
    return Counts(
        pid=int(data["pid"]),
        region=int(data["region"]),
        complete=bool(data["complete"]),
        threads=int(data["threads"]),
        instructions=int(data["instructions"]),
        operations={str(name): int(n) for name, n in data["operations"].items()},
        issue_cycles=data["millicycles"] / 1000 if weighted else None,
        l1_misses=int(data.get("l1_misses", 0)),
        l2_misses=int(data.get("l2_misses", 0)),
    )


def _check_caches(cluster: Cluster) -> None:
    """
    Raises:
        UsageError: one is no whole number of sets.
    """
    levels = {
        "l1": (cluster.l1_bytes, cluster.l1_ways),
        "l2": (cluster.l2_bytes, cluster.l2_ways),
    }
    for name, (size, ways) in levels.items():
        one_set = ways * cluster.line_bytes
        if size and (one_set == 0 or size % one_set):
            raise UsageError(
                f"{cluster.core}: {size} bytes are no whole number of sets of {ways} lines of"
                f" {cluster.line_bytes} bytes",
                remedy=f"correct {name}_bytes, {name}_ways or line_bytes in board.toml",
            )


def _check_emulator(emulator: str) -> None:
    """
    Raises:
        ToolchainError: QEMU was built without plugins, or has a newer interface for them.
    """
    if "-plugin" not in _said(emulator, "-h"):
        raise ToolchainError(
            f"{emulator} cannot count instructions: it was built without plugins", remedy=_REMEDY
        )
    version = re.search(r"version (\d+)\.", _said(emulator, "--version"))
    if version and int(version[1]) >= _NEXT_INTERFACE:
        raise ToolchainError(
            f"{emulator} cannot count instructions: QEMU {version[1]} has another interface for"
            " plugins",
            remedy=_REMEDY,
        )


def _said(program: str, option: str) -> str:
    try:
        done = subprocess.run(
            [program, option], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"cannot start {program}: {error}") from error
    return done.stdout.decode(errors="replace")


def _built_plugin() -> Path:
    """The plugin's library, built when there is none of these sources and this compiler.

    It has the hash of both in its name, and is moved to its place when it is complete; of several
    processes that want it one builds it.

    Raises:
        ToolchainError: there is no C compiler, it fails, or the cache folder cannot be written.
    """
    sources = sorted((board_support_dir() / "qemu_plugin").glob("*.[ch]"))
    compiler = require_tool("cc")
    digest = hashlib.sha256(f"{compiler.path} {compiler.version_text} {_CFLAGS}".encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    folder = cache_folder()
    library = folder / f"insn_cost-{digest.hexdigest()[:16]}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "insn_cost.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.is_file():
                _compile(compiler.path, sources, library)
    except OSError as error:
        raise ToolchainError(
            f"cannot build QEMU's plugin in {folder}: {error.strerror}",
            remedy="set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    return library


def _compile(compiler: Path, sources: Sequence[Path], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        files = [str(source) for source in sources if source.suffix == ".c"]
        done = subprocess.run(
            [str(compiler), *_CFLAGS, *files, "-o", str(built)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode != 0:
            raise ToolchainError(
                f"{compiler} cannot build QEMU's plugin: {first_error(done.stdout)}",
                remedy="install a C compiler with its headers; on Debian and Ubuntu: apt-get"
                " install gcc libc6-dev",
            )
        os.replace(built, library)
