"""Operators that move elements without computing; quantized ones keep their integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


@converter("TRANSPOSE")
def transpose(node: TfliteNode) -> Value:
    x = node.input(0)
    perm = [node.axis(p, len(x.shape)) for p in node.ints(1, "the permutation")]
    if sorted(perm) != list(range(len(x.shape))):
        node.refuse(f"{perm} is no permutation of the axes of {list(x.shape)}")
    return node.transpose(x, perm)


# pads


def _pads(node: TfliteNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(before, after) of every axis."""
    table = node.const(1, "the padding")
    if table.shape != (rank, 2) or table.min(initial=0) < 0:
        node.refuse(f"its padding of shape {list(table.shape)} does not fit rank {rank}")
    return tuple(table[:, 0].tolist()), tuple(table[:, 1].tolist())


def padded(node: TfliteNode, x: Value, begins: Sequence[int], ends: Sequence[int]) -> Value:
    """``x`` in a border of zeros: of its zero point where it is quantized."""
    if not any((*begins, *ends)):
        return x
    quant = node.output_quant()
    zero = quant.zero_point[0] if quant is not None and x.dtype.size < 4 else 0
    return pad_with(node, x, begins, ends, zero)


def pad_with(
    node: TfliteNode, x: Value, begins: Sequence[int], ends: Sequence[int], value: float
) -> Value:
    """``x`` in a border of ``value``, in the units of its elements."""
    filler = float(value) if x.dtype.is_float else int(value)
    pads = (*begins, *ends)
    return node.emit("pad", [x], pads=pads, mode="constant", value=filler)


@converter("PAD")
def pad(node: TfliteNode) -> Value:
    x = node.input(0)
    return padded(node, x, *_pads(node, len(x.shape)))


@converter("PADV2")
def pad_v2(node: TfliteNode) -> Value:
    """Input 2 is the border's value, quantized as the tensor is."""
    x = node.input(0)
    begins, ends = _pads(node, len(x.shape))
    if not any((*begins, *ends)):
        return x
    value = node.const(2, "the border's value").reshape(-1)
    if len(value) != 1:
        node.refuse(f"the border's value has {len(value)} elements, not one")
    return pad_with(node, x, begins, ends, value[0].item())


@converter("MIRROR_PAD")
def mirror_pad(node: TfliteNode) -> Value:
    """REFLECT mirrors about the first and last elements, SYMMETRIC about the borders."""
    x = node.input(0)
    begins, ends = _pads(node, len(x.shape))
    inside = 1 if node.options["mode"] == "REFLECT" else 0
    if any(max(b, e) > n - inside for b, e, n in zip(begins, ends, x.shape, strict=True)):
        node.refuse(f"it mirrors more than there is of {list(x.shape)}")
    if not any((*begins, *ends)):
        return x
    if inside:
        return node.emit("pad", [x], pads=(*begins, *ends), mode="reflect", value=0)
    for axis, (before, after) in enumerate(zip(begins, ends, strict=True)):
        if before or after:
            order = np.pad(np.arange(x.shape[axis]), (before, after), mode="symmetric")
            indices = node.constant(order.astype(np.int32), "mirrored")
            x = node.emit("gather", [x, indices], axis=axis)
    return x


# slices


def sliced(node: TfliteNode, x: Value, ranges: Sequence[range]) -> Value:
    """The elements of ``x`` at ``ranges``, one an axis."""
    if all(r == range(d) for r, d in zip(ranges, x.shape, strict=True)):
        return x
    return node.emit(
        "slice",
        [x],
        starts=tuple(r.start for r in ranges),
        ends=tuple(r.stop for r in ranges),
        steps=tuple(r.step for r in ranges),
    )


