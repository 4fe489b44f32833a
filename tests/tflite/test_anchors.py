"""Convolutions and matrix products of .tflite files: the references' bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aotgen.errors import UnsupportedError
from aotgen.frontend import load
from aotgen.ir.interpreter import run
from aotgen.options import RequantMode
from tests.oracles import ORACLES, OracleLacks, litert, tflm
from tests.tflite.sweep_anchors import ANCHORS
from tests.tflite.sweep_batches import Report, difference, expected, sweep
from tests.tflite.sweep_models import Case, Draw, Operand, constant, int32s
from tests.tflite_builder import ModelBuilder

MODES: tuple[RequantMode, ...] = ("tflm", "litert")
F32 = np.float32


def drawn(count: int) -> list[Case]:
    """Cases of the operators of this file alone; each takes turns at its types."""
    made = []
    for number in range(count):
        entry = ANCHORS[number % len(ANCHORS)]
        kind = entry.kinds[(number // len(ANCHORS)) % len(entry.kinds)]
        c = entry.family(Draw(number), kind)
        made.append(
            Case(c.op, c.kind, c.inputs, c.outputs, c.options, version=c.version, number=number)
        )
    return made


def interpreted(model: bytes, feeds: Sequence[np.ndarray], mode: RequantMode) -> np.ndarray:
    graph = load(model, requant=mode)
    names = [v.name for v in graph.inputs]
    return next(iter(run(graph, dict(zip(names, feeds, strict=True))).values()))


@pytest.mark.parametrize("mode", MODES)
def test_drawn_models(mode: RequantMode) -> None:
    """The interpreter; the op sweep compiles such models."""
    report, wrong = Report(), []
    for case in drawn(700):
        known = expected(case, mode, report)
        if known is None:
            continue
        graph = load(case.model(), requant=mode)
        names = [v.name for v in graph.inputs]
        for step, feeds in enumerate(case.feeds()):
            outputs = run(graph, dict(zip(names, feeds, strict=True))).values()
            found = [
                difference(got, want)
                for got, want in zip(outputs, known.outputs[step], strict=True)
            ]
            wrong += [f"{case} step {step}: {text}" for text in found if text]
    assert not wrong, wrong[:10]
    assert len(report.unknown) < 10


# Scales next to ties


def _next_to_ties(real: float, reach: int, rng: np.random.Generator) -> np.ndarray:
    """Sums that ``real`` brings next to halves of whole numbers up to ``reach``."""
    halves = rng.integers(-reach, reach, 150) + 0.5
    sums = np.concatenate([np.rint(halves / real) + d for d in (-1, 0, 1)])
    return sums[np.abs(sums) < 2**31 - 1].astype(np.int32)


def _biased(op: str, dtype: str, sums: np.ndarray, scales: Sequence[np.float32]) -> bytes:
    """An operator whose input is all zeros, so that its sums are its bias ``sums``."""
    b = ModelBuilder()
    n, zero = len(sums), 128 if dtype == "uint8" else 0
    x_scale, w_scale, y_scale = scales
    rank = 2 if op == "FULLY_CONNECTED" else 4
    depth = n if op == "DEPTHWISE_CONV_2D" else 2
    x = b.input("x", (*(1,) * (rank - 1), depth), dtype, x_scale, zero)
    shape = {2: (n, 2), 4: (1, 1, 1, n) if depth == n else (n, 1, 1, 2)}[rank]
    per_channel = dtype == "int8"
    w = b.const(
        "w",
        np.ones(shape, np.uint8 if dtype == "uint8" else np.int8),
        np.full(n, w_scale) if per_channel else w_scale,
        np.zeros(n, int) if per_channel else zero,
        3 if depth == n else 0,
    )
    wide = dtype == "int16"
    bias = b.const("bias", sums.astype(np.int64 if wide else np.int32), x_scale * w_scale, 0)
    inputs = [x, w, bias]
    y_shape = (*(1,) * (rank - 1), n)
    if op == "TRANSPOSE_CONV":
        inputs = [b.const("shape", np.asarray(y_shape, np.int32)), w, x, bias]
    options: dict[str, Any] = {}
    if op != "FULLY_CONNECTED":
        options = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
    if op == "DEPTHWISE_CONV_2D":
        options["depth_multiplier"] = 1
    out = ("y", y_shape, dtype, y_scale, zero)
    b.output(b.op(op, inputs, out=out, options=options, version=3))
    return b.finish()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(
    "op", ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED"]
)
def test_multipliers_are_the_references(op: str, dtype: str) -> None:
    """A multiplier from float32 products differs from one of doubles here, one rounding from two,
    31 bits from 53.
    """
    rng = np.random.default_rng(5)
    ran = 0
    for _ in range(6):
        x_scale, w_scale = (F32(rng.uniform(0.5, 1)) for _ in range(2))
        reach = 30000 if dtype == "int16" else 110
        y_scale = F32(float(x_scale) * float(w_scale) * 2.0**30 / reach * rng.uniform(1, 2))
        sums = _next_to_ties(float(x_scale) * float(w_scale) / float(y_scale), reach, rng)
        model = _biased(op, dtype, sums, (x_scale, w_scale, y_scale))
        rank = 2 if op == "FULLY_CONNECTED" else 4
        depth = len(sums) if op == "DEPTHWISE_CONV_2D" else 2
        feed = np.full((*(1,) * (rank - 1), depth), 128 if dtype == "uint8" else 0, dtype)
        for mode in MODES:
            try:
                want = ORACLES[mode](model, [feed])[0]
            except OracleLacks:
                continue
            ran += 1
            assert np.array_equal(interpreted(model, [feed], mode), want), mode
    assert ran >= 6


@pytest.mark.parametrize("mode", MODES)
def test_batch_matmul_multiplier(mode: RequantMode) -> None:
    """tflite-micro multiplies scales as doubles, LiteRT rounds their product to float32."""
    rng = np.random.default_rng(6)
    depth = 1 << 16
    x = np.full((1, 1, depth), 127, np.int8)
    x[0, 0, -1] = 1
    for _ in range(4):
        x_scale, w_scale = (F32(rng.uniform(0.5, 1)) for _ in range(2))
        y_scale = F32(float(x_scale) * float(w_scale) * 2.0**28 / 60 * rng.uniform(1, 2))
        sums = _next_to_ties(float(x_scale) * float(w_scale) / float(y_scale), 100, rng)[:40]
        sums = sums[np.abs(sums) < 1 << 29]
        w = np.zeros((1, depth, len(sums)), np.int8)
        for column, total in enumerate(sums.tolist()):
            whole, w[0, -1, column] = divmod(total, 127)
            full, rest = divmod(abs(whole), 127)
            sign = 1 if whole >= 0 else -1
            w[0, :full, column] = 127 * sign
            w[0, full, column] = rest * sign
        b = ModelBuilder()
        a = b.input("a", x.shape, "int8", x_scale, 0)
        c = b.input("b", w.shape, "int8", w_scale, 0)
        out = ("y", (1, 1, len(sums)), "int8", y_scale, 0)
        b.output(b.op("BATCH_MATMUL", [a, c], out=out, version=4))
        model = b.finish()
        want = ORACLES[mode](model, [x, w])[0]
        assert np.array_equal(interpreted(model, [x, w], mode), want)


# Forms that the sweep does not draw


def special_cases(mode: RequantMode) -> list[Case]:
    d = Draw(1)
    rng = d.rng
    window = {"padding": "SAME", "stride_h": 2, "stride_w": 1}
    made: list[Case] = []

    def image(dtype: str, *shape: int, scale: float | None = 0.04, zero: int = 0) -> Operand:
        return Operand(shape, dtype, scale, zero if scale else None)

    def floats(*shape: int) -> Operand:
        return constant(rng.standard_normal(shape).astype(np.float32))

    def bytes_(*shape: int) -> np.ndarray:
        return rng.integers(-127, 128, shape).astype(np.int8)

    # int16 with a bias of 32 bits is scaled otherwise than with 64; LiteRT wants to be told
    narrow = {"quantized_bias_type": "INT32"}
    bias = constant(rng.integers(-(10**6), 10**6, 6).astype(np.int32), np.full(6, 4e-4), [0] * 6)
    w = constant(bytes_(6, 3, 3, 5), np.full(6, 0.01), [0] * 6)
    y = Operand((2, 4, 6, 6), "int16", 0.05, 0)
    made.append(
        Case("CONV_2D", "int16", [image("int16", 2, 7, 6, 5), w, bias], [y], {**window, **narrow})
    )
    if mode == "litert":  # the other reference takes the bias for int64
        y = Operand((2, 14, 6, 6), "int16", 0.05, 0)
        inputs = [int32s(*y.shape), w, image("int16", 2, 7, 6, 5), bias]
        made.append(Case("TRANSPOSE_CONV", "int16", inputs, [y], {**window, **narrow}, version=3))
    w = constant(bytes_(6, 20), np.full(6, 0.01), [0] * 6)
    y = Operand((4, 6), "int16", 0.05, 0)
    made.append(Case("FULLY_CONNECTED", "int16", [image("int16", 4, 20), w, bias], [y], narrow))
    # weights with a zero point of their own
    w = constant(bytes_(6, 20), 0.01, 9)
    bias = constant(rng.integers(-500, 500, 6).astype(np.int32), 4e-4, 0)
    y = Operand((4, 6), "int8", 0.1, -3)
    made.append(Case("FULLY_CONNECTED", "int8", [image("int8", 4, 20, zero=-9), w, bias], [y], {}))
    # weights known only at run time
    w = Operand((6, 20), "int8", 0.01, 0)
    made.append(Case("FULLY_CONNECTED", "int8", [image("int8", 4, 20, zero=-9), w, bias], [y], {}))
    # transposed convolutions to other sizes than the usual ones
    for kind, shape, padding in (
        ("float32", (1, 9, 8, 4), "SAME"),
        ("int8", (1, 9, 8, 4), "SAME"),
        ("int8", (1, 12, 14, 4), "VALID"),
        ("int8", (1, 5, 3, 4), "VALID"),
        ("uint8", (1, 10, 7, 4), "SAME"),
    ):
        scaled = kind != "float32"
        values = bytes_(4, 3, 2, 5)
        stored = values if kind == "int8" else values.astype(np.int16) + 128
        w = constant(stored.astype(kind), 0.01, 128 if kind == "uint8" else 0) if scaled else None
        x = image(kind, 1, 5, 4, 5, scale=0.04 if scaled else None, zero=7)
        y = Operand(shape, kind, 0.2 if scaled else None, 5 if scaled else None)
        inputs = [int32s(*shape), w or floats(4, 3, 2, 5), x]
        options = {"padding": padding, "stride_h": 2, "stride_w": 2}
        made.append(Case("TRANSPOSE_CONV", kind, inputs, [y], options, version=3))
    # three spatial axes
    options = {"padding": "SAME", "stride_d": 2, "stride_h": 1, "stride_w": 2}
    x = image("float32", 1, 5, 6, 7, 3, scale=None)
    y = Operand((1, 3, 6, 4, 4), "float32")
    made.append(Case("CONV_3D", "float32", [x, floats(3, 2, 3, 3, 4), floats(4)], [y], options))
    shape = (1, 9, 6, 14, 4)
    inputs = [int32s(*shape), floats(3, 2, 3, 4, 3), x, floats(4)]
    made.append(Case("CONV_3D_TRANSPOSE", "float32", inputs, [Operand(shape, "float32")], options))
    # float activations, integer weights
    for asymmetric in (False, True):
        options = {"asymmetric_quantize_inputs": asymmetric, "adj_y": asymmetric}
        x = image("float32", 2, 3, 16, scale=None)
        shape = (2, 5, 16) if asymmetric else (2, 16, 5)
        w = constant(bytes_(*shape), 0.02, 0)
        y = Operand((2, 3, 5), "float32")
        made.append(Case("BATCH_MATMUL", "hybrid", [x, w], [y], options, version=4))
    x = image("float32", 2, 7, 6, 3, scale=None)
    w = constant(bytes_(1, 3, 3, 6), np.linspace(0.01, 0.03, 6), [0] * 6, 3)
    y, options = Operand((2, 4, 6, 6), "float32"), {**window, "depth_multiplier": 2}
    made.append(Case("DEPTHWISE_CONV_2D", "hybrid", [x, w, floats(6)], [y], options, version=5))
    y = Operand((2, 4, 6, 5), "float32")
    w = constant(bytes_(5, 3, 3, 3), np.linspace(0.01, 0.03, 5), [0] * 5)
    made.append(Case("CONV_2D", "hybrid", [x, w, floats(5)], [y], window, version=5))
    w = constant(bytes_(5, 3, 3, 3).view(np.uint8), 0.02, 0)
    made.append(Case("CONV_2D", "hybrid", [x, w, floats(5)], [y], window, version=5))
    return [
        Case(c.op, c.kind, c.inputs, c.outputs, c.options, version=c.version, number=number)
        for number, c in enumerate(made)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_special_forms(mode: RequantMode) -> None:
    """In generated C, and so in the interpreter."""
    cases = special_cases(mode)
    report = sweep(cases, mode)
    assert not report.wrong and not report.refused, (report.wrong, report.refused)
    assert not report.unknown
    assert report.passed == len(cases)


def test_refusals() -> None:
    """What the references have no kernel for is refused with a reason."""
    b = ModelBuilder()
    x = b.input("x", (1, 4, 4, 2), "int8", 0.1, 0)
    made = []
    for name, zero, dtype in (("zero", 5, "int8"), ("type", 0, "uint8")):
        w = b.const(f"w{name}", np.ones((3, 1, 1, 2), dtype), 0.1, zero)
        bias = b.const(f"b{name}", np.zeros(3, np.int32), 0.01, 0)
        out = (name, (1, 4, 4, 3), "int8", 0.1, 0)
        options = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
        made.append(b.op("CONV_2D", [x, w, bias], out=out, options=options))
    b.output(*made)
    with pytest.raises(UnsupportedError) as caught:
        load(b.finish())
    reasons = [p.reason for p in caught.value.problems]
    assert "zero point 5" in reasons[0] and "do not go together" in reasons[1]
    for oracle in (tflm, litert):
        with pytest.raises(OracleLacks):
            oracle(b.finish(), [np.zeros((1, 4, 4, 2), np.int8)])
