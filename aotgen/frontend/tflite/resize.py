"""Resizing of images: nearest neighbour and bilinear."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Node, Value
from aotgen.ir.types import DType
from aotgen.ops.quantized_resize import nearest_positions
from aotgen.ops.resize import axis_table


def _coordinates(node: TfliteNode) -> str:
    """The name of the coordinate mode in the op resize."""
    if node.options["align_corners"]:
        return "align_corners"
    return "half_pixel" if node.options["half_pixel_centers"] else "asymmetric"


def _target(node: TfliteNode, x: Value) -> tuple[int, int]:
    """Height and width of the output."""
    if len(x.shape) != 4:
        node.refuse(f"its input has rank {len(x.shape)}, must be [N, H, W, C]")
    size = node.ints(1, "the output size")
    if len(size) != 2 or min(size) < 1:
        node.refuse(f"its output size is {list(size)}", "the model is malformed")
    return size[0], size[1]


def _attributes(node: TfliteNode, x: Value, size: tuple[int, int], mode: str) -> dict[str, Any]:
    """Of the op resize."""
    shape, coord = x.type.max_shape, _coordinates(node)
    return {
        "mode": mode,
        "sizes": (shape[0], *size, shape[3]),
        "scales": (1.0, size[0] / shape[1], size[1] / shape[2], 1.0),
        "coord": coord,
        "nearest_mode": "floor" if coord == "asymmetric" else "round_prefer_ceil",
        "cubic_a": -0.75,
        "exclude_outside": False,
        "extrapolation": 0.0,
        "roi": None,
        "antialias": False,
    }


@converter("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(node: TfliteNode) -> Value:
    """The op resize where it picks the same elements, else elements by their positions: TFLite
    rounds a float32 product, whose last bit may differ.
    """
    x = node.input()
    size = _target(node, x)
    attrs = _attributes(node, x, size, "nearest")
    how = bool(node.options["align_corners"]), bool(node.options["half_pixel_centers"])
    places = {
        axis: nearest_positions(x.type.max_shape[axis], size[axis - 1], *how) for axis in (1, 2)
    }
    stand_in = Node("resize", [x], [], attrs)
    if all(np.array_equal(axis_table(stand_in, a).indices[:, 0], p) for a, p in places.items()):
        return node.emit("resize", [x], **attrs)
    for axis, positions in places.items():
        if not np.array_equal(positions, np.arange(x.type.max_shape[axis])):
            indices = node.constant(positions, f"positions{axis}")
            x = node.emit("gather", [x, indices], axis=axis)
    return x


@converter("RESIZE_BILINEAR")
def resize_bilinear(node: TfliteNode) -> Value:
    x = node.input()
    size = _target(node, x)
    align, half = bool(node.options["align_corners"]), bool(node.options["half_pixel_centers"])
    if align and half:
        node.refuse("align_corners and half_pixel_centers exclude each other")
    if x.dtype.is_float:
        return node.emit("resize", [x], **_attributes(node, x, size, "linear"))
    if x.dtype not in (DType.I8, DType.U8, DType.I16):
        node.refuse(f"element type {x.dtype.value} is not supported", "quantize to int8")
    scales.same_type(node, x)
    return node.emit("resize_bilinear_int", [x], sizes=size, align_corners=align, half_pixel=half)
