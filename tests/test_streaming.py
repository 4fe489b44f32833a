"""Streaming: steps on new frames against the same network on the whole recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from e2e.quick_build import QuickModel
from streaming_nets import (
    Builder,
    TimeNet,
    causal_tcn,
    classifier,
    mixed_ops,
    random_net,
    recurrent,
    short_windows,
    strided_maps,
    valid_tcn,
)

import aotgen
from aotgen.cli.main import call
from aotgen.codegen.project import generate
from aotgen.errors import ShapeError, UnsupportedError, UsageError
from aotgen.ir import interpreter
from aotgen.ir.graph import Graph
from aotgen.ir.types import Array
from aotgen.ir.verifier import verify
from aotgen.options import CompileOptions, Optimize
from aotgen.passes.pipeline import run_passes
from aotgen.project import Project
from aotgen.streaming import stream
from aotgen.streaming.text import stream_text
from aotgen.target.board import load_board
from support import require_shared, require_tool


def recording(graph: Graph, frames: int, seed: int = 3) -> Array:
    """``frames`` frames of the graph's first input, whose axis 1 is time."""
    rng, value = np.random.default_rng(seed), graph.inputs[0]
    shape = (value.shape[0], frames, *value.shape[2:])
    if value.dtype.is_float:
        return rng.standard_normal(shape).astype(np.float32)
    return rng.integers(-128, 128, shape).astype(np.int8)


def stepped(graph: Graph, whole: Array) -> list[dict[str, Array]]:
    """What the steps give, one after the other, on all of a recording."""
    assert graph.stream is not None
    instance, n = interpreter.Instance(graph), graph.stream.frames
    name = graph.inputs[0].name
    return [instance.step({name: whole[:, i : i + n]}) for i in range(0, whole.shape[1] - n + 1, n)]


def joined(graph: Graph, steps: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """The rows of all steps, by output; without those before the model's row 0."""
    assert graph.stream is not None
    found: dict[str, Array] = {}
    for name, info in zip(graph.output_names, graph.stream.outputs, strict=True):
        assert info.axis is not None and info.delay is not None
        rows = np.concatenate([s[name] for s in steps], info.axis)
        assert steps[0][name].shape[info.axis] == info.rows
        found[name] = rows.take(range(max(0, info.delay), rows.shape[info.axis]), info.axis)
    return found


def check_rows(build: Builder, window: int, frames: int, length: int = 120) -> None:
    """The steps' rows are the rows of the network on the whole recording."""
    steps = stream(build(window), frames)
    verify(steps)
    offline = build(length)
    whole = recording(offline, length)
    got = joined(steps, stepped(steps, whole))
    expected = interpreter.run(offline, {"x": whole})
    assert steps.stream is not None
    for name, info in zip(steps.output_names, steps.stream.outputs, strict=True):
        assert info.axis is not None
        a, b = got[name], expected[name]
        count = min(a.shape[info.axis], b.shape[info.axis])
        assert count * (info.frames_per_row or 0) > length - 60
        a, b = (v.take(range(count), info.axis) for v in (a, b))
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


ROWS = {
    "causal_tcn": (causal_tcn, 40, (1, 2, 5, 40)),
    "valid_tcn": (valid_tcn, 40, (1, 3, 8)),
    "strided_maps": (strided_maps, 40, (4, 8)),
    "short_windows": (short_windows, 36, (6, 12)),
}


@pytest.mark.parametrize("integer", [False, True], ids=["f32", "i8"])
@pytest.mark.parametrize("name", ROWS)
def test_steps_give_the_rows_of_the_whole(name: str, integer: bool) -> None:
    make, window, counts = ROWS[name]
    for frames in counts:
        check_rows(make(integer), window, frames)


@pytest.mark.parametrize("frames", [1, 4])
def test_ops_that_work_row_by_row(frames: int) -> None:
    check_rows(mixed_ops(), 20, frames)


@pytest.mark.parametrize("op", ["lstm", "gru", "rnn"])
def test_recurrent_layers_hand_their_state_on(op: str) -> None:
    for frames in (1, 3):
        check_rows(recurrent(op), 12, frames)


def check_random(seeds: range) -> None:
    for seed in seeds:
        build, stride = random_net(seed)
        if min(v.shape[1] for v in build(64).outputs) > 1:
            check_rows(build, 64, stride * (1 + seed % 3), 160)


def test_random_networks() -> None:
    check_random(range(24))


@pytest.mark.slow
def test_many_random_networks() -> None:
    check_random(range(24, 300))


HEADS = ("pool", "last", "flat")


def check_windows(build: Builder, window: int, frames: int, early: int = 0) -> None:
    """Each step's outputs are the network's on the last ``window`` frames, or on those that end
    ``early`` frames after the step's last one.
    """
    offline = build(window)
    steps = stream(offline, frames)
    verify(steps)
    assert steps.stream is not None
    assert {o.latency for o in steps.stream.outputs if o.axis is None} <= {-early}
    whole = recording(offline, 3 * window)
    compared = 0
    for index, got in enumerate(stepped(steps, whole)):
        end = (index + 1) * frames + early
        if not window + early <= end <= whole.shape[1]:
            continue
        expected = interpreter.run(offline, {"x": whole[:, end - window : end]})
        for name, value in expected.items():
            if value.shape == got[name].shape:
                np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6)
                compared += 1
    assert compared > window // frames


