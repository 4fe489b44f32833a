"""max_pool and avg_pool on channels-last activations.

Averages are summed in float64 and rounded once.
"""

from __future__ import annotations

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


def _infer(node: Node) -> list[TensorType]:
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


def _windows(node: Node, padded: AnyArray) -> Any:
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
    windows = _windows(node, pad_spatial(x, node.attrs["pads"], lowest))
    y = next(windows).copy()
    for view in windows:
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
    return np.asarray(sum(_windows(node, padded)))


def _avg_pool(node: Node, arrays: Arrays) -> list[AnyArray]:
    x = need(arrays)
    total = sum(_windows(node, pad_spatial(wide(x), node.attrs["pads"], 0)))
    with np.errstate(all="ignore"):
        return [np.asarray(total / counted_cells(node, x.shape[1:-1])).astype(x.dtype)]


register(OpDef("max_pool", OpPattern.ANCHOR, _infer, _max_pool))
register(OpDef("avg_pool", OpPattern.ANCHOR, _infer, _avg_pool))
