"""Reductions along axes, positions of extremes and running sums."""

from __future__ import annotations

import numpy as np

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter, refuses
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier
from aotgen.ir.types import DType
from aotgen.ops.common import product
from aotgen.ops.fixed_point import UNIT

PLAIN = {
    "MEAN": "reduce_mean",
    "SUM": "reduce_sum",
    "REDUCE_PROD": "reduce_prod",
    "REDUCE_MAX": "reduce_max",
    "REDUCE_MIN": "reduce_min",
    "REDUCE_ANY": "reduce_max",
    "REDUCE_ALL": "reduce_min",
}


def _axes(node: TfliteNode, x: Value) -> tuple[int, ...]:
    """The axes to reduce, sorted; the same one may be named twice."""
    rank = len(x.shape)
    return tuple(sorted({node.axis(a, rank) for a in node.ints(1, "the axes")}))


def _extent(x: Value, axes: tuple[int, ...]) -> int:
    """Elements that are reduced to one."""
    return product([x.type.max_shape[a] for a in axes])


def _plain(node: TfliteNode, x: Value) -> Value:
    keepdims = bool(node.options["keep_dims"])
    return node.emit(PLAIN[node.op], [x], axes=_axes(node, x), keepdims=keepdims)


def _quantized(node: TfliteNode, op: str, x: Value, multiplier: int, shift: int) -> Value:
    scales.same_type(node, x)
    (_, zero), (_, zero_point) = scales.of_input(node), scales.of_output(node)
    return node.emit(
        op,
        [x],
        axes=_axes(node, x),
        keepdims=bool(node.options["keep_dims"]),
        zero=zero,
        multiplier=multiplier,
        shift=shift,
        zero_point=zero_point,
        dtype=node.output_dtype(),
        quant=node.output_quant(),
    )


@converter("MEAN", "SUM")
def mean_or_sum(node: TfliteNode) -> Value:
    """Both runtimes scale the sum of quantized integers by one fixed-point multiplier, which for a
    mean is divided by the count first. LiteRT's reference kernel reads int8 and int16 sums as
    uint8, which no file can mean: TFLite Micro's arithmetic holds in both modes.
    """
    x = node.input()
    if x.dtype is DType.BOOL:
        node.refuse(f"{node.op} of truth values is not defined", "cast its input to int32")
    if not scales.is_quantized(node):
        return _plain(node, x)
    (scale_x, _), (scale, _) = scales.of_input(node), scales.of_output(node)
    multiplier, shift = quantize_multiplier(float(scale_x) / float(scale))
    if node.op == "MEAN":
        count = _extent(x, _axes(node, x))
        if count == 0:
            node.refuse("it is a mean of no elements")
        # As many bits as the count has, so that the division loses none; a 64-bit shift at most.
        bits = min(count.bit_length() - 1, 32, 31 + shift)
        multiplier, shift = (multiplier << bits) // count, shift - bits
    return _quantized(node, "qreduce_sum", x, multiplier, shift)


@converter("REDUCE_PROD")
def prod(node: TfliteNode) -> Value:
    """Of quantized integers each product is scaled by the input's scale over a root of the
    output's, so that the last one ends at the output's scale.
    """
    x = node.input()
    if not scales.is_quantized(node):
        return _plain(node, x)
    if x.dtype is DType.U8:
        node.refuse("products of uint8 are not supported", "quantize to int8")
    (scale_x, _), (scale, _) = scales.of_input(node), scales.of_output(node)
    root = np.power(float(scale), 1.0 / max(_extent(x, _axes(node, x)), 1))
    return _quantized(node, "qreduce_prod", x, *quantize_multiplier(float(scale_x) / float(root)))


@converter("REDUCE_MAX", "REDUCE_MIN")
def extreme(node: TfliteNode) -> Value:
    x = node.input()
    if scales.is_quantized(node):
        scales.same_type(node, x)
        if scales.of_input(node) != scales.of_output(node):
            node.refuse("its input and output have different scales", "quantize the model again")
    return _plain(node, x)


@converter("REDUCE_ANY", "REDUCE_ALL")
def any_or_all(node: TfliteNode) -> Value:
    x = node.input()
    if x.dtype is not DType.BOOL:
        node.refuse(f"its input has element type {x.dtype.value}, must be bool")
    return _plain(node, x)


@converter("ARG_MAX", "ARG_MIN")
def arg_extreme(node: TfliteNode) -> Value:
    """The first position of the largest or smallest element."""
    x = node.input()
    axis = node.axis(node.ints(1, "the axis")[0], len(x.shape))
    dtype = node.output_dtype()
    if dtype not in (DType.I32, DType.I64):
        node.refuse(f"its output has element type {dtype.value}, must be int32 or int64")
    found = node.emit(
        "argmax" if node.op == "ARG_MAX" else "argmin",
        [x],
        axis=axis,
        keepdims=False,
        select_last=False,
    )
    return node.cast(found, dtype)


@converter("CUMSUM")
def cumsum(node: TfliteNode) -> Value:
    x = node.input()
    if not scales.is_quantized(node):
        return _running_sum(node, x)
    if x.dtype is not DType.I8:
        node.refuse(f"running sums of quantized {x.dtype.value} are not supported", "use int8")
    scales.same_type(node, x)
    (scale_x, zero), (scale, _) = scales.of_input(node), scales.of_output(node)
    # TFLite Micro's sums begin at minus the zero point and carry 19 bits behind the point.
    multiplier, shift = quantize_multiplier(2.0 * float(scale_x) / (2.0**20 * float(scale)))
    whole = {"zero_point": 0, "lo": -(1 << 31), "hi": (1 << 31) - 1, "dtype": DType.I32}
    steps = scales.requantized(node, x, 1.0, **whole, quant=None)
    return node.emit(
        "qadd",
        [_running_sum(node, steps)],
        zeros=(zero,),
        left_shift=19,
        multipliers=(UNIT[0],),
        shifts=(UNIT[1],),
        multiplier=multiplier,
        shift=shift,
        **scales.output(node),
    )


def _running_sum(node: TfliteNode, x: Value) -> Value:
    return node.emit(
        "cumsum",
        [x],
        axis=node.axis(node.ints(1, "the axis")[0], len(x.shape)),
        exclusive=bool(node.options["exclusive"]),
        reverse=bool(node.options["reverse"]),
    )


refuses(
    "SEGMENT_SUM",
    "UNSORTED_SEGMENT_SUM",
    "UNSORTED_SEGMENT_MAX",
    "UNSORTED_SEGMENT_MIN",
    "UNSORTED_SEGMENT_PROD",
    reason="reductions of segments are not supported",
    remedy="reduce slices of the tensor, or use SUM along an axis",
)
