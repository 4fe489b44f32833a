"""What the x86 kernels of 8-bit convolutions and products share: the constants and the epilogue.

Inputs reach the dot products as uint8, weights as int8 (VNNI's operands): int8 inputs have their
top bit flipped, which adds 128. So the sum of a' w, with a' = a + 128 and z' = z + 128, is the
wanted one plus z' sum(w), which the bias takes off; pads hold z'.

Fixed-point scaling is exact, but cheaper than the reference's steps. With x the sum, m the
multiplier in Q31 and s right shifts, h = floor(x m / 2^30) is the upper half of one product, 4x
times m. The saturating doubling high product of gemmlowp is (h + 1) >> 1, ties up; a rounding shift
with ties up after it is (h + 1 + 2^s) >> (s + 1), as floors nest; the single rounding of "litert"
is (h + 2^s) >> (s + 1). The zero point joins the addend. TFLite Micro's shift rounds ties away from
zero, which takes 2 off where h is negative ("away"), but not where the clamp makes all negative
outputs equal ("up").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen import literals
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType, Requant
from aotgen.schedule.base import View
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.int8.quantized import Ints, known_zero, operands_of, why_not_bytes
from aotgen.target.target import Target

_LIMIT = 1 << 29
"""Sums below it leave room for the factor of 4."""

_MOST_SHIFTS = 20
"""Right shifts up to which the addend of the fixed-point forms stays far from overflow."""

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Epilogue:
    """How a kernel scales its sums.

    Attributes:
        kind: "up", "away" (one product, see above), "float" and "real" (a float32 or float64 scale,
            no bounds needed), or "tflm", "litert", "bounded" (the reference's own steps, for
            unusual parameters).
        columns: int32 tables by channel, in the order of the words' arguments; of "up" and "away"
            the multipliers twice, as the word wants them once more shifted by a lane; of "real" the
            lower and upper halves of the scales.
        low, high: clamp of the output, None where the conversion to 8 bits does it; of "tflm",
            "litert" and "bounded": before the zero point is added.
        zero: what is added behind the scaling.
        float_low, float_high: of "bounded", literals.
    """

    kind: str
    columns: tuple[I32, ...]
    low: int | None
    high: int | None
    zero: int
    float_low: str = ""
    float_high: str = ""


def why_not(group: Group, target: Target) -> str | None:
    """Why no x86 template for 8-bit integers applies to a group, or None."""
    if target.isa not in ("avx2", "avx512"):
        return "needs AVX2 or AVX-512"
    reason = why_not_bytes(group, target)
    if reason is not None:
        return reason
    node = group.nodes[0]
    requant = node.attrs["requant"]
    operands = operands_of(node, fold=True)
    if operands.share is not None and operands.centred.max(initial=0) > 254:
        return "needs weights that are two int8 less their zero point"
    if requant.kind == "real" and _largest_sum(node) * max(map(abs, requant.scale)) >= 1 << 30:
        return "needs scales that keep every sum in range"
    return None


def pad_byte(node: Node) -> int:
    """What lies in the pads of the input as the kernels see it, 0 to 255."""
    return int(known_zero(node, 3)[0]) + (128 if node.input(0).dtype is DType.I8 else 0)


def weights_and_bias(node: Node) -> tuple[list[I8], I32]:
    """(int8 [channels, reduction], int32 [channels]: what sums of uint8 inputs start from).

    uint8 weights may lie too far from their zero point for an int8: they are the sum of two, and
    the kernel goes over its input twice.
    """
    operands = operands_of(node, fold=True)
    centred = operands.centred
    bias = np.zeros(len(centred), np.int64)
    if operands.bias is not None:
        bias += operands.bias
    if node.input(0).dtype is DType.I8:
        bias -= 128 * centred.sum(axis=1)
    near = np.clip(centred, -128, 127)
    parts = [near] if operands.share is None else [near, centred - near]
    return [p.astype(np.int8) for p in parts], bias.astype(np.int32)


def _largest_sum(node: Node) -> int:
    """A bound of the absolute sums, bias included."""
    weights = operands_of(node, fold=True).centred
    zero = int(known_zero(node, 3)[0])
    first = -128 if node.input(0).dtype is DType.I8 else 0
    reach = max(abs(first - zero), abs(first + 255 - zero))
    most: Ints = np.abs(weights).sum(axis=1) * reach
    bias = node.optional(2)
    if bias is not None and bias.const is not None:
        most = most + np.abs(bias.const.astype(np.int64))
    return int(most.max())


def epilogue_of(node: Node) -> Epilogue:
    """The cheapest exact form of the node's requantization."""
    requant: Requant = node.attrs["requant"]
    channels = node.output.shape[-1]
    first = -128 if node.attrs["dtype"] is DType.I8 else 0
    low = requant.lo if requant.lo > first else None
    high = requant.hi if requant.hi < first + 255 else None
    most = _largest_sum(node)
    if requant.kind == "onnx":
        scale = np.broadcast_to(np.asarray(requant.scale, np.float32), (channels,))
        column = (np.ascontiguousarray(scale).view(np.int32),)
        if most < 1 << 31 and most * float(np.abs(scale).max()) < 1 << 30:
            return Epilogue("float", column, low, high, requant.zero_point)
        bounds = [literals.f32(float(v - requant.zero_point)) for v in (requant.lo, requant.hi)]
        return Epilogue("bounded", column, None, None, requant.zero_point, *bounds)
    if requant.kind == "real":
        exact = np.broadcast_to(np.asarray(requant.scale, np.float64), (channels,))
        halves = np.ascontiguousarray(exact).view(np.int32).reshape(-1, 2)
        columns = (halves[:, 0], halves[:, 1])
        return Epilogue("real", columns, low, high, requant.zero_point)
    multiplier = np.broadcast_to(np.asarray(requant.multiplier, np.int64), (channels,))
    right = -np.broadcast_to(np.asarray(requant.shift, np.int64), (channels,))
    if most < _LIMIT and right.min() >= 0 and right.max() <= _MOST_SHIFTS:
        kind = "up"
        if requant.kind == "litert":
            addend = np.int64(1) << right
        else:
            addend = 1 + np.where(right > 0, np.int64(1) << right, 0)
            if requant.lo < requant.zero_point and right.max() > 0:
                kind = "away"
        if kind == "up" or right.min() > 0:
            addend = addend + (requant.zero_point << (right + 1))
            table_columns = (multiplier, multiplier, addend, right + 1)
            made = tuple(c.astype(np.int32) for c in table_columns)
            return Epilogue(kind, made, low, high, 0)
    bounds_int = requant.lo - requant.zero_point, requant.hi - requant.zero_point
    columns_int = (multiplier.astype(np.int32), (-right).astype(np.int32))
    return Epilogue(requant.kind, columns_int, *bounds_int, requant.zero_point)


