"""Small .tflite models of one operator each, drawn at random: what the op sweep compiles.

Case ``n`` is the same whenever it is drawn. The operators take turns, so that the first few hundred
cases have some of each. Shapes are small and odd, quantization goes to its extremes, inputs reach
saturation and ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tflite_builder import ModelBuilder

Array = np.ndarray
Shape = tuple[int, ...]

SEED = 20240607
SAMPLES = 3
"""Steps with inputs of their own: all values, the extremes, few values near the zero point."""


@dataclass(frozen=True)
class Operand:
    """A tensor of a case.

    Attributes:
        shape: of the tensor.
        dtype: numpy's name of its element type.
        scale: one, or one a channel of ``axis``; None when it is not quantized.
        zero: zero points that go with it.
        axis: of the channels.
        data: of a constant.
        variable: whether it is state.
        values: of an input that takes only some, by (generator, step).
    """

    shape: Shape
    dtype: str
    scale: Any = None
    zero: Any = None
    axis: int = 0
    data: Array | None = None
    variable: bool = False
    values: Callable[[np.random.Generator, int], Array] | None = None

    @property
    def is_input(self) -> bool:
        return self.data is None and not self.variable


def constant(array: Any, scale: Any = None, zero: Any = None, axis: int = 0) -> Operand:
    """A constant with the shape and type of ``array``."""
    data = np.asarray(array)
    return Operand(data.shape, data.dtype.name, scale, zero, axis, data)


def int32s(*numbers: int) -> Operand:
    """A constant of shapes, axes, paddings."""
    return constant(np.asarray(numbers, np.int32))


@dataclass(frozen=True)
class Case:
    """One operator with all that it needs.

    Attributes:
        op: builtin name.
        kind: of its elements, such as "int8".
        inputs: None for one that is absent.
        outputs: of the operator, all of them outputs of the model.
        options: fields of its options table.
        fields: of the Operator table, such as intermediates.
        number: of the draw.
    """

    op: str
    kind: str
    inputs: Sequence[Operand | None]
    outputs: Sequence[Operand]
    options: Mapping[str, Any] = field(default_factory=dict)
    intermediates: Sequence[Operand] = ()
    version: int = 1
    number: int = 0

    @property
    def name(self) -> str:
        return f"{self.number} {self.op} {self.kind}"

    def __str__(self) -> str:
        """Enough to see what it is when it fails."""
        inputs = [_brief(t) for t in self.inputs]
        outputs = [_brief(t) for t in self.outputs]
        return f"{self.name}: {', '.join(inputs)} -> {', '.join(outputs)} {dict(self.options)}"

    def add(self, b: ModelBuilder, prefix: str = "") -> None:
        """Write it into a model; all its tensors' names start with ``prefix``."""
        tensors = []
        for i, t in enumerate(self.inputs):
            if t is None:
                tensors.append(None)
            elif t.data is not None:
                tensors.append(b.const(f"{prefix}c{i}", t.data, t.scale, t.zero, t.axis))
            elif t.variable:
                where = (f"{prefix}s{i}", t.shape, t.dtype, t.scale, t.zero, t.axis)
                tensors.append(b.tensor(*where, is_variable=True))
            else:
                tensors.append(b.input(f"{prefix}x{i}", t.shape, t.dtype, t.scale, t.zero))
        more: dict[str, Any] = {}
        if self.intermediates:
            more["intermediates"] = [
                b.tensor(f"{prefix}i{i}", t.shape, t.dtype, t.scale, t.zero)
                for i, t in enumerate(self.intermediates)
            ]
        outs = [
            (f"{prefix}y{i}", t.shape, t.dtype, t.scale, t.zero) for i, t in enumerate(self.outputs)
        ]
        b.output(
            *b.op(self.op, tensors, outs=outs, options=self.options, version=self.version, **more)
        )

    def model(self) -> bytes:
        """The file with this operator alone."""
        b = ModelBuilder()
        self.add(b)
        return b.finish()

    def feeds(self) -> list[list[Array]]:
        """The inputs of each of ``SAMPLES`` steps."""
        rng = np.random.default_rng([SEED, self.number, 1])
        given = [t for t in self.inputs if t is not None and t.is_input]
        return [[_feed(rng, t, step) for t in given] for step in range(SAMPLES)]


def _brief(t: Operand | None) -> str:
    if t is None:
        return "-"
    what = "const " if t.data is not None else ""
    scale = "" if t.scale is None else f" q({np.ravel(t.scale)[0]:.4g}, {np.ravel(t.zero)[0]})"
    return f"{what}{t.dtype}{list(t.shape)}{scale}"


