"""Unusual but legal .tflite models, each once computed or printed wrongly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.frontend import load
from aotgen.ir.interpreter import run
from tests.e2e.quick_build import QuickModel
from tests.oracles import litert, tflm
from tests.support import require_module, require_tool
from tests.tflite_builder import ModelBuilder


@pytest.mark.parametrize(
    ("op", "scale", "zero"), [("TANH", 1 / 128, 0), ("LOGISTIC", 1 / 256, -128)]
)
@pytest.mark.parametrize("x_scale", [7.9, 8.0, 10.0, 1e10])
def test_saturating_sigmoid(op: str, scale: float, zero: int, x_scale: float) -> None:
    """From an input scale of 8 on tflite-micro gives the lowest value for 0 itself."""
    require_module("tflite_micro")
    b = ModelBuilder()
    x = b.input("x", (256,), "int8", x_scale, 5)
    b.output(b.op(op, [x], out=("y", (256,), "int8", scale, zero)))
    feed = np.arange(-128, 128, dtype=np.int8)
    (got,) = run(load(b.finish(), requant="tflm"), {"x": feed}).values()
    assert np.array_equal(got, tflm(b.finish(), [feed])[0])


def test_names_and_outputs(tmp_path: Path) -> None:
    """Names that would end a comment, twice the same, missing; an output listed twice, an input and
    a constant that are outputs, an input that nothing reads.
    """
    require_tool("gcc")
    require_module("tflite_micro")
    b = ModelBuilder()
    x = b.input('日本*/ " \n%s\\', (1, 4), "int8", 0.1, 3)
    z = b.input("", (1, 4), "int8", 0.1, 3)
    b.input("int", (2,), "int8", 0.1, 3)
    y = b.op("ADD", [x, z], out=('日本*/ " \n%s\\', (1, 4), "int8", 0.2, 0))
    r = b.op("RELU", [y], out=("", (1, 4), "int8", 0.2, 0))
    b.output(r, y, r, x, b.const("c", np.arange(5, dtype=np.int8), 0.1, 0))
    path = tmp_path / "m.tflite"
    path.write_bytes(b.finish())
    feeds = [np.array([[-128, 0, 7, 127]], np.int8), np.array([[1, -2, 3, -4]], np.int8)]
    feeds.append(np.zeros(2, np.int8))
    want = tflm(b.finish(), feeds)
    graph = load(path, requant="tflm")
    named = dict(zip([v.name for v in graph.inputs], feeds, strict=True))
    interpreted = list(run(graph, named).values())
    project = aotgen.compile(path, "host", tmp_path / "p", weights="bin")
    assert len({t["name"] for t in project.manifest["outputs"]}) == len(want)
    for got in (interpreted, QuickModel(project).run(named)):
        assert [a.tolist() for a in got] == [a.tolist() for a in want]


def test_clang_has_nothing_to_warn_of(tmp_path: Path) -> None:
    """A tensor compared to itself, a depthwise kernel that never lies inside its input."""
    require_tool("clang")
    require_module("ai_edge_litert")
    b = ModelBuilder()
    x = b.input("x", (1, 2, 3, 20), "int8", 0.1, 3)
    for op in ("EQUAL", "NOT_EQUAL", "LESS", "GREATER_EQUAL"):
        b.output(b.op(op, [x, x], out=(op, (1, 2, 3, 20), "bool")))
    for op in ("MAXIMUM", "MINIMUM"):
        b.output(b.op(op, [x, x], out=(op, (1, 2, 3, 20), "int8", 0.1, 3)))
    w = b.const("w", np.arange(300).reshape(1, 3, 5, 20).astype(np.int8), 0.01, 0, 3)
    bias = b.const("b", np.arange(20, dtype=np.int32), 0.001, 0)
    options = {"padding": "SAME", "stride_w": 1, "stride_h": 1, "depth_multiplier": 1}
    out = ("y", (1, 2, 3, 20), "int8", 1.0, -5)
    b.output(b.op("DEPTHWISE_CONV_2D", [x, w, bias], out=out, options=options))
    path = tmp_path / "m.tflite"
    path.write_bytes(b.finish())
    feed = np.random.default_rng(0).integers(-128, 128, (1, 2, 3, 20)).astype(np.int8)
    want = litert(b.finish(), [feed])
    for board in ("host", "host-scalar"):
        made = aotgen.compile(path, board, tmp_path / board, weights="bin", requant="litert")
        for got, right in zip(QuickModel(made, "clang").run({"x": feed}), want, strict=True):
            assert np.array_equal(got, right)


@pytest.mark.parametrize("behind", ["concat", "relu", "none"])
def test_operators_that_move_elements_may_change_what_they_stand_for(
    behind: str, tmp_path: Path
) -> None:
    """The interpreters copy the integers, whatever scales the file gives to both sides."""
    require_tool("gcc")
    require_module("tflite_micro")
    b = ModelBuilder()
    x = b.input("x", (1, 6, 4, 3), "int8", 0.04, -5)
    r = b.op("RELU", [x], out=("r", (1, 6, 4, 3), "int8", 0.04, -5))
    perm = b.const("perm", np.array([0, 2, 1, 3], np.int32))
    t = b.op("TRANSPOSE", [r, perm], out=("t", (1, 4, 6, 3), "int8", 0.08, 7))
    if behind == "concat":
        out = ("c", (1, 4, 12, 3), "int8", 0.08, 7)
        t = b.op("CONCATENATION", [t, t], out=out, options={"axis": 2}, version=2)
    elif behind == "relu":
        t = b.op("RELU", [t], out=("c", (1, 4, 6, 3), "int8", 0.08, 7))
    width = 12 if behind == "concat" else 6
    b.output(b.op("TRANSPOSE", [t, perm], out=("y", (1, width, 4, 3), "int8", 0.02, 9)))
    path = tmp_path / "m.tflite"
    path.write_bytes(b.finish())
    feed = np.random.default_rng(0).integers(-128, 128, (1, 6, 4, 3)).astype(np.int8)
    project = aotgen.compile(path, "host", tmp_path / "p", weights="bin")
    (got,) = QuickModel(project).run({"x": feed})
    assert np.array_equal(got, tflm(b.finish(), [feed])[0])
    quant = project.manifest["outputs"][0]["quant"]
    assert (quant["scale"], quant["zero_point"]) == ([np.float32(0.02)], [9])
