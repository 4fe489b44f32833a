"""Laws of a generated project: same bytes, clean under sanitizers, faults found, all weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotgen
from aotgen.builder import build_project
from benchmarks import networks
from support import require_tool
from tests.e2e.conftest import difference

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "build" not in p.relative_to(folder).parts
    }


def compile_elsewhere(model: Path, output: Path, seed: str) -> dict[str, bytes]:
    """Compile in another process with another hash seed, working directory and output folder."""
    output.parent.mkdir(parents=True)
    code = f"import aotgen; aotgen.compile({str(model)!r}, board='rpi4', output={output.name!r})"
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=output.parent, env=env)
    return tree(output)


@pytest.mark.parametrize("name", ["squeezenet1_1", "transformer"])
def test_same_bytes_whatever_the_hash_seed_and_folder(name: str, network, tmp_path: Path) -> None:
    model = network(name)[0]
    first = compile_elsewhere(model, tmp_path / "a" / "one", "1")
    second = compile_elsewhere(model, tmp_path / "b" / "c" / "two", "77")
    assert first.keys() == second.keys()
    assert [p for p in first if first[p] != second[p]] == []


@pytest.mark.parametrize("name", ["digits", "ds_cnn"])
def test_clean_under_sanitizers(name: str, network, tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    model = DIGITS if name == "digits" else network(name)[0]
    project = aotgen.compile(model, board="host", output=tmp_path / name)
    sanitize = [f"{name.upper()}_SANITIZE=ON", f"{name.upper()}_WERROR=ON"]
    build = build_project(project.info, project.board, "Debug", definitions=sanitize)
    done = subprocess.run([build.program("test")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 failed" in done.stdout


@pytest.mark.parametrize("weights", ["c", "asm", "bin"])
def test_every_form_of_weights(weights: str, network, tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    path, x, reference = network("ds_cnn")
    project = aotgen.compile(path, output=tmp_path / "p", weights=weights)
    assert difference(project.run({networks.INPUT: x})[networks.OUTPUT], reference) <= 1e-4
    build = project.build()
    assert subprocess.run([build.program("test")]).returncode == 0
    biggest = max(p.stat().st_size for p in (project.folder / "src").glob("*.[cS]"))
    assert (biggest > project.manifest["weights_bytes"]) == (weights == "c")


def test_a_least_significant_change_of_a_weight_is_named(network, tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    project = aotgen.compile(network("ds_cnn")[0], output=tmp_path / "p")
    assert project.validate(per_layer=True).ok
    layers = [layer for layer in project.manifest["layers"] if layer["weights_bytes"]]
    target = layers[len(layers) // 2]
    offset = int(
        next(
            line.split()[2].rstrip("u")
            for line in (project.folder / "src/weights.h").read_text().splitlines()
            if line.startswith(f"#define W_L{target['index']:02d}_W ")
        )
    )
    blob = project.folder / "src/weights.bin"
    data = bytearray(blob.read_bytes())
    data[offset] ^= 1
    blob.write_bytes(data)
    report = project.validate(per_layer=True)
    assert not report.ok
    bad = report.first_bad_layer
    assert bad is not None and bad.index == target["index"]


def test_a_wrong_kernel_is_named(network, tmp_path: Path) -> None:
    """A fault in the code, not in the weights: the first layer with a wrong result is the one."""
    require_tool("cmake", "gcc")
    project = aotgen.compile(network("ds_cnn")[0], output=tmp_path / "p")
    source = project.folder / "src/ds_cnn.c"
    text = source.read_text()
    layer = project.manifest["layers"][4]
    start = text.index(f"/* L{layer['index']:02d} ")
    call = text.index(layer["kernel"] + "(", start)
    source.write_text(text[:call] + "if (0) " + text[call:])
    bad = project.validate(per_layer=True).first_bad_layer
    assert bad is not None and bad.index == layer["index"]


def hostile_model() -> onnx.ModelProto:
    """Names that are empty, C keywords, paths, comments, quotes, non-ASCII, long and alike."""
    x, h, y = "int", '*/ #error "x" /*', "ünïcode\n%s\\"
    w = np.random.default_rng(0).standard_normal((4, 4), np.float32)
    nodes = [
        helper.make_node("MatMul", [x, "../w"], [h], name="while"),
        helper.make_node("Relu", [h], ["a b"], name=""),
        helper.make_node("Sigmoid", ["a b"], ["a_b"], name="while "),
        helper.make_node("Add", ["a_b", "??/"], [y], name="x" * 300),
    ]
    graph = helper.make_graph(
        nodes,
        "1; DROP TABLE",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, (2, 4))],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, (2, 4))],
        [numpy_helper.from_array(w, "../w"), numpy_helper.from_array(w[0], "??/")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_hostile_names(tmp_path: Path) -> None:
    require_tool("cmake", "gcc")
    path = tmp_path / "9 lives-\u00e9.onnx"
    path.write_bytes(hostile_model().SerializeToString())
    project = aotgen.compile(path, output=tmp_path / "p")
    x = np.random.default_rng(1).standard_normal((2, 4), np.float32)
    got = project.run({"int": x})
    expected = networks.session(path).run(None, {"int": x})[0]
    assert list(got) == ["ünïcode\n%s\\"]
    assert difference(next(iter(got.values())), expected) <= 1e-6
    assert project.validate(per_layer=True).ok
