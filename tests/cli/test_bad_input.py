"""What a user can get wrong: one clear line on stderr, exit code 2, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aotgen.cli.main import call

Maker = Callable[[Path], None]


def _save(proto: onnx.ModelProto, path: Path) -> None:
    path.write_bytes(proto.SerializeToString())


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncated(path: Path) -> None:
    data = models.two_layers().SerializeToString()
    path.write_bytes(data[: len(data) // 2])


def jpeg(path: Path) -> None:
    path.write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(range(256)) * 4)


def text(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html><body>404: Not Found</body></html>")


def folder(path: Path) -> None:
    path.mkdir()


def cyclic(path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], "n1"),
        helper.make_node("Relu", ["a"], ["b"], "n2"),
    ]
    _save(models.model(nodes, {"x": (2,)}, {"b": (2,)}), path)


def _external(location: str) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "n")
    proto = models.model([node], {"x": (1, 4)}, {"y": (1, 4)}, {"w": np.eye(4, dtype=np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "64")):
        tensor.external_data.add(key=key, value=value)
    return proto


def missing_external(path: Path) -> None:
    _save(_external("weights.bin"), path)


def external_outside(path: Path) -> None:
    (path.parent.parent / "outside.bin").write_bytes(bytes(64))
    _save(_external("../outside.bin"), path)


def external_absolute(path: Path) -> None:
    _save(_external("/etc/passwd"), path)


def unknown_op(path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], "strange", domain="com.example")
    proto = models.model([node], {"x": (2,)}, {"y": (2,)})
    proto.opset_import.add(domain="com.example", version=1)
    _save(proto, path)


def unbound_dim(path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], "n")
    _save(models.model([node], {"x": ("batch", 3)}, {"y": ("batch", 3)}), path)


CASES: dict[str, tuple[Maker, str]] = {
    "empty": (empty, "empty"),
    "truncated": (truncated, "bad.onnx"),
    "jpeg": (jpeg, "JPEG"),
    "text": (text, "text"),
    "folder": (folder, "bad.onnx"),
    "cyclic": (cyclic, "cycle"),
    "missing external data": (missing_external, "weights.bin"),
    "external data outside": (external_outside, "outside.bin"),
    "external data absolute": (external_absolute, "/etc/passwd"),
    "unknown op": (unknown_op, "Frobnicate"),
    "unbound dim": (unbound_dim, "batch"),
}


def _contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def _one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("aotgen: error: ")
    assert "Traceback" not in text
    assert "internal error" not in text
    return lines[0]


@pytest.mark.parametrize("case", list(CASES))
def test_compile_refuses(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, word = CASES[case]
    place = tmp_path / "models"
    place.mkdir()
    make(place / "bad.onnx")
    before = _contents(tmp_path)
    code = call(["compile", str(place / "bad.onnx"), "-o", str(tmp_path / "new" / "project")])
    captured = capsys.readouterr()
    assert code == 2
    assert word in _one_line(captured.err)
    assert captured.out == ""
    assert _contents(tmp_path) == before


@pytest.mark.parametrize("case", list(CASES))
def test_check_refuses(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, word = CASES[case]
    place = tmp_path / "models"
    place.mkdir()
    make(place / "bad.onnx")
    assert call(["check", str(place / "bad.onnx")]) == 2
    captured = capsys.readouterr()
    assert word in captured.out + captured.err
    assert "Traceback" not in captured.err


def test_missing_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = call(["compile", str(tmp_path / "none.onnx"), "-o", str(tmp_path / "out")])
    assert code == 2
    assert "none.onnx" in _one_line(capsys.readouterr().err)
    assert _contents(tmp_path) == set()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.onnx"
    _save(models.two_layers(), path)
    return path


@pytest.mark.parametrize("force", [False, True])
def test_output_not_empty(
    force: bool, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--force replaces a project of ours and nothing else."""
    output = tmp_path / "thesis"
    output.mkdir()
    (output / "chapter1.tex").write_text("ten months of work")
    code = call(["compile", str(good), "-o", str(output), *(["--force"] if force else [])])
    assert code == 2
    assert "not empty" in _one_line(capsys.readouterr().err)
    assert _contents(output) == {"chapter1.tex"}


def test_force_respects_a_foreign_manifest(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "extension"
    output.mkdir()
    (output / "manifest.json").write_text('{"manifest_version": 3, "name": "browser extension"}')
    assert call(["compile", str(good), "-o", str(output), "--force"]) == 2
    _one_line(capsys.readouterr().err)
    assert _contents(output) == {"manifest.json"}


def test_output_is_a_file(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "file"
    output.write_text("mine")
    assert call(["compile", str(good), "-o", str(output), "--force"]) == 2
    assert "not a folder" in _one_line(capsys.readouterr().err)
    assert output.read_text() == "mine"


@pytest.mark.parametrize("where", ["below a file", "/proc/aotgen/project", "/sys/aotgen/project"])
def test_output_unwritable(
    where: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Places where not even root can make a folder."""
    output = good / "project" if where == "below a file" else Path(where)
    before = _contents(tmp_path)
    assert call(["compile", str(good), "-o", str(output)]) == 2
    assert "cannot create output folder" in _one_line(capsys.readouterr().err)
    assert _contents(tmp_path) == before


OPTIONS = {
    "board": (["--board", "rpi44"], "did you mean rpi4"),
    "opt level": (["--opt-level", "9"], "0 to 4"),
    "opt level text": (["--opt-level", "high"], "--opt-level"),
    "pass": (["--disable-pass", "fuse_opps"], "fuse_opps"),
    "weights": (["--weights", "gold"], "gold"),
    "device": (["--device", "tpu"], "tpu"),
    "no gpu": (["--device", "gpu", "--board", "rpi4"], "no GPU"),
    "threads": (["--threads", "0"], "threads"),
    "prefix": (["--prefix", "7up"], "prefix"),
    "shape": (["--shape", "x:1x2"], "--shape"),
    "shape name": (["--shape", "y=2x8"], "y"),
    "shape zero": (["--shape", "x=0x8"], "0"),
    "dim": (["--dim", "n"], "--dim"),
    "later option": (["--precision", "fp16"], "not available yet"),
    "unknown option": (["--fast"], "--fast"),
}


@pytest.mark.parametrize("case", list(OPTIONS))
def test_bad_option(
    case: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, word = OPTIONS[case]
    before = _contents(tmp_path)
    code = call(["compile", str(good), "-o", str(tmp_path / "out"), *options])
    assert code == 2
    assert word in _one_line(capsys.readouterr().err)
    assert _contents(tmp_path) == before


@pytest.mark.parametrize("verb", ["run", "validate", "bench"])
def test_no_project(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = ["-i", "in.npz", "-o", "out.npz"] if verb == "run" else []
    assert call([verb, str(tmp_path / "nothing"), *extra]) == 2
    assert "nothing is not a project" in _one_line(capsys.readouterr().err)


def test_check_lists_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["First", "Second", "Third"]
    nodes = [
        helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], f"node{i}", domain="com.example")
        for i, op in enumerate(names)
    ]
    proto = models.model(nodes, {"t0": (2,)}, {"t3": (2,)})
    proto.opset_import.add(domain="com.example", version=1)
    _save(proto, tmp_path / "m.onnx")
    assert call(["check", str(tmp_path / "m.onnx")]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line, op in zip(lines, names, strict=True):
        assert op in line


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["check", str(tmp_path / "none.onnx"), "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("aotgen: error: ")
