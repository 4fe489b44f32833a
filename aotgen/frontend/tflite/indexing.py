"""Operators that read, write or choose where other elements say."""

from __future__ import annotations

import numpy as np

from aotgen.frontend.tflite.node import TfliteNode
from aotgen.frontend.tflite.registry import converter, refuses
from aotgen.ir.graph import Value
from aotgen.ir.types import DType


def _indices(node: TfliteNode, index: int) -> Value:
    """Input ``index`` as int32 or int64."""
    value = node.input(index)
    if not value.dtype.is_int:
        node.refuse(f"its indices are {value.dtype.value}, not integers")
    return value if value.dtype is DType.I64 else node.cast(value, DType.I32)


@converter("GATHER")
def gather(node: TfliteNode) -> Value:
    """With batch dimensions the gathered axis moves behind them, and back afterwards."""
    x, indices = node.input(0), _indices(node, 1)
    rank, batch = len(x.shape), node.options["batch_dims"]
    axis = node.axis(node.options["axis"], rank)
    batch = batch + len(indices.shape) if batch < 0 else batch
    if not 0 <= batch <= min(axis, len(indices.shape)) or x.shape[:batch] != indices.shape[:batch]:
        node.refuse(f"{batch} batch dimensions of {list(x.shape)} and {list(indices.shape)}")
    if batch == 0:
        return node.emit("gather", [x, indices], axis=axis)
    middle = range(batch, axis)
    moved = node.transpose(x, (*range(batch), axis, *middle, *range(axis + 1, rank)))
    single = node.reshape(indices, (*indices.shape, 1))
    found = node.emit("gather_nd", [moved, single], batch_dims=batch)
    # [batch, indices, middle, rest] -> [batch, middle, indices, rest]
    first = len(indices.shape)
    end = first + len(middle)
    order = (*range(batch), *range(first, end), *range(batch, first), *range(end, len(found.shape)))
    return node.transpose(found, order)


@converter("GATHER_ND")
def gather_nd(node: TfliteNode) -> Value:
    return node.emit("gather_nd", [node.input(0), _indices(node, 1)], batch_dims=0)


@converter("EMBEDDING_LOOKUP")
def embedding_lookup(node: TfliteNode) -> Value:
    """Rows of a table by their numbers; an integer table with a float result is scaled."""
    table = node.input(1)
    rows = node.emit("gather", [table, _indices(node, 0)], axis=0)
    if rows.dtype is node.output_dtype():
        return rows
    quant = table.type.quant
    if quant is None or node.output_dtype() is not DType.F32 or any(quant.zero_point):
        node.refuse(f"a table of {table.type} for {node.output_dtype().value} is not supported")
    real = node.cast(rows, DType.F32)
    if quant.axis is None:
        return node.emit("mul", [real, node.scalar(quant.scale[0], real)])
    if quant.axis != 0:
        node.refuse(f"scales along axis {quant.axis} are not supported", "use one for each row")
    scales = node.constant(np.array(quant.scale, np.float32), "scales")
    row_scales = node.emit("gather", [scales, _indices(node, 0)], axis=0)
    shape = (*row_scales.shape, *(1,) * (len(real.shape) - len(row_scales.shape)))
    return node.emit("mul", [real, node.reshape(row_scales, shape)])


@converter("SCATTER_ND")
def scatter_nd(node: TfliteNode) -> Value:
    """Updates added up in a tensor of zeros."""
    updates = node.input(1)
    shape = node.ints(2, "the shape")
    if min(shape, default=1) < 0:
        node.refuse(f"its shape {list(shape)} has a negative dimension")
    if not updates.dtype.is_int and not updates.dtype.is_float:
        node.refuse(f"element type {updates.dtype.value} is not supported here")
    zeros = node.emit("expand", [node.scalar(0, updates)], shape=shape)
    return node.emit("scatter_nd", [zeros, _indices(node, 0), updates], reduction="add")


