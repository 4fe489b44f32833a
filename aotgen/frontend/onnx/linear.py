"""Convolutions and matrix products. Convolutions are channels-last inside: transposes go around
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.frontend.onnx.windows import window
from aotgen.ir.graph import Value


def conv_attributes(n: OnnxNode, x: Value, weight: Value) -> dict[str, Any]:
    """The IR's attributes of a convolution of X [N, C, *S] by W [O, C/g, *K], checked."""
    if len(x.shape) < 3 or len(weight.shape) != len(x.shape):
        n.refuse(
            f"an input of rank {len(x.shape)} and a weight of rank {len(weight.shape)} do not fit"
        )
    groups = n.get_int("group", 1)
    if groups < 1 or weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups:
        n.refuse(
            f"{x.shape[1]} channels, weight {list(weight.shape)} and group {groups} do not fit"
        )
    kernel = n.get_ints("kernel_shape") or weight.shape[2:]
    if tuple(kernel) != weight.shape[2:]:
        n.refuse(f"kernel_shape {list(kernel)} differs from the weight's {list(weight.shape[2:])}")
    w = window(n, x.shape[2:], weight.shape[2:])
    return {"strides": w.strides, "pads": w.pads, "dilations": w.dilations, "groups": groups}


@converts("Conv")
def conv(n: OnnxNode) -> Value:
    """X [N, C, *S], W [O, C/g, *K], B [O] -> Y [N, O, *T]."""
    x, weight = n.x(0), n.x(1)
    n.need_float(x)
    attributes = conv_attributes(n, x, weight)
    inputs = [n.to_channels_last(x), n.to_channels_last(weight), n.optional(2)]
    return n.to_channels_first(n.emit("conv", inputs, **attributes))


@converts("ConvTranspose")
def conv_transpose(n: OnnxNode) -> Value:
    """X [N, C, *S], W [C, O/g, *K], B [O] -> Y [N, O, *T]; the IR's weight is [O, *K, C/g]."""
    x, weight = n.x(0), n.x(1)
    n.need_float(x)
    spatial = len(x.shape) - 2
    if spatial < 1 or len(weight.shape) != len(x.shape) or weight.shape[0] != x.shape[1]:
        n.refuse(f"input {list(x.shape)} and weight {list(weight.shape)} do not fit")
    groups = n.get_int("group", 1)
    if groups < 1 or x.shape[1] % groups:
        n.refuse(f"group {groups} does not divide {x.shape[1]} channels")
    strides = n.get_ints("strides") or (1,) * spatial
    dilations = n.get_ints("dilations") or (1,) * spatial
    extra = n.get_ints("output_padding") or (0,) * spatial
    given = n.get_ints("pads") or (0,) * (2 * spatial)
    if min((*strides, *dilations, *weight.shape)) < 1:
        n.refuse("strides, dilations and kernel sizes must be at least 1")
    if min((*given, *extra)) < 0:
        n.refuse(f"pads {list(given)} and output_padding {list(extra)} must not be negative")
    pads = _transpose_pads(n, x.shape[2:], weight.shape[2:], strides, dilations, extra)
    y = n.emit(
        "conv_transpose",
        [n.to_channels_last(x), _transposed_weight(n, weight, groups), n.optional(2)],
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=groups,
        output_padding=extra,
    )
    return n.to_channels_first(y)


