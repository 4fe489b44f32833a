"""Random small ONNX models, the same for the same seed.

Each node is run by onnxruntime as soon as it is drawn: that tells shapes and types, refuses what
the standard refuses, and lets the generator drop nodes whose results a float comparison cannot
judge. Operators that jump (floor, compare, argmax, cast to int) only take values that no rounding
has touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

OPSETS = (13, 17, 18, 20, 21, 23, 24)
DOMAINS = (("com.microsoft", 1), ("ai.onnx.ml", 3))
MAX_ELEMENTS = 6000
SENSITIVITY = 2e-5
"""Most that an output may change, relative to its largest element, when float inputs change by
``NUDGE``: what is more sensitive than that cannot be compared at 1e-4."""
NUDGE = 2e-6


@dataclass
class Sample:
    """A tensor of the model and its value for the sample inputs."""

    name: str
    value: np.ndarray
    exact: bool
    kind: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def rank(self) -> int:
        return self.value.ndim


@dataclass
class Model:
    """A model, feeds for it, and what onnxruntime answers."""

    proto: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    outputs: list[str]
    expected: list[np.ndarray]
    ops: list[str] = field(default_factory=list)


class Unsuitable(Exception):
    """This node cannot be added to this model."""


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    """onnxruntime without any graph optimisation, quiet and on one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    )


