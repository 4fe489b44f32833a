"""qconv on one input channel an output, int8 on MVE (Helium), in two ways:

- ``lanes``: vectors over sixteen channels. Any window, stride, dilation and pads, any shifts. Rows
  of the input pass through a ring in scratch, with their pads.
- ``cells``: windows of 3x3 with stride 1, whose shifts all go right: blocks of 2 x 2 outputs of
  one channel by dot products over gathered windows. Fewer instructions where rows are wide or
  channels few (``templates/kernels/int8_mve_cells.c.j2``).

Both read each input row before the output row in its place is written, so that the output may
overwrite the input. Optimised for flash, all layers of a kind share one text and their extents are
in a struct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node, Value
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Alias,
    Arg,
    Config,
    Kernel,
    Knob,
    PackedConst,
    Routine,
    ScheduleError,
    View,
    Views,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.int8.mve.fields import DEPTHWISE, described
from aotgen.schedule.int8.mve.operands import (
    Channels,
    Scaling,
    channels_of,
    input_zero,
    scaling_of,
    why_not_mve,
)
from aotgen.schedule.int8.quantized import ConstantWeights, as_conv, title
from aotgen.target.target import Target

BLOCK = 16
"""Channels of a vector."""

I32 = npt.NDArray[np.int32]

MAX_TAPS = 400
"""Most taps of a window."""

CELL_BYTES = 4 * BLOCK
"""Of the cells at one pixel."""

SCALED = {"relu": 4, "linear": 6, "any": 9}
"""Instructions that scale a vector of four sums."""


@dataclass(frozen=True)
class _Layer:
    """What both ways ask about a layer."""

    node: Node
    shape: ConvShape
    scaling: Scaling

    @classmethod
    def of(cls, group: Group) -> _Layer:
        node = group.nodes[0]
        return cls(node, _flat(ConvShape.of(as_conv(node))), scaling_of(node))

    @property
    def blocks(self) -> int:
        return -(-self.shape.channels // BLOCK)

    @property
    def columns(self) -> int:
        """Of the padded input that the outputs of a row read."""
        return self.shape.reach(2, self.shape.out[2])

    @property
    def copied(self) -> int:
        """Of these how many are no pads."""
        return min(self.shape.size[2], self.columns - self.shape.begin[2])

    @property
    def pairs(self) -> int:
        """Of taps, or of them and one whose weights are 0."""
        return (self.shape.taps + 1) // 2

    @property
    def is_direct(self) -> bool:
        """Whether taps can be read where they lie."""
        padded = any(p != (0, 0) for p in self.shape.border())
        return not padded and self.shape.channels % BLOCK == 0

    def pointers(self, flash: bool) -> int:
        """Taps whose pointers stay in registers; 0 where there are too many, or where the text for
        any number of them is better shared.
        """
        taps = self.shape.taps
        return taps if taps == 9 or (taps < 9 and not flash) else 0

    @property
    def cells(self) -> int:
        """Of a row: every two outputs read four columns."""
        return 2 * (-(-self.shape.out[2] // 2)) + 2

    def why_no_cells(self) -> str | None:
        shape = self.shape
        three = shape.kernel[1:] == (3, 3) and shape.dilation[1:] == (1, 1)
        if not three or shape.stride[1:] != (1, 1):
            return "cells need a window of 3x3 with stride 1"
        if self.scaling.kind == "any":
            return "cells need multipliers that all shift to the right"
        return None


def _flat(shape: ConvShape) -> ConvShape:
    """The shape with its rows as columns where it has but one column and no pads: one row of
    outputs then takes one call.
    """
    column = shape.size[2] == shape.kernel[2] == shape.out[2] == 1
    padded = any(p != (0, 0) for p in shape.border())
    return shape if not column or padded or shape.channels % BLOCK else shape.exchanged()


def _steps(layer: _Layer, view: View) -> tuple[int, int]:
    """Elements from row to row and from pixel to pixel, as the layer's shape has them."""
    _, down, across = ConvShape.of(as_conv(layer.node)).spatial_strides(view)
    turned = layer.shape != ConvShape.of(as_conv(layer.node))
    return (across, down) if turned else (down, across)


