"""What goes wrong with boards: each fault is one clear line, exit code 3, and leaves nothing there.

``../shared``'s loopback board is a real sshd; links are cut by a proxy in between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.runner import ssh_session
from aotgen.runner.base import Download, Upload
from aotgen.runner.output import Output
from aotgen.runner.ssh import SshRunner
from tests.models import two_layers
from tests.runner.loopback import (
    Board,
    Proxy,
    fails,
    folder_of,
    free_port,
    kill_connections,
    running,
    script,
    second_sshd,
    variant,
    wait_for,
)
from tests.support import require_tool, small_disk

MIB = 1 << 20


# ---- what a board lacks --------------------------------------------------------------------------


def test_no_sftp(board: Board, tmp_path: Path) -> None:
    with variant(board, tmp_path, "Subsystem sftp /bin/false") as runner:
        assert runner.command(["echo", "hi"]).stdout == "hi\n"
        with fails("has no SFTP server: .*openssh-sftp-server"):
            runner.deploy(script(tmp_path, "true"))


def test_a_board_with_few_programs(board: Board, tmp_path: Path) -> None:
    """Neither setsid, timeout, df nor sha256sum."""
    tools = Path(tempfile.mkdtemp(prefix="few-programs-"))
    tools.chmod(0o755)
    for name in ("sh", "mkdir", "rm", "chmod", "dd", "uname", "sleep", "test", "cat", "pwd"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    program, data = script(tmp_path, 'cat "$1"; exec sleep "$2"'), tmp_path / "data"
    told: list[str] = []
    data.write_bytes(b"x\n" * MIB)
    with variant(board, tmp_path, f"SetEnv PATH={tools}", progress=told.append) as runner:
        runner.deploy(program)
        folder = folder_of(runner)
        for _ in range(2):
            assert len(runner.run(program, [Upload(data), "0"]).stdout) == 2 * MIB
        assert len([text for text in told if " 0 %" in text]) == 1
        with fails("program was stopped after 1 s"):
            runner.run(program, [Upload(data), "4322"], timeout=1)
        wait_for(lambda: not running("sleep 4322"), 30)
        with fails("cannot start df: "):
            runner.command(["df"])
    assert not folder.exists()
    shutil.rmtree(tools)


# ---- the link ------------------------------------------------------------------------------------


def proxied(board: Board, proxy: Proxy, tmp_path: Path, **more: object) -> SshRunner:
    return board.runner(board.config_at(tmp_path, proxy.port), **more)


def test_link_cut_in_upload(board: Board, tmp_path: Path) -> None:
    proxy = Proxy(board.port, cut_after=8 * MIB)
    program, data = script(tmp_path, "true"), tmp_path / "data"
    data.write_bytes(os.urandom(24 * MIB))
    with contextlib.closing(proxy), proxied(board, proxy, tmp_path) as runner:
        runner.deploy(program)
        folder = folder_of(runner)
        with fails("the link to board@.* was lost while uploading data; check power"):
            runner.run(program, [Upload(data)])
        wait_for(lambda: not folder.exists(), 30)


def test_link_cut_in_run(board: Board, tmp_path: Path) -> None:
    proxy = Proxy(board.port)
    program = script(tmp_path, "echo started; sleep 1000; sleep 1000")
    with contextlib.closing(proxy), proxied(board, proxy, tmp_path) as runner:
        runner.deploy(program)
        folder = folder_of(runner)
        start = time.monotonic()
        with fails("the link to .* was lost while program was running"):
            runner.run(program, on_line=lambda line: proxy.cut())
        assert time.monotonic() - start < 60
        wait_for(lambda: not folder.exists() and not running(str(folder)), 30)
        # The cable is back: the next command connects and uploads again.
        assert runner.command(["echo", "back"]).stdout == "back\n"


def test_cable_pulled_in_run(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells the board that we are gone: it notices by our silence."""
    for name in ("_SUPERVISE", "_GUARD"):
        text = getattr(ssh_session, name).replace("timeout 60", "timeout 6")
        assert "timeout 6" in text
        monkeypatch.setattr(ssh_session, name, text)
    monkeypatch.setattr(ssh_session, "BEAT_S", 0.5)
    monkeypatch.setattr(ssh_session, "_GRACE_S", 0.5)
    proxy = Proxy(board.port)
    program = script(tmp_path, "sleep 7; echo started; sleep 1000")
    with contextlib.closing(proxy), proxied(board, proxy, tmp_path) as runner:
        runner.deploy(program)
        folder = folder_of(runner)
        # Also shows that a program may run for longer than the silence that ends it.
        with fails("program was stopped after 15 s"):
            runner.run(program, timeout=15, on_line=lambda line: proxy.go_silent())
        wait_for(lambda: not folder.exists() and not running(str(folder)), 30)
        proxy.cut()


