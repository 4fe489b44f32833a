"""The serial protocol between this computer and the device library, which runs here as a program
under the sanitizers: every command over good and bad lines, restarts, other firmware, silence.
"""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.bench_result import BenchInterrupted
from aotgen.cli.main import call
from aotgen.errors import AotgenError, BoardError, UsageError
from aotgen.ir.interpreter import Instance
from aotgen.runner.base import LinkError
from aotgen.runner.protocol import (
    Frame,
    FrameReader,
    Request,
    firmware_id,
    parse_event,
    parse_hello,
)
from aotgen.runner.select import place_for, runner_for
from aotgen.runner.serial import SerialBoard, flash_argv
from aotgen.runner.serial_link import Refused, SerialLink, SessionLost
from aotgen.runner.serial_model import SerialModel
from aotgen.runner.serial_port import Port, SerialPort, parse_serial
from aotgen.target.board import load_board
from tests.models import model as float_model
from tests.oracles import tflm
from tests.runner.serial_boards import (
    Faults,
    NativeBoard,
    NativePlace,
    compiled,
    int8_model,
    native_device,
)
from tests.tflite.recurrent_models import variable_model

SHAPE = (1, 12, 10, 3)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    return compiled(int8_model(), tmp_path_factory.mktemp("int8"))


@pytest.fixture(scope="module")
def device(project: aotgen.Project) -> Path:
    return native_device(project)


@pytest.fixture
def board(device: Path) -> Iterator[NativeBoard]:
    started = NativeBoard(device)
    yield started
    assert not started.crashed
    started.close()


@pytest.fixture
def place(board: NativeBoard) -> Iterator[NativePlace]:
    with NativePlace(board) as opened:
        yield opened


def drawn(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).integers(-128, 128, SHAPE).astype(np.int8)}


# Frames.


def test_a_frame_on_the_line() -> None:
    """The bytes that docs/serial.md shows."""
    frame = Frame(Request.WRITE, 0x1234, 7, b"abc")
    head = bytes([0x03, 0x34, 0x12, 0x07, 0x00, 0x03, 0x00])
    crc = struct.pack("<I", zlib.crc32(head))[:2]
    tail = struct.pack("<I", zlib.crc32(head + b"abc"))
    assert frame.encode() == b"\xc5" + head + crc + b"abc" + tail


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_found_in_what_is_around_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = [
        Frame(int(rng.integers(256)), int(rng.integers(1 << 16)), n, rng.bytes(rng.integers(40)))
        for n in range(30)
    ]
    data = b"boot\r\n"
    for frame in frames:
        noise = rng.bytes(rng.integers(30)).replace(b"\xc5", b"")
        cut = frame.encode()[: rng.integers(10)]  # the start of a frame whose rest is lost
        data += noise + (cut if rng.random() < 0.3 else b"") + frame.encode()
    reader, found, at = FrameReader(), [], 0
    while at < len(data):
        size = int(rng.integers(1, 50))
        found += reader.feed(data[at : at + size])
        at += size
    found += reader.give_up()
    assert found == frames


def test_no_damaged_frame_passes() -> None:
    whole = Frame(Request.READ | 0x80, 1, 2, bytes(range(40))).encode()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        reader = FrameReader()
        assert [*reader.feed(bytes(damaged)), *reader.give_up()] == []


def test_what_else_the_board_prints_is_kept_for_messages() -> None:
    reader = FrameReader()
    list(reader.feed(b"\xff\x00Hello\r\nfault: CFSR=00000400\r\n\xfe"))
    assert reader.last_text() == "fault: CFSR=00000400"


@pytest.mark.parametrize("data", [b"\1", b"\1\1\4" + bytes(60)])
def test_a_hello_that_makes_no_sense(data: bytes) -> None:
    with pytest.raises(BoardError, match="hello makes no sense"):
        parse_hello(data)


def test_another_version_of_the_protocol() -> None:
    with pytest.raises(BoardError, match=r"speaks version 9 .* flash it"):
        parse_hello(b"\x09" + bytes(60))


def test_an_event_that_makes_no_sense() -> None:
    for data in (b"", b"\0\1", b"\1\1\1\4\1"):
        with pytest.raises(BoardError, match="makes no sense"):
            parse_event(data)