@converter("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(node: TfliteNode) -> Value:
    """A block written over part of the input; its start is moved so that it lies inside."""
    x, update, start = node.input(0), node.input(1), _indices(node, 2)
    rank = len(x.shape)
    if len(update.shape) != rank or start.shape != (rank,):
        node.refuse(f"{list(update.shape)} does not fit {list(x.shape)}")
    room = [n - m for n, m in zip(x.shape, update.shape, strict=True)]
    if min(room, default=0) < 0:
        node.refuse(f"{list(update.shape)} is larger than {list(x.shape)}")
    if rank == 0:
        return update
    most = node.constant(np.array(room, start.dtype.numpy), "room")
    first = node.emit("maximum", [node.emit("minimum", [start, most]), node.scalar(0, start)])
    grid = np.moveaxis(np.indices(update.shape), 0, -1).astype(start.dtype.numpy)
    places = node.emit("add", [node.constant(grid, "grid"), first])
    return node.emit("scatter_nd", [x, places, update], reduction="none")


# choices


@converter("ONE_HOT")
def one_hot(node: TfliteNode) -> Value:
    """On where an index equals the position along the new axis; one outside is off everywhere."""
    indices = _indices(node, 0)
    (depth,) = node.ints(1, "the depth")
    rank = len(indices.shape)
    axis = rank if node.options["axis"] == -1 else node.axis(node.options["axis"], rank + 1)
    if depth < 0:
        node.refuse(f"its depth is {depth}")
    shape = [1] * (rank + 1)
    shape[axis] = depth
    places = node.constant(np.arange(depth).astype(indices.dtype.numpy).reshape(shape), "places")
    column = node.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    hit = node.emit("equal", [column, places])
    return node.emit("where", [hit, node.input(2), node.input(3)])


@converter("SELECT")
def select(node: TfliteNode) -> Value:
    """A condition of rank 1 chooses rows."""
    condition, a = node.input(0), node.input(1)
    rank = len(a.shape)
    if len(condition.shape) == 1 and rank > 1:
        condition = node.reshape(condition, (*condition.shape, *(1,) * (rank - 1)))
    return node.emit("where", [condition, a, node.input(2)])


@converter("SELECT_V2")
def select_v2(node: TfliteNode) -> Value:
    return node.emit("where", [node.input(0), node.input(1), node.input(2)])


@converter("WHERE")
def where(node: TfliteNode) -> Value:
    """Coordinates of the true elements, of a condition that is known while compiling."""
    condition = node.maybe_const(0)
    if condition is None:
        node.refuse(
            "how many elements its result has depends on the data", "end the model before it"
        )
    places = np.argwhere(condition).astype(np.int64)
    node.expect_small(places.shape, DType.I64)
    return node.constant(places.astype(node.output_dtype().numpy), "places")


@converter("TOPK_V2")
def top_k(node: TfliteNode) -> list[Value]:
    """The largest elements of the last axis in descending order, and where they stood."""
    x = node.input(0)
    (k,) = node.ints(1, "k")
    if not x.shape or not 0 <= k <= x.shape[-1]:
        node.refuse(f"k is {k}, but the shape is {list(x.shape)}")
    values, places = node.emit_all("top_k", [x], axis=len(x.shape) - 1, k=k, largest=True)
    return [values, node.cast(places, node.output_dtype(1))]


@converter("MATRIX_DIAG")
def matrix_diag(node: TfliteNode) -> Value:
    """[..., n] -> [..., n, n] with the input on the diagonal and zeros elsewhere."""
    x = node.input(0)
    if not x.shape:
        node.refuse("a scalar has no diagonal")
    row = node.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    eye = node.constant(np.eye(x.shape[-1], dtype=np.bool_), "diagonal")
    return node.emit("where", [eye, row, node.scalar(0, x)])


@converter("MATRIX_SET_DIAG")
def matrix_set_diag(node: TfliteNode) -> Value:
    """The input with its main diagonal replaced."""
    x, diagonal = node.input(0), node.input(1)
    if len(x.shape) < 2 or diagonal.shape != (*x.shape[:-2], min(x.shape[-2:])):
        node.refuse(f"a diagonal {list(diagonal.shape)} does not fit {list(x.shape)}")
    rows, columns = x.shape[-2:]
    wide = diagonal
    if columns > rows:
        missing = node.constant(np.zeros((*x.shape[:-2], columns - rows), x.dtype.numpy), "missing")
        wide = node.concat([diagonal, missing], len(diagonal.shape) - 1)
    row = node.reshape(wide, (*x.shape[:-2], 1, columns))
    eye = node.constant(np.eye(rows, columns, dtype=np.bool_), "diagonal")
    return node.emit("where", [eye, row, x])


refuses(
    "UNIQUE",
    reason="how many elements its result has depends on the data",
    remedy="end the model before it",
)
