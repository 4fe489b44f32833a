"""The way from a model to numbers on a machine of its own: arm64, dropbear, busybox, nothing else.

Times there say nothing about a board.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError
from aotgen.runner.base import Download, Upload
from aotgen.runner.select import runner_for
from benchmarks import networks
from tests.models import flip_weight_bit, two_layers
from tests.runner.loopback import script
from tests.support import require_tool

pytestmark = pytest.mark.board


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    folder = tmp_path_factory.mktemp("project")
    path = networks.export("ds_cnn", folder)
    return aotgen.compile(path, board="rpi4", output=folder / "p")


def test_run(project: aotgen.Project, ssh_to_board: str, tmp_path: Path) -> None:
    x = networks.sample_input("ds_cnn")
    np.savez(tmp_path / "in.npz", **{networks.INPUT: x})
    argv = ["run", str(project.folder), "-i", str(tmp_path / "in.npz")]
    assert call([*argv, "-o", str(tmp_path / "out.npz"), "--runner", ssh_to_board]) == 0
    expected = project.run({networks.INPUT: x}, runner="qemu")
    with np.load(tmp_path / "out.npz") as got:
        assert {n: a.tobytes() for n, a in got.items()} == {
            n: a.tobytes() for n, a in expected.items()
        }


def test_validate(
    project: aotgen.Project, ssh_to_board: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["validate", str(project.folder), "--runner", ssh_to_board, "--per-layer", "--json"]
    assert call(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and len(report["layers"]) == len(project.info.layers)


def test_bench(
    project: aotgen.Project, ssh_to_board: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", str(project.folder), "--runner", ssh_to_board, "--number", "1"]
    assert call([*argv, "--repeat", "2", "--profile", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["median_ms"] > 0 and len(result["layers"]) == len(project.info.layers)


def test_a_changed_weight_bit_is_named(ssh_to_board: str, tmp_path: Path) -> None:
    onnx.save(two_layers(), tmp_path / "m.onnx")
    project = aotgen.compile(tmp_path / "m.onnx", board="rpi4", output=tmp_path / "p")
    victim = [layer for layer in project.info.layers if layer.weights_crc][1]
    flip_weight_bit(project.folder, 1)
    bad = project.validate(per_layer=True, runner=ssh_to_board).first_bad_layer
    assert bad is not None and bad.index == victim.index


def test_programs_of_another_architecture(ssh_to_board: str, tmp_path: Path) -> None:
    """An arm64 kernel would run 32-bit programs, but this system lacks their libraries."""
    require_tool("arm-linux-gnueabihf-gcc", "gcc")
    onnx.save(two_layers(), tmp_path / "m.onnx")
    for board, words in (
        ("rpi3b-armv7", r"the system of board has no /lib/ld-linux-armhf\.so\.3"),
        ("host-scalar", r"board is aarch64, m_\w+ is built for x86_64"),
    ):
        project = aotgen.compile(tmp_path / "m.onnx", board=board, output=tmp_path / board)
        with pytest.raises(BoardError, match=words):
            project.bench(runner=ssh_to_board)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill -SEGV $$", "died from SIGSEGV"),
        ("echo small >&2; exit 3", "ended with status 3: small"),
        ("sleep 4321 & sleep 4321", "stopped after 1 s"),
        ("trap '' TERM; while :; do sleep 4321; done", "stopped after 1 s"),
    ],
)
def test_failures_leave_nothing(text: str, words: str, ssh_to_board: str, tmp_path: Path) -> None:
    """Programs end with their children under another sshd and another shell as well."""
    program = script(tmp_path, text)
    with runner_for(ssh_to_board, None) as runner, pytest.raises(BoardError, match=words):
        runner.deploy(program)
        runner.run(program, timeout=1 if "stopped" in words else 60)
    with runner_for(ssh_to_board, None) as runner:
        deadline = time.monotonic() + 10
        while "4321" in (seen := runner.command(["ps"]).stdout):
            assert time.monotonic() < deadline, seen
            time.sleep(0.5)
        assert "aotgen" not in runner.command(["ls", "/tmp"]).stdout


def test_files(ssh_to_board: str, tmp_path: Path) -> None:
    program, data, copy = script(tmp_path, 'cp "$1" "$2"'), tmp_path / "a b", tmp_path / "c"
    data.write_bytes(bytes(range(256)) * 5000)
    told: list[str] = []
    with runner_for(ssh_to_board, None, told.append) as runner:
        runner.deploy(program)
        for _ in range(2):
            runner.run(program, [Upload(data), Download(copy)])
            assert copy.read_bytes() == data.read_bytes()
            copy.unlink()
        assert "100 %" in "".join(told) and "".join(told).count(" 0 %") == 1
        assert "CPU" in (runner.read_text("/proc/cpuinfo") or "")
