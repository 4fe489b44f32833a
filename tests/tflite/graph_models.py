"""Random .tflite models of many operators: chains and branches whose tensors are shared.

Graph ``n`` is the same whenever it is drawn. Values are read once, twice or by the model's outputs
as well; inputs and constants are outputs now and then; shapes are small and odd, zero points go to
the ends of their range. Only operators that both references compute are used, so that one of them
never stands in for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tflite.sweep_anchors import SPREAD, window
from tests.tflite.sweep_models import Case, Draw, Operand, Shape, constant, int32s
from tests.tflite_builder import ModelBuilder

MOST_ELEMENTS = 6000
"""Of one tensor: the references are slow and the arena is to stay full of small tensors."""

Operands = Sequence[int | Operand | None]
"""Inputs of a step: tensors of the graph by number, constants, None for one that is absent."""


@dataclass(frozen=True)
class Step:
    """One operator.

    Attributes:
        op: builtin name.
        inputs: of it.
        outputs: numbers of its tensors.
        options: fields of its options table.
        version: of the operator.
    """

    op: str
    inputs: Operands
    outputs: Sequence[int]
    options: Mapping[str, Any]
    version: int


@dataclass(frozen=True)
class GraphCase(Case):
    """A model of several operators, used like a case of one.

    Attributes:
        tensors: all but the constants that one operator has for itself.
        steps: the operators in order.
        results: numbers of the model's outputs, the same one twice now and then.
    """

    tensors: Sequence[Operand] = ()
    steps: Sequence[Step] = ()
    results: Sequence[int] = ()

    def __str__(self) -> str:
        ops = ", ".join(f"{s.op}{list(s.outputs)}" for s in self.steps)
        return f"{self.name}: {ops} -> {list(self.results)}"

    def add(self, b: ModelBuilder, prefix: str = "") -> None:
        numbers: dict[int, int] = {}
        produced = {o for s in self.steps for o in s.outputs}
        inputs = 0
        for i, t in enumerate(self.tensors):
            if i in produced:
                numbers[i] = b.tensor(f"{prefix}t{i}", t.shape, t.dtype, t.scale, t.zero)
            elif t.data is not None:
                numbers[i] = b.const(f"{prefix}k{i}", t.data, t.scale, t.zero, t.axis)
            else:
                numbers[i] = b.input(f"{prefix}x{inputs}", t.shape, t.dtype, t.scale, t.zero)
                inputs += 1
        for n, step in enumerate(self.steps):
            given: list[int | None] = []
            for k, operand in enumerate(step.inputs):
                if isinstance(operand, Operand):
                    where = (operand.scale, operand.zero, operand.axis)
                    given.append(b.const(f"{prefix}s{n}c{k}", operand.data, *where))
                else:
                    given.append(None if operand is None else numbers[operand])
            outs = [numbers[o] for o in step.outputs]
            b.op(step.op, given, outs=outs, options=step.options, version=step.version)
        b.output(*(numbers[r] for r in self.results))


@dataclass
class Builder:
    """A graph while it is drawn."""

    d: Draw
    tensors: list[Operand] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def new(self, t: Operand) -> int:
        self.tensors.append(t)
        return len(self.tensors) - 1

    def step(
        self,
        op: str,
        inputs: Operands,
        outputs: Sequence[Operand],
        options: Mapping[str, Any] | None = None,
        version: int = 1,
    ) -> list[int]:
        """Add an operator unless it makes too much of its inputs."""
        if any(int(np.prod(t.shape)) > MOST_ELEMENTS or 0 in t.shape for t in outputs):
            return []
        numbers = [self.new(t) for t in outputs]
        self.steps.append(Step(op, inputs, numbers, options or {}, version))
        return numbers

    def any(self, rank: int | None = None, dtype: str = "int8") -> int | None:
        """A tensor of this rank and type, the latest ones rather than the first."""
        found = [
            i
            for i, t in enumerate(self.tensors)
            if t.dtype == dtype and (rank is None or len(t.shape) == rank)
        ]
        if not found:
            return None
        if self.d.chance(0.6):
            found = found[-3:]
        return int(self.d.among(*found))

    def like(self, i: int, shape: Sequence[int] | None = None) -> Operand:
        """A new tensor with the quantization of tensor ``i``."""
        t = self.tensors[i]
        return Operand(tuple(t.shape if shape is None else shape), t.dtype, t.scale, t.zero)

    def fresh(self, shape: Sequence[int], scale: float, dtype: str = "int8") -> Operand:
        return Operand(tuple(shape), dtype, *self.d.quant(dtype, scale))

    def same_quant(self, i: int, like: int) -> int:
        """Tensor ``i`` with the scale and zero point of ``like``."""
        a, b = self.tensors[i], self.tensors[like]
        if (a.scale, a.zero) == (b.scale, b.zero):
            return i
        return self.step("QUANTIZE", [i], [Operand(a.shape, b.dtype, b.scale, b.zero)])[0]


Family = Callable[[Builder, int], None]
"""Adds an operator (or none) that reads the given tensor."""


def _filters(b: Builder, x: Operand, shape: Shape, channels: int, depth: int, axis: int) -> Any:
    """(weights, bias, output scale) for sums of ``depth`` products."""
    d = b.d
    scale: Any = np.float32(d.scale())
    zero: Any = 0
    if d.chance(0.7):
        scale = (scale * np.exp(d.rng.uniform(-1.5, 1, channels))).astype(np.float32)
        zero = np.zeros(channels, np.int64)
    values = d.integers("int8", shape)
    if d.chance(0.05):
        values = np.full(shape, -128, np.int8)
    sums = float(np.sqrt(depth)) * SPREAD["int8"] ** 2
    made = (d.rng.uniform(-2, 2, channels) * sums).astype(np.int32)
    bias = constant(made, np.float32(x.scale) * scale, np.zeros_like(zero))
    steps = SPREAD["int8"] * d.among(0.3, 0.5, 1.0)
    out = float(x.scale) * float(np.mean(scale)) * sums / steps
    return constant(values, scale, zero, axis), bias, out


def _geometry(b: Builder, x: Operand) -> tuple[dict[str, Any], tuple[int, int], tuple[int, int]]:
    """(options, kernel, output rows and columns); kernels may be larger than the image."""
    d = b.d
    kernel = d.among(1, 1, 2, 3, 3, 5, 7), d.among(1, 1, 2, 3, 3, 5, 7)
    stride = d.among((1, 1), (1, 1), (2, 2), (2, 1), (3, 2), (5, 5))
    dilation = (d.between(1, 3), d.between(1, 3)) if stride == (1, 1) and d.chance(0.3) else (1, 1)
    padding = d.among("SAME", "SAME", "VALID")
    sizes = [window(x.shape[1 + a], kernel[a], stride[a], dilation[a], padding) for a in (0, 1)]
    if min(sizes) < 1:
        padding = "SAME"
        sizes = [window(x.shape[1 + a], kernel[a], stride[a], dilation[a], padding) for a in (0, 1)]
    options = {"padding": padding, "stride_h": stride[0], "stride_w": stride[1]}
    options |= {"dilation_h_factor": dilation[0], "dilation_w_factor": dilation[1]}
    options["fused_activation_function"] = d.activation()
    return options, kernel, (sizes[0], sizes[1])


def _conv(b: Builder, i: int) -> None:
    x = b.tensors[i]
    options, kernel, out = _geometry(b, x)
    channels = b.d.among(1, 3, 4, 5, 8, 16, 17, 32, 33)
    depth = kernel[0] * kernel[1] * x.shape[3]
    w, bias, scale = _filters(b, x, (channels, *kernel, x.shape[3]), channels, depth, 0)
    b.step("CONV_2D", [i, w, bias], [b.fresh((x.shape[0], *out, channels), scale)], options)


def _depthwise(b: Builder, i: int) -> None:
    x = b.tensors[i]
    options, kernel, out = _geometry(b, x)
    multiplier = b.d.among(1, 1, 1, 2)
    channels = x.shape[3] * multiplier
    w, bias, scale = _filters(b, x, (1, *kernel, channels), channels, kernel[0] * kernel[1], 3)
    y = b.fresh((x.shape[0], *out, channels), scale)
    options["depth_multiplier"] = multiplier
    b.step("DEPTHWISE_CONV_2D", [i, w, bias], [y], options)


def _transpose_conv(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    stride, kernel = (d.between(1, 2), d.between(1, 2)), (d.between(1, 3), d.between(1, 3))
    channels = d.among(1, 3, 8)
    shape = (x.shape[0], x.shape[1] * stride[0], x.shape[2] * stride[1], channels)
    w, bias, scale = _filters(b, x, (channels, *kernel, x.shape[3]), channels, x.shape[3] * 2, 0)
    inputs = [int32s(*shape), w, i] + ([bias] if d.chance(0.8) else [])
    options = {"padding": "SAME", "stride_h": stride[0], "stride_w": stride[1]}
    b.step("TRANSPOSE_CONV", inputs, [b.fresh(shape, scale)], options, len(inputs) - 1)


def _dense(b: Builder, i: int) -> None:
    x = b.tensors[i]
    channels, depth = b.d.among(1, 2, 5, 16, 17, 40), x.shape[-1]
    if depth > 2000:
        return
    w, bias, scale = _filters(b, x, (channels, depth), channels, depth, 0)
    keep = len(x.shape) > 2
    rows = x.shape[:-1] if keep else (int(np.prod(x.shape[:-1])),)
    options = {"fused_activation_function": b.d.activation(), "keep_num_dims": keep}
    y = b.fresh((*rows, channels), scale)
    b.step("FULLY_CONNECTED", [i, w, bias], [y], options, 5 if keep else 4)


def _binary(b: Builder, i: int, op: str) -> None:
    x, d = b.tensors[i], b.d
    partners = [j for j, t in enumerate(b.tensors) if t.shape == x.shape and t.dtype == x.dtype]
    j: int | Operand = int(d.among(*partners))
    if d.chance(0.35):
        shape = tuple(d.among(s, 1) for s in x.shape) if d.chance(0.5) else x.shape[-1:]
        j = d.made_constant(b.fresh(shape, x.scale * d.among(0.3, 1.0, 2.0)))
    other = j if isinstance(j, Operand) else b.tensors[j]
    scale = float(x.scale) + float(other.scale)
    if op == "MUL":
        scale = float(x.scale) * float(other.scale) * d.among(30, 74)
    options = {"fused_activation_function": d.activation()}
    pair = [i, j] if d.chance(0.7) else [j, i]
    b.step(op, pair, [b.fresh(x.shape, scale * d.among(0.5, 1.0))], options, 2)


def _add(b: Builder, i: int) -> None:
    _binary(b, i, "ADD")


def _sub(b: Builder, i: int) -> None:
    _binary(b, i, "SUB")


def _mul(b: Builder, i: int) -> None:
    _binary(b, i, "MUL")


def _extremum(b: Builder, i: int) -> None:
    x = b.tensors[i]
    j = b.any(len(x.shape))
    if j is not None and b.tensors[j].shape == x.shape:
        j = b.same_quant(j, i)
        b.step(b.d.among("MAXIMUM", "MINIMUM"), [i, j], [b.like(i)])


def _concatenation(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    axis = d.between(0, len(x.shape) - 1)
    parts, extent = [i], x.shape[axis]
    for j, t in enumerate(b.tensors[:]):
        fits = len(t.shape) == len(x.shape) and t.dtype == x.dtype
        for a, (m, n) in enumerate(zip(t.shape, x.shape, strict=False)):
            fits = fits and (a == axis or m == n)
        if fits and d.chance(0.7) and len(parts) < 4:
            parts.append(b.same_quant(j, i))
            extent += t.shape[axis]
    if d.chance(0.2):
        parts.append(i)
        extent += x.shape[axis]
    parts = [parts[int(p)] for p in d.rng.permutation(len(parts))]
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    b.step("CONCATENATION", parts, [b.like(i, shape)], {"axis": axis})


def _pool(b: Builder, i: int) -> None:
    x = b.tensors[i]
    options, kernel, out = _geometry(b, x)
    if options["dilation_h_factor"] * options["dilation_w_factor"] > 1:
        return
    options = {k: v for k, v in options.items() if "dilation" not in k}
    options |= {"filter_height": kernel[0], "filter_width": kernel[1]}
    op = b.d.among("AVERAGE_POOL_2D", "MAX_POOL_2D")
    b.step(op, [i], [b.like(i, (x.shape[0], *out, x.shape[3]))], options)


def _mean(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    axes = [1, 2] if d.chance(0.7) else [d.between(0, 3)]
    keep = d.chance(0.5)
    shape = [1 if a in axes else s for a, s in enumerate(x.shape) if keep or a not in axes]
    y = b.like(i, shape) if d.chance(0.4) else b.fresh(shape, x.scale * d.among(0.3, 1.0))
    b.step("MEAN", [i, int32s(*axes)], [y], {"keep_dims": keep})


def _reduce_max(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    axis, op = d.between(0, len(x.shape) - 1), d.among("REDUCE_MAX", "REDUCE_MIN")
    shape = [1 if a == axis else s for a, s in enumerate(x.shape)]
    if op == "REDUCE_MAX":
        b.step(op, [i, int32s(axis)], [b.like(i, shape)], {"keep_dims": True})


def _pad(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    pads = np.asarray([(d.between(0, 2), d.between(0, 2)) for _ in x.shape], np.int32)
    pads[0] = 0
    shape = tuple(int(s + p.sum()) for s, p in zip(x.shape, pads, strict=True))
    value = [d.made_constant(b.like(i, (1,)))] if d.chance(0.4) else []
    b.step("PADV2" if value else "PAD", [i, constant(pads), *value], [b.like(i, shape)])


def _resize(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    size = d.between(1, 12), d.between(1, 12)
    op = d.among("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR")
    corners = d.chance(0.3)
    options = {"align_corners": corners, "half_pixel_centers": not corners and d.chance(0.5)}
    b.step(op, [i, int32s(*size)], [b.like(i, (x.shape[0], *size, x.shape[3]))], options)


def _softmax(b: Builder, i: int) -> None:
    x = b.tensors[i]
    b.step("SOFTMAX", [i], [Operand(x.shape, "int8", 1 / 256, -128)], {"beta": 1.0})


def _sigmoid(b: Builder, i: int) -> None:
    x = b.tensors[i]
    if b.d.chance(0.5):
        b.step("LOGISTIC", [i], [Operand(x.shape, "int8", 1 / 256, -128)])
    else:
        b.step("TANH", [i], [Operand(x.shape, "int8", 1 / 128, 0)])


def _unary(b: Builder, i: int) -> None:
    x = b.tensors[i]
    op = b.d.among("HARD_SWISH", "LEAKY_RELU", "RELU", "RELU6")
    options = {"alpha": 0.1} if op == "LEAKY_RELU" else None
    b.step(op, [i], [b.fresh(x.shape, x.scale * b.d.among(0.5, 1.0))], options)


def _prelu(b: Builder, i: int) -> None:
    x = b.tensors[i]
    alpha = b.d.made_constant(b.fresh((1, 1, x.shape[-1]), b.d.scale(1e-3, 2e-2)))
    b.step("PRELU", [i, alpha], [b.fresh(x.shape, x.scale)])


def _requantize(b: Builder, i: int) -> None:
    x = b.tensors[i]
    b.step("QUANTIZE", [i], [b.fresh(x.shape, x.scale * b.d.among(0.4, 1.0, 3.0))])


def _by_int16(b: Builder, i: int) -> None:
    """To 16 bits, something there, and back."""
    x = b.tensors[i]
    wide = b.step("QUANTIZE", [i], [Operand(x.shape, "int16", x.scale / 256, 0)])
    if wide and b.d.chance(0.6):
        y = Operand(x.shape, "int16", np.float32(x.scale / 64), 0)
        wide = b.step("ADD", [wide[0], wide[0]], [y], {"pot_scale_int16": False}, 2)
    if wide:
        b.step("QUANTIZE", wide, [b.fresh(x.shape, x.scale)])


def _by_float(b: Builder, i: int) -> None:
    """To floats and back."""
    x = b.tensors[i]
    real = b.step("DEQUANTIZE", [i], [Operand(x.shape, "float32")], version=2)
    if real and b.d.chance(0.5):
        real = b.step("RELU", real, [Operand(x.shape, "float32")])
    if real:
        b.step("QUANTIZE", real, [b.fresh(x.shape, x.scale * b.d.among(0.5, 1.0, 2.0))])


def _reshape(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    n, rest = x.shape[0], int(np.prod(x.shape[1:]))
    shapes = [(n, rest), (n, 1, rest, 1), (n, 1, 1, rest)]
    if len(x.shape) == 4:
        shapes += [(n, x.shape[2], x.shape[1], x.shape[3])] * 2
    else:
        shapes += [(n, *x.shape[1:], 1, 1)[:4]] if len(x.shape) == 2 else []
    shape = tuple(d.among(*shapes))
    b.step("RESHAPE", [i, int32s(*shape)], [b.like(i, shape)], {"new_shape": list(shape)})


def _transpose(b: Builder, i: int) -> None:
    x = b.tensors[i]
    perm = [int(p) for p in b.d.rng.permutation(len(x.shape))]
    b.step("TRANSPOSE", [i, int32s(*perm)], [b.like(i, [x.shape[p] for p in perm])])


def _split(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    axis = d.between(0, len(x.shape) - 1)
    for parts in (3, 2):
        if x.shape[axis] % parts == 0:
            shape = [s // parts if a == axis else s for a, s in enumerate(x.shape)]
            number = constant(np.asarray(axis, np.int32))
            b.step("SPLIT", [number, i], [b.like(i, shape)] * parts, {"num_splits": parts})
            return


def _strided_slice(b: Builder, i: int) -> None:
    x, d = b.tensors[i], b.d
    begin = [d.between(0, s - 1) for s in x.shape]
    end = [d.between(first + 1, s) for first, s in zip(begin, x.shape, strict=True)]
    step = [d.among(1, 1, 2) for _ in x.shape]
    shape = [len(range(*r)) for r in zip(begin, end, step, strict=True)]
    b.step("STRIDED_SLICE", [i, int32s(*begin), int32s(*end), int32s(*step)], [b.like(i, shape)])


def _blocks(b: Builder, i: int) -> None:
    n, h, w, c = b.tensors[i].shape
    if h % 2 == 0 and w % 2 == 0:
        y = b.like(i, (n, h // 2, w // 2, c * 4))
        b.step("SPACE_TO_DEPTH", [i], [y], {"block_size": 2})
    elif c % 4 == 0:
        y = b.like(i, (n, h * 2, w * 2, c // 4))
        b.step("DEPTH_TO_SPACE", [i], [y], {"block_size": 2})


def _batch_matmul(b: Builder, i: int) -> None:
    x = b.tensors[i]
    if len(x.shape) < 2:
        return
    perm = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    other = b.step("TRANSPOSE", [i, int32s(*perm)], [b.like(i, [x.shape[p] for p in perm])])
    if other:
        shape = (*x.shape[:-1], x.shape[-2])
        scale = x.scale**2 * float(np.sqrt(x.shape[-1])) * 74
        b.step("BATCH_MATMUL", [i, other[0]], [b.fresh(shape, scale)])


IMAGES: tuple[Family, ...] = (
    *(_conv,) * 5,
    *(_depthwise,) * 4,
    *(_pool,) * 3,
    *(_mean,) * 2,
    *(_resize,) * 2,
    _transpose_conv,
    _prelu,
    _blocks,
)
"""What reads an image [N, H, W, C]."""

ANY: tuple[Family, ...] = (
    *(_add,) * 3,
    *(_mul,) * 2,
    *(_concatenation,) * 3,
    *(_pad,) * 2,
    *(_reshape,) * 2,
    _dense,
    _sub,
    _extremum,
    _softmax,
    _sigmoid,
    _unary,
    _requantize,
    _by_int16,
    _by_float,
    _transpose,
    _split,
    _strided_slice,
    _batch_matmul,
    _reduce_max,
)


def draw_graph(number: int) -> GraphCase:
    """Graph ``number``: 3 to 25 operators."""
    d = Draw(1_000_000 + number)
    b = Builder(d)
    given = d.among(1, 1, 2, 3)
    image = d.image()
    for _ in range(given):
        b.new(d.tensor(image if d.chance(0.6) else d.image(), "int8"))
    held = [b.new(d.made_constant(d.tensor(image, "int8")))] if d.chance(0.3) else []
    wanted = d.among(3, 6, 10, 16, 25)
    for _ in range(4 * wanted):
        if len(b.steps) >= wanted:
            break
        i = b.any(d.among(4, 4, 4, None))
        if i is None:
            continue
        families = IMAGES + ANY if len(b.tensors[i].shape) == 4 else ANY
        d.among(*families)(b, i)
    read = {i for s in b.steps for i in s.inputs if isinstance(i, int)}
    results = [i for s in b.steps for i in s.outputs if i not in read or d.chance(0.15)]
    results += [i for i in range(given) if d.chance(0.1)]
    results += [i for i in held if d.chance(0.5)]
    results = [results[int(p)] for p in d.rng.permutation(len(results))] or [0]
    outputs = [b.tensors[r] for r in results]
    inputs = b.tensors[:given]
    return GraphCase(
        "graph",
        "int8",
        inputs,
        outputs,
        number=number,
        tensors=b.tensors,
        steps=b.steps,
        results=results,
    )


def graphs(count: int, start: int = 0) -> list[GraphCase]:
    """Graphs ``start`` to ``start + count``."""
    return [draw_graph(number) for number in range(start, start + count)]