class Int8MveDepthwise(ConstantWeights):
    """Depthwise convolutions of int8 with one or two spatial axes."""

    name = "int8_mve_depthwise"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not_mve(group, target)
        if reason is not None:
            return reason
        if group.nodes[0].op != "qconv":
            return "needs a qconv"
        layer = _Layer.of(group)
        shape = layer.shape
        if not shape.is_depthwise or shape.axes > 2 or shape.taps > MAX_TAPS:
            return f"needs a depthwise convolution of at most two axes and {MAX_TAPS} taps"
        if layer.copied < 1:
            return "needs windows that reach the input"
        if _overflows(channels_of(layer.node).weights):
            return "two weights of -128 next to each other overflow an int16"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        both = _Layer.of(group).why_no_cells() is None
        return (Knob("method", "categorical", ("lanes", "cells") if both else ("lanes",)),)

    def check(self, group: Group, target: Target, config: Config) -> None:
        reason = _Layer.of(group).why_no_cells()
        if config["method"] == "cells" and reason is not None:
            raise ScheduleError(reason)

    def default(self, group: Group, target: Target) -> Config:
        layer = _Layer.of(group)
        cells = layer.why_no_cells() is None and _cell_steps(layer) < _lane_steps(
            layer, target.optimize == "flash"
        )
        return Config.of(method="cells" if cells else "lanes")

    def products(self, target: Target) -> float:
        return 1.0

    def cost(self, group: Group, target: Target, config: Config) -> float:
        layer = _Layer.of(group)
        steps = (
            _cell_steps(layer)
            if config["method"] == "cells"
            else _lane_steps(layer, target.optimize == "flash")
        )
        return steps * INSTRUCTION_SECONDS

    def may_alias(self, group: Group, value: Value) -> Alias:
        shape = ConvShape.of(as_conv(group.nodes[0]))
        in_place = shape.size == shape.out and shape.stride == (1, 1, 1)
        return "same_index" if in_place and value is group.nodes[0].input(0) else "none"

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        layer = _Layer.of(group)
        flash = target.optimize == "flash"
        text = "Depthwise convolution" if flash else f"depthwise {title(group)}"
        make = _cells_kernel if config["method"] == "cells" else _lanes_kernel
        return make(group, layer, views, flash, text)


