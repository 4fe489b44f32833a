"""ssh_config and known_hosts: what a user's files mean, as ssh_config(5) and sshd(8) have it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from aotgen.errors import BoardError, UsageError
from aotgen.runner.known_hosts import algorithms, check_host_key, known_keys
from aotgen.runner.select import runner_for
from aotgen.runner.ssh import SshRunner
from aotgen.runner.ssh_config import HostConfig, SshConfig, Target, parse_target
from tests.support import require_tool


def config(tmp_path: Path, text: str, name: str = "config") -> SshConfig:
    path = tmp_path / name
    path.write_text(text)
    return SshConfig(path)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("pi@10.0.0.7:2222", Target("10.0.0.7", "pi", 2222)),
        ("raspberrypi.local", Target("raspberrypi.local")),
        ("pi@[fe80::1%eth0]:22", Target("fe80::1%eth0", "pi", 22)),
        ("board/", Target("board")),
    ],
)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text, "x") == target


@pytest.mark.parametrize(
    "text", ["", "pi@", "a b", "h:0", "h:99999", "h:x", "-oProxyCommand=x", "pi:word@h", "h/path"]
)
def test_malformed_targets(text: str) -> None:
    with pytest.raises(UsageError, match="malformed"):
        parse_target(text, "runner")


def test_keywords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    text = """
    Host pi pi-*
      HostName 10.0.0.7
      Port 2222
      User=pi
      IdentityFile ~/.ssh/pi
      IdentityFile %d/other
      IdentitiesOnly yes
      UserKnownHostsFile "~/known one" /dev/null
      StrictHostKeyChecking accept-new
      ConnectTimeout 2m
      ServerAliveInterval 7
      ProxyJump me@gate:2200,inner
      HostKeyAlias desk
    Host *
      User nobody
      Compression yes
    """
    found = config(tmp_path, text).host(Target("pi-2"))
    assert (found.host, found.port, found.user) == ("10.0.0.7", 2222, "pi")
    assert found.identity_files == (tmp_path / ".ssh/pi", tmp_path / "other")
    assert found.identities_only and found.compression and found.accept_new
    assert found.known_hosts[:2] == (tmp_path / "known one", Path("/dev/null"))
    assert (found.connect_timeout, found.alive_interval) == (120.0, 7.0)
    assert found.jumps == (Target("gate", "me", 2200), Target("inner"))
    assert found.key_name == "desk"
    assert found.command == "ssh -p 2222 pi@10.0.0.7"
    given = config(tmp_path, text).host(Target("pi", "root", 22))
    assert (given.user, given.port) == ("root", 22)


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USER", "me")
    monkeypatch.setenv("LOGNAME", "me")
    found = config(tmp_path, "").host(Target("h"))
    assert (found.host, found.port, found.user) == ("h", 22, "me")
    assert not found.identities_named and not found.accept_new and found.jumps == ()
    assert found.known_hosts[0] == tmp_path / ".ssh/known_hosts"
    assert Path("/etc/ssh/ssh_known_hosts") in found.known_hosts


def test_include(tmp_path: Path) -> None:
    """An included file's blocks end with it; a folder's files are read in order."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d/1").write_text("Host a\n  User one\n")
    (tmp_path / "d/2").write_text("Host a b\n  User two\n")
    text = f"Host c\nInclude {tmp_path}/d/* {tmp_path}/none\nUser three\n"
    read = config(tmp_path, text)
    assert [read.host(Target(h)).user for h in "abc"] == ["one", "two", "three"]
    assert read.has("a") and read.has("c") and not read.has("d")
    loop = tmp_path / "loop"
    with pytest.raises(UsageError, match="too many levels"):
        config(tmp_path, f"Include {loop}\n", "loop")


def test_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("aotgen.runner.ssh_config.SYSTEM_CONFIG", tmp_path / "system")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host pi\n  Port 1\n")
    (tmp_path / "system").write_text("Port 2\nUser all\n")
    found = SshConfig().host(Target("pi"))
    assert (found.port, found.user) == (1, "all")
    assert SshConfig().host(Target("other")).port == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Port many\n", "port 'many'"),
        ("ConnectTimeout soon\n", "connecttimeout 'soon'"),
        ("ProxyJump a b\n", "ProxyJump 'a b' is malformed"),
        ("nonsense\n", "is malformed"),
    ],
)
def test_malformed_config(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        config(tmp_path, text).host(Target("h"))


def test_a_config_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"cannot read .*/none: No such file.*AOTGEN_SSH_CONFIG"):
        runner_for("ssh://pi@h", None)


