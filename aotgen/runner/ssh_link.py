"""Opens an SSH connection: through jump hosts, by keys and agent, with the host key checked."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko

from aotgen.errors import BoardError
from aotgen.runner.base import LinkError
from aotgen.runner.known_hosts import algorithms, check_host_key, known_keys
from aotgen.runner.ssh_config import HostConfig, SshConfig, Target

Notify = Callable[[str], None]

DEAD_LINK_S = 60.0
"""After so long without an acknowledgement a connection is given up."""

_MAX_JUMPS = 8
_FORBIDDEN = 1
"""SSH_OPEN_ADMINISTRATIVELY_PROHIBITED of RFC 4254, section 5.1."""

_LOCK = threading.Lock()

# paramiko prints the tracebacks of its threads when nobody listens; we report what they mean.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Link:
    """A connection to a host and those to the hosts on the way."""

    def __init__(self, config: SshConfig, target: Target, notify: Notify) -> None:
        """
        Args:
            config: the user's ssh configuration.
            target: the host.
            notify: gets warnings.

        Raises:
            UsageError: the configuration is malformed.
            BoardError: a host cannot be reached, its key is not the known one, or it refuses us.
        """
        self.config = config.host(target)
        self._config = config
        self._notify = notify
        self._open: list[Any] = []
        try:
            self.transport: paramiko.Transport = self._connect(self.config, 0)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return bool(self.transport.is_active())

    def close(self) -> None:
        """Drop all connections, the farthest first."""
        for opened in reversed(self._open):
            with contextlib.suppress(Exception):
                opened.close()
        self._open.clear()

    def _connect(self, config: HostConfig, depth: int) -> paramiko.Transport:
        if depth > _MAX_JUMPS:
            raise BoardError(f"ProxyJump of {config.host} leads through too many hosts")
        transport = paramiko.Transport(self._socket(config, depth))
        self._open.append(transport)
        transport.banner_timeout = transport.auth_timeout = config.connect_timeout
        known = known_keys(config)
        options = transport.get_security_options()
        options.key_types = algorithms(known, tuple(options.key_types))
        transport.use_compression(config.compression)
        try:
            transport.start_client(timeout=config.connect_timeout)
            if not transport.initial_kex_done:
                raise paramiko.SSHException(f"no answer within {config.connect_timeout:g} s")
        except (paramiko.SSHException, EOFError, OSError) as error:
            # A transport that ends before it begins says nothing more.
            reason = str(error) or "the connection was closed"
            raise LinkError(
                f"{config.host} port {config.port} does not speak SSH as expected: {reason}",
                remedy=f"check that this works: {config.command}",
            ) from error
        warning = check_host_key(config, transport.get_remote_server_key(), known)
        if warning:
            self._notify(warning)
        _authenticate(transport, config)
        transport.set_keepalive(max(1, round(config.alive_interval)))
        return transport

    def _socket(self, config: HostConfig, depth: int) -> Any:
        """The stream that leads to a host's sshd."""
        if config.jumps:
            *before, last = config.jumps
            return self._through(last, tuple(before), config, depth)
        if config.proxy_command:
            # A shell reads it, as ssh_config(5) has it.
            proxy = paramiko.ProxyCommand(shlex.join(["sh", "-c", config.proxy_command]))
            self._open.append(proxy)
            return proxy
        return _dial(config)

    def _through(
        self, jump: Target, before: tuple[Target, ...], config: HostConfig, depth: int
    ) -> Any:
        """A channel from the host ``jump``, itself reached through ``before``, to the target."""
        middle = self._config.host(jump)
        if before:
            middle = replace(middle, jumps=before)
        transport = self._connect(middle, depth + 1)
        try:
            return transport.open_channel(
                "direct-tcpip",
                (config.host, config.port),
                ("127.0.0.1", 0),
                timeout=config.connect_timeout,
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            # Forbidden is for ever; a board that does not answer the jump host may do so later.
            forbidden = getattr(error, "code", None) == _FORBIDDEN
            raise (BoardError if forbidden else LinkError)(
                f"{middle} does not lead to {config.host} port {config.port}: {error}"
            ) from error


def _dial(config: HostConfig) -> socket.socket:
    where = f"{config.host} port {config.port}"
    remedy = "check that the board is on, its address, and that both are on one network"
    try:
        sock = socket.create_connection((config.host, config.port), config.connect_timeout)
    except socket.gaierror as error:
        raise BoardError(
            f"there is no host {config.host}: {error.strerror}",
            remedy="check its name, or use its address",
        ) from error
    except TimeoutError as error:
        raise LinkError(
            f"no answer from {where} within {config.connect_timeout:g} s", remedy=remedy
        ) from error
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            raise LinkError(
                f"nothing listens at {where}",
                remedy="check the port and that sshd runs there (systemctl status ssh)",
            ) from error
        if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            raise LinkError(f"no route to {where}", remedy=remedy) from error
        raise LinkError(f"cannot connect to {where}: {error.strerror}", remedy=remedy) from error
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        limit = int(1000 * max(DEAD_LINK_S, config.connect_timeout))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    return sock


def _authenticate(transport: paramiko.Transport, config: HostConfig) -> None:
    try:
        transport.auth_none(config.user)
        return
    except paramiko.BadAuthenticationType as error:
        allowed = list(error.allowed_types)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise LinkError(f"{config.host} refuses to let {config.user} in: {error}") from error
    if "publickey" not in allowed:
        raise BoardError(
            f"{config.host} lets nobody in by key, only by {', '.join(allowed)}",
            remedy="allow PubkeyAuthentication in its sshd_config",
        )
    notes: list[str] = []
    tried = 0
    with _agent_keys(config, notes) as agent_keys:
        for key in (*agent_keys, *_file_keys(config, notes)):
            tried += 1
            try:
                transport.auth_publickey(config.user, key)
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    break
                continue
            except (paramiko.SSHException, EOFError, OSError):
                break
            if transport.is_authenticated():
                return
            raise BoardError(f"{config.host} wants more than a key of {config.user}")
    _refused(transport, config, tried, notes)


def _refused(
    transport: paramiko.Transport, config: HostConfig, tried: int, notes: list[str]
) -> None:
    told = f" ({'; '.join(notes)})" if notes else ""
    keys = "1 key" if tried == 1 else f"{tried} keys"
    if tried and not transport.is_active():
        raise BoardError(
            f"{config} hung up after {keys}{told}",
            remedy="name the right one by IdentityFile and IdentitiesOnly yes in the ssh"
            " configuration",
        )
    encrypted = next((n.split()[0] for n in notes if n.endswith("is encrypted")), "")
    remedy = (
        f"give the agent the key: ssh-add {encrypted}"
        if encrypted
        else f"put your key there: ssh-copy-id {'' if config.port == 22 else f'-p {config.port} '}"
        f"{config.user}@{config.host}, or name the right one by IdentityFile"
    )
    offered = f"accepts none of {keys}" if tried else "was offered no key"
    raise BoardError(f"{config} {offered}{told}", remedy=remedy)


def _file_keys(config: HostConfig, notes: list[str]) -> Iterator[paramiko.PKey]:
    """The private keys that can be read; why others cannot goes to ``notes``."""
    for path in config.identity_files:
        try:
            yield paramiko.PKey.from_path(path)
        except FileNotFoundError:
            if config.identities_named:
                notes.append(f"{path} does not exist")
        except OSError as error:
            notes.append(f"{path} cannot be read: {error.strerror}")
        except (TypeError, paramiko.PasswordRequiredException):
            # cryptography's way to say that it wants a passphrase
            notes.append(f"{path} is encrypted")
        except Exception:  # whatever a parser trips over
            notes.append(f"{path} is no private key that can be used here")


@contextlib.contextmanager
def _agent_keys(config: HostConfig, notes: list[str]) -> Iterator[list[paramiko.PKey]]:
    """The agent's keys, those of identity files first and under IdentitiesOnly alone."""
    if config.identity_agent == "none":
        yield []
        return
    agent = _agent(config.identity_agent)
    try:
        keys = list(agent.get_keys()) if agent is not None else []
        mine = {blob for path in config.identity_files if (blob := _public_blob(path))}
        named = [key for key in keys if key.asbytes() in mine]
        others = [key for key in keys if key.asbytes() not in mine]
        yield named if config.identities_only else named + others
    finally:
        if agent is not None:
            agent.close()


def _agent(path: str) -> paramiko.Agent | None:
    """paramiko asks the environment alone where the agent is."""
    with _LOCK:
        before = os.environ.get("SSH_AUTH_SOCK")
        try:
            if path:
                os.environ["SSH_AUTH_SOCK"] = path
            return paramiko.Agent()
        except (paramiko.SSHException, OSError, EOFError):
            return None
        finally:
            if path:
                os.environ.pop("SSH_AUTH_SOCK")
                if before is not None:
                    os.environ["SSH_AUTH_SOCK"] = before


def _public_blob(path: Path) -> bytes:
    try:
        words = Path(f"{path}.pub").read_text(encoding="utf-8", errors="replace").split()
        return bytes(paramiko.PublicBlob.from_string(" ".join(words[:2])).key_blob)
    except Exception:  # there is no such file, or it is none
        return b""
