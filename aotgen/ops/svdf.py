"""svdf: the memory of an SVDF layer, and its weighted sums (see the TFLite reader's ``svdf``).

Inputs: ``feature`` [N, F], the newest value of each filter; ``time`` [F, M], the weights of the
memory; ``bias`` [U] or absent; ``state`` [N, F * M], the memory before this step. A unit has
F / U filters, one after the other. Outputs: y [N, U], and the memory behind this step.

Elements are float32, or integers of 8 or 16 bits with int32 sums that wrap around; those are
brought to ``dtype`` by attribute ``requant``, which is None for floats.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir import requant
from aotgen.ir.graph import Node, Value
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_rank,
    expect_shape,
    fail,
    maybe,
    need,
    optional_type,
    type_of,
)
from aotgen.ops.registry import OpDef, OpPattern, register

FAMILIES = (DType.F32, DType.I8, DType.I16)


def _infer(node: Node) -> list[TensorType]:
    feature, time, state = (type_of(node, i) for i in (0, 1, 3))
    bias = optional_type(node, 2)
    expect_rank(node, feature, 2, 2)
    expect_rank(node, time, 2, 2)
    rows, filters = feature.shape
    memory, units = time.max_shape[1], int(node.attrs["units"])
    expect_shape(node, "the time weights", time, (feature.max_shape[1], memory))
    expect_shape(node, "the state", state, (feature.max_shape[0], time.numel))
    if units < 1 or feature.max_shape[1] % units:
        fail(node, f"{units} units do not fit {filters} filters")
    if feature.dtype not in FAMILIES or state.dtype is not feature.dtype:
        fail(node, f"a feature of {feature.dtype.value} and a state of {state.dtype.value}")
    real = feature.dtype is DType.F32
    if time.dtype not in FAMILIES or (time.dtype is DType.F32) is not real:
        fail(node, f"time weights of {time.dtype.value} do not fit")
    if bias is not None:
        expect_shape(node, "the bias", bias, (units,))
        if bias.dtype is not (DType.F32 if real else DType.I32):
            fail(node, f"a bias of {bias.dtype.value} does not fit")
    if (node.attrs["requant"] is None) is not real:
        fail(node, "integers alone are requantized")
    y = TensorType(node.attrs["dtype"], (rows, units), node.attrs["quant"])
    return [y, TensorType(state.dtype, state.shape, state.quant)]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    feature, time, state = need(arrays, 0), need(arrays, 1), need(arrays, 3)
    bias, units = maybe(arrays, 2), int(node.attrs["units"])
    rows, (filters, memory) = len(feature), time.shape
    held = state.reshape(rows, filters, memory)
    fresh = np.concatenate([held[:, :, 1:], feature[:, :, None]], axis=2)
    wide = np.float64 if feature.dtype == np.float32 else np.int64
    product = fresh.astype(wide) * time.astype(wide)
    sums = product.reshape(rows, units, -1).sum(axis=2) + (0 if bias is None else bias)
    rule = node.attrs["requant"]
    if rule is None:
        y = sums.astype(np.float32)
    else:
        y = requant.apply(rule, sums.astype(np.int32), dtype=node.attrs["dtype"])
    return [y, np.ascontiguousarray(fresh).reshape(state.shape)]


def _macs(node: Node) -> int:
    return node.input(3).type.numel


def _in_place(node: Node) -> list[tuple[Value, Value]]:
    """The memory moves up in one piece, which may overlap."""
    return [(node.input(3), node.outputs[1])]


register(OpDef("svdf", OpPattern.OPAQUE, _infer, _numpy, None, macs=_macs, in_place=_in_place))
