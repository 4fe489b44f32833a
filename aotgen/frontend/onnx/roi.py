"""RoiAlign: each region of an image, sampled at a fixed number of places a bin and pooled.

Coordinates are computed once a region; each of the four neighbours of a place is one gather of a
pixel's channels.
"""

from __future__ import annotations

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

Neighbour = tuple[Value, Value]
"""Along one axis: int64 position and f32 weight, both [R, places]."""


@converts("RoiAlign", since=10)
def roi_align(n: OnnxNode) -> Value:
    """x [N, C, H, W], rois [R, (x1, y1, x2, y2)], batch [R]: [R, C, oh, ow]."""
    x, rois, batch = n.x(0), n.x(1), n.x(2)
    if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 4:
        n.refuse(f"input {list(x.shape)} and regions {list(rois.shape)} do not fit")
    n.need_float(x)
    ratio, mode = n.get_int("sampling_ratio", 0), n.get_str("mode", "avg")
    if ratio < 1:
        n.refuse(
            "sampling_ratio=0 makes the number of samples depend on the regions",
            "export with a fixed sampling_ratio, such as 2",
        )
    if mode not in ("avg", "max"):
        n.refuse(f"mode={mode!r} is not known")
    bins = n.get_int("output_height", 1), n.get_int("output_width", 1)
    rois = n.cast(rois, DType.F32)
    rows, in_rows = _places(n, rois, 1, bins[0], ratio, x.shape[2])
    columns, in_columns = _places(n, rois, 0, bins[1], ratio, x.shape[3])
    shape = (rois.shape[0], bins[0] * ratio, bins[1] * ratio)
    image = n.to_channels_last(x)
    owner = n.reshape(n.cast(batch, DType.I64), (shape[0], 1, 1, 1))
    total: Value | None = None
    for row, row_weight in rows:
        for column, column_weight in columns:
            parts = [owner, n.reshape(row, (*shape[:2], 1, 1)), _across(n, column)]
            wide = [n.emit("expand", [p], shape=(*shape, 1)) for p in parts]
            pixel = n.emit("gather_nd", [image, n.emit("concat", wide, axis=3)], batch_dims=0)
            factor = n.emit(
                "mul", [n.reshape(row_weight, (*shape[:2], 1, 1)), _across(n, column_weight)]
            )
            part = n.emit("mul", [pixel, n.cast(factor, x.dtype)])
            # The maximum is that of the weighted neighbours, as runtimes have it.
            join = "add" if mode == "avg" else "maximum"
            total = part if total is None else n.emit(join, [total, part])
    assert total is not None
    inside = n.emit("and", [n.reshape(in_rows, (*shape[:2], 1, 1)), _across(n, in_columns)])
    total = n.emit("where", [inside, total, n.scalar(0.0, total)])
    split = n.reshape(total, (shape[0], bins[0], ratio, bins[1], ratio, x.shape[1]))
    op = "reduce_mean" if mode == "avg" else "reduce_max"
    return n.to_channels_first(n.emit(op, [split], axes=(2, 4), keepdims=False))


def _across(n: OnnxNode, x: Value) -> Value:
    """[R, places] along the columns of [R, rows, columns, 1]."""
    return n.reshape(x, (x.shape[0], 1, x.shape[1], 1))


def _places(
    n: OnnxNode, rois: Value, first: int, bins: int, ratio: int, size: int
) -> tuple[list[Neighbour], Value]:
    """The two neighbours of each place along one axis, and whether it counts as inside the image.

    Args:
        rois: [R, 4] f32.
        first: the axis's first column of ``rois``; the other one is two further on.
        size: pixels of the image along the axis.
    """
    half_pixel = n.opset >= 16 and (
        n.get_str("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    )

    def number(value: float) -> Value:
        return n.scalar(value, rois)

    def edge(column: int) -> Value:
        part = n.cut(rois, 1, column, column + 1)
        scaled = n.emit("mul", [part, number(n.get_float("spatial_scale", 1.0))])
        return n.emit("sub", [scaled, number(0.5)]) if half_pixel else scaled

    start, end = edge(first), edge(first + 2)
    extent = n.emit("sub", [end, start])
    if not half_pixel:  # regions without area count as one pixel
        extent = n.emit("maximum", [extent, number(1.0)])
    steps = (np.arange(bins * ratio) + 0.5) / (ratio * bins)
    share = n.emit("mul", [extent, n.constant(steps.astype(np.float32)[None], "steps")])
    place = n.emit("add", [start, share])
    inside = n.emit(
        "and",
        [
            n.emit("greater_equal", [place, number(-1.0)]),
            n.emit("less_equal", [place, number(float(size))]),
        ],
    )
    place = n.emit("where", [inside, place, number(0.0)])  # a NaN, too, must not become an address
    place = n.emit("clip", [place], lo=0.0, hi=size - 1.0)
    low = n.emit("floor", [place])
    high = n.emit("minimum", [n.emit("add", [low, number(1.0)]), number(size - 1.0)])
    fraction = n.emit("sub", [place, low])
    rest = n.emit("sub", [number(1.0), fraction])
    return [(n.cast(low, DType.I64), rest), (n.cast(high, DType.I64), fraction)], inside
