"""Boards for the tests of the serial protocol: the device library as a program of this computer, a
line that damages what passes, and models whose layers are worth a look.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import subprocess
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.runner import serial
from aotgen.runner.base import Place
from aotgen.runner.model import PlacedModel
from aotgen.runner.qemu_system import QemuMachine
from aotgen.runner.serial_link import SerialLink
from aotgen.runner.serial_model import SerialModel
from aotgen.runner.serial_port import Port, SerialPort
from aotgen.target.board import Board
from tests.support import require_tool
from tests.tflite_builder import ModelBuilder

HERE = Path(__file__).parent

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror")


def int8_model(seed: int = 0, channels: int = 8) -> bytes:
    """Two convolutions side by side into one concatenation (views with strides), a depthwise one, a
    pool, a dense layer and a softmax; [1, 12, 10, 3] to [1, 5].
    """
    rng, b = np.random.default_rng(seed), ModelBuilder()

    def weights(name: str, *shape: int) -> int:
        values = rng.integers(-127, 128, shape).astype(np.int8)
        return b.const(name, values, float(rng.uniform(0.005, 0.02)), 0)

    def bias(name: str, size: int) -> int:
        return b.const(name, rng.integers(-500, 500, size).astype(np.int32), 1e-3, 0)

    same = {"padding": 0, "stride_w": 1, "stride_h": 1}
    x = b.input("x", (1, 12, 10, 3), "int8", 0.05, -3)
    halves = [
        b.op(
            "CONV_2D",
            [x, weights(f"w{i}", channels, 3, 3, 3), bias(f"b{i}", channels)],
            out=(f"half{i}", (1, 12, 10, channels), "int8", 0.1, 4),
            options=same,
            version=3,
        )
        for i in range(2)
    ]
    both = b.op(
        "CONCATENATION",
        halves,
        out=("both", (1, 12, 10, 2 * channels), "int8", 0.1, 4),
        options={"axis": 3},
        version=2,
    )
    deep = b.op(
        "DEPTHWISE_CONV_2D",
        [both, weights("wd", 1, 3, 3, 2 * channels), bias("bd", 2 * channels)],
        out=("deep", (1, 6, 5, 2 * channels), "int8", 0.2, -10),
        options={"padding": 0, "stride_w": 2, "stride_h": 2, "depth_multiplier": 1},
        version=3,
    )
    flat = b.op(
        "AVERAGE_POOL_2D",
        [deep],
        out=("pooled", (1, 1, 1, 2 * channels), "int8", 0.2, -10),
        options={
            "padding": 1,
            "stride_w": 1,
            "stride_h": 1,
            "filter_width": 5,
            "filter_height": 6,
        },
        version=2,
    )
    flat = b.op(
        "RESHAPE",
        [flat, b.const("shape", np.array([1, 2 * channels], np.int32))],
        out=("flat", (1, 2 * channels), "int8", 0.2, -10),
    )
    y = b.op(
        "FULLY_CONNECTED",
        [flat, weights("wf", 5, 2 * channels), bias("bf", 5)],
        out=("scores", (1, 5), "int8", 0.1, 2),
        version=4,
    )
    b.output(
        b.op(
            "SOFTMAX",
            [y],
            out=("y", (1, 5), "int8", 1 / 256, -128),
            options={"beta": 1.0},
            version=2,
        )
    )
    return b.finish()


def compiled(model: bytes, folder: Path, board: str = "cortex-m") -> aotgen.Project:
    """A project of ``model`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.tflite"
    path.write_bytes(model)
    return aotgen.compile(path, board=board, output=folder / "project")


def native_device(project: aotgen.Project, *flags: str, compiler: str = "gcc") -> Path:
    """The firmware of a project for plain C as a program of this computer, under the sanitizers;
    that of its bundle where it is in one.
    """
    require_tool(compiler)
    folder = project.info.root
    prefixes = [path.name for path in (folder / "models").glob("*")] or [project.info.prefix]
    out = folder / "device"
    sources = [*sorted((folder / "src").glob("*.[cS]")), *sorted((folder / "firmware").glob("*.c"))]
    traces = [f"-D{prefix.upper()}_TRACE" for prefix in prefixes]
    argv = [
        *(compiler, *STRICT, "-O1", "-g", "-fsanitize=address,undefined"),
        *("-fno-sanitize-recover=all", *traces, *flags, f"-Wa,-I{folder}/src"),
        *(f"-I{folder}/include", f"-I{folder}/src", f"-I{folder}/firmware"),
        *map(str, [*sources, HERE / "hal_posix.c"]),
        *("-o", str(out), "-lm"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@dataclass
class Faults:
    """What a line does to bytes that pass, one in so many; 0 is never.

    Attributes:
        drop, flip, double, late, cut: of them is lost, has a bit changed, comes twice, comes later
            together with what follows, begins a time in which all are lost.
    """

    drop: int = 0
    flip: int = 0
    double: int = 0
    late: int = 0
    cut: int = 0
    seed: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def hits(self, rate: int) -> bool:
        return rate > 0 and self.random.randrange(rate) == 0


class FaultyLine:
    """A line between a board and a pseudo-terminal, whose path is ``device``.

    Args:
        to_board, from_board: file descriptors.
        faults: of both directions.
    """

    def __init__(self, to_board: int, from_board: int, faults: Faults) -> None:
        self.faults = faults
        self.passed = 0
        self.on_byte: Callable[[int], None] | None = None
        self._board = {"in": to_board, "out": from_board}
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.device = os.ttyname(self._slave)
        self._stop = threading.Event()
        self._dead_until = 0.0
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        ways = {self._master: "in", self._board["out"]: "out"}
        while not self._stop.is_set():
            ready, _, _ = select.select(list(ways), [], [], 0.05)
            for source in ready:
                with contextlib.suppress(OSError):
                    data = os.read(source, 4096)
                    to_host = ways[source] == "out"
                    target = self._master if to_host else self._board["in"]
                    if not data:  # the board has gone
                        ways.pop(source)
                    for piece in self._damaged(data):
                        os.write(target, piece)

    def _damaged(self, data: bytes) -> Iterator[bytes]:
        faults, kept = self.faults, bytearray()
        for byte in data:
            self.passed += 1
            if self.on_byte is not None:
                self.on_byte(self.passed)
            if faults.hits(faults.cut):
                self._dead_until = time.monotonic() + 0.4
            if time.monotonic() < self._dead_until or faults.hits(faults.drop):
                continue
            if faults.hits(faults.flip):
                byte ^= 1 << faults.random.randrange(8)
            kept.append(byte)
            if faults.hits(faults.double):
                kept.append(byte)
            if faults.hits(faults.late):
                yield bytes(kept)
                kept.clear()
                time.sleep(faults.random.uniform(0.0, 0.3))
        yield bytes(kept)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._master)
        os.close(self._slave)


class NativeBoard:
    """The device program behind a line. ``restart`` is its reset button."""

    def __init__(self, program: Path, faults: Faults | None = None) -> None:
        self._program = program
        self._to, self._from = os.pipe(), os.pipe()
        self._process = self._started()
        self.line = FaultyLine(self._to[1], self._from[0], faults or Faults())

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self._program], stdin=self._to[0], stdout=self._from[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Loses its memory, and what is on its way to it."""
        self.kill()
        self._process = self._started()

    @property
    def crashed(self) -> bool:
        return self._process.poll() not in (None, 0, -9)

    def close(self) -> None:
        self.kill()
        self.line.close()
        for end in (*self._to, *self._from):
            os.close(end)


class NativePlace(Place):
    """What a project's verbs take for a place: the native board."""

    name = "native"

    def __init__(self, board: NativeBoard) -> None:
        self.board = board
        self.link = SerialLink(SerialPort(board.line.device, 4_000_000))

    def model(self, project: aotgen.Project) -> PlacedModel:
        return SerialModel(project.info, project.board, self.link, self.name)

    def close(self) -> None:
        self.link.close()


class FlashedBoard:
    """A real board at a serial port, which runs what was flashed last: QEMU stands for it, whose
    clock is its own.

    Attributes:
        flashed: argv of each call of the board's [flash] command; its last word is {elf}.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flashed: list[Sequence[str]] = []
        self._machine: QemuMachine | None = None
        monkeypatch.setattr(serial, "run_flash", self._flash)
        monkeypatch.setattr(serial.SerialBoard, "_open", self._open)

    def _flash(self, board: Board, argv: Sequence[str]) -> None:
        self.flashed.append(argv)
        self.close()
        self._machine = QemuMachine(board, Path(argv[-1]))

    def _open(self) -> Port:
        assert self._machine is not None and self._machine.port is not None
        return self._machine.port

    def close(self) -> None:
        if self._machine is not None:
            self._machine.close()
