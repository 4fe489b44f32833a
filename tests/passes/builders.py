"""Graphs for the tests of the passes: hand-built in ONNX layout, and seeded random ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgen.ir import interpreter
from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import Array, DType, TensorType
from aotgen.ir.verifier import verify

NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


class Net:
    """A graph under construction. Images are NCHW; convs and pools stand between transposes."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph("net", [], [], [])

    def input(self, *shape: int, name: str = "x", dtype: DType = DType.F32) -> Value:
        value = Value(name, TensorType(dtype, shape))
        self.graph.inputs.append(value)
        return value

    def output(self, *values: Value) -> Graph:
        """Make ``values`` the outputs and hand out the graph, verified."""
        self.graph.outputs = list(values)
        self.graph.output_names = [f"y{i}" for i in range(len(values))]
        verify(self.graph)
        return self.graph

    def const(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Value:
        return self.graph.constant(self.rng.uniform(low, high, shape).astype(np.float32), "c")

    def number(self, x: float, *shape: int) -> Value:
        return self.graph.constant(np.full(shape, x, np.float32), "number")

    def op(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        name = f"{op}_node"
        return self.graph.add(
            op, inputs, origin=(f"{op}{len(self.graph.nodes)}",), name=name, **attrs
        )

    def transpose(self, x: Value, *perm: int) -> Value:
        return self.op("transpose", x, perm=perm)

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.op("reshape", x, shape=shape)

    def reduce(self, op: str, x: Value, *axes: int, keepdims: bool = True) -> Value:
        return self.op(f"reduce_{op}", x, axes=axes, keepdims=keepdims)

    def clip(self, x: Value, lo: float, hi: float) -> Value:
        return self.op("clip", x, lo=lo, hi=hi)

    def conv_nhwc(
        self,
        x: Value,
        out: int,
        k: int = 1,
        pad: int = 0,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> Value:
        channels = x.shape[-1] // groups
        scale = (k * k * channels) ** -0.5
        w = self.const(out, k, k, channels, low=-scale, high=scale)
        return self.op(
            "conv",
            x,
            w,
            self.const(out) if bias else None,
            strides=(stride,) * 2,
            pads=(pad,) * 4,
            dilations=(1, 1),
            groups=groups,
        )

    def conv(self, x: Value, out: int, *args: Any, **kwargs: Any) -> Value:
        """As a frontend brackets it."""
        y = self.conv_nhwc(self.transpose(x, *NHWC), out, *args, **kwargs)
        return self.transpose(y, *NCHW)

    def pool(self, op: str, x: Value, k: int, stride: int, pad: int = 0, **attrs: Any) -> Value:
        if op == "avg_pool":
            attrs.setdefault("count_include_pad", False)
        y = self.op(
            op,
            self.transpose(x, *NHWC),
            kernel=(k, k),
            strides=(stride,) * 2,
            pads=(pad,) * 4,
            dilations=(1, 1),
            ceil_extra=(0, 0),
            **attrs,
        )
        return self.transpose(y, *NCHW)

    def batch_norm(self, x: Value, axis: int = 1) -> Value:
        c = x.shape[axis]
        scale, var = self.const(c, low=0.5, high=1.5), self.const(c, low=0.5, high=2.0)
        return self.op(
            "batch_norm", x, scale, self.const(c), self.const(c), var, eps=1e-5, axis=axis
        )

    def linear(self, x: Value, n: int) -> Value:
        w = self.const(x.shape[-1], n, low=-0.5, high=0.5)
        return self.op("add", self.const(n), self.op("matmul", x, w, None, trans_b=False))

    def layer_norm(self, x: Value) -> Value:
        """Decomposed, as exporters below opset 17 write it."""
        d = self.op("sub", x, self.reduce("mean", x, x.type.rank - 1))
        square = self.op("pow", d, self.number(2.0))
        var = self.op("add", self.reduce("mean", square, x.type.rank - 1), self.number(1e-5))
        y = self.op("div", d, self.op("sqrt", var))
        return self.op("add", self.op("mul", y, self.const(x.shape[-1])), self.const(x.shape[-1]))

    def gelu(self, x: Value) -> Value:
        e = self.op("erf", self.op("div", x, self.number(2**0.5)))
        product = self.op("mul", x, self.op("add", e, self.number(1.0)))
        return self.op("mul", product, self.number(0.5))


def ops(graph: Graph) -> Counter[str]:
    """How often each op occurs."""
    return Counter(node.op for node in graph.nodes)


def feeds(graph: Graph, seed: int = 7) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {v.name: rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}


def proven(
    build: Callable[[], Graph], step: Callable[[Graph], object], *, exact: bool = False
) -> Graph:
    """The graph after ``step``, verified, with the outputs it had before."""
    before, after = build(), build()
    x = feeds(before)
    want = interpreter.run(before, x)
    step(after)
    verify(after)
    check_equal(interpreter.run(after, x), want, exact=exact)
    return after


def check_equal(
    got: Mapping[str, Array], want: Mapping[str, Array], *, exact: bool = False, where: str = ""
) -> None:
    assert list(got) == list(want)
    for name, expected in want.items():
        assert got[name].dtype == expected.dtype and got[name].shape == expected.shape
        if exact or expected.dtype.kind != "f":
            assert np.array_equal(got[name], expected), where
        else:
            scale = max(1e-3, float(np.max(np.abs(expected), initial=0.0)))
            error = float(np.max(np.abs(got[name] - expected), initial=0.0))
            assert error <= 1e-5 * scale, f"{where}: {error} of {scale}"


class RandomNet(Net):
    """A random graph of some ten to thirty layers, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        n, c, h, w = (
            self.pick(1, 1, 2),
            self.pick(1, 2, 4, 6),
            self.pick(1, 3, 4, 6),
            self.pick(2, 4),
        )
        self.values = [self.input(n, c, h, w)]
        if self.pick(0, 1):
            self.values.append(self.input(n, c, h, w, name="x2"))

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def build(self) -> Graph:
        steps = [
            self.step_conv,
            self.step_conv,
            self.step_unary,
            self.step_unary,
            self.step_constant,
            self.step_constant,
            self.step_binary,
            self.step_binary,
            self.step_transpose,
            self.step_reshape,
            self.step_concat,
            self.step_slice,
            self.step_split,
            self.step_pad,
            self.step_pool,
            self.step_reduce,
            self.step_axis,
            self.step_matmul,
            self.step_composed,
            self.step_expand,
            self.step_gather,
            self.step_gate,
        ]
        for _ in range(int(self.rng.integers(6, 22))):
            value = self.pick(*steps)(self.pick(*self.values[-4:], *self.values))
            if value is not None and 0 < value.type.numel <= 4096:
                self.values.append(value)
        users = self.graph.users()
        leaves = [v for v in self.values[2:] if not users.get(v)]
        return self.output(
            *(leaves or self.values[-1:]), *([self.values[-1]] if self.pick(0, 1) else [])
        )

    def step_conv(self, x: Value) -> Value | None:
        if x.type.rank != 4:
            return None
        c = x.shape[1]
        y = self.conv(
            x, self.pick(2, 3, c), self.pick(1, 3), 1, self.pick(1, 2), bias=self.pick(True, False)
        )
        return self.batch_norm(y) if self.pick(0, 1) else y

    def step_unary(self, x: Value) -> Value:
        op = self.pick(
            "relu", "sigmoid", "tanh", "abs", "neg", "identity", "clip", "cast", "leaky_relu"
        )
        if op == "clip":
            return self.clip(x, self.pick(-1.0, 0.0), self.pick(1.0, float("inf")))
        if op == "cast":
            return self.op(op, x, dtype=DType.F32)
        return self.op(op, x, **({"alpha": 0.1} if op == "leaky_relu" else {}))

    def step_constant(self, x: Value) -> Value:
        """With a scalar, one number per index of some axis, or a full constant."""
        kind = self.pick("scalar", "axis", "full")
        shape: Sequence[int] = x.shape if kind == "full" else ()
        if kind == "axis" and x.type.rank:
            axis = int(self.rng.integers(x.type.rank))
            shape = (x.shape[axis],) + (1,) * (x.type.rank - 1 - axis)
        c = self.const(*shape, low=0.5, high=1.5)
        op = self.pick("add", "mul", "sub", "div", "maximum", "minimum")
        return self.op(op, c, x) if op == "add" and self.pick(0, 1) else self.op(op, x, c)

    def step_binary(self, x: Value) -> Value | None:
        same = [v for v in self.values if v.type == x.type]
        return self.op(self.pick("add", "mul", "sub", "maximum"), x, self.pick(*same))

    def step_transpose(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        return self.transpose(x, *map(int, self.rng.permutation(x.type.rank)))

    def step_reshape(self, x: Value) -> Value | None:
        shape = list(x.shape)
        if not shape:
            return None
        axis = int(self.rng.integers(len(shape)))
        kind = self.pick("merge", "split", "unit", "flat", "drop")
        if kind == "merge" and axis + 1 < len(shape):
            shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
        elif kind == "split" and shape[axis] % 2 == 0 and len(shape) < 5:
            shape[axis : axis + 1] = self.pick([2, shape[axis] // 2], [shape[axis] // 2, 2])
        elif kind == "unit" and len(shape) < 5:
            shape.insert(axis, 1)
        elif kind == "drop":
            shape = [n for n in shape if n != 1]
        else:
            shape = [shape[0], int(np.prod(shape[1:]))]
        return self.reshape(x, *shape)

    def step_concat(self, x: Value) -> Value | None:
        same = [v for v in self.values if v.type == x.type]
        if not x.shape:
            return None
        axis = int(self.rng.integers(x.type.rank))
        return self.op(
            "concat", x, *(self.pick(*same) for _ in range(self.pick(0, 1, 2))), axis=axis
        )

    def step_slice(self, x: Value) -> Value | None:
        starts = tuple(self.pick(0, 0, min(1, n - 1)) for n in x.shape)
        steps = tuple(self.pick(1, 1, 2) for _ in x.shape)
        return self.op("slice", x, starts=starts, ends=x.shape, steps=steps)

    def step_split(self, x: Value) -> Value | None:
        axes = [a for a, n in enumerate(x.shape) if n > 1]
        if not axes:
            return None
        axis = self.pick(*axes)
        node = self.graph.make(
            "split", [x], axis=axis, sizes=(1, x.shape[axis] - 1), origin=("split",)
        )
        self.graph.nodes.append(node)
        self.values.extend(node.outputs)
        return None

    def step_pad(self, x: Value) -> Value | None:
        pads = tuple(self.pick(0, 0, 1) for _ in range(2 * x.type.rank))
        y = self.op("pad", x, pads=pads, mode="constant", value=self.pick(0.0, 0.0, 1.0))
        return self.step_conv(y) if y.type.rank == 4 and self.pick(0, 1) else y

    def step_pool(self, x: Value) -> Value | None:
        if x.type.rank != 4 or min(x.shape[2:]) < 2:
            return None
        if self.pick(0, 1):
            pads = (0, 0, 1, 1, 0, 0, 1, 1)
            x = self.op("pad", self.op("relu", x), pads=pads, mode="constant", value=0.0)
        return self.pool(self.pick("max_pool", "avg_pool"), x, 2, self.pick(1, 2), self.pick(0, 1))

    def step_reduce(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        count = int(self.rng.integers(1, x.type.rank + 1))
        axes = sorted(map(int, self.rng.permutation(x.type.rank)[:count]))
        return self.reduce(
            self.pick("mean", "max", "sum"), x, *axes, keepdims=self.pick(True, False)
        )

    def step_axis(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        return self.op("softmax", x, axis=int(self.rng.integers(x.type.rank)))

    def step_matmul(self, x: Value) -> Value | None:
        if x.type.rank < 2:
            return None
        if self.pick(0, 1):
            return self.linear(x, self.pick(2, 5))
        if self.pick(0, 1) and x.type.rank == 4:
            return self.linear(self.reshape(x, x.shape[0], int(np.prod(x.shape[1:]))), 3)
        swap = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
        y = self.op("matmul", x, self.transpose(x, *swap), None, trans_b=False)
        return self.op("softmax", self.op("mul", y, self.number(0.5)), axis=x.type.rank - 1)

    def step_composed(self, x: Value) -> Value | None:
        if not x.shape:
            return None
        return self.pick(self.layer_norm, self.gelu)(x)

    def step_expand(self, x: Value) -> Value | None:
        y = self.op("expand", x, shape=tuple(self.pick(2, 3) if n == 1 else n for n in x.shape))
        return self.op("mul", y, self.const(*y.shape)) if self.pick(0, 1) else y

    def step_gather(self, x: Value) -> Value | None:
        if not x.shape or x.type.rank > 4:
            return None
        axis = int(self.rng.integers(x.type.rank))
        shape = self.pick((), (2,), (2, 1))
        indices = self.graph.constant(self.rng.integers(0, x.shape[axis], shape), "i")
        return self.op("gather", x, indices, axis=axis)

    def step_gate(self, x: Value) -> Value | None:
        """Squeeze and excite."""
        if x.type.rank != 4:
            return None
        s = self.reduce("mean", x, 2, 3, keepdims=self.pick(True, False))
        if s.type.rank == 4:
            s = self.conv(s, x.shape[1])
        else:
            s = self.reshape(self.linear(s, x.shape[1]), *s.shape, 1, 1)
        return self.op("mul", x, self.op("sigmoid", s))
