"""Cases of qconv and qmatmul for ``integer_harness``: seeded values, types, zero points, scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from kernels.integer_harness import IntegerCase

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, Requant, TensorType
from aotgen.schedule.base import Template
from aotgen.schedule.nest import NestTemplate

KINDS = ("tflm", "litert", "real", "onnx")
LIMITS = {DType.I8: (-128, 127), DType.U8: (0, 255), DType.I16: (-32768, 32767)}


def random_ints(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype.numpy)
    return rng.integers(info.min, info.max + 1, shape, dtype.numpy)


def random_requant(
    rng: np.random.Generator,
    kind: str,
    channels: int,
    spread: float,
    dtype: DType,
    wide: bool = False,
    *,
    clamp: tuple[int, int] | None = None,
    left: bool = False,
    ties: bool = False,
) -> Requant:
    """Parameters for ``channels`` (1: for all) that bring sums about ``spread`` into ``dtype``.

    Args:
        clamp: None for the whole range.
        left: some multipliers scale up.
        ties: multipliers are powers of two, so that halves are common.
    """
    lo, hi = LIMITS[dtype]
    real = (hi - lo) / 4 / spread * 2.0 ** rng.uniform(-1.5, 1.5, channels)
    if left:
        some = slice(None, None, max(1, channels // 3))
        real[some] = rng.uniform(0.6, 9, len(real[some]))
    if ties:
        real = 2.0 ** np.round(np.log2(real))
    lo, hi = clamp or (lo, hi)
    zero = 0 if dtype is DType.I16 else int(rng.integers(lo, hi + 1))
    if kind in ("onnx", "real"):
        dt = np.float32 if kind == "onnx" else np.float64
        return Requant(kind, (), (), tuple(float(dt(r)) for r in real), zero, lo, hi, wide)  # type: ignore[arg-type]
    pairs = [quantize_multiplier(float(r)) for r in real]
    multiplier, shift = tuple(m for m, _ in pairs), tuple(s for _, s in pairs)
    return Requant(kind, multiplier, shift, (), zero, lo, hi, wide)  # type: ignore[arg-type]


def integer_case(
    name: str,
    op: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    kind: str | None = "tflm",
    dtypes: tuple[DType, DType] = (DType.I8, DType.I8),
    out: DType | None = None,
    per_channel: bool = True,
    wide: bool = False,
    bias: bool = True,
    x_zero: int | None = None,
    w_zero: int | None = None,
    seed: int = 0,
    gap: int = 0,
    template: Template | None = None,
    constant_w: bool = True,
    weights: np.ndarray | None = None,
    scaling: dict[str, Any] | None = None,
    **attrs: Any,
) -> IntegerCase:
    """A qconv or qmatmul with seeded values.

    Args:
        weights: of shape ``w_shape``; None for any.
        scaling: arguments of ``random_requant``; None for a clamp in every other case.
        attrs: those of conv or matmul.
    """
    rng = np.random.default_rng(seed)
    graph = Graph("case", [], [], [])
    x_type, w_type = dtypes
    x = Value("x", TensorType(x_type, tuple(x_shape)))
    graph.inputs.append(x)
    inputs = {"x": random_ints(rng, x_type, *x_shape)}
    inputs["x"].reshape(-1)[::7] = LIMITS[x_type][0]  # where sums of int16 products overflow
    if weights is None:
        weights = random_ints(rng, w_type, *w_shape)
    if constant_w:
        w = graph.constant(weights, "w")
    else:
        w = Value("w", TensorType(w_type, tuple(w_shape)))
        graph.inputs.append(w)
        inputs["w"] = weights
    if op == "qconv":
        spatial = len(x_shape) - 2
        attrs = {
            "strides": (1,) * spatial, "dilations": (1,) * spatial, "pads": (0,) * (2 * spatial),
            "groups": 1, **attrs,
        }  # fmt: skip
        channels, depth = w_shape[0], int(np.prod(w_shape[1:]))
    else:
        attrs = {"trans_b": True, **attrs}
        channels, depth = w_shape[-2 if attrs["trans_b"] else -1], x_shape[-1]
    out = out or x_type
    spread = 74.0 * (18900.0 if x_type is DType.I16 else 74.0) * depth**0.5
    requant = None
    if kind is not None:
        if scaling is None:
            lo, hi = sorted(int(v) for v in rng.integers(*LIMITS[out], 2))
            scaling = {"clamp": (lo, hi)} if rng.integers(2) else {}
        count = channels if per_channel else 1
        requant = random_requant(rng, kind, count, spread, out, wide, **scaling)
    else:
        out = DType.I32
    operands: list[Value | None] = [x, w, None, None, None]
    if bias:
        limit = int(2 * spread)
        values = rng.integers(-limit, limit, channels).astype(np.int64 if wide else np.int32)
        operands[2] = graph.constant(values, "bias")
    for at, zero, dtype in ((3, x_zero, x_type), (4, w_zero, w_type)):
        if zero is not None:
            operands[at] = graph.constant(np.asarray([zero], dtype.numpy), "zero")
    node = graph.make(op, operands, dtype=out, requant=requant, quant=None, **attrs)
    graph.nodes.append(node)
    group = Group([node], node, name)
    return IntegerCase(name, group, inputs, gap, template)


def qconv_case(
    name: str,
    template: Template,
    x: tuple[int, ...],
    outputs: int,
    kernel: tuple[int, ...],
    *,
    groups: int = 1,
    seed: int = 0,
    unsigned: bool = False,
    zero: int | None = None,
    w_zero: int | None = None,
    extreme: bool = False,
    to_signed: bool = False,
    split_rows: bool = False,
    config: dict[str, int] | None = None,
    scaling: dict[str, Any] | None = None,
    **more: Any,
) -> IntegerCase:
    """A qconv of bytes.

    Args:
        unsigned: activations are uint8; with ``to_signed`` the output is int8 all the same.
        zero: zero point of x; None for any.
        w_zero: weights are uint8 around this zero point.
        extreme: most weights are -128.
        config: knobs of the template.
        more: arguments of ``integer_case``.
    """
    rng = np.random.default_rng(seed + 1000)
    shape = (outputs, *kernel, x[-1] // groups)
    if w_zero is not None:
        w = rng.integers(w_zero - 160, w_zero + 161, shape).clip(0, 255).astype(np.uint8)
    else:
        w = random_ints(rng, DType.I8, *shape)
    if extreme:
        w[rng.random(shape) < 0.7] = -128
    dtype = DType.U8 if unsigned else DType.I8
    case = integer_case(
        name, "qconv", x, shape, dtypes=(dtype, DType.of(w.dtype)), weights=w, w_zero=w_zero,
        out=DType.I8 if to_signed else dtype, x_zero=_zero(rng, dtype, zero), template=template,
        groups=groups, seed=seed, scaling=scaling or {}, **more,
    )  # fmt: skip
    case.split_rows, case.knobs = split_rows, config
    return case


def qmatmul_case(
    name: str,
    template: Template,
    x: tuple[int, ...],
    outputs: int,
    *,
    trans_b: bool = True,
    seed: int = 0,
    unsigned: bool = False,
    zero: int | None = None,
    config: dict[str, int] | None = None,
    scaling: dict[str, Any] | None = None,
    **more: Any,
) -> IntegerCase:
    """A qmatmul of bytes with constant weights above -128; arguments as of ``qconv_case``."""
    rng = np.random.default_rng(seed + 1000)
    shape = (outputs, x[-1]) if trans_b else (x[-1], outputs)
    w = rng.integers(-127, 128, shape).astype(np.int8)
    dtype = DType.U8 if unsigned else DType.I8
    case = integer_case(
        name, "qmatmul", x, shape, dtypes=(dtype, DType.I8), weights=w, template=template,
        x_zero=_zero(rng, dtype, zero), trans_b=trans_b, seed=seed, scaling=scaling or {}, **more,
    )  # fmt: skip
    case.knobs = config
    return case


def _zero(rng: np.random.Generator, dtype: DType, zero: int | None) -> int:
    lo, hi = LIMITS[dtype]
    return int(rng.integers(lo, hi + 1)) if zero is None else zero


NEST = NestTemplate()


class Cases:
    """A list of cases of one template that grows; each has its number as its seed."""

    def __init__(
        self, template: Template, kinds: Sequence[str] = KINDS[:1], **defaults: Any
    ) -> None:
        """
        Args:
            template: of all.
            kinds: of requantization, which take turns where a case names none.
            defaults: further arguments of ``qconv_case`` and ``qmatmul_case``.
        """
        self.template = template
        self.kinds = kinds
        self.defaults = defaults
        self.made: list[IntegerCase] = []

    def _more(self, more: dict[str, Any]) -> dict[str, Any]:
        seed = len(self.made)
        kind = self.kinds[seed % len(self.kinds)]
        return {"kind": kind, "seed": seed, **self.defaults, **more}

    def conv(
        self, name: str, x: tuple[int, ...], outputs: int, kernel: tuple[int, ...], **more: Any
    ) -> None:
        case = qconv_case(name, self.template, x, outputs, kernel, **self._more(more))
        self.made.append(case)

    def matmul(self, name: str, x: tuple[int, ...], outputs: int, **more: Any) -> None:
        self.made.append(qmatmul_case(name, self.template, x, outputs, **self._more(more)))
