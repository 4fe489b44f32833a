"""CMake as a user calls it, for the tests of what we give to CMake."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support import require_tool

ROOT = Path(__file__).resolve().parents[1]

GENERATORS = {"Ninja": "ninja", "Unix Makefiles": "make"}


class Build:
    """A source folder and its binary folder.

    Attributes:
        source: has a CMakeLists.txt.
        folder: the binary folder.
    """

    def __init__(self, source: Path, folder: Path, generator: str = "Ninja") -> None:
        require_tool("cmake", GENERATORS[generator])
        self.source = source
        self.folder = folder
        self.generator = generator

    def configure(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Configure; ``arguments`` are CMake's own, like ``-DNAME=VALUE``."""
        argv = ["cmake", "-S", str(self.source), "-B", str(self.folder), "-G", self.generator]
        if shutil.which("ccache"):
            argv += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
        return _call([*argv, *arguments], env)

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _call(["cmake", "--build", str(self.folder), *arguments])

    def make(self, *arguments: str) -> str:
        """Configure and build; what was printed. Fails with all of it."""
        printed = ""
        for done in (self.configure(*arguments), self.build()):
            printed += done.stdout
            assert done.returncode == 0, printed
        return printed

    def rebuild(self) -> str:
        """``cmake --build`` alone."""
        done = self.build()
        assert done.returncode == 0, done.stdout
        return done.stdout

    def ctest(self) -> list[str]:
        """The names of all tests of the build, sorted; each must pass."""
        argv = ["ctest", "--output-on-failure"]  # --test-dir came with CMake 3.20
        done = _call(argv, folder=self.folder)
        assert done.returncode == 0, done.stdout
        return sorted(re.findall(r"Test +#\d+: (\S+) \.+ +Passed", done.stdout))

    def install(self, prefix: Path) -> None:
        done = _call(["cmake", "--install", str(self.folder), "--prefix", str(prefix)])
        assert done.returncode == 0, done.stdout

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the build prints on stdout."""
        argv = [str(self.folder / program), *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _call(
    argv: list[str], env: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=folder,
        env=None if env is None else {**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def command(folder: Path) -> str:
    """The CMake argument that names the aotgen under test: a script in ``folder``."""
    script = folder / "aotgen"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aotgen "$@"\n')
    script.chmod(0o755)
    return f"-DAOTGEN_COMMAND={script}"
