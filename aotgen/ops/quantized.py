"""Quantized tensors: quantize, dequantize, table look-ups, integer convolution and matrix product.

Scales are float32 and zero points integers, as ONNX has them: real = scale * (q - zero_point).
Additions, products and the like of quantized tensors have no op of their own: dequantize, the float
op and quantize are element-wise, and fuse_ops makes one nest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgen.errors import InternalError
from aotgen.ir import requant as requant_rules
from aotgen.ir.graph import Node, Value
from aotgen.ir.types import DType, Quant, Requant, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    broadcast_shape,
    expect_axis,
    expect_shape,
    fail,
    maybe,
    need,
    optional_type,
    product,
    type_of,
)
from aotgen.ops.registry import OpDef, OpPattern, op_def, register
from aotgen.te.compute import Tensor, broadcasting, compute, int_range, optional, present, table
from aotgen.te.expr import Const, Expr, call, cast, const, select
from aotgen.te.index import Index
from aotgen.te.simplify import elem

QUANTIZED = frozenset({DType.I8, DType.U8, DType.I16, DType.U16})
"""What quantize writes; dequantize reads int32 too."""

PerIndex = Callable[[Index | None], Expr]


def _check_quant(node: Node, quant: Quant, x: TensorType) -> None:
    if quant.axis is not None:
        expect_axis(node, quant.axis, x.rank)
        if x.max_shape[quant.axis] != len(quant.scale):
            fail(node, f"{len(quant.scale)} scales for {x.max_shape[quant.axis]} channels")


def _per_axis(values: Sequence[float | int], dtype: DType, axis: int | None, rank: int) -> AnyArray:
    """``values`` shaped to broadcast along ``axis`` of a tensor of ``rank``."""
    array = np.asarray(values, dtype.numpy)
    if axis is None:
        return array.reshape(())
    return array.reshape([-1 if a == axis else 1 for a in range(rank)])


def _te_values(name: str, values: Sequence[float | int], dtype: DType) -> PerIndex:
    """``values`` by index: a literal when they are all equal, else a constant table."""
    array = np.asarray(values, dtype.numpy)
    if all(v == array[0] for v in array):
        literal = const(array[0].item(), dtype)
        return lambda index: literal
    stored = table(name, array)

    def read(index: Index | None) -> Expr:
        if index is None:
            raise InternalError(f"{name} differ by channel, and the tensor has none")
        return stored(index)

    return read


def _infer_quantize(node: Node) -> list[TensorType]:
    x, dtype, quant = type_of(node), node.attrs["dtype"], node.attrs["quant"]
    if x.dtype is not DType.F32:
        fail(node, f"needs a float32 input, not {x.dtype.value}")
    if dtype not in QUANTIZED:
        fail(node, f"cannot quantize to {dtype.value}")
    _check_quant(node, quant, x)
    return [TensorType(dtype, x.shape, quant)]


def _quantize(node: Node, arrays: Arrays) -> list[AnyArray]:
    """saturate(round(x / scale) + zero_point), in float32; NaN gives the lowest value. Halves are
    rounded to the even number, or away from zero where ``ties_to_even`` is False, as TFLite does.
    """
    x, quant, dtype = need(arrays), node.attrs["quant"], node.attrs["dtype"]
    scale = _per_axis(quant.scale, DType.F32, quant.axis, x.ndim)
    zero = _per_axis(quant.zero_point, DType.F32, quant.axis, x.ndim)
    lo, hi = int_range(dtype)
    with np.errstate(all="ignore"):
        steps = x / scale
    low, high = np.float32(lo) - zero, np.float32(hi) - zero
    inside = np.minimum(np.where(steps > low, steps, low), high)
    # The bounds are whole numbers, so it does not matter that they come before the rounding.
    inside = np.rint(inside) if node.attrs.get("ties_to_even", True) else _half_away(inside)
    return [(inside + zero).astype(np.int32).astype(dtype.numpy)]


def _half_away(x: AnyArray) -> AnyArray:
    """x (float32, finite) rounded to the nearest whole number, halves away from zero."""
    whole = np.trunc(x)
    return np.asarray(whole + np.trunc(np.float32(2) * (x - whole)))


def saturate(
    steps: Expr, zero: Expr, lo: int, hi: int, dtype: DType, half_away: bool = False
) -> Expr:
    """``steps`` (float32) + ``zero`` (int32) within [lo, hi], as ``dtype``; NaN gives ``lo``.
    ``steps`` are whole numbers, or with ``half_away`` are rounded, halves away from zero.

    The bounds are float32 before the zero point is added, so that the conversion to an integer is
    always defined.
    """
    low: Expr
    high: Expr
    if isinstance(zero, Const):
        low, high = (const(v - int(zero.value), DType.F32) for v in (lo, hi))
    else:
        low, high = (cast(DType.F32, v - zero) for v in (lo, hi))
    # NaN is not greater; a maximum would leave open what it is with NaN.
    above = select(call("greater", steps, low), steps, low)
    inside = call("min", above, high)
    if half_away:
        down = call("trunc", inside)
        # The difference is exact, and twice it is 1 or more just where half a step is missing.
        inside = down + call("trunc", (inside - down) * 2.0)
    whole = cast(DType.I32, inside)
    if not (isinstance(zero, Const) and zero.value == 0):
        whole = whole + zero
    return cast(dtype, whole)


def _te_quantize(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, quant, dtype = present(inputs, 0), node.attrs["quant"], node.attrs["dtype"]
    scale = _te_values("scale", quant.scale, DType.F32)
    zero = _te_values("zero", quant.zero_point, DType.I32)
    to_even = node.attrs.get("ties_to_even", True)

    def element(*i: Index) -> Expr:
        channel = None if quant.axis is None else i[quant.axis]
        divisor = scale(channel)
        unit = isinstance(divisor, Const) and divisor.value == 1.0
        steps = x(*i) if unit else x(*i) / divisor
        if to_even:
            steps = call("round", steps)
        return saturate(steps, zero(channel), *int_range(dtype), dtype, not to_even)

    return (compute(x.shape, dtype, element, x.names),)


register(OpDef("quantize", OpPattern.ELEMENTWISE, _infer_quantize, _quantize, _te_quantize))


def _infer_dequantize(node: Node) -> list[TensorType]:
    x, quant = type_of(node), node.attrs["quant"]
    if x.dtype not in QUANTIZED and x.dtype is not DType.I32:
        fail(node, f"cannot dequantize {x.dtype.value}")
    if x.dtype is DType.I32 and any(quant.zero_point):
        fail(node, "int32 has no zero point")
    _check_quant(node, quant, x)
    return [TensorType(DType.F32, x.shape)]


def _dequantize(node: Node, arrays: Arrays) -> list[AnyArray]:
    """(x - zero_point) * scale, the product in float32."""
    x, quant = need(arrays), node.attrs["quant"]
    scale = _per_axis(quant.scale, DType.F32, quant.axis, x.ndim)
    zero = _per_axis(quant.zero_point, DType.I32, quant.axis, x.ndim)
    with np.errstate(all="ignore"):
        return [np.asarray((x.astype(np.int32) - zero).astype(np.float32) * scale)]


def minus(x: Expr, zero: Expr) -> Expr:
    """``x`` - ``zero`` as int32."""
    wide = cast(DType.I32, x)
    if isinstance(zero, Const) and zero.value == 0:
        return wide
    return wide - cast(DType.I32, zero)


def _te_dequantize(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, quant = present(inputs, 0), node.attrs["quant"]
    scale = _te_values("scale", quant.scale, DType.F32)
    zero = _te_values("zero", quant.zero_point, DType.I32)

    def element(*i: Index) -> Expr:
        channel = None if quant.axis is None else i[quant.axis]
        return cast(DType.F32, minus(x(*i), zero(channel))) * scale(channel)

    return (compute(x.shape, DType.F32, element, x.names),)


register(OpDef("dequantize", OpPattern.ELEMENTWISE, _infer_dequantize, _dequantize, _te_dequantize))


def _infer_lookup(node: Node) -> list[TensorType]:
    x, dtype = type_of(node), node.attrs["dtype"]
    if x.dtype not in (DType.I8, DType.U8):
        fail(node, f"needs 8-bit elements, not {x.dtype.value}")
    if len(node.attrs["table"]) != 256:
        fail(node, f"its table has {len(node.attrs['table'])} elements, needs 256")
    return [TensorType(dtype, x.shape, node.attrs["quant"])]


def _lookup(node: Node, arrays: Arrays) -> list[AnyArray]:
    """table[x - lowest x]."""
    x = need(arrays)
    values = np.asarray(node.attrs["table"], node.attrs["dtype"].numpy)
    return [values[x.astype(np.int32) - np.iinfo(x.dtype).min]]


def _te_lookup(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, dtype = present(inputs, 0), node.attrs["dtype"]
    lo, hi = int_range(x.dtype)
    values = table("table", np.asarray(node.attrs["table"], dtype.numpy))

    def element(*i: Index) -> Expr:
        return values(elem(cast(DType.I32, x(*i)), (lo, hi)) - lo)

    return (compute(x.shape, dtype, element, x.names),)


register(OpDef("lookup", OpPattern.ELEMENTWISE, _infer_lookup, _lookup, _te_lookup))


def _infer_range_scale(node: Node) -> list[TensorType]:
    low, high = type_of(node, 0), type_of(node, 1)
    if low.dtype is not DType.F32 or high.dtype is not DType.F32:
        fail(node, "needs float32 inputs")
    return [TensorType(DType.F32, broadcast_shape(node, [low.shape, high.shape]))]


def _range_scale(node: Node, arrays: Arrays) -> list[AnyArray]:
    """(high - low) / 255, or 1 for an empty range: DynamicQuantizeLinear's scale, to the bit."""
    with np.errstate(all="ignore"):
        width = need(arrays, 1) - need(arrays, 0)
        return [np.asarray(np.where(width == 0, np.float32(1), width / np.float32(255)))]


