"""Cases of sums, pools and softmax of 8-bit integers for ``integer_harness``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from kernels.integer_cases import LIMITS, random_ints
from kernels.integer_harness import IntegerCase

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType, TensorType
from aotgen.ops import exp_tables


def sum_attributes(
    rng: np.random.Generator, dtype: DType, *, relu: bool = False, top: int | None = None
) -> dict[str, Any]:
    """Attributes of a qadd or qsub as TFLite prepares them of any scales and zero points.

    Args:
        relu: the lower clamp is the zero point.
        top: the upper clamp, None for the type's.
    """
    lo, hi = LIMITS[dtype]
    first, second = 10 ** rng.uniform(-3, -1, 2)
    out = max(first, second) * 10 ** rng.uniform(-0.5, 0.5)
    zeros = [int(z) for z in rng.integers(lo, hi + 1, 3)]
    wide = 2 * max(first, second)
    inputs = [quantize_multiplier(float(s / wide)) for s in (first, second)]
    multiplier, shift = quantize_multiplier(float(wide / (2**20 * out)))
    return {
        "zeros": tuple(zeros[:2]), "left_shift": 20, "multipliers": tuple(m for m, _ in inputs),
        "shifts": tuple(s for _, s in inputs), "multiplier": multiplier, "shift": shift,
        "zero_point": zeros[2], "lo": zeros[2] if relu else lo,
        "hi": hi if top is None else max(top, zeros[2]), "dtype": dtype, "quant": None,
    }  # fmt: skip


def _case(
    name: str, op: str, inputs: dict[str, np.ndarray], gap: int, inplace: bool, **attrs: Any
) -> IntegerCase:
    graph = Graph("case", [], [], [])
    values = [Value(n, TensorType(DType.of(x.dtype), x.shape)) for n, x in inputs.items()]
    graph.inputs += values
    node = graph.make(op, values, **attrs)
    graph.nodes.append(node)
    return IntegerCase(name, Group([node], node, name), inputs, gap, inplace=inplace)


def sum_case(
    name: str,
    shape: Sequence[int],
    op: str = "qadd",
    *,
    dtype: DType = DType.I8,
    seed: int = 0,
    gap: int = 0,
    inplace: bool = False,
    **more: Any,
) -> IntegerCase:
    """``more``: arguments of ``sum_attributes``."""
    rng = np.random.default_rng(seed)
    inputs = {n: random_ints(rng, dtype, *shape) for n in "ab"}
    return _case(name, op, inputs, gap, inplace, **sum_attributes(rng, dtype, **more))


def pool_case(
    name: str,
    op: str,
    shape: Sequence[int],
    *,
    dtype: DType = DType.I8,
    clamp: tuple[int, int] | None = None,
    seed: int = 0,
    gap: int = 0,
    fill: int | None = None,
    **window: Any,
) -> IntegerCase:
    """max_pool, qavg_pool, or qreduce_sum over all spatial axes.

    Args:
        fill: what all elements are; None for any.
        window: kernel, strides, dilations, pads; 2x2 by 2 if not given.
    """
    rng = np.random.default_rng(seed)
    x = random_ints(rng, dtype, *shape)
    if fill is not None:
        x[...] = fill
    lo, hi = clamp or LIMITS[dtype]
    attrs: dict[str, Any]
    if op == "qreduce_sum":
        count = int(np.prod(shape[1:-1]))
        multiplier, shift = quantize_multiplier(float(rng.uniform(0.7, 1.4)) / count)
        zeros = [int(z) for z in rng.integers(lo, hi + 1, 2)]
        attrs = {
            "axes": tuple(range(1, len(shape) - 1)), "keepdims": True, "zero": zeros[0],
            "multiplier": multiplier, "shift": shift, "zero_point": zeros[1], "dtype": dtype,
            "quant": None,
        }  # fmt: skip
    else:
        attrs = {"kernel": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
        attrs |= window
        if op == "qavg_pool":
            attrs |= {"lo": lo, "hi": hi}
    return _case(name, op, {"x": x}, gap, False, **attrs)


def softmax_case(
    name: str,
    shape: Sequence[int],
    scale: float,
    *,
    dtype: DType = DType.I8,
    out: DType = DType.I8,
    seed: int = 0,
    fill: int | None = None,
    inplace: bool = False,
) -> IntegerCase:
    """``scale``: of the input, times beta; ``fill``: as of ``pool_case``."""
    x = random_ints(np.random.default_rng(seed), dtype, *shape)
    if fill is not None:
        x[...] = fill
    multiplier, shift, lowest = exp_tables.difference_scale(scale)
    return _case(
        name, "qsoftmax", {"x": x}, 0, inplace,
        multiplier=multiplier, shift=shift, lowest=lowest, dtype=out, quant=None,
    )  # fmt: skip


def elementwise_cases() -> list[IntegerCase]:
    """Products, changes of scale, extremes and tables of 8 bits: te nests."""
    rng = np.random.default_rng(0)
    found: list[IntegerCase] = []

    def add(name: str, op: str, of: DType, count: int, **attrs: Any) -> None:
        inputs = {n: random_ints(rng, of, 3, 5, 33) for n in "ab"[:count]}
        found.append(_case(f"{name} {of}", op, inputs, 0, False, **attrs))

    for dtype in (DType.I8, DType.U8):
        lo, hi = LIMITS[dtype]
        add("maximum", "maximum", dtype, 2)
        add("minimum", "minimum", dtype, 2)
        table = rng.permutation(256) + lo
        add("lookup", "lookup", dtype, 1, table=tuple(int(v) for v in table), dtype=dtype,
            quant=None)  # fmt: skip
        for scale in (0.2, 0.7, 1.4, 5.0):
            zeros = [int(z) for z in rng.integers(lo, hi + 1, 3)]
            rest = {"zero_point": zeros[2], "lo": lo, "hi": hi, "dtype": dtype, "quant": None}
            for name, op, count, real in (
                ("scale", "requantize", 1, scale),
                ("product", "qmul", 2, scale / 100),
            ):
                multiplier, shift = quantize_multiplier(real)
                add(f"{name} {scale}", op, dtype, count, zeros=tuple(zeros[:count]),
                    multiplier=multiplier, shift=shift, **rest)  # fmt: skip
    return found
