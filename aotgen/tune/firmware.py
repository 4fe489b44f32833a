"""Programs of bundles for microcontrollers: candidates, their data and what answers the host in one
image, or in several where they do not fit together.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import aotgen
from aotgen.codegen.environment import render
from aotgen.errors import ToolchainError, UsageError
from aotgen.target.board import Board
from aotgen.tune.builder import CACHE_BYTES, Builder, Built, call, device_text
from aotgen.tune.bundle import ALIGN_BYTES, Bundle, arena_bytes, files_of, part_of, table_source

_SHARED_FILES = (
    "tune/device.h",
    "tune/image.h",
    "tune/candidate.c",
    "tune/firmware.c",
    "firmware/aot_core.h",
    "firmware/aot_core.c",
    "firmware/aot_hal.h",
    "firmware/aot_hal_default.c",
    "firmware/aot_link.h",
    "firmware/aot_link.c",
)

_MARGIN_BYTES = 128 << 10
"""Of memory behind a candidate's arena, as far as there is so much, where a write that misses is
found."""

_PROGRAM_RAM_BYTES = 64 << 10
"""Of the RAM what stack and program may take, when an arena gets a margin."""

_TOO_LARGE = re.compile(r"will not fit in region|overflowed by|region .* is full")

_LINK_FLAGS = (
    "-nostartfiles",
    "--specs=nano.specs",
    "--specs=nosys.specs",
    "-Wl,--gc-sections",
    "-u",  # messages print floats
    "_printf_float",
)


FRAME_BYTES = 16 * 1024
"""A function that wants more of the stack at once is not run: half of what the boards set aside,
and nothing at the board is sure to notice that it is used up."""

_FRAME = re.compile(r"frame size of \d+ bytes")


class FirmwareBuilder(Builder):
    """Builds images for one bare board with its start-up code, hardware layer and linker script."""

    def __init__(
        self,
        board: Board,
        compiler: str | None = None,
        jobs: int | None = None,
        cache: Path | None = None,
    ) -> None:
        """
        Args:
            board, compiler, jobs, cache: see ``Builder``.

        Raises:
            UsageError: the board does not bring what a program needs to start there.
            ToolchainError: there is no compiler.
        """
        if not board.firmware.can_start:
            raise UsageError(
                f"board {board.name} has no start-up code and linker script, so that no program for"
                " tuning can be linked for it",
                remedy=f'write a board.toml with extends = "{board.name}" and [firmware] for your'
                " board, or tune on an emulated one of the same core",
            )
        flags = [
            "-ffunction-sections",
            "-fdata-sections",
            f"-Werror=frame-larger-than={FRAME_BYTES}",
        ]
        super().__init__(board, compiler, jobs, cache, flags)

    def build_images(self, bundle: Bundle, folder: Path) -> tuple[Built, ...]:
        """Build a bundle.

        Args:
            bundle: for the board.
            folder: an existing one, for the images.

        Returns:
            The images, each with the cases that it has; and one without a program for those that
            are in none.

        Raises:
            ToolchainError: see ``Builder.build``.
        """
        failures: dict[str, str] = {}
        objects = self._compile(bundle, failures)
        refused = {n: failures[c.unit] for n, c in enumerate(bundle.cases) if c.unit in failures}
        large = {n: text for n in range(len(bundle.cases)) if (text := self._too_large(bundle, n))}
        deep = [n for n, text in refused.items() if _FRAME.search(text)]
        for n in deep:
            large[n] = f"its stack frame takes more than {FRAME_BYTES} bytes"
            del refused[n]
        left = [n for n in range(len(bundle.cases)) if n not in refused and n not in large]
        images = list(self._images(bundle, left, objects, folder)) if left else []
        self._cache.prune(CACHE_BYTES)
        return Built(None, (), refused, large), *images

    def _too_large(self, bundle: Bundle, number: int) -> str:
        """Why a case cannot be in any image, as far as that is known before it is linked."""
        needs, has = arena_bytes(bundle.cases[number]), self.board.ram_bytes
        return f"its buffers take {needs} bytes, the RAM has {has}" if 0 < has < needs else ""

    def _images(
        self, bundle: Bundle, cases: Sequence[int], objects: Mapping[str, Path], folder: Path
    ) -> Iterator[Built]:
        """Images of cases that can be compiled: one, or halves of it as far as it takes."""
        error, program, identity = self._image(bundle, cases, objects, folder)
        if not error:
            yield Built(program, tuple(cases), {}, identity=identity)
        elif len(cases) == 1:
            failed = {cases[0]: error}
            yield Built(None, (), *(({}, failed) if _TOO_LARGE.search(error) else (failed, {})))
        elif _TOO_LARGE.search(error):
            half = len(cases) // 2
            yield from self._images(bundle, cases[:half], objects, folder)
            yield from self._images(bundle, cases[half:], objects, folder)
        else:
            # One by one, to find whose fault it is.
            alone = {n: self._image(bundle, [n], objects, folder)[0] for n in cases}
            bad = {n: text for n, text in alone.items() if text and not _TOO_LARGE.search(text)}
            if not bad:
                raise ToolchainError(f"{self.argv[0]} cannot link candidates: {error}")
            yield Built(None, (), bad)
            rest = [n for n in cases if n not in bad]
            if rest:
                yield from self._images(bundle, rest, objects, folder)

    def _image(
        self, bundle: Bundle, cases: Sequence[int], objects: Mapping[str, Path], folder: Path
    ) -> tuple[str, Path, str]:
        """Link one image.

        Returns:
            The linker's first error, empty when there is none; the program; its identity.
        """
        part = part_of(bundle, cases)
        units = sorted({bundle.cases[n].unit for n in cases})
        texts = {
            "device.h": device_text("tune/device.h"),
            "image.h": device_text("tune/image.h"),
            "linker.ld": self.board.firmware.texts()["linker.ld"],
            "table.c": table_source(part, cases),
        }
        data = files_of(part)[0]
        kernels = [str(objects[name]) for name in units]
        known = [*texts.values(), *(str(path) for path in self._device), *kernels, *part.blobs]
        identity = hashlib.sha256("\0".join(known).encode()).hexdigest()[:32]
        texts["image.c"], texts["files.S"] = self._image_texts(bundle, cases, len(data), identity)
        with self._cache.scratch() as scratch:
            for name, text in texts.items():
                (scratch / name).write_text(text, encoding="utf-8")
            for number, content in enumerate(data):
                (scratch / f"file{number}").write_bytes(content)
            sources = [name for name in texts if name.endswith((".c", ".S"))]
            argv = [*self.argv, *self.flags, *_LINK_FLAGS, "-T", "linker.ld"]
            argv += [*sources, *(str(path) for path in self._device), *kernels]
            program = folder / f"{identity}.elf"
            error = call([*argv, "-o", "program.elf", "-lm"], scratch)
            if not error:
                shutil.move(scratch / "program.elf", program)
                self._convert(program)
            return error, program, identity

    def _image_texts(
        self, bundle: Bundle, cases: Sequence[int], files: int, identity: str
    ) -> tuple[str, str]:
        """image.c and files.S."""
        arena = max(arena_bytes(bundle.cases[n]) for n in cases)
        margin = min(_MARGIN_BYTES, self.board.ram_bytes - _PROGRAM_RAM_BYTES - arena)
        core = self.board.clusters[0].core
        image = render(
            "tune/image.c.j2",
            files=files,
            block_bytes=arena + max(margin, 0) // ALIGN_BYTES * ALIGN_BYTES,
            most_args=max(1, *(len(bundle.cases[n].arguments) for n in cases)),
            identity=", ".join(f"0x{identity[i : i + 2]}" for i in range(0, 32, 2)),
            board=self.board.name,
            core=core,
            version=aotgen.__version__,
        )
        return image, render("tune/files.S.j2", files=files, align=ALIGN_BYTES)

    def _convert(self, program: Path) -> None:
        """Make the forms of a program that the board's [flash] command asks for.

        Raises:
            ToolchainError: it cannot be converted.
        """
        for form, name in (("bin", "binary"), ("hex", "ihex")):
            if any(f"{{{form}}}" in word for word in self.board.flash_command):
                tool = f"{self.board.triple}-objcopy"
                out = program.with_suffix(f".{form}").name
                error = call([tool, "-O", name, program.name, out], program.parent)
                if error:
                    raise ToolchainError(f"{tool} cannot convert a program: {error}")

    def _device_texts(self) -> dict[str, str]:
        """What is the same in every image: the board's own files too, but for the linker script."""
        texts = {path.rpartition("/")[2]: device_text(path) for path in _SHARED_FILES}
        return texts | {n: t for n, t in self.board.firmware.texts().items() if n != "linker.ld"}
