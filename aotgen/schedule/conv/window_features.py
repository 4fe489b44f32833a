"""What a learned model sees of kernels that slide a window over a map without summing over
channels: depthwise convolutions and pools.
"""

from __future__ import annotations

from aotgen.schedule.conv.conv_shape import ConvShape
from aotgen.schedule.dense.tiles import padded, split_even
from aotgen.schedule.features import log2, log2_ratio, resident, tile_features, waste
from aotgen.target.target import Target


def window_features(
    shape: ConvShape,
    target: Target,
    tile: tuple[int, int],
    *,
    vectors: int,
    live: int,
    operations: float,
    loads: float,
    channels: int = 0,
    size: int = 4,
) -> dict[str, float]:
    """Names are those of ``aotgen.schedule.features``.

    Args:
        tile: output rows and columns of a register tile.
        vectors: of channels that it holds at once.
        live: vector registers in use.
        operations, loads: vector instructions of a tile.
        channels: that a pass over the map takes; 0 for all.
        size: bytes of an element.
    """
    rows, cols = min(tile[0], shape.out[1]), min(tile[1], shape.out[2])
    heights, widths = split_even(shape.out[1], rows), split_even(shape.out[2], cols)
    across = channels or shape.channels
    down_reach, right_reach = shape.reach(1, rows), shape.reach(2, cols)
    calls = sum(r.count for r in heights) * sum(r.count for r in widths) * shape.batch
    outputs = rows * cols * vectors
    band = down_reach * shape.size[2] * across * size
    pixel = shape.channels * size
    return {
        **tile_features(rows * cols, vectors, live, target, operations + loads),
        **waste(
            {
                "rows": (sum(r.count for r in heights) * rows, shape.out[1]),
                "cols": (sum(r.count for r in widths) * cols, shape.out[2]),
                "channels": (padded(shape.channels, target.vl), shape.channels),
            }
        ),
        **resident(
            down_reach * right_reach * across * size,
            band,
            shape.size[1] * shape.size[2] * shape.channels * size,
            target,
        ),
        "band_by_l1": log2_ratio(band, target.l1_bytes),
        "tile_rows": float(rows),
        "tile_sizes": float(len(heights) * len(widths)),
        "log2_tiles": log2(calls * padded(shape.channels, target.vl) / (vectors * target.vl)),
        "log2_panels": log2(shape.channels / across),
        "log2_taps": log2(shape.taps),
        "stride_rows": float(shape.stride[1]),
        "stride_cols": float(shape.stride[2]),
        "read_again": down_reach * right_reach * calls
        / max(1, shape.batch * shape.size[1] * shape.size[2]),
        "operations_an_output": operations / outputs,
        "loads_an_output": loads / outputs,
        "log2_pixel_power": log2(pixel & -pixel),
    }  # fmt: skip
