"""Matrix products: FULLY_CONNECTED and BATCH_MATMUL."""

from __future__ import annotations

from aotgen.frontend.tflite import anchors, hybrid, scales
from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


def flattened(node: TfliteNode, x: Value, depth: int) -> Value:
    """``x`` as rows of ``depth`` elements."""
    if not depth or x.type.numel % depth:
        node.refuse(f"an input {list(x.shape)} does not consist of rows of {depth}")
    return node.reshape(x, (x.type.numel // depth, depth))


@converter("FULLY_CONNECTED")
def fully_connected(node: TfliteNode) -> Value:
    """x of any rank as rows of K, weights [O, K], bias [O]; the result is [rows, O], or keeps the
    input's leading axes.
    """
    x, w = node.input(0), node.input(1)
    if len(w.shape) != 2:
        node.refuse(f"weights {list(w.shape)} are no matrix")
    if node.options["weights_format"] != "DEFAULT":
        node.refuse("shuffled weights are not supported", "convert the model without shuffling")
    outputs, depth = w.shape
    kind = anchors.family(node, x, w)
    rows = flattened(node, x, depth)
    if kind == "float":
        bias = anchors.float_bias(node, 2, outputs)
        y = node.activation(node.emit("matmul", [rows, w, bias], trans_b=True))
    elif kind == "hybrid":
        y = hybrid.product(node, rows, w)
    else:
        y = _integer_product(node, x, rows, w)
    if node.options["keep_num_dims"]:
        if x.shape[-1:] != (depth,):
            node.refuse(f"an input {list(x.shape)} does not end in {depth} elements")
        return node.reshape(y, (*x.shape[:-1], outputs))
    return y


def _integer_product(node: TfliteNode, x: Value, rows: Value, w: Value) -> Value:
    bias = node.optional(2)
    litert = node.mode == "litert" or x.dtype is DType.U8  # which tflite-micro does not have
    narrow = bias is not None and bias.dtype is DType.I32 and not litert
    wide = x.dtype is DType.I16 and not narrow
    scale, zero = scales.per_tensor(node, x.type.quant, "input")
    factors, w_zero = anchors.weight_quant(node, w, 0, symmetric=x.dtype is DType.I16)
    if len(factors) not in (1, w.shape[0]):
        node.refuse(f"{len(factors)} scales do not fit weights {list(w.shape)}")
    if x.dtype is DType.I16:
        scales.expect_symmetric(node, zero, scales.of_output(node)[1])
    requant = anchors.requant(node, (scale, zero), factors, single=False, real=litert, wide=wide)
    inputs = [
        rows,
        w,
        anchors.bias_of(node, 2, w.shape[0], wide),
        anchors.zero_value(node, zero, x.dtype),
        anchors.zero_value(node, w_zero, w.dtype),
    ]
    return node.emit(
        "qmatmul",
        inputs,
        trans_b=True,
        dtype=node.output_dtype(),
        requant=requant,
        quant=node.output_quant(),
    )


@converter("BATCH_MATMUL")
def batch_matmul(node: TfliteNode) -> Value:
    """numpy.matmul of [..., M, K] and [..., K, N]; adj_x and adj_y: with the last two axes
    swapped.
    """
    x, w = node.input(0), node.input(1)
    if min(len(x.shape), len(w.shape)) < 2:
        node.refuse(f"operands {list(x.shape)} and {list(w.shape)} are not matrices")
    trans_b = bool(node.options["adj_y"])
    left = x
    if node.options["adj_x"]:
        order = list(range(len(x.shape)))
        left = node.transpose(x, (*order[:-2], order[-1], order[-2]))
    if x.dtype is w.dtype is node.output_dtype() is DType.F32:
        return node.emit("matmul", [left, w, None], trans_b=trans_b)
    if x.dtype is DType.F32 and w.dtype is DType.I8:
        return hybrid.batch_product(node, left, w, trans_b)
    if x.dtype is not w.dtype or x.dtype not in (DType.I8, DType.I16):
        node.refuse(
            f"operands of type {x.dtype.value} and {w.dtype.value} are not supported",
            "use float32, int8 or int16 for both",
        )
    if node.output_dtype() is not x.dtype:
        node.refuse(f"an output of type {node.output_dtype().value} is not supported")
    (scale, zero), (w_scale, w_zero) = scales.of_input(node, 0), scales.of_input(node, 1)
    wide = x.dtype is DType.I16
    if wide:
        scales.expect_symmetric(node, zero, w_zero, scales.of_output(node)[1])
    requant = anchors.requant(
        node, (scale, zero), [w_scale], single=node.mode == "litert", wide=wide
    )
    zeros = [anchors.zero_value(node, z, x.dtype) for z in (zero, w_zero)]
    return node.emit(
        "qmatmul",
        [left, w, None, *zeros],
        trans_b=trans_b,
        dtype=x.dtype,
        requant=requant,
        quant=node.output_quant(),
    )