def test_the_firmwares_name_is_the_manifests(project: aotgen.Project) -> None:
    again = json.loads((project.folder / "manifest.json").read_text())
    assert firmware_id(again) == firmware_id(project.info.data)
    again["options"]["opt_level"] = 0
    assert firmware_id(again) != firmware_id(project.info.data)


# Results over a good line.


def test_results_are_the_oracles(project: aotgen.Project, place: NativePlace) -> None:
    for seed in range(3):
        fed = drawn(seed)
        (expected,) = tflm((project.folder / "test/model.tflite").read_bytes(), [fed["x"]])
        np.testing.assert_array_equal(project.run(fed, place)["y"], expected)


def test_layers_with_strides(project: aotgen.Project, place: NativePlace) -> None:
    report = project.validate(per_layer=True, runner=place)
    assert report.ok and len(report.layers) == len(project.info.layers)
    assert all(layer.difference is not None for layer in report.layers)


@pytest.mark.parametrize("untraced", ["the model", "all"])
def test_firmware_without_the_trace_hook(untraced: str, tmp_path: Path) -> None:
    """It runs the model; that no layer can be compared is an error, not a comparison of none."""
    project = compiled(int8_model(), tmp_path)
    macro = f"{project.info.prefix.upper()}_TRACE"
    source = project.folder / "src" / f"{project.info.prefix}.c"
    flags = [f"-U{macro}"] if untraced == "all" else []
    if not flags:
        source.write_text(f"#undef {macro}\n{source.read_text()}")
    board = NativeBoard(native_device(project, *flags))
    with NativePlace(board) as place:
        assert project.validate(runner=place).ok
        with pytest.raises(AotgenError, match=r"reports no layers|without the trace hook"):
            project.validate(per_layer=True, runner=place)
    assert not board.crashed
    board.close()


def test_an_output_that_differs_is_sent_whole(project: aotgen.Project, place: NativePlace) -> None:
    """What is not as expected comes over the line: it is the interpreter's, element by element."""
    from aotgen.loading import load_for

    fed = drawn()
    graph = load_for(project.folder / "test/model.tflite", project.info.options)
    seen: dict[str, np.ndarray] = {}
    Instance(graph).step(fed, observe=lambda value, array: seen.update({value.name: array}))

    def wrong(step: int, layer: int, output: int) -> np.ndarray | None:
        name = project.info.layers[layer].outputs[output]
        return np.zeros_like(seen[name]) if name in seen else None

    with project.placed(place) as placed:
        _, records = placed.trace([project.info.checked_inputs(fed)], wrong)
    compared = 0
    for record in records:
        (name,) = project.info.layers[record.layer].outputs
        if name in seen:
            assert record.data == np.ascontiguousarray(seen[name]).tobytes(), name
            compared += 1
    assert compared >= 4


