"""max_pool and avg_pool on channels-last activations.

Averages are summed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_rank,
    fail,
    need,
    pad_spatial,
    per_axis,
    taps,
    text,
    type_of,
    wide,
    window_extent,
)
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, present, product_of, reduce, window
from aotgen.te.expr import Combiner, Expr
from aotgen.te.index import Index


def infer_pool(node: Node) -> list[TensorType]:
    """The type rule of pools: x [N,*S,C] and a window that fits into it with its pads."""
    x = type_of(node)
    expect_rank(node, x, 3)
    spatial = x.rank - 2
    kernel, strides = per_axis(node, "kernel", spatial), per_axis(node, "strides", spatial)
    dilations, pads = per_axis(node, "dilations", spatial), per_axis(node, "pads", 2 * spatial)
    extents = tuple(
        window_extent(n, kernel[i], strides[i], dilations[i], pads[i] + pads[spatial + i])
        for i, n in enumerate(x.max_shape[1:-1])
    )
    if min(extents) < 1:
        fail(node, f"the window {text(kernel)} does not fit into the padded input {text(x.shape)}")
    return [TensorType(x.dtype, (x.shape[0], *extents, x.shape[-1]), x.quant)]


def windows(node: Node, padded: AnyArray) -> Any:
    """For every cell of the window its view [N,*out,C] of ``padded``."""
    a = node.attrs
    out = [
        window_extent(n, k, s, d, 0)
        for n, k, s, d in zip(
            padded.shape[1:-1], a["kernel"], a["strides"], a["dilations"], strict=True
        )
    ]
    return (view for _, view in taps(padded, a["kernel"], a["strides"], a["dilations"], out))


def _max_pool(node: Node, arrays: Arrays) -> list[AnyArray]:
    """Maximum of the cells inside the input; the type's lowest value where a window has none."""
    x = need(arrays)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    views = windows(node, pad_spatial(x, node.attrs["pads"], lowest))
    y = next(views).copy()
    for view in views:
        np.maximum(y, view, out=y)
    return [y]


def counted_cells(node: Node, spatial: tuple[int, ...]) -> AnyArray:
    """avg_pool's divisor for each output position: float64 [1, *out, 1].

    Counts the window's cells inside the input, and with ``count_include_pad`` those in its pads;
    what ceil mode added to the end pads (``ceil_extra``) never counts.
    """
    pads, n = tuple(node.attrs["pads"]), len(spatial)
    extra = tuple(node.attrs.get("ceil_extra", (0,) * n))
    ones = np.ones((1, *spatial, 1))
    if node.attrs["count_include_pad"]:
        own = (*pads[:n], *(p - e for p, e in zip(pads[n:], extra, strict=True)))
        padded = pad_spatial(pad_spatial(ones, own, 1.0), (*(0,) * n, *extra), 0.0)
    else:
        padded = pad_spatial(ones, pads, 0.0)
    return np.asarray(sum(windows(node, padded)))


def _avg_pool(node: Node, arrays: Arrays) -> list[AnyArray]:
    x = need(arrays)
    total = sum(windows(node, pad_spatial(wide(x), node.attrs["pads"], 0)))
    with np.errstate(all="ignore"):
        return [np.asarray(total / counted_cells(node, x.shape[1:-1])).astype(x.dtype)]


def _te_windows(
    node: Node, i: Sequence[Index], extents: Sequence[int], pads: Sequence[int]
) -> list[tuple[Index, Index, int]]:
    """Per spatial axis the bounds of k within ``extents`` that lie behind ``pads``."""
    a = node.attrs
    parameters = zip(i, a["strides"], pads, a["dilations"], a["kernel"], extents, strict=True)
    return [window(*p) for p in parameters]


def _counts(node: Node, i: Sequence[Index], extents: Sequence[int]) -> list[Index]:
    """Cells that avg_pool's divisor counts along each axis, of an input with these ``extents``."""
    a, spatial = node.attrs, len(extents)
    begins, ends = a["pads"][:spatial], a["pads"][spatial:]
    if not a.get("count_include_pad", False):
        bounds = _te_windows(node, i, extents, begins)
    else:
        extra = tuple(a.get("ceil_extra", (0,) * spatial))
        padded = [n + b + e - c for n, b, e, c in zip(extents, begins, ends, extra, strict=True)]
        bounds = _te_windows(node, i, padded, (0,) * spatial)
    return [hi - lo for lo, hi, _ in bounds]


def _te_over(combiner: Combiner, node: Node, x: Tensor, i: Sequence[Index]) -> Expr:
    """The combination of the cells of ``x`` inside the window of output ``i``."""
    a, spatial = node.attrs, x.rank - 2
    names = ("kd", "kh", "kw")[-spatial:] if spatial <= 3 else [f"k{n}" for n in range(spatial)]
    begins = a["pads"][:spatial]
    position = i[1:-1]
    bounds = _te_windows(node, position, x.shape[1:-1], begins)

    def tap(*k: Index) -> Expr:
        where = (
            p * s - b + t * d
            for p, s, b, t, d in zip(position, a["strides"], begins, k, a["dilations"], strict=True)
        )
        return x(i[0], *where, i[-1])

    return reduce(combiner, list(zip(names, bounds, strict=True)), tap)


def te_window_sum(node: Node, x: Tensor, i: Sequence[Index]) -> tuple[Expr, Expr]:
    """The sum over the window of output ``i``, and how many cells count for its average."""
    counts = _counts(node, i[1:-1], x.shape[1:-1])
    return _te_over("sum", node, x, i), product_of(counts, x.dtype)


def _te_pool(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x = present(inputs, 0)
    spatial = x.rank - 2

    def element(*i: Index) -> Expr:
        if node.op == "max_pool":
            return _te_over("max", node, x, i)
        total, count = te_window_sum(node, x, i)
        return total / count

    out_names = ("n", *(f"o{n}" for n in ("d", "h", "w")[-spatial:]), "c") if spatial <= 3 else ()
    return (compute(node.output.shape, x.dtype, element, out_names),)


register(OpDef("max_pool", OpPattern.ANCHOR, infer_pool, _max_pool, _te_pool))
register(OpDef("avg_pool", OpPattern.ANCHOR, infer_pool, _avg_pool, _te_pool))