def test_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text("Host mypi lab-* !lab-x\n  HostName 10.0.0.7\nHost *\n  User pi\n")
    monkeypatch.setenv("AOTGEN_SSH_CONFIG", str(path))
    for spec in ("mypi", "lab-1", "ssh://pi@10.0.0.7", "ssh://mypi"):
        runner = runner_for(spec, None)
        assert isinstance(runner, SshRunner) and runner.name == "ssh"
    for spec in ("mypie", "lab-x"):
        with pytest.raises(UsageError, match=rf"no runner '{spec}', and no Host {spec} in"):
            runner_for(spec, None)
    with pytest.raises(UsageError, match="malformed"):
        runner_for("ssh://", None)


@pytest.fixture
def key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


def host(known: Path, port: int = 22, **more: object) -> HostConfig:
    base = SshConfig(Path("/dev/null")).host(Target("Pi.Local", "pi", port))
    return HostConfig(**{**vars(base), "known_hosts": (known,), **more})


def line(key: paramiko.PKey, names: str) -> str:
    return f"{names} {key.get_name()} {key.get_base64()} comment\n"


@pytest.mark.parametrize(
    ("names", "port", "known"),
    [
        ("pi.local", 22, True),
        ("other,pi.local,10.0.0.7", 22, True),
        ("*.local", 22, True),
        ("*.local,!pi.*", 22, False),
        ("[pi.local]:2222", 2222, True),
        ("pi.local", 2222, False),
        ("[pi.local]:2222", 22, False),
        ("@revoked pi.local", 22, False),
        ("@cert-authority pi.local", 22, False),
    ],
)
def test_known_hosts(
    names: str, port: int, known: bool, key: paramiko.PKey, tmp_path: Path
) -> None:
    path = tmp_path / "known"
    path.write_text(f"# comment\nmalformed\npi.local ssh-rsa !!!\n{line(key, names)}")
    found = known_keys(host(path, port))
    if known:
        assert check_host_key(host(path, port), key, found) == ""
    else:
        with pytest.raises(BoardError, match=r"not known|revoked"):
            check_host_key(host(path, port), key, found)


def test_hashed_names(key: paramiko.PKey, tmp_path: Path) -> None:
    require_tool("ssh-keygen")
    path = tmp_path / "known"
    path.write_text(line(key, "[pi.local]:2222") + line(key, "pi.local"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "pi.local" not in path.read_text()
    for port in (22, 2222):
        assert check_host_key(host(path, port), key, known_keys(host(path, port))) == ""
    assert known_keys(host(path, 2223)) == []


def test_unknown_and_changed_keys_are_refused(key: paramiko.PKey, tmp_path: Path) -> None:
    path = tmp_path / "known"
    with pytest.raises(BoardError) as unknown:
        check_host_key(host(path), key, [])
    text = str(unknown.value)
    assert key.fingerprint in text and "ssh pi@Pi.Local" in text and "ssh-keyscan Pi.Local" in text
    other = paramiko.ECDSAKey.generate()
    path.write_text(f"\n{line(other, 'pi.local')}")
    for accept in (False, True):
        with pytest.raises(BoardError) as changed:
            check_host_key(host(path, accept_new=accept), key, known_keys(host(path)))
        text = str(changed.value)
        assert "CHANGED" in text and f"{path}:2" in text and f"ssh-keygen -f {path} -R" in text
        assert key.fingerprint in text and other.fingerprint in text


def test_accept_new_says_so(key: paramiko.PKey, tmp_path: Path) -> None:
    path = tmp_path / "new" / "known"
    asked = host(path, 2222, accept_new=True)
    assert "added the host key" in check_host_key(asked, key, known_keys(asked))
    assert path.read_text() == f"[pi.local]:2222 {key.get_name()} {key.get_base64()}\n"
    assert check_host_key(asked, key, known_keys(asked)) == ""


def test_a_known_kind_of_key_is_asked_for(key: paramiko.PKey, tmp_path: Path) -> None:
    """Else a server with several keys shows one that is not known."""
    path = tmp_path / "known"
    path.write_text(f"pi.local ssh-rsa AAAA\n{line(key, 'pi.local')}")
    offered = ("ssh-ed25519", "rsa-sha2-512", "rsa-sha2-256", key.get_name())
    ordered = algorithms(known_keys(host(path)), offered)
    assert ordered == ["rsa-sha2-512", "rsa-sha2-256", key.get_name(), "ssh-ed25519"]