def test_bench_and_profile(
    project: aotgen.Project, place: NativePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = project.bench(runner=place, number=3, repeat=2, profile=True)
    assert len(result.times_ms) == 2 and result.min_ms > 0 and result.cost is None
    assert [layer.layer for layer in result.layers] == list(range(len(project.info.layers)))
    assert project.bench(runner=place, repeat=1).number > 1  # as many as take 50 ms
    monkeypatch.setattr("aotgen.runner.serial_model._MAX_RUNS", 2)
    assert project.bench(runner=place, repeat=1, number=5).number == 5


def test_memory_of_the_model_is_told(project: aotgen.Project, place: NativePlace) -> None:
    hello = place.link.hello()
    info = project.info
    assert (hello.model, hello.board) == (info.prefix, "cortex-m")
    assert (hello.arena_bytes, hello.state_bytes) == (info.api.arena_bytes, info.api.state_bytes)
    assert (hello.input_bytes, hello.output_bytes) == (360, 5)
    assert hello.layers == len(info.layers) and hello.error == 0


def test_state_lives_from_step_to_step(tmp_path: Path) -> None:
    model, steps = variable_model()
    project = compiled(model, tmp_path)
    board = NativeBoard(native_device(project))
    (name,) = (t.name for t in project.info.inputs)
    expected = tflm(model, [step[0] for step in steps], len(steps))
    with NativePlace(board) as place:
        for _ in range(2):  # a run begins with the initial state
            got = project.run_steps([{name: step[0]} for step in steps], place)
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(next(iter(one.values())), other)
        assert project.validate(per_layer=True, runner=place).ok
        # Each request comes three times: a run of them is one.
        write = place.link.port.write
        place.link.port.write = lambda data: write(3 * data)  # type: ignore[method-assign]
        got = project.run_steps([{name: step[0]} for step in steps], place)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(next(iter(one.values())), other)
        place.link.port.write = write  # type: ignore[method-assign]
        # A restart in the third step: the first two are run again.
        seen = 0

        def restart(_: int) -> None:
            nonlocal seen
            seen += 1
            if seen == 400:
                board.restart()

        board.line.on_byte = restart
        got = project.run_steps([{name: step[0]} for step in steps], place)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(next(iter(one.values())), other)
        assert seen > 600
    board.close()


def test_floats(tmp_path: Path) -> None:
    from onnx import helper

    rng = np.random.default_rng(1)
    constants = {"w": rng.standard_normal((4, 6), np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
        helper.make_node("Add", ["x", "z"], ["s"]),
    ]
    model = float_model(nodes, {"x": (2, 4), "z": (2, 4)}, {"y": (2, 6), "s": (2, 4)}, constants)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    project = aotgen.compile(tmp_path / "m.onnx", board="cortex-m", output=tmp_path / "p")
    board = NativeBoard(native_device(project))
    with NativePlace(board) as place:
        assert project.validate(per_layer=True, runner=place).ok
        assert project.bench(runner=place, number=1, repeat=1, profile=True).layers
    board.close()


def test_a_model_without_inputs(tmp_path: Path) -> None:
    from onnx import helper

    nodes = [helper.make_node("Add", ["a", "a"], ["y"])]
    model = float_model(nodes, {}, {"y": (3,)}, {"a": np.arange(3, dtype=np.float32)})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    project = aotgen.compile(tmp_path / "m.onnx", board="cortex-m", output=tmp_path / "p")
    flag = f"-D{project.info.prefix.upper()}_MLPERF"
    board = NativeBoard(native_device(project, flag))
    with NativePlace(board) as place:
        np.testing.assert_array_equal(project.run({}, place)["y"], [0, 2, 4])
    board.close()


# Damaged lines.

LINES = {
    "drops": Faults(drop=700),
    "flips": Faults(flip=700),
    "doubles": Faults(double=500),
    "delays": Faults(late=500),
    "cuts": Faults(cut=2500),
    "all of it": Faults(drop=2500, flip=2500, double=2500, late=3000, cut=12000),
}


HARDLY_A_LINE = Faults(drop=300, flip=300)


def all_commands(project: aotgen.Project, place: NativePlace) -> None:
    """Everything that a host asks for, with right answers."""
    fed = drawn(5)
    (expected,) = tflm((project.folder / "test/model.tflite").read_bytes(), [fed["x"]])
    np.testing.assert_array_equal(project.run(fed, place)["y"], expected)
    assert project.validate(per_layer=True, runner=place).ok
    assert project.bench(runner=place, number=1, repeat=2, profile=True).layers
    for size in (1, 30, 100):
        data = bytes(n * 7 & 255 for n in range(size))
        assert place.link.request(Request.ECHO, data) == data
    assert place.link.request(Request.STACK, b"\1") == bytes(8)


@pytest.mark.parametrize("name", LINES)
def test_a_bad_line_costs_time_and_nothing_else(
    name: str, project: aotgen.Project, device: Path
) -> None:
    board = NativeBoard(device, replace(LINES[name], seed=1))
    with NativePlace(board) as place:
        all_commands(project, place)
        assert not board.crashed
    board.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 9))
@pytest.mark.parametrize("faults", [*LINES.values(), HARDLY_A_LINE], ids=[*LINES, "hardly a line"])
def test_bad_lines(faults: Faults, seed: int, project: aotgen.Project, device: Path) -> None:
    board = NativeBoard(device, replace(faults, seed=seed))
    with NativePlace(board) as place:
        all_commands(project, place)
    board.close()


@pytest.mark.parametrize("at", [20, 300, 600, 900])
def test_a_restart_in_mid_transfer(
    at: int, project: aotgen.Project, board: NativeBoard, place: NativePlace
) -> None:
    """Wherever it comes, the results are right, and a board that was restarted is noticed."""
    fed = drawn(at)
    (expected,) = tflm((project.folder / "test/model.tflite").read_bytes(), [fed["x"]])
    restarts = []

    def watch(passed: int) -> None:
        if passed == at:
            restarts.append(passed)
            board.restart()

    board.line.on_byte = watch
    got = project.validate([fed], per_layer=True, runner=place)
    assert got.ok and restarts
    np.testing.assert_array_equal(project.run(fed, place)["y"], expected)


