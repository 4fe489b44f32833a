"""Builds a generated project with CMake: incremental, one build at a time, errors in one line."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aotgen.errors import ToolchainError, UsageError
from aotgen.manifest import Manifest
from aotgen.target.board import Board
from aotgen.target.toolchain import compiler_of, find_tool, require_cmake, require_tool

BuildType = Literal["Release", "Debug", "RelWithDebInfo", "MinSizeRel"]

_STAMP = "aotgen-configure.json"
_LOG = "aotgen-build.log"

_END_S = 5.0
"""How long a build that is to end may take for it before it is killed."""

_NOT_IT = ("linker command failed", "ld returned", "warning:")
"""What a compiler says after the linker has said why, and what is no error."""


@dataclass(frozen=True)
class Build:
    """Where the results of one build are.

    Attributes:
        folder: CMake's binary folder.
        prefix: of the project.
    """

    folder: Path
    prefix: str

    @property
    def library(self) -> Path:
        """The static library."""
        return self.folder / f"lib{self.prefix}.a"

    @property
    def shared_library(self) -> Path:
        return self.folder / f"lib{self.prefix}_shared.so"

    def program(self, kind: Literal["test", "run", "bench", "firmware"]) -> Path:
        """A program of the project; "firmware" is the one of a bare board, as ELF."""
        suffix = ".elf" if kind == "firmware" else ""
        return self.folder / f"{self.prefix}_{kind}{suffix}"

    def firmware_image(self, form: Literal["bin", "hex"]) -> Path:
        """The firmware as tools want it that write it into flash; there are those forms that
        ``FirmwareSupport.images`` of the board names.
        """
        return self.program("firmware").with_suffix(f".{form}")


def build_project(
    manifest: Manifest,
    board: Board,
    build_type: BuildType = "Release",
    compiler: str | None = None,
    shared: bool = False,
    definitions: Sequence[str] = (),
    targets: Sequence[str] = (),
) -> Build:
    """Configure where needed, then build what changed.

    Args:
        manifest: of the project.
        board: that it was compiled for.
        build_type: CMake's.
        compiler: "gcc", "clang", or a program; None is the board's own.
        shared: also build the shared library.
        definitions: further ``NAME=VALUE`` of CMake.
        targets: what to build; empty for everything.

    Raises:
        ToolchainError: a tool is missing, or the build fails; the message quotes the first error
            and names the log.
    """
    compiler_program = compiler_of(board, compiler)
    source, prefix = built_project(manifest, board)
    label = "-".join([build_type.lower(), *([compiler] if compiler else [])])
    folder = source / "build" / label.replace("/", "_")
    cmake = str(require_cmake().path)
    arguments = _configure_arguments(manifest, board, build_type, compiler_program)
    arguments += [f"-D{d}" for d in sorted(definitions)]
    with _locked(folder):
        _configure(cmake, folder, arguments, prefix, shared)
        jobs = str(os.cpu_count() or 1)
        only = ["--target", *targets] if targets else []
        argv = [cmake, "--build", str(folder), "--parallel", jobs, *only]
        _call(argv, folder, prefix)
    return Build(folder, prefix)


def built_project(manifest: Manifest, board: Board) -> tuple[Path, str]:
    """Folder and prefix of the CMake project with a model's programs: the model's own, but a bundle
    for a microcontroller has one firmware of all its models.
    """
    if manifest.bundle is not None and board.is_bare:
        return manifest.root, manifest.bundle
    return manifest.folder.resolve(), manifest.prefix


def _configure_arguments(
    manifest: Manifest, board: Board, build_type: BuildType, compiler: str | None
) -> list[str]:
    source, _ = built_project(manifest, board)
    arguments = ["-S", str(source), f"-DCMAKE_BUILD_TYPE={build_type}"]
    if find_tool("ninja"):
        arguments += ["-G", "Ninja"]
    else:
        require_tool("make")
        arguments += ["-G", "Unix Makefiles"]
    if compiler is not None:
        arguments.append(f"-DCMAKE_C_COMPILER={compiler}")
    toolchain = _toolchain(manifest, board)
    if toolchain is not None:
        arguments.append(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
    if shutil.which("ccache"):
        arguments.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
    return arguments


def _toolchain(manifest: Manifest, board: Board) -> Path | None:
    """The project's own copy of the toolchain file, so that it builds the same without aotgen."""
    own = manifest.root.resolve() / "toolchain.cmake"
    if own.is_file():
        return own
    return board.toolchain


def _configure(cmake: str, folder: Path, arguments: list[str], prefix: str, shared: bool) -> None:
    """Configure from scratch when an argument changed, not at all when nothing did."""
    stamp = folder / _STAMP
    before = _read_stamp(stamp)
    wanted = {"arguments": arguments, "cc": os.environ.get("CC", "")}
    same = all(before.get(key) == value for key, value in wanted.items())
    if same and (before.get("shared") or not shared):
        return
    if not same:
        for name in ("CMakeCache.txt", _STAMP):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "CMakeFiles", ignore_errors=True)
    switch = [f"-D{prefix.upper()}_SHARED=ON"] if shared else []
    _call([cmake, "-B", str(folder), *arguments, *switch], folder, prefix)
    stamp.write_text(json.dumps({**wanted, "shared": shared}), encoding="utf-8")


def _read_stamp(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _call(argv: list[str], folder: Path, name: str) -> None:
    # A session of its own: Ctrl-C ends the build through us, and is no error of a compiler's.
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate()
        except BaseException:
            _end(process)
            raise
    log = folder / _LOG
    text = f"{' '.join(argv)}\n{output}"
    log.write_text(text, encoding="utf-8", errors="backslashreplace")
    if process.returncode != 0:
        raise ToolchainError(
            f"building {name} failed: {first_error(output)}", remedy=f"all of it is in {log}"
        )


def _end(process: subprocess.Popen[str]) -> None:
    """End a build with all that it started; compilers remove their temporary files."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            return


def first_error(output: str) -> str:
    """The line of a build's output that says most about why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for marker in ("error:", "CMake Error", "undefined reference", "ld: ", "FAILED"):
        for index, line in enumerate(lines):
            if marker in line and not any(text in line for text in _NOT_IT):
                return _with_what_follows(lines[index : index + 3])[:400]
    return lines[-1][:400] if lines else "no output"


def _with_what_follows(lines: list[str]) -> str:
    """The first line, and the next ones as long as a colon says that they complete it."""
    text = lines[0]
    for line in lines[1:]:
        if not text.endswith(":"):
            break
        text = f"{text} {line}"
    return text


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process builds in a folder at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".aotgen-lock").open("w")
    except OSError as error:
        raise UsageError(f"cannot build in {folder}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