def _te_range_scale(attrs: Mapping[str, Any], low: Expr, high: Expr) -> Expr:
    width = high - low
    return select(call("equal", width, const(0, DType.F32)), const(1, DType.F32), width / 255.0)


register(
    OpDef(
        "range_scale",
        OpPattern.BROADCAST,
        _infer_range_scale,
        _range_scale,
        broadcasting(_te_range_scale),
    )
)


def accumulator(requant: Requant | None) -> DType:
    """The type of the sums, and of the bias."""
    return DType.I64 if requant is not None and requant.wide else DType.I32


def _infer_integer(node: Node, like: str, channels: int) -> list[TensorType]:
    """Type of an integer conv or matmul: the shape by the rule of the float op ``like``."""
    types = [type_of(node, 0), type_of(node, 1), optional_type(node, 2)]
    for what, t in zip(("input", "weights"), types, strict=False):
        if t is not None and t.dtype not in QUANTIZED:
            fail(node, f"its {what} are {t.dtype.value}, must be of 8 or 16 bits")
    requant, dtype = node.attrs["requant"], node.attrs["dtype"]
    sums = accumulator(requant)
    if types[2] is not None and types[2].dtype is not sums:
        fail(node, f"its bias is {types[2].dtype.value}, must be {sums.value}")
    stand_in = [None if t is None else Value("", TensorType(DType.I32, t.shape)) for t in types]
    shape = op_def(like).infer(Node(like, stand_in, [], node.attrs, node.name, node.origin))[0]
    zeros = optional_type(node, 3), optional_type(node, 4)
    if zeros[0] is not None and zeros[0].numel != 1:
        fail(node, f"its input has {zeros[0].numel} zero points, needs one")
    if zeros[1] is not None and zeros[1].numel != 1:
        expect_shape(node, "the weights' zero point", zeros[1], [channels])
    if requant is None and dtype is not DType.I32:
        fail(node, f"an accumulator is int32, not {dtype.value}")
    if requant is not None and dtype not in QUANTIZED:
        fail(node, f"cannot requantize to {dtype.value}")
    return [TensorType(dtype, shape.shape, node.attrs["quant"])]


