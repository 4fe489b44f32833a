"""How a Winograd convolution is cut into tiles and blocks, and where its transformed tiles lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.problem import LINE_FLOATS, collapse_reduction
from aotgen.schedule.dense.tiles import Run, padded, split_even


@dataclass(frozen=True)
class Tiling:
    """How the outputs are cut into tiles, and those into blocks.

    Attributes:
        shape: of the convolution.
        m: outputs of a tile along an axis.
        tile_block, depth_block: most tiles of a frame and most output frames of a block.
        vl: floats of a vector.
        interleaved: transformed inputs lie in blocks of a vector of channels, so that the register
            tile loads neighbouring tiles' next steps at once.
    """

    shape: ConvShape
    m: int
    tile_block: int
    depth_block: int
    vl: int
    interleaved: bool

    @property
    def points(self) -> int:
        return (self.m + 2) ** 2

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles of one frame."""
        return -(-self.shape.out[1] // self.m), -(-self.shape.out[2] // self.m)

    @property
    def total(self) -> int:
        """Tiles of a frame of all images."""
        return self.shape.batch * self.grid[0] * self.grid[1]

    @cached_property
    def tile_runs(self) -> tuple[Run, ...]:
        return split_even(self.total, self.tile_block)

    @cached_property
    def frame_runs(self) -> tuple[Run, ...]:
        return split_even(self.shape.out[0], self.depth_block)

    @property
    def tiles(self) -> int:
        """Tiles that a block has room for."""
        return self.tile_runs[0].size

    @property
    def frames(self) -> int:
        """Output frames that a block has room for."""
        return self.frame_runs[0].size

    @property
    def read_frames(self) -> int:
        """Input frames of a block."""
        return self.frames + self.shape.kernel[0] - 1

    @property
    def rows(self) -> int:
        """Rows of a block's matrix products."""
        return self.frames * self.tiles

    @property
    def blocks(self) -> int:
        return sum(r.count for r in self.tile_runs) * sum(r.count for r in self.frame_runs)

    @property
    def channels(self) -> int:
        """Input channels in whole vectors."""
        return padded(self.shape.channels, self.vl)

    @property
    def outputs(self) -> int:
        """Output channels in whole vectors."""
        return padded(self.shape.outputs, self.vl)

    @property
    def steps(self) -> int:
        """Products that a point's sum has."""
        channels = self.channels if self.interleaved else self.shape.channels
        return self.shape.kernel[0] * channels

    @property
    def v_point(self) -> int:
        """Floats from one point's transformed inputs to the next's."""
        return _odd_lines(self.read_frames * self.tiles * self.channels)

    @property
    def sum_point(self) -> int:
        """Floats from one point's products to the next's."""
        return _odd_lines(self.rows * self.outputs)

    @property
    def v_tile(self) -> int:
        """Floats from one tile's transformed inputs to the next's."""
        return self.vl if self.interleaved else self.channels

    @property
    def v_vector(self) -> int:
        """Floats from one vector of channels of a transformed input to the next."""
        return self.read_frames * self.tiles * self.vl if self.interleaved else self.vl

    @cached_property
    def scratch_bytes(self) -> int:
        return 4 * self.points * (self.v_point + self.sum_point)

    def reduction(self) -> tuple[tuple[int, int], ...]:
        """Loops of the products' sums: depth taps, channels."""
        taps = (self.shape.kernel[0], self.tiles * self.v_tile)
        if not self.interleaved:
            return collapse_reduction([taps, (self.shape.channels, 1)])
        vectors = self.channels // self.vl
        return collapse_reduction([taps, (vectors, self.v_vector), (self.vl, 1)])


def _odd_lines(floats: int) -> int:
    """``floats`` in an odd number of cache lines: what lies so far apart has sets of its own."""
    return (-(-floats // LINE_FLOATS) | 1) * LINE_FLOATS
