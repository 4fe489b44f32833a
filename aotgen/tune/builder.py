"""Builds bundles into programs for a board: kernels in parallel, each in an object of its own, with
a cache of objects, so that what the compiler refuses costs only itself.

simd.h is compiled once for all kernels that use the same parts of it: vendors' intrinsics take a
compiler longer to read than a kernel. Objects and compiled headers are kept under $XDG_CACHE_HOME,
named by a hash of the compiler, its flags and all of the text.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from aotgen.builder import first_error
from aotgen.cache import cache_folder
from aotgen.codegen.environment import render
from aotgen.errors import ToolchainError
from aotgen.target.board import Board
from aotgen.target.toolchain import compiler_of
from aotgen.tune.bundle import ALIGN_BYTES, GUARD_BYTES, Bundle, Unit, table_source

COMPILE_TIMEOUT_S = 120.0
"""A kernel that takes the compiler longer is refused."""

CACHE_BYTES = 512 << 20
"""Of objects, and of compiled headers."""

_PRUNE_EVERY = 500
"""Objects that are stored between two looks at the size of the cache."""

_UNUSED_S = 24 * 3600.0
"""Nobody compiles with a header that was asked for so long ago."""

_FULL = "No space left on device"

_DEVICE_FILES = (
    "tune/device.h",
    "tune/child.h",
    "project/board.h",
    "runtime/count_region.h",
    "tune/device.c",
    "tune/child.c",
    "tune/candidate.c",
    "project/board.c",
    "project/governor.c",
)


@dataclass(frozen=True)
class Built:
    """A program that checks and times candidates.

    Attributes:
        program: its path; None when nothing could be built.
        cases: numbers of the bundle's cases in the program's order.
        failures: why the others are not in it, by number.
        too_large: why others are not: they need more memory than there is.
        identity: of a microcontroller's program, which tells it to whoever asks: 32 hex digits.
    """

    program: Path | None
    cases: tuple[int, ...]
    failures: dict[int, str]
    too_large: dict[int, str] = field(default_factory=dict)
    identity: str = ""


class Builder:
    """Builds for one board with one compiler."""

    def __init__(
        self,
        board: Board,
        compiler: str | None = None,
        jobs: int | None = None,
        cache: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """
        Args:
            board: whose compiler and flags are used.
            compiler: as ``toolchain.compiler_of``.
            jobs: compilers that run at a time; None is one for each core.
            cache: folder for objects; None is one of this user's.
            flags: further ones of compiler and linker.

        Raises:
            ToolchainError: there is no compiler.
        """
        self.board = board
        program = compiler_of(board, compiler)
        self.argv = [program] if program else _usual_compiler()
        self.identity, self.is_clang = _identify(self.argv)
        if self.is_clang and board.triple and not board.runs_here:
            self.argv.append(f"--target={board.triple}")
        self.flags = [
            "-std=c99",
            *board.release_flags,
            *board.cflags("clang" if self.is_clang else "gcc"),
            "-Werror=implicit-function-declaration",
            *flags,
        ]
        self.hits = self.misses = 0
        self._jobs = jobs or os.cpu_count() or 1
        self._cache = _Cache(cache or cache_folder() / "tune")

    def build(self, bundle: Bundle, folder: Path) -> Built:
        """Build a bundle.

        Args:
            bundle: for the board.
            folder: an existing one, for the program.

        Raises:
            ToolchainError: the compiler cannot build the parts that are the same in every bundle,
                or the disk is full.
        """
        failures: dict[str, str] = {}
        objects = self._compile(bundle, failures)
        cases = [n for n, case in enumerate(bundle.cases) if case.unit in objects]
        program = folder / "device"
        error = self._link(bundle, cases, objects, program) if cases else ""
        if error:
            # One by one, to find whose fault it is.
            for name in list(objects):
                own = [n for n in cases if bundle.cases[n].unit == name]
                alone = self._link(bundle, own, objects, program)
                if alone:
                    failures[name] = alone
                    del objects[name]
            cases = [n for n in cases if bundle.cases[n].unit in objects]
            again = self._link(bundle, cases, objects, program) if cases else ""
            if again:
                raise ToolchainError(f"{self.argv[0]} cannot link candidates: {again}")
        self._cache.prune(CACHE_BYTES)
        refused = {n: failures[c.unit] for n, c in enumerate(bundle.cases) if c.unit in failures}
        return Built(program if cases else None, tuple(cases), refused)

    def _compile(self, bundle: Bundle, failures: dict[str, str]) -> dict[str, Path]:
        """Objects of a bundle's units by name; ``failures`` gets what those that cannot be compiled
        fail with.
        """
        objects: dict[str, Path] = {}
        for digest, header in bundle.headers.items():
            self._header(digest, header)
        with ThreadPoolExecutor(self._jobs) as pool:
            device = pool.submit(lambda: self._device)
            made = pool.map(lambda name: self._unit(name, bundle), bundle.units)
            for name, (path, error) in zip(bundle.units, made, strict=True):
                if path is not None:
                    objects[name] = path
                else:
                    failures[name] = error
            device.result()
        return objects

    def _device_texts(self) -> dict[str, str]:
        """What is the same in every bundle, headers and C files, by name."""
        return device_files()

    @cached_property
    def _device(self) -> list[Path]:
        """Objects of what is the same in every bundle."""
        texts = self._device_texts()
        headers = {name: text for name, text in texts.items() if name.endswith(".h")}
        objects = []
        with self._cache.scratch() as folder:
            for name, text in headers.items():
                (folder / name).write_text(text, encoding="utf-8")
            for name in [name for name in texts if name not in headers]:
                source = texts[name]
                key = self._key("\0".join([source, *headers.values()]))
                path, error = self._object(key, source, folder, name, [f"-I{folder}"])
                if path is None:
                    raise ToolchainError(f"{self.argv[0]} cannot compile {name}: {error}")
                objects.append(path)
        return objects

    def _unit(self, name: str, bundle: Bundle) -> tuple[Path | None, str]:
        """(object, "") of a kernel, or (None, the compiler's first error)."""
        unit: Unit = bundle.units[name]
        header = bundle.headers[unit.header]
        place = self._header_folder(unit.header)
        optimisation = self.board.optimisation(unit.optimize)
        flags = [f"-I{place}"]
        if optimisation != self.board.release_flags:
            flags += optimisation
        if self.is_clang and (place / "simd.h.pch").exists():
            flags += ["-include-pch", str(place / "simd.h.pch")]
        with self._cache.scratch() as folder:
            key = self._key(f"{header}\0{unit.source}\0{optimisation}")
            return self._object(key, unit.source, folder, f"{name}.c", flags)

    def _object(
        self, key: str, source: str, folder: Path, name: str, flags: Sequence[str]
    ) -> tuple[Path | None, str]:
        known = self._cache.get(f"{key}.o")
        if known is not None:
            self.hits += 1
            return known, ""
        self.misses += 1
        (folder / name).write_text(source, encoding="utf-8")
        argv = [*self.argv, *self.flags, *flags, "-c", name, "-o", "made.o"]
        error = call(argv, folder)
        if error:
            return None, error
        return self._cache.put(folder / "made.o", f"{key}.o"), ""

    def _header(self, digest: str, text: str) -> None:
        """Put simd.h where kernels include it from, and compile it. That this fails is no error:
        the compiler then reads the text.
        """
        place = self._header_folder(digest)
        made = place / ("simd.h.pch" if self.is_clang else "simd.h.gch")
        if made.exists():
            with contextlib.suppress(OSError):
                os.utime(made)
            return
        place.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if made.exists():
                return
            (place / "simd.h").write_text(text, encoding="utf-8")
            part = f"{made.name}.part"
            argv = [*self.argv, *self.flags, "-x", "c-header", str(place / "simd.h"), "-o", part]
            try:
                error = call(argv, place)
            except ToolchainError:  # it is large: there may be room for objects
                (place / part).unlink(missing_ok=True)
                return
            if not error:
                os.replace(place / part, made)

    def _header_folder(self, digest: str) -> Path:
        return self._cache.folder / "headers" / self._key(digest)[:24]

    def _link(
        self, bundle: Bundle, cases: Sequence[int], objects: dict[str, Path], program: Path
    ) -> str:
        """Returns the linker's first error, empty when there is none."""
        names = sorted({bundle.cases[n].unit for n in cases})
        with self._cache.scratch() as folder:
            (folder / "device.h").write_text(device_text("tune/device.h"), encoding="utf-8")
            (folder / "table.c").write_text(table_source(bundle, cases), encoding="utf-8")
            static = ["-static"] if self.board.static else []
            argv = [*self.argv, *self.flags, "-O0", *static, "table.c"]
            argv += [str(path) for path in [*self._device, *(objects[n] for n in names)]]
            error = call([*argv, "-o", "program", "-lm"], folder)
            if not error:
                shutil.move(folder / "program", program)
            return error

    def _key(self, text: str) -> str:
        parts = [self.identity, *self.argv, *self.flags, text]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


class _Cache:
    """Files by name; the ones not used for the longest time go first."""

    def __init__(self, folder: Path) -> None:
        """Where nothing can be written, files live as long as this object."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        try:
            (folder / "objects").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            self._temporary = tempfile.TemporaryDirectory(prefix="aotgen-objects-")
            folder = Path(self._temporary.name)
            (folder / "objects").mkdir()
        self.folder = folder
        self._stored = _PRUNE_EVERY

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder on the same file system, for a moment."""
        with tempfile.TemporaryDirectory(prefix="build-", dir=self.folder) as folder:
            yield Path(folder)

    def get(self, name: str) -> Path | None:
        path = self._path(name)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def put(self, made: Path, name: str) -> Path:
        path = self._path(name)
        path.parent.mkdir(exist_ok=True)
        os.replace(made, path)
        self._stored += 1
        return path

    def prune(self, most: int) -> None:
        """Remove what was not used for the longest time where there is more than ``most`` bytes of
        objects, or of compiled headers; of these and of what a killed process left nothing that
        may be in use.
        """
        if self._stored < _PRUNE_EVERY:
            return
        self._stored = 0
        unused = time.time() - _UNUSED_S
        for path in _oldest(self.folder / "objects", "*/*", most):
            path.unlink(missing_ok=True)
        for path in _oldest(self.folder / "headers", "*/simd.h.*ch", most, unused):
            shutil.rmtree(path.parent, ignore_errors=True)
        for path in self.folder.glob("build-*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < unused:
                    shutil.rmtree(path, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / "objects" / name[:2] / name


def _oldest(folder: Path, pattern: str, most: int, before: float = math.inf) -> Iterator[Path]:
    """The files last used before a time without which the rest is at most so many bytes."""
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            facts = path.stat()
            found.append((facts.st_mtime, facts.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if total <= most or used >= before:
            return
        total -= size
        yield path


def device_files() -> dict[str, str]:
    """Texts of what the device program has in every bundle, headers and C files, by name."""
    return {path.rpartition("/")[2]: device_text(path) for path in _DEVICE_FILES}


def device_text(path: str) -> str:
    """A file of the device program."""
    return render(f"{path}.j2", p="device", P="DEVICE", align=ALIGN_BYTES, guard=GUARD_BYTES)


def _usual_compiler() -> list[str]:
    """The compiler of this computer, with the options that CC has.

    Raises:
        ToolchainError: CC is malformed.
    """
    text = os.environ.get("CC", "")
    try:
        return shlex.split(text) or ["cc"]
    except ValueError as error:
        raise ToolchainError(
            f"the environment variable CC is {text!r}: {error}", remedy="set it to a C compiler"
        ) from error


def _identify(argv: Sequence[str]) -> tuple[str, bool]:
    """What a compiler says that it is, and whether it is clang.

    Raises:
        ToolchainError: it cannot be started.
    """
    try:
        done = subprocess.run([*argv, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"cannot start the C compiler {argv[0]}: {error}") from error
    path = shutil.which(argv[0]) or argv[0]
    return f"{os.path.realpath(path)} {done.stdout}", "clang" in done.stdout


def call(argv: Sequence[str], folder: Path) -> str:
    """Run a compiler; returns its first error, empty when there is none.

    Raises:
        ToolchainError: there is none, or the disk is full.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C must not look like an error of the candidate
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"the compiler took more than {COMPILE_TIMEOUT_S:g} s"
    except OSError as error:
        raise ToolchainError(f"cannot start the C compiler {argv[0]}: {error}") from error
    if done.returncode == 0:
        return ""
    if _FULL in done.stdout:
        # Nor must this: a record would say for ever that it cannot be built.
        raise ToolchainError(
            f"{argv[0]} cannot write: {_FULL}",
            remedy=f"free space in {folder.parent} and {tempfile.gettempdir()}",
        )
    return first_error(done.stdout) or f"the compiler ended with status {done.returncode}"
