"""What a learned model sees of a Winograd convolution: the register tile of its products under the
names that all dense kernels have (``aotgen.schedule.features``), and its transforms.
"""

from __future__ import annotations

from aotgen.schedule.dense.problem import DenseConfig
from aotgen.schedule.dense.space import step_features
from aotgen.schedule.dense.tiles import padded, registers
from aotgen.schedule.features import log2, log2_ratio, resident, tile_features, waste
from aotgen.schedule.winograd.tiling import Tiling
from aotgen.target.target import Target


def winograd_features(t: Tiling, c: DenseConfig, target: Target) -> dict[str, float]:
    """Of the products (rows are tiles, one product a point) and the scratch between the transforms.

    Args:
        c: of the register tile of a product.
    """
    vl, shape = t.vl, t.shape
    pixels, vectors, steps = min(c.oh_tile, t.rows), c.vectors, t.steps
    live = registers(pixels, vectors, target, target.has_neon)
    fmas = pixels * vectors
    panels = -(-t.outputs // (vectors * vl))
    calls = -(-t.rows // pixels)
    passes = -(-steps // c.kc) if c.kc else 1
    panel, tile_x = 4 * (c.kc or steps) * vectors * vl, 4 * pixels * (c.kc or steps)
    point = 4 * steps * t.outputs
    weights = t.points * point
    held = tile_x + (panel if c.block else point)
    unroll = max(4, c.k_unroll) if target.has_neon else c.k_unroll
    return {
        **tile_features(pixels, vectors, live, target, unroll * (fmas + vectors + pixels)),
        **waste(
            {
                "rows": (t.grid[0] * t.m, shape.out[1]),
                "cols": (t.grid[1] * t.m, shape.out[2]),
                "channels": (padded(shape.outputs, vl), shape.outputs),
            }
        ),
        **resident(held, t.scratch_bytes, weights * t.blocks, target),
        "waste_panels": panels * vectors * vl / t.outputs,
        "waste_tiles": calls * pixels / t.rows,
        "log2_tiles": log2(calls * panels * passes * t.points * t.blocks),
        "log2_panels": log2(panels),
        "panels_together": 1 / panels if c.block else 1.0,
        "log2_panel_bytes": log2(panel),
        "log2_tile_x_bytes": log2(tile_x),
        "log2_passes": log2(passes),
        **step_features(
            pixels,
            vectors,
            unroll,
            steps,
            target,
            lane_step=target.has_neon,
            blocks=t.interleaved,
        ),
        "lines_a_step": c.next_lines / unroll,
        "log2_blocks": log2(t.blocks),
        "log2_scratch_bytes": log2(t.scratch_bytes),
        "scratch_by_l2": log2_ratio(t.scratch_bytes, target.l2_bytes),
        "weights_by_l2": log2_ratio(weights, target.l2_bytes),
        "products_saved": t.points / (9.0 * t.m**2),
    }
