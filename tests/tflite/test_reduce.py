"""Pools, reductions, softmax, norms, resizing: what the random sweep does not draw.

Every case is one operator; its outputs are those of the reference of the mode, byte for byte, in
the interpreter and in compiled C, where all cases are one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from aotgen.errors import UnsupportedError
from aotgen.frontend import tflite
from aotgen.ir import interpreter
from aotgen.options import RequantMode
from tests.support import share
from tests.tflite.sweep_batches import Report, difference, expected, sweep
from tests.tflite.sweep_models import Case, Operand, constant, int32s

MODES: tuple[RequantMode, ...] = ("tflm", "litert")

Shape = tuple[int, ...]


def quantized(shape: Shape, dtype: str, scale: float, zero: int = 0, **more: Any) -> Operand:
    return Operand(shape, dtype, float(np.float32(scale)), zero, **more)


def reduction(op: str, x: Operand, axes: Sequence[int], y: Operand | None = None) -> Case:
    """``op`` of ``x`` over ``axes``, which keeps the rank; the output's type is x's, or that of
    ``y``.
    """
    rank = len(x.shape)
    reduced = {a % rank for a in axes}
    shape = tuple(1 if a in reduced else n for a, n in enumerate(x.shape))
    like = x if y is None else y
    out = Operand(shape, like.dtype, like.scale, like.zero)
    return Case(op, x.dtype, [x, int32s(*axes)], [out], {"keep_dims": True})


def means() -> Iterator[Case]:
    """Counts from 1 to more than 2^16, scales that saturate and ones that give nothing but ties."""
    for dtype, low in (("int8", -128), ("uint8", 0), ("int16", 0)):
        for shape, axes in (((3, 1), [1]), ((2, 1000), [-1]), ((2, 70000), [1]), ((5, 2, 2), [0])):
            for scale in (0.1, 0.0003, 3000.0):
                x = quantized(shape, dtype, 0.1, low)
                yield reduction("MEAN", x, axes, quantized((), dtype, scale, low))
        x = quantized((40, 2, 3), dtype, 0.5, low)
        yield reduction("MEAN", x, [1, 1], quantized((), dtype, 0.25, low))
        yield reduction("SUM", x, [0, 2], quantized((), dtype, 7.0, low))


def products() -> Iterator[Case]:
    for dtype in ("int8", "int16"):
        for scale, scale_y, shape, axes in (
            (0.1, 0.1, (40, 4), [1]),
            (0.5, 0.25, (2, 7, 3), [0, 2]),
            (1.0, 1.0, (9, 1), [1]),
            (0.05, 0.2, (3, 16, 2), [1]),
        ):
            x = quantized(shape, dtype, scale, 3 if dtype == "int8" else 0)
            zero = -4 if dtype == "int8" else 0
            yield reduction("REDUCE_PROD", x, axes, quantized((), dtype, scale_y, zero))


def small(shape: Shape) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, step: rng.integers(-3, 4, shape)


def plain() -> Iterator[Case]:
    """Integers that are not quantized, and truth values."""
    shape = (3, 4, 5)
    for dtype in ("int32", "int64"):
        for op in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
            yield reduction(op, Operand(shape, dtype, values=small(shape)), [1, -1])
        yield Case("CUMSUM", dtype, [Operand(shape, dtype), int32s(1)], [Operand(shape, dtype)], {})
    for op in ("REDUCE_ANY", "REDUCE_ALL"):
        yield reduction(op, Operand((6, 3), "bool"), [1])
        yield reduction(op, Operand((2, 2, 2), "bool"), [0, -1])


def softmaxes() -> Iterator[Case]:
    """Scales from next to nothing to one where a single step decides; rows up to 511 equal values,
    beyond which the references stop.
    """
    for source, target, scale_y, zero_y in (
        ("int8", "int8", 2.0**-8, -128),
        ("uint8", "uint8", 2.0**-8, 0),
        ("int8", "int16", 2.0**-16, -32768),
        ("int16", "int16", 2.0**-15, 0),
    ):
        scales = (1e-4, 0.0107, 0.37, 1.3, 17.0)
        if source == "int16":
            scales = (2.0**-15, 10 / 65535, 0.00031, 0.004, 0.02)
        for scale in scales:
            for beta, shape in ((1.0, (13, 7)), (0.3, (5, 100)), (2.7, (2, 511)), (1.0, (3, 1))):
                x = quantized(shape, source, scale)
                y = quantized(shape, target, scale_y, zero_y)
                kind = f"{source} to {target}"
                yield Case("SOFTMAX", kind, [x], [y], {"beta": float(np.float32(beta))})
    for dtype, zero in (("int8", 127), ("uint8", 255)):
        for scale in (1e-4, 0.02, 0.9, 9.0):
            for shape in ((11, 6), (4, 300), (2, 1)):
                x, y = quantized(shape, dtype, scale), quantized(shape, dtype, 2.0**-4, zero)
                yield Case("LOG_SOFTMAX", dtype, [x], [y])
    yield Case("SOFTMAX", "float32", [Operand((4, 9), "float32")], [Operand((4, 9), "float32")],
               {"beta": 0.5})  # fmt: skip


def norms() -> Iterator[Case]:
    """Rows of nothing but zeros, of one step, and of the largest sum of squares."""

    def rows(shape: Shape, zero: int) -> Callable[[np.random.Generator, int], np.ndarray]:
        def values(rng: np.random.Generator, step: int) -> np.ndarray:
            lo = -128 if zero < 100 else 0
            x = rng.integers(lo, lo + 256, shape)
            x[0], x[1], x[2], x[3] = zero, zero, lo, lo + 255
            x[1, 0] = zero + 1 if step else zero - 1
            return x

        return values

    for dtype, zero, zero_y in (("int8", 3, 0), ("int8", -127, 0), ("uint8", 128, 128)):
        for count in (1, 2, 17, 300, 4000):
            shape = (6, count)
            x = quantized(shape, dtype, 0.1, zero, values=rows(shape, zero))
            yield Case("L2_NORMALIZATION", dtype, [x], [quantized(shape, dtype, 2.0**-7, zero_y)])
    shape = (2, 3, 4, 11)
    y = Operand(shape, "float32")
    for radius in (0, 1, 2, 20):
        options = {"radius": radius, "bias": 1.5, "alpha": 0.7, "beta": 0.75}
        yield Case("LOCAL_RESPONSE_NORMALIZATION", "float32", [y], [y], options)
    pool = {"padding": "SAME", "filter_height": 3, "filter_width": 2, "stride_h": 1, "stride_w": 1}
    yield Case("L2_POOL_2D", "float32", [y], [y], pool)


def pools() -> Iterator[Case]:
    """Whole images, more channels than a vector has, windows larger than the image."""
    for dtype in ("int8", "uint8", "int16", "float32"):
        for shape, kernel, stride, padding in (
            ((1, 7, 7, 67), (7, 7), (1, 1), "VALID"),
            ((2, 9, 11, 130), (3, 3), (2, 2), "SAME"),
            ((1, 40, 40, 3), (40, 40), (1, 1), "VALID"),
            ((1, 3, 2, 64), (5, 5), (1, 1), "SAME"),
            ((1, 8, 8, 19), (2, 2), (2, 2), "VALID"),
            ((1, 8, 9, 1), (3, 1), (3, 2), "SAME"),
        ):
            out = [
                -(-n // s) if padding == "SAME" else (n - k) // s + 1
                for n, k, s in zip(shape[1:3], kernel, stride, strict=True)
            ]
            for op, activation in (("AVERAGE_POOL_2D", "RELU6"), ("MAX_POOL_2D", "NONE"),
                                   ("MAX_POOL_2D", "RELU_N1_TO_1")):  # fmt: skip
                x = Operand(shape, dtype)
                if dtype != "float32":
                    x = quantized(shape, dtype, 0.06, 0 if dtype == "int16" else 17)
                y = Operand((shape[0], *out, shape[3]), dtype, x.scale, x.zero)
                options = {
                    "padding": padding,
                    "filter_height": kernel[0],
                    "filter_width": kernel[1],
                    "stride_h": stride[0],
                    "stride_w": stride[1],
                    "fused_activation_function": activation,
                }
                yield Case(op, dtype, [x], [y], options)


def resizes() -> Iterator[Case]:
    """Ratios whose float32 product falls to the other side of a whole number among them."""
    for dtype in ("int8", "uint8", "int16", "float32"):
        for shape, size in (
            ((1, 13, 17, 2), (33, 3)),
            ((2, 1, 1, 3), (4, 5)),
            ((1, 65, 33, 1), (129, 17)),
            ((1, 10, 41, 2), (29, 82)),
            ((1, 4, 4, 20), (8, 8)),
        ):
            for option in ("", "align_corners", "half_pixel_centers"):
                x = Operand(shape, dtype)
                if dtype != "float32":
                    x = quantized(shape, dtype, 0.1, 0)
                y = Operand((shape[0], *size, shape[3]), dtype, x.scale, x.zero)
                options = {option: True} if option else {}
                for op in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
                    yield Case(op, dtype, [x, int32s(*size)], [y], options)


def few(shape: Shape) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, step: rng.integers(0, 2, shape)


def positions() -> Iterator[Case]:
    """Extremes that several elements share: the first one counts."""
    shape = (4, 9, 3)
    for dtype in ("int8", "uint8", "int32", "float32"):
        for op in ("ARG_MAX", "ARG_MIN"):
            for kind in ("int32", "int64"):
                x = Operand(shape, dtype, values=few(shape))
                if dtype in ("int8", "uint8"):
                    x = quantized(shape, dtype, 0.1, values=few(shape))
                axis = constant(np.asarray(1, np.int32))
                out = Operand((4, 3), kind)
                yield Case(op, dtype, [x, axis], [out], {"output_type": kind.upper()})


def running_sums() -> Iterator[Case]:
    """Of quantized integers; sums beyond 32 bits among them."""
    for scale_y, zero_y in ((0.1, 3), (0.3, -7), (2.1, -100)):
        for exclusive in (False, True):
            for shape, axis in (((4, 6), 1), ((2, 30, 3), -2)):
                x, y = quantized(shape, "int8", 0.1, 3), quantized(shape, "int8", scale_y, zero_y)
                options = {"exclusive": exclusive, "reverse": not exclusive}
                yield Case("CUMSUM", "int8", [x, int32s(axis)], [y], options)


FAMILIES = (
    means,
    products,
    plain,
    softmaxes,
    norms,
    pools,
    resizes,
    positions,
    running_sums,
)


def numbered() -> list[Case]:
    """All cases, with numbers that tell them apart."""
    found = []
    for family in FAMILIES:
        for c in family():
            number = 900000 + len(found)
            found.append(Case(c.op, c.kind, c.inputs, c.outputs, c.options, number=number))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_interpreter(mode: RequantMode) -> None:
    report, wrong = Report(), []
    for case in numbered():
        known = expected(case, mode, report)
        if known is None:
            continue
        graph = tflite.load(case.model(), requant=mode)
        for feeds, wanted in zip(case.feeds(), known.outputs, strict=True):
            named = {f"x{i}": array for i, array in enumerate(feeds)}
            got = list(interpreter.run(graph, named).values())
            faults = [difference(a, b) for a, b in zip(got, wanted, strict=True)]
            wrong += [f"{case}: {fault}" for fault in faults if fault]
    assert not wrong, "\n".join(wrong)
    assert not report.unknown, "\n".join(report.unknown)


@pytest.mark.parametrize(
    ("mode", "part"), [("tflm", 0), pytest.param("tflm", 1, marks=pytest.mark.slow), ("litert", 0)]
)
def test_compiled(mode: RequantMode, part: int) -> None:
    """Half of the cases; in the second mode what it has of its own, beside a few others."""
    cases = numbered()
    if mode == "tflm":
        cases = share(cases, part)
    else:
        cases = [c for c in cases if c.op == "SOFTMAX" and c.kind.startswith("int16")] + cases[::16]
        cases = list({c.number: c for c in cases}.values())
    report = sweep(cases, mode, size=len(cases))
    assert not report.wrong, "\n".join(report.wrong)
    assert not report.refused, str(report.refused)
    assert not report.unknown and report.passed == len(cases), str(report)


def refusal(case: Case) -> str:
    with pytest.raises(UnsupportedError) as caught:
        tflite.load(case.model(), requant="tflm")
    return str(caught.value)


def test_refusals() -> None:
    """What no reference defines is refused, with the reason."""
    x = quantized((2, 8), "int8", 0.1, 3)
    y = quantized((2, 8), "int8", 0.01, -128)
    wrong_scale = Case("SOFTMAX", "int8", [x], [y], {"beta": 1.0})
    assert "must have 0.00390625 and -128" in refusal(wrong_scale)
    other = quantized((), "int8", 0.2, 3)
    assert "different scales" in refusal(reduction("REDUCE_MAX", x, [1], other))
    assert "out of range" in refusal(reduction("MEAN", x, [1, 2]))
    size = Operand((2,), "int32")
    image = quantized((1, 4, 4, 1), "int8", 0.1)
    unknown = Case("RESIZE_BILINEAR", "int8", [image, size], [image])
    assert "known only at run time" in refusal(unknown)
    both = {"align_corners": True, "half_pixel_centers": True}
    exclusive = Case("RESIZE_BILINEAR", "int8", [image, int32s(4, 4)], [image], both)
    assert "exclude each other" in refusal(exclusive)
