"""constant_channels on real models: how much goes, and the bytes of the reference runtimes stay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.ir import interpreter
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import Array
from aotgen.loading import load
from aotgen.ops.registry import op_def
from aotgen.options import RequantMode
from aotgen.passes.intervals import Intervals
from aotgen.passes.pipeline import run_passes
from scripts.coverage import DEFAULT_COLLECTION
from scripts.model_collection import StoredModel
from scripts.tflite_collection import MODES, must_be_exact, tflite_models
from tests.oracles import ORACLES, OracleLacks
from tests.support import require, require_shared, require_tool

PASS = "constant_channels"
VWW = "models/mlperf_tiny/vww_96_int8.tflite"
HERE = (DEFAULT_COLLECTION / "models.json").is_file()
MODELS = tflite_models(DEFAULT_COLLECTION) if HERE else []
INTEGER = [model for model in MODELS if must_be_exact(model)]

MOST_MACS = 3e8
"""Of a model that the interpreter runs here."""


def graphs(path: Path, mode: RequantMode | None) -> tuple[Graph, Graph]:
    """The model after all passes, without and with the one."""
    before = run_passes(load(path, requant=mode), disabled=[PASS])
    return before, run_passes(load(path, requant=mode), verify=True)


def macs(graph: Graph) -> int:
    return sum(count(node) for node in graph.nodes if (count := op_def(node.op).macs))


def weight_bytes(graph: Graph) -> int:
    return sum(node.input(1).type.nbytes for node in graph.nodes if node.op == "qconv")


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Of integers any, of floats some beyond what is quantized."""
    rng, feeds = np.random.default_rng(seed), {}
    for value in graph.inputs:
        if value.dtype.is_float:
            feeds[value.name] = rng.normal(0, 3, value.shape).astype(value.dtype.numpy)
        else:
            info = np.iinfo(value.dtype.numpy)
            drawn = rng.integers(info.min, info.max, value.shape, endpoint=True)
            feeds[value.name] = drawn.astype(value.dtype.numpy)
    return feeds


def compare(path: Path, mode: RequantMode, seeds: int) -> None:
    """Both graphs give the same bytes, those of the reference where it runs the model; what runs
    through the first one lies in its intervals."""
    before, after = graphs(path, mode)
    intervals = Intervals(before)

    def check(value: Value, array: Array) -> None:
        known = intervals.of(value)
        if known is not None and array.size:
            rows = array.reshape(-1, len(known.lo))
            assert np.all(rows >= known.lo) and np.all(rows <= known.hi), value

    for seed in range(seeds):
        feeds, want = interpreter.run_drawn(before, random_inputs(before, seed))
        interpreter.run(before, feeds, observe=check)
        got = interpreter.run(after, feeds)
        assert all(np.array_equal(got[name], want[name]) for name in want)
        try:
            reference = ORACLES[mode](path.read_bytes(), list(feeds.values()))
        except OracleLacks:
            continue
        for name, array in zip(got, reference, strict=True):
            if array.dtype.kind in "iu":
                assert np.array_equal(got[name], array.reshape(got[name].shape)), name


def test_visual_wake_words() -> None:
    """A network of MLPerf Tiny most of whose channels are constant."""
    path = require_shared(VWW)
    before, after = graphs(path, "tflm")
    products = [node for node in before.nodes if node.op in ("qconv", "qmatmul")]
    intervals = Intervals(before)
    constant = sum(int(intervals.constant(node.output).sum()) for node in products)
    assert sum(node.output.shape[-1] for node in products) == 2738 and constant >= 1650
    assert macs(before) == 7_489_664 and macs(after) <= 3_900_000
    assert weight_bytes(before) == 207_600 and weight_bytes(after) <= 33_000


@pytest.mark.parametrize("mode", MODES)
def test_bytes_of_visual_wake_words(mode: RequantMode) -> None:
    compare(require_shared(VWW), mode, seeds=3)


def test_networks_without_constant_channels_stay() -> None:
    for name in ("kws_ref_model", "pretrainedResnet_quant", "ad01_int8"):
        before, after = graphs(require_shared(f"models/mlperf_tiny/{name}.tflite"), "tflm")
        assert [v.type for v in before.values()] == [v.type for v in after.values()]


def test_layer_by_layer(tmp_path: Path) -> None:
    """The compiled layers have the reduced channels, and are compared as such."""
    require_tool("gcc", "cmake")
    path = require_shared("models/audio_kws/keyword_scrambled_svdf_int8.tflite")
    project = aotgen.compile(path, "host", tmp_path / "p")
    report = project.validate(per_layer=True)
    assert report.ok and all(layer.difference for layer in report.layers)
    _, after = graphs(path, "tflm")
    shapes = {v.name: list(v.shape) for node in after.nodes for v in node.outputs}
    manifest = json.loads((project.folder / "manifest.json").read_text())
    for layer in manifest["layers"]:
        assert layer["shape"] == shapes[layer["outputs"][0]]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", INTEGER or [None], ids=lambda m: m.name if m else "none")
def test_collection(model: StoredModel | None, mode: RequantMode) -> None:
    require(model is not None, "the collection of real models")
    assert model is not None
    if macs(load(model.path, requant=mode)) > MOST_MACS:
        pytest.skip("takes the interpreter minutes")
    compare(model.path, mode, seeds=2)
