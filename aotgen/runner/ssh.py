"""Runs programs on a board over SSH.

The board needs sshd with SFTP and a POSIX shell, nothing else. Programs and their files lie in a
private folder there, which is removed when the runner is closed, and as well when this process
dies or the link breaks; a running program ends likewise (see ``ssh_session``). Links that broke
between two commands are opened again, once.
"""

from __future__ import annotations

import os
import posixpath
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from aotgen.errors import BoardError, UsageError
from aotgen.runner.base import (
    COMMAND_TIMEOUT_S,
    DEFAULT_TIMEOUT_S,
    Argument,
    Download,
    LinkError,
    Runner,
    RunResult,
    Upload,
    failure,
    last_words,
)
from aotgen.runner.output import LineReader
from aotgen.runner.ssh_config import SshConfig, Target
from aotgen.runner.ssh_files import (
    LocalFile,
    Progress,
    RemoteFiles,
    local_file,
    read_remote_text,
)
from aotgen.runner.ssh_link import Link, Notify
from aotgen.runner.ssh_session import Ended, LinkLost, Session
from aotgen.target.elf import read_elf
from aotgen.target.host import architecture

WRAPPER_VARIABLE = "AOTGEN_SSH_WRAPPER"
"""Words that are put before every program on the board, such as an emulator with its options."""

_FULL_BYTES = 64 * 1024
"""With less space a program's failure is blamed on the disk."""

_RUNS_TOO = {"aarch64": ("arm",), "x86_64": ("i686",)}
"""What kernels of an architecture run besides their own, given the libraries."""