def _shifted(x: AnyArray, zero: AnyArray | None, shape: Sequence[int] | None = None) -> AnyArray:
    """x - zero in float64, which holds exactly every sum of products of 16 and 8 bits."""
    if zero is None:
        return x.astype(np.float64)
    return np.asarray(x.astype(np.float64) - zero.reshape(shape if zero.size > 1 and shape else ()))


def _finish(node: Node, acc: AnyArray, bias: AnyArray | None) -> list[AnyArray]:
    """The sums ``acc`` + ``bias`` (they wrap around), requantized when the node says so."""
    requant, dtype = node.attrs["requant"], node.attrs["dtype"]
    total = acc.astype(np.int64)
    if bias is not None:
        total = total + bias
    sums = total.astype(accumulator(requant).numpy)
    if requant is None:
        return [sums]
    return [requant_rules.apply(requant, sums, axis=sums.ndim - 1, dtype=dtype)]


def _requantized(requant: Requant | None, acc: Expr, channel: Index, dtype: DType) -> Expr:
    if requant is None:
        return acc
    if requant.kind == "onnx":
        scale = _te_values("scale", requant.scale, DType.F32)(channel)
        steps = call("round", cast(DType.F32, acc) * scale)
        zero = const(requant.zero_point, DType.I32)
        return saturate(steps, zero, requant.lo, requant.hi, dtype)
    if requant.kind == "real":
        return _te_real(requant, acc, channel, dtype)
    if requant.wide:
        steps = _te_wide(requant, acc, channel)
    else:
        multiplier = _te_values("multiplier", requant.multiplier, DType.I32)(channel)
        shift = _te_values("shift", requant.shift, DType.I32)(channel)
        steps = call(f"requantize_{requant.kind}", acc, multiplier, shift)
    # Clamped before the zero point is added, so that the sum cannot overflow.
    low, high = (const(v - requant.zero_point, DType.I32) for v in (requant.lo, requant.hi))
    inside = call("min", call("max", steps, low), high)
    return cast(dtype, inside + requant.zero_point if requant.zero_point else inside)