def test_sshd_restarted_between_runs(board: Board, tmp_path: Path) -> None:
    port = free_port()
    program, data = script(tmp_path, 'cat "$1"'), tmp_path / "data"
    data.write_text("same")
    with board.runner(board.config_at(tmp_path, port)) as runner:
        with second_sshd(board, tmp_path, port):
            runner.deploy(program)
            assert runner.run(program, [Upload(data)]).stdout == "same"
            folder = folder_of(runner)
        with second_sshd(board, tmp_path, port) as pid:
            assert runner.run(program, [Upload(data)]).stdout == "same"
            assert folder_of(runner) != folder
            wait_for(lambda: not folder.exists(), 30)
            # Only the connection dies, in the middle of nothing.
            kill_connections(pid)
            assert runner.run(program, [Upload(data)]).stdout == "same"
            folder = folder_of(runner)
        with fails("nothing listens at"):
            runner.run(program, [Upload(data)])
    wait_for(lambda: not folder.exists(), 30)


# ---- room ----------------------------------------------------------------------------------------


@pytest.fixture
def full_soon() -> Iterator[Path]:
    with small_disk("2m") as place:
        yield place


def on_disk(board: Board, place: Path, tmp_path: Path) -> AbstractContextManager[SshRunner]:
    """A runner whose folder should lie in ``place``."""
    return variant(board, tmp_path, f"SetEnv XDG_RUNTIME_DIR={place}")


