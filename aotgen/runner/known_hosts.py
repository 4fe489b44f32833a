"""Host keys: known_hosts files as sshd(8) describes them, and what to say when a key is not there.

A key is never accepted silently: an unknown or changed one is an error that shows fingerprints.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from aotgen.errors import BoardError
from aotgen.runner.ssh_config import DEFAULT_PORT, HostConfig


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file that names the host.

    Attributes:
        kind: "ssh-ed25519", ...
        blob: the public key as it travels.
        place: file and line number.
        file: the file alone.
        revoked: marked as one that must not be trusted.
    """

    kind: str
    blob: bytes
    place: str
    file: Path
    revoked: bool


def known_keys(config: HostConfig) -> list[KnownKey]:
    """The keys that the host's known_hosts files have under its name."""
    return [key for path in config.known_hosts for key in _read(path, config.key_name)]


def algorithms(known: list[KnownKey], offered: tuple[str, ...]) -> list[str]:
    """``offered`` host key algorithms with those of known keys first: the server picks by them."""
    first: list[str] = []
    for key in known:
        # An RSA key signs in newer ways than the one that its kind is named for.
        names = ("rsa-sha2-512", "rsa-sha2-256") if key.kind == "ssh-rsa" else (key.kind,)
        first += [n for n in names if n in offered and n not in first]
    return first + [name for name in offered if name not in first]


def check_host_key(config: HostConfig, key: paramiko.PKey, known: list[KnownKey]) -> str:
    """Compare the key that a host shows with the known ones.

    Returns:
        A warning when the user's configuration makes us add an unknown key; else an empty string.

    Raises:
        BoardError: the key is unknown, changed or revoked.
    """
    blob = key.asbytes()
    same = [k for k in known if k.blob == blob]
    shown = f"{key.get_name()} {fingerprint(blob)}"
    if any(k.revoked for k in same):
        raise BoardError(f"the host key of {config.key_name} ({shown}) is marked as revoked")
    if same:
        return ""
    trusted = [k for k in known if not k.revoked]
    if trusted:
        old = next((k for k in trusted if k.kind == key.get_name()), trusted[0])
        raise BoardError(
            f"the host key of {config.key_name} has CHANGED: it shows {shown}, {old.place} has"
            f" {old.kind} {fingerprint(old.blob)}; the board was installed anew, or somebody else"
            " answers in its place",
            remedy=f"if you know why, run: ssh-keygen -f {old.file} -R '{config.key_name}', then"
            f" connect once by: {config.command}",
        )
    if config.accept_new:
        return _add(config, key, shown)
    port = "" if config.port == DEFAULT_PORT else f"-p {config.port} "
    raise BoardError(
        f"the host key of {config.key_name} is not known; it shows {shown}",
        remedy=f"connect once by: {config.command} (or add what `ssh-keyscan {port}{config.host}`"
        f" prints to {config.known_hosts[0]}), comparing this fingerprint with the one that"
        " `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints on the board",
    )


def fingerprint(blob: bytes) -> str:
    """As ``ssh-keygen -l`` prints it."""
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _add(config: HostConfig, key: paramiko.PKey, shown: str) -> str:
    """Write an unknown key to the user's file, as ssh does under accept-new."""
    path = config.known_hosts[0]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{config.key_name} {key.get_name()} {key.get_base64()}\n")
    except OSError as error:
        raise BoardError(f"cannot add a host key to {path}: {error.strerror}") from error
    return (
        f"warning: added the host key of {config.key_name} ({shown}) to {path}, as"
        " StrictHostKeyChecking of the ssh configuration asks"
    )


def _read(path: Path, name: str) -> Iterator[KnownKey]:
    """Lines are ``[@marker] names kind base64 [comment]``; malformed ones are passed over."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "@revoked") or not _names(words[0], name):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield KnownKey(words[1], blob, f"{path}:{number}", path, marker == "@revoked")


def _names(field: str, name: str) -> bool:
    """Whether the field has the name: hashed, or as one of several patterns."""
    if field.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in field[3:].split("|"))
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    found = False
    for pattern in field.lower().split(","):
        # Brackets are part of [host]:port here, not a set of characters.
        plain = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, plain):
            if pattern.startswith("!"):
                return False
            found = True
    return found
