"""Cases of the op sweep: operators that move elements."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.tflite.sweep_models import Array, Case, Draw, Entry, Operand, Shape, constant, int32s

KINDS = ("int8", "float32", "uint8", "int16", "int32")


def _same(d: Draw, kind: str, shape: Shape) -> tuple[Operand, tuple[object, object]]:
    """(an input, the quantization that the output shares with it)."""
    x = d.tensor(shape, kind)
    return x, (x.scale, x.zero)


def _concatenation(d: Draw, kind: str) -> Case:
    rank = d.between(1, 4)
    shape = d.shape(rank, 6)
    axis = d.between(0, rank - 1)
    quant = d.quant(kind)
    inputs, extent = [], 0
    for _ in range(d.between(2, 4)):
        own = d.between(1, 5)
        extent += own
        # LiteRT rescales uint8 alone; of the others all tensors share one quantization.
        scale, zero = d.quant(kind) if kind == "uint8" and d.chance(0.7) else quant
        inputs.append(Operand((*shape[:axis], own, *shape[axis + 1 :]), kind, scale, zero))
    y = Operand((*shape[:axis], extent, *shape[axis + 1 :]), kind, *quant)
    option = axis - rank if d.chance(0.4) else axis
    return Case("CONCATENATION", kind, inputs, [y], {"axis": option})


def _paddings(d: Draw, shape: Shape, most: int = 3) -> Array:
    return np.asarray([(d.between(0, most), d.between(0, most)) for _ in shape], np.int32)


def _pad(d: Draw, kind: str) -> Case:
    x, quant = _same(d, kind, d.shape(d.between(1, 4), 6))
    pads = _paddings(d, x.shape)
    out = tuple(int(s + p.sum()) for s, p in zip(x.shape, pads, strict=True))
    inputs = [x, constant(pads)]
    if d.chance(0.4):
        value = d.made_constant(Operand((1,), kind, *quant))
        return Case("PADV2", kind, [*inputs, value], [Operand(out, kind, *quant)])
    return Case("PAD", kind, inputs, [Operand(out, kind, *quant)])


def _mirror_pad(d: Draw, kind: str) -> Case:
    x, quant = _same(d, kind, tuple(d.between(2, 7) for _ in range(d.between(1, 4))))
    mode = d.among("REFLECT", "SYMMETRIC")
    less = 1 if mode == "REFLECT" else 0
    pads = np.asarray([(d.between(0, s - less), d.between(0, s - less)) for s in x.shape], np.int32)
    out = tuple(int(s + p.sum()) for s, p in zip(x.shape, pads, strict=True))
    return Case(
        "MIRROR_PAD", kind, [x, constant(pads)], [Operand(out, kind, *quant)], {"mode": mode}
    )


def _split(d: Draw, kind: str) -> Case:
    rank = d.between(1, 4)
    axis, parts = d.between(0, rank - 1), d.between(1, 4)
    shape = list(d.shape(rank, 6))
    option = int32s(axis - rank if d.chance(0.3) else axis)
    scalar = constant(np.asarray(option.data).reshape(()))
    if d.chance(0.5):
        shape[axis] = parts * d.between(1, 3)
        x, quant = _same(d, kind, tuple(shape))
        shape[axis] //= parts
        outs = [Operand(tuple(shape), kind, *quant)] * parts
        return Case("SPLIT", kind, [scalar, x], outs, {"num_splits": parts})
    sizes = [d.between(1, 4) for _ in range(parts)]
    shape[axis] = sum(sizes)
    x, quant = _same(d, kind, tuple(shape))
    outs = [Operand((*shape[:axis], s, *shape[axis + 1 :]), kind, *quant) for s in sizes]
    return Case("SPLIT_V", kind, [x, int32s(*sizes), scalar], outs, {"num_splits": parts})


def _strided_slice(d: Draw, kind: str) -> Case:
    rank = d.between(1, 4)
    x, quant = _same(d, kind, d.shape(rank, 7))
    begin, end, step, out = [], [], [], []
    masks = {"begin_mask": 0, "end_mask": 0, "shrink_axis_mask": 0}
    for axis, size in enumerate(x.shape):
        first = d.between(0, size - 1)
        if d.chance(0.15) and axis < rank - 1:
            masks["shrink_axis_mask"] |= 1 << axis
            taken, stride, last = None, 1, first + 1
        else:
            stride = d.among(1, 1, 1, 2, 3, -1, -2)
            last = d.between(first + 1, size) if stride > 0 else d.between(-1, first - 1)
            if d.chance(0.2):
                masks["begin_mask"] |= 1 << axis
            if last < 0 or d.chance(0.2):
                masks["end_mask"] |= 1 << axis
            start = None if masks["begin_mask"] >> axis & 1 else first
            stop = None if masks["end_mask"] >> axis & 1 else last
            taken = len(range(size)[start:stop:stride])
        if taken != 0:
            begin.append(first - size if d.chance(0.2) else first)
            end.append(last)
            step.append(stride)
        else:  # nothing left: take all of the axis
            begin.append(0)
            end.append(size)
            step.append(1)
            masks = {k: m & ~(1 << axis) for k, m in masks.items()}
            taken = size
        if taken is not None:
            out.append(taken)
    inputs = [x, int32s(*begin), int32s(*end), int32s(*step)]
    return Case("STRIDED_SLICE", kind, inputs, [Operand(tuple(out), kind, *quant)], masks)


def _slice(d: Draw, kind: str) -> Case:
    x, quant = _same(d, kind, d.shape(d.between(1, 4), 7))
    begin = [d.between(0, s - 1) for s in x.shape]
    size = [d.between(1, s - b) for s, b in zip(x.shape, begin, strict=True)]
    asked = [-1 if b + n == s else n for b, n, s in zip(begin, size, x.shape, strict=True)]
    inputs = [x, int32s(*begin), int32s(*asked)]
    return Case("SLICE", kind, inputs, [Operand(tuple(size), kind, *quant)])


def _transpose(d: Draw, kind: str) -> Case:
    rank = d.between(2, 5)
    x, quant = _same(d, kind, d.shape(rank, 6))
    perm = [int(p) for p in d.rng.permutation(rank)]
    y = Operand(tuple(x.shape[p] for p in perm), kind, *quant)
    return Case("TRANSPOSE", kind, [x, int32s(*perm)], [y])


def _reshape(d: Draw, kind: str) -> Case:
    shape = d.shape(4, 5)
    x, quant = _same(d, kind, shape)
    cut = d.between(0, 3)
    new = (int(np.prod(shape[: cut + 1])), int(np.prod(shape[cut + 1 :])))
    asked = (-1, new[1]) if d.chance(0.5) else new
    op = d.among("RESHAPE", "RESHAPE", "EXPAND_DIMS", "SQUEEZE")
    if op == "EXPAND_DIMS":
        axis = d.between(0, 4)
        y = Operand((*shape[:axis], 1, *shape[axis:]), kind, *quant)
        return Case(op, kind, [x, int32s(axis)], [y])
    if op == "SQUEEZE":
        x = Operand((shape[0], 1, shape[1], 1), kind, *quant)
        y = Operand((shape[0], shape[1]), kind, *quant)
        return Case(op, kind, [x], [y], {"squeeze_dims": [1, 3]})
    y = Operand(new, kind, *quant)
    return Case(op, kind, [x, int32s(*asked)], [y], {"new_shape": list(asked)})


def _gather(d: Draw, kind: str) -> Case:
    rank = d.between(1, 4)
    x, quant = _same(d, kind, d.shape(rank, 7))
    axis, size = d.between(0, rank - 1), 0
    size = x.shape[axis]
    count = d.shape(d.between(1, 2), 4)
    indices = Operand(count, "int32", values=partial(_below, count, size))
    if d.chance(0.3):
        indices = constant(d.rng.integers(0, size, count).astype(np.int32))
    y = Operand((*x.shape[:axis], *count, *x.shape[axis + 1 :]), kind, *quant)
    return Case("GATHER", kind, [x, indices], [y], {"axis": axis})


def _below(shape: Shape, size: int, rng: np.random.Generator, step: int) -> Array:
    return rng.integers(0, size, shape)


def _pack(d: Draw, kind: str) -> Case:
    rank = d.between(1, 3)
    shape, axis, count = d.shape(rank, 5), d.between(0, rank), d.between(1, 4)
    quant = d.quant(kind)
    joined = Operand((*shape[:axis], count, *shape[axis:]), kind, *quant)
    parts = [Operand(shape, kind, *quant)] * count
    if d.chance(0.5):
        return Case("PACK", kind, parts, [joined], {"axis": axis, "values_count": count})
    return Case("UNPACK", kind, [joined], parts, {"axis": axis, "num": count})


def _tile(d: Draw, kind: str) -> Case:
    x, quant = _same(d, kind, d.shape(d.between(1, 4), 4))
    times = [d.between(1, 3) for _ in x.shape]
    out = tuple(s * t for s, t in zip(x.shape, times, strict=True))
    return Case("TILE", kind, [x, int32s(*times)], [Operand(out, kind, *quant)])


def _depth_and_space(d: Draw, kind: str) -> Case:
    block = d.between(1, 3)
    n, h, w, c = d.between(1, 2), d.between(1, 3), d.between(1, 3), d.between(1, 4)
    quant = d.quant(kind)
    deep = Operand((n, h, w, c * block * block), kind, *quant)
    wide = Operand((n, h * block, w * block, c), kind, *quant)
    if d.chance(0.5):
        return Case("SPACE_TO_DEPTH", kind, [wide], [deep], {"block_size": block})
    return Case("DEPTH_TO_SPACE", kind, [deep], [wide], {"block_size": block})


def _batch_and_space(d: Draw, kind: str) -> Case:
    block = d.between(1, 3), d.between(1, 3)
    n, h, w, c = d.between(1, 2), d.between(1, 3), d.between(1, 3), d.between(1, 4)
    quant = d.quant(kind)
    many = Operand((n * block[0] * block[1], h, w, c), kind, *quant)
    full = h * block[0], w * block[1]
    pads = np.zeros((2, 2), np.int32)
    for axis, size in enumerate(full):
        if size > 1 and d.chance(0.5):
            pads[axis, 0] = d.between(0, min(2, size - 1))
            pads[axis, 1] = d.between(0, min(2, size - 1 - int(pads[axis, 0])))
    rows, columns = (int(s - p.sum()) for s, p in zip(full, pads, strict=True))
    wide = Operand((n, rows, columns, c), kind, *quant)
    extra = [int32s(*block), constant(pads)]
    if d.chance(0.5):
        return Case("SPACE_TO_BATCH_ND", kind, [wide, *extra], [many])
    return Case("BATCH_TO_SPACE_ND", kind, [many, *extra], [wide])


def _broadcast_to(d: Draw, kind: str) -> Case:
    shape = d.shape(d.between(1, 4), 5)
    kept = tuple(s if d.chance(0.6) else 1 for s in shape)
    x, quant = _same(d, kind, kept)
    return Case(
        "BROADCAST_TO", kind, [x, int32s(*shape)], [Operand(shape, kind, *quant)], version=2
    )


def _reverse(d: Draw, kind: str) -> Case:
    rank = d.between(1, 4)
    x, quant = _same(d, kind, d.shape(rank, 6))
    axis = d.between(0, rank - 1)
    return Case("REVERSE_V2", kind, [x, int32s(axis)], [Operand(x.shape, kind, *quant)])


MOVEMENT = [
    Entry("CONCATENATION", ("int8", "uint8", "int16", "float32", "int32"), _concatenation),
    Entry("PAD", KINDS, _pad),
    Entry("MIRROR_PAD", ("int8", "float32", "uint8"), _mirror_pad),
    Entry("SPLIT", KINDS, _split),
    Entry("STRIDED_SLICE", KINDS, _strided_slice),
    Entry("SLICE", KINDS, _slice),
    Entry("TRANSPOSE", ("int8", "float32", "int16"), _transpose),
    Entry("RESHAPE", KINDS, _reshape),
    Entry("GATHER", ("int8", "float32", "int16"), _gather),
    Entry("PACK", ("int8", "float32", "int32"), _pack),
    Entry("TILE", ("float32", "int8", "int32"), _tile),
    Entry("SPACE_TO_DEPTH", ("int8", "float32"), _depth_and_space),
    Entry("SPACE_TO_BATCH_ND", ("int8", "float32"), _batch_and_space),
    Entry("BROADCAST_TO", ("int8", "float32", "int32"), _broadcast_to),
    Entry("REVERSE_V2", ("float32", "int32", "uint8"), _reverse),
]
