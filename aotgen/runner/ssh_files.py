"""Files that travel to and from a board over SFTP, each only when the board lacks it."""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import COMMAND_TIMEOUT_S, MAX_TEXT_BYTES
from aotgen.runner.ssh_session import Session

Progress = Callable[[str], None]

_MIB = 1 << 20
_LARGE = _MIB
"""Progress of smaller files is not reported."""

_PIECE = 32 * 1024
"""What is read and sent at once."""

_SPARE = 64 * 1024
"""Bytes that must stay free."""


@dataclass(frozen=True)
class LocalFile:
    """A file of ours that shall be on the board.

    Attributes:
        path: here.
        digest: SHA-256, hexadecimal.
        size: in bytes.
        executable: whether it is a program.
    """

    path: Path
    digest: str
    size: int
    executable: bool

    @property
    def remote_name(self) -> str:
        """Says the content, so that another content never takes the name of a running program."""
        return f"{self.digest[:16]}-{self.path.name}"


def local_file(path: Path, executable: bool = False) -> LocalFile:
    """
    Raises:
        UsageError: the file cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_MIB):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    return LocalFile(path, digest.hexdigest(), size, executable)


class RemoteFiles:
    """The files in a session's folder."""

    def __init__(self, session: Session, progress: Progress) -> None:
        self.session = session
        self._progress = progress
        self._there: dict[str, LocalFile] = {}
        self._outputs = 0

    def put(self, files: Iterable[LocalFile]) -> list[str]:
        """Upload what is not there yet; returns the files' paths on the board.

        Raises:
            LinkLost: the connection broke.
            BoardError: the board has no room, or the link stalls.
        """
        wanted = list(files)
        intact = self._intact(wanted)
        missing = [file for file in wanted if file.remote_name not in intact]
        try:
            self._require_room(missing)
        except _Full:
            self.keep_only(wanted)  # what is kept for later makes room
            self._require_room(missing)
        for file in missing:
            try:
                self._upload(file)
            except _Full:
                if not self.keep_only(wanted):
                    raise
                self._upload(file)
        for file in wanted:  # the last ones used stand last
            self._there[file.remote_name] = self._there.pop(file.remote_name, file)
        return [self._path(file.remote_name) for file in wanted]

    def keep_only(self, files: Iterable[LocalFile], spare: int = 0) -> bool:
        """Remove every other file that was uploaded; whether there was one.

        Args:
            files: to keep.
            spare: bytes of others that may stay, those that were used last.
        """
        names = {file.remote_name for file in files}
        removed = False
        for name in [n for n in reversed(self._there) if n not in names]:
            spare -= self._there[name].size
            if spare >= 0:
                continue
            del self._there[name]
            removed = True
            self._remove(name)
        return removed

    def new_output(self, name: str) -> str:
        """A path on the board for a file that a program writes."""
        self._outputs += 1
        return self._path(f"out{self._outputs}-{name}")

    def fetch(self, remote: str, path: Path) -> None:
        """Take over what a program wrote, if it did; it is gone from the board afterwards.

        Raises:
            LinkLost: the connection broke.
            BoardError: the board does not give it.
            UsageError: the file cannot be written here.
        """
        session = self.session
        try:
            with _transfer(session, f"fetching {path.name}"):
                sftp = session.sftp()
                try:
                    source = sftp.open(remote, "rb")
                except FileNotFoundError:
                    return
                source.prefetch(source.stat().st_size)
                self._receive(source, path)
                source.close()
                sftp.remove(remote)
        except _Refused as error:
            raise BoardError(f"{session.host} does not give {path.name}: {error}") from error

    def _receive(self, source: paramiko.SFTPFile, path: Path) -> None:
        try:
            sink = path.open("wb")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        with sink:
            while piece := source.read(_PIECE):
                try:
                    sink.write(piece)
                except OSError as error:
                    raise UsageError(f"cannot write {path}: {error.strerror}") from error

    def free_bytes(self) -> int | None:
        """Free space where the folder is; None when the board does not tell."""
        argv = ["df", "-Pk", self.session.folder]
        ended = self.session.execute(argv, "df", "/", COMMAND_TIMEOUT_S)
        words = ended.stdout.splitlines()[-1].split() if ended.status == 0 else []
        return int(words[3]) * 1024 if len(words) >= 6 and words[3].isdigit() else None

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            self.session.sftp().remove(self._path(name))

    def _path(self, name: str) -> str:
        return posixpath.join(self.session.folder, name)

    def _intact(self, wanted: list[LocalFile]) -> set[str]:
        """Names of wanted files that are there, by checksum (by size without sha256sum)."""
        known = [file for file in wanted if file.remote_name in self._there]
        if not known:
            return set()
        argv = ["sha256sum", *(self._path(file.remote_name) for file in known)]
        ended = self.session.execute(argv, "sha256sum", "/", 10 * COMMAND_TIMEOUT_S)
        if ended.status in (126, 127):
            return {f.remote_name for f in known if self._size(f.remote_name) == f.size}
        sums = {line.split(None, 1)[0].lstrip("\\") for line in ended.stdout.splitlines() if line}
        return {file.remote_name for file in known if file.digest in sums}

    def _size(self, name: str) -> int | None:
        with _transfer(self.session, f"looking for {name}"):
            try:
                size = self.session.sftp().stat(self._path(name)).st_size
                return None if size is None else int(size)
            except FileNotFoundError:
                return None

    def _require_room(self, files: list[LocalFile]) -> None:
        need = sum(file.size for file in files)
        if need < _LARGE:
            return
        free = self.free_bytes()
        if free is not None and free < need + _SPARE:
            raise self._full(files[0].path.name, need, free)

    def _upload(self, file: LocalFile) -> None:
        session, name = self.session, file.path.name
        target = self._path(file.remote_name)
        try:
            with _transfer(session, f"uploading {name}"):
                sftp = session.sftp()
                # Only a whole file gets the name that says its content.
                self._send(file, f"{target}.part")
                sftp.chmod(f"{target}.part", stat.S_IRWXU if file.executable else stat.S_IRUSR)
                with contextlib.suppress(FileNotFoundError):
                    sftp.remove(target)  # damaged there
                sftp.rename(f"{target}.part", target)
        except _Refused as error:
            session.drop_sftp()  # answers to what was sent ahead are still to come
            free = self.free_bytes()
            self._remove(f"{file.remote_name}.part")
            if free is not None and free < file.size + _SPARE:
                raise self._full(name, file.size, free) from error
            raise BoardError(f"{session.host} does not take {name}: {error}") from error
        self._there[file.remote_name] = file

    def _send(self, file: LocalFile, target: str) -> None:
        # paramiko's own put would close its file when it is interrupted, and wait for an answer
        # that never comes where a packet was cut in two.
        report = self._reporter(file)
        sftp = self.session.sftp()
        sink = sftp.open(target, "wb")
        sink.set_pipelined(True)
        sent = 0
        with file.path.open("rb") as source:
            while piece := source.read(_PIECE):
                sink.write(piece)
                sent += len(piece)
                report(sent)
        sink.close()
        if sftp.stat(target).st_size != file.size:
            raise OSError("it stored another size than was sent")

    def _full(self, name: str, need: int, free: int) -> _Full:
        return _Full(
            f"the disk of {self.session.host} is full: {name} needs {_text(need)} in"
            f" {posixpath.dirname(self.session.folder)}, {_text(free)} are free",
            remedy="free space there",
        )

    def _reporter(self, file: LocalFile) -> Callable[[int], None]:
        """To be called with the bytes sent so far."""
        told, total = -1, file.size

        def report(sent: int) -> None:
            nonlocal told
            tenth = 10 * sent // max(total, 1)
            if tenth != told and total >= _LARGE:
                told = tenth
                self._progress(
                    f"uploading {file.path.name}: {10 * tenth} % of {total / _MIB:.1f} MiB"
                )

        return report


