"""Runs a Linux board's programs on this computer under user-mode QEMU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import COMMAND_TIMEOUT_S, DEFAULT_TIMEOUT_S, Argument, RunResult
from aotgen.runner.local import LocalRunner, emulator
from aotgen.runner.qemu_plugin import Counts, plugin_words, read_log
from aotgen.scratch import own_folder
from aotgen.target.board import Board, Cluster


class CountLog:
    """What the programs of a ``QemuRunner.counting`` executed in the regions that they mark."""

    def __init__(self, path: Path, board: Board, cluster: Cluster) -> None:
        self._path = path
        self._board = board
        self._cluster = cluster

    def regions(self) -> list[Counts]:
        """Those that have ended so far, in that order; also while a program runs.

        Raises:
            BoardError: the log is damaged.
        """
        return read_log(self._path, self._board, self._cluster)


class QemuRunner(LocalRunner):
    """The local runner behind the board's emulator. Its times say nothing about the board."""

    name = "qemu"

    def __init__(self, board: Board) -> None:
        """
        Raises:
            UsageError: the board has no emulator.
            ToolchainError: the emulator is not installed.
        """
        if not board.emulator:
            raise UsageError(f"board {board.name} has no emulator", remedy="use --runner local")
        super().__init__(emulator(board.emulator))
        self.board = board

    @contextmanager
    def counting(self, cluster: Cluster | None = None) -> Iterator[CountLog]:
        """Until it is left, ``run`` counts the regions that programs mark.

        Args:
            cluster: whose caches and weights to count with; None is the board's fastest.

        Raises:
            ToolchainError: the emulator cannot count, or the plugin cannot be built.
            UsageError: the cluster's caches are no caches.
        """
        cluster = cluster or self.board.clusters[0]
        plain = self.prefix
        with own_folder("aotgen-count-") as folder:
            log = folder / "counts.jsonl"
            words = plugin_words(plain[0], cluster, log)
            # The environment lies on the stack: its length would move all frames, and with them
            # which lines of the simulated caches they share.
            # QEMU takes the first variable that begins so, hence the longest names first.
            names = sorted(os.environ, key=lambda name: (-len(name), name))
            unset = (word for name in names for word in ("-U", name))
            self.prefix = (plain[0], *words, *unset, *plain[1:])
            try:
                yield CountLog(log, self.board, cluster)
            finally:
                self.prefix = plain

    def count(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        cluster: Cluster | None = None,
    ) -> Counts:
        """Run a program that marks one region, and count that.

        Args:
            program: as ``run``.
            arguments: as ``run``.
            timeout: as ``run``; counting with caches takes a few times as long as a plain run.
            cluster: as ``counting``.

        Raises:
            BoardError: as ``run``; or the program marked another number of regions, did not end
                it, or had several threads in it, which cannot be counted.
            ToolchainError: as ``counting``.
            UsageError: as ``counting``.
        """
        with self.counting(cluster) as log:
            self.run(program, arguments, timeout)
            regions = log.regions()
        if len(regions) != 1 or not regions[0].complete:
            raise BoardError(f"{program.name} ended {len(regions)} regions to count, not 1")
        if regions[0].threads > 1:
            raise BoardError(
                f"{program.name} had {regions[0].threads} threads in the region to count",
                remedy="count with one thread",
            )
        return regions[0]

    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        raise BoardError(
            f"an emulator has no {argv[0]} of its own", remedy="use --runner ssh://..."
        )

    def read_text(self, path: str) -> str | None:
        return None
