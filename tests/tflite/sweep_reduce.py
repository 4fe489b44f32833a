"""Cases of the op sweep: pools, reductions, softmax, normalization, resizing."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.tflite.sweep_anchors import window
from tests.tflite.sweep_models import Array, Case, Draw, Entry, Operand, Shape, int32s


def _pool(d: Draw, kind: str, *, op: str) -> Case:
    x = d.tensor(d.image(), kind)
    kernel = d.between(1, 5), d.between(1, 5)
    stride = d.between(1, 3), d.between(1, 3)
    padding = d.among("SAME", "VALID")
    if any(window(x.shape[1 + a], kernel[a], stride[a], 1, padding) < 1 for a in (0, 1)):
        padding = "SAME"
    out = [window(x.shape[1 + a], kernel[a], stride[a], 1, padding) for a in (0, 1)]
    options = {
        "padding": padding,
        "filter_height": kernel[0],
        "filter_width": kernel[1],
        "stride_h": stride[0],
        "stride_w": stride[1],
        "fused_activation_function": d.activation(),
    }
    y = Operand((x.shape[0], *out, x.shape[3]), kind, x.scale, x.zero)
    return Case(op, kind, [x], [y], options)


def _reduction(d: Draw, kind: str, *, op: str) -> Case:
    rank = d.among(1, 2, 3, 4, 4, 4)
    x = d.tensor(d.shape(rank, 7), kind)
    if rank == 4 and d.chance(0.5):
        axes = [1, 2]
    else:
        axes = sorted(int(a) for a in d.rng.permutation(rank)[: d.between(1, rank)])
    keep = d.chance(0.5)
    shape = tuple(1 if a in axes else s for a, s in enumerate(x.shape) if keep or a not in axes)
    scale, zero = x.scale, x.zero
    if kind not in ("float32", "int32") and op in ("MEAN", "SUM") and d.chance(0.7):
        count = int(np.prod([x.shape[a] for a in axes])) if op == "SUM" else 1
        scale, zero = d.quant(kind, x.scale * d.among(0.4, 0.7, 1.0, 1.5) * count**0.5)
    asked = int32s(*(a - rank if d.chance(0.2) else a for a in axes))
    return Case(op, kind, [x, asked], [Operand(shape, kind, scale, zero)], {"keep_dims": keep})


SOFTMAX = {
    "int8": ("int8", 1 / 256, -128),
    "uint8": ("uint8", 1 / 256, 0),
    "int16": ("int16", 1 / 32768, 0),
    "int8 to int16": ("int16", 1 / 65536, -32768),
}


def _softmax(d: Draw, kind: str) -> Case:
    source = kind.split(" ")[0]
    x = d.tensor(d.shape(d.among(1, 2, 2, 3, 4), 12), source, d.scale(4e-3, 0.5))
    options = {"beta": float(np.float32(d.among(1.0, 1.0, 1.0, 0.5, 2.0)))}
    if kind == "float32":
        return Case("SOFTMAX", kind, [x], [Operand(x.shape, kind)], options)
    target, scale, zero = SOFTMAX[kind]
    return Case("SOFTMAX", kind, [x], [Operand(x.shape, target, scale, zero)], options)


def _log_softmax(d: Draw, kind: str) -> Case:
    x = d.tensor(d.shape(d.among(1, 2, 3, 4), 12), kind, d.scale(4e-3, 0.3))
    y = Operand(x.shape, kind)
    if kind != "float32":
        y = Operand(x.shape, kind, 16 / 256, 127 if kind == "int8" else 255)
    return Case("LOG_SOFTMAX", kind, [x], [y])


def _l2_normalization(d: Draw, kind: str) -> Case:
    shape = d.shape(d.among(2, 3, 4), 9)
    x = d.tensor(shape, kind)
    y = Operand(shape, kind)
    if kind != "float32":
        y = Operand(shape, kind, 1 / 128, 0 if kind == "int8" else 128)
    # A row of nothing but zeros is a division by 0 in the reference.
    zero = 0 if kind == "float32" else int(x.zero)
    x = Operand(shape, kind, x.scale, x.zero, values=partial(_not_all, shape, zero, kind))
    return Case("L2_NORMALIZATION", kind, [x], [y])


def _not_all(shape: Shape, zero: int, kind: str, rng: np.random.Generator, step: int) -> Array:
    if kind == "float32":
        return rng.standard_normal(shape)
    low = -128 if kind == "int8" else 0
    values = rng.integers(low, low + 256, shape)
    values[..., 0] = low if zero != low else low + 255
    return values


def _resize(d: Draw, kind: str, *, op: str) -> Case:
    x = d.tensor(d.image(), kind)
    size = d.between(1, 13), d.between(1, 13)
    mode = d.among("none", "align_corners", "half_pixel_centers")
    options = {} if mode == "none" else {mode: True}
    y = Operand((x.shape[0], *size, x.shape[3]), kind, x.scale, x.zero)
    return Case(op, kind, [x, int32s(*size)], [y], options)


def _arg(d: Draw, kind: str) -> Case:
    op = d.among("ARG_MAX", "ARG_MIN")
    rank = d.between(1, 4)
    x = d.tensor(d.shape(rank, 7), kind)
    axis = d.between(0, rank - 1)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    name = "int32"
    asked = int32s(axis - rank if d.chance(0.3) else axis)
    return Case(op, kind, [x, asked], [Operand(shape, name)], {"output_type": name})


def _cumsum(d: Draw, kind: str) -> Case:
    rank = d.between(1, 4)
    x = d.tensor(d.shape(rank, 6), kind)
    axis = d.between(0, rank - 1)
    options = {"exclusive": d.chance(0.4), "reverse": d.chance(0.4)}
    y = Operand(x.shape, kind, x.scale, x.zero)
    return Case("CUMSUM", kind, [x, int32s(axis)], [y], options)


def _named(function: object, op: str, *kinds: str) -> Entry:
    return Entry(op, kinds, partial(function, op=op))  # type: ignore[call-overload]


EIGHT = ("int8", "int8", "uint8", "int16", "float32")

REDUCE = [
    _named(_pool, "AVERAGE_POOL_2D", *EIGHT),
    _named(_pool, "MAX_POOL_2D", *EIGHT),
    _named(_reduction, "MEAN", *EIGHT),
    _named(_reduction, "SUM", "int8", "float32", "uint8", "int16", "int32"),
    _named(_reduction, "REDUCE_MAX", "int8", "float32", "uint8", "int16"),
    _named(_reduction, "REDUCE_MIN", "int8", "float32", "uint8"),
    Entry("SOFTMAX", ("int8", "uint8", "int16", "float32", "int8 to int16"), _softmax),
    Entry("LOG_SOFTMAX", ("int8", "float32", "uint8"), _log_softmax),
    Entry("L2_NORMALIZATION", ("int8", "float32", "uint8"), _l2_normalization),
    _named(_resize, "RESIZE_BILINEAR", "int8", "float32", "uint8", "int16"),
    _named(_resize, "RESIZE_NEAREST_NEIGHBOR", "int8", "float32", "uint8", "int16"),
    Entry("ARG_MAX", ("int8", "float32", "uint8"), _arg),
    Entry("CUMSUM", ("float32", "int32"), _cumsum),
]
