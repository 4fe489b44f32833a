"""Operands of kernels that compute one op alone: an activation, or a constant as it is."""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Value
from aotgen.schedule.base import Arg, PackedConst, View, Views


def operand_view(value: Value, views: Views) -> View:
    """The view of an activation; a constant is dense."""
    return View.dense(value.shape, value.dtype) if value.is_const else views[value]


def operand(name: str, value: Value) -> Arg:
    """A pointer to ``value``, whose constant elements are stored in their own order."""
    ctype = f"const {value.dtype.c} *"
    if value.const is None:
        return Arg(name, ctype, value=value)
    flat = np.ascontiguousarray(value.const).reshape(-1)
    flat = flat.astype(np.uint8) if flat.dtype == np.bool_ else flat
    return Arg(name, ctype, const=PackedConst(name, flat, value))


def times(name: str, stride: int) -> str:
    """C text of the offset ``name * stride``; "0" when there is no stride."""
    if stride == 0:
        return "0"
    return name if stride == 1 else f"(ptrdiff_t){name} * {stride}"
