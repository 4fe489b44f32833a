"""Windows of several rows that ``int8_mve_dense`` reads where they are in the input: which, and the
C text of such a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.codegen.environment import render
from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import Arg, Kernel, PackedConst, View
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.int8.mve.operands import input_zero
from aotgen.schedule.int8.mve.writers import FARTHEST, STEP, TileWriter, padded_rows, rounded
from aotgen.schedule.int8.quantized import as_conv, title

_IMMEDIATE = 4095
"""Largest constant that one instruction adds."""

_UNROLLED_STEPS = 12
"""Most steps of a tile without a loop, and most rows of a window."""


@dataclass(frozen=True)
class InPlace:
    """How windows of several rows are read where they are.

    Attributes:
        rows: of a window.
        steps: of 16 bytes that a row takes.
        down: bytes from one row of a window to the next.
        top, bottom, left, right: output rows and columns whose windows, whole steps of them, lie
            inside the input; there are some.
        block: pixels whose patches are in scratch together.
    """

    rows: int
    steps: int
    down: int
    top: int
    bottom: int
    left: int
    right: int
    block: int

    @classmethod
    def of(cls, node: Node, x: View) -> InPlace | None:
        """None where windows are contiguous by themselves, rows are not, or are too near or far."""
        shape = ConvShape.of(as_conv(node))
        _, row, pixel = shape.spatial_strides(x)
        if shape.axes != 2 or shape.groups > 1 or not 1 < shape.kernel[1] <= _UNROLLED_STEPS:
            return None
        if shape.dilation[2] > 1 or pixel != shape.channels:
            return None
        steps = rounded(shape.kernel[2] * pixel) // STEP
        down = row * shape.dilation[1]
        bytes_in_row = STEP * steps
        if not 2 * bytes_in_row <= down <= bytes_in_row + _IMMEDIATE or steps * 64 > _IMMEDIATE:
            return None
        (top, bottom), (left, right) = shape.inside(1), shape.inside(2)
        if right <= left:
            return None
        end = (shape.size[1] - 1) * row + shape.size[2] * pixel
        across = ((right - 1) * shape.stride[2] - shape.begin[2]) * pixel
        while bottom > top:
            first = ((bottom - 1) * shape.stride[1] - shape.begin[1]) * row + across
            if first + (shape.kernel[1] - 1) * down + bytes_in_row <= end:
                block = min(8, down // bytes_in_row)
                return cls(shape.kernel[1], steps, down, top, bottom, left, right, block)
            bottom -= 1
        return None

    def reaches(self, y: View) -> bool:
        """Whether outputs are near enough to each other."""
        return all(abs(s) <= FARTHEST for s in y.strides[1:-1])

    @property
    def unroll(self) -> int:
        """Steps without a test between them; they divide those of a row."""
        if self.rows * self.steps <= _UNROLLED_STEPS:
            return self.steps
        return max(n for n in (1, 2, 3, 4) if self.steps % n == 0 and n < max(2, self.steps))

    @property
    def tile_instructions(self) -> int:
        """Of the products of a tile."""
        loops = 0 if self.unroll == self.steps else self.rows * (1 + 2 * self.steps // self.unroll)
        return 14 * self.rows * self.steps + 2 * (self.rows - 1) + loops

    @property
    def scratch_bytes(self) -> int:
        return (self.rows - 1) * self.down + self.block * self.steps * STEP


class InPlaceWriter(TileWriter):
    """A convolution whose windows are read in place."""

    def __init__(self, node: Node, x: View, y: View, how: InPlace) -> None:
        super().__init__(node, x, y, how.block, flash=False)
        self.how = how

    def stored_weights(self) -> npt.NDArray[np.int8]:
        """[channels, rows * whole steps]: zeros behind each kernel row."""
        channels, depth = self.channels.weights.shape
        rows = self.channels.weights.reshape(channels * self.how.rows, depth // self.how.rows)
        return padded_rows(rows).reshape(channels, -1)

    def kernel(self, group: Group) -> Kernel:
        assert self.shape is not None
        shape, how, scaling = self.shape, self.how, self.scaling
        _, x_row, x_pixel = shape.spatial_strides(self.x)
        _, y_row, y_step = shape.spatial_strides(self.y)
        weights, _ = self.stream()
        routine = self.routine(
            "rows", rows=how.rows, steps_in_row=how.steps, down=how.down, unroll=how.unroll
        )
        args = [
            Arg("x", "const int8_t *", value=self.node.input(0)),
            Arg("w", "const int8_t *", const=PackedConst("w", weights, self.node.input(1))),
            Arg("a", "int8_t *", scratch_bytes=how.scratch_bytes),
            Arg("y", "int8_t *", value=group.output, is_output=True),
        ]
        params = [f"{a.ctype}restrict {a.name}" for a in args]
        text = render(
            "kernels/int8_mve_in_place.c.j2", gemm=routine.name, title=title(group),
            params=", ".join([*params, "int32_t r0", "int32_t r1"]),
            tile=[how.rows * how.steps * STEP, self.outputs, scaling.zero, scaling.lo, scaling.hi],
            kernel_h=shape.kernel[1], kernel_w=shape.kernel[2], in_h=shape.size[1],
            in_w=shape.size[2], out_h=shape.out[1], out_w=shape.out[2],
            stride_h=shape.stride[1], stride_w=shape.stride[2], dilation_h=shape.dilation[1],
            begin_h=shape.begin[1], begin_w=shape.begin[2], batch=shape.batch, x_row=x_row,
            x_pixel=x_pixel, x_batch=self.x.strides[0], y_row=y_row, y_step=y_step,
            y_batch=self.y.strides[0], channels=shape.channels,
            run=shape.kernel[2] * shape.channels, x_down=how.down, row_bytes=how.steps * STEP,
            pad=input_zero(self.node), block=how.block, top=how.top, bottom=how.bottom,
            left=how.left, right=how.right,
        )  # fmt: skip
        name = f"{self.node.op}_i8_mve_rows_2x4"
        units = shape.batch * shape.out[1]
        return Kernel(name, text, tuple(args), units, routines=(routine,))
