"""Runners: what a program gets, what comes back, and how failures read."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import Download, Upload, failure, json_line
from aotgen.runner.local import LocalRunner
from aotgen.runner.qemu import QemuRunner
from aotgen.runner.select import runner_for
from aotgen.target.board import load_board
from support import require_tool


def script(folder: Path, text: str) -> Path:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_output_and_files(tmp_path: Path) -> None:
    program = script(tmp_path, 'cat "$1" > "$2"; echo out; echo err >&2')
    source, copy = tmp_path / "in file", tmp_path / "out file"
    source.write_bytes(b"\x00\xff")
    with LocalRunner() as runner:
        runner.deploy(program)
        result = runner.run(program, [Upload(source), Download(copy)])
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert copy.read_bytes() == b"\x00\xff"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill -SEGV $$", "program died from SIGSEGV"),
        ("kill -ABRT $$", "SIGABRT"),
        ("exit 139", "SIGSEGV"),
        ("echo 'arena is too small' >&2; exit 3", "ended with status 3: arena is too small"),
    ],
)
def test_failures_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BoardError, match=words):
        LocalRunner().run(script(tmp_path, text))


def test_timeout_stops_the_whole_program(tmp_path: Path) -> None:
    """Also a child that holds the pipe open; otherwise the wait would last as long as the child."""
    start = time.monotonic()
    with pytest.raises(BoardError, match=r"stopped after 0\.2 s"):
        LocalRunner().run(script(tmp_path, "sleep 30 & sleep 30"), timeout=0.2)
    assert time.monotonic() - start < 10


def test_programs_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="no program"):
        LocalRunner().deploy(tmp_path / "none")
    text = tmp_path / "text"
    text.write_text("no program")
    with pytest.raises(BoardError, match="cannot start"):
        LocalRunner().run(text)


def test_timing_is_read_from_the_json_line(tmp_path: Path) -> None:
    line = '{"times_ms": [1.5, 2], "layers": [{"layer": 0, "name": "conv", "ms": 1.25}]}'
    program = script(tmp_path, f"echo \"$@\" >&2; echo noise; echo '{line}'")
    timing = LocalRunner().time(program, number=3, repeat=2, warmup=1, profile=True)
    assert timing.times_ms == (1.5, 2.0)
    assert timing.layers == ({"layer": 0, "name": "conv", "ms": 1.25},)
    with pytest.raises(BoardError, match="printed no result: noise"):
        json_line("noise\n", "m_bench")


def test_signals_beyond_the_known_ones() -> None:
    assert "status 200" in str(failure("p", 200, "", ""))
    assert "signal 63" in str(failure("p", -63, "", ""))


def test_selection() -> None:
    host, pi = load_board("host"), load_board("rpi4")
    assert runner_for(None, host).name == "local"
    assert runner_for("local", host).name == "local"
    with pytest.raises(UsageError, match="has no emulator"):
        runner_for("qemu", host)
    if not pi.runs_here:
        with pytest.raises(UsageError, match="cannot run programs of board rpi4"):
            runner_for("local", pi)


@pytest.mark.parametrize("spec", ["ssh://pi@10.0.0.7:22", "serial:/dev/ttyUSB0:115200", "mypi"])
def test_later_runners_say_so(spec: str) -> None:
    with pytest.raises(UsageError, match=r"not available yet|cannot be used yet"):
        runner_for(spec, load_board("rpi4"))


@pytest.mark.parametrize("spec", ["", "http://x", "a b"])
def test_malformed_runner(spec: str) -> None:
    with pytest.raises(UsageError, match="malformed"):
        runner_for(spec, load_board("rpi4"))


def test_qemu_runs_and_names_crashes(tmp_path: Path) -> None:
    board = load_board("rpi4")
    require_tool("aarch64-linux-gnu-gcc", "qemu-aarch64")
    source = tmp_path / "p.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        'int main(int n, char **a) { (void)a; if (n > 1) abort(); puts("aarch64"); return 0; }\n'
    )
    program = tmp_path / "p"
    subprocess.run(["aarch64-linux-gnu-gcc", str(source), "-o", str(program)], check=True)
    with QemuRunner(board) as runner:
        runner.deploy(program)
        assert runner.run(program).stdout == "aarch64\n"
        with pytest.raises(BoardError, match="SIGABRT"):
            runner.run(program, ["crash"])
