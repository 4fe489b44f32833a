"""QUANTIZE, DEQUANTIZE and FAKE_QUANT: between floats and integers, and between integers."""

from __future__ import annotations

from aotgen.frontend.tflite import scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.frontend.tflite.scales import F32
from aotgen.ir.graph import Value
from aotgen.ir.types import DType

INTEGERS = (DType.I8, DType.U8, DType.I16, DType.I32)


@converter("QUANTIZE")
def quantize(node: TfliteNode) -> Value:
    x, dtype, quant = node.input(), node.output_dtype(), node.output_quant()
    if quant is None:
        node.refuse("its output has no quantization parameters", "quantize the model again")
    if dtype not in INTEGERS:
        node.refuse(f"quantizing to {dtype.value} is not supported")
    if x.dtype is DType.F32:
        if dtype is DType.I32:
            node.refuse("quantizing floats to int32 is not supported", "use int8 or int16")
        return node.emit("quantize", [x], quant=quant, dtype=dtype, ties_to_even=False)
    if x.dtype not in INTEGERS:
        node.refuse(f"quantizing {x.dtype.value} is not supported")
    scale_x, _ = scales.of_input(node)
    scale, _ = scales.of_output(node)
    return scales.requantized(node, x, float(scale_x) / float(scale))


@converter("DEQUANTIZE")
def dequantize(node: TfliteNode) -> Value:
    x = node.input()
    if x.dtype.is_float:
        return node.cast(x, node.output_dtype())
    if x.dtype not in INTEGERS:
        node.refuse(f"dequantizing {x.dtype.value} is not supported")
    if x.type.quant is None:
        node.refuse("its input has no quantization parameters", "quantize the model again")
    return node.emit("dequantize", [x], quant=x.type.quant)


@converter("FAKE_QUANT")
def fake_quant(node: TfliteNode) -> Value:
    """A float rounded to the steps of ``num_bits`` bits between ``min`` and ``max``, whose zero is
    moved to a whole step first, as TensorFlow does it.
    """
    x = node.input()
    low, high = F32(node.options["min"]), F32(node.options["max"])
    bits, narrow = int(node.options["num_bits"]), bool(node.options["narrow_range"])
    if not x.dtype.is_float or not 2 <= bits <= 16 or not low < high:
        node.refuse(f"fake quantization to {bits} bits of [{low}, {high}] is not supported")
    least, most = F32(1 if narrow else 0), F32((1 << bits) - 1)
    scale = (high - low) / (most - least)
    zero = least - low / scale
    step = least if zero < least else most if zero > most else F32(scales.rounded(zero))
    nudged_low, nudged_high = (least - step) * scale, (most - step) * scale
    clamped = node.emit("clip", [x], lo=float(nudged_low), hi=float(nudged_high))
    shifted = node.emit("sub", [clamped, node.scalar(float(nudged_low), x)])
    steps = node.emit("mul", [shifted, node.scalar(float(F32(1.0) / scale), x)])
    half = node.emit("add", [steps, node.scalar(0.5, x)])
    whole = node.emit("mul", [node.emit("floor", [half]), node.scalar(float(scale), x)])
    return node.emit("add", [whole, node.scalar(float(nudged_low), x)])
