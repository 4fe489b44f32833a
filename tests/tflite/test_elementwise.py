"""Element-wise operators: every 8-bit value and pair of values, int16 values all along the range.

Every case is one operator; its outputs are those of the reference of the mode, byte for byte, in
the interpreter and in compiled C, where all cases are one model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgen
from aotgen.errors import UnsupportedError
from aotgen.frontend import tflite
from aotgen.ir import interpreter
from aotgen.options import RequantMode
from tests.oracles import ORACLES
from tests.support import require_module, require_tool
from tests.tflite.sweep_batches import Report, difference, expected, sweep
from tests.tflite.sweep_models import Case, Operand, constant
from tests.tflite_builder import ModelBuilder

Array = np.ndarray
Shape = tuple[int, ...]

MODES: tuple[RequantMode, ...] = ("tflm", "litert")

CROSS = {
    "rpi4": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "rpi3b-armv7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
}

ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")


def quantized(shape: Shape, dtype: str, scale: float, zero: int = 0, **more: Any) -> Operand:
    return Operand(shape, dtype, float(np.float32(scale)), zero, **more)


def fed(values: Array, scale: float | None = None, zero: int = 0) -> Operand:
    """An input that has ``values``, in another order at each step."""

    def at(rng: np.random.Generator, step: int) -> Array:
        return np.roll(values, step * 5, axis=-1)

    name = values.dtype.name
    if scale is None:
        return Operand(values.shape, name, values=at)
    return quantized(values.shape, name, scale, zero, values=at)


def every(dtype: str, step: int = 1) -> Array:
    """[1, n]: all values of an integer type, or one in ``step`` and the ends."""
    info = np.iinfo(dtype)
    return np.append(np.arange(info.min, info.max, step), info.max).astype(dtype)[None]


def zero_of(dtype: str, zero: int) -> int:
    """A zero point like ``zero`` of int8."""
    return {"int8": zero, "uint8": zero + 128, "int16": 0}[dtype]


def unary(op: str, x: Operand, scale: float, zero: int, **options: Any) -> Case:
    return Case(op, x.dtype, [x], [quantized(x.shape, x.dtype, scale, zero)], options)


FIXED_OUTPUTS = {
    "LOGISTIC": {"int8": (2**-8, -128), "uint8": (2**-8, 0), "int16": (2**-15, 0)},
    "TANH": {"int8": (2**-7, 0), "uint8": (2**-7, 128), "int16": (2**-15, 0)},
}

SCALES = ((0.04, 0.03, 7, -3), (0.04, 0.04, 7, 7), (2.0**-8, 0.0071, -60, 100), (0.7, 0.9, 0, -128))
"""Of input and output, and their zero points. One of 2^-8 meets ties; 0.04 twice needs no
multiplier."""


def tables() -> Iterator[Case]:
    """Functions of one quantized input."""
    for dtype, narrow, values in (
        ("int8", 1.0, every("int8")),
        ("uint8", 1.0, every("uint8")),
        ("int16", 1 / 256, every("int16", 7)),
    ):
        for scale_x, scale, zero_x, zero in SCALES:
            x = fed(values, scale_x * narrow, zero_of(dtype, zero_x))
            scale, zero = scale * narrow, zero_of(dtype, zero)
            for op in ("RELU", "RELU6"):
                yield unary(op, x, scale, zero)
            yield unary("LEAKY_RELU", x, scale, zero, alpha=0.3)
            for op in ("LOGISTIC", "TANH"):
                yield unary(op, x, *FIXED_OUTPUTS[op][dtype])
            if dtype != "int16":
                for op in ("HARD_SWISH", "RELU_N1_TO_1", "RELU_0_TO_1"):
                    # A fine input scale and a coarse one: LiteRT refuses the opposite.
                    yield unary(op, x, max(scale, scale_x / 64), zero)
                yield unary("GELU", x, scale, zero, approximate=False)
                yield unary("GELU", x, scale, zero, approximate=True)
            if dtype != "uint8":
                for op in ("ABS", "EXP", "LOG", "NEG"):
                    yield unary(op, x, scale, zero)
                positive = np.maximum(values, zero_of(dtype, zero_x)).astype(dtype)
                root = fed(positive, scale_x * narrow, zero_of(dtype, zero_x))
                yield unary("SQRT", root, scale, zero)
                if dtype == "int8":
                    yield unary("RSQRT", root, scale, zero)
                    yield unary("ELU", x, scale, zero)
    # Scales of int16 whose multiplication is a shift.
    for exponent in (-10, -11, -12, -13):
        x = fed(every("int16", 7), 2.0**exponent)
        yield unary("LOGISTIC", x, *FIXED_OUTPUTS["LOGISTIC"]["int16"])
        yield unary("TANH", x, *FIXED_OUTPUTS["TANH"]["int16"])


def requantizations() -> Iterator[Case]:
    inputs = {
        "int8": every("int8"),
        "uint8": every("uint8"),
        "int16": every("int16", 11),
        "int32": (every("int16", 11).astype(np.int32) * 60013)[:, ::3],
    }
    targets = {
        "int8": ("int8", "uint8", "int16", "int32"),
        "uint8": ("int8", "uint8", "int16"),
        "int16": ("int8", "int16", "int32"),
        "int32": ("int8", "int16"),
    }
    for source, values in inputs.items():
        for target in targets[source]:
            for scale_x, scale, zero_x, zero in SCALES:
                zeros = [
                    0 if t == "int32" else zero_of(t, z)
                    for t, z in ((source, zero_x), (target, zero))
                ]
                y = quantized(values.shape, target, scale, zeros[1])
                kind = f"{source} to {target}"
                yield Case("QUANTIZE", kind, [fed(values, scale_x, zeros[0])], [y])
    for dtype in ("int8", "uint8", "int16"):
        for scale, zero in ((0.05, 3), (2.0**-7, 0), (3e-5, -9)):
            halves = (np.arange(-300, 300, 0.5) * np.float32(scale)).astype(np.float32)[None]
            real = np.append(halves, np.float32([[1e9 * scale, -1e9 * scale, -0.0]]), axis=1)
            y = quantized(real.shape, dtype, scale, zero_of(dtype, zero))
            yield Case("QUANTIZE", f"float32 to {dtype}", [fed(real)], [y])
            x = fed(every(dtype, 1), scale, zero_of(dtype, zero))
            yield Case("DEQUANTIZE", dtype, [x], [Operand(x.shape, "float32")])


COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")


def pairs() -> Iterator[Case]:
    """All pairs of 8-bit values; of int16 some hundred thousand."""
    combinations = (
        ((0.05, 3), (0.03, -5), (0.06, -11)),
        ((0.05, -128), (0.05, 127), (0.013, 5)),
        ((2.0**-4, 0), (2.0**-5, 0), (2.0**-4, 0)),
    )
    for dtype, narrow in (("int8", 1.0), ("uint8", 1.0), ("int16", 1 / 256)):
        values = every(dtype, 1 if narrow == 1.0 else 211)
        for k, ((scale_a, zero_a), (scale_b, zero_b), (scale, zero)) in enumerate(combinations):
            a = fed(values.T, scale_a * narrow, zero_of(dtype, zero_a))
            b = fed(values, scale_b * narrow, zero_of(dtype, zero_b))
            shape = (values.size, values.size)
            fused = {"fused_activation_function": ACTIVATIONS[k % 4]}
            y = quantized(shape, dtype, scale * narrow, zero_of(dtype, zero))
            pot = {"pot_scale_int16": k != 1} if dtype == "int16" else {}
            for op in ("ADD", "SUB"):
                yield Case(op, dtype, [a, b], [y], {**fused, **pot})
            yield Case("MUL", dtype, [a, b], [y], fused)
            if dtype == "int8":
                yield Case("SQUARED_DIFFERENCE", dtype, [a, b], [y])
            other = np.where(values == b.zero, values.max() - 1, values).astype(dtype)
            divisor = fed(other, scale_b * narrow, b.zero)
            quotient = quantized(shape, dtype, 0.2 * narrow, zero_of(dtype, zero))
            yield Case("DIV", dtype, [a, divisor], [quotient], fused)
            for op in COMPARISONS:
                yield Case(op, dtype, [a, b], [Operand(shape, "bool")])
            wide = fed(np.broadcast_to(values.T, shape), a.scale, a.zero)
            slopes = fed(every("int8" if dtype == "int16" else dtype), 0.01, 0)
            if dtype != "int16":
                yield Case("PRELU", dtype, [wide, slopes], [y])


def others() -> Iterator[Case]:
    """Sums of many, concatenations on several scales, ranks up to six, constants."""
    x = every("int8")
    parts = [fed(np.roll(x, k * 31), 0.05, 9) for k in range(3)]
    yield Case("ADD_N", "int8", parts, [quantized(x.shape, "int8", 0.11, -20)])
    bytes_ = every("uint8")
    different = [fed(bytes_, 0.02, 5), fed(bytes_, 0.05, 30), fed(bytes_, 0.04, 20)]
    joined = quantized((1, 768), "uint8", 0.04, 20)
    if_rescaled = Case("CONCATENATION", "uint8", different, [joined], {"axis": -1})
    yield if_rescaled
    shape = (2, 3, 1, 4, 2, 3)
    a = quantized(shape, "int8", 0.05, 3)
    b = quantized((3, 5, 1, 1, 3), "int8", 0.03, -5)
    yield Case("ADD", "int8", [a, b], [quantized((2, 3, 5, 4, 2, 3), "int8", 0.06, 1)])
    channel = np.array([-128, -1, 0, 5, 127], np.int8)
    image = quantized((2, 7, 5), "int8", 0.05, 3)
    for op in ("ADD", "MUL", "SUB"):
        y = quantized(image.shape, "int8", 0.06, 1)
        yield Case(op, "int8", [image, constant(channel, 0.02, 4)], [y])
        yield Case(op, "int8", [image, constant(np.array([77], np.int8), 0.02, 4)], [y])
    for dtype in ("int8", "int16", "int32"):
        numbers = Operand((3, 40), dtype)
        nonzero = fed(np.array([[-7, -3, -1, 1, 2, 5, 11, 100]], dtype).repeat(5, axis=1))
        for op in ("FLOOR_DIV", "FLOOR_MOD"):
            yield Case(op, dtype, [numbers, nonzero], [Operand((3, 40), dtype)])
        yield Case("BITWISE_XOR", dtype, [numbers, nonzero], [Operand((3, 40), dtype)])
        counts = fed(np.arange(8, dtype=dtype)[None].repeat(5, axis=1))
        yield Case("RIGHT_SHIFT", dtype, [numbers, counts], [Operand((3, 40), dtype)])
    for fused in ACTIVATIONS:
        for op in ("ADD", "SUB", "MUL"):
            numbers = [fed(np.arange(-20, 20, dtype=np.int32)[None] * k) for k in (1, 3)]
            options = {"fused_activation_function": fused}
            yield Case(op, "int32", numbers, [Operand((1, 40), "int32")], options)


SPECIAL = (0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 0.49999997, 6.0, -1.0, 8388609.0, 1e-40, 7.5)


def floats() -> Iterator[Case]:
    x = fed(np.array([SPECIAL], np.float32))
    y = Operand(x.shape, "float32")
    for op in (
        *("ABS", "NEG", "SQUARE", "SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "RELU", "RELU6"),
        *("RELU_N1_TO_1", "RELU_0_TO_1", "HARD_SWISH", "ELU", "LOGISTIC", "TANH"),
    ):
        yield Case(op, "float32", [x], [y])
    yield Case("LEAKY_RELU", "float32", [x], [y], {"alpha": 0.2})
    infinite = fed(np.array([[np.nan, np.inf, -np.inf, 0.0, -2.5]], np.float32))
    for op in ("ABS", "NEG", "FLOOR", "ROUND", "SIGN", "LOGISTIC", "TANH"):
        yield Case(op, "float32", [infinite], [Operand(infinite.shape, "float32")])
    a, b = fed(np.array([SPECIAL], np.float32).T), fed(np.array([SPECIAL[2:]], np.float32))
    shape = (len(SPECIAL), len(SPECIAL) - 2)
    for op in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "FLOOR_DIV", "FLOOR_MOD"):
        options = {"fused_activation_function": "RELU6"} if op in ("ADD", "SUB") else {}
        yield Case(op, "float32", [a, b], [Operand(shape, "float32")], options)
    for op in COMPARISONS:
        yield Case(op, "float32", [a, b], [Operand(shape, "bool")])
    for op in ("LOGICAL_AND", "LOGICAL_OR"):
        yield Case(op, "bool", [Operand((9,), "bool")] * 2, [Operand((9,), "bool")])
    yield Case("LOGICAL_NOT", "bool", [Operand((9,), "bool")], [Operand((9,), "bool")])


@cache
def cases(mode: RequantMode) -> list[Case]:
    drawn = (*tables(), *requantizations(), *pairs(), *others(), *floats())
    numbered = [
        Case(c.op, c.kind, c.inputs, c.outputs, c.options, number=800000 + i)
        for i, c in enumerate(drawn)
    ]
    return [c for c in numbered if not is_undefined(c, mode)]


def is_undefined(case: Case, mode: RequantMode) -> bool:
    """Micro compares int16 with parameters that it has not set."""
    return mode == "tflm" and case.op == "GREATER" and case.kind == "int16"


def known(mode: RequantMode) -> tuple[list[Any], Report]:
    require_module("tflite_micro", "ai_edge_litert")
    report = Report()
    found = [expected(case, mode, report) for case in cases(mode)]
    return [e for e in found if e is not None], report


@pytest.mark.parametrize("mode", MODES)
def test_interpreter(mode: RequantMode) -> None:
    wrong = []
    found, report = known(mode)
    for e in found:
        graph = tflite.load(e.case.model(), requant=mode)
        for feeds, wanted in zip(e.case.feeds(), e.outputs, strict=True):
            named = {f"x{i}": array for i, array in enumerate(feeds)}
            got = list(interpreter.run(graph, named).values())
            faults = [difference(a, b) for a, b in zip(got, wanted, strict=True)]
            wrong += [f"{e.case}: {fault}" for fault in faults if fault]
    assert not wrong, "\n".join(wrong)
    assert not report.unknown, "\n".join(report.unknown)


def compiled(mode: RequantMode, board: str, chosen: list[Case]) -> None:
    require_module("tflite_micro", "ai_edge_litert")
    require_tool("gcc")
    report = sweep(chosen, mode, board, size=len(chosen))
    assert not report.wrong, "\n".join(report.wrong)
    assert not report.refused, str(report.refused)
    assert not report.unknown and report.passed == len(chosen), str(report)


def one_of_each(mode: RequantMode) -> list[Case]:
    """A case of each operator and type."""
    return list({(c.op, c.kind): c for c in cases(mode)}.values())


@pytest.mark.parametrize("mode", MODES)
def test_compiled(mode: RequantMode) -> None:
    compiled(mode, "host", one_of_each(mode))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("board", ["host", "host-avx2", "host-scalar"])
def test_all_compiled(board: str, mode: RequantMode) -> None:
    compiled(mode, board, cases(mode))


def chains() -> bytes:
    """Functions of one 8-bit value by several operators, which become one table each."""
    b, shape = ModelBuilder(), (1, 4, 64)
    x = b.input("x", shape, "int8", 0.05, 3)

    def step(op: str, *inputs: int, scale: float, zero: int, **options: Any) -> int:
        out = (f"{op.lower()}{len(b.main.tensors)}", shape, "int8", scale, zero)
        return int(b.op(op, inputs, out=out, options=options))

    gate = step("LOGISTIC", x, scale=2**-8, zero=-128)
    swish = step("MUL", x, gate, scale=0.04, zero=-100)
    bound = step("TANH", swish, scale=2**-7, zero=0)
    total = step("ADD", bound, x, scale=0.06, zero=-9, fused_activation_function="RELU6")
    three = b.const("three", np.array([3], np.int8), 0.5, 1)
    moved = step("SUB", total, three, scale=0.07, zero=20)
    b.output(
        swish,
        step("RELU", moved, scale=0.03, zero=-20),
        step("MAXIMUM", bound, bound, scale=2**-7, zero=0),
    )
    return b.finish()


@pytest.mark.parametrize("mode", MODES)
def test_chains_are_one_table(mode: RequantMode) -> None:
    require_module("tflite_micro", "ai_edge_litert")
    x = np.arange(-128, 128, dtype=np.int8).reshape(1, 4, 64)
    graph = tflite.load(chains(), requant=mode)
    assert [node.op for node in graph.nodes if node.output in graph.outputs] == ["lookup"] * 3
    for value in graph.outputs:
        assert value.producer is not None and value.producer.input(0) in graph.inputs
    got = interpreter.run(graph, {"x": x})
    want = ORACLES[mode](chains(), [x])
    for a, b in zip(got.values(), want, strict=True):
        assert np.array_equal(a, b)


def refusal(case: Case, mode: RequantMode = "tflm") -> str:
    with pytest.raises(UnsupportedError) as caught:
        tflite.load(case.model(), requant=mode)
    return str(caught.value)


def test_refusals() -> None:
    """What no reference defines is refused, with the reason."""
    a, b = quantized((4,), "int8", 0.1), quantized((4,), "int16", 0.1)
    assert "element types i8 and i16" in refusal(Case("ADD", "int8", [a, b], [a]))
    plain = Operand((4,), "int8")
    assert "no quantization parameters" in refusal(Case("MUL", "int8", [a, a], [plain]))
    per_channel = constant(np.zeros(2, np.int8), [0.1, 0.2], [0, 0])
    y = quantized((2,), "int8", 0.1)
    assert "per channel" in refusal(Case("ADD", "int8", [y, per_channel], [y]))
    assert "zero point 0" in refusal(
        Case("ADD", "int16", [b, b], [quantized((4,), "int16", 0.1, 5)])
    )
    assert "must be 1/32768" in refusal(Case("TANH", "int16", [b], [b]))
    shifted = Case(
        "SUB",
        "int16",
        [quantized((4,), "int16", 2.0**-10), quantized((4,), "int16", 2.0**-11)],
        [quantized((4,), "int16", 2.0**-12)],
    )
    assert "shifts one input" in refusal(shifted, "litert")
    logic = Operand((4,), "int32")
    assert "use bool tensors" in refusal(Case("LOGICAL_AND", "int32", [logic, logic], [logic]))


def sums() -> tuple[bytes, dict[str, Array]]:
    """Sums with all kinds of parameters, over whole tensors, in place, and into a concatenation."""
    b, rng = ModelBuilder(), np.random.default_rng(6)
    feeds: dict[str, Array] = {}

    def fresh(shape: Shape, dtype: str, scale: float, zero: int) -> int:
        name, info = f"x{len(feeds)}", np.iinfo(dtype)
        feeds[name] = rng.integers(info.min, info.max + 1, shape).astype(dtype)
        return int(b.input(name, shape, dtype, scale, zero))

    def total(op: str, x: int, y: int, shape: Shape, *out: Any, fused: str = "NONE") -> int:
        name = f"{op.lower()}{len(b.main.tensors)}"
        options = {"fused_activation_function": fused}
        return int(b.op(op, [x, y], out=(name, shape, *out), options=options))

    shape = (1, 5, 3, 19)
    for dtype in ("int8", "uint8"):
        for scales in ((0.05, 0.03, 0.06), (0.01, 0.4, 0.002), (0.25, 0.5, 0.5), (2e-4, 0.9, 40.0)):
            zeros = [zero_of(dtype, z) for z in (3, -128, 127)]
            for op, fused in (("ADD", "RELU6"), ("SUB", "NONE")):
                a = fresh(shape, dtype, scales[0], zeros[0])
                c = fresh(shape, dtype, scales[1], zeros[1])
                b.output(total(op, a, c, shape, dtype, scales[2], zeros[2], fused=fused))
    parts = []
    for channels in (16, 7, 40):
        wide = (1, 4, 3, channels)
        a, c = (fresh(wide, "int8", 0.05, 4) for _ in range(2))
        first = total("ADD", a, c, wide, "int8", 0.1, -3)
        parts.append(total("ADD", first, first, wide, "int8", 0.2, 5))
    joined = b.op(
        "CONCATENATION", parts, out=("joined", (1, 4, 3, 63), "int8", 0.2, 5), options={"axis": 3}
    )
    b.output(joined)
    return b.finish(), feeds


@pytest.mark.parametrize("board", ["rpi4", "rpi3b-armv7"])
def test_sums_on_neon(board: str, tmp_path: Path) -> None:
    require_tool(*CROSS[board])
    model, feeds = sums()
    (tmp_path / "sums.tflite").write_bytes(model)
    project = aotgen.compile(tmp_path / "sums.tflite", board, tmp_path / "project")
    templates = {layer["template"] for layer in project.manifest["layers"]}
    assert "int8_sum" in templates
    got = project.run_steps([feeds], "qemu")[0]
    want = interpreter.run(tflite.load(model, requant="tflm"), feeds)
    for name, array in want.items():
        assert np.array_equal(got[name], array), name