def limits(dtype: str) -> tuple[int, int]:
    """Lowest and highest value of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _feed(rng: np.random.Generator, t: Operand, step: int) -> Array:
    if t.values is not None:
        return np.asarray(t.values(rng, step)).astype(t.dtype).reshape(t.shape)
    if t.dtype == "bool":
        return rng.integers(0, 2, t.shape).astype(np.bool_)
    if t.dtype.startswith("float"):
        spread = (1.0, 8.0, 0.1)[step]
        return (rng.standard_normal(t.shape) * spread).astype(t.dtype)
    lo, hi = limits(t.dtype)
    if t.scale is None:  # plain integers: neither overflow nor division by zero
        return rng.integers(max(lo, -100), min(hi, 100), t.shape).astype(t.dtype)
    if step == 0:
        return rng.integers(lo, hi + 1, t.shape).astype(t.dtype)
    zero = int(np.ravel(t.zero)[0])
    if step == 1:
        return rng.choice([lo, hi, hi, lo, zero], t.shape).astype(t.dtype)
    return np.clip(rng.integers(zero - 4, zero + 5, t.shape), lo, hi).astype(t.dtype)


class Draw:
    """Random choices of one case."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rng = np.random.default_rng([SEED, number])

    def among(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def shape(self, rank: int, high: int = 7) -> Shape:
        return tuple(self.between(1, high) for _ in range(rank))

    def image(self, channels: int | None = None) -> Shape:
        """[N, H, W, C], small and seldom square."""
        c = self.among(1, 2, 3, 4, 5, 7, 8, 13, 16, 17) if channels is None else channels
        return (self.among(1, 1, 1, 2), self.between(1, 11), self.between(1, 11), c)

    def scale(self, low: float = 2e-3, high: float = 0.5) -> float:
        """A float32; a power of two in a quarter of the cases, where ties are frequent."""
        value = float(np.exp(self.rng.uniform(np.log(low), np.log(high))))
        if self.chance(0.25):
            value = 2.0 ** np.round(np.log2(value))
        return float(np.float32(value))

    def zero(self, dtype: str) -> int:
        """A zero point: an end of the range, 0 or anything; 0 for 16 and 32 bits."""
        if dtype not in ("int8", "uint8"):
            return 0
        lo, hi = limits(dtype)
        return int(self.among(lo, hi, 0, *(self.between(lo, hi) for _ in range(3))))

    def quant(self, dtype: str, scale: float | None = None) -> tuple[Any, Any]:
        """(scale, zero point); (None, None) for floats, bools and other plain numbers."""
        if dtype not in ("int8", "uint8", "int16"):
            return None, None
        return (self.scale() if scale is None else float(np.float32(scale))), self.zero(dtype)

    def activation(self) -> str:
        return str(self.among("NONE", "NONE", "RELU", "RELU6", "RELU_N1_TO_1"))

    def integers(self, dtype: str, shape: Shape) -> Array:
        """Constant integers over the whole range, now and then at its ends alone."""
        lo, hi = limits(dtype)
        if self.chance(0.1):
            return self.rng.choice([lo, hi], shape).astype(dtype)
        return self.rng.integers(lo, hi + 1, shape).astype(dtype)

    def tensor(self, shape: Shape, dtype: str, scale: float | None = None) -> Operand:
        """An input with a quantization of its own."""
        return Operand(shape, dtype, *self.quant(dtype, scale))

    def made_constant(self, t: Operand) -> Operand:
        """``t`` as a constant."""
        if t.dtype == "bool":
            data = self.rng.integers(0, 2, t.shape).astype(np.bool_)
        elif t.dtype.startswith("float"):
            data = self.rng.standard_normal(t.shape).astype(t.dtype)
        elif t.scale is None:
            data = self.rng.integers(1, 50, t.shape).astype(t.dtype)
        else:
            data = self.integers(t.dtype, t.shape)
        return constant(data, t.scale, t.zero)


Family = Callable[[Draw, str], Case]


@dataclass(frozen=True)
class Entry:
    """A function that draws cases of an operator, and the element types that it takes turns at."""

    op: str
    kinds: tuple[str, ...]
    family: Family


def cases(count: int, start: int = 0) -> list[Case]:
    """Cases ``start`` to ``start + count``."""
    return [draw_case(number) for number in range(start, start + count)]


def draw_case(number: int) -> Case:
    """Case ``number``: operators take turns, and each of them its element types."""
    from tests.tflite.sweep_anchors import ANCHORS
    from tests.tflite.sweep_elementwise import ELEMENTWISE
    from tests.tflite.sweep_movement import MOVEMENT
    from tests.tflite.sweep_reduce import REDUCE
    from tests.tflite.sweep_state import STATE

    entries = [*ANCHORS, *ELEMENTWISE, *MOVEMENT, *REDUCE, *STATE]
    entry = entries[number % len(entries)]
    kind = entry.kinds[(number // len(entries)) % len(entry.kinds)]
    case = entry.family(Draw(number), kind)
    return Case(
        case.op,
        case.kind,
        case.inputs,
        case.outputs,
        case.options,
        case.intermediates,
        case.version,
        number,
    )
