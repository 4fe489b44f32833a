"""Depthwise qconv of 8-bit integers on x86: dot products along the rows of a window.

Four rows of the input, interleaved byte by byte, are the left operand of a dot product of four, and
the order that interleaving leaves is the one that narrowing the sums to bytes undoes. A column
of the input is interleaved once for all the outputs of a tile that read it. Input rows pass through
a ring in scratch, where they have their pads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group
from aotgen.ir.types import DType
from aotgen.schedule.base import Arg, Config, Kernel, Knob, PackedConst, ScheduleError, Views
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.conv.window_features import window_features
from aotgen.schedule.features import common_features
from aotgen.schedule.int8.quantized import ConstantWeights, as_conv, title
from aotgen.schedule.int8.x86.operands import (
    I8,
    CopiedRows,
    epilogue_of,
    lane_channels,
    table,
    take,
    weights_and_bias,
    why_not,
    words,
)
from aotgen.schedule.intrinsics import U8S8_DOT4
from aotgen.target.target import Target

_MOST_TAPS = 49
"""Windows beyond it would be unrolled into too much code."""


_MOST_PRODUCTS = 512
"""Printed in a tile of several vectors: beyond it code size costs more than reuse gains."""


class Int8Depthwise(ConstantWeights):
    """Depthwise convolutions with one or two spatial axes and more than one row."""

    name = "int8_depthwise"

    def applies(self, group: Group, target: Target) -> str | None:
        node = group.nodes[0]
        if node.op != "qconv" or len(node.input(0).shape) != 4:
            return "needs a 2-D convolution"
        shape = ConvShape.of(as_conv(node))
        if not shape.is_depthwise:
            return "needs a depthwise convolution"
        if shape.kernel[1] < 2 or shape.taps > _MOST_TAPS:
            return f"needs a window of two rows or more and at most {_MOST_TAPS} elements"
        return why_not(group, target)

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        shape = ConvShape.of(as_conv(group.nodes[0]))
        most = max(1, min(6, shape.out[2] // _together(shape, target)))
        return (Knob("tile", "ordinal", tuple(range(1, most + 1)), "vectors of outputs"),)

    def default(self, group: Group, target: Target) -> Config:
        shape = ConvShape.of(as_conv(group.nodes[0]))
        together = _together(shape, target)
        most = 4 if target.isa == "avx512" else 1
        whole = shape.out[2] // together
        tile = max(1, min(most, whole))
        while tile > 1 and whole % tile and -(-whole // tile) * tile > 1.2 * whole:
            tile -= 1
        return Config.of(tile=tile)

    def check(self, group: Group, target: Target, config: Config) -> None:
        shape, tile = ConvShape.of(as_conv(group.nodes[0])), config.int("tile")
        live = _live(tile)
        if tile > 1 and live > target.vector_registers:
            raise ScheduleError(
                f"a tile of {tile} vectors of outputs needs {live} registers"
                f" of {target.vector_registers}"
            )
        products = 4 * tile * len(_fours(shape.kernel[1])) * shape.kernel[2]
        if tile > 1 and products > _MOST_PRODUCTS:
            raise ScheduleError(f"a tile of {tile} vectors of outputs is {products} products long")

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        shape, tile = ConvShape.of(as_conv(group.nodes[0])), config.int("tile")
        fours = len(_fours(shape.kernel[1]))
        return {
            **common_features(self, group, target, config),
            **window_features(
                shape,
                target,
                (1, tile * _together(shape, target)),
                vectors=4,
                live=min(target.vector_registers, _live(tile)),
                operations=4.0 * tile * fours * shape.kernel[2],
                loads=float(shape.reach(2, tile) * shape.kernel[1]),
                channels=4 * target.vl,
                size=1,
            ),
        }

    def products(self, target: Target) -> float:
        return 1.0

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        shape = ConvShape.of(as_conv(node))
        ys = shape.spatial_strides(y)
        channels, vl = shape.channels, target.vl
        # Pixels side by side are one vector of the output only where nothing lies between them.
        together = _together(shape, target) if ys[2] == channels else 1
        tile = max(1, min(config.int("tile"), shape.out[2] // together))
        epilogue = epilogue_of(node)
        columns = 1 + len(epilogue.columns)
        parts, bias = weights_and_bias(node)
        blocks = [min(c, max(0, channels - 4 * vl)) for c in range(0, channels, 4 * vl)]
        fours = _fours(shape.kernel[1])
        packed, tables = [], []
        for first in blocks:
            lanes = lane_channels(4, vl)
            chosen = first + (lanes % channels if together > 1 else lanes)
            packed.append(np.concatenate([_pack(w, shape, fours, chosen) for w in parts]))
            tables.append(table(bias, epilogue, chosen))
        rows = CopiedRows.of(node, shape, x)
        args = [
            Arg("x_", f"const {x.dtype.c} *", value=node.input(0)),
            Arg(
                "w", "const int8_t *", const=PackedConst("w", np.concatenate(packed), node.input(1))
            ),
            Arg("t", "const int32_t *", const=PackedConst("t", np.concatenate(tables))),
            Arg("a", "uint8_t *", scratch_bytes=rows.span * rows.row + 4 * 4 * vl),
            Arg("y_", f"{y.dtype.c} *", value=group.output, is_output=True),
        ]
        parameters = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/int8_depthwise.c.j2",
            title=title(group),
            params=", ".join([*parameters, "int32_t r0", "int32_t r1"]),
            flip=x.dtype is DType.I8,
            dot=U8S8_DOT4,
            tile=tile,
            r=rows,
            kernel_rows=shape.kernel[1],
            cols=_columns(shape, tile, together, len(parts)),
            fours=fours,
            blocks=blocks,
            lanes=min(channels * together, 4 * vl),
            columns=columns,
            w_block=packed[0].size,
            t_block=tables[0].size,
            e=epilogue,
            vl=vl,
            to={DType.I8: "s8", DType.U8: "u8"}[y.dtype],
            ytype=y.dtype.c,
            out_rows=shape.out[1],
            width=shape.out[2],
            step=tile * together,
            stride_h=shape.stride[1],
            dilation_h=shape.dilation[1],
            x_batch=x.strides[0],
            x_step=shape.stride[2] * channels,
            y_batch=y.strides[0],
            y_row=ys[1],
            y_pixel=ys[2],
            y_step=together * ys[2],
        )
        name = f"{node.op}_{x.dtype.value}_depthwise_dot4"
        units = shape.batch * shape.out[1]
        return Kernel(name, text, tuple(args), units, words(epilogue), frozenset({"string.h"}))


def _live(tile: int) -> int:
    """Vector registers in use: four accumulators a vector of outputs, a column's operand, weights,
    a constant.
    """
    return 4 * tile + 6


def _together(shape: ConvShape, target: Target) -> int:
    """Neighbouring pixels that make one vector."""
    whole, rest = divmod(4 * target.vl, shape.channels)
    return whole if not rest and shape.stride[2] == 1 and whole <= shape.out[2] else 1


def _fours(rows: int) -> list[list[int]]:
    """The kernel's rows by fours, -1 where there is none."""
    return [
        [row if row < rows else -1 for row in range(first, first + 4)]
        for first in range(0, rows, 4)
    ]


