"""What the ssh configuration says about a host: the keywords of ssh_config(5) that a runner needs.

Read are ``~/.ssh/config`` and ``/etc/ssh/ssh_config``, or only the file that the environment
variable AOTGEN_SSH_CONFIG names, as by ``ssh -F``. paramiko finds the values; Include, which it
does not know, is resolved here.
"""

from __future__ import annotations

import fnmatch
import getpass
import glob
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import paramiko

from aotgen.errors import UsageError

CONFIG_VARIABLE = "AOTGEN_SSH_CONFIG"

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"

DEFAULT_PORT = 22
DEFAULT_CONNECT_TIMEOUT_S = 15.0
DEFAULT_ALIVE_INTERVAL_S = 15.0

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_MAX_INCLUDE_DEPTH = 16
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Target:
    """What a user named: ``ssh://user@host:port`` or a host of the configuration.

    Attributes:
        host: a Host alias, a name or an address.
        user: None leaves it to the configuration.
        port: the same.
    """

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if self.port and ":" in self.host else self.host
        return f"{user}{host}{f':{self.port}' if self.port else ''}"


@dataclass(frozen=True)
class HostConfig:
    """How to reach a host.

    Attributes:
        host: name or address to connect to.
        port: of its sshd.
        user: account there.
        identity_files: private keys to try, in order.
        identities_named: whether the configuration names them; else they are ssh's usual ones.
        identities_only: whether of the agent's keys only those of ``identity_files`` are tried.
        identity_agent: socket of the agent; empty for $SSH_AUTH_SOCK, "none" for no agent.
        known_hosts: files with host keys; the first one is the user's own.
        host_key_alias: under which the host key is looked up; empty for host and port.
        accept_new: whether the user's configuration takes the key of a host never seen before.
        connect_timeout: seconds.
        alive_interval: seconds between keepalive messages.
        compression: whether to compress.
        jumps: hosts to go through, the nearest first.
        proxy_command: program whose stdin and stdout lead to the host; empty for none.
    """

    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_named: bool
    identities_only: bool
    identity_agent: str
    known_hosts: tuple[Path, ...]
    host_key_alias: str
    accept_new: bool
    connect_timeout: float
    alive_interval: float
    compression: bool
    jumps: tuple[Target, ...]
    proxy_command: str

    @property
    def key_name(self) -> str:
        """The name of this host in known_hosts files."""
        if self.host_key_alias:
            return self.host_key_alias.lower()
        host = self.host.lower()
        return host if self.port == DEFAULT_PORT else f"[{host}]:{self.port}"

    @property
    def command(self) -> str:
        """The ssh command that a user would type."""
        port = "" if self.port == DEFAULT_PORT else f"-p {self.port} "
        return f"ssh {port}{self.user}@{self.host}"

    def __str__(self) -> str:
        port = "" if self.port == DEFAULT_PORT else f":{self.port}"
        return f"{self.user}@{self.host}{port}"


def parse_target(text: str, what: str) -> Target:
    """``[user@]host[:port]``; an IPv6 address stands in brackets.

    Args:
        text: to read.
        what: it came from, for the message.

    Raises:
        UsageError: it is malformed.
    """
    found = re.fullmatch(
        r"(?:(?P<user>[^\s@:/]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\s@:/\[\]-][^\s@:/\[\]]*))"
        r"(?::(?P<port>\d{1,5}))?/?",
        text,
    )
    port = int(found["port"]) if found and found["port"] else None
    if found is None or (port is not None and not 1 <= port <= 65535):
        raise UsageError(
            f"{what} is malformed", remedy="write ssh://user@host or ssh://user@host:22"
        )
    return Target(found["host"] or found["v6"], found["user"], port)


