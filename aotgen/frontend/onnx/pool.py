"""Pools, windowed and global; channels-last inside, so transposes go around them."""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.frontend.onnx.windows import Window, window
from aotgen.ir.graph import Value
from aotgen.ops.pool_index import strides_in_file


def _window(n: OnnxNode, x: Value) -> Window:
    if len(x.shape) < 3:
        n.refuse(f"an input of rank {len(x.shape)} has no spatial axes")
    kernel = n.get_ints("kernel_shape")
    if kernel is None:
        n.refuse("attribute 'kernel_shape' is missing", "the model is malformed: export it again")
    return window(n, x.shape[2:], kernel)


@converts("MaxPool")
def max_pool(n: OnnxNode) -> list[Value | None]:
    """The maxima and, where they are asked for, their int64 positions in the flattened input."""
    x = n.x()
    w = _window(n, x)
    attrs = {
        "kernel": w.kernel,
        "strides": w.strides,
        "pads": w.pads,
        "dilations": w.dilations,
        "ceil_extra": w.ceil_extra,
    }
    last = n.to_channels_last(x)
    y = n.emit("max_pool", [last], **attrs)
    places: Value | None = None
    if n.is_used(1):
        steps = strides_in_file(last.shape, column_major=bool(n.get_int("storage_order", 0)))
        found = n.emit("max_pool_index", [last, y], **attrs, strides_of=steps)
        places = n.to_channels_first(found)
    return [n.to_channels_first(y), places]


@converts("MaxUnpool", since=9)
def max_unpool(n: OnnxNode) -> Value:
    """Zeros, but for the elements of x at the positions that a MaxPool gave for them."""
    x, places = n.x(0), n.x(1)
    n.need_float(x)
    if len(x.shape) < 3 or places.shape != x.shape:
        n.refuse(f"input {list(x.shape)} and positions {list(places.shape)} do not fit")
    spatial = len(x.shape) - 2
    kernel = n.get_ints("kernel_shape") or ()
    strides = n.get_ints("strides") or (1,) * spatial
    pads = n.get_ints("pads") or (0,) * 2 * spatial
    if (len(kernel), len(strides), len(pads)) != (spatial, spatial, 2 * spatial):
        n.refuse(f"its attributes do not fit {spatial} spatial axes")
    inferred = tuple(
        (size - 1) * s + k - b - e
        for size, s, k, b, e in zip(
            x.shape[2:], strides, kernel, pads[:spatial], pads[spatial:], strict=True
        )
    )
    shape = (*x.shape[:2], *inferred)
    if n.optional(2) is not None:
        given = n.need_ints(2, "output_shape")
        if given != shape:
            n.refuse(
                f"output_shape {list(given)} is not {list(shape)}, which follows from the window: "
                "positions then count in the one by ONNX's test, in the other by onnxruntime",
                "pool an input that the windows cover evenly",
            )
    flat = (math.prod(shape),)
    zeros = n.emit("expand", [n.constant(np.zeros(1, x.dtype.numpy))], shape=flat)
    updates, indices = (n.reshape(v, (v.type.numel,)) for v in (x, places))
    y = n.emit("scatter_elements", [zeros, indices, updates], axis=0, reduction="none")
    return n.reshape(y, shape)


@converts("AveragePool")
def average_pool(n: OnnxNode) -> Value:
    x = n.x()
    n.need_float(x)
    w = _window(n, x)
    y = n.emit(
        "avg_pool",
        [n.to_channels_last(x)],
        kernel=w.kernel,
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        count_include_pad=bool(n.get_int("count_include_pad", 0)),
        ceil_extra=w.ceil_extra,
    )
    return n.to_channels_first(y)


@converts("LpPool")
def lp_pool(n: OnnxNode) -> Value:
    """(sum of |x|^p over the window)^(1/p): the sum is a depthwise convolution with ones."""
    x = n.x()
    n.need_float(x)
    w = _window(n, x)
    p = n.get_int("p", 2)
    channels = x.shape[1]
    ones = n.constant(np.ones((channels, *w.kernel, 1), x.dtype.numpy), "ones")
    powers = n.emit("mul", [x, x]) if p == 2 else _power(n, n.emit("abs", [x]), float(p))
    total = n.emit(
        "conv",
        [n.to_channels_last(powers), ones, None],
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        groups=channels,
    )
    root = n.emit("sqrt", [total]) if p == 2 else _power(n, total, 1.0 / p)
    return n.to_channels_first(root)


def _power(n: OnnxNode, x: Value, exponent: float) -> Value:
    return x if exponent == 1.0 else n.emit("pow", [x, n.scalar(exponent, x)])


_GLOBAL = {"GlobalAveragePool": "reduce_mean", "GlobalMaxPool": "reduce_max"}


@converts(*_GLOBAL)
def global_pool(n: OnnxNode) -> Value:
    return _global(n, n.x(), _GLOBAL[n.op])


def _global(n: OnnxNode, x: Value, op: str) -> Value:
    rank = len(x.shape)
    if rank < 3:
        n.refuse(f"an input of rank {rank} has no spatial axes")
    y = n.emit(op, [n.to_channels_last(x)], axes=tuple(range(1, rank - 1)), keepdims=True)
    return n.to_channels_first(y)


@converts("GlobalLpPool")
def global_lp_pool(n: OnnxNode) -> Value:
    x = n.x()
    p = n.get_int("p", 2)
    if p in (1, 2):
        return _global(n, x, f"reduce_l{p}")
    if p < 1 or not math.isfinite(p):
        n.refuse(f"p={p} is not supported", "use p >= 1")
    total = _global(n, _power(n, n.emit("abs", [x]), float(p)), "reduce_sum")
    return _power(n, total, 1.0 / p)
