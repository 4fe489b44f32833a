"""Fused float operators of onnxruntime's domain against onnxruntime."""

from __future__ import annotations

import numpy as np

from aotgen.frontend.onnx import check, load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from tests.quantized_cases import MICROSOFT, Builder, distance, reference


def _close(b: Builder) -> None:
    model = b.model()
    graph = load(model)
    verify(graph)
    expected = reference(model, b.feeds)
    for name, got in run(graph, b.feeds).items():
        assert distance(got, expected[name]) <= b.steps[name], name


def test_fused_products() -> None:
    b = Builder()
    a, w, c = b.fed(b.floats(3, 5)), b.const(b.floats(4, 5)), b.const(b.floats(4))
    for activation, more in [
        ("Relu", {}),
        ("Tanh", {}),
        ("Sigmoid", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ]:
        more |= {"activation": activation, "transB": 1, "domain": MICROSOFT}
        b.output(b.node("FusedGemm", [a, w, c], **more), 1e-6)
    _close(b)


def test_norms() -> None:
    b = Builder()
    x, skip, gamma = b.fed(b.floats(2, 3, 8)), b.fed(b.floats(2, 3, 8)), b.const(b.floats(8))
    beta, bias = b.const(b.floats(8)), b.const(b.floats(8))
    y = b.node("SkipLayerNormalization", [x, skip, gamma, beta, bias], 4, domain=MICROSOFT)
    b.output(y, 1e-5)
    b.output(y[:-1] + "3", 1e-6)
    op = "SkipSimplifiedLayerNormalization"
    y = b.node(op, [x, skip, gamma, bias], 4, domain=MICROSOFT, epsilon=1e-5)
    b.output(y, 1e-5)
    b.output(y[:-1] + "3", 1e-6)
    b.output(b.node("SimplifiedLayerNormalization", [x, gamma], axis=-1, epsilon=1e-5), 1e-5)
    b.output(b.node("QuickGelu", [x], domain=MICROSOFT), 1e-5)
    b.output(b.node("Gelu", [x], domain=MICROSOFT), 1e-5)
    _close(b)


def test_embeddings() -> None:
    b = Builder()
    ids = b.fed(b.random.integers(0, 20, (2, 6)).astype(np.int32))
    segments = b.fed(b.random.integers(0, 2, (2, 6)).astype(np.int32))
    tables = [b.const(b.floats(n, 8)) for n in (20, 10, 2)]
    norm = [b.const(b.floats(8)), b.const(b.floats(8))]
    mask = b.fed(np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]], np.int32))
    y = b.node(
        "EmbedLayerNormalization", [ids, segments, *tables, *norm, mask], 2, domain=MICROSOFT
    )
    b.output(y, 1e-5)
    b.output(y[:-1] + "1", 0)
    _close(b)


def test_attention() -> None:
    b = Builder()
    x, w, bias = b.fed(b.floats(2, 6, 8)), b.const(b.floats(8, 24)), b.const(b.floats(24))
    lengths = b.fed(np.array([4, 6], np.int32))
    raw = b.fed(b.random.integers(0, 2, (2, 6)).astype(np.int32))
    for inputs, more in [
        ([x, w, bias], {}),
        ([x, w, bias], {"unidirectional": 1, "scale": 0.4}),
        ([x, w, bias, lengths], {}),
        ([x, w, bias, raw], {"mask_filter_value": -50.0}),
    ]:
        b.output(b.node("Attention", inputs, num_heads=2, domain=MICROSOFT, **more), 1e-5)
    q, k, v = b.fed(b.floats(2, 3, 8)), b.fed(b.floats(2, 6, 8)), b.fed(b.floats(2, 6, 4))
    bias = b.const(b.floats(20))
    for inputs in ([q, k, v], [q, k, v, bias], [q, k, v, "", lengths], [q, k, v, bias, raw]):
        b.output(b.node("MultiHeadAttention", inputs, num_heads=2, domain=MICROSOFT), 1e-5)
    _close(b)


def test_attention_in_half() -> None:
    b = Builder()
    x, w, bias = (b.floats(*s).astype(np.float16) for s in ((2, 6, 8), (8, 24), (24,)))
    x, w, bias = b.fed(x), b.const(w, np.float16), b.const(bias, np.float16)
    lengths = b.fed(np.array([4, 6], np.int32))
    for inputs, more in [([x, w, bias, lengths], {}), ([x, w, bias], {"unidirectional": 1})]:
        y = b.node("Attention", inputs, num_heads=2, domain=MICROSOFT, **more)
        b.output(b.node("Cast", [y], to=1), 5e-3)
    _close(b)


def test_a_cache_is_refused() -> None:
    b = Builder()
    x, w, bias = b.fed(b.floats(2, 6, 8)), b.const(b.floats(8, 24)), b.const(b.floats(24))
    past = b.fed(b.floats(2, 2, 2, 5, 4))
    y = b.node("Attention", [x, w, bias, "", past], 2, num_heads=2, domain=MICROSOFT)
    b.output(y)
    b.output(y[:-1] + "1")
    problems = check(b.model())
    assert any("cache of earlier keys" in p.reason for p in problems)
