"""Scales and multipliers as TFLite's kernels compute them, in the same types and order."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgen.frontend.tflite import byte_tables
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.ir.graph import Value
from aotgen.ir.requant import quantize_multiplier, round_half_away
from aotgen.ir.types import Array, DType, Quant

F32 = np.float32

EIGHT_BITS = (DType.I8, DType.U8)
QUANTIZED = (DType.I8, DType.U8, DType.I16)
"""Element types whose values TFLite takes for quantized; int16 may also be plain integers."""


def per_tensor(node: TfliteNode, quant: Quant | None, what: str) -> tuple[np.float32, int]:
    """Scale and zero point of ``what``, which must have one of each."""
    if quant is None:
        node.refuse(f"its {what} has no quantization parameters", "quantize the model again")
    if quant.axis is not None and len(quant.scale) > 1:
        node.refuse(
            f"its {what} is quantized per channel, which the operator does not support",
            "quantize its activations per tensor",
        )
    scale = F32(quant.scale[0])
    if not scale > 0 or not np.isfinite(scale):
        node.refuse(f"its {what} has scale {scale}", "quantize the model again")
    return scale, int(quant.zero_point[0])


def of_input(node: TfliteNode, index: int = 0) -> tuple[np.float32, int]:
    """Scale and zero point of input ``index``."""
    return per_tensor(node, node.input(index).type.quant, f"input {index}")


def of_output(node: TfliteNode, index: int = 0) -> tuple[np.float32, int]:
    """Scale and zero point of output ``index``."""
    return per_tensor(node, node.output_quant(index), f"output {index}")


def is_quantized(node: TfliteNode) -> bool:
    """Whether the operator works on quantized integers: int8 and uint8 always do, int16 where it
    has a scale.
    """
    x = node.input(0)
    return x.dtype in EIGHT_BITS or (x.dtype is DType.I16 and x.type.quant is not None)


def is_micro(node: TfliteNode, *dtypes: DType) -> bool:
    """Whether TFLite Micro's arithmetic is wanted, and it has a kernel for input 0: its element
    type is one of ``dtypes``. LiteRT's stands in for the kernels that Micro lacks.
    """
    return node.mode == "tflm" and node.input(0).dtype in dtypes


def real_constant(node: TfliteNode, index: int, what: str) -> Array:
    """The elements of constant input ``index`` as float32: integer weights times their scales."""
    values, quant = node.const(index, what), node.input(index).type.quant
    if values.dtype == np.float32:
        return values
    if values.dtype != np.int8 or quant is None:
        node.refuse(f"{what} of type {values.dtype} has no real values", "quantize it to int8")
    shape = [1] * values.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    zero = np.asarray(quant.zero_point, np.int32).reshape(shape)
    scale = np.asarray(quant.scale, np.float32).reshape(shape)
    return np.asarray((values.astype(np.int32) - zero).astype(np.float32) * scale)


def expect_symmetric(node: TfliteNode, *zeros: int) -> None:
    """Refuse int16 values with a zero point."""
    if any(zeros):
        node.refuse("int16 values must have zero point 0 here", "quantize the model again")


def same_type(node: TfliteNode, *values: Value) -> None:
    """Refuse inputs of several element types, and an output of another."""
    dtypes = [*(v.dtype for v in values), node.output_dtype()]
    if any(d is not dtypes[0] for d in dtypes):
        names = ", ".join(d.value for d in dtypes)
        node.refuse(f"its inputs and output have element types {names}, which must agree")


def requantized(node: TfliteNode, x: Value, real: float, **attrs: Any) -> Value:
    """(``x`` - its zero point) * ``real`` in the output's type; ``attrs`` over the defaults."""
    multiplier, shift = quantize_multiplier(real)
    zero = x.type.quant.zero_point[0] if x.type.quant is not None else 0
    return byte_tables.emit(
        node,
        "requantize",
        [x],
        **{"zeros": (zero,), "multiplier": multiplier, "shift": shift, **output(node), **attrs},
    )


def output(node: TfliteNode) -> dict[str, Any]:
    """The attributes of a quantized op that its output decides."""
    dtype = node.output_dtype()
    if dtype in QUANTIZED:
        lo, hi = node.clamp()
    else:
        lo, hi = -(1 << 31), (1 << 31) - 1
    quant = node.output_quant()
    zero = 0 if quant is None else int(quant.zero_point[0])
    return {"zero_point": zero, "lo": lo, "hi": hi, "dtype": dtype, "quant": quant}


def rounded(x: Any) -> Any:
    """To the nearest whole number, halves away from zero, as TfLiteRound."""
    return round_half_away(np.asarray(x, np.float64))


def pot_exponent(scale: np.float32) -> int | None:
    """log2 of ``scale`` where that is whole to 1e-3 of it, as TFLite's CheckedLog2; else None."""
    log = float(np.log(F32(scale)) * F32(1.0 / np.log(2.0)))
    nearest = int(rounded(log))
    return nearest if abs(log - nearest) < 1e-3 else None
