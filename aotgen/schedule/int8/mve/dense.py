"""qconv and qmatmul of 8-bit integers on MVE (Cortex-M55): a register tile over rows of bytes.

A row is all that an output pixel reads, in the order of the weights. Where a window is contiguous
in memory (1x1, one axis, or as wide as the image, without pads) rows are the input itself. Of other
windows each kernel row is contiguous: the tile steps from one to the next in the input, and only
those at the edges are copied to scratch (``in_place``); or all of a few pixels at a time are. The
tile takes two rows and four channels, all pairs of rows for the same channels, so that their
parameters stay in registers; a single row takes up to eight channels at once. Rows are read in
steps of 16 bytes: what is behind a row is multiplied by weights of zero.

The loops are C functions that all layers of a kind share (``Routine``). For flash also the
kernels' own bodies are equal: their extents are fields of a constant.
"""

from __future__ import annotations

import math

from aotgen.ir.graph import Group, Node
from aotgen.schedule.base import (
    INSTRUCTION_SECONDS,
    Config,
    Kernel,
    Knob,
    ScheduleError,
    View,
    Views,
)
from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.features import common_features
from aotgen.schedule.int8.mve.in_place import InPlace, InPlaceWriter
from aotgen.schedule.int8.mve.operands import LANES, scaling_of, why_not_mve
from aotgen.schedule.int8.mve.writers import (
    STEP,
    RowWriter,
    TileWriter,
    panels_of,
    rounded,
    rows_in_memory,
)
from aotgen.schedule.int8.quantized import ConstantWeights, as_conv, group_count, reduction
from aotgen.target.target import Target

_PATCH_BYTES = 1024
"""Most scratch for patches where more than two pixels fit it."""

_BLOCK_PIXELS = (2, 4, 8, 16)

_TILE_EXTRA = {"relu": 0, "linear": 4, "any": 12}
"""Instructions of a tile's requantization beside those of ``relu``."""

_TILE_END = 21
"""Instructions of a tile behind its products: sums to vectors, requantization, the next tile."""