class SshRunner(Runner):
    """Connects at the first use; ``close`` ends what runs and removes what was uploaded."""

    name = "ssh"

    def __init__(
        self,
        target: Target,
        config: SshConfig | None = None,
        prefix: Sequence[str] | None = None,
        progress: Progress | None = None,
        notify: Notify | None = None,
    ) -> None:
        """
        Args:
            target: the host.
            config: ssh configuration; None reads the user's.
            prefix: is put before programs (not commands); None takes $AOTGEN_SSH_WRAPPER.
            progress: gets texts on the progress of large uploads.
            notify: gets warnings; None prints them on stderr.

        Raises:
            UsageError: the configuration or the variable is malformed.
        """
        self.target = target
        self.prefix = _wrapper() if prefix is None else tuple(prefix)
        self._config = config or SshConfig()
        self._progress = progress or (lambda text: None)
        self._notify = notify or (lambda text: print(f"aotgen: {text}", file=sys.stderr))
        self._session: Session | None = None
        self._files: RemoteFiles | None = None
        self._programs: dict[Path, LocalFile] = {}
        self._machine = ""
        self._reached = False

    def deploy(self, *programs: Path) -> None:
        for program in programs:
            if not program.is_file():
                raise BoardError(f"there is no program {program}", remedy="build the project first")
            self._require_fit(program)
            self._programs[program.resolve()] = local_file(program, executable=True)
        self._board_files().put(self._programs.values())

    def run(
        self,
        program: Path,
        arguments: Sequence[Argument] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: LineReader | None = None,
    ) -> RunResult:
        own = self._programs.get(program.resolve())
        if own is None:
            raise BoardError(f"{program.name} was not deployed to {self.target}")
        files = self._board_files()
        uploads = [local_file(a.path) for a in arguments if isinstance(a, Upload)]
        (path, *places) = files.put([own, *uploads])
        files.keep_only([*self._programs.values(), *uploads], self.cache_bytes)
        there = iter(places)
        words: list[str] = [*self.prefix, path]
        downloads: list[tuple[str, Path]] = []
        for argument in arguments:
            if isinstance(argument, Upload):
                words.append(next(there))
            elif isinstance(argument, Download):
                remote = files.new_output(argument.path.name)
                downloads.append((remote, argument.path))
                words.append(remote)
            else:
                words.append(argument)
        session = files.session
        self._progress(f"running {program.name}")
        ended = session.execute(words, program.name, session.folder, timeout, on_line)
        self._check(ended, program.name, files)
        for remote, local in downloads:
            files.fetch(remote, local)
        return RunResult(ended.stdout, ended.stderr, ended.seconds)

    def command(self, argv: Sequence[str], timeout: float = COMMAND_TIMEOUT_S) -> RunResult:
        name = posixpath.basename(argv[0])
        ended = self._connected().execute(argv, name, "/", timeout)
        self._check(ended, name)
        return RunResult(ended.stdout, ended.stderr, ended.seconds)

    def read_text(self, path: str) -> str | None:
        return read_remote_text(self._connected(), path)

    def emulates(self, machine: str) -> bool:
        return bool(self.prefix) or not self._is_native(machine)

    def close(self) -> None:
        session, self._session, self._files = self._session, None, None
        if session is not None:
            session.close()

    def _connected(self) -> Session:
        """The session; a new one when there is none, or its link has been lost since.

        Raises:
            BoardError: the board cannot be reached.
        """
        if self._session is not None and not self._session.answers():
            self.close()
        if self._session is None:
            try:
                link = Link(self._config, self.target, self._notify)
            except LinkError:
                raise
            except BoardError as error:
                if not self._reached:
                    raise
                # It let us in before: while it starts a board refuses everybody for a moment.
                raise LinkError(str(error)) from error
            self._session = Session(link)
            self._reached = True
        return self._session

    def _board_files(self) -> RemoteFiles:
        """The session's folder; a new and empty one where the session is new."""
        session = self._connected()
        if self._files is None:
            session.open_folder(sum(file.size for file in self._programs.values()))
            self._files = RemoteFiles(session, self._progress)
        return self._files

    def _check(self, ended: Ended, name: str, files: RemoteFiles | None = None) -> None:
        """
        Raises:
            BoardError: the program did not end with status 0.
        """
        if ended.status == 0:
            return
        if ended.status in (126, 127):
            words = last_words(ended.stderr) or "there is no such program"
            raise BoardError(f"{self.target} cannot start {name}: {words}")
        error = failure(name, ended.status, ended.stdout, ended.stderr)
        free = files.free_bytes() if files is not None else None
        if free is not None and free < _FULL_BYTES:
            raise BoardError(
                f"{error} (the disk of {self.target} is full: {free // 1024} KiB free)",
                remedy="free space there",
            )
        raise error

    def _is_native(self, machine: str) -> bool:
        """Whether the board's cores run programs of an architecture themselves."""
        here = self._architecture()
        return machine == here or machine in _RUNS_TOO.get(here, ())

    def _require_fit(self, program: Path) -> None:
        """
        Raises:
            BoardError: the board cannot run programs of this kind.
        """
        try:
            elf = read_elf(program)
        except OSError as error:
            raise UsageError(f"cannot read {program}: {error.strerror}") from error
        if elf is None or self.prefix:
            return
        if not self._is_native(elf.machine):
            # The kernel may know an emulator for it, which then has libraries of its own.
            emulated = self.read_text(f"/proc/sys/fs/binfmt_misc/qemu-{elf.machine}") or ""
            if not emulated.startswith("enabled"):
                here = self._architecture()
                raise BoardError(
                    f"{self.target} is {here}, {program.name} is built for {elf.machine}",
                    remedy=f"compile the model for a board that is {here} (aotgen boards list), or"
                    f" name an emulator there in {WRAPPER_VARIABLE}",
                )
        elif elf.interpreter and not self._exists(elf.interpreter):
            raise BoardError(
                f"the system of {self.target} has no {elf.interpreter}: it is not made for programs"
                f" of {elf.machine}, such as {program.name}",
                remedy="compile for a board with the word size of its system (rpi3b-armv7 for 32"
                " bits), or install that loader and its C library",
            )

    def _architecture(self) -> str:
        """The board's own, as its kernel says.

        Raises:
            BoardError: the board cannot be reached.
        """
        if not self._machine:
            self._machine = architecture(self.command(["uname", "-m"]).stdout.strip())
        return self._machine

    def _exists(self, path: str) -> bool:
        try:
            self.command(["test", "-e", path])
        except LinkLost:
            raise
        except BoardError:
            return False
        return True


def _wrapper() -> tuple[str, ...]:
    text = os.environ.get(WRAPPER_VARIABLE, "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{WRAPPER_VARIABLE} is malformed: {error}") from error
