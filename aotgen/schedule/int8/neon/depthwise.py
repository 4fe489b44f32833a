"""qconv on one input channel an output, 8-bit integers on NEON: eight channels at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Config, Kernel, Knob, PackedConst, View, Views
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.window_features import window_features
from aotgen.schedule.dense.problem import affine
from aotgen.schedule.features import common_features
from aotgen.schedule.int8.neon.operands import (
    input_zero,
    parameters,
    scaling,
    weights_of,
    why_not_neon,
)
from aotgen.schedule.int8.quantized import ConstantWeights, as_conv, known_zero, title
from aotgen.target.target import Target

BLOCK = 8
"""Channels that are computed together."""

MAX_TAPS = 121
"""Most pointers to taps that a kernel keeps."""

ROOM = 255
"""Sum of the weights' magnitudes whose products with 8 bits stay inside an int16: 128 * 255."""

_WRITTEN_OUT = 49
"""Taps up to which the products of any other window are written out."""

_UNROLLED = 7
"""Outputs of a row up to which the sliding window is written out."""


@dataclass(frozen=True)
class Column:
    """A column of the window as it enters: its place among the registers, and how far from the
    row's pointer it lies; None for padding.
    """

    slot: int
    at: int | None


@dataclass(frozen=True)
class Step:
    """One output of a row: the columns to load, the registers (row, slot) of the taps in order, and
    the output's offset.
    """

    columns: tuple[Column, ...]
    taps: tuple[str, ...]
    y: int


class Int8NeonDepthwise(ConstantWeights):
    """Depthwise convolutions of 8-bit integers with one or two spatial axes."""

    name = "int8_neon_depthwise"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not_neon(group, target)
        if reason is not None:
            return reason
        node = group.nodes[0]
        if node.op != "qconv":
            return "needs a qconv"
        if node.attrs["requant"].kind == "real":
            return "has no float64 scales"
        shape = ConvShape.of(as_conv(node))
        if not shape.is_depthwise or shape.channels < BLOCK:
            return f"needs a depthwise convolution of at least {BLOCK} channels"
        if shape.axes > 2 or shape.taps > MAX_TAPS:
            return f"needs at most two spatial axes and {MAX_TAPS} taps"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        rows = ConvShape.of(as_conv(group.nodes[0])).out[1]
        default = self.default(group, target).int("band_rows")
        values = {default, *(min(rows, n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128))}
        return (Knob("band_rows", "ordinal", tuple(sorted(values)), "rows"),)

    def default(self, group: Group, target: Target) -> Config:
        """Bands whose input stays in half of L1 while all blocks of channels pass over them."""
        shape = ConvShape.of(as_conv(group.nodes[0]))
        row = shape.size[2] * shape.channels
        rows = (target.l1_bytes // 2 // row - shape.kernel[1]) // shape.stride[1] + 1
        return Config.of(band_rows=max(1, min(rows, shape.out[1])))

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape = ConvShape.of(as_conv(group.nodes[0]))
        return {
            **common_features(self, group, target, config),
            **window_features(
                shape,
                target,
                (config.int("band_rows"), shape.out[2]),
                vectors=2,
                live=min(target.vector_registers, 2 * shape.taps + 4),
                operations=2.0 * shape.taps * config.int("band_rows") * shape.out[2],
                loads=float(config.int("band_rows") * shape.kernel[1] * shape.size[2]),
                channels=BLOCK,
                size=1,
            ),
        }

    def products(self, target: Target) -> float:
        return 1.0

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        shape = ConvShape.of(as_conv(node))
        weights, table, magnitudes = _constants(node)
        wtype = DType.of(weights.dtype).c
        sliding = shape.kernel[1:] == (3, 3) and shape.dilation[1:] == (1, 1)
        sliding = sliding and shape.stride[2] <= 2
        padded = any(p != (0, 0) for p in shape.border())
        xs = shape.spatial_strides(x)
        reach = (shape.size[2] - 1) * xs[2] if sliding else 0
        pad_bytes = reach + shape.channels if padded else 0
        args = [
            Arg("x_", f"const {x.dtype.c} *", value=node.input(0)),
            Arg("w", f"const {wtype} *", const=PackedConst("w", weights, node.input(1))),
            Arg("q", "const int32_t *", const=PackedConst("q", table)),
            Arg("y", f"{y.dtype.c} *", value=group.output, is_output=True),
        ]
        if pad_bytes or not sliding:
            args.insert(3, Arg("pad", "int8_t *", scratch_bytes=max(pad_bytes, 1)))
        names = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/int8_neon_depthwise.c.j2",
            **_geometry(node, shape, x, y),
            **_steps(shape, xs[2], shape.spatial_strides(y)[2]),
            title=f"depthwise {title(group)}",
            params=", ".join([*names, "int32_t r0", "int32_t r1"]),
            isa=target.isa,
            sliding=sliding,
            band_rows=config.int("band_rows"),
            pad_bytes=pad_bytes,
            groups=tap_groups(magnitudes),
            unrolled=[str(t) for t in range(shape.taps)] if shape.taps <= _WRITTEN_OUT else [],
            wtype=wtype,
        )
        name = f"{node.op}_{x.dtype.value}_neon_depthwise"
        return Kernel(name, text, tuple(args), shape.batch * shape.out[1])


