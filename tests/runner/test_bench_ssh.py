"""Benchmarks over ssh: a link that breaks leaves the board as it was, and what was measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest

import aotgen
from aotgen.bench import BenchOptions
from aotgen.bench_result import BenchInterrupted
from aotgen.runner.base import Timing
from aotgen.runner.output import LineReader
from aotgen.runner.ssh import SshRunner
from support import require_tool
from tests.runner.loopback import Board, Proxy, wait_for
from tests.sysfs_tree import SysfsTree


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    folder = tmp_path_factory.mktemp("project")
    (folder / "two.onnx").write_bytes(models.two_layers().SerializeToString())
    return aotgen.compile(folder / "two.onnx", board="rpi4", output=folder / "p")


@pytest.fixture
def tree(board: Board, monkeypatch: pytest.MonkeyPatch) -> Iterator[SysfsTree]:
    """In a place that the board's account may write to."""
    import tempfile

    monkeypatch.setenv("AOTGEN_SSH_WRAPPER", " ".join(board.wrapper))
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        tree = SysfsTree(Path(name))
        for cpu in range(2):
            tree.cpu(cpu)
            tree.governor_file(cpu).chmod(0o666)
        tree.zone(0, 50.0)
        yield tree


def test_over_ssh(project: aotgen.Project, board: Board, tree: SysfsTree) -> None:
    options = BenchOptions(number=2, repeat=3, profile=True, sysfs_root=str(tree.root))
    with board.runner() as place:
        (result,) = project.bench_each([1], options, place)
    assert (len(result.times_ms), result.number, result.runner) == (3, 2, "ssh")
    assert result.governor is not None
    assert (result.governor.set, result.governor.restored) == (2, True)
    assert result.after.temperature_c == 50.0
    assert len(result.layers) == len(project.info.layers)
    assert tree.governors() == ["schedutil"] * 2


def test_a_link_that_is_cut(
    project: aotgen.Project,
    board: Board,
    tree: SysfsTree,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = Proxy(board.port)
    config = board.config_with(
        tmp_path / "config", Port=proxy.port, HostKeyAlias=f"[127.0.0.1]:{board.port}"
    )
    seen: list[list[str]] = []
    timed = SshRunner.time

    def time(place: SshRunner, program: Path, *, on_line: LineReader, **more: Any) -> Timing:
        """Cuts the link after some repeats."""

        def line(text: str) -> None:
            on_line(text)
            if '"repeat":2,' in text and not seen:
                seen.append(tree.governors())
                proxy.cut()

        return timed(place, program, on_line=line, **more)

    monkeypatch.setattr(SshRunner, "time", time)
    options = BenchOptions(repeat=100_000, sysfs_root=str(tree.root))
    with board.runner(config) as place, pytest.raises(BenchInterrupted, match="lost") as caught:
        project.bench_each([1], options, place)
    proxy.close()
    assert seen == [["performance"] * 2]
    (result,) = caught.value.results
    assert len(result.times_ms) > 0 and not result.complete
    wait_for(lambda: tree.governors() == ["schedutil"] * 2, 90)
