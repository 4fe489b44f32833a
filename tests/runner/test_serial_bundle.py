"""The firmware of a bundle: one program that serves each model to a host, over good and bad lines,
and on an emulated board.
"""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import BoardError
from aotgen.runner.protocol import Request, parse_event, parse_hello
from aotgen.runner.qemu_system import EMULATOR
from aotgen.runner.serial_link import Refused
from tests.oracles import tflm
from tests.runner.serial_boards import (
    Faults,
    NativeBoard,
    NativePlace,
    compiled,
    int8_model,
    native_device,
)
from tests.runner.test_serial import Terminal
from tests.support import require_tool
from tests.tflite.recurrent_models import variable_model

SHAPE = (1, 12, 10, 3)


def drawn(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).integers(-128, 128, SHAPE).astype(np.int8)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> aotgen.Bundle:
    """Two models of one shape, one that keeps state, and one whose constants the first has, too."""
    folder = tmp_path_factory.mktemp("models")
    contents = {"small": int8_model(), "large": int8_model(0, 16), "window": variable_model()[0]}
    for name, content in contents.items():
        (folder / f"{name}.tflite").write_bytes(content)
    files = {name: folder / f"{name}.tflite" for name in contents}
    files["twin"] = files["small"]
    return aotgen.bundle(files, "cortex-m", folder / "four", share_arena=True)


@pytest.fixture(scope="module")
def device(bundle: aotgen.Bundle) -> Path:
    return native_device(bundle.project("small"))


@pytest.fixture
def place(device: Path) -> Iterator[NativePlace]:
    board = NativeBoard(device)
    with NativePlace(board) as opened:
        yield opened
    assert not board.crashed
    board.close()


def test_each_model_is_the_oracles(bundle: aotgen.Bundle, place: NativePlace) -> None:
    """In turns over one link: arena and state of the one are no matter to the next."""
    for seed in range(2):
        for name in ("large", "small"):
            project = bundle.project(name)
            file = (project.folder / "test/model.tflite").read_bytes()
            (want,) = tflm(file, [drawn(seed)["x"]])
            np.testing.assert_array_equal(project.run(drawn(seed), place)["y"], want)
        assert bundle.project("window").validate(per_layer=True, runner=place).ok
    assert bundle.project("large").validate(per_layer=True, runner=place).ok


def test_constants_that_two_models_have(bundle: aotgen.Bundle, place: NativePlace) -> None:
    """Both find them, and tell their CRCs."""
    assert bundle.manifest["shared_weights_bytes"] > 0
    for name in ("small", "twin"):
        report = bundle.project(name).validate(per_layer=True, runner=place)
        assert report.ok and [check.weights_ok for check in report.layers].count(True) > 2


def test_state_begins_anew_with_each_session(bundle: aotgen.Bundle, place: NativePlace) -> None:
    """Another model's run in between leaves nothing behind."""
    project = bundle.project("window")
    model, steps = variable_model()
    expected = tflm(model, [step[0] for step in steps], len(steps))
    (name,) = (tensor.name for tensor in project.info.inputs)
    for _ in range(2):
        got = project.run_steps([{name: step[0]} for step in steps], place)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(next(iter(one.values())), other)
        bundle.project("small").run(drawn(1), place)


def test_bench_and_profile_are_the_chosen_models(bundle: aotgen.Bundle, place: NativePlace) -> None:
    for name in bundle.models:
        project = bundle.project(name)
        result = project.bench(runner=place, number=2, repeat=2, profile=True)
        assert result.name == name
        assert [layer.name for layer in result.layers] == [x.name for x in project.info.layers]


def test_what_the_board_tells(bundle: aotgen.Bundle, place: NativePlace) -> None:
    """A hello is that of the first model and says that there are others."""
    told = list(place.link.models(place.link.hello()))
    assert [hello.model for hello in told] == bundle.models
    for hello in told:
        data = bundle.project(hello.model).info.data
        assert hello.choice and hello.traces and hello.error == 0
        assert hello.arena_bytes == data["arena_bytes"]
        assert hello.state_bytes == data["state_bytes"]
        assert hello.weights_bytes == data["weights_bytes"]
        assert hello.layers == len(data["layers"])
    with pytest.raises(Refused, match="no such tensor"):
        place.link.request(Request.SELECT, struct.pack("<H", len(told)))
    with pytest.raises(Refused, match="does not know the request"):
        place.link.request(Request.SELECT, b"\0")
    # A new session begins with the first model, whatever the last one had chosen.
    assert place.link.hello().model == bundle.models[0]


def test_a_second_host_while_another_model_is_traced(
    bundle: aotgen.Bundle, place: NativePlace
) -> None:
    """The first model begins when the run of the other one has ended: they share their memory."""
    link = place.link
    link.hello()
    link.request(Request.SELECT, struct.pack("<H", bundle.models.index("large")))
    data = drawn(0)["x"].tobytes()
    link.request(Request.WRITE, struct.pack("<HI", 0, 0) + data)
    event = parse_event(link.request(Request.TRACE, struct.pack("<I", zlib.crc32(data))))
    assert event.layer == 0  # type: ignore[union-attr]
    with pytest.raises(Refused, match="traced run"):
        link.request(Request.SELECT, struct.pack("<H", 0))
    assert bundle.project("small").validate(per_layer=True, runner=place).ok


@pytest.mark.parametrize("seed", [0, 1])
def test_bad_lines(bundle: aotgen.Bundle, device: Path, seed: int) -> None:
    faults = Faults(drop=900, flip=900, double=900, seed=seed)
    board = NativeBoard(device, faults)
    with NativePlace(board) as place:
        for name in ("large", "small"):
            assert bundle.project(name).validate(per_layer=True, runner=place).ok
    board.close()