def _te_real(requant: Requant, acc: Expr, channel: Index, dtype: DType) -> Expr:
    """Times a float64, to nearest, ties away from zero."""
    scaled = cast(DType.F64, acc) * _te_values("scale", requant.scale, DType.F64)(channel)
    size = call("abs", scaled)
    whole = call("floor", size)
    half = call("greater_equal", size - whole, const(0.5, DType.F64))
    nearest = select(half, whole + 1.0, whole)
    steps = select(call("less", scaled, const(0.0, DType.F64)), -nearest, nearest)
    low, high = (const(v - requant.zero_point, DType.F64) for v in (requant.lo, requant.hi))
    inside = cast(DType.I32, call("min", call("max", steps, low), high))
    return cast(dtype, inside + requant.zero_point if requant.zero_point else inside)


def _te_wide(requant: Requant, acc: Expr, channel: Index) -> Expr:
    """An int64 accumulator as int32; see ``aotgen.ir.requant``."""
    reduced = [requant_rules.reduced_multiplier(m) for m in requant.multiplier]
    right = [15 - s for s in requant.shift]
    multiplier = _te_values("multiplier", reduced, DType.I64)(channel)
    half = _te_values("half", [1 << (n - 1) for n in right], DType.I64)(channel)
    shift = _te_values("shift", right, DType.I64)(channel)
    return cast(DType.I32, call("shift_right", acc * multiplier + half, shift))


