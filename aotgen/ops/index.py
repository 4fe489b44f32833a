"""Ops that read or write where an index tensor says: gather, scatter, one_hot.

Negative indices count from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgen.errors import ModelError
from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_axis,
    expect_rank,
    expect_same_dtype,
    expect_shape,
    fail,
    need,
    text,
    type_of,
)
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Scatter, Tensor, as_data, as_position, compute, present, table
from aotgen.te.expr import Expr, call, select
from aotgen.te.index import Index, as_index
from aotgen.te.simplify import elem


def _index_type(node: Node, index: int) -> TensorType:
    tensor = type_of(node, index)
    if tensor.dtype not in (DType.I32, DType.I64):
        fail(node, f"indices must be i32 or i64, not {tensor.dtype.value}")
    return tensor


def _positions(node: Node, indices: AnyArray, extent: int) -> AnyArray:
    """Indices brought into [0, extent)."""
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        bad = int(indices.min() if indices.min() < -extent else indices.max())
        raise ModelError(f"{node.op} node {node.name!r}: index {bad} is outside {extent} elements")
    return np.where(indices < 0, indices + extent, indices).astype(np.int64)


def _infer_gather(node: Node) -> list[TensorType]:
    x, indices, axis = type_of(node, 0), _index_type(node, 1), int(node.attrs["axis"])
    expect_axis(node, axis, x.rank)
    return [x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))]


def _gather(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, axis = need(arrays, 0), int(node.attrs["axis"])
    return [np.asarray(np.take(x, _positions(node, need(arrays, 1), x.shape[axis]), axis=axis))]


def _infer_gather_elements(node: Node) -> list[TensorType]:
    x, indices, axis = type_of(node, 0), _index_type(node, 1), int(node.attrs["axis"])
    _check_elements(node, x, indices, axis)
    return [x.with_shape(indices.shape)]


def _check_elements(node: Node, x: TensorType, indices: TensorType, axis: int) -> None:
    expect_axis(node, axis, x.rank)
    expect_rank(node, indices, x.rank, x.rank)
    for i, (n, m) in enumerate(zip(indices.max_shape, x.max_shape, strict=True)):
        if i != axis and n > m:
            fail(node, f"indices {text(indices.shape)} exceed the data {text(x.shape)} on axis {i}")


def _elements_key(node: Node, x: AnyArray, indices: AnyArray) -> tuple[AnyArray, ...]:
    """The index tuple of gather_elements and scatter_elements."""
    axis = int(node.attrs["axis"])
    key: list[AnyArray] = list(np.indices(indices.shape, sparse=True))
    key[axis] = _positions(node, indices, x.shape[axis])
    return tuple(key)


def _gather_elements(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, indices = need(arrays, 0), need(arrays, 1)
    return [np.asarray(x[_elements_key(node, x, indices)])]


def _infer_gather_nd(node: Node) -> list[TensorType]:
    x, indices, batch = type_of(node, 0), _index_type(node, 1), int(node.attrs["batch_dims"])
    expect_rank(node, indices, batch + 1)
    depth = indices.max_shape[-1]
    if indices.max_shape[:batch] != x.max_shape[:batch] or batch + depth > x.rank:
        fail(node, f"indices {text(indices.shape)} do not fit the data {text(x.shape)}")
    return [x.with_shape((*indices.shape[:-1], *x.shape[batch + depth :]))]


def _nd_key(node: Node, x: AnyArray, indices: AnyArray, batch: int) -> tuple[AnyArray, ...]:
    """The index tuple of gather_nd and scatter_nd: one array per indexed axis, batch axes first."""
    outer = indices.shape[:-1]
    grid: list[AnyArray] = list(np.indices(outer, sparse=True)[:batch])
    columns = [
        _positions(node, indices[..., i], x.shape[batch + i]) for i in range(indices.shape[-1])
    ]
    return (*grid, *columns)


def _gather_nd(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, indices = need(arrays, 0), need(arrays, 1)
    key = _nd_key(node, x, indices, int(node.attrs["batch_dims"]))
    if not key:
        return [np.broadcast_to(x, (*indices.shape[:-1], *x.shape)).copy()]
    return [np.asarray(x[key])]


_UPDATES: dict[str, Callable[..., Any]] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _check_reduction(node: Node) -> None:
    reduction = node.attrs["reduction"]
    if reduction != "none" and reduction not in _UPDATES:
        fail(node, f"reduction is {reduction!r}, must be none, {', '.join(_UPDATES)}")


def _scatter(node: Node, x: AnyArray, key: tuple[AnyArray, ...], updates: AnyArray) -> AnyArray:
    y: AnyArray = x.copy()
    reduction = node.attrs["reduction"]
    with np.errstate(all="ignore"):
        if reduction == "none":
            y[key] = updates
        else:
            _UPDATES[reduction](y, key, updates)
    return y


def _infer_scatter_nd(node: Node) -> list[TensorType]:
    x, indices, updates = type_of(node, 0), _index_type(node, 1), type_of(node, 2)
    _check_reduction(node)
    expect_rank(node, indices, 1)
    expect_same_dtype(node, [x, updates])
    depth = indices.max_shape[-1]
    if depth > x.rank:
        fail(node, f"indices {text(indices.shape)} address more axes than {text(x.shape)} has")
    expect_shape(node, "updates", updates, [*indices.max_shape[:-1], *x.max_shape[depth:]])
    return [x]


def _scatter_nd(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, indices, updates = need(arrays, 0), need(arrays, 1), need(arrays, 2)
    return [_scatter(node, x, _nd_key(node, x, indices, 0), updates)]


def _infer_scatter_elements(node: Node) -> list[TensorType]:
    x, indices, updates = type_of(node, 0), _index_type(node, 1), type_of(node, 2)
    _check_reduction(node)
    _check_elements(node, x, indices, int(node.attrs["axis"]))
    expect_same_dtype(node, [x, updates])
    expect_shape(node, "updates", updates, indices.max_shape)
    return [x]


def _scatter_elements(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, indices, updates = need(arrays, 0), need(arrays, 1), need(arrays, 2)
    return [_scatter(node, x, _elements_key(node, x, indices), updates)]


def _infer_one_hot(node: Node) -> list[TensorType]:
    indices, values = type_of(node, 0), type_of(node, 1)
    axis, depth = int(node.attrs["axis"]), int(node.attrs["depth"])
    expect_axis(node, axis, indices.rank + 1)
    expect_shape(node, "values", values, [2])
    return [values.with_shape((*indices.shape[:axis], depth, *indices.shape[axis:]))]


def _one_hot(node: Node, arrays: Arrays) -> list[AnyArray]:
    """values[1] where the new ``axis`` of extent ``depth`` meets the index, else values[0].

    An index outside [-depth, depth) selects nothing.
    """
    indices, values = need(arrays, 0), need(arrays, 1)
    axis, depth = int(node.attrs["axis"]), int(node.attrs["depth"])
    wrapped = np.where(indices < 0, indices + depth, indices)
    shape = [1] * (indices.ndim + 1)
    shape[axis] = depth
    hit = np.expand_dims(wrapped, axis) == np.arange(depth).reshape(shape)
    return [np.asarray(np.where(hit, values[1], values[0]))]


Inputs = Sequence[Tensor | None]
Position = Callable[..., Index]


def _constant(indices: Tensor, extents: AnyArray) -> tuple[Tensor, AnyArray] | None:
    """A table of constant ``indices``, negative ones wrapped, and its values; None for others.

    Args:
        indices: of any shape.
        extents: of the axes they index, broadcast against them.
    """
    array = None if indices.buffer is None else indices.buffer.const
    if array is None or indices.buffer is None:
        return None
    wrapped = np.where(array < 0, array + extents, array).astype(np.int32)
    if ((wrapped < 0) | (wrapped >= extents)).any():
        limits = " x ".join(map(str, np.atleast_1d(extents)))
        raise ModelError(f"constant {indices.buffer.name!r} indexes outside {limits} elements")
    return table(f"{indices.buffer.name}_table", wrapped), wrapped


def _span(values: AnyArray) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if values.size else (0, 0)


def _position(indices: Tensor, extent: int) -> Position:
    """An element of ``indices`` as an index along an axis of ``extent``; constants become an int32
    table.
    """
    known = _constant(indices, np.asarray(extent))
    if known is None:
        return lambda *i: as_position(indices(*i), extent)
    rows, values = known
    return lambda *i: elem(rows(*i), _span(values))


def _entries(indices: Tensor, extents: Sequence[int]) -> list[Position]:
    """Entries of the last axis of ``indices`` as indices along axes of ``extents``."""
    known = _constant(indices, np.asarray(extents, np.int64))

    def entry(d: int, extent: int) -> Position:
        if known is None:
            return lambda *i: as_position(indices(*i, as_index(d)), extent)
        rows, values = known
        return lambda *i: elem(rows(*i, as_index(d)), _span(values[..., d]))

    return [entry(d, extent) for d, extent in enumerate(extents)]


def _te_gather(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, indices, axis = present(inputs, 0), present(inputs, 1), int(node.attrs["axis"])
    position = _position(indices, x.shape[axis])

    def element(*i: Index) -> Expr:
        inner = i[axis : axis + indices.rank]
        return x(*i[:axis], position(*inner), *i[axis + indices.rank :])

    return (compute(node.output.shape, x.dtype, element),)


def _te_gather_elements(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, indices, axis = present(inputs, 0), present(inputs, 1), int(node.attrs["axis"])
    position = _position(indices, x.shape[axis])

    def element(*i: Index) -> Expr:
        return x(*i[:axis], position(*i), *i[axis + 1 :])

    return (compute(node.output.shape, x.dtype, element),)


def _te_gather_nd(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, indices, batch = present(inputs, 0), present(inputs, 1), int(node.attrs["batch_dims"])
    positions = _entries(indices, x.shape[batch : batch + indices.shape[-1]])

    def element(*i: Index) -> Expr:
        outer = i[: indices.rank - 1]
        found = [p(*outer) for p in positions]
        return x(*i[:batch], *found, *i[indices.rank - 1 :])

    return (compute(node.output.shape, x.dtype, element),)


def _te_one_hot(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    indices, values = present(inputs, 0), present(inputs, 1)
    axis, depth = int(node.attrs["axis"]), int(node.attrs["depth"])

    def element(*i: Index) -> Expr:
        found = indices(*i[:axis], *i[axis + 1 :])
        negative = call("less", found, as_data(0, found.dtype))
        wrapped = select(negative, found + depth, found)
        return select(call("equal", wrapped, as_data(i[axis], found.dtype)), values(1), values(0))

    return (compute(node.output.shape, values.dtype, element),)


register(OpDef("gather", OpPattern.INJECTIVE, _infer_gather, _gather, _te_gather))
register(
    OpDef(
        "gather_elements",
        OpPattern.INJECTIVE,
        _infer_gather_elements,
        _gather_elements,
        _te_gather_elements,
    )
)
register(OpDef("gather_nd", OpPattern.INJECTIVE, _infer_gather_nd, _gather_nd, _te_gather_nd))
_COMBINE: dict[str, Callable[[Expr, Expr], Expr] | None] = {
    "none": None,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": lambda old, new: call("max_nan", old, new),
    "min": lambda old, new: call("min_nan", old, new),
}


def _te_scatter_nd(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, indices, updates = (present(inputs, i) for i in range(3))
    positions = _entries(indices, x.shape[: indices.shape[-1]])

    def where(*i: Index) -> tuple[Index, ...]:
        outer = i[: indices.rank - 1]
        found = (p(*outer) for p in positions)
        return (*found, *i[indices.rank - 1 :])

    scatter = Scatter(updates, where, _COMBINE[node.attrs["reduction"]])
    return (Tensor(x.shape, x.dtype, x.fn, scatter=scatter),)


def _te_scatter_elements(node: Node, inputs: Inputs) -> tuple[Tensor, ...]:
    x, indices, updates = (present(inputs, i) for i in range(3))
    axis = int(node.attrs["axis"])
    position = _position(indices, x.shape[axis])

    def where(*i: Index) -> tuple[Index, ...]:
        return (*i[:axis], position(*i), *i[axis + 1 :])

    scatter = Scatter(updates, where, _COMBINE[node.attrs["reduction"]])
    return (Tensor(x.shape, x.dtype, x.fn, scatter=scatter),)


register(OpDef("scatter_nd", OpPattern.OPAQUE, _infer_scatter_nd, _scatter_nd, _te_scatter_nd))
register(
    OpDef(
        "scatter_elements",
        OpPattern.OPAQUE,
        _infer_scatter_elements,
        _scatter_elements,
        _te_scatter_elements,
    )
)
register(OpDef("one_hot", OpPattern.INJECTIVE, _infer_one_hot, _one_hot, _te_one_hot))