def test_a_restart_finds_the_model_again(bundle: aotgen.Bundle, place: NativePlace) -> None:
    """In mid transfer: the board knows no session and begins with its first model."""
    restarts = []

    def watch(passed: int) -> None:
        if passed == 800:
            restarts.append(passed)
            place.board.restart()

    place.board.line.on_byte = watch
    assert bundle.project("large").validate(per_layer=True, runner=place).ok and restarts


def test_a_model_that_the_board_has_not(
    bundle: aotgen.Bundle, place: NativePlace, tmp_path: Path
) -> None:
    other = compiled(int8_model(7), tmp_path)
    with pytest.raises(
        BoardError, match=r"runs 'small', 'large', 'window', 'twin' .*not the firmware of"
    ):
        other.validate(runner=place)
    path = tmp_path / "large.tflite"
    path.write_bytes(int8_model(2, 16))
    made = aotgen.bundle({"large": path}, "cortex-m", tmp_path / "one")
    with pytest.raises(BoardError, match="runs another version of it"):
        made.project("large").validate(runner=place)


def test_commands_of_the_benchmark(bundle: aotgen.Bundle, device: Path) -> None:
    """They are of the model that `model NAME` has chosen; the first to begin with."""
    kept = device.read_bytes()
    program = native_device(
        bundle.project("small"), "-DFOUR_MLPERF", '-DLARGE_MLPERF_MODEL="vww01"'
    ).rename(device.with_name("mlperf"))
    device.write_bytes(kept)
    device.chmod(0o755)
    board = NativeBoard(program)
    terminal = Terminal(board)
    assert terminal.answer("profile%")[1] == "m-model-[small]"
    assert terminal.answer("model none%") == ["e-[No such model]"]
    assert terminal.answer("model large%") == []
    assert terminal.answer("profile%")[1] == "m-model-[vww01]"
    assert terminal.answer("db load 360%") == ["m-[Expecting 360 bytes]"]
    data = drawn(3)["x"].tobytes()
    for start in range(0, 360, 36):
        done = terminal.answer(f"db {data[start : start + 36].hex()}%")
    assert done == ["m-load-done"]
    file = (bundle.project("large").folder / "test/model.tflite").read_bytes()
    (y,) = tflm(file, [drawn(3)["x"]])
    real = (y.astype(np.int32).reshape(-1) + 128) / 256
    words = [f"{np.floor(v * 1000 + 0.5) / 1000:.3f}" for v in real]
    assert terminal.answer("infer 1%")[-1] == f"m-results-[{','.join(words)}]"
    terminal.port.close()
    with NativePlace(board) as place:
        assert bundle.project("window").validate(per_layer=True, runner=place).ok
    board.close()


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_compiler_has_complaints(compiler: str, bundle: aotgen.Bundle) -> None:
    require_tool(compiler)
    folder = bundle.folder
    for path in sorted((folder / "firmware").glob("*.c")):
        for more in (["-O2"], ["-Os", "-DFOUR_MLPERF", "-DLARGE_TRACE"]):
            done = subprocess.run(
                [compiler, "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror"]
                + [*more, f"-I{folder}/include", f"-I{folder}/firmware", "-c", str(path)]
                + ["-o", "/dev/null"],
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("weights", ["asm", "bin"])
def test_one_image_with_one_arena(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An emulated board: the verbs name a model, and the image has one arena for all."""
    require_tool("arm-none-eabi-gcc", "arm-none-eabi-nm", EMULATOR)
    words = []
    for name, content in {"small": int8_model(), "large": int8_model(1, 16)}.items():
        (tmp_path / f"{name}.tflite").write_bytes(content)
        words.append(str(tmp_path / f"{name}.tflite"))
    out = str(tmp_path / "two")
    given = ["bundle", *words, "--board", "mps2-an386", "--weights", weights, "-o", out]
    assert call(given) == 0
    for name in ("small", "large"):
        assert call(["validate", out, "--model", name, "--per-layer", "--runner", "qemu"]) == 0
    capsys.readouterr()
    assert call(["bench", out, "--model", "large", "--repeat", "1", "--profile"]) == 0
    assert re.search(r"M instructions a run", capsys.readouterr().out)
    made = aotgen.Bundle(out)
    (image,) = Path(out).rglob("*.elf")
    assert image.name == "two_firmware.elf"
    argv = ["arm-none-eabi-nm", "-S", str(image)]
    table = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    arenas = [int(size, 16) for size in re.findall(r"^\w+ (\w+) b arena$", table, flags=re.M)]
    assert arenas == [max(made.project(m).info.api.arena_bytes for m in made.models)]


def test_the_only_model_need_not_be_named(tmp_path: Path) -> None:
    (tmp_path / "small.tflite").write_bytes(int8_model())
    made = aotgen.bundle([tmp_path / "small.tflite"], "cortex-m", tmp_path / "one")
    project = aotgen.Project(made.folder)
    assert project.info.prefix == "small"
    board = NativeBoard(native_device(project))
    with NativePlace(board) as place:
        hello = place.link.hello()
        assert not hello.choice and hello.model == "small"
        assert project.validate(runner=place).ok
    board.close()


def test_an_old_firmware_has_one_model() -> None:
    """The flag of a choice was never set before there was one."""
    head = struct.pack("<BBBHH16si7I", 1, 3, 4, 512, 5, bytes(16), 0, 1000, *[0] * 6)
    hello = parse_hello(head + b"kws\0board\0core\0" + b"0.1\0")
    assert not hello.choice and hello.traces