@pytest.mark.parametrize("integer", [False, True], ids=["f32", "i8"])
@pytest.mark.parametrize("head", HEADS)
def test_what_sees_the_window_is_the_model_on_the_last_frames(head: str, integer: bool) -> None:
    for frames in (2, 4, 26):
        check_windows(classifier(integer, head), 26, frames)


@pytest.mark.parametrize("integer", [False, True], ids=["f32", "i8"])
@pytest.mark.parametrize("head", ["pool", "flat"])
def test_a_window_whose_last_frame_is_not_read_is_early(head: str, integer: bool) -> None:
    """Its strides leave the 27th frame unread, so a step gives the window that ends with the frame
    to come.
    """
    for frames in (2, 4):
        check_windows(classifier(integer, head), 27, frames, early=1)
    info = stream(classifier(integer, head)(27), 2).stream
    assert info is not None
    assert stream_text(info, ["y"])[1] == "y: that of the last window, 1 frame early."


@pytest.mark.parametrize("head", ["squeeze", "norm", "heads"])
def test_windows_meet_rows(head: str) -> None:
    for frames in (2, 6):  # of which 26 is no multiple
        check_windows(classifier(False, head), 26, frames)


@pytest.mark.parametrize("integer", [False, True], ids=["f32", "i8"])
def test_passes_keep_what_steps_compute(integer: bool) -> None:
    for build, window, frames in ((causal_tcn(integer), 30, 2), (strided_maps(integer), 24, 4)):
        steps = stream(build(window), frames)
        whole = recording(steps, 40)
        before = stepped(steps, whole)
        after = stepped(run_passes(stream(build(window), frames), verify=True), whole)
        for a, b in zip(before, after, strict=True):
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=0, atol=1e-5)


COMPILED = {
    "causal_tcn_f32": (causal_tcn(False), 40, 2),
    "causal_tcn_i8": (causal_tcn(True), 40, 1),
    "valid_tcn_i8": (valid_tcn(True), 40, 3),
    "strided_maps_f32": (strided_maps(False), 40, 4),
    "strided_maps_i8": (strided_maps(True), 40, 8),
    "mixed_ops": (mixed_ops(), 20, 2),
    "lstm": (recurrent("lstm"), 12, 3),
    "pool_i8": (classifier(True, "pool"), 26, 2),
    "flat_i8": (classifier(True, "flat"), 26, 4),
    "squeeze": (classifier(False, "squeeze"), 26, 2),
    **{f"random{n}": (random_net(n)[0], 64, 2 * random_net(n)[1]) for n in (2, 3, 10, 11)},
}


def project_of(graph: Graph, folder: Path, optimize: Optimize = "speed") -> Project:
    board, options = load_board("host"), CompileOptions(weights="bin", optimize=optimize)
    run_passes(graph, verify=True)
    folder.mkdir()
    target = board.target(threads=1, optimize=optimize)
    generate(graph, board, target, options, folder, b"none")
    return Project(folder, board)


def same(got: Sequence[Array], expected: dict[str, Array]) -> None:
    for a, b in zip(got, expected.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=0 if a.dtype.kind == "i" else 2e-5)


@pytest.mark.parametrize("name", COMPILED)
def test_generated_steps(name: str, tmp_path: Path) -> None:
    """Two sequences with a reset between them; then another instance beside the first."""
    build, window, frames = COMPILED[name]
    steps = stream(build(window), frames)
    whole = recording(steps, 12 * frames)
    expected = stepped(steps, whole)
    parts = [{"x": whole[:, i : i + frames]} for i in range(0, whole.shape[1], frames)]
    project = project_of(steps, tmp_path / "project", "ram" if "pool" in name else "speed")
    model = QuickModel(project)
    for _ in range(2):
        for feeds, outputs in zip(parts, expected, strict=True):
            same(model.run(feeds), outputs)
        model.reset()
    other = QuickModel(project)
    for index, feeds in enumerate(parts[:6]):
        same(model.run(feeds), expected[index])
        if index >= 3:
            same(other.run(parts[index - 3]), expected[index - 3])


