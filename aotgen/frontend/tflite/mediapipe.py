"""Custom operators of MediaPipe's models."""

from __future__ import annotations

import struct

from aotgen.frontend.tflite import anchors
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

_SAME, _VALID = 1, 2
"""Padding as the operator's options have it: a C struct of int32 padding, width and height step."""


@converter("CUSTOM:Convolution2DTransposeBias")
def transposed_convolution_with_bias(node: TfliteNode) -> Value:
    """x [N, H, W, C], filter [O, KH, KW, C], bias [O]; float. SAME gives step times the size."""
    x, w = node.input(0), node.input(1)
    if x.dtype is not DType.F32 or w.dtype is not DType.F32:
        node.refuse(f"inputs {x.dtype.value} and {w.dtype.value} are not supported", "use float32")
    if x.type.rank != 4 or w.type.rank != 4 or w.shape[3] != x.shape[3]:
        node.refuse(f"input {list(x.shape)} and weights {list(w.shape)} do not fit together")
    if len(node.custom) < 12:
        node.refuse(f"its custom options have {len(node.custom)} bytes, not 12")
    padding, step_w, step_h = struct.unpack_from("<3i", node.custom)
    if padding not in (_SAME, _VALID) or min(step_w, step_h) < 1:
        node.refuse(f"padding {padding} or strides {step_h}x{step_w} do not exist")
    before, after = [], []
    for size, kernel, step in zip(x.shape[1:3], w.shape[1:3], (step_h, step_w), strict=True):
        whole = step * (size - 1) + kernel
        cut = whole - step * size if padding == _SAME else 0
        before.append(max(cut, 0) // 2)
        after.append(cut - max(cut, 0) // 2)
    return node.emit(
        "conv_transpose",
        [x, w, anchors.float_bias(node, 2, w.shape[0])],
        strides=(step_h, step_w),
        dilations=(1, 1),
        pads=(*before, *(max(a, 0) for a in after)),
        output_padding=tuple(max(-a, 0) for a in after),
        groups=1,
    )
