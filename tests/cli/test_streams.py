"""Where output goes: a pipe without a reader, a full disk, a closed stream, a narrow terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import models
import pytest

import aotgen
from aotgen.cli.main import call

COMMAND = (sys.executable, "-m", "aotgen")


def shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``$AOTGEN`` is the command."""
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env={**os.environ, "AOTGEN": " ".join(COMMAND), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("$AOTGEN boards list | true; exit ${PIPESTATUS[0]}", 141, ""),
        ("$AOTGEN boards list > /dev/full", 2, "cannot write: No space left on device"),
        ("$AOTGEN --help > /dev/full", 2, "cannot write: No space left on device"),
        ("$AOTGEN check missing.onnx 2> /dev/full", 2, ""),
        ("$AOTGEN check missing.onnx 2>&-", 2, ""),
        ("$AOTGEN boards list >&-", 0, ""),
        ("$AOTGEN boards list >&- 2>&- <&-", 0, ""),
    ],
)
def test_streams(line: str, code: int, says: str, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    want = f"aotgen: error: {says}\n" if says else ""
    assert (done.returncode, done.stdout, done.stderr) == (code, "", want)


def test_a_closed_stream_is_no_file_of_ours(tmp_path: Path) -> None:
    """A file that gets the number of stdout would have in it what child processes print there."""
    (tmp_path / "net.onnx").write_bytes(models.two_layers().SerializeToString())
    aotgen.compile(tmp_path / "net.onnx", "host-scalar", tmp_path / "net")
    done = shell("$AOTGEN compile net.onnx -o b/net --board host-scalar <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    first, second = (
        {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in (tmp_path / "net", tmp_path / "b" / "net")
    )
    assert second == first


@pytest.mark.parametrize(
    ("name", "encoding", "shown"),
    [
        ("m\u6a21.onnx".encode(), "latin-1", r"m\u6a21.onnx"),
        (b"m\xff.onnx", "utf-8", r"m\udcff.onnx"),  # no text at all
    ],
)
def test_names_that_a_terminal_cannot_show(
    name: bytes, encoding: str, shown: str, tmp_path: Path
) -> None:
    (tmp_path / os.fsdecode(name)).write_bytes(models.two_layers().SerializeToString())
    done = shell("$AOTGEN check m*.onnx", tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stdout.startswith(f"{shown}: can be compiled")


@pytest.mark.parametrize("group", [[], ["boards"], ["journal"]])
def test_alone_groups_of_commands_show_their_help(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(group) == 2
    alone = capsys.readouterr()
    assert call([*group, "--help"]) == 0
    assert alone == capsys.readouterr() and alone.out.startswith("Usage: aotgen")
