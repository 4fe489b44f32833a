"""Networks over time for the tests of streaming: the same weights for any number of frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from passes.builders import Net

from aotgen.ir import requant
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import DType, Quant, Requant, TensorType

Builder = Callable[[int], Graph]
"""Frames to a network of as many."""


class TimeNet(Net):
    """Layers along axis 1, in float32 or in TFLite's integers."""

    def __init__(self, integer: bool, seed: int = 5) -> None:
        super().__init__(seed)
        self.integer = integer

    def frames(self, *shape: int, name: str = "x") -> Value:
        if not self.integer:
            return self.input(*shape, name=name)
        value = Value(name, TensorType(DType.I8, shape, Quant((0.05,), (-7,))))
        self.graph.inputs.append(value)
        return value

    def window(
        self,
        x: Value,
        out: int,
        kernel: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        dilations: tuple[int, ...] | None = None,
        pads: tuple[int, ...] | None = None,
        groups: int = 1,
    ) -> Value:
        """A convolution and a rectifier."""
        ones = (1,) * len(kernel)
        attrs: dict[str, Any] = {
            "strides": strides or ones,
            "dilations": dilations or ones,
            "pads": pads or (0,) * (2 * len(kernel)),
            "groups": groups,
        }
        shape = (out, *kernel, x.shape[-1] // groups)
        depth = int(np.prod(shape[1:]))
        if not self.integer:
            w = self.const(*shape, low=-(depth**-0.5), high=depth**-0.5)
            return self.op("relu", self.op("conv", x, w, self.const(out), **attrs))
        assert x.type.quant is not None
        zero, quant = x.type.quant.zero_point[0], Quant((0.05,), (-100,))
        w = self.graph.constant(self.rng.integers(-127, 128, shape).astype(np.int8), "w")
        bias = self.graph.constant(self.rng.integers(-3000, 3000, out).astype(np.int32), "b")
        scale = self.rng.uniform(0.5, 2.0, out) / (60.0 * depth**0.5)
        pairs = [requant.quantize_multiplier(float(s)) for s in scale]
        multipliers, shifts = zip(*pairs, strict=True)
        rule = Requant("tflm", multipliers, shifts, (), -100, -100, 127)
        inputs = [x, w, bias, self.graph.constant(np.array([zero], np.int8), "z"), None]
        return self.op("qconv", *inputs, dtype=DType.I8, quant=quant, requant=rule, **attrs)

    def sum(self, a: Value, b: Value) -> Value:
        if not self.integer:
            return self.op("add", a, b)
        half, third = requant.quantize_multiplier(0.5), requant.quantize_multiplier(0.7 * 2**-19)
        quants = [v.type.quant for v in (a, b)]
        zeros = tuple(q.zero_point[0] for q in quants if q is not None)
        return self.op(
            "qadd", a, b, zeros=zeros, left_shift=20, multipliers=(half[0],) * 2,
            shifts=(half[1],) * 2, multiplier=third[0], shift=third[1], zero_point=-20, lo=-128,
            hi=127, dtype=DType.I8, quant=Quant((0.05,), (-20,)),
        )  # fmt: skip

    def pool(
        self,
        op: str,
        x: Value,
        kernel: tuple[int, ...],
        strides: tuple[int, ...],
        pads: tuple[int, ...] | None = None,
    ) -> Value:  # type: ignore[override]
        attrs: dict[str, Any] = {"dilations": (1,) * len(kernel)}
        if op == "avg_pool" and self.integer:
            op = "qavg_pool"
            attrs |= {"lo": -128, "hi": 127}
        elif op == "avg_pool":
            attrs |= {"count_include_pad": False}
        pads = pads or (0,) * (2 * len(kernel))
        zeros = (0,) * len(kernel)
        return self.op(op, x, kernel=kernel, strides=strides, pads=pads, ceil_extra=zeros, **attrs)

    def padded(self, x: Value, front: int) -> Value:
        rank = x.type.rank
        fill = 0 if x.type.quant is None else x.type.quant.zero_point[0]
        pads = [0] * (2 * rank)
        pads[1] = front
        return self.op("pad", x, pads=tuple(pads), mode="constant", value=fill)

    def cut(self, x: Value, start: int, end: int) -> Value:
        shape = x.shape
        starts = tuple(start if a == 1 else 0 for a in range(len(shape)))
        ends = tuple(end if a == 1 else n for a, n in enumerate(shape))
        return self.op("slice", x, starts=starts, ends=ends, steps=(1,) * len(shape))


def causal_tcn(integer: bool) -> Builder:
    """Dilated residual blocks, padded in front by the convolution or by a node of its own."""

    def build(t: int) -> Graph:
        net = TimeNet(integer)
        x = net.window(net.frames(1, t, 6), 8, (3,), pads=(2, 0))
        for dilation in (1, 2, 4):
            y = net.window(net.padded(x, 2 * dilation), 8, (3,), dilations=(dilation,))
            y = net.window(y, 8, (3,), dilations=(dilation,), pads=(2 * dilation, 0), groups=8)
            x = net.sum(x, y)
        return net.output(x, y)

    return build


def valid_tcn(integer: bool) -> Builder:
    """Residual blocks without padding, whose shortcut is cut to the rows that are left."""

    def build(t: int) -> Graph:
        net = TimeNet(integer)
        x = net.window(net.frames(1, t, 5), 8, (4,))
        for dilation in (1, 3):
            y = net.window(x, 8, (3,), dilations=(dilation,))
            x = net.sum(net.cut(x, 2 * dilation, x.shape[1]), y)
        return net.output(net.window(x, 7, (1,)))

    return build


def strided_maps(integer: bool) -> Builder:
    """Two-dimensional layers with strides, pools and a depthwise one; frequencies are padded."""

    def build(t: int) -> Graph:
        net = TimeNet(integer)
        x = net.frames(1, t, 10, 2)
        x = net.window(x, 8, (5, 4), strides=(2, 2), pads=(3, 1, 0, 2))
        x = net.window(x, 8, (3, 3), pads=(2, 1, 0, 1), groups=8)
        x = net.pool("max_pool", x, (3, 2), (2, 1), (1, 0, 0, 1))
        y = net.pool("avg_pool", x, (2, 2), (1, 1), (0, 0, 0, 1))
        return net.output(y, x)

    return build


def short_windows(integer: bool) -> Builder:
    """Strides beyond the window, and joined frames."""

    def build(t: int) -> Graph:
        net = TimeNet(integer)
        x = net.frames(1, t, 6)
        x = net.window(x, 4, (2,), strides=(3,))
        x = net.reshape(x, 1, x.shape[1] // 2, 8)
        return net.output(net.window(x, 5, (2,)))

    return build


def mixed_ops() -> Builder:
    """What works row by row: along channels, from several branches, in other orders of axes."""

    def build(t: int) -> Graph:
        net = TimeNet(integer=False)
        x = net.frames(1, t, 4, 6)
        a, b = (net.window(x, 6, (k, 1), pads=(p, 0, 0, 0)) for k, p in ((3, 0), (5, 4)))
        a = net.op("mul", a, net.const(6))
        joined = net.op("concat", a, net.cut(b, 2, t), axis=3)
        t -= 2
        node = net.graph.make("split", [joined], axis=3, sizes=(5, 7))
        net.graph.nodes.append(node)
        y = net.transpose(node.outputs[1], 0, 3, 2, 1)
        y = net.op("softmax", y, axis=1)
        y = net.reduce("max", y, 2, keepdims=False)
        y = net.transpose(y, 0, 2, 1)
        rows = net.graph.constant(np.array([3, 0, 2]), "indices")
        y = net.op("gather", y, rows, axis=2)
        y = net.reshape(y, t, 3)
        y = net.linear(y, 4)
        return net.output(net.reshape(y, 1, 1, t, 4), node.outputs[0])

    return build


def recurrent(op: str) -> Builder:
    """A recurrent layer behind a causal convolution, in the order [time, batch, channels]."""

    def build(t: int) -> Graph:
        net = TimeNet(integer=False)
        gates = {"lstm": 4, "gru": 3, "rnn": 1}[op]
        functions = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh")}
        x = net.window(net.frames(1, t, 5), 6, (3,), pads=(2, 0))
        x = net.transpose(x, 1, 0, 2)
        x = net.op("matmul", x, net.const(6, gates * 7), None, trans_b=False)
        attrs: dict[str, Any] = {
            "results": ("y",),
            "reverse": False,
            "clip": None,
            "activations": tuple((f, 0.0, 0.0) for f in functions.get(op, ("Tanh",))),
        }
        if op == "lstm":
            attrs |= {"input_forget": False, "cell_clip": None}
        if op == "gru":
            attrs |= {"linear_before_reset": False}
        weights = net.const(gates * 7, 7, low=-0.4, high=0.4)
        y = net.op(op, x, weights, None, net.const(1, 7), None, None, None, **attrs)
        return net.output(net.linear(net.reshape(y, t, 7), 3))

    return build


def classifier(integer: bool, head: str) -> Builder:
    """A network without padding in time whose end sees all of the window."""

    def build(t: int) -> Graph:
        net = TimeNet(integer)
        x = net.window(net.frames(1, t, 8, 1), 8, (4, 3), strides=(2, 2))
        x = net.window(x, 8, (3, 1), groups=8)
        rows = x.shape[1]
        if head == "pool":
            y = net.pool("avg_pool", x, (rows, x.shape[2]), (1, 1))
            return net.output(net.window(y, 5, (1, 1)))
        if head == "last":
            return net.output(net.cut(x, rows - 1, rows), net.cut(x, 1, 2))
        if head == "squeeze":
            squeezed = net.reduce("mean", x, 1, 2)
            return net.output(net.op("mul", x, net.op("sigmoid", squeezed)))
        if head == "norm":
            return net.output(net.op("sub", x, net.reduce("max", x, 1)), x)
        if head == "heads":
            early = net.reduce("max", x, 1, 2)
            late = net.reduce("max", net.window(x, 8, (3, 1)), 1, 2)
            return net.output(net.op("maximum", early, late))
        flat = net.reshape(x, 1, int(np.prod(x.shape)))
        return net.output(net.window(net.reshape(flat, 1, 1, flat.shape[1]), 3, (1,)))

    return build


class RandomNet(TimeNet):
    """Branches of windows, strides, pools, sums and concatenations without padding, or all with it
    in front; what the seed draws does not depend on the number of frames.

    Attributes:
        stride: frames from row to row of the values, parallel to ``values``.
    """

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        super().__init__(bool(self.draw.integers(2)), seed)
        self.causal, self.maps = seed % 2 == 0, bool(self.draw.integers(2))
        self.values: list[Value] = []
        self.stride: list[int] = []

    def pick(self, *choices: int) -> int:
        return int(self.draw.choice(choices))

    def kernel(self, taps: int) -> tuple[int, ...]:
        return (taps, self.pick(1, 2)) if self.maps else (taps,)

    def front(self, rows: int, axes: int) -> tuple[int, ...]:
        """Pads of so many rows in front, in a network that has them."""
        return (max(0, rows) if self.causal else 0, *(0,) * (2 * axes - 1))

    def build(self, t: int) -> Graph:
        extents = (self.pick(6, 7, 8, 9),) if self.maps else ()
        self.values, self.stride = [self.frames(1, t, *extents, self.pick(2, 3, 4))], [1]
        for _ in range(self.pick(3, 4, 5, 6, 7)):
            index = self.pick(*range(max(0, len(self.values) - 2), len(self.values)))
            kind = self.pick(0, 0, 0, 1, 2, 3)
            made = (self.convolved, self.pooled, self.summed, self.joined)[kind](index)
            if made is not None:
                self.values.append(made[0])
                self.stride.append(made[1])
        middle = [self.values[len(self.values) // 2]] if len(self.values) > 3 else []
        return self.output(self.values[-1], *middle)

    def convolved(self, index: int) -> tuple[Value, int] | None:
        x, taps, stride = self.values[index], self.pick(1, 2, 3, 4), self.pick(1, 1, 1, 2)
        dilation = self.pick(1, 1, 2) if stride == 1 else 1
        kernel, depthwise, out = self.kernel(taps), bool(self.pick(0, 1)), self.pick(3, 4, 5, 6)
        if self.maps and x.shape[2] <= kernel[1]:
            return None
        others = (1,) * (len(kernel) - 1)
        y = self.window(
            x,
            x.shape[-1] if depthwise else out,
            kernel,
            strides=(stride, *others),
            dilations=(dilation, *others),
            pads=self.front((taps - 1) * dilation + 1 - stride, len(kernel)),
            groups=x.shape[-1] if depthwise else 1,
        )
        return y, self.stride[index] * stride

    def pooled(self, index: int) -> tuple[Value, int] | None:
        x, taps = self.values[index], self.pick(2, 3)
        kernel, average = self.kernel(taps), bool(self.pick(0, 1))
        if self.maps and x.shape[2] <= kernel[1]:
            return None
        # An average counts the pads of a step's beginning, and those of the model's it does not.
        op = "avg_pool" if average and not self.causal else "max_pool"
        pads = self.front(taps - 1, len(kernel))
        return self.pool(op, x, kernel, (1,) * len(kernel), pads), self.stride[index]

    def two(self, index: int, upto: int | None) -> tuple[Value, Value] | None:
        """A value and an earlier one, both with as many rows, which end alike."""
        other = self.pick(*range(len(self.values)))
        a, b = self.values[index], self.values[other]
        same = a.shape[2:upto] == b.shape[2:upto] and self.stride[index] == self.stride[other]
        if a is b or not same:
            return None
        rows = min(a.shape[1], b.shape[1])
        first, second = (
            v if v.shape[1] == rows else self.cut(v, v.shape[1] - rows, v.shape[1]) for v in (a, b)
        )
        return first, second

    def summed(self, index: int) -> tuple[Value, int] | None:
        found = self.two(index, None)
        return None if found is None else (self.sum(*found), self.stride[index])

    def joined(self, index: int) -> tuple[Value, int] | None:
        found = self.two(index, -1)
        if found is None or found[0].type.quant != found[1].type.quant:
            return None
        joined = self.op("concat", *found, axis=found[0].type.rank - 1)
        return joined, self.stride[index]


def random_net(seed: int) -> tuple[Builder, int]:
    """A network, and the frames that its strides take together."""
    net = RandomNet(seed)
    net.build(64)
    return lambda t: RandomNet(seed).build(t), max(net.stride)
