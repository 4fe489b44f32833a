"""Finds compilers, CMake and Ninja, and says which package to install where one is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from aotgen.errors import ToolchainError
from aotgen.target.board import Board

MIN_CMAKE = (3, 16)

_PACKAGES = {"gcc": "gcc", "cc": "gcc", "clang": "clang", "cmake": "cmake", "ninja": "ninja-build"}

_DEBIAN_ARCH = {"aarch64": "arm64", "arm": "armhf"}


@dataclass(frozen=True)
class Tool:
    """A program found on this computer.

    Attributes:
        path: of its executable.
        version: as many numbers as it prints, (0,) when it prints none.
    """

    path: Path
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(str(n) for n in self.version)


def find_tool(name: str) -> Tool | None:
    """A program of the search path with its version, or None."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = (done.stdout or done.stderr).splitlines()[:1]
    numbers = re.findall(r"\d+(?:\.\d+)+", first[0]) if first else []
    version = tuple(int(n) for n in numbers[-1].split(".")) if numbers else (0,)
    return Tool(Path(path), version)


def require_tool(name: str, package: str | None = None) -> Tool:
    """A program of the search path.

    Raises:
        ToolchainError: it is not installed; names the Debian package that has it.
    """
    tool = find_tool(name)
    if tool is None:
        raise ToolchainError(
            f"{name} is not installed",
            remedy=f"on Debian and Ubuntu: apt-get install {package or _PACKAGES.get(name, name)}",
        )
    return tool


def require_cmake() -> Tool:
    """CMake, new enough for generated projects.

    Raises:
        ToolchainError: there is none, or it is too old.
    """
    cmake = require_tool("cmake")
    if cmake.version < MIN_CMAKE:
        wanted = ".".join(str(n) for n in MIN_CMAKE)
        raise ToolchainError(
            f"CMake {cmake.version_text} at {cmake.path} is too old",
            remedy=f"install {wanted} or newer",
        )
    return cmake


def compiler_packages(board: Board) -> str:
    """Debian's packages that have the cross compiler of a board, and the C library for it."""
    if board.is_bare:
        return f"gcc-{board.triple} libnewlib-{board.triple}"
    machine = _DEBIAN_ARCH.get(board.machine, board.machine)
    return f"gcc-{board.triple} libc6-dev-{machine}-cross"


def compiler_of(board: Board, compiler: str | None = None) -> str | None:
    """The C compiler that builds for ``board``: what to give CMake as CMAKE_C_COMPILER.

    Args:
        board: what to build for.
        compiler: a program of the search path or a path ("clang", "gcc-12"); None is the board's
            cross compiler, and for the host what CMake itself finds: ``$CC``, else ``cc``.

    Returns:
        None to leave the choice to CMake.

    Raises:
        ToolchainError: it is not installed, or it does not build for the board.
    """
    if board.is_bare and compiler is not None and "clang" in Path(compiler).name:
        raise ToolchainError(
            f"{compiler} does not build for board {board.name}: start-up code, linker script and"
            f" assembly are for the GNU compiler",
            remedy=f"use {board.triple}-gcc",
        )
    if board.triple and not board.runs_here:
        # clang cross-compiles itself but takes headers, start files and libgcc from GCC's package.
        cross = f"{board.triple}-gcc"
        require_tool(cross, compiler_packages(board))
        if compiler in (None, "gcc"):
            return cross
    if compiler is None:
        if not os.environ.get("CC"):
            require_tool("cc")
        return None
    require_tool(compiler)
    return compiler