def state_bytes(build: Builder, window: int, frames: int) -> int:
    return sum(s.value.type.nbytes for s in stream(build(window), frames).states)


def test_state_is_the_rows_that_are_kept() -> None:
    # 2 rows of 6; blocks of (2 + 2) * d rows of 8 for d = 1, 2, 4: the shortcut waits for nothing.
    assert state_bytes(causal_tcn(True), 40, 1) == 2 * 6 + 4 * (1 + 2 + 4) * 8
    assert state_bytes(causal_tcn(True), 40, 8) == 2 * 6 + 4 * (1 + 2 + 4) * 8
    # 4 - 2 rows of 8, 2 of 3 * 8, and of the window of 10 rows those that are not new.
    assert state_bytes(classifier(True, "pool"), 26, 2) == 2 * 8 + 2 * 24 + 9 * 24
    assert state_bytes(classifier(True, "pool"), 26, 4) == 2 * 8 + 2 * 24 + 8 * 24


def padded_maps(t: int) -> Graph:
    """Windows that are padded on both sides, as SAME is."""
    net = TimeNet(integer=True)
    x = net.window(net.frames(1, t, 10, 1), 8, (6, 4), strides=(2, 2), pads=(2, 1, 2, 1))
    y = net.window(x, 8, (3, 3), pads=(1, 1, 1, 1), groups=8)
    return net.output(net.sum(x, net.window(y, 8, (3, 1), pads=(1, 0, 1, 0))))


def test_padding_at_the_end_is_a_delay() -> None:
    """Beyond the reach of the beginning and the end the rows are the model's, later."""
    offline, steps = padded_maps(100), stream(padded_maps(40), 2)
    assert steps.stream is not None
    (info,) = steps.stream.outputs
    assert (info.rows, info.frames_per_row, info.delay, info.latency) == (1, 2, 3, 6)
    whole = recording(offline, 100)
    got = joined(steps, stepped(steps, whole))["y0"]
    expected = interpreter.run(offline, {"x": whole})["y0"]
    count = got.shape[1]
    assert count == 50 - 3
    np.testing.assert_array_equal(got[:, 6:], expected[:, 6:count])


def test_time_of_channels_first_inputs() -> None:
    """As an ONNX reader hands them on: the axis behind the channels, in every output as well."""

    def build(t: int) -> Graph:
        net = TimeNet(integer=False)
        x = net.transpose(net.input(1, 5, t), 0, 2, 1)
        return net.output(net.transpose(net.window(x, 7, (3,), pads=(2, 0)), 0, 2, 1))

    steps, offline = stream(build(20), 2), build(60)
    whole = np.random.default_rng(1).standard_normal((1, 5, 60)).astype(np.float32)
    instance = interpreter.Instance(steps)
    got = [instance.step({"x": whole[:, :, i : i + 2]})["y0"] for i in range(0, 60, 2)]
    expected = interpreter.run(offline, {"x": whole})["y0"]
    np.testing.assert_allclose(np.concatenate(got, 2), expected, rtol=0, atol=1e-6)


def test_time_may_be_another_axis() -> None:
    """Of spectrograms as PyTorch has them: [1, 1, frequencies, frames]."""

    def build(t: int) -> Graph:
        net = TimeNet(integer=False)
        x = net.transpose(net.input(1, 1, 8, t), 0, 2, 3, 1)
        x = net.window(x, 6, (3, 3), strides=(2, 1), pads=(1, 2, 1, 0))
        return net.output(net.transpose(x, 0, 3, 1, 2))

    steps, offline = stream(build(20), 2, axis=3), build(60)
    assert steps.inputs[0].shape == (1, 1, 8, 2)
    whole = np.random.default_rng(1).standard_normal((1, 1, 8, 60)).astype(np.float32)
    instance = interpreter.Instance(steps)
    got = [instance.step({"x": whole[..., i : i + 2]})["y0"] for i in range(0, 60, 2)]
    expected = interpreter.run(offline, {"x": whole})["y0"]
    np.testing.assert_allclose(np.concatenate(got, 3), expected, rtol=0, atol=1e-6)
    with pytest.raises(UsageError, match="needs --stream"):
        CompileOptions(time_axis=3)


