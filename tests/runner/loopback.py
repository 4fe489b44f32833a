"""A board to connect to: sshd on this computer, and what can go wrong on the way to it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aotgen.errors import BoardError
from aotgen.runner.ssh import SshRunner
from aotgen.runner.ssh_config import SshConfig, Target
from tests.support import require, require_shared, require_tool

FAILURES = (
    ("kill -SEGV $$", "program died from SIGSEGV"),
    ("kill -ABRT $$", "SIGABRT"),
    ("exit 139", "SIGSEGV"),
    ("echo 'arena is too small' >&2; exit 3", "ended with status 3: arena is too small"),
)
"""What a program in shell does, and how its failure is named on every runner."""

QEMU = ("qemu-aarch64", "-cpu", "cortex-a72", "-L", "/usr/aarch64-linux-gnu")


@dataclass(frozen=True)
class Board:
    """A running sshd.

    Attributes:
        folder: its keys and configuration.
        port: on 127.0.0.1.
        user: the account.
        config: an ssh_config that has it as ``Host board``.
        wrapper: what must stand before its programs; empty when they start by themselves.
    """

    folder: Path
    port: int
    user: str
    config: Path
    wrapper: tuple[str, ...]

    def runner(self, config: Path | None = None, **more: object) -> SshRunner:
        return SshRunner(Target("board"), SshConfig(config or self.config), **more)  # type: ignore[arg-type]

    def config_with(self, path: Path, **values: object) -> Path:
        """A copy of the configuration at ``path`` with other values."""
        lines = []
        for line in self.config.read_text().splitlines():
            words = line.split()
            if words and words[0] in values:
                continue
            lines.append(line)
        lines += [f"  {key} {value}" for key, value in values.items()]
        path.write_text("\n".join(lines) + "\n")
        return path

    def config_at(self, folder: Path, port: int) -> Path:
        """A copy of the configuration in ``folder`` for another port with the same host key."""
        known = folder / "known"
        lines = (self.folder / "known_hosts").read_text()
        known.write_text(lines.replace(str(self.port), str(port)))
        return self.config_with(folder / "config", Port=port, UserKnownHostsFile=known)


@contextlib.contextmanager
def running_board(lock: Path) -> Iterator[Board]:
    """Start ../shared's loopback board; ``lock`` keeps parallel tests from making one account."""
    tool = require_shared("boards/loopback-board")
    require(_sshd() is not None, "sshd (openssh-server)")
    require_tool("ssh", "ssh-keygen", "qemu-aarch64")
    # Its account must be able to read it, which pytest's folders do not allow.
    folder = Path(tempfile.mkdtemp(prefix="loopback-board-"))
    try:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            done = subprocess.run(
                [str(tool), "start", str(folder)], capture_output=True, text=True, timeout=60
            )
        assert done.returncode == 0, done.stderr
        facts = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        wrapper = QEMU if facts["MODE"] == "wrapper" else ()
        yield Board(folder, int(facts["PORT"]), facts["USER"], Path(facts["SSH_CONFIG"]), wrapper)
    finally:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            subprocess.run([str(tool), "stop", str(folder)], capture_output=True, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def second_sshd(board: Board, folder: Path, port: int, *lines: str) -> Iterator[int]:
    """Another sshd with the board's keys; ``lines`` of sshd_config win. Yields its process id."""
    program = _sshd()
    assert program is not None
    own = [line.split()[0] for line in lines] + ["Port", "PidFile", "SetEnv"]
    kept = [
        line
        for line in (board.folder / "sshd_config").read_text().splitlines()
        if line.split()[0] not in own
    ]
    config, pid = folder / "sshd_config", folder / "sshd.pid"
    config.write_text("\n".join([f"Port {port}", f"PidFile {pid}", *lines, *kept]) + "\n")
    process = subprocess.Popen(
        [program, "-D", "-f", str(config), "-E", str(folder / "sshd.log")], start_new_session=True
    )
    try:
        wait_for(lambda: _listens(port), 10)
        yield process.pid
    finally:
        kill_connections(process.pid)
        process.kill()
        process.wait()


class Proxy:
    """A cable between us and a board that can be cut."""

    def __init__(self, port: int, cut_after: int | None = None) -> None:
        """
        Args:
            port: of the board.
            cut_after: bytes towards the board after which the cable is cut.
        """
        self._target = port
        self._left = cut_after
        self._sockets: list[socket.socket] = []
        self._silent = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Both ends see it, as when a router dies."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def go_silent(self) -> None:
        """Nobody sees it, as when a cable is pulled."""
        self._silent.set()

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._server.accept()
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [here, there]
            threading.Thread(target=self._pump, args=(here, there, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(there, here, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                if self._silent.is_set():
                    continue
                sink.sendall(data)
                if counted and self._left is not None:
                    self._left -= len(data)
                    if self._left <= 0:
                        self.cut()
        for sock in (source, sink):
            if not self._silent.is_set():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def fails(words: str) -> Iterator[None]:
    with pytest.raises(BoardError, match=words) as caught:
        yield
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def folder_of(runner: SshRunner) -> Path:
    assert runner._session is not None and runner._session.folder
    return Path(runner._session.folder)


@contextlib.contextmanager
def variant(board: Board, tmp_path: Path, line: str, **more: object) -> Iterator[SshRunner]:
    """A runner on the board under another sshd, with a line of sshd_config of its own."""
    port = free_port()
    config = board.config_at(tmp_path, port)
    with second_sshd(board, tmp_path, port, line), board.runner(config, **more) as runner:
        yield runner


def script(folder: Path, text: str, name: str = "program") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def running(words: str) -> list[int]:
    """Processes whose command line has ``words``, without those that only wait to be reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(path.parent.name))
    return found


def kill_connections(pid: int) -> None:
    """End the processes of an sshd that serve connections, not what they started."""
    for child in _children(pid):
        for deeper in _children(child):
            if _name(deeper).startswith("sshd"):
                _kill(deeper)
        _kill(child)


def _children(pid: int) -> list[int]:
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [child for child in found if _parent(child) == pid]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
