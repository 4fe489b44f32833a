"""Microcontroller boards under QEMU, whose serial line is a pseudo-terminal: the verbs, faults and
what is left behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError, ToolchainError
from aotgen.runner.base import LinkError
from aotgen.runner.qemu_system import EMULATOR, QemuMachine
from aotgen.runner.serial import QemuBoard
from aotgen.runner.serial_link import SerialLink
from aotgen.runner.serial_model import SerialModel
from aotgen.runner.serial_port import SerialPort
from tests.oracles import tflm
from tests.runner.serial_boards import Faults, FaultyLine, compiled, int8_model
from tests.support import require_tool

SHAPE = (1, 12, 10, 3)

TICK_MS = 60e-6
"""A little more than a tick of the boards' clocks, which are all that two runs differ by."""


def drawn(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).integers(-128, 128, SHAPE).astype(np.int8)}


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    require_tool("arm-none-eabi-gcc", EMULATOR)


@pytest.fixture(scope="module")
def m4(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    project = compiled(int8_model(), tmp_path_factory.mktemp("m4"), "mps2-an386")
    project.firmware()
    return project


@pytest.fixture(scope="module")
def program(m4: aotgen.Project) -> Path:
    return m4.firmware().program("firmware")


@pytest.fixture
def place() -> Iterator[QemuBoard]:
    with QemuBoard() as opened:
        yield opened


def emulators(program: Path) -> list[str]:
    """Process ids of the emulators that run a firmware."""
    argv = ["pgrep", "-f", f"{EMULATOR}.*{program}"]
    return subprocess.run(argv, capture_output=True, text=True).stdout.split()


def expected_of(project: aotgen.Project, fed: dict[str, np.ndarray]) -> np.ndarray:
    (result,) = tflm((project.folder / "test/model.tflite").read_bytes(), [fed["x"]])
    return result


@pytest.mark.parametrize("board", ["mps2-an500", "mps3-an547"])
def test_other_boards(board: str, tmp_path: Path, place: QemuBoard) -> None:
    project = compiled(int8_model(seed=1), tmp_path, board)
    assert project.validate(per_layer=True, runner=place).ok
    result = project.bench(runner=place, repeat=2, profile=True)
    assert result.cost is not None and result.layers
    assert result.stack_bytes is not None and 100 < result.stack_bytes < 5000
    assert result.max_ms - result.min_ms <= TICK_MS


def test_the_command_line(
    m4: aotgen.Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed, got = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(fed, **drawn(2))
    folder = str(m4.folder)
    assert call(["run", folder, "-i", str(fed), "-o", str(got)]) == 0
    np.testing.assert_array_equal(np.load(got)["y"], expected_of(m4, drawn(2)))
    assert call(["validate", folder, "--per-layer", "--runner", "qemu"]) == 0
    assert "same within" in capsys.readouterr().out
    assert call(["bench", folder, "--profile", "--repeat", "2"]) == 0
    out, err = capsys.readouterr()
    assert "times under QEMU say nothing about the board" in err
    assert re.search(r"^\d+\.\d{3} M instructions a run$", out, re.MULTILINE)
    assert out.splitlines()[-1].startswith("Mean inference time")


def test_instructions_are_the_same_in_each_run(m4: aotgen.Project, place: QemuBoard) -> None:
    told = [
        json.loads(json.dumps(m4.bench(runner=place, repeat=2, profile=True).as_dict()))
        for _ in range(2)
    ]
    counts = [entry["instructions"] for entry in told]
    assert abs(counts[0] - counts[1]) <= 1 and counts[0] > 10_000
    times = [ms for entry in told for ms in entry["times_ms"]]
    assert max(times) - min(times) <= TICK_MS
    layers = [[layer["instructions"] for layer in entry["layers"]] for entry in told]
    assert all(abs(a - b) <= 1 and a > 0 for a, b in zip(*layers, strict=True))
    # What the trace hook adds to each layer is little.
    hooks = 300 * len(layers[0])
    assert counts[0] - 300 < sum(layers[0]) < counts[0] + hooks
    # Ten runs are ten times as many, the clock's granularity aside.
    ten = m4.bench(runner=place, number=10, repeat=1).cost
    assert ten is not None and abs(ten.counts.instructions - counts[0]) <= 1
    assert ten.as_dict() == {"instructions": ten.counts.instructions}


def changed(project: aotgen.Project, folder: Path) -> aotgen.Project:
    """A copy of the project, to be changed before it is built."""
    shutil.copytree(project.folder, folder, ignore=shutil.ignore_patterns("build"))
    return aotgen.Project(folder)


def test_a_changed_bit_in_a_layers_output_is_named(
    m4: aotgen.Project, place: QemuBoard, tmp_path: Path
) -> None:
    layer = len(m4.info.layers) // 2
    project = changed(m4, tmp_path / "p")
    source = project.folder / "src" / f"{project.info.prefix}.c"
    text, found = re.subn(
        rf"^( *)(TRACE\({layer}, \d+, (.*)\);)$",
        r"\1*(int8_t *)(uintptr_t)(\3) ^= 1;\n\1\2",
        source.read_text(),
        flags=re.MULTILINE,
    )
    assert found == 1
    source.write_text(text)
    report = project.validate(per_layer=True, runner=place)
    bad = report.first_bad_layer
    assert not report.ok and bad is not None and bad.index == layer
    assert bad.difference is not None and bad.difference.max_abs == 1


def test_a_changed_bit_of_a_weight_is_named(
    m4: aotgen.Project, place: QemuBoard, tmp_path: Path
) -> None:
    crcs = [layer.weights_crc for layer in m4.info.layers]
    layer = max(n for n, crc in enumerate(crcs) if crc)
    project = changed(m4, tmp_path / "p")
    path = project.folder / "src/weights.bin"
    data = bytearray(path.read_bytes())
    header = (project.folder / "src/weights.h").read_text()
    offset = int(re.findall(rf"#define W_L{layer:02d}_\w+ (\d+)u", header)[0])
    data[offset] ^= 1
    path.write_bytes(data)
    report = project.validate(per_layer=True, runner=place)
    bad = report.first_bad_layer
    assert bad is not None and bad.index == layer and bad.weights_ok is False
    assert [n for n, check in enumerate(report.layers) if check.weights_ok is False] == [layer]


def test_a_bad_line_to_an_emulated_board(m4: aotgen.Project, program: Path) -> None:
    machine = QemuMachine(m4.board, program)
    assert machine.port is not None
    wire = os.dup(machine.port._fd)
    line = FaultyLine(wire, wire, Faults(drop=1500, flip=1500, double=1500, seed=4))
    model = SerialModel(
        m4.info, m4.board, SerialLink(SerialPort(line.device, 115200)), "proxied", 64.0
    )
    inputs = m4.info.checked_inputs(drawn(7))
    try:
        np.testing.assert_array_equal(model.run([inputs])[0]["y"], expected_of(m4, drawn(7)))
        outputs, records = model.trace([inputs], lambda *_: None)
        np.testing.assert_array_equal(outputs[0]["y"], expected_of(m4, drawn(7)))
        assert [r.layer for r in records] == list(range(len(m4.info.layers)))
        crcs = {n: layer.weights_crc for n, layer in enumerate(m4.info.layers) if layer.weights_crc}
        assert model.weight_crcs() == crcs
    finally:
        line.close()
        os.close(wire)
        machine.close()


@pytest.mark.parametrize("after", [2, 4])
def test_the_boards_reset_in_mid_transfer(after: int, m4: aotgen.Project, place: QemuBoard) -> None:
    model = place.model(m4)
    assert isinstance(model, SerialModel) and place.machine is not None
    port, sent = place.machine.port, 0
    assert port is not None
    write = port.write

    def resetting(data: bytes) -> None:
        nonlocal sent
        sent += 1
        if sent == after and place.machine is not None:
            place.machine.reset()
        write(data)

    port.write = resetting  # type: ignore[method-assign]
    inputs = m4.info.checked_inputs(drawn(3))
    np.testing.assert_array_equal(model.run([inputs])[0]["y"], expected_of(m4, drawn(3)))
    assert sent > 6


def test_a_crash_is_told_by_the_board(m4: aotgen.Project, place: QemuBoard, tmp_path: Path) -> None:
    """By its fault handler; the board is of use again afterwards."""
    project = changed(m4, tmp_path / "p")
    source = project.folder / "src" / f"{project.info.prefix}.c"
    text, found = re.subn(
        r"^( *)(TRACE\(1, )",
        r'\1if (ctx->trace != NULL) __asm__ volatile("udf #0");\n\1\2',
        source.read_text(),
        flags=re.MULTILINE,
    )
    assert found == 1
    source.write_text(text)
    with project.placed(place) as model:
        inputs = project.info.checked_inputs(drawn())
        with pytest.raises(BoardError, match=r"crashed: .* at address 0x\w+ \(CFSR 0x00010000\)"):
            model.trace([inputs], lambda *_: None)
        np.testing.assert_array_equal(model.run([inputs])[0]["y"], expected_of(m4, drawn()))


def test_the_stack_is_measured(m4: aotgen.Project, program: Path) -> None:
    import struct

    from aotgen.runner.protocol import Request

    machine = QemuMachine(m4.board, program)
    try:
        assert machine.port is not None
        link = SerialLink(machine.port)
        hello = link.hello()
        used, size = struct.unpack("<II", link.request(Request.STACK, b"\1"))
        assert 0 < used < size == hello.stack_bytes
    finally:
        machine.close()


def test_an_emulator_that_ends(m4: aotgen.Project, place: QemuBoard) -> None:
    model = place.model(m4)
    inputs = m4.info.checked_inputs(drawn())
    model.run([inputs])
    assert place.machine is not None and place.machine._process is not None
    place.machine._process.kill()
    with pytest.raises(LinkError, match=f"{EMULATOR} ended"):
        model.run([inputs])


def test_an_emulator_that_does_not_start(
    m4: aotgen.Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.elf"
    with pytest.raises(BoardError, match=rf"{EMULATOR} ended: .*broken.elf"):
        QemuMachine(m4.board, broken)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="not installed"):
        QemuMachine(m4.board, broken)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(number: signal.Signals, m4: aotgen.Project, program: Path) -> None:
    if number is signal.SIGKILL:
        require_tool("setpriv")
    argv = ["-m", "aotgen", "bench", str(m4.folder), "--number", "60000"]
    process = subprocess.Popen(
        [sys.executable, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while not emulators(program) and time.monotonic() < until:
        time.sleep(0.05)
    assert emulators(program)
    time.sleep(0.3)
    process.send_signal(number)
    process.communicate(timeout=60)
    until = time.monotonic() + 60
    while emulators(program) and time.monotonic() < until:
        time.sleep(0.05)
    assert not emulators(program)