class Generator:
    """Grows one model node by node."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.nodes: list[onnx.NodeProto] = []
        self.samples: list[Sample] = []
        self.constants: dict[str, np.ndarray] = {}
        self.used: set[str] = set()
        self.counter = 0
        self.big = self.chance(0.2)

    # --- drawing ---------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def extent(self) -> int:
        if self.big and self.chance(0.5):
            return int(self.rng.choice([20, 31, 32, 33, 47, 64, 65, 100]))
        return int(self.rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17]))

    def values(self, shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def constant(self, value: Any, stem: str = "w") -> str:
        name = self.fresh(stem)
        self.constants[name] = np.asarray(value)
        return name

    def ints(self, value: Any) -> str:
        return self.constant(np.array(value, np.int64), "i")

    def input(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Sample:
        if dtype is np.float32:
            value = self.values(shape)
        elif dtype is np.bool_:
            value = self.rng.random(shape) < 0.5
        else:
            value = self.rng.integers(-3, 4, shape).astype(dtype)
        sample = Sample(self.fresh("x"), np.asarray(value), True, "input")
        self.samples.append(sample)
        return sample

    def any(self, want: Callable[[Sample], bool] | None = None, dtype: Any = np.float32) -> Sample:
        """A tensor of the model, more likely a late one."""
        fits = [s for s in self.samples if s.value.dtype == dtype and (want is None or want(s))]
        if not fits:
            raise Unsuitable
        weights = np.arange(1, len(fits) + 1, dtype=float) ** 2
        return fits[int(self.rng.choice(len(fits), p=weights / weights.sum()))]

    def image(self) -> Sample:
        """A float tensor with batch, channels and one to three spatial axes."""
        try:
            return self.any(lambda s: 3 <= s.rank <= 5 and s.value.size > 4)
        except Unsuitable:
            return self.input((self.pick(1, 1, 2), self.extent(), *self.spatial(self.pick(1, 2))))

    def spatial(self, axes: int) -> tuple[int, ...]:
        return tuple(self.between(3, 40 if self.big else 14) for _ in range(axes))

    def perm(self, rank: int) -> list[int]:
        return [int(i) for i in self.rng.permutation(rank)]

    def axis(self, rank: int) -> int:
        if rank == 0:
            raise Unsuitable
        return self.between(-rank, rank - 1)

    # --- nodes -----------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: list[str],
        outputs: int = 1,
        exact: bool = False,
        captured: Sequence[str] = (),
        **attrs: Any,
    ) -> list[Sample]:
        """Run the node; keep it when its results are fit to be compared. Its bodies may read the
        tensors ``captured``.
        """
        names = [self.fresh("t") for _ in range(outputs)]
        node = helper.make_node(op, inputs, names, name=self.fresh(op.lower()), **attrs)
        known = {s.name: s.value for s in self.samples}
        feeds = {n: known[n] for n in dict.fromkeys([*inputs, *captured]) if n in known}
        used = {n: self.constants[n] for n in inputs if n in self.constants}
        graph = helper.make_graph(
            [node],
            "node",
            [info(n, v) for n, v in feeds.items()],
            [onnx.ValueInfoProto(name=n) for n in names],
            [numpy_helper.from_array(v, n) for n, v in used.items()],
        )
        try:
            results = session(self.wrap(graph)).run(names, feeds)
        except Exception as error:
            raise Unsuitable(str(error)) from error
        for value in results:
            self.judge(np.asarray(value), feeds, used)
        inexact = [n for n in feeds if not self.sample(n).exact]
        made = [
            Sample(n, np.asarray(v), exact and not inexact, "node")
            for n, v in zip(names, results, strict=True)
        ]
        self.nodes.append(node)
        self.samples.extend(made)
        self.used.update((*inputs, *captured))
        return made

    def sample(self, name: str) -> Sample:
        return next(s for s in self.samples if s.name == name)

    def judge(
        self, value: np.ndarray, feeds: dict[str, np.ndarray], used: dict[str, np.ndarray]
    ) -> None:
        if not 0 < value.size <= (10 if self.big else 1) * MAX_ELEMENTS or value.ndim > 6:
            raise Unsuitable
        if value.dtype.kind == "f":
            largest = float(np.max(np.abs(value)))
            if not np.isfinite(value).all() or largest > 1e3 or 0 < largest < 1e-3:
                raise Unsuitable

    def wrap(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, v) for d, v in (("", self.opset), *DOMAINS)],
            ir_version=10,
        )

    def finish(self) -> Model:
        """Choose outputs and run the whole."""
        used_names = self.used
        produced = [s for s in self.samples if s.kind == "node"]
        outputs = [s for s in produced if s.name not in used_names]
        outputs += [s for s in produced if s.name in used_names and self.chance(0.15)]
        inputs = [s for s in self.samples if s.kind == "input"]
        outputs += [s for s in inputs if self.chance(0.05)]
        order = [outputs[i] for i in self.rng.permutation(len(outputs))]
        names = [s.name for s in order]
        constants = {n: v for n, v in self.constants.items() if n in used_names}
        if self.constants and self.chance(0.05):
            name = next(iter(constants or self.constants))
            constants[name] = self.constants[name]
            names.append(name)
        shapes = {**{s.name: s.value for s in self.samples}, **constants}
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            [info(s.name, s.value) for s in inputs],
            [info(n, shapes[n]) for n in names],
            [numpy_helper.from_array(v, n) for n, v in constants.items()],
        )
        proto = self.wrap(graph)
        feeds = {s.name: s.value for s in inputs}
        try:
            run = session(proto)
        except Exception as error:  # onnx's own shape inference can be wrong
            raise Unsuitable(str(error)) from error
        expected = [np.asarray(v) for v in run.run(names, feeds)]
        if self.sensitive(run, feeds, names, expected):
            raise Unsuitable
        return Model(proto, feeds, names, expected, [n.op_type for n in self.nodes])

    def sensitive(
        self,
        run: ort.InferenceSession,
        feeds: dict[str, np.ndarray],
        names: list[str],
        expected: list[np.ndarray],
    ) -> bool:
        nudged = {
            n: np.asarray(v * (1 + NUDGE * self.rng.choice([-1, 1], v.shape)), np.float32)
            if v.dtype == np.float32
            else v
            for n, v in feeds.items()
        }
        for after, before in zip(run.run(names, nudged), expected, strict=True):
            if before.dtype.kind == "f":
                change = np.max(np.abs(np.asarray(after) - before))
                if change > SENSITIVITY * np.max(np.abs(before)):
                    return True
        return False


# --- what may be drawn ---------------------------------------------------------------------------

UNARY_SMOOTH = [
    "Sigmoid",
    "Tanh",
    "Exp",
    "Softplus",
    "Softsign",
    "Erf",
    "Sin",
    "Cos",
    "HardSigmoid",
    "Elu",
    "Selu",
    "Celu",
    "HardSwish",
    "Mish",
    "Gelu",
]
UNARY_EXACT = ["Relu", "Neg", "Abs", "LeakyRelu", "Identity"]
UNARY_JUMPY = ["Floor", "Ceil", "Round", "Sign", "ThresholdedRelu"]


def window(g: Generator, spatial: tuple[int, ...], dilate: bool = True) -> dict[str, Any]:
    """Kernel, strides, dilations and pads of a convolution or pool."""
    kernel = [g.between(1, min(4, n)) for n in spatial]
    if g.chance(0.3):
        kernel = [1] * len(spatial)
    if g.chance(0.3):
        kernel = [min(3, n) for n in spatial]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.5):
        attrs["strides"] = [g.between(1, 3) for _ in spatial]
    if dilate and g.chance(0.25):
        attrs["dilations"] = [g.between(1, 2) for _ in spatial]
    form = g.pick("pads", "pads", "same", "SAME_UPPER", "SAME_LOWER", "VALID", "none")
    if form == "pads":
        attrs["pads"] = [g.between(0, k - 1) for k in kernel + kernel]
    elif form == "same":
        attrs["pads"] = [k // 2 for k in kernel] * 2
    elif form != "none":
        attrs["auto_pad"] = form
        if form != "VALID":
            attrs.pop("dilations", None)
    return attrs


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def conv(g: Generator) -> None:
    x = g.image()
    channels = x.shape[1]
    groups = g.pick(1, 1, 1, channels, g.pick(*divisors(channels)))
    out = groups * g.between(1, max(1, (90 if g.big else 24) // groups))
    if groups == channels and g.chance(0.7):
        out = channels
    attrs = window(g, x.shape[2:])
    fan = channels // groups * int(np.prod(attrs["kernel_shape"]))
    shape = (out, channels // groups, *attrs["kernel_shape"])
    inputs = [x.name, g.constant(g.values(shape, fan**-0.5))]
    if g.chance(0.6):
        inputs.append(g.constant(g.values((out,))))
    if g.chance(0.3):
        attrs.pop("kernel_shape")
    (y,) = g.add("Conv", inputs, group=groups, **attrs)
    if g.chance(0.5):
        tail(g, y)


def tail(g: Generator, y: Sample) -> None:
    """What commonly follows a convolution: BatchNormalization, an activation, an addition."""
    if y.rank >= 3 and g.chance(0.4):
        (y,) = batch_norm_of(g, y)
    if g.chance(0.3):
        other = g.any(lambda s: s.shape == y.shape)
        (y,) = g.add(g.pick("Add", "Mul", "Sub"), [y.name, other.name])
    if g.chance(0.6):
        g.add(g.pick("Relu", "Sigmoid", "LeakyRelu", "HardSwish", "Tanh"), [y.name])


def conv_transpose(g: Generator) -> None:
    x = g.image()
    channels = x.shape[1]
    groups = g.pick(1, 1, channels, g.pick(*divisors(channels)))
    attrs = window(g, x.shape[2:])
    attrs.pop("auto_pad", None)
    out = g.between(1, max(1, 12 // groups))
    fan = channels // groups * int(np.prod(attrs["kernel_shape"]))
    w = g.constant(g.values((channels, out, *attrs["kernel_shape"]), fan**-0.5))
    inputs = [x.name, w] + ([g.constant(g.values((out * groups,)))] if g.chance(0.5) else [])
    if "strides" in attrs and g.chance(0.3):
        attrs["output_padding"] = [g.between(0, s - 1) for s in attrs["strides"]]
    g.add("ConvTranspose", inputs, group=groups, **attrs)


def widened(g: Generator, channels: int) -> Sample:
    """An image of so many channels: any other behind a 1x1 convolution."""
    x = g.image()
    shape = (channels, x.shape[1], *(1 for _ in x.shape[2:]))
    (y,) = g.add("Conv", [x.name, g.constant(g.values(shape, x.shape[1] ** -0.5))])
    return y


def packed_groups(g: Generator) -> None:
    """Many groups of few channels, forwards or transposed."""
    inputs, outputs, groups = g.between(1, 8), g.between(1, 5), g.between(2, 12)
    y = widened(g, inputs * groups)
    attrs = window(g, y.shape[2:])
    fan = inputs * int(np.prod(attrs["kernel_shape"]))
    if g.chance(0.6):
        w = g.values((outputs * groups, inputs, *attrs["kernel_shape"]), fan**-0.5)
        (y,) = g.add("Conv", [y.name, g.constant(w)], group=groups, **attrs)
    else:
        attrs.pop("auto_pad", None)
        w = g.values((inputs * groups, outputs, *attrs["kernel_shape"]), fan**-0.5)
        (y,) = g.add("ConvTranspose", [y.name, g.constant(w)], group=groups, **attrs)
    if g.chance(0.5):
        tail(g, y)


def few_outputs(g: Generator) -> None:
    """Many channels to few: a head, or the last layer of a decoder."""
    channels, outputs = g.between(8, 48), g.between(1, 4)
    y = widened(g, channels)
    bias = g.constant(g.values((outputs,)))
    if g.chance(0.5):
        attrs = window(g, y.shape[2:])
        shape = (outputs, channels, *attrs["kernel_shape"])
        w = g.constant(g.values(shape, float(np.prod(shape[1:])) ** -0.5))
        (y,) = g.add("Conv", [y.name, w, bias], **attrs)
    else:
        kernel = [g.between(1, 3) for _ in y.shape[2:]]
        times = g.pick(1, 2)
        w = g.values((channels, outputs, *(times * k for k in kernel)), channels**-0.5)
        (y,) = g.add("ConvTranspose", [y.name, g.constant(w), bias], strides=kernel)
    if g.chance(0.6):
        tail(g, y)


def gate(g: Generator) -> None:
    """x * sigmoid(x) and its relatives, behind a convolution."""
    y = widened(g, g.between(1, 20)) if g.chance(0.7) else g.any()
    kind = g.pick("Sigmoid", "HardSigmoid", "Softplus")
    (z,) = g.add(kind, [y.name])
    if kind == "Softplus":
        (z,) = g.add("Tanh", [z.name])
    g.add("Mul", [y.name, z.name] if g.chance(0.5) else [z.name, y.name])


def pool(g: Generator) -> None:
    x = g.image()
    op = g.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        g.add(op, [x.name], exact=op == "GlobalMaxPool")
        return
    attrs = window(g, x.shape[2:], dilate=op == "MaxPool")
    dilations = attrs.get("dilations", [1] * (x.rank - 2))
    for size, kernel, step in zip(x.shape[2:], attrs["kernel_shape"], dilations, strict=True):
        if (kernel - 1) * step >= size:  # the standard leaves the output's extent open
            raise Unsuitable
    if g.chance(0.4) and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if op == "AveragePool" and g.chance(0.5) and "ceil_mode" not in attrs:
        attrs["count_include_pad"] = 1
    g.add(op, [x.name], exact=op == "MaxPool", **attrs)


def batch_norm_of(g: Generator, x: Sample) -> list[Sample]:
    c = x.shape[1]
    names = [g.constant(g.values((c,))) for _ in range(3)]
    variance = g.constant((g.rng.random(c) + 0.5).astype(np.float32))
    return g.add("BatchNormalization", [x.name, *names, variance], epsilon=g.pick(1e-5, 1e-3))


def batch_norm(g: Generator) -> None:
    batch_norm_of(g, g.any(lambda s: 2 <= s.rank <= 5))


def instance_norm(g: Generator) -> None:
    x = g.any(lambda s: 3 <= s.rank <= 5 and np.prod(s.shape[2:]) > 4)
    c = x.shape[1]
    g.add("InstanceNormalization", [x.name, *(g.constant(g.values((c,))) for _ in range(2))])


def layer_norm(g: Generator) -> None:
    if g.opset < 17:
        raise Unsuitable
    x = g.any(lambda s: s.rank >= 1 and s.shape[-1] > 3)
    axis = -1 if g.chance(0.6) else g.axis(x.rank)
    shape = x.shape[axis:]
    names = [g.constant(g.values(shape)) for _ in range(g.pick(1, 2))]
    g.add("LayerNormalization", [x.name, *names], axis=axis)


def lrn(g: Generator) -> None:
    x = g.any(lambda s: s.rank == 4)
    g.add("LRN", [x.name], size=g.pick(1, 3, 5), alpha=0.1, beta=0.75, bias=1.0)


def unary(g: Generator) -> None:
    form = g.pick("smooth", "exact", "jumpy", "sqrt", "clip", "chain", "chain")
    if form == "exact":
        g.add(g.pick(*UNARY_EXACT), [g.any().name], exact=True)
    elif form == "jumpy":
        g.add(g.pick(*UNARY_JUMPY), [g.any(lambda s: s.exact).name], exact=True)
    elif form == "smooth":
        g.add(g.pick(*UNARY_SMOOTH), [g.any().name])
    elif form == "sqrt":
        x = g.any(lambda s: bool((s.value > 0.05).all()))
        g.add(g.pick("Sqrt", "Log", "Reciprocal"), [x.name])
    elif form == "clip":
        low, high = sorted(g.values((2,)))
        bounds = [g.pick("", g.constant(low)), g.pick("", g.constant(high))]
        g.add("Clip", [g.any().name, *bounds], exact=True)
    else:
        y = g.any()
        for _ in range(g.between(2, 5)):
            (y,) = g.add(g.pick("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Softplus"), [y.name])


def partner(g: Generator, shape: tuple[int, ...]) -> np.ndarray:
    """An array that broadcasts with ``shape``: lower rank, ones, sometimes higher rank."""
    dims = [d if g.chance(0.6) else 1 for d in shape]
    dims = dims[g.between(0, len(dims)) :] if g.chance(0.4) else dims
    if g.chance(0.1) and len(dims) < 5:
        dims = [g.pick(1, 2), *dims]
    if g.chance(0.15):
        dims = [g.between(2, 5) if d == 1 and g.chance(0.3) else d for d in dims]
    return g.values(tuple(dims))


def binary(g: Generator) -> None:
    x = g.any()
    op = g.pick("Add", "Mul", "Sub", "Div", "Max", "Min", "Pow", "Add", "Mul", "PRelu")
    value = partner(g, x.shape)
    if op == "Div":
        value = np.sign(value) * (np.abs(value) + 0.5)
    if op == "Pow":
        value = np.asarray(g.pick(2.0, 3.0, 1.0, 2.0), np.float32)
    if op == "PRelu":
        if value.ndim > x.rank or not broadcasts(value.shape, x.shape):
            raise Unsuitable
        g.add(op, [x.name, g.constant(value)])
        return
    if g.chance(0.5) and op not in ("Div", "Pow"):
        try:
            other = g.any(lambda s: broadcasts(s.shape, x.shape)).name
        except Unsuitable:
            other = g.input(value.shape).name
    else:
        other = g.constant(value.astype(np.float32))
    pair = [x.name, other]
    if g.chance(0.4) and op not in ("Pow", "Div"):
        pair.reverse()
    g.add(op, pair, exact=op in ("Max", "Min"))


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(a, b) == b
    except ValueError:
        return False


def variadic(g: Generator) -> None:
    x = g.any()
    others = [g.any(lambda s: broadcasts(s.shape, x.shape)).name for _ in range(g.between(0, 3))]
    g.add(g.pick("Sum", "Mean", "Max", "Min"), [x.name, *others])


def residual(g: Generator) -> None:
    x = g.image()
    c = x.shape[1]
    w = g.constant(g.values((c, c, *([1] * (x.rank - 2))), c**-0.5))
    (y,) = g.add("Conv", [x.name, w])
    (y,) = g.add(g.pick("Relu", "Sigmoid", "Abs"), [y.name])
    (y,) = g.add(g.pick("Add", "Mul"), [x.name, y.name] if g.chance(0.5) else [y.name, x.name])
    g.add("Relu", [y.name])


def squeeze_excite(g: Generator) -> None:
    x = g.any(lambda s: s.rank == 4)
    c = x.shape[1]
    (y,) = g.add("GlobalAveragePool", [x.name])
    (y,) = g.add("Conv", [y.name, g.constant(g.values((c, c, 1, 1), c**-0.5))])
    (y,) = g.add("Sigmoid", [y.name])
    g.add("Mul", [x.name, y.name])


def concat(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    axis = g.axis(x.rank)
    parts = []
    for _ in range(g.between(1, 4)):
        form = g.pick("same", "other", "other", "constant", "fit")
        if form == "same":
            parts.append(x.name)
        elif form == "constant":
            parts.append(g.constant(g.values(x.shape)))
        elif form == "fit":
            shape = list(x.shape)
            shape[axis] = g.between(1, 5)
            parts.append(g.input(tuple(shape)).name)
        else:
            parts.append(g.any(lambda s: matches(s.shape, x.shape, axis)).name)
    (y,) = g.add("Concat", [x.name, *parts], exact=True, axis=axis)
    if g.chance(0.4):
        g.add("Concat", [y.name, x.name], exact=True, axis=axis)


def matches(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> bool:
    if len(a) != len(b):
        return False
    axis %= len(b)
    return all(p == q for i, (p, q) in enumerate(zip(a, b, strict=True)) if i != axis)


def split(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1 and max(s.shape) > 1)
    axis = int(np.argmax(x.shape)) if g.chance(0.5) else g.axis(x.rank)
    n = x.shape[axis]
    parts = g.between(1, min(n, 3))
    cuts = sorted(g.rng.choice(np.arange(1, n), parts - 1, replace=False)) if parts > 1 else []
    sizes = np.diff([0, *cuts, n])
    made = g.add("Split", [x.name, g.ints(sizes)], outputs=parts, exact=True, axis=axis)
    if g.chance(0.4):
        for part in made:
            g.add(g.pick("Relu", "Neg", "Sigmoid"), [part.name])
    if g.chance(0.3):
        g.add("Concat", [s.name for s in reversed(made)], exact=True, axis=axis)


def slices(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    axes = g.perm(x.rank)[: g.between(1, x.rank)]
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.shape[axis]
        step = g.pick(1, 1, 2, -1, -2, 3)
        a, b = sorted((g.between(0, n), g.between(0, n)))
        if step < 0:
            a, b = b, g.pick(a, -(2**31), -n - 5)
        elif g.chance(0.3):
            b = g.pick(2**62, n + 7, -1)
        starts.append(a - n if g.chance(0.2) else a)
        ends.append(b)
        steps.append(step)
    names = [g.ints(v) for v in (starts, ends, axes, steps)]
    g.add("Slice", [x.name, *names], exact=True)


def movement(g: Generator) -> None:
    x = g.any()
    form = g.pick("transpose", "transpose", "reshape", "reshape", "flatten", "squeeze", "unsqueeze",
                  "tile", "expand", "depth", "space", "trilu")  # fmt: skip
    if form == "transpose":
        attrs = {"perm": g.perm(x.rank)} if x.rank and g.chance(0.8) else {}
        g.add("Transpose", [x.name], exact=True, **attrs)
    elif form == "reshape":
        reshape(g, x)
    elif form == "flatten":
        g.add("Flatten", [x.name], exact=True, axis=g.between(0, x.rank))
    elif form == "squeeze":
        ones = [i for i, d in enumerate(x.shape) if d == 1]
        if not ones:
            raise Unsuitable
        g.add("Squeeze", [x.name, g.ints([g.pick(*ones)])], exact=True)
    elif form == "unsqueeze":
        g.add("Unsqueeze", [x.name, g.ints([g.between(0, x.rank)])], exact=True)
    elif form == "tile":
        repeats = [g.pick(1, 1, 2, 3) for _ in x.shape]
        g.add("Tile", [x.name, g.ints(repeats)], exact=True)
    elif form == "expand":
        shape = [g.between(2, 4) if d == 1 and g.chance(0.5) else g.pick(d, 1) for d in x.shape]
        shape = [g.pick(1, 2)] + shape if g.chance(0.2) else shape
        g.add("Expand", [x.name, g.ints(shape)], exact=True)
    elif form == "depth":
        g.add("DepthToSpace", [x.name], exact=True, blocksize=2, mode=g.pick("DCR", "CRD"))
    elif form == "space":
        g.add("SpaceToDepth", [x.name], exact=True, blocksize=2)
    elif g.opset >= 14:
        g.add("Trilu", [x.name, g.ints(g.between(-2, 2))], exact=True, upper=g.pick(0, 1))


def reshape(g: Generator, x: Sample) -> None:
    factors, n = [], x.value.size
    for prime in (2, 3, 5, 7, 11, 13, 17):
        while n % prime == 0:
            factors.append(prime)
            n //= prime
    dims = [1] * g.between(0 if x.value.size == 1 else 1, 5)
    if n > 1:
        factors.append(n)
    for factor in factors:
        dims[g.between(0, len(dims) - 1)] *= factor
    if dims and g.chance(0.3):
        dims[g.between(0, len(dims) - 1)] = -1
    g.add("Reshape", [x.name, g.ints(dims)], exact=True)


def gemm(g: Generator) -> None:
    try:
        x = g.any(lambda s: s.rank == 2)
    except Unsuitable:
        x = g.input((g.extent(), g.extent()))
    trans_a, trans_b, n = g.pick(0, 0, 1), g.pick(0, 1), g.extent()
    m, k = x.shape[::-1] if trans_a else x.shape
    w = g.values((n, k) if trans_b else (k, n), k**-0.5)
    inputs = [x.name, g.constant(w)]
    if g.chance(0.7):
        c = g.values(g.pick((n,), (1, n), (m, n), (m, 1), (), (1,)))
        inputs.append(g.input(c.shape).name if g.chance(0.2) else g.constant(c))
    attrs = {"transA": trans_a, "transB": trans_b}
    if g.chance(0.3):
        attrs |= {"alpha": 0.5, "beta": g.pick(0.0, 2.0, 0.7)}
    (y,) = g.add("Gemm", inputs, **attrs)
    if g.chance(0.4):
        g.add(g.pick("Relu", "Sigmoid", "Tanh", "Softmax"), [y.name])


def matmul(g: Generator) -> None:
    x = g.any(lambda s: 1 <= s.rank <= 5)
    form = g.pick("right", "right", "left", "batched", "self", "vector", "activation")
    k = x.shape[-1]
    scale = k**-0.5
    if form == "right":
        g.add("MatMul", [x.name, g.constant(g.values((k, g.extent()), scale))])
    elif form == "left" and x.rank >= 2:
        k = x.shape[-2]
        shape = (g.extent(), k) if g.chance(0.6) else (2, 1, g.extent(), k)
        g.add("MatMul", [g.constant(g.values(shape, k**-0.5)), x.name])
    elif form == "batched" and x.rank >= 3:
        batch = tuple(g.pick(d, d, 1) for d in x.shape[:-2])
        w = g.values((*batch, k, g.extent()), scale)
        g.add("MatMul", [x.name, g.constant(w)])
    elif form == "self" and x.rank >= 2:
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        (t,) = g.add("Transpose", [x.name], exact=True, perm=perm)
        (s,) = g.add("MatMul", [x.name, t.name])
        (s,) = g.add("Mul", [s.name, g.constant(np.float32(scale))])
        (s,) = g.add("Softmax", [s.name], axis=-1)
        g.add("MatMul", [s.name, x.name])
    elif form == "vector":
        g.add("MatMul", [x.name, g.constant(g.values((k,), scale))])
    elif form == "activation":
        w = g.any(lambda s: s.rank >= 2 and s.shape[-2] == k and s.name != x.name)
        g.add("MatMul", [x.name, w.name])


def softmax(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    op, axis = g.pick("Softmax", "Softmax", "LogSoftmax"), g.axis(x.rank)
    if op == "LogSoftmax" and x.shape[axis] == 1:
        raise Unsuitable  # all zeros, to which no error is relative
    g.add(op, [x.name], axis=axis)


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]


def reduction(g: Generator) -> None:
    x = g.any()
    op = g.pick(*REDUCTIONS)
    attrs: dict[str, Any] = {"keepdims": g.pick(0, 1)} if g.chance(0.7) else {}
    inputs = [x.name]
    if x.rank and g.chance(0.8):
        axes = [a - x.rank if g.chance(0.3) else a for a in g.perm(x.rank)[: g.between(1, x.rank)]]
        if op == "ReduceSum" or g.opset >= 18:
            inputs.append(g.ints(axes))
        else:
            attrs["axes"] = axes
    g.add(op, inputs, exact=op in ("ReduceMax", "ReduceMin"), **attrs)


def arg(g: Generator) -> None:
    x = g.any(lambda s: s.exact and s.rank >= 1)
    g.add(g.pick("ArgMax", "ArgMin"), [x.name], exact=True, axis=g.axis(x.rank),
          keepdims=g.pick(0, 1), select_last_index=g.pick(0, 1))  # fmt: skip


def top_k(g: Generator) -> None:
    x = g.any(lambda s: s.exact and s.rank >= 1)
    axis = g.axis(x.rank)
    k = g.ints([g.between(1, x.shape[axis])])
    attrs = {"largest": g.pick(0, 1)} if g.opset >= 11 else {}
    g.add("TopK", [x.name, k], 2, True, axis=axis, **attrs)


def cumsum(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    axis = g.constant(np.array(g.axis(x.rank), np.int64), "i")
    g.add("CumSum", [x.name, axis], exclusive=g.pick(0, 1), reverse=g.pick(0, 1))


def pad(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    mode = g.pick("constant", "constant", "reflect", "edge")
    low = -1 if g.chance(0.2) and mode == "constant" else 0
    pads = [g.between(low, min(2, d - 1) if mode == "reflect" else 2) for d in x.shape * 2]
    inputs = [x.name, g.ints(pads)]
    if mode == "constant" and g.chance(0.5):
        inputs.append(g.constant(np.float32(g.pick(0.0, 1.5, -2.0))))
    g.add("Pad", inputs, exact=True, mode=mode)


def resize(g: Generator) -> None:
    x = g.any(lambda s: 3 <= s.rank <= 4)
    mode = g.pick("nearest", "linear", "cubic") if x.rank == 4 else g.pick("nearest", "linear")
    coord = g.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coord}
    if mode == "nearest":
        attrs["nearest_mode"] = g.pick("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")
    if g.chance(0.5):
        scales = [1.0, 1.0, *(g.pick(1.0, 2.0, 0.5, 1.5, 3.0) for _ in x.shape[2:])]
        inputs = [x.name, "", g.constant(np.array(scales, np.float32))]
    else:
        sizes = [*x.shape[:2], *(g.between(1, 2 * d) for d in x.shape[2:])]
        inputs = [x.name, "", "", g.ints(sizes)]
    g.add("Resize", inputs, exact=mode == "nearest", **attrs)


def gather(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    axis = g.axis(x.rank)
    n = x.shape[axis]
    shape = g.pick((), (1,), (g.between(1, 5),), (2, 3))
    indices = g.rng.integers(-n, n, shape).astype(g.pick(np.int64, np.int32))
    if g.chance(0.3) and x.rank:
        full = list(x.shape)
        full[axis] = g.between(1, 4)
        indices = g.rng.integers(-n, n, full).astype(np.int64)
        g.add("GatherElements", [x.name, g.constant(indices, "i")], exact=True, axis=axis)
        return
    if g.chance(0.2) and n >= 4:
        given = g.input(shape, np.int64)
        g.add("Gather", [x.name, given.name], exact=True, axis=axis)
        return
    g.add("Gather", [x.name, g.constant(indices, "i")], exact=True, axis=axis)


def compare(g: Generator) -> None:
    x = g.any(lambda s: s.exact)
    value = partner(g, x.shape)
    op = g.pick("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")
    (mask,) = g.add(op, [x.name, g.constant(value)], exact=True)
    form = g.pick("where", "cast", "not", "none", "logic")
    if form == "where":
        g.add("Where", [mask.name, x.name, g.constant(partner(g, x.shape))], exact=True)
    elif form == "cast":
        g.add("Cast", [mask.name], exact=True, to=g.pick(1, 7, 6))
    elif form == "not":
        g.add("Not", [mask.name], exact=True)
    elif form == "logic":
        other = g.any(lambda s: broadcasts(s.shape, mask.shape), np.bool_)
        g.add(g.pick("And", "Or", "Xor"), [mask.name, other.name], exact=True)


def where(g: Generator) -> None:
    x = g.any()
    shape = partner(g, x.shape).shape
    try:
        mask = g.any(lambda s: broadcasts(s.shape, x.shape), np.bool_)
    except Unsuitable:
        mask = g.input(shape, np.bool_)
    other = g.any(lambda s: broadcasts(s.shape, x.shape))
    pair = [x.name, other.name] if g.chance(0.5) else [other.name, x.name]
    g.add("Where", [mask.name, *pair], exact=True)


def integers(g: Generator) -> None:
    dtype = g.pick(np.int64, np.int64, np.int32)
    try:
        x = g.any(dtype=dtype)
    except Unsuitable:
        x = g.input(tuple(g.extent() for _ in range(g.between(0, 3))), dtype)
    form = g.pick("binary", "binary", "cast", "unary", "move", "reduce", "float")
    if form == "binary":
        value = g.rng.integers(1, 5, partner(g, x.shape).shape).astype(dtype)
        g.add(g.pick("Add", "Mul", "Sub", "Div", "Mod", "Max", "Min"),
              [x.name, g.constant(value)], exact=True)  # fmt: skip
    elif form == "cast":
        g.add("Cast", [x.name], exact=True, to=g.pick(1, 6, 7, 9))
    elif form == "unary":
        g.add(g.pick("Neg", "Abs", "Sign"), [x.name], exact=True)
    elif form == "move":
        g.add("Transpose", [x.name], exact=True)
    elif form == "reduce":
        g.add(g.pick("ReduceSum", "ReduceMax", "ReduceMin"), [x.name], exact=True)
    else:
        exact = g.any(lambda s: s.exact)
        g.add("Cast", [exact.name], exact=True, to=g.pick(6, 7))


def shape_chain(g: Generator) -> None:
    """Reshape to a shape computed from Shape, as exporters write it."""
    x = g.any(lambda s: s.rank >= 2)
    (shape,) = g.add("Shape", [x.name], exact=True)
    (first,) = g.add("Gather", [shape.name, g.ints(0)], exact=True, axis=0)
    (first,) = g.add("Unsqueeze", [first.name, g.ints([0])], exact=True)
    (target,) = g.add("Concat", [first.name, g.ints([-1])], exact=True, axis=0)
    g.add("Reshape", [x.name, target.name], exact=True)


def scatter(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 1)
    n = x.shape[0]
    rows = g.rng.permutation(n)[: g.between(1, n)]
    if g.chance(0.5):
        updates = g.constant(g.values((len(rows), *x.shape[1:])))
        g.add("ScatterND", [x.name, g.ints(rows[:, None]), updates], exact=True)
    else:
        axis = g.axis(x.rank)
        count = x.shape[axis]
        shape = list(x.shape)
        shape[axis] = g.between(1, count)
        line = g.rng.permutation(count)[: shape[axis]]
        line = line.reshape([-1 if k == axis % x.rank else 1 for k in range(x.rank)])
        indices = g.ints(np.broadcast_to(line, shape))
        updates = g.constant(g.values(tuple(shape)))
        g.add("ScatterElements", [x.name, indices, updates], exact=True, axis=axis)


def gather_nd(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 2)
    depth = g.between(1, x.rank)
    rows = g.between(1, 4)
    indices = np.stack([g.rng.integers(-n, n, rows) for n in x.shape[:depth]], axis=-1)
    g.add("GatherND", [x.name, g.ints(indices)], exact=True)


def one_hot(g: Generator) -> None:
    shape = (g.between(1, 5), g.between(1, 4))
    indices = g.input(shape, np.int64)
    depth = g.ints(g.between(1, 6))
    g.add("OneHot", [indices.name, depth, g.constant(np.array([0.5, 2.0], np.float32))],
          exact=True, axis=g.pick(-1, 0, 1))  # fmt: skip


def other_norm(g: Generator) -> None:
    x = g.any(lambda s: s.rank >= 2)
    if g.chance(0.5):
        g.add("LpNormalization", [x.name], axis=g.axis(x.rank), p=g.pick(1, 2))
    else:
        g.add("MeanVarianceNormalization", [x.name], axes=g.perm(x.rank)[: g.between(1, x.rank)])


def floats_of_other_width(g: Generator) -> None:
    x = g.any()
    (y,) = g.add("Cast", [x.name], exact=True, to=11)
    (y,) = g.add(g.pick("Neg", "Abs", "Sigmoid", "Relu"), [y.name])
    g.add("Cast", [y.name], to=1)


def logits(g: Generator) -> None:
    """Scores of attention with a mask: scale, add, softmax, product."""
    x = g.any(lambda s: s.rank == 3)
    b, n, d = x.shape
    (t,) = g.add("Transpose", [x.name], exact=True, perm=[0, 2, 1])
    (s,) = g.add("MatMul", [x.name, t.name])
    (s,) = g.add("Div", [s.name, g.constant(np.float32(d**0.5))])
    mask = g.constant(np.where(g.rng.random((g.pick(1, b), 1, n)) < 0.3, -100.0, 0.0)
                      .astype(np.float32))  # fmt: skip
    (s,) = g.add("Add", [s.name, mask])
    (s,) = g.add("Softmax", [s.name], axis=-1)
    (y,) = g.add("MatMul", [s.name, x.name])
    (y,) = g.add("Add", [x.name, y.name])
    if g.opset >= 17 and d > 3:
        g.add("LayerNormalization", [y.name, g.constant(g.values((d,)))], axis=-1)


def einsum(g: Generator) -> None:
    x = g.any(lambda s: s.rank == 3)
    b, _, j = x.shape
    w = g.constant(g.values((b, j, g.between(1, 6)), j**-0.5))
    g.add("Einsum", [x.name, w], equation=g.pick("bij,bjk->bik", "bij,bjk->ikb", "bij,bjk->bki"))


def gru_like_gate(g: Generator) -> None:
    """x * s + y * (1 - s): two uses of one value across a chain."""
    x = g.any()
    (s,) = g.add("Sigmoid", [x.name])
    (one,) = g.add("Sub", [g.constant(np.float32(1)), s.name])
    (a,) = g.add("Mul", [x.name, s.name])
    (b,) = g.add("Mul", [one.name, a.name])
    g.add("Add", [a.name, b.name])


def recurrent(g: Generator) -> None:
    """An LSTM, GRU or RNN over a sequence, some of its outputs read on."""
    x = g.any(lambda s: s.rank == 3 and s.shape[0] <= 20 and s.shape[2] <= 100)
    rows, inputs = x.shape[1:]
    op, hidden = g.pick("LSTM", "GRU", "RNN"), g.between(1, 20)
    direction = g.pick("forward", "reverse", "bidirectional")
    d, gates = 1 + (direction == "bidirectional"), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    names = [x.name]
    names.append(g.constant(g.values((d, gates * hidden, inputs), inputs**-0.5)))
    names.append(g.constant(g.values((d, gates * hidden, hidden), hidden**-0.5)))
    names.append(g.constant(g.values((d, 2 * gates * hidden), 0.5)) if g.chance(0.6) else "")
    names.append("")
    if g.chance(0.5):
        names.append(g.constant(g.values((d, rows, hidden))))
    attrs = {"linear_before_reset": g.pick(0, 1)} if op == "GRU" else {}
    outputs = 3 if op == "LSTM" else 2
    y, *_ = g.add(op, names, outputs, hidden_size=hidden, direction=direction, **attrs)
    if g.chance(0.7):
        (y,) = g.add("Transpose", [y.name], perm=[0, 2, 1, 3])
        g.add("Reshape", [y.name, g.ints([x.shape[0], rows, d * hidden])])


PROPOSALS: tuple[tuple[Callable[[Generator], None], float], ...] = (
    (conv, 5),
    (conv_transpose, 1.5),
    (packed_groups, 1),
    (few_outputs, 0.7),
    (gate, 1),
    (pool, 4),
    (batch_norm, 1),
    (instance_norm, 0.5),
    (layer_norm, 1),
    (lrn, 0.4),
    (unary, 3),
    (binary, 4),
    (variadic, 1),
    (residual, 1),
    (squeeze_excite, 0.7),
    (concat, 2.5),
    (split, 1.5),
    (slices, 2),
    (movement, 4),
    (gemm, 1.5),
    (matmul, 2),
    (softmax, 1),
    (reduction, 1.5),
    (arg, 0.7),
    (top_k, 0.5),
    (cumsum, 0.4),
    (pad, 1.2),
    (resize, 1),
    (gather, 1.2),
    (compare, 1),
    (where, 1),
    (integers, 1.5),
    (einsum, 0.3),
    (gru_like_gate, 0.5),
    (shape_chain, 0.5),
    (scatter, 0.5),
    (gather_nd, 0.4),
    (one_hot, 0.2),
    (other_norm, 0.5),
    (floats_of_other_width, 0.3),
    (logits, 0.5),
    (recurrent, 1),
)


def first_inputs(g: Generator) -> None:
    kind = g.pick("image", "image", "image", "sequence", "matrix", "any", "volume")
    if kind == "image":
        g.input((g.pick(1, 1, 1, 2, 3), g.extent(), *g.spatial(2)))
    elif kind == "sequence":
        g.input((g.pick(1, 1, 2), g.extent(), g.between(3, 20)))
    elif kind == "matrix":
        g.input((g.extent(), g.extent()))
    elif kind == "volume":
        g.input((g.pick(1, 2), g.between(1, 4), g.between(2, 5), g.between(2, 5), g.between(2, 6)))
    else:
        g.input(tuple(g.pick(1, 2, 3, 5) for _ in range(g.between(0, 6))))


def generate(seed: int) -> Model:
    """The model of a seed: one to fourteen nodes."""
    from tests.e2e.fuzz_proposals import MORE  # which draws with this module's Generator

    proposals = (*PROPOSALS, *MORE)
    weights = np.array([w for _, w in proposals])
    for attempt in range(50):
        g = Generator(seed * 1000 + attempt)
        first_inputs(g)
        wanted = g.between(1, 14)
        for _ in range(6 * wanted):
            if len(g.nodes) >= wanted:
                break
            propose, _ = proposals[int(g.rng.choice(len(proposals), p=weights / weights.sum()))]
            try:
                propose(g)
            except Unsuitable:
                continue
        try:
            if g.nodes:
                return g.finish()
        except Unsuitable:
            continue
    raise AssertionError(f"no model for seed {seed}")