def test_flat_inputs_are_frames_in_the_order_of_their_reshape() -> None:
    def build(t: int) -> Graph:
        net = TimeNet(integer=False)
        x = net.reshape(net.input(1, t * 8), 1, t, 8, 1)
        return net.output(net.window(x, 4, (3, 3), pads=(2, 0, 0, 0)))

    steps, offline = stream(build(10), 2), build(30)
    whole = np.random.default_rng(1).standard_normal((1, 240)).astype(np.float32)
    instance = interpreter.Instance(steps)
    got = [instance.step({"x": whole[:, i : i + 16]})["y0"] for i in range(0, 240, 16)]
    expected = interpreter.run(offline, {"x": whole})["y0"]
    np.testing.assert_allclose(np.concatenate(got, 1), expected, rtol=0, atol=1e-6)


def test_a_second_input_without_time_is_given_each_step() -> None:
    def build(t: int) -> Graph:
        net = TimeNet(integer=False)
        x = net.window(net.frames(1, t, 6), 6, (3,), pads=(2, 0))
        return net.output(net.op("mul", x, net.input(1, 6, name="gain")))

    steps, offline = stream(build(12), 3), build(30)
    whole = recording(offline, 30)
    gain = np.linspace(-1, 1, 6, dtype=np.float32)[None]
    instance = interpreter.Instance(steps)
    got = [instance.step({"x": whole[:, i : i + 3], "gain": gain})["y0"] for i in range(0, 30, 3)]
    expected = interpreter.run(offline, {"x": whole, "gain": gain})["y0"]
    np.testing.assert_allclose(np.concatenate(got, 1), expected, rtol=0, atol=1e-6)


def test_strides_ask_for_a_number_of_frames() -> None:
    with pytest.raises(UsageError, match=r"'\w+': .* take 4 frames|take 4 frames.*multiple of 4"):
        stream(strided_maps(True)(40), 6)
    with pytest.raises(UsageError, match="use a multiple of 6"):
        stream(short_windows(False)(36), 1)


def test_what_cannot_be_streamed_is_told() -> None:
    net = TimeNet(integer=False)
    with pytest.raises(ShapeError, match="no input has an axis of time"):
        stream(net.output(net.op("relu", net.input(1, 9))), 1)
    net = TimeNet(integer=False)
    a, b = net.frames(1, 8, 4, name="a"), net.frames(1, 9, 4, name="b")
    with pytest.raises(ShapeError, match="a 8, b 9"):
        stream(net.output(a, b), 1)
    with pytest.raises(UnsupportedError, match="keeps state from run to run itself"):
        stream(stream(causal_tcn(False)(20), 1), 1)
    with pytest.raises(UsageError, match="--stream 0"):
        CompileOptions(stream=0)


def test_from_the_file_to_the_board(tmp_path: Path) -> None:
    """A wake word network, 2 of its 30 frames a step, on an emulated Cortex-M4: it gives what
    the network does on the last 30 frames, byte for byte.
    """
    require_tool("arm-none-eabi-gcc", "cmake", "ninja", "qemu-system-arm")
    model = require_shared("models/mlperf_tiny/str_ww_ref_model.tflite")
    project = aotgen.compile(model, "mps2-an386", tmp_path / "project", stream=2)
    info = project.manifest["stream"]
    assert (info["frames"], info["window"]) == (2, 30)
    assert "A run reads 2 new frames" in (project.folder / "README.md").read_text()
    name = project.manifest["inputs"][0]["name"]
    whole = np.random.default_rng(2).integers(-128, 128, (1, 44, 1, 40)).astype(np.int8)
    feeds = [{name: whole[:, i : i + 2]} for i in range(0, 44, 2)]
    got = project.run_steps(feeds, runner="qemu")
    offline = aotgen.load(model)
    for end in (30, 36, 44):
        expected = interpreter.run(offline, {name: whole[:, end - 30 : end]})
        for key, value in expected.items():
            np.testing.assert_array_equal(got[end // 2 - 1][key], value)
    assert project.validate(runner="qemu", per_layer=True).ok


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(require_shared("models/mlperf_tiny/kws_ref_model.tflite"))
    folder = str(tmp_path / "project")
    assert call(["compile", model, "--board", "mps2-an386", "--stream", "2", "-o", folder]) == 0
    told = capsys.readouterr().out
    assert "A run reads 2 new frames; the model's window is 49 frames." in told
    assert "that of the last window, 13 frames late." in told
    assert call(["check", model, "--stream", "4"]) == 0
    assert call(["analyze", model, "--board", "mps2-an386", "--stream", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.split("\n", 1)[1])["stream"]["frames"] == 4
    assert call(["check", model, "--stream", "3"]) == 2
    assert "use a multiple of 2" in capsys.readouterr().err