class Int8MveDense(ConstantWeights):
    """Convolutions and matrix products of int8 on MVE."""

    name = "int8_mve_dense"

    def applies(self, group: Group, target: Target) -> str | None:
        reason = why_not_mve(group, target)
        if reason is not None:
            return reason
        node = group.nodes[0]
        if node.op == "qconv":
            shape = ConvShape.of(as_conv(node))
            if shape.axes > 2:
                return "needs at most two spatial axes"
            if 1 < shape.groups == shape.outputs:
                return "a depthwise convolution has no product of matrices"
        return None

    def space(self, group: Group, target: Target) -> tuple[Knob, ...]:
        node = group.nodes[0]
        blocks = _BLOCK_PIXELS if _copies(node) else _BLOCK_PIXELS[:1]
        both = _in_place(node, target) is not None
        return (
            Knob("block_pixels", "ordinal", blocks, "pixels of patches"),
            Knob("in_place", "boolean", (False, True) if both else (False,)),
        )

    def default(self, group: Group, target: Target) -> Config:
        """What takes fewer instructions: rows in place, or copies of what a kilobyte holds."""
        node = group.nodes[0]
        room = _PATCH_BYTES if target.optimize != "ram" and _copies(node) else 0
        most = min(room // rounded(reduction(node)), 2 * _pixels(node) - 1)
        block = max((n for n in _BLOCK_PIXELS if n <= most), default=_BLOCK_PIXELS[0])
        found = _in_place(node, target)
        if found is not None and found.scratch_bytes <= _PATCH_BYTES + _live_bytes(node) // 25:
            if _edge_instructions(node, found) < _instructions(node, block):
                return Config.of(block_pixels=_BLOCK_PIXELS[0], in_place=True)
        return Config.of(block_pixels=block, in_place=False)

    def check(self, group: Group, target: Target, config: Config) -> None:
        pixels, block = _pixels(group.nodes[0]), config.int("block_pixels")
        if block > _BLOCK_PIXELS[0] and block >= 2 * pixels:
            raise ScheduleError(f"patches of {block} pixels, but there are {pixels}")
        if config["in_place"] and _in_place(group.nodes[0], target) is None:
            raise ScheduleError("rows of windows cannot be read in place")

    def canonical(self, group: Group, target: Target, config: Config) -> Config:
        if not config["in_place"]:
            return config
        return Config.of(block_pixels=_BLOCK_PIXELS[0], in_place=True)

    def features(self, group: Group, target: Target, config: Config) -> dict[str, float]:
        return common_features(self, group, target, config)

    def products(self, target: Target) -> float:
        return 4.0

    def cost(self, group: Group, target: Target, config: Config) -> float:
        node = group.nodes[0]
        found = _in_place(node, target) if config["in_place"] else None
        if found is not None:
            return _edge_instructions(node, found) * INSTRUCTION_SECONDS
        return _instructions(node, config.int("block_pixels")) * INSTRUCTION_SECONDS

    def kernel(self, group: Group, target: Target, config: Config, views: Views) -> Kernel:
        node = group.nodes[0]
        x, y = views[node.input(0)], views[group.output]
        flash = target.optimize == "flash"
        if _pixels(node) == 1 and group_count(node) == 1 and rows_in_memory(node, x, y) is not None:
            return RowWriter(node, flash).kernel(group)
        found = InPlace.of(node, x) if config["in_place"] else None
        if found is not None and found.reaches(y):
            return InPlaceWriter(node, x, y, found).kernel(group)
        return TileWriter(node, x, y, config.int("block_pixels"), flash).kernel(group)


def _pixels(node: Node) -> int:
    return math.prod(node.output.shape[:-1])


def _copies(node: Node) -> bool:
    """Whether the windows of a dense input are not contiguous."""
    x, y = (View.dense(v.shape, v.dtype) for v in (node.input(0), node.output))
    return rows_in_memory(node, x, y) is None


def _in_place(node: Node, target: Target) -> InPlace | None:
    """How the rows of a dense input are read in place; None where they are not or may not: the
    code has the extents in it, and an edge's patch is as long as some rows of the input.
    """
    if target.optimize != "speed" or node.op != "qconv":
        return None
    x = node.input(0)
    return InPlace.of(node, View.dense(x.shape, x.dtype))


def _live_bytes(node: Node) -> int:
    """Activations that are in RAM beside scratch at least."""
    return math.prod(node.input(0).shape) + math.prod(node.output.shape)


def _instructions(node: Node, block: int) -> float:
    """Executed by one call that copies windows where they are not contiguous, about."""
    steps = rounded(reduction(node)) // STEP
    pixels = _pixels(node)
    groups = group_count(node)
    outputs = node.output.shape[-1] // groups
    if pixels == 1 and groups == 1:
        width, panels = panels_of(outputs)
        return float(panels * (steps * (2 * width + 2) + 35 + _extra(node)))
    tile = (34 if steps == 1 else 15 * steps + _TILE_END) + _extra(node)
    tiles = groups * -(-outputs // LANES) * -(-pixels // 2)
    total = float(tiles * tile)
    if _copies(node):
        shape = ConvShape.of(as_conv(node))
        total += groups * pixels * _patch_instructions(shape)
        total += groups * pixels / block * _call_instructions(outputs)
    return total + groups * _call_instructions(outputs)


def _edge_instructions(node: Node, found: InPlace) -> float:
    """Executed by one call that copies windows at the edges, about."""
    shape = ConvShape.of(as_conv(node))
    tile = found.tile_instructions + _TILE_END + _extra(node)
    fours = -(-shape.outputs // LANES)
    rows, columns = found.bottom - found.top, found.right - found.left
    inner = rows * -(-columns // 2)
    edge = shape.out[1] * shape.out[2] - rows * columns
    calls = rows + edge / found.block
    total = fours * (inner + edge / 2) * tile + calls * _call_instructions(shape.outputs)
    return shape.batch * (total + edge * 1.5 * _patch_instructions(shape))


def _extra(node: Node) -> int:
    scaling = scaling_of(node)
    return _TILE_EXTRA[scaling.kind] + 5 * scaling.clamps


def _patch_instructions(shape: ConvShape) -> float:
    """Of copying a window, the ones at edges included."""
    run = shape.kernel[2] * shape.channels // shape.groups
    return 1.2 * shape.kernel[1] * (3 * -(-run // STEP) + 10) + 40


def _call_instructions(outputs: int) -> float:
    """Of a call of the tiles' loop, beside the tiles."""
    return 25 * -(-outputs // LANES) + 50