def _text(size: int) -> str:
    return f"{size / _MIB:.1f} MiB" if size >= _MIB // 10 else f"{-(-size // 1024)} KiB"


class _Full(BoardError):
    """The board's disk is full."""


class _Refused(Exception):
    """The board's SFTP server says no."""


@contextlib.contextmanager
def _transfer(session: Session, doing: str) -> Iterator[None]:
    """Turns what paramiko raises into our errors.

    Raises:
        LinkLost: the connection broke.
        _Refused: the link is sound, and the board says no.
    """
    try:
        yield
    except (paramiko.SSHException, EOFError, OSError) as error:
        # The server's own refusals are plain OSErrors.
        broken = not isinstance(error, OSError) or isinstance(error, TimeoutError)
        if broken or not session.transferring():
            session.link.close()
            raise session.lost(doing) from error
        raise _Refused(getattr(error, "strerror", None) or str(error)) from error
    except BaseException:
        session.drop_sftp()  # interrupted: a packet may have been cut in two
        raise


def read_remote_text(session: Session, path: str) -> str | None:
    """See ``Runner.read_text``."""
    try:
        with _transfer(session, f"reading {path}"):
            file = session.sftp().open(path, "rb")
            data: bytes = file.read(MAX_TEXT_BYTES)
            file.close()
            return data.decode(errors="replace")
    except _Refused:
        return None
