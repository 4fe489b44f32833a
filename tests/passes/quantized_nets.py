"""Seeded random quantized graphs whose channels are partly constant or unread, for the tests of
passes that look for such."""

from __future__ import annotations

from typing import Any

import numpy as np
from passes.builders import Net

from aotgen.ir import requant
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import Array, DType, Quant, Requant, TensorType

KINDS = ("tflm", "litert", "onnx", "real")


class QuantizedNet(Net):
    """Some ten layers of integers, the same for the same seed.

    Attributes:
        planted: how often a channel is made constant or unread, 0 to 1.
    """

    def __init__(self, seed: int, planted: float = 0.4) -> None:
        super().__init__(seed)
        self.planted = planted
        self.dtype = self.pick(DType.I8, DType.I8, DType.U8)
        self.kind = self.pick(*KINDS)
        c, h, w = self.pick(1, 3, 8, 16), self.pick(1, 3, 5, 8), self.pick(2, 4, 7)
        self.values = [self.quantized_input("x", 1, h, w, c)]
        if self.pick(0, 1):
            self.values.append(self.quantized_input("x2", 1, h, w, c))

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    @property
    def limits(self) -> tuple[int, int]:
        info = np.iinfo(self.dtype.numpy)
        return int(info.min), int(info.max)

    def zero(self) -> int:
        """A zero point; often an end of the range, where activations clamp."""
        lo, hi = self.limits
        return int(self.pick(lo, lo, (lo + hi) // 2, self.rng.integers(lo, hi + 1)))

    def quant(self) -> Quant:
        return Quant((0.05,), (self.zero(),))

    def quantized_input(self, name: str, *shape: int) -> Value:
        value = Value(name, TensorType(self.dtype, shape, self.quant()))
        self.graph.inputs.append(value)
        return value

    def integers(self, array: Any, dtype: DType) -> Value:
        return self.graph.constant(np.asarray(array, dtype.numpy), "c")

    def chosen(self, n: int) -> Array:
        """Some of ``n`` channels."""
        return np.flatnonzero(self.rng.random(n) < self.planted)

    def requant_for(self, channels: int, depth: int, zero: int) -> Requant:
        lo, hi = self.limits
        if self.pick(0, 1):
            lo = max(lo, zero)
        if self.pick(0, 0, 1):
            hi = min(hi, lo + 100)
        n = self.pick(1, channels)
        scale = self.rng.uniform(0.3, 2.0, n) / (60.0 * max(1.0, depth) ** 0.5)
        # A scale that leaves one value of all sums.
        scale[self.chosen(n) if n > 1 else []] = 1e-12
        if self.kind in ("onnx", "real"):
            kept = scale.astype(np.float32) if self.kind == "onnx" else scale
            return Requant(self.kind, (), (), tuple(kept.tolist()), zero, lo, hi)
        pairs = [requant.quantize_multiplier(float(s)) for s in scale]
        multipliers, shifts = zip(*pairs, strict=True)
        return Requant(self.kind, multipliers, shifts, (), zero, lo, hi)

    def product(self, op: str, x: Value, shape: tuple[int, ...], **attrs: Any) -> Value:
        """A qconv or qmatmul with weights of ``shape``, outputs first; channels of every kind."""
        outputs, depth = shape[0], int(np.prod(shape[1:]))
        signed = self.dtype is DType.I8 or self.pick(True, False)
        weights = self.rng.integers(-127, 128, shape)
        bias = self.rng.integers(-3000, 3000, outputs)
        weights[self.chosen(outputs)] = 0
        weights[..., self.chosen(shape[-1])] = 0
        bias[self.chosen(outputs)] = self.pick(1 << 29, -(1 << 29))
        w_zero = None
        if not signed:
            zeros = self.rng.integers(100, 156, self.pick(1, outputs))
            weights = np.clip(weights + zeros.reshape(-1, *[1] * (len(shape) - 1)), 0, 255)
            w_zero = self.integers(zeros, DType.U8)
        if op == "qmatmul" and not attrs["trans_b"]:
            weights = weights.T
        quant = self.quant()
        x_zero = self.zero() if x.type.quant is None else x.type.quant.zero_point[0]
        inputs = [
            x,
            self.integers(weights, DType.I8 if signed else DType.U8),
            self.pick(None, *[self.integers(bias, DType.I32)] * 4),
            self.integers([x_zero], self.dtype),
            w_zero,
        ]
        rule = self.requant_for(outputs, depth, quant.zero_point[0])
        return self.op(op, *inputs, dtype=self.dtype, quant=quant, requant=rule, **attrs)

    def window(self, x: Value) -> tuple[tuple[int, int], dict[str, Any]]:
        """A kernel that fits, and the attributes of its convolution."""
        kernel = tuple(self.pick(1, 1, *[3] * (n >= 3)) for n in x.shape[1:3])
        pads = tuple(self.pick(0, 1) if k == 3 else 0 for k in kernel * 2)
        strides = (self.pick(1, 1, 2),) * 2
        return kernel, {"strides": strides, "pads": pads, "dilations": (1, 1)}

    def conv(self, x: Value, out: int | None = None, groups: int = 1) -> Value:  # type: ignore[override]
        kernel, attrs = self.window(x)
        outputs = out or self.pick(3, 8, 16, 24, 32)
        shape = (outputs, *kernel, x.shape[-1] // groups)
        return self.product("qconv", x, shape, groups=groups, **attrs)

    def build(self) -> Graph:
        steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("make_")]
        self.values.append(self.conv(self.values[0]))
        for _ in range(int(self.rng.integers(5, 16))):
            image = [v for v in self.values if v.type.rank == 4]
            value = self.pick(*steps, self.make_conv, self.make_conv)(
                self.pick(*image[-3:], *image)
            )
            if value is not None and 0 < value.type.numel <= 20000:
                self.values.append(value)
        if self.pick(0, 1, 1):
            self.values.append(self.dense(self.values[-1]))
        users = self.graph.users()
        leaves = [v for v in self.values if v.producer is not None and not users.get(v)]
        return self.output(*(leaves if self.pick(0, 1) else self.values[-1:]))

    def dense(self, x: Value) -> Value:
        flat = self.op("reshape", x, shape=(x.shape[0], int(np.prod(x.shape[1:]))))
        trans_b = self.pick(True, False)
        return self.product("qmatmul", flat, (10, flat.shape[-1]), trans_b=trans_b)

    def make_conv(self, x: Value) -> Value:
        return self.conv(x)

    def make_depthwise(self, x: Value) -> Value:
        return self.conv(x, x.shape[-1] * self.pick(1, 1, 2), groups=x.shape[-1])

    def make_grouped(self, x: Value) -> Value | None:
        return self.conv(x, 16, groups=4) if x.shape[-1] % 4 == 0 else None

    def make_sum(self, x: Value) -> Value:
        other = self.pick(*(v for v in self.values if v.shape == x.shape))
        if self.pick(0, 0, 1):
            full = self.rng.integers(self.limits[0], self.limits[1] + 1, x.shape[-1])
            other = self.integers(full, self.dtype)
        (m, s), zero = requant.quantize_multiplier(0.5), self.zero()
        n, t = requant.quantize_multiplier(float(self.rng.uniform(0.2, 0.9)) * 2.0**-19)
        return self.op(
            self.pick("qadd", "qadd", "qsub"),
            x,
            other,
            zeros=(self.zero(), self.zero()),
            left_shift=20,
            multipliers=(m, m),
            shifts=(s, s),
            multiplier=n,
            shift=t,
            zero_point=zero,
            **self.clamped(zero),
        )

    def clamped(self, zero: int) -> dict[str, Any]:
        lo, hi = self.limits
        quant = Quant((0.05,), (zero,))
        return {"lo": self.pick(lo, zero), "hi": hi, "dtype": self.dtype, "quant": quant}

    def make_product_of_two(self, x: Value) -> Value:
        other, zero = self.pick(*(v for v in self.values if v.shape == x.shape)), self.zero()
        m, s = requant.quantize_multiplier(0.01)
        zeros = (self.zero(), self.zero())
        return self.op(
            "qmul", x, other, zeros=zeros, multiplier=m, shift=s, zero_point=zero,
            **self.clamped(zero),
        )  # fmt: skip

    def make_requantize(self, x: Value) -> Value:
        zero = self.zero()
        m, s = requant.quantize_multiplier(float(self.rng.uniform(0.3, 3)))
        return self.op(
            "requantize", x, zeros=(self.zero(),), multiplier=m, shift=s, zero_point=zero,
            **self.clamped(zero),
        )  # fmt: skip

    def make_lookup(self, x: Value) -> Value:
        values = self.rng.integers(self.limits[0], self.limits[1] + 1, 256)
        return self.op(
            "lookup", x, table=tuple(values.tolist()), dtype=self.dtype, quant=self.quant()
        )

    def make_float_sum(self, x: Value) -> Value:
        """Through float32 and back, as QDQ models have it."""
        quant = self.quant()
        y = self.op("dequantize", x, quant=Quant((0.04,), (self.zero(),)))
        y = self.op(self.pick("add", "mul"), y, self.const(x.shape[-1], low=-2.0, high=2.0))
        if self.pick(0, 1):
            y = self.op("relu", y)
        return self.op("quantize", y, dtype=self.dtype, quant=quant)

    def make_pool(self, x: Value) -> Value:
        kernel, attrs = self.window(x)
        op = self.pick("max_pool", "qavg_pool")
        if op == "qavg_pool":
            attrs.update(lo=self.limits[0], hi=self.limits[1])
        return self.op(op, x, kernel=kernel, ceil_extra=(0, 0), **attrs)

    def make_concat(self, x: Value) -> Value:
        axis = self.pick(3, 3, 1)
        same = [v for v in self.values if v.shape == x.shape]
        if self.pick(0, 0, 1):
            constant = self.rng.integers(self.limits[0], self.limits[1] + 1, x.shape)
            same = [self.integers(constant, self.dtype)]
        return self.op("concat", x, self.pick(*same), axis=axis)

    def make_slice(self, x: Value) -> Value:
        starts = tuple(self.pick(0, min(1, n - 1)) for n in x.shape)
        return self.op("slice", x, starts=starts, ends=x.shape, steps=(1, 1, 1, self.pick(1, 1, 2)))

    def make_split(self, x: Value) -> Value:
        axis = self.pick(3, 3, 2)
        if x.shape[axis] < 2:
            axis = 0
        n = x.shape[axis]
        sizes = (n // 2, n - n // 2) if n > 1 else (1,)
        node = self.graph.make("split", [x], axis=axis, sizes=sizes)
        self.graph.nodes.append(node)
        self.values.append(node.outputs[-1])
        return node.output

    def make_pad(self, x: Value) -> Value:
        pads = tuple(self.pick(0, 0, 1, 3) for _ in range(3))
        fill = (0, *pads, 0, *pads[::-1])
        return self.op("pad", x, pads=fill, mode="constant", value=self.zero())

    def make_transpose(self, x: Value) -> Value:
        return self.transpose(x, *self.pick((0, 2, 1, 3), (0, 2, 1, 3), (0, 1, 3, 2)))

    def make_reshape(self, x: Value) -> Value:
        n, h, w, c = x.shape
        shapes = [(n, w, h, c), (n, h, 1, w * c), *[(n, h, w * 2, c // 2)] * (c % 2 == 0)]
        return self.op("reshape", x, shape=self.pick(*shapes))

    def make_mean(self, x: Value) -> Value:
        zero = self.zero()
        m, s = requant.quantize_multiplier(1.0 / (x.shape[1] * x.shape[2]))
        quant = Quant((0.05,), (zero,))
        return self.op(
            "qreduce_sum", x, axes=(1, 2), keepdims=True, zero=self.zero(), multiplier=m, shift=s,
            zero_point=zero, dtype=self.dtype, quant=quant,
        )  # fmt: skip

    def make_resize(self, x: Value) -> Value:
        return self.op(
            "resize_bilinear_int", x, sizes=(x.shape[1] * 2, x.shape[2] + 1),
            align_corners=self.pick(True, False), half_pixel=False,
        )  # fmt: skip

    def make_reverse(self, x: Value) -> Value:
        """The channels backward: nothing links those."""
        starts, ends = (0, 0, 0, x.shape[-1] - 1), (*x.shape[:3], -1)
        return self.op("slice", x, starts=starts, ends=ends, steps=(1, 1, 1, -1))


def extreme_feeds(graph: Graph, seed: int = 3) -> list[dict[str, Array]]:
    """Inputs at both ends of their range, one of each at random, and random ones."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Array]] = []
    for kind in ("lowest", "highest", "ends", "any", "any"):
        feeds: dict[str, Array] = {}
        for v in graph.inputs:
            info = np.iinfo(v.dtype.numpy)
            lo, hi = int(info.min), int(info.max)
            if kind == "ends":
                array = rng.choice([lo, hi], v.shape)
            else:
                low, high = {"lowest": (lo, lo), "highest": (hi, hi), "any": (lo, hi)}[kind]
                array = rng.integers(low, high + 1, v.shape)
            feeds[v.name] = array.astype(v.dtype.numpy)
        found.append(feeds)
    return found
