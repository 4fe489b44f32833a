"""Operators that make, ask for or change shapes; most fold away while reading."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aotgen.frontend.onnx.elementwise import target_type
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


@converts("Constant")
def constant(n: OnnxNode) -> Value:
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if n.has(name):
            value = n.get_float(name) if name == "value_float" else n.get_int(name)
            return n.constant(np.array(value, dtype))
    for name, dtype in (("value_floats", np.float32), ("value_ints", np.int64)):
        if n.has(name):
            attribute = next(a for a in n.proto.attribute if a.name == name)
            values = attribute.floats if name == "value_floats" else attribute.ints
            return n.constant(np.array(list(values), dtype))
    array = n.get_tensor("value")
    if array is None:
        n.refuse("only dense numeric values are supported, not strings or sparse tensors")
    return n.constant(array)


@converts("ConstantOfShape", since=9)
def constant_of_shape(n: OnnxNode) -> Value:
    """One value, expanded: a large one stays a node until something needs its elements."""
    shape = n.need_ints(0, "shape")
    if any(d < 0 for d in shape):
        n.refuse(f"its shape {list(shape)} has a negative dimension")
    value = n.get_tensor("value")
    scalar = n.constant(np.zeros((), np.float32) if value is None else value.reshape(()))
    return n.emit("expand", [scalar], shape=shape)


@converts("Range", since=11)
def range_of(n: OnnxNode) -> Value:
    start, limit, delta = (
        n.need(i, what).reshape(()) for i, what in enumerate(("start", "limit", "delta"))
    )
    if not delta:
        n.refuse("its delta is 0")
    count = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    n.expect_small((count,), n.x().dtype)
    steps = np.arange(count, dtype=start.dtype)
    return n.constant((start + steps * delta).astype(start.dtype), "range")


@converts("Shape")
def shape_of(n: OnnxNode) -> Value:
    """From opset 15 on a range of it."""
    shape = n.x().shape
    rank = len(shape)
    start = _clamp(n.get_int("start", 0), rank)
    end = _clamp(n.get_int("end"), rank) if n.has("end") else rank
    return n.constant(np.array(shape[start:end], np.int64), "shape")


def _clamp(index: int, rank: int) -> int:
    return min(max(index + rank if index < 0 else index, 0), rank)


@converts("Size")
def size_of(n: OnnxNode) -> Value:
    return n.constant(np.array(n.x().type.numel, np.int64), "size")


@converts("NonZero", since=9)
def non_zero(n: OnnxNode) -> Value:
    array = np.atleast_1d(n.need(0, "input"))
    n.expect_small((*array.shape, array.ndim), DType.I64)
    found = np.nonzero(array)
    return n.constant(np.array(found, np.int64).reshape(len(found), -1), "indices")


@converts("Reshape")
def reshape(n: OnnxNode) -> Value:
    """0 copies the input's dimension (unless allowzero), one -1 takes what is left."""
    x = n.x()
    wanted = list(n.need_ints(1, "shape"))
    if not n.get_int("allowzero", 0):
        for axis, dim in enumerate(wanted):
            if dim == 0 and axis >= len(x.shape):
                n.refuse(
                    f"shape {wanted} copies dimension {axis}, but its input has rank {len(x.shape)}"
                )
            wanted[axis] = x.shape[axis] if dim == 0 else dim
    if wanted.count(-1) > 1 or any(d < -1 for d in wanted):
        n.refuse(f"shape {wanted} is not valid: at most one -1, nothing below")
    if -1 in wanted:
        rest = math.prod(d for d in wanted if d != -1)
        if rest == 0 or x.type.numel % rest:
            n.refuse(
                f"{list(x.shape)} ({x.type.numel} elements) cannot be reshaped to {wanted}",
                "check the input shapes given with --shape",
            )
        wanted[wanted.index(-1)] = x.type.numel // rest
    if math.prod(wanted) != x.type.numel:
        n.refuse(
            f"{list(x.shape)} ({x.type.numel} elements) cannot be reshaped to {wanted}",
            "check the input shapes given with --shape",
        )
    return n.reshape(x, wanted)


@converts("Flatten")
def flatten(n: OnnxNode) -> Value:
    x = n.x()
    rank = len(x.shape)
    axis = n.get_int("axis", 1)
    if not -rank <= axis <= rank:
        n.refuse(f"axis {axis} is out of range for rank {rank}")
    axis += rank if axis < 0 else 0
    return n.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@converts("Squeeze")
def squeeze(n: OnnxNode) -> Value:
    x = n.x()
    rank = len(x.shape)
    given = n.ints_input_or_attr("axes", 1, 13)
    if given is None:
        axes = {i for i, d in enumerate(x.shape) if d == 1}
    else:
        axes = {n.normalise_axis(a, rank) for a in given}
    for axis in sorted(axes):
        if x.shape[axis] != 1:
            n.refuse(
                f"axis {axis} has extent {x.shape[axis]}, not 1",
                "check the input shapes given with --shape",
            )
    return n.reshape(x, [d for i, d in enumerate(x.shape) if i not in axes])


