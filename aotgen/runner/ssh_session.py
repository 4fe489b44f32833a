"""One SSH connection at work: programs that end with it, a folder that ends with it.

The board needs a POSIX shell, and runs two scripts of ours in it, both constant: what varies are
quoted arguments. Each reads its standard input, on which we send a byte every few seconds, and
cleans up when that ends or falls silent: when we close, crash, are interrupted, or the link breaks.
``_SUPERVISE`` then ends the program it started, ``_GUARD`` removes the session's folder.
"""

from __future__ import annotations

import contextlib
import select
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex

import paramiko

from aotgen.errors import BoardError
from aotgen.runner.base import LinkError
from aotgen.runner.output import LineReader, Output
from aotgen.runner.ssh_link import Link

BEAT_S = 10.0
"""Between the bytes that say that we are still here."""

SILENCE_S = 60
"""After so long without one the board cleans up."""

CHANNEL_TIMEOUT_S = 30.0

_SFTP_TIMEOUT_S = 60.0
"""A slow card may take long to store what it has taken."""

_GRACE_S = 5.0
"""For a program to end after it was told to, or for its last output after its end."""

# One line each and no backslash, so that every login shell (bash, ash, fish, csh) passes them on
# unchanged. `timeout` and `setsid` are used where the board has them.
_BEATS = (
    f'l=; timeout 5 true </dev/null 2>/dev/null && l="timeout {SILENCE_S}"; '
    'while [ -n "$($l dd bs=1 count=1 2>/dev/null)" ]; do :; done'
)

_SUPERVISE = (
    'cd "$1" || exit 125; shift; exec 3<&0 </dev/null; '
    'if command -v setsid >/dev/null 2>&1; then setsid "$@" 3<&- & else "$@" 3<&- & fi; '
    "p=$!; exec 2>/dev/null; "
    f'( {_BEATS}; trap "" TERM; kill -s TERM -- "-$p" || kill -TERM "$p"; sleep 1; '
    'kill -s KILL -- "-$p" || kill -KILL "$p" ) <&3 >/dev/null & '
    'w=$!; exec 3<&-; wait "$p"; s=$?; kill "$w"; kill -s KILL -- "-$p"; exit "$s"'
)
"""Arguments: folder, then the program and its own. It gets a session of its own; children that stay
in its process group end with it."""

_GUARD = (
    'umask 077; trap "" HUP INT PIPE; h=$(uname -n); '
    'for b in "$XDG_RUNTIME_DIR" /tmp /var/tmp "$HOME" /dev/shm; do '
    '[ -n "$b" ] && [ -d "$b" ] && [ -w "$b" ] || continue; '
    # What a power cut left: the number in the name is of the shell that would have removed it.
    'for o in "$b"/aotgen-*-"$h"; do [ -d "$o" ] || continue; n=${o##*/aotgen-}; '
    'kill -0 "${n%%-*}" 2>/dev/null || rm -rf "$o" 2>/dev/null; done; '
    'd=$b/aotgen-$$-$1-$h; mkdir "$d" 2>/dev/null || continue; '
    'f=$(df -Pk "$d" 2>/dev/null | { read -r x; read -r x x x f x; echo "$f"; }); '
    '{ echo "#!/bin/sh"; echo "exit 7"; } >"$d/probe" 2>/dev/null; chmod 700 "$d/probe"; '
    '"$d/probe" 2>/dev/null; e=$?; rm -f "$d/probe"; '
    '[ "$e" = 7 ] || { rm -rf "$d"; echo "$1 noexec 0 $b"; continue; }; '
    '[ "${f:-$2}" -ge "$2" ] || { rm -rf "$d"; echo "$1 full $f $b"; continue; }; '
    'trap "exit 1" TERM; c() { cd /; rm -rf "$d" || { sleep 2; rm -rf "$d"; }; }; trap c EXIT; '
    f'echo "$1 folder ${{f:-0}} $d"; {_BEATS}; exit 0; '
    'done; echo "$1 none 0 -"; exit 1'
)
"""Arguments: a word that starts its answers, the KiB that must be free."""


class LinkLost(LinkError):
    """The connection broke."""


@dataclass(frozen=True)
class Ended:
    """How a program on the board ended; a signal n is status 128 + n."""

    status: int
    stdout: str
    stderr: str
    seconds: float