class SshConfig:
    """The configuration files, read once."""

    def __init__(self, file: Path | None = None) -> None:
        """
        Args:
            file: to read instead of the usual ones.

        Raises:
            UsageError: it cannot be read, or a file is malformed.
        """
        named = str(file or os.environ.get(CONFIG_VARIABLE, ""))
        self.source = named or "~/.ssh/config"
        if named:
            try:
                text = _expanded(Path(named).expanduser(), _user_folder(), 0)
            except OSError as error:
                raise UsageError(
                    f"cannot read the ssh configuration {named}: {error.strerror or error}",
                    remedy=f"see the environment variable {CONFIG_VARIABLE}",
                ) from error
        else:
            parts = []
            for path in (_user_folder() / "config", SYSTEM_CONFIG):
                try:
                    parts.append(_expanded(path, path.parent, 0))
                except OSError:
                    continue  # no such file, or none of ours to read: as ssh does
            text = "\nHost *\n".join(parts)
        self._aliases = _aliases(text)
        try:
            self._config = paramiko.SSHConfig.from_text(text)
        except Exception as error:  # paramiko raises several kinds, some of them its own bugs
            raise UsageError(
                f"the ssh configuration {self.source} is malformed: {error}"
            ) from error

    def has(self, name: str) -> bool:
        """Whether a Host line names the host, other than by ``*`` alone."""
        matches = [p for p in self._aliases if fnmatch.fnmatchcase(name, p.lstrip("!"))]
        return bool(matches) and not any(p.startswith("!") for p in matches)

    def host(self, target: Target) -> HostConfig:
        """
        Raises:
            UsageError: a value is malformed.
        """
        try:
            found = {k: v for k, v in self._config.lookup(target.host).items() if v is not None}
        except Exception as error:
            raise UsageError(
                f"the ssh configuration {self.source} cannot be used for {target.host}: {error}"
            ) from error
        user = target.user or str(found.get("user", "")) or _local_user()
        host = str(found.get("hostname", target.host))
        named = [str(p) for p in found.get("identityfile", []) if str(p).lower() != "none"]
        tokens = {"%d": str(Path.home()), "%h": host, "%u": _local_user(), "%r": user, "%%": "%"}
        keys = named or [str(_user_folder() / name) for name in _DEFAULT_KEYS]
        known = str(found.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"))
        system = str(found.get("globalknownhostsfile", SYSTEM_KNOWN_HOSTS))
        strict = str(found.get("stricthostkeychecking", "ask")).lower()
        jump = str(found.get("proxyjump", "none"))
        return HostConfig(
            host=host,
            port=target.port or self._number(found, "port", DEFAULT_PORT),
            user=user,
            identity_files=tuple(_path(key, tokens) for key in keys),
            identities_named=bool(named),
            identities_only=_yes(found, "identitiesonly"),
            identity_agent=_agent(str(found.get("identityagent", "")), tokens),
            known_hosts=tuple(_path(p, tokens) for p in _words(known) + _words(system)),
            host_key_alias=str(found.get("hostkeyalias", "")),
            accept_new=strict in ("accept-new", "no", "off"),
            connect_timeout=self._seconds(found, "connecttimeout", DEFAULT_CONNECT_TIMEOUT_S),
            alive_interval=self._seconds(found, "serveraliveinterval", DEFAULT_ALIVE_INTERVAL_S),
            compression=_yes(found, "compression"),
            jumps=()
            if jump.lower() == "none"
            else tuple(
                parse_target(word.removeprefix("ssh://"), f"ProxyJump {jump!r}")
                for word in jump.split(",")
            ),
            proxy_command="" if jump.lower() != "none" else str(found.get("proxycommand", "")),
        )

    def _number(self, found: dict[str, object], key: str, default: int) -> int:
        text = str(found.get(key, default))
        if not text.isdigit() or not 1 <= int(text) <= 65535:
            raise UsageError(f"the ssh configuration {self.source} has {key} {text!r}")
        return int(text)

    def _seconds(self, found: dict[str, object], key: str, default: float) -> float:
        text = str(found.get(key, "none")).lower()
        if text in ("none", "0"):
            return default
        times = re.fullmatch(r"(\d+)([smh]?)", text)
        if times is None:
            raise UsageError(f"the ssh configuration {self.source} has {key} {text!r}")
        return float(int(times[1]) * _UNITS[times[2]]) or default


def _expanded(path: Path, base: Path, depth: int) -> str:
    """The file's text with every Include replaced; relative ones lie in ``base``.

    Raises:
        OSError: the file cannot be read.
        UsageError: files include each other.
    """
    if depth > _MAX_INCLUDE_DEPTH:
        raise UsageError(f"the ssh configuration {path} includes too many levels of files")
    lines: list[str] = []
    block = "Host *"
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = re.match(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)", line)
        key = words[1].lower() if words else ""
        if words is None or key != "include":
            lines.append(line)
            block = line if key in ("host", "match") else block
            continue
        for pattern in _words(words[2]):
            for name in sorted(glob.glob(str(base / Path(pattern).expanduser()))):
                try:
                    lines.append(_expanded(Path(name), base, depth + 1))
                except OSError:
                    continue  # as ssh does
                # Whatever blocks it opened end with it.
                lines.append(block)
    return "\n".join(lines)


def _aliases(text: str) -> list[str]:
    """The patterns of all Host lines but ``*``."""
    found = re.findall(r"^\s*host(?:\s*=\s*|\s+)(.*\S)\s*$", text, re.MULTILINE | re.IGNORECASE)
    return [p for line in found for p in _words(line) if p != "*"]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _path(text: str, tokens: dict[str, str]) -> Path:
    return Path(re.sub("%.", lambda m: tokens.get(m[0], m[0]), text)).expanduser()


def _agent(text: str, tokens: dict[str, str]) -> str:
    if text.lower() == "none":
        return "none"
    if text in ("", "SSH_AUTH_SOCK"):
        return ""
    return os.environ.get(text[1:], "none") if text.startswith("$") else str(_path(text, tokens))


def _yes(found: dict[str, object], key: str) -> bool:
    return str(found.get(key, "no")).lower() in ("yes", "true")


def _user_folder() -> Path:
    return Path.home() / ".ssh"


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "root"  # an account without a name, as in a container
