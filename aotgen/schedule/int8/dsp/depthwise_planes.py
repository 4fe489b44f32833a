"""The geometry of depthwise convolutions on the DSP extension: the grids of pixels that a dilated
kernel falls into, and the planes of int16 that hold the input of a band of output rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotgen.ir.graph import Node
from aotgen.schedule.base import View
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.int8.dsp.depthwise_rows import DepthwiseRows
from aotgen.schedule.int8.dsp.operands import scaling_of
from aotgen.schedule.int8.quantized import as_conv
from aotgen.target.target import Target

CHANNELS = 4
"""Widened together, each to a plane of its own."""


@dataclass(frozen=True)
class Grid:
    """A convolution without dilation: of all pixels, or of every so manieth.

    Attributes:
        size, out, begin: (high, wide) of input, output, and pads in front.
        x: the first pixel of the input that belongs to it.
        first: the output pixel that is its first.
    """

    size: tuple[int, int]
    out: tuple[int, int]
    begin: tuple[int, int]
    x: tuple[int, int]
    first: tuple[int, int]


@dataclass(frozen=True)
class Planes:
    """How large the planes of a grid are.

    Attributes:
        count: of planes.
        columns: pairs of columns.
        rows: of words in a column.
        band: output rows whose input they hold.
        bands: how many of them.
    """

    count: int
    columns: int
    rows: int
    band: int
    bands: int

    @classmethod
    def of(cls, grid: Grid, channels: int, rows: DepthwiseRows, most_bytes: int) -> Planes:
        """As many output rows as fit in ``most_bytes``, shared out evenly; one block at least."""
        count = min(channels, CHANNELS)
        pairs = -(-grid.out[1] // 2)
        outputs = pairs if rows.folded else grid.out[0]
        columns = 1 if rows.folded else (pairs - 1) * rows.along + rows.columns
        band = (most_bytes // (4 * count * columns) - rows.high) // rows.down + 1
        bands = -(-outputs // max(rows.rows, band // rows.rows * rows.rows))
        band = min(-(-outputs // (bands * rows.rows)) * rows.rows, outputs)
        return cls(count, columns, (band - 1) * rows.down + rows.high, band, bands)

    @property
    def bytes(self) -> int:
        return 4 * self.count * self.columns * self.rows


@dataclass(frozen=True)
class DepthwiseLayer:
    """A node as the kernel sees it.

    Attributes:
        shape: with height and width exchanged where ``exchanged``, so that a column is a row.
        exchanged: whether they are.
        rows: the assembly function.
    """

    shape: ConvShape
    exchanged: bool
    rows: DepthwiseRows

    @classmethod
    def of(cls, node: Node, target: Target) -> DepthwiseLayer:
        shape = depthwise_shape(node)
        row = shape.size[1] == shape.out[1] == shape.kernel[1] == 1
        column = shape.size[2] == shape.out[2] == shape.kernel[2] == 1
        # As a row a column has no rows of its own any more, between which a layer can be cut.
        exchanged = column and not row and target.optimize != "ram"
        if exchanged:
            shape = shape.exchanged()
        kind = scaling_of(node).kind
        rows = DepthwiseRows(shape.kernel[1:], shape.stride[1:], kind, row or exchanged)
        return cls(shape, exchanged, rows)

    def strides(self, view: View) -> tuple[int, int]:
        """Elements from row to row and from pixel to pixel."""
        _, row, pixel = self.shape.spatial_strides(view)
        return (pixel, row) if self.exchanged else (row, pixel)

    @property
    def grids(self) -> list[Grid]:
        """The grids of pixels of a dilated kernel that have outputs; else all pixels."""
        shape, step = self.shape, self.shape.dilation[1:]
        found = []
        for first in np.ndindex(*step):
            out = [-(-(n - f) // d) for n, f, d in zip(shape.out[1:], first, step, strict=True)]
            if min(out) <= 0:
                continue
            starts = [f - b for f, b in zip(first, shape.begin[1:], strict=True)]
            x = [s % d for s, d in zip(starts, step, strict=True)]
            size = [
                max(0, -(-(n - p) // d)) for n, p, d in zip(shape.size[1:], x, step, strict=True)
            ]
            begin = [-(s // d) for s, d in zip(starts, step, strict=True)]
            found.append(Grid(*(_pair(v) for v in (size, out, begin, x, first))))
        return found

    def planes(self, most_bytes: int) -> list[Planes]:
        """Of each grid."""
        return [Planes.of(g, self.shape.channels, self.rows, most_bytes) for g in self.grids]


def depthwise_shape(node: Node) -> ConvShape:
    """The geometry of a qconv."""
    return ConvShape.of(as_conv(node))


def reads_one_channel(shape: ConvShape) -> bool:
    """Whether an output channel reads one input channel, which several may read."""
    return shape.channels == shape.groups


def _pair(values: Sequence[int]) -> tuple[int, int]:
    high, wide = values
    return int(high), int(wide)