class Session:
    """A connection, and what it started."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.host = str(link.config)
        self.folder = ""
        self._sftp: paramiko.SFTPClient | None = None
        self._guard: paramiko.Channel | None = None
        self._closed = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether the connection stands, and the folder if there ever was one."""
        guarded = self._guard is None or not self._guard.closed
        return self.link.alive and guarded

    def answers(self) -> bool:
        """Whether the board still reacts: a link may be broken without our knowing yet."""
        if not self.alive:
            return False
        try:
            self.link.transport.open_session(timeout=CHANNEL_TIMEOUT_S).close()
        except (paramiko.SSHException, EOFError, OSError):
            return False
        return True

    def lost(self, doing: str) -> LinkLost:
        return LinkLost(
            f"the link to {self.host} was lost while {doing}",
            remedy="check power and network of the board, then try again",
        )

    def execute(
        self,
        words: Sequence[str],
        name: str,
        folder: str,
        timeout: float,
        on_line: LineReader | None = None,
    ) -> Ended:
        """Run a program to its end; whatever ends this call ends the program too.

        Args:
            words: the program and its arguments.
            name: of the program, for messages.
            folder: of the board, to run in.
            timeout: seconds until it is stopped.
            on_line: gets the lines of stdout as they arrive.

        Raises:
            LinkLost: the connection broke.
            BoardError: it ran too long, or printed too much.
        """
        channel = self._start(["sh", "-c", _SUPERVISE, "aotgen", folder, *words], name)
        stdout, stderr = Output(name, on_line), Output(name)
        start = time.monotonic()
        try:
            self._follow(channel, name, stdout, stderr, start, timeout)
        except LinkLost:
            raise
        except BaseException:
            self._stop(channel)
            raise
        finally:
            channel.close()
        seconds = time.monotonic() - start
        return Ended(channel.exit_status, stdout.finish(), stderr.finish(), seconds)

    def _link_goes(self) -> bool:
        """Whether the link is lost, now or soon: paramiko closes a dead link's channels first."""
        end = time.monotonic() + _GRACE_S
        while self.link.alive and time.monotonic() < end:
            time.sleep(0.02)
        return not self.link.alive

    def _follow(
        self,
        channel: paramiko.Channel,
        name: str,
        stdout: Output,
        stderr: Output,
        start: float,
        timeout: float,
    ) -> None:
        beat = start + BEAT_S
        last = None  # when the program's end was told
        while True:
            select.select([channel], [], [], 0.2 if last else 1.0)
            # Before the rest is looked at: what came before the end counts, and paramiko's thread
            # may take in status and end at any moment.
            closed, alive = channel.closed, self.link.alive
            while channel.recv_ready():
                stdout.feed(channel.recv(1 << 16))
            while channel.recv_stderr_ready():
                stderr.feed(channel.recv_stderr(1 << 16))
            now = time.monotonic()
            if channel.exit_status_ready() and channel.exit_status >= 0:
                last = last or now
                # A child that lives on may hold the pipes.
                ended = closed or channel.eof_received or now > last + _GRACE_S
                if ended and not _pending(channel):
                    return
            elif not alive:
                raise self.lost(f"{name} was running")
            elif closed and not _pending(channel):
                if self._link_goes():
                    raise self.lost(f"{name} was running")
                raise BoardError(
                    f"{self.host} ended {name} without telling its status",
                    remedy="the board may be short of memory: see its dmesg",
                )
            if now > start + timeout and last is None:
                raise BoardError(f"{name} was stopped after {timeout:g} s")
            if now > beat and last is None:
                beat = now + BEAT_S
                with contextlib.suppress(OSError):
                    channel.sendall(b".")

    def _stop(self, channel: paramiko.Channel) -> None:
        """End the program of a channel, and wait until it has."""
        with contextlib.suppress(Exception):
            channel.shutdown_write()
            deadline = time.monotonic() + _GRACE_S
            while not channel.exit_status_ready() and time.monotonic() < deadline:
                # Full windows would keep the board from telling.
                while channel.recv_ready():
                    channel.recv(1 << 16)
                while channel.recv_stderr_ready():
                    channel.recv_stderr(1 << 16)
                time.sleep(0.02)

    def _start(self, words: Sequence[str], name: str) -> paramiko.Channel:
        try:
            channel = self.link.transport.open_session(timeout=CHANNEL_TIMEOUT_S)
            channel.settimeout(CHANNEL_TIMEOUT_S)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self.lost(f"starting {name}") from error
        try:
            channel.exec_command(shlex.join(words))
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            if not self.link.alive:
                raise self.lost(f"starting {name}") from error
            raise BoardError(
                f"{self.host} does not let this account run programs",
                remedy="use an account with a shell",
            ) from error
        return channel

    def open_folder(self, need: int) -> str:
        """Make the session's folder, where programs can run and ``need`` bytes are free.

        It is removed when the session ends, however it does.

        Raises:
            LinkLost: the connection broke.
            BoardError: there is no such place.
        """
        token = token_hex(8)
        kib = -(-need // 1024)
        guard = self._start(["sh", "-c", _GUARD, "aotgen", token, str(kib)], "a shell")
        told: dict[str, list[str]] = {"full": [], "noexec": []}
        try:
            with guard.makefile("rb") as answers:
                for line in answers:
                    words: list[str] = line.decode(errors="replace").rstrip("\n").split(" ", 3)
                    if len(words) != 4 or words[0] != token:
                        continue  # a profile of the account prints something
                    _, kind, free, place = words
                    if kind == "folder":
                        self.folder, self._guard = place, guard
                        threading.Thread(target=self._beat, daemon=True).start()
                        return place
                    if kind in told:
                        text = f"{place} ({int(free) / 1024:.1f} MiB free)"
                        told[kind].append(text if kind == "full" else place)
        except (OSError, EOFError) as error:
            raise self.lost("making a folder") from error
        finally:
            if self._guard is None:
                guard.close()
        if not self.link.alive:
            raise self.lost("making a folder")
        raise _no_folder(self.host, need, told)

    def _beat(self) -> None:
        guard = self._guard
        while guard is not None and not self._closed.wait(BEAT_S):
            try:
                guard.sendall(b".")
            except OSError:
                return

    def sftp(self) -> paramiko.SFTPClient:
        """
        Raises:
            LinkLost: the connection broke.
            BoardError: the board has no SFTP server.
        """
        if self._sftp is None:
            try:
                client = paramiko.SFTPClient.from_transport(self.link.transport)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if not self.link.alive:
                    raise self.lost("starting SFTP") from error
                raise BoardError(
                    f"{self.host} has no SFTP server: {error}",
                    remedy="install it there (apt-get install openssh-sftp-server), and see that"
                    " the account's shell profile prints nothing",
                ) from error
            channel = client.get_channel() if client is not None else None
            if client is None or channel is None:
                raise self.lost("starting SFTP")
            channel.settimeout(_SFTP_TIMEOUT_S)
            self._sftp = client
        return self._sftp

    def transferring(self) -> bool:
        """Whether the SFTP connection stands."""
        channel = self._sftp.get_channel() if self._sftp is not None else None
        return self.link.alive and channel is not None and not channel.closed

    def drop_sftp(self) -> None:
        """Give up the SFTP connection; the next use opens another."""
        sftp, self._sftp = self._sftp, None
        if sftp is not None:
            with contextlib.suppress(Exception):
                sftp.close()

    def close(self) -> None:
        """End the session; its folder is gone afterwards, unless the link is."""
        self._closed.set()
        if self._guard is not None and self.alive:
            self._stop(self._guard)
        self._guard = None
        self.link.close()


def _pending(channel: paramiko.Channel) -> bool:
    return bool(channel.recv_ready() or channel.recv_stderr_ready())


def _no_folder(host: str, need: int, told: dict[str, list[str]]) -> BoardError:
    if told["full"]:
        return BoardError(
            f"{host} has no room for {need / (1 << 20):.1f} MiB: {', '.join(told['full'])}",
            remedy="free space there",
        )
    if told["noexec"]:
        return BoardError(
            f"{host} runs no programs from {', '.join(told['noexec'])} (mounted noexec)",
            remedy="give the account a home directory on a file system mounted exec",
        )
    return BoardError(
        f"{host} has no folder that the account can write to",
        remedy="give the account a home directory",
    )