def test_disk_full(board: Board, full_soon: Path, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    writer = script(tmp_path, 'head -c 9000000 /dev/zero > "$1" || { echo no room >&2; exit 3; }')
    with on_disk(board, full_soon, tmp_path) as runner:
        runner.deploy(writer)
        assert folder_of(runner).parent == full_soon
        data.write_bytes(bytes(5 * MIB))
        with fails(rf"disk of .* is full: data needs 5\.0 MiB in {full_soon}, \d\.\d MiB are free"):
            runner.run(writer, [Upload(data)])
        with fails(r"ended with status 3: .*\(the disk of board is full: \d+ KiB free\)"):
            runner.run(writer, [Download(copy)])
        assert not copy.exists()
    assert list(full_soon.iterdir()) == []


def test_disk_full_in_the_middle(
    board: Board, full_soon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write as well: what was free before is not free any more."""
    from aotgen.runner.ssh_files import RemoteFiles

    monkeypatch.setattr(RemoteFiles, "_require_room", lambda self, files: None)
    program, data = script(tmp_path, "true"), tmp_path / "data"
    data.write_bytes(bytes(5 * MIB))
    with on_disk(board, full_soon, tmp_path) as runner:
        runner.deploy(program)
        with fails(r"disk of .* is full: data needs 5\.0 MiB"):
            runner.run(program, [Upload(data)])


def test_a_place_with_room_is_chosen(board: Board, full_soon: Path, tmp_path: Path) -> None:
    program = tmp_path / "large"
    program.write_bytes(b"#!/bin/sh\necho hi\nexit\n" + bytes(3 * MIB))
    program.chmod(0o755)
    with on_disk(board, full_soon, tmp_path) as runner:
        runner.deploy(program)
        assert folder_of(runner).parent != full_soon
        assert runner.run(program).stdout == "hi\n"


def test_a_place_mounted_noexec_is_not_chosen(
    board: Board, full_soon: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,noexec", str(full_soon)], check=True)
    program = script(tmp_path, "echo hi")
    with on_disk(board, full_soon, tmp_path) as runner:
        runner.deploy(program)
        assert folder_of(runner).parent != full_soon
        assert runner.run(program).stdout == "hi\n"
    assert list(full_soon.iterdir()) == []


def test_what_a_power_cut_left_is_removed(board: Board, tmp_path: Path) -> None:
    """Folders of the account whose shell is no more; not those of others and of living ones."""
    host = os.uname().nodename
    with board.runner() as alive, board.runner() as runner:
        program = script(tmp_path, "true")
        alive.deploy(program)
        dead = alive.command(
            ["sh", "-c", f'd=/tmp/aotgen-4194399-x-"{host}"; mkdir "$d"; : >"$d/f"; echo "$d"']
        ).stdout.strip()
        assert Path(dead).is_dir()
        other = Path(f"/tmp/aotgen-4194398-x-{host}")
        other.mkdir(exist_ok=True)
        runner.deploy(program)
        assert not Path(dead).exists()
        assert other.exists() or board.user == "root"
        assert folder_of(alive).exists()
        other.rmdir()


class _LateStatus:
    """A channel whose status and end arrive while it is being looked at."""

    def __init__(self, ready: int) -> None:
        self.closed = self.eof_received = False
        self.exit_status = -1
        self._ready = ready

    def fileno(self) -> int:
        return self._ready

    def recv_ready(self) -> bool:
        return False

    recv_stderr_ready = recv_ready

    def exit_status_ready(self) -> bool:
        ready = self.exit_status >= 0
        self.closed, self.eof_received, self.exit_status = True, True, 3
        return ready


def test_a_status_that_comes_with_the_end() -> None:
    """paramiko takes it in on a thread of its own."""
    link = SimpleNamespace(alive=True, config="board")
    session = ssh_session.Session(link)  # type: ignore[arg-type]
    output, now = Output("program"), time.monotonic()
    readable, writable = os.pipe()
    os.close(writable)
    channel: Any = _LateStatus(readable)
    session._follow(channel, "program", output, output, now, 60.0)
    os.close(readable)
    assert channel.exit_status == 3


# ---- interrupted ---------------------------------------------------------------------------------

_CLIENT = """
import sys
from pathlib import Path
from aotgen.cli import app, main
from aotgen.runner.select import runner_for

def work(*_):
    with runner_for("board", None, lambda text: print(text, flush=True)) as runner:
        program = Path(sys.argv[1])
        runner.deploy(program)
        runner.run(program, on_line=lambda line: print(line, flush=True))

app.run_words = lambda words: work()
sys.exit(main.call([]))
"""


@contextlib.contextmanager
def _client(board: Board, program: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that deploys and runs a program, and says what it does."""
    env = {**os.environ, "AOTGEN_SSH_CONFIG": str(board.config)}
    argv = [sys.executable, "-c", _CLIENT, str(program)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True) as client:
        yield client


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted(number: signal.Signals, code: int, board: Board, tmp_path: Path) -> None:
    """Ctrl-C, and a death that leaves no time to clean up."""
    program = script(tmp_path, "pwd; sleep 1000; sleep 1000")
    with _client(board, program) as client:
        assert client.stdout is not None and client.stderr is not None
        assert client.stdout.readline() == "running program\n"
        folder = client.stdout.readline().strip()
        assert Path(folder).is_dir() and running(f"{folder}/")
        client.send_signal(number)
        assert client.wait(60) == code
        if number == signal.SIGINT:
            assert client.stderr.read() == "aotgen: error: interrupted\n"
            assert not Path(folder).exists()
    wait_for(lambda: not Path(folder).exists() and not running(folder), 30)


def test_interrupted_in_upload(board: Board, tmp_path: Path) -> None:
    program = script(tmp_path, "exit", f"large{os.getpid()}")
    with program.open("r+b") as file:
        file.truncate(400 * MIB)
    with _client(board, program) as client:
        assert client.stdout is not None and client.stderr is not None
        assert client.stdout.readline().startswith(f"uploading {program.name}: 0 %")
        (partial,) = Path("/tmp").glob(f"aotgen-*/*-{program.name}.part")
        client.send_signal(signal.SIGINT)
        assert client.wait(60) == 130
        assert client.stderr.read() == "aotgen: error: interrupted\n"
    wait_for(lambda: not partial.parent.exists(), 30)


# ---- the command line ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake", "aarch64-linux-gnu-gcc")
    folder = tmp_path_factory.mktemp("project")
    onnx.save(two_layers(), folder / "m.onnx")
    compiled = aotgen.compile(folder / "m.onnx", board="rpi4", output=folder / "p")
    compiled.build()
    return compiled


@pytest.mark.parametrize("verb", ["validate", "bench"])
def test_one_line_and_exit_code_3(
    verb: str,
    board: Board,
    project: aotgen.Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = board.config_with(tmp_path / "config", UserKnownHostsFile=tmp_path / "none")
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(config))
    assert call([verb, str(project.folder), "--runner", "board"]) == 3
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.endswith("...")]
    assert out == "" and len(lines) == 1
    assert lines[0].startswith("aotgen: error: the host key of [127.0.0.1]:")
