"""The benchmark networks: valid ONNX that onnxruntime runs, deterministic, sane activations."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import networks  # noqa: E402

INCEPTION_AUXILIARY = (768 * 128 + 2 * 128) + (128 * 768 * 5 * 5 + 2 * 768) + (768 * 1000 + 1000)
"""Inception's auxiliary classifier: two convolutions with BatchNorm, and a linear layer."""

PARAMETERS = {
    # torchvision's documentation
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856,
    "squeezenet1_1": 1_235_496,
    "vgg16": 138_357_544,
    "densenet121": 7_978_856,
    "inception_v3": 27_161_264 - INCEPTION_AUXILIARY,
    "r3d_18": 33_371_472,
    # Keras; its count of all parameters has running mean and variance, which the others omit.
    "mobilenet_v1": 4_253_864 - 21_888,
    # MLPerf Tiny, counted by Keras
    "ds_cnn": 24_908 - 2 * 9 * 64,
    "fc_autoencoder": 269_992 - 2 * (8 * 128 + 8),
    "transformer": 3_159_040,
}
LARGE = {"vgg16", "r3d_18"}
WITHOUT_BATCH_NORM = {"squeezenet1_1", "vgg16", "transformer"}


def _slow_if_large(name: str) -> object:
    return pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])


@pytest.fixture(scope="module", params=[_slow_if_large(name) for name in networks.NETWORKS])
def built(request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    return request.param, networks.build(request.param)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_structure_is_valid_and_has_the_published_parameter_count(name: str) -> None:
    model = networks.skeleton(name)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17}
    count = sum(
        int(np.prod([d.dim_value for d in value.type.tensor_type.shape.dim]))
        for value in model.graph.input
        if value.name != networks.INPUT and "running_" not in value.name
    )
    assert count == PARAMETERS[name]


def test_built_network_is_its_skeleton_with_weights(built: tuple[str, onnx.ModelProto]) -> None:
    name, model = built
    onnx.checker.check_model(model, full_check=True)
    skeleton = networks.skeleton(name)
    assert list(model.graph.node) == list(skeleton.graph.node)
    shapes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in skeleton.graph.input
        if value.name != networks.INPUT
    }
    assert {t.name: list(t.dims) for t in model.graph.initializer} == shapes


def test_onnxruntime_output_neither_vanishes_nor_saturates(
    built: tuple[str, onnx.ModelProto],
) -> None:
    name, model = built
    (y,) = networks.session(model).run(None, {"input": networks.sample_input(name)})
    assert y.shape == networks.NETWORKS[name].output_shape
    if name == "ds_cnn":  # probabilities
        assert y.sum() == pytest.approx(1, abs=1e-6)
        assert y.max() < 0.9
    else:
        assert 0.1 < y.std() < 10


def test_inner_activations_are_sane(built: tuple[str, onnx.ModelProto]) -> None:
    name, model = built
    inner = [
        node.output[0]
        for node in model.graph.node
        if node.op_type in {"Conv", "BatchNormalization", "Gemm", "Add", "LayerNormalization"}
    ]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(
        onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None) for value in inner
    )
    values = networks.session(probe).run(None, {"input": networks.sample_input(name)})
    deviations = {value: float(y.std()) for value, y in zip(inner, values, strict=True)}
    assert all(0.1 < deviation < 10 for deviation in deviations.values()), deviations


def test_batch_norm_statistics_are_not_trivial(built: tuple[str, onnx.ModelProto]) -> None:
    name, model = built
    statistics = [t for t in model.graph.initializer if "running_" in t.name]
    assert bool(statistics) == (name not in WITHOUT_BATCH_NORM)
    for tensor in statistics:
        values = onnx.numpy_helper.to_array(tensor)
        assert np.isfinite(values).all()
        assert values.std() > 0
        assert "running_var" not in tensor.name or (values > 1e-3).all()


@pytest.mark.parametrize("name", ["ds_cnn", "squeezenet1_1", "fc_autoencoder"])
def test_same_bytes_in_another_process(name: str, tmp_path: Path) -> None:
    script = (
        "import hashlib, networks\n"
        f"data = networks.build({name!r}).SerializeToString(deterministic=True)\n"
        "print(hashlib.sha256(data).hexdigest())\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    data = networks.build(name).SerializeToString(deterministic=True)
    assert done.stdout.strip() == hashlib.sha256(data).hexdigest()


def test_export_writes_a_model_and_its_reference(tmp_path: Path) -> None:
    path = networks.export("ds_cnn", tmp_path)
    with np.load(path.with_suffix(".npz")) as arrays:
        (y,) = networks.session(path).run(None, {"input": arrays["input"]})
        np.testing.assert_array_equal(y, arrays["output"])


def test_seed_changes_the_weights() -> None:
    assert networks.build("ds_cnn", 1) != networks.build("ds_cnn", 2)


def test_convolutions_of_conv_peak_are_as_promised(tmp_path: Path) -> None:
    import conv_peak

    drawn = conv_peak.cases(40)
    assert drawn == conv_peak.cases(40)
    assert len(drawn) == 40
    assert all(min(case.in_channels, case.out_channels) >= 64 for case in drawn)
    assert all(case.size % 2 == 1 for case in drawn)
    assert any(case.stride > 1 for case in drawn)
    assert any(case.dilation > 1 for case in drawn)
    for index, case in enumerate(drawn[:6]):
        path, x = conv_peak.export(case, index, tmp_path)
        (y,) = networks.session(path).run(None, {"input": x})
        assert y.shape == (1, case.out_size, case.out_size, case.out_channels)


def test_rival_answers_with_latencies_and_the_reference_output(tmp_path: Path) -> None:
    import measure

    path = networks.export("ds_cnn", tmp_path)
    with measure.OrtSide(path, path.with_suffix(".npz")) as rival:
        times = rival.round_ms(3)
        assert len(times) == 3
        assert min(times) > 0
        with np.load(path.with_suffix(".npz")) as arrays:
            assert measure.relative_error(rival.output(), arrays["output"]) < 1e-5


class _Steady:
    """A side of a comparison whose inferences all last the same; keeps what it was asked for."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.asked: list[tuple[int, int]] = []

    def round_ms(self, count: int, warm_up: int) -> list[float]:
        self.asked.append((count, warm_up))
        return [self.milliseconds] * count


def test_rounds_last_a_tenth_of_a_second_or_one_inference() -> None:
    import measure

    quick, slow = _Steady(1.0), _Steady(400.0)
    assert measure.interleave([quick, slow], 4) == [[1.0] * 4, [400.0] * 4]
    assert quick.asked == [(2, 1)] + [(100, measure.WARM_UP)] * 4
    assert slow.asked == [(2, 1)] + [(1, 1)] * 4


def test_speed_names_the_networks_that_are_slower_than_the_rival() -> None:
    import speed

    results = [
        speed.Result(name, (ratio,), (1.0,), ratio, 0.0, 10, 10, "1.0")
        for name, ratio in {"a": 0.5, "b": 1.25, "c": 1.6, "d": 1.0}.items()
    ]
    assert speed.geometric_mean(results) == pytest.approx(1.0)
    assert "1.000" in speed.summary(results)
    assert "slower than onnxruntime: c (1.60), b (1.25)" in speed.summary(results)
    assert "none" in speed.summary(results[:1])
