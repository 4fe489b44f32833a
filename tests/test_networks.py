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

# torchvision's documentation gives the first three. MLPerf Tiny's keyword model has 24,908
# parameters as Keras counts them: with running mean and variance, which the other counts omit.
PARAMETERS = {
    "resnet18": 11_689_512,
    "mobilenet_v2": 3_504_872,
    "squeezenet1_1": 1_235_496,
    "ds_cnn": 24_908 - 2 * 9 * 64,
    "transformer": 3_159_040,
}


@pytest.fixture(scope="module", params=list(networks.NETWORKS))
def built(request: pytest.FixtureRequest) -> tuple[str, onnx.ModelProto]:
    return request.param, networks.build(request.param)


def test_checker_accepts(built: tuple[str, onnx.ModelProto]) -> None:
    _, model = built
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17}


def test_parameter_count_is_the_published_one(built: tuple[str, onnx.ModelProto]) -> None:
    name, model = built
    count = sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if "running_" not in tensor.name
    )
    assert count == PARAMETERS[name]


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
    assert bool(statistics) == (name in {"resnet18", "mobilenet_v2", "ds_cnn"})
    for tensor in statistics:
        values = onnx.numpy_helper.to_array(tensor)
        assert np.isfinite(values).all()
        assert values.std() > 0
        assert "running_var" not in tensor.name or (values > 1e-3).all()


@pytest.mark.parametrize("name", ["ds_cnn", "squeezenet1_1"])
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