def _overflows(weights: npt.NDArray[np.int8]) -> bool:
    """Whether a sum of two products of neighbouring taps may leave an int16: 2 * 128 * 128."""
    lowest = weights == -128
    return bool((lowest[:, 0::2][:, : weights.shape[1] // 2] & lowest[:, 1::2]).any())


def _lane_steps(layer: _Layer, flash: bool) -> float:
    """Instructions of the way ``lanes``, about."""
    shape, blocks = layer.shape, layer.blocks
    block = 17 + 4 * SCALED[layer.scaling.kind] + 6 * layer.scaling.clamps
    whole, single = divmod(shape.taps, 2)
    block += 19 * whole + 12 * single if layer.pointers(flash) else 2 + 22 * layer.pairs
    pixel = 10 + (shape.stride[2] > 1) * (3 + shape.taps)
    row = 80 + 6 * shape.taps
    rows = shape.batch * shape.out[1]
    entering = 0
    if not layer.is_direct:
        fresh = min(shape.stride[1], shape.reach(1))
        entering = (
            rows * fresh * (20 + layer.copied * (5 * (shape.channels % BLOCK > 0) + 3 * blocks))
        )
    return rows * (row + shape.out[2] * (pixel + blocks * block)) + entering


def _cell_steps(layer: _Layer) -> float:
    """Instructions of the way ``cells``, about."""
    shape, blocks = layer.shape, layer.blocks
    block = 15 + 2 * (layer.scaling.kind == "linear") + 3 * layer.scaling.clamps
    whole, odd = divmod(shape.out[2], 2)
    channel = 26 + whole * (block + 3) + odd * (block + 4)
    pairs = shape.batch * -(-shape.out[1] // 2)
    return pairs * (blocks * (90 + 12 * layer.copied) + shape.channels * channel) + 100


def _args(
    group: Group,
    views: Views,
    stream: I32,
    shape: list[int] | None,
    scratch: Arg | None,
) -> tuple[tuple[Arg, ...], str]:
    """The arguments of a kernel and its C parameters; ``shape`` is the struct's contents."""
    node = group.nodes[0]
    x = node.input(0)
    args = [
        Arg("x", "const int8_t *", value=x),
        Arg("stream", "const int32_t *", const=PackedConst("w", stream, node.input(1))),
        *([scratch] if scratch else []),
        Arg("y", "int8_t *", value=group.output, is_output=True),
    ]
    if shape is not None:
        packed = PackedConst("shape", np.asarray(shape, np.int32))
        args.insert(2, Arg("shape", "const int32_t *", const=packed))
    if views.inplace == x.name:
        del args[0]
    params = [f"{a.ctype}restrict {a.name}" for a in args]
    return tuple(args), ", ".join([*params, "int32_t r0", "int32_t r1"])


def _lanes_kernel(group: Group, layer: _Layer, views: Views, flash: bool, purpose: str) -> Kernel:
    node, shape, scaling = layer.node, layer.shape, layer.scaling
    x, y = views[node.input(0)], views[group.output]
    (x_row, x_pixel), (y_row, y_pixel) = _steps(layer, x), _steps(layer, y)
    padded, channels = BLOCK * layer.blocks, shape.channels
    ring_rows, row_bytes = shape.reach(1), layer.columns * padded
    pixel = x_pixel if layer.is_direct else padded
    row = [
        shape.out[2], channels, shape.stride[2] * pixel - padded, y_pixel - padded,
        scaling.zero, scaling.lo, scaling.hi, layer.pairs,
    ]  # fmt: skip
    fields = {
        "out_rows": shape.out[1],
        "stride": shape.stride[1],
        "x_image": x.strides[0],
        "x_row": x_row,
        "y_image": y.strides[0],
        "y_row": y_row,
        "kernel_rows": shape.kernel[1],
        "kernel_columns": shape.kernel[2],
        "tap_rows": shape.dilation[1],
        "tap_bytes": shape.dilation[2] * pixel,
    }
    taps = layer.pointers(flash)
    copy: list[int] = []
    scratch_bytes = 0 if taps else 8 * layer.pairs
    if not layer.is_direct:
        fields |= {
            "begin": shape.begin[1],
            "size": shape.size[1],
            "pad": input_zero(node),
            "ring_rows": ring_rows,
            "row_bytes": row_bytes,
            "ring_bytes": ring_rows * row_bytes,
            "left": shape.begin[2] * padded,
        }
        scratch_bytes += ring_rows * row_bytes
        copy = [layer.copied, channels, x_pixel - padded, 0]
        if x_pixel == channels == padded:  # a row is one run of channels
            copy = [1, layer.copied * channels, 0, 0]
    args, params = _args(
        group,
        views,
        lane_stream(channels_of(node), scaling, taps),
        [*fields.values(), *copy, *row] if flash else None,
        Arg("scratch", "int32_t *", scratch_bytes=scratch_bytes) if scratch_bytes else None,
    )
    routine = _taps_routine(taps, scaling)
    text = render(
        "kernels/int8_mve_depthwise.c.j2",
        title=purpose,
        params=params,
        fields=fields,
        meanings=described(fields, DEPTHWISE),
        arrays={
            **({f"copy[{len(copy)}]": "what the copy of a row takes"} if copy else {}),
            f"row[{len(row)}]": "what the products of a row take",
        },
        copy=copy,
        row=row,
        flash=flash,
        inplace=views.inplace is not None,
        direct=layer.is_direct,
        taps=taps,
        odd=shape.taps % 2 and not taps,
        batch=shape.batch,
        routine=routine.name,
    )
    ring = () if layer.is_direct else (_copy_routine("copy"), _copy_routine("fill"))
    return _kernel(f"{node.op}_i8_mve_depthwise", text, args, shape, views, (*ring, routine))


def _cells_kernel(group: Group, layer: _Layer, views: Views, flash: bool, purpose: str) -> Kernel:
    node, shape, scaling = layer.node, layer.shape, layer.scaling
    x, y = views[node.input(0)], views[group.output]
    (x_row, x_pixel), (y_row, y_pixel) = _steps(layer, x), _steps(layer, y)
    cell_bytes = layer.cells * CELL_BYTES
    fields = {
        "out_rows": shape.out[1],
        "channels": shape.channels,
        "begin": shape.begin[1],
        "size": shape.size[1],
        "x_image": x.strides[0],
        "x_row": x_row,
        "x_pixel": x_pixel,
        "y_image": y.strides[0],
        "y_row": y_row,
        "y_pixel": y_pixel,
        "pad": input_zero(node),
        "cell_bytes": cell_bytes,
        "left": shape.begin[2] * CELL_BYTES,
        "copied": layer.copied,
        "pairs": shape.out[2] // 2,
        "odd": shape.out[2] % 2,
        "zero": scaling.zero,
        "lo": scaling.lo,
        "hi": scaling.hi,
    }
    args, params = _args(
        group,
        views,
        cell_stream(channels_of(node)),
        list(fields.values()) if flash else None,
        Arg("cells", "int8_t *", scratch_bytes=cell_bytes + BLOCK),
    )
    routine = _cells_routine(scaling)
    text = render(
        "kernels/int8_mve_depthwise_cells.c.j2",
        title=purpose,
        params=params,
        fields=fields,
        meanings=described(fields, DEPTHWISE),
        flash=flash,
        inplace=views.inplace is not None,
        batch=shape.batch,
        routine=routine.name,
    )
    routines = (_copy_routine("fill"), _pack_routine(), routine)
    return _kernel(f"{node.op}_i8_mve_depthwise_cells", text, args, shape, views, routines)


def _kernel(
    name: str,
    text: str,
    args: tuple[Arg, ...],
    shape: ConvShape,
    views: Views,
    routines: tuple[Routine, ...],
) -> Kernel:
    # Rows that another piece of the same image reads must not be overwritten.
    grain = shape.out[1] if views.inplace is not None else 1
    return Kernel(name, text, args, shape.batch * shape.out[1], grain=grain, routines=routines)


def _vectors(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[16] as the four vectors of the sums: see ``int8_mve_taps.c.j2``."""
    return np.concatenate([values[0::4], values[2::4], values[1::4], values[3::4]])


def lane_stream(channels: Channels, scaling: Scaling, pointers: int) -> I32:
    """The constants in the order in which ``lanes`` reads them: by sixteen channels their biases,
    weights [taps][16], an even number of taps unless their ``pointers`` are in registers, and
    parameters.
    """
    count, taps = channels.weights.shape
    padded = -(-count // BLOCK) * BLOCK
    rows = pointers or taps + taps % 2
    weights = np.zeros((rows, padded), np.int8)
    weights[:taps, :count] = channels.weights.T

    def full(values: I32) -> I32:
        return np.concatenate([values, np.zeros(padded - count, np.int32)])

    tables = [channels.multiplier, channels.right]
    if scaling.kind == "any":
        tables.insert(0, channels.left)
    parameters = np.stack([full(t) for t in tables])
    bias = full(channels.bias)
    parts: list[I32] = []
    for first in range(0, padded, BLOCK):
        block = slice(first, first + BLOCK)
        parts.append(_vectors(bias[block]))
        parts.append(np.ascontiguousarray(weights[:, block]).reshape(-1).view(np.int32))
        own = np.stack([_vectors(row).reshape(4, 4) for row in parameters[:, block]], axis=1)
        parts.append(own.reshape(-1))
    return np.concatenate(parts)


def cell_stream(channels: Channels) -> I32:
    """The constants in the order in which ``cells`` reads them: by channel three words of weights
    [column][row], bias, multiplier and right shift.
    """
    count = len(channels.weights)
    weights = np.zeros((count, 3, 4), np.int8)
    weights[:, :, :3] = channels.weights.reshape(count, 3, 3).transpose(0, 2, 1)
    words = weights.reshape(count, -1).view(np.int32)
    rest = [channels.bias, channels.multiplier, channels.right]
    return np.concatenate([words, np.stack(rest, axis=1)], axis=1).reshape(-1)


def _taps_routine(taps: int, scaling: Scaling) -> Routine:
    text = render(
        "kernels/int8_mve_taps.c.j2", taps=taps, scale=scaling.kind, clamps=scaling.clamps
    )
    pointers = "const int8_t *const *taps" if taps else "const int8_t **taps"
    return Routine(
        f"mve_depthwise_{taps}_taps" if taps else "mve_depthwise_taps",
        f"void @ROUTINE@({pointers}, const int32_t *stream, int8_t *y, const int32_t *g)",
        text,
    )


def _cells_routine(scaling: Scaling) -> Routine:
    text = render(
        "kernels/int8_mve_cells.c.j2",
        what="rows",
        scale=scaling.kind,
        clamps=scaling.clamps,
    )
    return Routine(
        "mve_depthwise_cells",
        "void @ROUTINE@(const int8_t *cells, const int32_t *stream, int8_t *y, const int32_t *g)",
        text,
    )


def _pack_routine() -> Routine:
    return Routine(
        "mve_depthwise_pack",
        "void @ROUTINE@(int8_t *cells, const int8_t *a, const int8_t *b, const int32_t *g)",
        render("kernels/int8_mve_cells.c.j2", what="pack", scale="relu", clamps=False),
    )


def _copy_routine(what: str) -> Routine:
    more = (
        "const int8_t *from, const int32_t *g" if what == "copy" else "int32_t value, int32_t bytes"
    )
    text = render("kernels/int8_mve_copy.c.j2", what=what)
    return Routine(f"mve_{what}", f"void @ROUTINE@(int8_t *to, {more})", text)
