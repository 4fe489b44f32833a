"""The digits example: the stored network is as good as promised, and its training is sound."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from support import require_module

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
sys.path.insert(0, str(DIGITS))


def run(model: bytes, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"input": image[None]})[0] for image in images])


def test_stored_network_classifies_the_test_split() -> None:
    with np.load(DIGITS / "digits_test.npz") as split:
        images, labels = split["images"].astype(np.float32) / 16, split["labels"]
    assert images.shape == (450, 1, 8, 8)
    logits = run((DIGITS / "digits.onnx").read_bytes(), images)
    assert (logits.argmax(1) == labels).mean() >= 0.97


def test_stored_network_is_small_and_valid() -> None:
    onnx.checker.check_model(str(DIGITS / "digits.onnx"), full_check=True)
    assert (DIGITS / "digits.onnx").stat().st_size < 300_000
    assert (DIGITS / "digits_test.npz").stat().st_size < 100_000


def test_training_gradients_agree_with_finite_differences() -> None:
    require_module("sklearn")
    import train

    rng = np.random.default_rng(0)
    layers = train.network(rng)
    for layer in layers:
        if layer.parameters:
            layer.parameters = [p.astype(np.float64) for p in layer.parameters]
    x = rng.standard_normal((2, 1, 8, 8))
    direction = rng.standard_normal((2, 10))
    train.forward(layers, x)
    gradient = direction
    for layer in reversed(layers):
        gradient = layer.backward(gradient)
    for layer in (layers[0], layers[2], layers[5], layers[8]):
        for parameter, analytic in zip(layer.parameters, layer.gradients, strict=True):
            step = 1e-6 * rng.standard_normal(parameter.shape)
            parameter += step
            above = (train.forward(layers, x) * direction).sum()
            parameter -= 2 * step
            below = (train.forward(layers, x) * direction).sum()
            parameter += step
            assert (above - below) / 2 == pytest.approx((analytic * step).sum(), rel=1e-3, abs=1e-9)


def test_exported_network_computes_what_was_trained() -> None:
    require_module("sklearn")
    import train

    rng = np.random.default_rng(1)
    layers = train.network(rng)
    x = rng.random((4, 1, 8, 8), np.float32)
    expected = train.forward(layers, x)
    np.testing.assert_allclose(
        run(train.to_onnx(layers).SerializeToString(), x), expected, rtol=1e-4, atol=1e-5
    )