def _columns(shape: ConvShape, tile: int, together: int, parts: int) -> list[dict[str, Any]]:
    """The columns of the input that a tile reads, and what for; the second of two parts of the
    weights lies behind the first.
    """
    found: dict[int, list[dict[str, int]]] = {}
    for t in range(tile):
        for kw in range(shape.kernel[2]):
            at = t * together * shape.stride[2] + kw * shape.dilation[2]
            uses = [{"t": t, "kw": part * shape.kernel[2] + kw} for part in range(parts)]
            found.setdefault(at, []).extend(uses)
    return [{"offset": at * shape.channels, "uses": found[at]} for at in sorted(found)]


def _pack(
    weights: I8, shape: ConvShape, fours: list[list[int]], channels: np.ndarray[Any, Any]
) -> I8:
    """[kw][four][vector][lane][4], flat, for channels by [vector][lane]."""
    square = weights.reshape(-1, *shape.kernel[1:])
    rows = np.zeros((len(square), len(fours) * 4, shape.kernel[2]), np.int8)
    rows[:, : shape.kernel[1]] = square
    by_four = rows.reshape(len(square), len(fours), 4, shape.kernel[2]).transpose(0, 3, 1, 2)
    chosen = take(by_four, channels).transpose(2, 3, 0, 1, 4)
    return np.ascontiguousarray(chosen).astype(np.int8).reshape(-1)
