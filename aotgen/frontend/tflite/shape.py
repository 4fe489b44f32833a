"""Operators that make, ask for or change shapes; most fold away while reading."""

from __future__ import annotations

import math

import numpy as np

from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


@converter("RESHAPE")
def reshape(node: TfliteNode) -> Value:
    """The shape is input 1, or an option in old files, where [0] stands for a scalar."""
    x = node.input(0)
    if node.optional(1) is not None:
        shape = node.ints(1, "the new shape")
    else:
        shape = tuple(node.options["new_shape"])
        if shape == (0,):
            shape = ()
    numel = x.type.numel
    if shape.count(-1) > 1 or any(d < -1 for d in shape):
        node.refuse(f"{list(shape)} is no shape", "the model is malformed: export it again")
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        fits = rest > 0 and numel % rest == 0
        shape = tuple(numel // rest if d == -1 and fits else d for d in shape)
    if math.prod(shape) != numel or min(shape, default=0) < 0:
        node.refuse(
            f"{list(x.shape)} cannot be reshaped to {list(shape)}",
            "export the model again, or bind other input shapes",
        )
    return node.reshape(x, shape)


@converter("SQUEEZE")
def squeeze(node: TfliteNode) -> Value:
    """Without axes all dimensions of 1 go."""
    x = node.input(0)
    axes = {node.axis(a, len(x.shape)) for a in node.options["squeeze_dims"]}
    if any(x.shape[a] != 1 for a in axes):
        node.refuse(f"axes {sorted(axes)} of {list(x.shape)} are not all 1")
    if not axes:
        axes = {a for a, d in enumerate(x.shape) if d == 1}
    return node.reshape(x, [d for a, d in enumerate(x.shape) if a not in axes])


@converter("EXPAND_DIMS")
def expand_dims(node: TfliteNode) -> Value:
    x = node.input(0)
    (axis,) = node.ints(1, "the axis")
    at = node.axis(axis, len(x.shape) + 1)
    return node.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


@converter("SHAPE")
def shape_of(node: TfliteNode) -> Value:
    return node.constant(np.array(node.input(0).shape, node.output_dtype().numpy), "shape")


@converter("RANK")
def rank_of(node: TfliteNode) -> Value:
    return node.constant(np.array(len(node.input(0).shape), node.output_dtype().numpy), "rank")


@converter("FILL")
def fill(node: TfliteNode) -> Value:
    """One value, expanded: a large one stays a node until something needs its elements."""
    shape = node.ints(0, "the shape")
    if min(shape, default=0) < 0:
        node.refuse(f"its shape {list(shape)} has a negative dimension")
    value = node.input(1)
    if value.type.numel != 1:
        node.refuse(f"its value has shape {list(value.shape)}, not one element")
    return node.emit("expand", [node.reshape(value, ())], shape=shape)


@converter("ZEROS_LIKE")
def zeros_like(node: TfliteNode) -> Value:
    x = node.input(0)
    return node.emit("expand", [node.scalar(0, x)], shape=x.shape)


@converter("RANGE")
def range_of(node: TfliteNode) -> Value:
    """start, start + delta, ...: each the one before plus delta, as TFLite sums."""
    start, limit, delta = (
        node.const(i, what).reshape(()) for i, what in enumerate(("start", "limit", "delta"))
    )
    if not delta or not all(np.isfinite(v) for v in (start, limit, delta)):
        node.refuse(f"from {start} to {limit} by {delta} is no range")
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    dtype = node.input(0).dtype
    node.expect_small((count,), dtype)
    steps = np.full(count, delta, dtype.numpy)
    steps[:1] = start
    return node.constant(np.cumsum(steps, dtype=dtype.numpy), "range")


@converter("BROADCAST_TO")
def broadcast_to(node: TfliteNode) -> Value:
    x = node.input(0)
    shape = node.ints(1, "the shape")
    try:
        fits = np.broadcast_shapes(x.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        node.refuse(f"{list(x.shape)} cannot be broadcast to {list(shape)}")
    return x if shape == x.shape else node.emit("expand", [x], shape=shape)


@converter("BROADCAST_ARGS")
def broadcast_args(node: TfliteNode) -> Value:
    """The shape that two shapes broadcast to."""
    first, second = node.ints(0, "the first shape"), node.ints(1, "the second shape")
    shape = np.broadcast_shapes(first, second)
    return node.constant(np.array(shape, node.output_dtype().numpy), "shape")


@converter("CAST")
def cast(node: TfliteNode) -> Value:
    return node.cast(node.input(0), node.output_dtype())


@converter("BITCAST")
def bitcast(node: TfliteNode) -> Value:
    """Of a constant, to an element type of the same size."""
    x, dtype = node.input(0), node.output_dtype()
    if dtype is x.dtype:
        return x
    if dtype.size != x.dtype.size or DType.BOOL in (dtype, x.dtype):
        node.refuse(f"from {x.dtype.value} to {dtype.value} is not supported")
    array = np.ascontiguousarray(node.const(0, "its input"))
    return node.constant(array.view(dtype.numpy).reshape(x.shape))
