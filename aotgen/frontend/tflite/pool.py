"""Pools: averages, maxima and root mean squares of windows."""

from __future__ import annotations

from typing import Any

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.elementwise import activated
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ops.fixed_point import limits


def _window(node: TfliteNode, x: Value) -> dict[str, Any]:
    """Attributes of the window over x [N,H,W,C]. SAME pads so that the output has ceil(n / stride)
    elements an axis, the odd cell behind.
    """
    if len(x.shape) != 4:
        node.refuse(f"its input has rank {len(x.shape)}, must be [N, H, W, C]")
    o = node.options
    kernel = int(o["filter_height"]), int(o["filter_width"])
    strides = int(o["stride_h"]), int(o["stride_w"])
    if min(*kernel, *strides) < 1:
        node.refuse(
            f"its window {kernel} with strides {strides} is empty", "the model is malformed"
        )
    pads = [0, 0]
    if o["padding"] == "SAME":
        extents = zip(x.type.max_shape[1:3], kernel, strides, strict=True)
        pads = [max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in extents]
    elif any(k > n for n, k in zip(x.type.max_shape[1:3], kernel, strict=True)):
        node.refuse(f"its window {kernel} does not fit into {x.shape[1:3]}")
    begins = [p // 2 for p in pads]
    ends = [p - b for p, b in zip(pads, begins, strict=True)]
    return {
        "kernel": kernel,
        "strides": strides,
        "dilations": (1, 1),
        "pads": (*begins, *ends),
        "ceil_extra": (0, 0),
    }


def _float_average(node: TfliteNode, x: Value) -> Value:
    return node.emit("avg_pool", [x], **_window(node, x), count_include_pad=False)


def _clamp(node: TfliteNode, x: Value) -> tuple[int, int]:
    """Range of the quantized output. Input and output must have one type; their scales may differ
    in the file, and do not count: TFLite Micro refuses that, LiteRT takes the integers as they are.
    """
    scales.same_type(node, x)
    return node.clamp()


@converter("AVERAGE_POOL_2D")
def average_pool(node: TfliteNode) -> Value:
    x = node.input()
    if x.dtype.is_float:
        return node.activation(_float_average(node, x))
    if x.dtype not in scales.QUANTIZED:
        node.refuse(f"averages of element type {x.dtype.value} are not defined")
    lo, hi = _clamp(node, x)
    return node.emit("qavg_pool", [x], **_window(node, x), lo=lo, hi=hi)


@converter("MAX_POOL_2D")
def max_pool(node: TfliteNode) -> Value:
    x = node.input()
    y = node.emit("max_pool", [x], **_window(node, x))
    if x.dtype not in scales.QUANTIZED:
        return activated(node, y)
    lo, hi = _clamp(node, x)
    return y if (lo, hi) == limits(x.dtype) else node.emit("clip", [y], lo=lo, hi=hi)


@converter("L2_POOL_2D")
def l2_pool(node: TfliteNode) -> Value:
    """The square root of the mean of squares."""
    x = node.input()
    if not x.dtype.is_float:
        node.refuse(f"element type {x.dtype.value} is not supported", "keep the operator in float")
    mean = _float_average(node, node.emit("mul", [x, x]))
    return node.activation(node.emit("sqrt", [mean]))