@converter("SLICE")
def slice_of(node: TfliteNode) -> Value:
    """A size of -1 takes all that is left."""
    x = node.input(0)
    begins, sizes = node.ints(1, "where it begins"), node.ints(2, "its size")
    if not len(begins) == len(sizes) == len(x.shape):
        node.refuse(f"{len(begins)} and {len(sizes)} numbers do not fit rank {len(x.shape)}")
    ranges = []
    for begin, size, extent in zip(begins, sizes, x.shape, strict=True):
        end = extent if size == -1 else begin + size
        if not 0 <= begin <= end <= extent:
            node.refuse(f"it takes {begin}..{end} of an axis of {extent}")
        ranges.append(range(begin, end))
    return sliced(node, x, ranges)


@converter("STRIDED_SLICE")
def strided_slice(node: TfliteNode) -> Value:
    """TensorFlow's x[begin:end:stride, ...]: bit i of a mask is about entry i of the lists.

    An ellipsis stands for the axes that no other entry is about, new_axis puts an axis of 1 there,
    shrink_axis takes one element and drops the axis, and begin_mask and end_mask leave a bound
    open.
    """
    x = node.input(0)
    if node.options["offset"]:  # no reference kernel runs it
        node.refuse("ends that are counted from the begin are not supported", "use plain ends")
    bounds = [
        node.ints(i, what) for i, what in ((1, "the begin"), (2, "the end"), (3, "the stride"))
    ]
    entries = list(zip(*bounds, strict=True))
    masks = {
        name: {i for i in range(len(entries)) if node.options[name] >> i & 1}
        for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    }
    dots, fresh = masks["ellipsis_mask"], masks["new_axis_mask"] - masks["ellipsis_mask"]
    if len(dots) > 1:
        node.refuse("it has more than one ellipsis")
    implied = len(x.shape) - (len(entries) - len(dots) - len(fresh))
    if implied < 0:
        node.refuse(f"{len(entries)} entries do not fit rank {len(x.shape)}")
    ranges: list[range] = []
    shape: list[int] = []
    for i, (begin, end, stride) in enumerate(entries):
        if i in dots:
            whole = x.shape[len(ranges) : len(ranges) + implied]
            ranges += [range(d) for d in whole]
            shape += whole
        elif i in fresh:
            shape.append(1)
        else:
            extent = x.shape[len(ranges)]
            first = _bound(begin, extent, stride, i in masks["begin_mask"], at_end=False)
            if i in masks["shrink_axis_mask"]:
                if stride <= 0 or not 0 <= first < extent:
                    node.refuse(f"it takes element {begin} of an axis of {extent}")
                ranges.append(range(first, first + 1))
                continue
            if stride == 0:
                node.refuse("a stride of 0 is not allowed")
            last = _bound(end, extent, stride, i in masks["end_mask"], at_end=True)
            ranges.append(range(first, last, stride))
            shape.append(len(ranges[-1]))
    rest = x.shape[len(ranges) :]
    ranges += [range(d) for d in rest]
    return node.reshape(sliced(node, x, ranges), (*shape, *rest))


def _bound(index: int, extent: int, stride: int, is_open: bool, *, at_end: bool) -> int:
    """An index brought into the axis, or that of the end that an open bound stands for."""
    forward = stride > 0
    if is_open:
        return extent if forward and at_end else 0 if forward else -1 if at_end else extent - 1
    index = index + extent if index < 0 else index
    return min(max(index, 0), extent) if forward else min(max(index, -1), extent - 1)


# splits and joins


