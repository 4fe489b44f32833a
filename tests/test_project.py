"""A project's whole life through the public API: compile, build, run, validate, bench."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import models
import numpy as np
import onnxruntime
import pytest

import aotgen
from aotgen.cli.main import call
from aotgen.errors import ToolchainError, UsageError
from aotgen.target.board import load_board
from aotgen.trace import parse_trace
from aotgen.validate import difference
from support import require, require_tool


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "two.onnx"
    path.write_bytes(models.two_layers().SerializeToString())
    return path


@pytest.fixture(scope="module")
def project(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> aotgen.Project:
    require_tool("cmake")
    return aotgen.compile(model_file, output=tmp_path_factory.mktemp("out") / "two")


def reference(model_file: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model_file), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def inputs(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 8), np.float32)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= 1e-5 * np.abs(b).max())


def test_run_is_what_onnxruntime_computes(project: aotgen.Project, model_file: Path) -> None:
    y = project.run({"x": inputs(0)})
    assert list(y) == ["y"]
    assert y["y"].shape == (2, 4)
    assert close(y["y"], reference(model_file, inputs(0)))


def test_the_run_program_computes_the_same(project: aotgen.Project) -> None:
    steps = [{"x": inputs(seed)} for seed in range(3)]
    by_program = project.run_steps(steps, runner="local")
    by_library = project.run_steps(steps)
    for a, b in zip(by_program, by_library, strict=True):
        assert np.array_equal(a["y"], b["y"])


def test_instances_do_not_share_memory(project: aotgen.Project, model_file: Path) -> None:
    """Threads, each with an instance, get what each would get alone."""
    right: list[int] = []

    def work(seed: int) -> None:
        instance = project.instance()
        x = inputs(seed)
        expected = reference(model_file, x)
        if all(close(instance.step({"x": x})["y"], expected) for _ in range(200)):
            right.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(right) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "'x' .* is missing"),
        ({"x": np.zeros((2, 8), np.float32), "z": np.zeros(1)}, "no input 'z'"),
        ({"x": np.zeros((8, 2), np.float32)}, "has shape"),
        ({"x": np.zeros((2, 8), np.complex64)}, "is complex64"),
    ],
)
def test_wrong_inputs(feeds: dict[str, np.ndarray], words: str, project: aotgen.Project) -> None:
    with pytest.raises(UsageError, match=words):
        project.run(feeds)


def test_validate(project: aotgen.Project) -> None:
    report = project.validate(per_layer=True)
    assert report.ok
    assert len(report.layers) == len(project.info.layers)
    assert all(layer.difference is not None for layer in report.layers)
    assert {layer.weights_ok for layer in report.layers if layer.weights_ok is not None} == {True}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_changed_weight_bit_is_named(victim: int, model_file: Path, tmp_path: Path) -> None:
    """The lowest bit of one float of layer k: too small for the results, named all the same."""
    project = aotgen.compile(model_file, output=tmp_path / "p")
    weighted = [layer for layer in project.info.layers if layer.weights_crc]
    assert len(weighted) == 2
    models.flip_weight_bit(project.folder, victim)
    report = project.validate(per_layer=True)
    assert not report.ok
    assert report.first_bad_layer is not None
    assert report.first_bad_layer.index == weighted[victim].index
    assert max(d.relative for d in report.outputs) < 1e-5


def test_bench(project: aotgen.Project) -> None:
    result = project.bench(number=10, repeat=4, profile=True)
    assert len(result.times_ms) == 4
    assert 0 < result.min_ms <= result.median_ms <= max(result.times_ms)
    assert str(result).startswith("Mean inference time (std dev): ")
    assert [layer.layer for layer in result.layers] == [x.index for x in project.info.layers]
    assert project.bench(repeat=2).number > 10


def test_build_is_incremental(project: aotgen.Project) -> None:
    library = project.build().library
    before = library.stat().st_mtime_ns
    assert project.build().library.stat().st_mtime_ns == before


def test_a_build_failure_quotes_the_compiler(model_file: Path, tmp_path: Path) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "p")
    source = project.folder / "src" / f"{project.info.prefix}.c"
    source.write_text(source.read_text() + "\n#error the sky is falling\n")
    with pytest.raises(ToolchainError, match="the sky is falling") as caught:
        project.build()
    assert "\n" not in str(caught.value)


def test_a_rebuilt_library_is_loaded_again(model_file: Path, tmp_path: Path) -> None:
    """dlopen would hand out the old one, which has the same path."""
    project = aotgen.compile(model_file, output=tmp_path / "p")
    assert np.abs(project.run({"x": inputs(1)})["y"]).max() > 0
    other = models.two_layers()
    zero = next(t for t in other.graph.initializer if t.name == "w2")
    zero.raw_data = bytes(len(zero.raw_data))
    (tmp_path / "two.onnx").write_bytes(other.SerializeToString())
    again = aotgen.compile(tmp_path / "two.onnx", output=tmp_path / "p", force=True)
    assert np.abs(again.run({"x": inputs(1)})["y"]).max() == 0


@pytest.mark.parametrize("weights", ["c", "asm", "bin"])
def test_every_form_of_weights(
    weights: aotgen.options.Weights, model_file: Path, tmp_path: Path
) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "p", weights=weights)
    for runner in (None, "local"):
        assert close(project.run({"x": inputs(2)}, runner)["y"], reference(model_file, inputs(2)))
    assert project.validate(per_layer=True).ok


def test_external_data_travels_with_the_project(model_file: Path, tmp_path: Path) -> None:
    import onnx

    place = tmp_path / "model"
    place.mkdir()
    onnx.save_model(
        models.two_layers(),
        str(place / "two.onnx"),
        save_as_external_data=True,
        location="two.data",
        size_threshold=0,
    )
    project = aotgen.compile(place / "two.onnx", output=tmp_path / "p")
    (place / "two.data").unlink()
    assert project.validate().ok


@pytest.mark.parametrize("board", ["host-avx2", "host-scalar"])
def test_host_boards(board: str, model_file: Path, tmp_path: Path) -> None:
    project = aotgen.compile(model_file, board=board, output=tmp_path / "p")
    assert close(project.run({"x": inputs(4)})["y"], reference(model_file, inputs(4)))


@pytest.mark.parametrize("board", ["rk3399", "rpi3b-armv7"])
def test_arm_under_qemu(board: str, model_file: Path, tmp_path: Path) -> None:
    machine = load_board(board)
    require_tool(f"{machine.triple}-gcc", machine.emulator[0])
    project = aotgen.compile(model_file, board=board, output=tmp_path / "p")
    assert close(project.run({"x": inputs(5)})["y"], reference(model_file, inputs(5)))
    assert project.validate(per_layer=True).ok
    assert project.bench(number=1, repeat=1, warmup=0).runner in ("qemu", "local")


def test_clang_builds_it_too(project: aotgen.Project) -> None:
    require_tool("clang")
    assert project.build(compiler="clang").library.is_file()
    assert project.build("Debug").library.is_file()


def test_a_moved_project_builds_again(model_file: Path, tmp_path: Path) -> None:
    project = aotgen.compile(model_file, output=tmp_path / "before")
    project.build()
    moved = project.folder.rename(tmp_path / "after")
    assert close(aotgen.Project(moved).run({"x": inputs(6)})["y"], reference(model_file, inputs(6)))


def test_command_line_journey(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, fed, got = tmp_path / "p", tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(fed, x=inputs(7))
    assert call(["compile", str(model_file), "-o", str(folder), "--show-passes"]) == 0
    out = capsys.readouterr().out
    assert "== fuse_ops" in out
    assert out.splitlines()[-1].startswith(f"{folder}: ")
    assert call(["run", str(folder), "-i", str(fed), "-o", str(got)]) == 0
    with np.load(got) as data:
        assert close(data["y"], reference(model_file, inputs(7)))
    capsys.readouterr()
    assert call(["validate", str(folder), "-i", str(fed), "--per-layer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert call(["bench", str(folder), "--number", "5", "--repeat", "3", "--json"]) == 0
    timing = json.loads(capsys.readouterr().out)
    assert timing["min_ms"] <= timing["median_ms"]
    assert call(["bench", str(folder), "--number", "5", "--repeat", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Mean inference time (std dev): ")


def test_analyze_agrees_with_compile(
    project: aotgen.Project, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["analyze", str(model_file), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fits"] is True
    for key in ("model", "macs", "params", "arena_bytes", "weights_bytes", "flash_bytes", "layers"):
        assert data[key] == project.manifest[key]
    assert data["macs"] == 2 * 8 * 16 + 2 * 16 * 4
    assert data["params"] == 8 * 16 + 16 + 16 * 4
    assert call(["analyze", str(model_file)]) == 0
    assert "MACs        384" in capsys.readouterr().out


def test_a_board_that_is_too_small(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "tiny"
    board.mkdir()
    (board / "board.toml").write_text('extends = "host"\n[memory]\nflash_bytes = 100\n')
    assert call(["analyze", str(model_file), "--board", str(board)]) == 1
    assert "the board has 100 B" in capsys.readouterr().out


def test_difference_is_max_over_max() -> None:
    b = np.array([1.0, -4.0, np.nan, np.inf])
    d = difference("t", np.array([1.5, -4.0, np.nan, np.inf]), b)
    assert (d.max_abs, d.relative) == (0.5, 0.125)
    assert difference("t", b, b).relative == 0
    assert difference("t", np.array([np.nan]), np.array([1.0])).relative == float("inf")
    assert difference("t", np.zeros((0,)), np.zeros((0,))).relative == 0


def test_trace_records() -> None:
    head = np.array([3, 0, 2, 4, 1, 2], "<i4").tobytes()
    data = head + np.array([1, 2], "<f4").tobytes()
    record, second = parse_trace(data + data)
    assert (record.layer, record.step, record.shape) == (3, 0, (1, 2))
    assert np.frombuffer(second.data, "<f4").tolist() == [1, 2]
    with pytest.raises(aotgen.BoardError, match="middle of a record"):
        parse_trace(data[:-1])


def test_gpu_project_in_this_process(model_file: Path, tmp_path: Path) -> None:
    """On any OpenCL platform, PoCL included; instances give their device memory back."""
    require(any(Path("/etc/OpenCL/vendors").glob("*.icd")), "an OpenCL platform")
    project = aotgen.compile(model_file, output=tmp_path / "p", device="gpu")
    for seed in range(3):
        y = project.run({"x": inputs(seed)})["y"]
        assert close(y, reference(model_file, inputs(seed)))
