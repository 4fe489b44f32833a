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
from tests.runner.loopback import FAILURES, script


def test_output_and_files(tmp_path: Path) -> None:
    program = script(tmp_path, 'cat "$1" > "$2"; echo out; echo err >&2')
    source, copy = tmp_path / "in file", tmp_path / "out file"
    source.write_bytes(b"\x00\xff")
    with LocalRunner() as runner:
        runner.deploy(program)
        result = runner.run(program, [Upload(source), Download(copy)])
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert copy.read_bytes() == b"\x00\xff"


@pytest.mark.parametrize(("text", "words"), FAILURES)
def test_failures_are_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BoardError, match=words):
        LocalRunner().run(script(tmp_path, text))


def test_timeout_stops_the_whole_program(tmp_path: Path) -> None:
    """Also a child that holds the pipe open; otherwise the wait would last as long as the child."""
    start = time.monotonic()
    with pytest.raises(BoardError, match=r"stopped after 0\.2 s"):
        LocalRunner().run(script(tmp_path, "sleep 300 & sleep 300"), timeout=0.2)
    assert time.monotonic() - start < 100


def test_programs_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="no program"):
        LocalRunner().deploy(tmp_path / "none")
    text = tmp_path / "text"
    text.write_text("no program")
    with pytest.raises(BoardError, match="cannot start"):
        LocalRunner().run(text)


def test_lines_arrive_as_they_are_printed(tmp_path: Path) -> None:
    """The program waits for what the reader of its first line does."""
    go = tmp_path / "go"
    wait = f"until test -e '{go}'; do sleep 0.02; done"
    program = script(tmp_path, f"echo one; {wait}; echo two; printf 'th\\303\\244'")
    seen: list[str] = []

    def read(line: str) -> None:
        seen.append(line)
        go.touch()

    LocalRunner().run(program, on_line=read)
    assert seen == ["one", "two", "thä"]


def test_output_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="printed more than 16 MiB"):
        LocalRunner().run(script(tmp_path, "yes"))
    lines: list[str] = []
    LocalRunner().run(script(tmp_path, "head -c 200000 /dev/zero"), on_line=lines.append)
    assert sum(map(len, lines)) == 200_000 and max(map(len, lines)) <= 1 << 16


def test_an_interrupted_program_ends_with_its_children(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        LocalRunner().run(script(tmp_path, "echo; sleep 300 & sleep 300"), on_line=interrupt)
    assert time.monotonic() - start < 100


def test_commands_and_files() -> None:
    runner = LocalRunner(["prefix-is-for-programs-only"])
    assert runner.command(["echo", "a  b", "$HOME"]).stdout == "a  b $HOME\n"
    assert runner.read_text("/proc/version") == Path("/proc/version").read_text()
    assert runner.read_text("/no/such/file") is None
    with pytest.raises(BoardError, match="cannot start no-such-program"):
        runner.command(["no-such-program"])


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


def test_no_programs_run_over_a_serial_line() -> None:
    with pytest.raises(UsageError, match="is for microcontrollers"):
        runner_for("serial:/dev/ttyUSB0:115200", load_board("rpi4"))


def test_selection_without_a_board() -> None:
    """As for a computer that is still to be looked at."""
    assert runner_for(None, None).name == runner_for("local", None).name == "local"
    with pytest.raises(UsageError, match="'qemu' is no board"):
        runner_for("qemu", None)


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