def _transpose_pads(
    n: OnnxNode,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> tuple[int, ...]:
    """Pads from output_shape or auto_pad where these are given, as the operator's text defines
    them.
    """
    spatial = len(size)
    full = [
        s * (i - 1) + e + (k - 1) * d + 1
        for i, s, e, k, d in zip(size, strides, extra, kernel, dilations, strict=True)
    ]
    auto = n.get_str("auto_pad", "NOTSET")
    shape = n.get_ints("output_shape")
    if shape is not None:
        target: Sequence[int] = shape[-spatial:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        target = [i * s for i, s in zip(size, strides, strict=True)]
    elif auto == "VALID":
        return (0,) * (2 * spatial)
    else:
        return n.get_ints("pads") or (0,) * (2 * spatial)
    total = [f - t for f, t in zip(full, target, strict=True)]
    small = [t // 2 for t in total]
    large = [t - s for t, s in zip(total, small, strict=True)]
    # The text of the operator gives the odd cell to the end for SAME_UPPER, else to the begin.
    begins, ends = (small, large) if auto == "SAME_UPPER" else (large, small)
    return (*begins, *ends)


def _transposed_weight(n: OnnxNode, weight: Value, groups: int) -> Value:
    """[C, O/g, *K] -> [O, *K, C/g]."""
    c, o, *kernel = weight.shape
    rank = len(weight.shape)
    if groups == 1:
        return n.transpose(weight, (1, *range(2, rank), 0))
    split = n.reshape(weight, (groups, c // groups, o, *kernel))
    moved = n.transpose(split, (0, 2, *range(3, rank + 1), 1))
    return n.reshape(moved, (groups * o, *kernel, c // groups))


@converts("Col2Im", since=18)
def col2im(n: OnnxNode) -> Value:
    """[N, C * prod(K), L] -> [N, C, *S]: a transposed convolution whose kernels pick a column."""
    x = n.x(0)
    image, kernel = n.need_ints(1, "image_shape"), n.need_ints(2, "block_shape")
    w = window(n, image, kernel)
    axes, taps = len(kernel), math.prod(kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, w.dilations, strict=True)]
    padded = [s + w.pads[i] + w.pads[axes + i] for i, s in enumerate(image)]
    out = [(p - k) // s + 1 for p, k, s in zip(padded, spans, w.strides, strict=True)]
    if len(x.shape) != 3 or x.shape[1] % taps or x.shape[2] != math.prod(out):
        n.refuse(f"its input {list(x.shape)} does not fit blocks {list(kernel)} of {list(image)}")
    batch, channels = x.shape[0], x.shape[1] // taps
    columns = n.reshape(n.transpose(x, (0, 2, 1)), (batch, *out, x.shape[1]))
    picks = np.eye(taps, dtype=x.dtype.numpy).reshape(*kernel, taps)
    weight = n.constant(np.tile(picks, (channels, *(1,) * (axes + 1))), "picks")
    rows = zip(padded, w.strides, out, spans, strict=True)
    missing = [p - (s * (o - 1) + k) for p, s, o, k in rows]
    y = n.emit(
        "conv_transpose",
        [columns, weight, None],
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        groups=channels,
        output_padding=tuple(missing),
    )
    return n.to_channels_first(y)


def matrix_product(
    n: OnnxNode, a: Value, b: Value, product: Callable[[Value, Value], Value]
) -> Value:
    """``product`` of a and b by numpy.matmul's rules: a 1-D operand is a row (first) or a column
    (second) that vanishes from the result.
    """
    if not a.shape or not b.shape:
        n.refuse("a scalar operand is not allowed", "use Mul")
    rows, cols = len(a.shape) == 1, len(b.shape) == 1
    left = n.reshape(a, (1, *a.shape)) if rows else a
    right = n.reshape(b, (*b.shape, 1)) if cols else b
    y = product(left, right)
    if not rows and not cols:
        return y
    shape = list(y.shape)
    if cols:
        del shape[-1]
    if rows:
        del shape[-1 if cols else -2]
    return n.reshape(y, shape)


@converts("MatMul")
def matmul(n: OnnxNode) -> Value:
    """numpy.matmul."""
    return matrix_product(
        n, n.x(0), n.x(1), lambda a, b: n.emit("matmul", [a, b, None], trans_b=False)
    )


@converts("Gemm")
def gemm(n: OnnxNode) -> Value:
    """alpha * A' * B' + beta * C."""
    a, b, c = n.x(0), n.x(1), n.optional(2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        n.refuse(f"operands of shape {list(a.shape)} and {list(b.shape)} are not matrices")
    alpha, beta = n.get_float("alpha", 1.0), n.get_float("beta", 1.0)
    if not a.dtype.is_float and not (alpha.is_integer() and beta.is_integer()):
        n.refuse("a fractional alpha or beta on integers is not supported")
    if n.get_int("transA", 0):
        a = n.transpose(a, (1, 0))
    trans_b = bool(n.get_int("transB", 0))
    if c is not None and beta != 1.0:
        c = n.emit("mul", [c, n.scalar(beta, c)])
    width = b.shape[0 if trans_b else 1]
    bias = _row_bias(n, c, width) if c is not None and alpha == 1.0 else None
    y = n.emit("matmul", [a, b, bias], trans_b=trans_b)
    if alpha != 1.0:
        y = n.emit("mul", [y, n.scalar(alpha, y)])
    return y if c is None or bias is not None else n.emit("add", [y, c])


def _row_bias(n: OnnxNode, c: Value, width: int) -> Value | None:
    """``c`` as [width] when it is the same for every row; None when it is not."""
    if len(c.shape) > 2 or (len(c.shape) == 2 and c.shape[0] != 1):
        return None
    if c.type.numel == width:
        return n.reshape(c, (width,))
    if c.type.numel == 1 and c.is_const:
        return n.constant(np.full(width, np.asarray(c.const).reshape(())), "bias")
    return None
