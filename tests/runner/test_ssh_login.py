"""Getting in: host keys, keys and agent, and hosts that are not there; all by a real sshd."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.loopback import Board, fails, free_port, wait_for
from tests.support import require_tool


def new_key(path: Path, *options: str) -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path), *options]
    subprocess.run(argv, check=True)
    return path


@contextlib.contextmanager
def agent(tmp_path: Path) -> Iterator[str]:
    require_tool("ssh-agent", "ssh-add")
    place = str(tmp_path / "agent")

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(place)
            return True
        return False

    process = subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL)
    try:
        wait_for(answers, 30)
        yield place
    finally:
        process.kill()
        process.wait()


def test_host_key_changed(board: Board, tmp_path: Path) -> None:
    other = new_key(tmp_path / "other").with_suffix(".pub").read_text()
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{board.port} {other}")
    for strict in ("yes", "no"):
        config = board.config_with(
            tmp_path / "config", UserKnownHostsFile=known, StrictHostKeyChecking=strict
        )
        with board.runner(config) as runner, fails(f"has CHANGED.*{known}:1.*ssh-keygen -f"):
            runner.command(["true"])


def test_host_key_unknown(board: Board, tmp_path: Path) -> None:
    known = tmp_path / "known"
    for strict in ("yes", "ask"):
        config = board.config_with(
            tmp_path / "config", UserKnownHostsFile=known, StrictHostKeyChecking=strict
        )
        argv = ["ssh-keygen", "-lf", str(board.folder / "host_key.pub")]
        told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]
        words = f"is not known; it shows ssh-ed25519 {re.escape(told)}; connect once by"
        with board.runner(config) as runner, fails(words):
            runner.command(["true"])
        assert not known.exists()


def test_host_key_accepted_by_the_users_own_configuration(board: Board, tmp_path: Path) -> None:
    known, said = tmp_path / "known", []
    config = board.config_with(
        tmp_path / "config", UserKnownHostsFile=known, StrictHostKeyChecking="accept-new"
    )
    for _ in range(2):
        with board.runner(config, notify=said.append) as runner:
            runner.command(["true"])
    assert len(said) == 1 and "added the host key of [127.0.0.1]" in said[0]


def test_wrong_key(board: Board, tmp_path: Path) -> None:
    key = new_key(tmp_path / "key")
    config = board.config_with(tmp_path / "config", IdentityFile=key)
    with (
        board.runner(config) as runner,
        fails(rf"accepts none of 1 key; .*ssh-copy-id -p {board.port}"),
    ):
        runner.command(["true"])
    config = board.config_with(tmp_path / "config", IdentityFile=tmp_path / "none")
    with board.runner(config) as runner, fails("was offered no key.*/none does not exist"):
        runner.command(["true"])
    key.write_text("garbage")
    config = board.config_with(tmp_path / "config", IdentityFile=key)
    with board.runner(config) as runner, fails("key is no private key that can be used here"):
        runner.command(["true"])
    config = board.config_with(tmp_path / "config", User="nobody")
    with board.runner(config) as runner, fails(r"nobody@127\.0\.0\.1:\d+ accepts none of 1 key"):
        runner.command(["true"])


def test_an_encrypted_key_and_the_agent(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = (board.folder / "id").read_bytes()
    key = tmp_path / "key"
    key.write_bytes(plain)
    key.chmod(0o600)
    (tmp_path / "key.pub").write_bytes((board.folder / "id.pub").read_bytes())
    with agent(tmp_path) as place:
        subprocess.run(
            ["ssh-add", "-q", str(key)], check=True, env={**os.environ, "SSH_AUTH_SOCK": place}
        )
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True)
        config = board.config_with(tmp_path / "config", IdentityFile=key)
        words = rf"{key} is encrypted\); give the agent the key: ssh-add {key}"
        with board.runner(config) as runner, fails(words):
            runner.command(["true"])
        monkeypatch.setenv("SSH_AUTH_SOCK", place)
        with board.runner(config) as runner:
            runner.command(["true"])
        # IdentitiesOnly: the agent's other keys are not tried.
        other = new_key(tmp_path / "other")
        config = board.config_with(tmp_path / "config", IdentityFile=other)
        with board.runner(config) as runner, fails("accepts none of 1 key"):
            runner.command(["true"])
        config = board.config_with(tmp_path / "config", IdentityFile=other, IdentitiesOnly="no")
        with board.runner(config) as runner:
            runner.command(["true"])
        monkeypatch.delenv("SSH_AUTH_SOCK")
        config = board.config_with(tmp_path / "config", IdentityFile=key, IdentityAgent=place)
        with board.runner(config) as runner:
            runner.command(["true"])
        assert "SSH_AUTH_SOCK" not in os.environ


def test_too_many_keys(board: Board, tmp_path: Path) -> None:
    config = board.config_with(tmp_path / "config")
    with config.open("a") as file:
        for i in range(8):
            file.write(f"  IdentityFile {new_key(tmp_path / f'key{i}')}\n")
    config.write_text(config.read_text().replace(f"IdentityFile {board.folder}/id\n", "\n"))
    with board.runner(config) as runner, fails("hung up after 6 keys; .*IdentitiesOnly yes"):
        runner.command(["true"])


def test_nobody_there(board: Board, tmp_path: Path) -> None:
    port = free_port()
    config = board.config_with(tmp_path / "config", Port=port)
    with board.runner(config) as runner, fails(rf"nothing listens at 127\.0\.0\.1 port {port}"):
        runner.command(["true"])
    config = board.config_with(tmp_path / "config", HostName="no-such-host.invalid")
    with board.runner(config) as runner, fails(r"there is no host no-such-host\.invalid"):
        runner.command(["true"])
    # A network that is not routed (RFC 5737): how that shows depends on this computer's routes.
    config = board.config_with(tmp_path / "config", HostName="192.0.2.1", ConnectTimeout=1)
    with board.runner(config) as runner, fails(r" 192\.0\.2\.1 port"):
        runner.command(["true"])


def test_no_route(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with (
        board.runner() as runner,
        fails(r"no route to 127\.0\.0\.1 .*; check that the board is on"),
    ):
        runner.command(["true"])


@pytest.mark.parametrize("greeting", [b"HTTP/1.0 400 no\r\n\r\n", b""])
def test_no_sshd_there(greeting: bytes, board: Board, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = board.config_with(
            tmp_path / "config", Port=server.getsockname()[1], ConnectTimeout=1
        )
        if greeting:

            def answer() -> None:
                sock, _ = server.accept()
                sock.sendall(greeting * 200)
                sock.close()

            threading.Thread(target=answer, daemon=True).start()
        with board.runner(config) as runner, fails("does not speak SSH as expected"):
            runner.command(["true"])