def _constants(
    node: Node,
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """(weights [block][tap][8], bias and parameters by block, magnitudes [channel, tap]).

    The weights are int8, or int16 where they are no int8 when centred.
    """
    found = weights_of(node)
    channels = len(found.stored)
    own = found.stored if found.share is None else found.centred.astype(np.int16)
    weights: list[npt.NDArray[np.generic]] = []
    table: list[npt.NDArray[np.int32]] = []
    for start in range(0, channels, BLOCK):
        first = min(start, channels - BLOCK)
        weights.append(own[first : first + BLOCK].T.reshape(-1))
        table.append(found.bias[first : first + BLOCK])
        table.append(parameters(node, BLOCK, first).reshape(-1))
    return np.concatenate(weights), np.concatenate(table), np.abs(found.centred)


def tap_groups(magnitudes: npt.NDArray[np.int64]) -> list[list[int]]:
    """Taps whose products can share an int16 in every channel, first fit.

    Args:
        magnitudes: of the weights, [channel, tap].
    """
    found: list[tuple[npt.NDArray[np.int64], list[int]]] = []
    for tap in range(magnitudes.shape[1]):
        for i, (total, taps) in enumerate(found):
            if (total + magnitudes[:, tap]).max() <= ROOM:
                found[i] = (total + magnitudes[:, tap], [*taps, tap])
                break
        else:
            found.append((magnitudes[:, tap], [tap]))
    return [taps for _, taps in found]


def _geometry(node: Node, shape: ConvShape, x: View, y: View) -> dict[str, Any]:
    """Extents and strides that the template prints."""
    xs, ys = shape.spatial_strides(x), shape.spatial_strides(y)
    rule, zero = scaling(node), input_zero(node)
    row = f"r % {shape.out[1]}" if shape.batch > 1 else "r"
    return {
        "scaling": rule, "flip": x.dtype.value == "u8", "ytype": y.dtype.c,
        "pad": zero, "raw_pad": int(known_zero(node, 3)[0]),
        "channels": shape.channels, "blocks": -(-shape.channels // BLOCK),
        "q_block": BLOCK * (1 + rule.vectors), "batch": shape.batch,
        "x_batch": x.strides[0], "x_row": xs[1], "x_pixel": xs[2],
        "y_batch": y.strides[0], "y_row": ys[1], "y_pixel": ys[2],
        "out_rows": shape.out[1], "out_columns": shape.out[2],
        "size": shape.size[1], "columns": shape.size[2], "advance": shape.stride[2],
        "top": affine((row, shape.stride[1]), offset=-shape.begin[1]),
        "kh": affine(("kh", shape.dilation[1])), "kernel": shape.kernel[1:],
        "iw": affine(
            ("ow", shape.stride[2]), ("kw", shape.dilation[2]), offset=-shape.begin[2]
        ),
    }  # fmt: skip


def _steps(shape: ConvShape, x_pixel: int, y_pixel: int) -> dict[str, Any]:
    """The outputs of a row of a 3x3 window: written out, or three to a round of a loop.

    A column's register follows from its position modulo 3, so that a round of three outputs ends
    with every column where it began. In the loop pointers move on; what follows it counts from
    where they then stand.
    """
    advance, left, width = shape.stride[2], shape.begin[2], shape.size[2]

    def step(ow: int, first: bool, skipped: int) -> Step:
        start = ow * advance
        new = range(start, start + 3) if first else range(start + 3 - advance, start + 3)
        columns = tuple(
            Column(
                p % 3, (p - left - skipped * advance) * x_pixel if 0 <= p - left < width else None
            )
            for p in new
        )
        taps = tuple(f"{row}{(start + k) % 3}" for row in range(3) for k in range(3))
        return Step(columns, taps, (ow - skipped) * y_pixel)

    outputs = shape.out[2]
    whole = [
        ow
        for ow in range(1, outputs)
        if left + advance - 3 <= ow * advance <= left + width - 3  # all new columns are inside
    ]
    rounds = len(whole) // 3 if outputs > _UNROLLED else 0
    if not rounds:
        lead = [step(ow, ow == 0, 0) for ow in range(outputs)]
        return {"lead": lead, "loops": 0, "body": [], "rest": []}
    first = whole[0]
    lead = [step(ow, ow == 0, 0) for ow in range(first)]
    body = [step(ow, False, 0) for ow in range(first, first + 3)]
    moved = 3 * rounds
    rest = [step(ow, False, moved) for ow in range(first + moved, outputs)]
    return {"lead": lead, "loops": rounds, "body": body, "rest": rest}