@converter("SPLIT")
def split(node: TfliteNode) -> list[Value]:
    x = node.input(1)
    (axis,) = node.ints(0, "the axis")
    at, count = node.axis(axis, len(x.shape)), node.options["num_splits"]
    if count < 1 or x.shape[at] % count:
        node.refuse(f"axis {at} of {list(x.shape)} cannot be split into {count} equal parts")
    return _split(node, x, at, (x.shape[at] // count,) * count)


@converter("SPLIT_V")
def split_v(node: TfliteNode) -> list[Value]:
    """One size may be -1: what the others leave."""
    x = node.input(0)
    sizes = list(node.ints(1, "the sizes"))
    (axis,) = node.ints(2, "the axis")
    at = node.axis(axis, len(x.shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[at] - sum(s for s in sizes if s != -1)
    if min(sizes, default=-1) < 0 or sum(sizes) != x.shape[at]:
        node.refuse(f"sizes {sizes} do not add up to axis {at} of {list(x.shape)}")
    return _split(node, x, at, tuple(sizes))


def _split(node: TfliteNode, x: Value, axis: int, sizes: tuple[int, ...]) -> list[Value]:
    if len(sizes) == 1:
        return [x]
    return node.emit_all("split", [x], axis=axis, sizes=sizes)


@converter("PACK")
def pack(node: TfliteNode) -> Value:
    parts = [node.input(i) for i in range(len(node.inputs))]
    shape = parts[0].shape if parts else ()
    if not parts or any(p.shape != shape for p in parts):
        node.refuse("its inputs differ in shape")
    axis = node.axis(node.options["axis"], len(shape) + 1)
    flat = [node.reshape(p, (*shape[:axis], 1, *shape[axis:])) for p in parts]
    return node.concat(flat, axis)


@converter("UNPACK")
def unpack(node: TfliteNode) -> list[Value]:
    x = node.input(0)
    axis = node.axis(node.options["axis"], len(x.shape))
    count = x.shape[axis]
    if node.options["num"] != count or not count:
        node.refuse(f"{node.options['num']} parts do not fit axis {axis} of {list(x.shape)}")
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [node.reshape(part, shape) for part in _split(node, x, axis, (1,) * count)]


@converter("TILE")
def tile(node: TfliteNode) -> Value:
    x = node.input(0)
    repeats = node.ints(1, "the repeats")
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        node.refuse(f"repeats {list(repeats)} do not fit an input of shape {list(x.shape)}")
    return x if all(r == 1 for r in repeats) else node.emit("tile", [x], repeats=repeats)


# blocks


def _block(node: TfliteNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Block sizes of the axes 1.. and the pads or crops before and after them."""
    block, table = node.ints(1, "the block shape"), node.const(2, "the pads or crops")
    if not block or table.shape != (len(block), 2) or len(block) >= rank or min(block) < 1:
        node.refuse(f"blocks {list(block)} do not fit rank {rank}")
    if table.min(initial=0) < 0:
        node.refuse("a pad or crop is negative")
    return block, tuple(table[:, 0].tolist()), tuple(table[:, 1].tolist())


@converter("SPACE_TO_BATCH_ND")
def space_to_batch(node: TfliteNode) -> Value:
    """[N, s*b, ..., C] -> [b*N, s, ..., C] after padding with zeros: position p of every block is a
    batch of its own.
    """
    x = node.input(0)
    block, begins, ends = _block(node, len(x.shape))
    count, rest = len(block), (0,) * (len(x.shape) - 1 - len(block))
    pads = (0, *begins, *rest), (0, *ends, *rest)
    if node.mode == "tflm" and x.dtype is DType.I8 and any((*begins, *ends)):
        x = pad_with(
            node, x, *pads, 0
        )  # TFLite Micro pads with the integer 0, LiteRT with a real 0
    else:
        x = padded(node, x, *pads)
    sizes = x.shape[1 : count + 1]
    if any(d % b for d, b in zip(sizes, block, strict=True)):
        node.refuse(f"{list(x.shape)} is not made of blocks of {list(block)}")
    inner = [d // b for d, b in zip(sizes, block, strict=True)]
    apart = [v for d, b in zip(inner, block, strict=True) for v in (d, b)]
    tail = x.shape[count + 1 :]
    blocks = node.reshape(x, (x.shape[0], *apart, *tail))
    order = [
        *range(2, 2 * count + 1, 2),
        0,
        *range(1, 2 * count, 2),
        *range(2 * count + 1, len(blocks.shape)),
    ]
    moved = node.transpose(blocks, order)
    return node.reshape(moved, (x.shape[0] * math.prod(block), *inner, *tail))


@converter("BATCH_TO_SPACE_ND")
def batch_to_space(node: TfliteNode) -> Value:
    """The inverse of SPACE_TO_BATCH_ND: batches interleaved, then cropped."""
    x = node.input(0)
    block, begins, ends = _block(node, len(x.shape))
    count, total = len(block), math.prod(block)
    if x.shape[0] % total:
        node.refuse(f"a batch of {x.shape[0]} is not made of blocks of {list(block)}")
    batch, sizes, tail = x.shape[0] // total, x.shape[1 : count + 1], x.shape[count + 1 :]
    blocks = node.reshape(x, (*block, batch, *sizes, *tail))
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    order += range(2 * count + 1, len(blocks.shape))
    whole = [d * b for d, b in zip(sizes, block, strict=True)]
    joined = node.reshape(node.transpose(blocks, order), (batch, *whole, *tail))
    ranges = [range(batch)]
    for begin, end, extent in zip(begins, ends, whole, strict=True):
        if begin + end > extent:
            node.refuse(f"it crops {begin} and {end} of an axis of {extent}")
        ranges.append(range(begin, extent - end))
    return sliced(node, joined, [*ranges, *(range(d) for d in tail)])


@converter("SPACE_TO_DEPTH")
def space_to_depth(node: TfliteNode) -> Value:
    """[N, H*b, W*b, C] -> [N, H, W, b*b*C]."""
    x, b = node.input(0), node.options["block_size"]
    if len(x.shape) != 4 or b < 1 or x.shape[1] % b or x.shape[2] % b:
        node.refuse(f"an input of shape {list(x.shape)} and block size {b} do not fit")
    batch, h, w, c = x.shape
    blocks = node.reshape(x, (batch, h // b, b, w // b, b, c))
    moved = node.transpose(blocks, (0, 1, 3, 2, 4, 5))
    return node.reshape(moved, (batch, h // b, w // b, b * b * c))


@converter("DEPTH_TO_SPACE")
def depth_to_space(node: TfliteNode) -> Value:
    """[N, H, W, b*b*C] -> [N, H*b, W*b, C]."""
    x, b = node.input(0), node.options["block_size"]
    if len(x.shape) != 4 or b < 1 or x.shape[3] % (b * b):
        node.refuse(f"an input of shape {list(x.shape)} and block size {b} do not fit")
    batch, h, w, c = x.shape
    blocks = node.reshape(x, (batch, h, w, b, b, c // (b * b)))
    moved = node.transpose(blocks, (0, 1, 3, 2, 4, 5))
    return node.reshape(moved, (batch, h * b, w * b, c // (b * b)))


# turning around


@converter("REVERSE_V2")
def reverse(node: TfliteNode) -> Value:
    x = node.input(0)
    axes = {node.axis(a, len(x.shape)) for a in node.ints(1, "the axes")}
    ranges = [range(d)[::-1] if a in axes else range(d) for a, d in enumerate(x.shape)]
    return sliced(node, x, ranges)


@converter("REVERSE_SEQUENCE")
def reverse_sequence(node: TfliteNode) -> Value:
    """The first lengths[b] elements of each sequence turned around: element t comes from
    lengths[b] - 1 - t, or from t behind them.
    """
    x, lengths = node.input(0), node.input(1)
    rank = len(x.shape)
    time = node.axis(node.options["seq_dim"], rank)
    batch = node.axis(node.options["batch_dim"], rank)
    if time == batch or lengths.shape != (x.shape[batch],):
        node.refuse(
            f"{list(lengths.shape)} lengths do not fit axes {batch} and {time} of {list(x.shape)}"
        )
    lengths = node.cast(lengths, DType.I32)
    column = [1] * rank
    column[batch] = x.shape[batch]
    lengths = node.reshape(lengths, column)
    row = [1] * rank
    row[time] = x.shape[time]
    steps = node.constant(np.arange(x.shape[time], dtype=np.int32).reshape(row), "steps")
    last = node.emit("sub", [lengths, node.scalar(1, lengths)])
    inside = node.emit("less", [steps, lengths])
    turned = node.emit("sub", [last, steps])
    positions = node.emit("where", [inside, turned, steps])
    wide = node.emit("expand", [positions], shape=x.shape)
    return node.emit("gather_elements", [x, wide], axis=time)