@converts("Unsqueeze")
def unsqueeze(n: OnnxNode) -> Value:
    x = n.x()
    given = n.ints_input_or_attr("axes", 1, 13)
    if given is None:
        n.refuse("axes are missing", "the model is malformed: export it again")
    rank = len(x.shape) + len(given)
    axes = {n.normalise_axis(a, rank) for a in given}
    if len(axes) != len(given):
        n.refuse(f"axes {list(given)} name an axis twice")
    rest = iter(x.shape)
    return n.reshape(x, [1 if i in axes else next(rest) for i in range(rank)])


@converts("Transpose")
def transpose(n: OnnxNode) -> Value:
    x = n.x()
    rank = len(x.shape)
    perm = n.get_ints("perm") or tuple(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        n.refuse(f"perm {list(perm)} is not a permutation of {rank} axes")
    if perm == tuple(range(rank)):
        return x
    return n.emit("transpose", [x], perm=perm)


@converts("Concat")
def concat(n: OnnxNode) -> Value:
    values = [n.x(i) for i in range(len(n.inputs))]
    if len(values) == 1:
        return values[0]
    return n.emit("concat", values, axis=n.axis("axis", 1, len(values[0].shape)))


@converts("Split")
def split(n: OnnxNode) -> list[Value]:
    """Sizes: an attribute, from opset 13 an input; none means equal parts (18: the last one may be
    smaller).
    """
    x = n.x()
    axis = n.axis("axis", 0, len(x.shape))
    extent = x.shape[axis]
    sizes = n.ints_input_or_attr("split", 1, 13)
    if sizes is None:
        parts = n.get_int("num_outputs", len(n.proto.output))
        if parts != len(n.proto.output):
            n.refuse(f"num_outputs is {parts}, but it has {len(n.proto.output)} outputs")
        if parts < 1 or (n.opset < 18 and extent % parts):
            n.refuse(f"axis {axis} of extent {extent} cannot be split into {parts} equal parts")
        chunk = -(-extent // parts)
        sizes = tuple(min(chunk, max(0, extent - i * chunk)) for i in range(parts))
    if sum(sizes) != extent or any(s < 0 for s in sizes):
        n.refuse(f"sizes {list(sizes)} do not sum to {extent}, the extent of axis {axis}")
    if len(sizes) != len(n.proto.output):
        n.refuse(f"{len(sizes)} sizes for {len(n.proto.output)} outputs")
    if len(sizes) == 1:
        return [x]
    return n.emit_all("split", [x], axis=axis, sizes=tuple(sizes))


@converts("Slice")
def slice_by_attributes(n: OnnxNode) -> Value:
    """Below opset 10: attributes, no steps."""
    starts, ends = n.get_ints("starts") or (), n.get_ints("ends") or ()
    axes = n.get_ints("axes") or tuple(range(len(starts)))
    return _slice(n, starts, ends, axes, (1,) * len(starts))


@converts("Slice", since=10)
def slice_by_inputs(n: OnnxNode) -> Value:
    starts, ends = n.need_ints(1, "starts"), n.need_ints(2, "ends")
    axes = tuple(range(len(starts)))
    if n.optional(3) is not None:
        axes = n.need_ints(3, "axes")
    steps = (1,) * len(starts)
    if n.optional(4) is not None:
        steps = n.need_ints(4, "steps")
    return _slice(n, starts, ends, axes, steps)


def _slice(
    n: OnnxNode,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Value:
    """Python's slices on some axes; bounds out of range are clamped."""
    x = n.x()
    rank = len(x.shape)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        n.refuse("starts, ends, axes and steps differ in length")
    if 0 in steps:
        n.refuse("a step of 0 is not allowed")
    if len({n.normalise_axis(axis, rank) for axis in axes}) < len(axes):
        n.refuse(f"axes {list(axes)} name an axis twice")
    ranges = [range(d) for d in x.shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        where = n.normalise_axis(axis, rank)
        ranges[where] = range(x.shape[where])[slice(start, end, step)]
    if all(r == range(d) for r, d in zip(ranges, x.shape, strict=True)):
        return x
    return n.emit(
        "slice",
        [x],
        starts=tuple(r.start for r in ranges),
        ends=tuple(r.stop for r in ranges),
        steps=tuple(r.step for r in ranges),
    )


@converts("Expand", since=8)
def expand(n: OnnxNode) -> Value:
    """Broadcast in both directions: a 1 in ``shape`` keeps the input's extent."""
    x = n.x()
    wanted = n.need_ints(1, "shape")
    try:
        shape = np.broadcast_shapes(x.shape, wanted)
    except ValueError:
        n.refuse(f"{list(x.shape)} cannot be expanded to {list(wanted)}")
    if shape == x.shape:
        return x
    return n.emit("expand", [x], shape=tuple(int(d) for d in shape))


@converts("Tile")
def tile(n: OnnxNode) -> Value:
    x = n.x()
    repeats = n.need_ints(1, "repeats")
    if len(repeats) != len(x.shape) or any(r < 0 for r in repeats):
        n.refuse(f"repeats {list(repeats)} do not fit an input of shape {list(x.shape)}")
    return x if all(r == 1 for r in repeats) else n.emit("tile", [x], repeats=repeats)


@converts("Pad")
def pad_by_attributes(n: OnnxNode) -> Value:
    """Below opset 11."""
    rank = len(n.x().shape)
    return _pad(n, n.get_ints("pads") or (), tuple(range(rank)), n.get_float("value", 0.0))


@converts("Pad", since=11)
def pad_by_inputs(n: OnnxNode) -> Value:
    """Pads and value are inputs; from opset 18 on so may be axes."""
    rank = len(n.x().shape)
    pads = n.need_ints(1, "pads")
    value = 0.0 if n.optional(2) is None else n.need(2, "constant_value").reshape(-1)[0].item()
    axes = tuple(range(rank))
    if n.optional(3) is not None:
        axes = tuple(n.normalise_axis(a, rank) for a in n.need_ints(3, "axes"))
    return _pad(n, pads, axes, value)


def _pad(n: OnnxNode, pads: Sequence[int], axes: Sequence[int], value: float) -> Value:
    x = n.x()
    rank = len(x.shape)
    if len(pads) != 2 * len(axes):
        n.refuse(f"{len(pads)} pads do not fit {len(axes)} axes")
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis], full[rank + axis] = pads[i], pads[len(axes) + i]
    mode = n.get_str("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        n.refuse(f"mode={mode!r} is not supported", "use constant, reflect, edge or wrap")
    if not any(full):
        return x
    if mode == "constant" and all(p <= 0 for p in full):
        return _crop(n, x, full)
    return n.emit("pad", [x], pads=tuple(full), mode=mode, value=value)


def _crop(n: OnnxNode, x: Value, pads: Sequence[int]) -> Value:
    """Pads that only take away are a slice."""
    rank = len(x.shape)
    starts = tuple(-p for p in pads[:rank])
    ends = tuple(d + p for d, p in zip(x.shape, pads[rank:], strict=True))
    return n.emit("slice", [x], starts=starts, ends=ends, steps=(1,) * rank)


@converts("DepthToSpace")
def depth_to_space(n: OnnxNode) -> Value:
    """[N, C, H, W] -> [N, C/b^2, H*b, W*b]."""
    x = n.x()
    b = n.get_int("blocksize")
    mode = n.get_str("mode", "DCR")
    if len(x.shape) != 4 or b < 1 or x.shape[1] % (b * b):
        n.refuse(f"an input of shape {list(x.shape)} and blocksize {b} do not fit")
    batch, c, h, w = x.shape
    c //= b * b
    if mode == "DCR":
        split = n.reshape(x, (batch, b, b, c, h, w))
        moved = n.transpose(split, (0, 3, 4, 1, 5, 2))
    elif mode == "CRD":
        split = n.reshape(x, (batch, c, b, b, h, w))
        moved = n.transpose(split, (0, 1, 4, 2, 5, 3))
    else:
        n.refuse(f"mode={mode!r} is not known", "use DCR or CRD")
    return n.reshape(moved, (batch, c, h * b, w * b))


@converts("SpaceToDepth")
def space_to_depth(n: OnnxNode) -> Value:
    """[N, C, H, W] -> [N, C*b^2, H/b, W/b]."""
    x = n.x()
    b = n.get_int("blocksize")
    if len(x.shape) != 4 or b < 1 or x.shape[2] % b or x.shape[3] % b:
        n.refuse(f"an input of shape {list(x.shape)} and blocksize {b} do not fit")
    batch, c, h, w = x.shape
    split = n.reshape(x, (batch, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if n.get_str("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = n.transpose(split, order)
    return n.reshape(moved, (batch, c * b * b, h // b, w // b))


@converts("Trilu", since=14)
def trilu(n: OnnxNode) -> Value:
    k = 0 if n.optional(1) is None else n.need_ints(1, "k")[0]
    limit = 1 << 31
    return n.emit(
        "trilu", [n.x()], upper=bool(n.get_int("upper", 1)), k=max(-limit, min(limit - 1, k))
    )


@converts("BitCast", since=26)
def bit_cast(n: OnnxNode) -> Value:
    array, dtype = n.need(0, "input"), target_type(n, n.get_int("to"))
    if dtype.size != array.dtype.itemsize or DType.BOOL in (dtype, n.x().dtype):
        n.refuse(f"from {n.x().dtype.value} to {dtype.value} is not supported")
    return n.constant(np.ascontiguousarray(array).view(dtype.numpy).reshape(array.shape))