def _te_shifted(x: Tensor, zero: Tensor | None, sums: DType, axis: int | None = None) -> Tensor:
    """x - zero as ``sums``; a zero point that is no scalar runs along ``axis``."""

    def element(*i: Index) -> Expr:
        if zero is None:
            return cast(sums, x(*i))
        many = zero.rank == 1 and zero.shape[0] > 1
        at = [i[axis]] if many and axis is not None else [Index((), 0)] * zero.rank
        return cast(sums, minus(x(*i), zero(*at)))

    return compute(x.shape, sums, element, x.names)


def _te_integer(
    node: Node, like: str, inputs: Sequence[Tensor | None], axis: int
) -> tuple[Tensor, ...]:
    """The te definition of ``like`` on the shifted operands, then the requantization; ``axis``:
    the weights' output channels.
    """
    sums = accumulator(node.attrs["requant"])
    x = _te_shifted(present(inputs, 0), optional(inputs, 3), sums)
    w = _te_shifted(present(inputs, 1), optional(inputs, 4), sums, axis)
    rule = op_def(like).compute
    if rule is None:
        raise InternalError(f"op {like} has no te definition")
    acc: Tensor = rule(node, [x, w, optional(inputs, 2)])[0]
    requant, dtype = node.attrs["requant"], node.attrs["dtype"]
    shape = node.output.shape

    def element(*i: Index) -> Expr:
        return _requantized(requant, acc(*i), i[-1], dtype)

    return (compute(shape, dtype, element, acc.names),)


def _infer_qconv(node: Node) -> list[TensorType]:
    return _infer_integer(node, "conv", type_of(node, 1).max_shape[0])


def _qconv(node: Node, arrays: Arrays) -> list[AnyArray]:
    """conv of (x - x_zero) and (w - w_zero) + bias; pads hold the zero point."""
    x, w = need(arrays, 0), need(arrays, 1)
    per_channel = (-1,) + (1,) * (w.ndim - 1)
    operands = [_shifted(x, maybe(arrays, 3)), _shifted(w, maybe(arrays, 4), per_channel), None]
    return _finish(node, op_def("conv").numpy(node, operands)[0], maybe(arrays, 2))


def _te_qconv(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    return _te_integer(node, "conv", inputs, 0)


def _qconv_macs(node: Node) -> int:
    return node.output.type.numel * product(node.input(1).type.max_shape[1:])


register(OpDef("qconv", OpPattern.ANCHOR, _infer_qconv, _qconv, _te_qconv, _qconv_macs))


def _infer_qmatmul(node: Node) -> list[TensorType]:
    b = type_of(node, 1)
    if b.rank < 2:
        fail(node, "its weights are no matrix")
    return _infer_integer(node, "matmul", b.max_shape[-2 if node.attrs["trans_b"] else -1])


def _qmatmul(node: Node, arrays: Arrays) -> list[AnyArray]:
    """(a - a_zero) times (b - b_zero) + bias."""
    per_column = (-1, 1) if node.attrs["trans_b"] else (1, -1)
    a = _shifted(need(arrays, 0), maybe(arrays, 3))
    b = _shifted(need(arrays, 1), maybe(arrays, 4), per_column)
    return _finish(node, op_def("matmul").numpy(node, [a, b, None])[0], maybe(arrays, 2))


def _te_qmatmul(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    rank = present(inputs, 1).rank
    return _te_integer(node, "matmul", inputs, rank - 2 if node.attrs["trans_b"] else rank - 1)


def _qmatmul_macs(node: Node) -> int:
    return node.output.type.numel * node.input(0).type.max_shape[-1]


register(OpDef("qmatmul", OpPattern.ANCHOR, _infer_qmatmul, _qmatmul, _te_qmatmul, _qmatmul_macs))