@dataclass(frozen=True)
class CopiedRows:
    """Input rows as they lie in scratch: uint8, with the pads in them, as wide as windows reach.

    Attributes:
        span: rows that a window reaches over.
        row: bytes of a copied row.
        size_h: rows of the map; begin_h: pads above them.
        left, inside, right: pixels of pads, of the map, and of pads again in a row.
        channels: bytes of a pixel.
        from_row, from_pixel: bytes between rows and pixels of the map.
        dense: whether nothing lies between two pixels of the map.
        pad: the byte in the pads.
    """

    span: int
    row: int
    size_h: int
    begin_h: int
    left: int
    inside: int
    right: int
    channels: int
    from_row: int
    from_pixel: int
    dense: bool
    pad: int

    @classmethod
    def of(cls, node: Node, shape: ConvShape, x: View) -> CopiedRows:
        """The rows of activation ``x`` for the windows of a qconv of one or two spatial axes."""
        strides = shape.spatial_strides(x)
        width = reach(shape, 2)
        left = min(shape.begin[2], width)
        inside = max(0, min(shape.size[2], width - left))
        return cls(
            span=shape.reach(1),
            row=width * shape.channels,
            size_h=shape.size[1],
            begin_h=shape.begin[1],
            left=left,
            inside=inside,
            right=width - left - inside,
            channels=shape.channels,
            from_row=strides[1],
            from_pixel=strides[2],
            dense=strides[2] == shape.channels,
            pad=pad_byte(node),
        )


def reach(shape: ConvShape, axis: int) -> int:
    """Elements from the first to the last that any window reads along a spatial axis."""
    return shape.reach(axis, shape.out[axis])


def lane_channels(vectors: int, vl: int) -> npt.NDArray[np.intp]:
    """Channels of a panel by [vector][lane], so that narrowing to bytes puts them in order: of
    every 4 * vectors channels, vector q has four from 4q on.
    """
    lane = np.arange(vl)
    q = np.arange(vectors)[:, None]
    return (lane // 4 * 4 * vectors + 4 * q + lane % 4).astype(np.intp)


def take(values: npt.NDArray[Any], channels: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """``values`` by channel; 0 for channels that do not exist."""
    inside = channels < len(values)
    shape = (*channels.shape, *(1,) * (values.ndim - 1))
    return np.where(inside.reshape(shape), values[np.where(inside, channels, 0)], 0)


def table(bias: I32, epilogue: Epilogue, channels: npt.NDArray[np.intp]) -> I32:
    """int32 [vector][column][lane], flat: the bias, then the epilogue's columns.

    Args:
        channels: by [vector][lane].
    """
    columns = [take(c, channels) for c in (bias, *epilogue.columns)]
    if epilogue.kind in ("up", "away"):
        # The multipliers of odd lanes, in the even lanes that vpmuldq reads.
        columns[2] = np.roll(columns[1], -1, axis=1)
    if epilogue.kind == "real":
        doubles = np.stack(columns[1:], axis=2).reshape(len(channels), 2, -1)
        columns[1:] = doubles[:, 0], doubles[:, 1]
    return np.stack(columns, axis=1).astype(np.int32).reshape(-1)


def words(epilogue: Epilogue) -> frozenset[str]:
    """The parts of simd.h that a kernel uses."""
    fixed = epilogue.kind in ("tflm", "litert")
    return frozenset({"int8", "bytes", "dot8"} | ({"requantize"} if fixed else set()))
