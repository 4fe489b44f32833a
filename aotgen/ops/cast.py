"""cast: another element type, same values.

Float to integer truncates toward zero; out of range is undefined, as in ONNX.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import AnyArray, Arrays, need, type_of
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te import expr
from aotgen.te.compute import elementwise


def _infer(node: Node) -> list[TensorType]:
    dtype: DType = node.attrs["dtype"]
    return [type_of(node).with_dtype(dtype)]


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    dtype: DType = node.attrs["dtype"]
    with np.errstate(all="ignore"):
        return [need(arrays).astype(dtype.numpy)]


_compute = elementwise(lambda x, attrs: expr.cast(attrs["dtype"], x))

register(OpDef("cast", OpPattern.ELEMENTWISE, _infer, _numpy, _compute))