def test_a_board_that_is_restarted_again_and_again(
    project: aotgen.Project, board: NativeBoard, place: NativePlace
) -> None:
    board.line.on_byte = lambda passed: board.restart() if passed % 450 == 0 else None
    with pytest.raises(LinkError, match=r"restarted.*watchdog|not answered"):
        project.run_steps([drawn(n) for n in range(8)], place)


def test_a_board_that_dies(
    project: aotgen.Project, board: NativeBoard, place: NativePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a measurement: what was measured is kept."""
    model = place.model(project)
    assert isinstance(model, SerialModel)
    monkeypatch.setattr(place, "model", lambda _: model)
    asked = 0
    ask = place.link.request

    def request(kind: Request, *rest: object, **more: object) -> bytes:
        nonlocal asked
        asked += kind is Request.BENCH
        if asked == 5:  # two warm-up runs, two repeats, and the third
            board.kill()
            more["timeout"] = 0.5
            rest = rest[:1]
        return ask(kind, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(place.link, "request", request)
    with pytest.raises(BenchInterrupted, match=r"not answered .* after 2 of 5 repeats") as caught:
        project.bench(runner=place, number=1, repeat=5)
    assert len(caught.value.results[0].times_ms) == 2


def received(port: Port, count: int) -> list[Frame]:
    """The next frames from the board, and what else comes soon."""
    reader, found = FrameReader(), []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += reader.feed(port.read(0.1))
    return [*found, *reader.feed(port.read(0.2))]


def test_requests_that_come_twice_or_late(
    project: aotgen.Project, place: NativePlace, board: NativeBoard
) -> None:
    """The reply is sent again; an old request gets none."""
    link = place.link
    link.hello()
    data = drawn()["x"].tobytes()
    crc = struct.pack("<I", zlib.crc32(data))
    link.request(Request.WRITE, struct.pack("<HI", 0, 0) + data)
    first = link.request(Request.RUN, crc)
    session, sequence = link._session, link._sequence
    again = Frame(Request.RUN, session, sequence, crc).encode()
    port = link.port
    port.write(again + again)
    assert [r.payload for r in received(port, 2)] == [b"\0" + first] * 2
    old = Frame(Request.RESET, session, sequence - 1).encode()
    other = Frame(Request.RESET, session ^ 1, 1).encode()
    port.write(old + other)
    (lost,) = received(port, 1)
    assert lost.session == session ^ 1 and lost.payload == b"\1"
    link._session ^= 1
    with pytest.raises(SessionLost):
        link.request(Request.RESET)


def test_a_second_host_ends_a_traced_run(project: aotgen.Project, place: NativePlace) -> None:
    """It is answered when the run has ended."""
    link = place.link
    link.hello()
    data = drawn()["x"].tobytes()
    link.request(Request.WRITE, struct.pack("<HI", 0, 0) + data)
    event = parse_event(link.request(Request.TRACE, struct.pack("<I", zlib.crc32(data))))
    assert event.layer == 0  # type: ignore[union-attr]
    with pytest.raises(Refused, match="traced run"):
        link.request(Request.WRITE, struct.pack("<HI", 0, 0) + data)
    assert project.validate(per_layer=True, runner=place).ok
    with pytest.raises(Refused, match="traced run"):
        link.request(Request.NEXT)


@pytest.mark.parametrize(
    "request_, payload, words",
    [
        (Request.WRITE, struct.pack("<HI", 0, 359) + b"ab", "no such tensor"),
        (Request.WRITE, struct.pack("<HI", 0, 0xFFFFFFFF) + b"ab", "no such tensor"),
        (Request.WRITE, struct.pack("<HI", 1, 0) + b"ab", "no such tensor"),
        (Request.WRITE, b"abc", "does not know the request"),
        (Request.READ, struct.pack("<HIH", 0, 4, 2), "no such tensor"),
        (Request.READ, struct.pack("<HIH", 1, 0, 1), "no such tensor"),
        (Request.READ, struct.pack("<HIH", 0, 0, 600), "no such tensor"),
        (Request.RUN, b"", "does not know the request"),
        (Request.RUN, b"abcd", "other inputs"),
        (Request.VIEW, struct.pack("<IH", 0, 1), "traced run"),
        (Request.ECHO, bytes(512), "does not know the request"),
        (Request.BENCH, b"", "does not know the request"),
        (Request.PROFILE, b"", "does not know the request"),
        (Request.STACK, b"", "does not know the request"),
        (Request.WEIGHTS, b"", "does not know the request"),
    ],
)
def test_requests_that_make_no_sense(
    request_: Request, payload: bytes, words: str, place: NativePlace
) -> None:
    place.link.hello()
    with pytest.raises(Refused, match=words):
        place.link.request(request_, payload)


def test_an_unknown_request_is_answered(place: NativePlace) -> None:
    link = place.link
    link.hello()
    link.port.write(Frame(0x55, link._session, link._sequence + 1).encode())
    (reply,) = received(link.port, 1)
    assert (reply.type, reply.payload) == (0xD5, b"\2")


def test_random_bytes_do_no_harm(
    project: aotgen.Project, place: NativePlace, board: NativeBoard
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        noise = rng.bytes(300) + Frame(*rng.integers(256, size=3).tolist()).encode()
        place.link.port.write(noise + b"\xc5" * int(rng.integers(4)))
        assert place.link.hello().layers == len(project.info.layers)
    np.testing.assert_array_equal(project.run(drawn(), place)["y"].shape, (1, 5))


def test_a_restart_on_request(place: NativePlace) -> None:
    place.link.hello()
    place.link.request(Request.RESTART)
    time.sleep(0.2)
    with pytest.raises(SessionLost):
        place.link.request(Request.RESET)
    assert place.link.hello().error == 0


# Boards that do not answer, or run something else.


def test_a_board_that_never_answers() -> None:
    master, slave = pty.openpty()
    device = os.ttyname(slave)
    link = SerialLink(SerialPort(device, 9600))
    start = time.monotonic()
    with pytest.raises(LinkError, match=r"no board answers at .*, 9600 baud; check the cable"):
        link.hello(timeout=1.0)
    assert time.monotonic() - start < 10.0
    os.write(master, b"\x00\xffmain: starting\r\n")
    with pytest.raises(LinkError, match="it printed 'main: starting'"):
        link.hello(timeout=0.5)
    os.close(slave)
    os.close(master)
    with pytest.raises(LinkError, match=r"the connection to .* broke"):
        link.hello(timeout=0.5)
    link.close()
    link.close()


def test_a_board_that_echoes() -> None:
    """Such as one in a boot loader: its echo is no answer."""
    master, slave = pty.openpty()
    port = SerialPort(os.ttyname(slave), 115200)
    link = SerialLink(port)
    write = port.write
    port.write = lambda data: (write(data), os.write(master, data))[0]  # type: ignore[method-assign]
    with pytest.raises(LinkError, match="no board answers"):
        link.hello(timeout=0.7)
    link.close()
    os.close(slave)
    os.close(master)


def test_a_board_with_another_model(place: NativePlace, tmp_path: Path) -> None:
    model, _ = variable_model()
    other = compiled(model, tmp_path / "other")
    assert other.info.prefix == "model"
    with pytest.raises(BoardError, match=r"runs .* not the firmware of .*; build .* and flash it"):
        other.run({}, place) if not other.info.inputs else other.validate(runner=place)
    same = compiled(int8_model(seed=9), tmp_path / "again")
    with pytest.raises(BoardError, match="runs another version of it"):
        same.validate(runner=place)


def test_a_crash_is_told() -> None:
    master, slave = pty.openpty()
    link = SerialLink(SerialPort(os.ttyname(slave), 115200))
    fault = Frame(0xFF, 0, 0, b"\0" + struct.pack("<II", 0x1234, 0x400) + b"bus fault")
    os.write(master, fault.encode())
    with pytest.raises(BoardError, match=r"crashed: bus fault at address 0x00001234 \(CFSR 0x0000"):
        link.hello()
    link.close()
    os.close(slave)
    os.close(master)


# Ports and specs.


@pytest.mark.parametrize(
    "spec, device, baud",
    [
        ("serial:/dev/ttyUSB0", "/dev/ttyUSB0", 115200),
        ("serial:/dev/ttyACM1:921600", "/dev/ttyACM1", 921600),
        (
            "serial:/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0:9600",
            "/dev/serial/by-path/pci-0000:00:14.0-usb-0:1:1.0-port0",
            9600,
        ),
    ],
)
def test_specs(spec: str, device: str, baud: int) -> None:
    assert parse_serial(spec) == (device, baud)


@pytest.mark.parametrize("spec", ["serial:", "serial: ", "serial:/dev/ttyX:7"])
def test_malformed_specs(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_serial(spec)


def test_ports_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BoardError, match=r"there is no serial port .*; check the cable"):
        SerialPort(str(tmp_path / "ttyUSB7"), 115200)
    with pytest.raises(BoardError, match="/dev/null is no serial port"):
        SerialPort("/dev/null", 115200)
    master, slave = pty.openpty()
    device = os.ttyname(slave)
    first = SerialPort(device, 115200)
    with pytest.raises(BoardError, match=r"another program has .* open; close it \(`fuser"):
        SerialPort(device, 115200)
    first.close()
    SerialPort(device, 115200).close()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("serial.Serial", refused)
    with pytest.raises(BoardError, match=r"you may not open .*dialout"):
        SerialPort(device, 115200)
    os.close(slave)
    os.close(master)


def test_the_exit_code_of_a_board_that_is_not_there(
    project: aotgen.Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **drawn())
    files = ["-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    port = ["--runner", f"serial:{tmp_path}/ttyUSB0"]
    for words in (["run", *files], ["validate"], ["bench"]):
        assert call([words[0], str(project.folder), *words[1:], *port]) == 3
        assert "there is no serial port" in capsys.readouterr().err


def test_selection() -> None:
    m4, generic, pi = (load_board(n) for n in ("mps2-an386", "cortex-m", "rpi4"))
    assert place_for(None, m4).name == "qemu"
    assert place_for("serial:/dev/ttyX", generic).name == "serial:/dev/ttyX"
    for spec, words in (
        (None, "which serial port"),
        ("qemu", "has no emulator"),
        ("local", "does not reach"),
        ("ssh://a@b", "does not reach"),
    ):
        with pytest.raises(UsageError, match=words):
            place_for(spec, generic)
    with pytest.raises(UsageError, match="is for microcontrollers"):
        place_for("serial:/dev/ttyX", pi)
    with pytest.raises(UsageError, match="where no programs run"):
        runner_for("qemu", m4)


def test_options_that_a_microcontroller_lacks(project: aotgen.Project, place: NativePlace) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: project.run(drawn(), place, cores="big"),
        lambda: project.bench(runner=place, cores="all"),
        lambda: project.bench(runner=place, sysfs_root="/tmp"),
        lambda: project.run(drawn(), place, threads=2),
    ]
    for use in wrong:
        with pytest.raises(UsageError):
            use()


# Flashing.


def with_flash(project: aotgen.Project, *command: str) -> aotgen.Project:
    return aotgen.Project(project.folder, replace(project.board, flash_command=command))


def test_a_board_tells_how_it_is_flashed(tmp_path: Path) -> None:
    text = 'extends = "cortex-m4"\n[flash]\ncommand = ["pyocd", "load", "{elf}"]\n'
    (tmp_path / "board.toml").write_text(text)
    assert load_board(tmp_path).flash_command == ("pyocd", "load", "{elf}")
    assert load_board("cortex-m4").flash_command == ()


def test_flash_commands(project: aotgen.Project, device: Path, tmp_path: Path) -> None:
    board = NativeBoard(device)
    mark = tmp_path / "flashed"
    flashing = with_flash(project, "sh", "-c", f"echo x >> {mark}")
    spec = f"serial:{board.line.device}:4000000"
    with SerialBoard(spec) as place:
        for _ in range(2):
            flashing.run(drawn(), place)
    assert mark.read_text() == "x\n"
    with SerialBoard(spec) as place, pytest.raises(BoardError, match="failed: no probe; the comm"):
        with_flash(project, "sh", "-c", "echo no probe >&2; exit 1").run(drawn(), place)
    with SerialBoard(spec) as place, pytest.raises(AotgenError, match="is not installed"):
        with_flash(project, "no-such-flasher").run(drawn(), place)
    with pytest.raises(UsageError, match=r"asks for \{elf\}, which is not built"):
        flash_argv(project, ["openocd", "program {elf}"], "/dev/ttyX")
    board.close()


# MLPerf Tiny's commands.


@pytest.fixture(scope="module")
def mlperf_device(project: aotgen.Project, device: Path) -> Path:
    prefix = project.info.prefix.upper()
    flags = (f"-D{prefix}_MLPERF", f'-D{prefix}_MLPERF_MODEL="kws01"')
    kept = device.read_bytes()
    program = native_device(project, *flags).rename(device.with_name("mlperf"))
    device.write_bytes(kept)
    device.chmod(0o755)
    return program


class Terminal:
    """What the benchmark's runner is to the board."""

    def __init__(self, board: NativeBoard) -> None:
        self.port = SerialPort(board.line.device, 115200)
        # The board's own m-ready comes first, unless it came before we were there.
        self._ask("name%", b"]\r\nm-ready\r\n")

    def _ask(self, command: str, end: bytes) -> str:
        self.port.write(command.encode())
        text, until = b"", time.monotonic() + 60
        while not text.endswith(end) and time.monotonic() < until:
            text += self.port.read(0.1)
        return text.decode("ascii")

    def answer(self, command: str) -> list[str]:
        """The lines up to m-ready."""
        *lines, ready, end = self._ask(command, b"m-ready\r\n").split("\r\n")
        assert (ready, end) == ("m-ready", "")
        return lines


def test_a_session_of_the_benchmark(project: aotgen.Project, mlperf_device: Path) -> None:
    board = NativeBoard(mlperf_device)
    terminal = Terminal(board)
    assert terminal.answer("name%") == ["m-name-dut-[cortex-m]"]
    assert terminal.answer("profile%") == [
        "m-profile-[ULPMark for tinyML Firmware V0.0.1]",
        "m-model-[kws01]",
    ]
    (lap,) = terminal.answer("timestamp%")
    assert re.fullmatch(r"m-lap-us-\d+", lap)
    data = drawn(3)["x"].tobytes()
    assert terminal.answer("db load 360%") == ["m-[Expecting 360 bytes]"]
    for start in range(0, 360, 36):
        done = terminal.answer(f"db {data[start : start + 36].hex()}%")
    assert done == ["m-load-done"]
    printed = terminal.answer("db print%")
    assert printed[0] == "m-buffer-" + "-".join(f"{byte:02x}" for byte in data[:8])
    assert len(printed) == 45
    lines = terminal.answer("infer 3 1%")
    shown = [re.sub(r"lap-us-\d+", "lap-us-N", line) for line in lines[:-1]]
    assert shown == [
        "m-warmup-start-1",
        "m-warmup-done",
        "m-infer-start-3",
        "m-lap-us-N",
        "m-lap-us-N",
        "m-infer-done",
    ]
    (y,) = tflm((project.folder / "test/model.tflite").read_bytes(), [drawn(3)["x"]])
    real = (y.astype(np.int32).reshape(-1) + 128) / 256
    # Halves of a thousandth go up, as a board's own printf may or may not.
    assert (
        lines[-1]
        == f"m-results-[{','.join(f'{np.floor(v * 1000 + 0.5) / 1000:.3f}' for v in real)}]"
    )
    assert terminal.answer("results%") == lines[-1:]
    assert terminal.answer("bogus%") == ["e-[Unknown command: bogus]"]
    assert terminal.answer("db load 361%") == ["e-[The model's inputs have 360 bytes]"]
    assert terminal.answer("db 00%") == ["e-[No load: use db load N]"]
    assert terminal.answer("x" * 200 + "%") == ["e-[A command has at most 80 characters]"]
    terminal.port.close()
    # The same firmware speaks frames.
    with NativePlace(board) as place:
        assert project.validate(per_layer=True, runner=place).ok
    board.close()


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_compiler_has_complaints(compiler: str, project: aotgen.Project) -> None:
    from tests.support import require_tool

    require_tool(compiler)
    folder = project.folder
    for path in sorted((folder / "firmware").glob("*.c")):
        for more in (["-O2"], ["-Os", f"-D{project.info.prefix.upper()}_MLPERF"]):
            done = subprocess.run(
                [compiler, "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror"]
                + [*more, f"-I{folder}/include", f"-I{folder}/firmware", "-c", str(path)]
                + ["-o", "/dev/null"],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
