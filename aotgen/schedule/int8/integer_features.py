"""What a learned model sees of products of integers: register tiles over packed patches."""

from __future__ import annotations

from aotgen.ir.graph import Group
from aotgen.schedule.base import Config, ScheduleError
from aotgen.schedule.dense.tiles import core_model
from aotgen.schedule.features import (
    knob_features,
    log2,
    log2_seconds,
    resident,
    tile_features,
    waste,
    work_features,
)
from aotgen.schedule.int8.quantized import group_count, reduction, tiled_pixels
from aotgen.target.target import Target

BLOCK_BYTES = (0, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)
"""Values of the knob of this name: input that all panels of weights pass before the next comes;
0 for what the template finds by the size of the weights.
"""


def check_integer_tile(group: Group, target: Target, pixels: int, vectors: int, live: int) -> None:
    """Reject tiles that spill or are larger than the layer.

    Args:
        live: vector registers in use.

    Raises:
        ScheduleError: with the reason.
    """
    if live > target.vector_registers:
        raise ScheduleError(
            f"a tile of {pixels} pixels x {vectors} vectors needs {live} registers"
            f" of {target.vector_registers}"
        )
    width = tiled_pixels(group.nodes[0])
    if pixels > max(1, width):
        raise ScheduleError(f"a tile of {pixels} pixels, but there are {width} together")
    check_vectors(group, target, vectors)


def check_vectors(group: Group, target: Target, vectors: int) -> None:
    """Reject tiles of at least twice the vectors that the layer's channels are.

    Raises:
        ScheduleError: with the reason.
    """
    panels = -(-group.output.shape[-1] // target.vl)
    if vectors > 1 and vectors // 2 >= panels:
        raise ScheduleError(f"a tile of {vectors} vectors for {panels} vectors of channels")


def check_block(target: Target, config: Config) -> None:
    """Reject blocks of input that do not stay in L2.

    Raises:
        ScheduleError: with the reason.
    """
    size = int(config.get("block_bytes", 0))
    if size > target.l2_bytes // 2:
        raise ScheduleError(f"blocks of {size} bytes of input do not stay in L2")


def integer_features(
    group: Group,
    target: Target,
    config: Config,
    *,
    live: int,
    cycles: float,
    size: int = 1,
) -> dict[str, float]:
    """Of knobs ``pixels``, ``vectors`` and perhaps ``block_bytes``.

    Args:
        live: vector registers in use.
        cycles: modelled cycles of all tiles; for comparing configs of a template.
        size: bytes of an element of a packed patch.
    """
    node = group.nodes[0]
    pixels, vectors = config.int("pixels"), config.int("vectors")
    block = int(config.get("block_bytes", 0))
    depth, width, groups = reduction(node), tiled_pixels(node), group_count(node)
    outputs = node.output.shape[-1] // groups
    total = (node.output.type.numel or 0) // node.output.shape[-1]
    across = vectors * target.vl
    panels = -(-outputs // across)
    tiles = total // max(1, width) * -(-width // pixels)
    patch, panel = pixels * depth * size, across * depth
    seconds = cycles / core_model(target).ghz * 1e-9
    return {
        **work_features(group, target),
        **knob_features(config),
        **tile_features(pixels, vectors, live, target, pixels * vectors * 8),
        **waste(
            {
                "cols": (-(-width // pixels) * pixels, width),
                "channels": (panels * across, outputs),
            }
        ),
        **resident(patch + panel, block or panel, panel * panels, target),
        "log2_tiles": log2(tiles * panels * groups),
        "log2_panels": log2(panels),
        "log2_panel_bytes": log2(panel),
        "log2_tile_x_bytes": log2(patch),
        "log2_blocks": log2(total * depth * size / block) if block else 0.0,
        "log2_trips": log2(depth / 4),
        "log2_tile_seconds": log2_seconds(seconds),
        "log2_model_seconds": log2_seconds(seconds),
    }
