"""``--io-type float``: float32 tensors in place of a model's quantized inputs and outputs.

The names stay the model's own; what was an input is computed from it by a quantize node, and an
output becomes the dequantized one.
"""

from __future__ import annotations

from aotgen.ir.graph import Graph, Value
from aotgen.ir.types import DType, Quant, TensorType

QUANTIZED = (DType.I8, DType.U8, DType.I16, DType.U16)


def float_io(graph: Graph, *, ties_to_even: bool) -> None:
    """Change the quantized inputs and outputs of ``graph`` into float32 ones, in place.

    What counts as quantized is a tensor of 8 or 16 bits whose type has a scale; others, such as
    pixels of uint8 that the model casts itself, stay as they are.

    Args:
        graph: as the reader gives it, before any pass.
        ties_to_even: how half a step is rounded: to the even one, as ONNX's QuantizeLinear does, or
            away from zero, as TFLite's QUANTIZE does.
    """
    before = []
    for position, value in enumerate(graph.inputs):
        quant = _quant_of(value)
        if quant is None:
            continue
        name = value.name
        value.name = graph.unique_name(f"{name}_quantized")
        given = Value(name, TensorType(DType.F32, value.shape))
        node = graph.make(
            "quantize",
            [given],
            name=f"{name}_quantize",
            types=[value.type],
            dtype=value.dtype,
            quant=quant,
            ties_to_even=ties_to_even,
        )
        value.producer = node
        node.outputs = [value]
        graph.inputs[position] = given
        before.append(node)
    graph.nodes[:0] = before
    if not graph.output_names:
        graph.output_names = [value.name for value in graph.outputs]
    for position, (value, name) in enumerate(zip(graph.outputs, graph.output_names, strict=True)):
        quant = _quant_of(value)
        if quant is not None:
            graph.outputs[position] = graph.add(
                "dequantize", [value], name=f"{name}_dequantize", quant=quant
            )


def _quant_of(value: Value) -> Quant | None:
    return value.type.quant if value.dtype in QUANTIZED else None
