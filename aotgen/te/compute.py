"""What op authors write with: tensors as functions from indices to values.

An op's compute definition is ``OpDef.compute``::

    compute(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]

``inputs`` are parallel to ``node.inputs`` and their shapes are those of the values; the result has
one Tensor for each output. The inputs of a node inside a Group are the Tensors of its producers, so
that definitions compose and a whole Group becomes one nest. A definition says what is computed,
never in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from aotgen.ir.types import Array, DType
from aotgen.te.expr import (
    Buffer,
    Combiner,
    Const,
    Expr,
    FromIndex,
    Load,
    Reduce,
    Row,
    RowLoad,
    both,
    call,
    const,
    in_range,
)
from aotgen.te.index import (
    Axis,
    Index,
    IndexLike,
    as_index,
    ceildiv,
    floordiv,
    maximum,
    minimum,
    of_atom,
)
from aotgen.te.simplify import choose, elem, heavy

if TYPE_CHECKING:
    from aotgen.ir.graph import Node, Value

Indices = tuple[Index, ...]


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor that is not stored: calling it with one index per axis gives its value there.

    ``buffer`` is set when the tensor is memory. ``scan`` marks a running combination along one axis
    (cumsum).
    """

    shape: tuple[int, ...]
    dtype: DType
    fn: Callable[..., Expr]
    buffer: Buffer | None = None
    names: tuple[str, ...] = ()
    scan: Scan | None = None
    scatter: Scatter | None = None
    _known: dict[Indices, Expr] = field(default_factory=dict, repr=False)

    def __call__(self, *indices: IndexLike) -> Expr:
        """The value at ``indices``; equal indices give the same node, so that work is shared."""
        key = tuple(as_index(i) for i in indices)
        if len(key) != len(self.shape):
            raise ValueError(f"{len(key)} indices for a tensor of rank {len(self.shape)}")
        found = self._known.get(key)
        if found is None:
            found = self.fn(*key)
            self._known[key] = found
        return found

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Scan:
    """A running sum along ``axis``, or a product: output[j] = sum of input[0..j], of input[0..j-1]
    if exclusive; from the end if reverse. ``source`` is the tensor that is summed.
    """

    axis: int
    exclusive: bool
    reverse: bool
    source: Tensor
    product: bool = False


@dataclass(frozen=True)
class Scatter:
    """Updates over a copy: y[where(*i)] = combine(y[where(*i)], updates[i]) for every i in order.

    Attributes:
        updates: what is written.
        where: indices of ``updates`` -> indices of the output.
        combine: old and new element -> element; None to overwrite.
    """

    updates: Tensor
    where: Callable[..., Indices]
    combine: Callable[[Expr, Expr], Expr] | None


ComputeRule = Callable[["Node", Sequence["Tensor | None"]], tuple[Tensor, ...]]


def compute(
    shape: Sequence[int], dtype: DType, fn: Callable[..., Expr], names: Sequence[str] = ()
) -> Tensor:
    """The tensor with ``fn(*indices)`` at every index; ``names`` are loop names for the generated
    code.
    """
    return Tensor(tuple(shape), dtype, fn, names=tuple(names))


def placeholder(value: Value) -> Tensor:
    """A value from outside the nest; a constant of one element is that literal."""
    return memory(value.name, value.shape, value.dtype, value, value.const)


def memory(
    name: str,
    shape: tuple[int, ...],
    dtype: DType,
    value: Value | None = None,
    array: Array | None = None,
) -> Tensor:
    """Memory named ``name``."""
    if array is not None and array.size == 1:
        literal = const(array.reshape(-1)[0].item(), dtype)
        return Tensor(shape, dtype, lambda *_: literal)
    buffer = Buffer(name, shape, dtype, value, array)
    ones = tuple(n == 1 for n in shape)

    def read(*indices: Index) -> Expr:
        kept = (Index((), 0) if one else i for i, one in zip(indices, ones, strict=True))
        return Load(buffer, tuple(kept))

    return Tensor(shape, dtype, read, buffer)


def table(name: str, array: Array) -> Tensor:
    """A constant that the compute definition itself makes: an index or weight table."""
    return memory(name, tuple(array.shape), DType.of(array.dtype), None, array)


def axis(name: str, extent: int, lo: int = 0) -> Axis:
    return Axis(name, extent, lo)


Extent = int | tuple[IndexLike, IndexLike, int]
"""A constant extent, or (lo, hi, most): bounds [lo, hi) within [0, most) that depend on outer
indices.
"""


def reduce(combiner: Combiner, axes: Sequence[tuple[str, Extent]], fn: Callable[..., Expr]) -> Expr:
    """The combination of ``fn(*indices)`` over axes given as (name, extent); an empty range gives
    the identity.
    """
    made: list[Axis] = []
    bounds: list[tuple[Index, Index]] = []
    indices: list[Index] = []
    for name, extent in axes:
        if isinstance(extent, int):
            lo, hi, most = as_index(0), as_index(extent), extent
        else:
            lo, hi, most = as_index(extent[0]), as_index(extent[1]), extent[2]
        if most == 1 and lo == as_index(0) and hi == as_index(1):
            indices.append(as_index(0))
            continue
        made.append(Axis(name, most))
        bounds.append((lo, hi))
        indices.append(of_atom(made[-1]))
    body = fn(*indices)
    if any(hi == lo for lo, hi in bounds):
        return identity(combiner, body.dtype)
    return Reduce(combiner, tuple(made), tuple(bounds), body) if made else body


def identity(combiner: Combiner, dtype: DType) -> Const:
    """The value that leaves every other unchanged."""
    if combiner in ("sum", "or"):
        return const(0, dtype)
    if combiner in ("prod", "and"):
        return const(1, dtype)
    low = combiner in ("max", "max_nan")
    if dtype.is_float:
        return const(-np.inf if low else np.inf, dtype)
    if dtype is DType.BOOL:
        return const(not low, dtype)
    lowest, highest = int_range(dtype)
    return const(lowest if low else highest, dtype)


def int_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    bits = 8 * dtype.size
    if dtype.c.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def row(axes: Sequence[tuple[str, int]], fn: Callable[..., Expr]) -> Tensor:
    """Values that are computed once and kept: for work that several later stages share."""
    every = [Axis(name, extent) for name, extent in axes]
    body = fn(*(of_atom(a) for a in every))
    shape = tuple(extent for _, extent in axes)
    long = [k for k, extent in enumerate(shape) if extent > 1]
    if not long:
        return Tensor(shape, body.dtype, lambda *i: body)
    kept = Row(tuple(every[k] for k in long), body)
    return Tensor(shape, body.dtype, lambda *i: RowLoad(kept, tuple(i[k] for k in long)))


def keep_row(x: Tensor, outer: Sequence[Index | None]) -> Tensor:
    """``x`` along the axes whose outer index is None, computed once and kept in memory.

    For inputs that are computed in the same nest and read more than once. The result is called
    with full indices, whose outer ones must be those of ``outer``.
    """
    axes = [a for a, index in enumerate(outer) if index is None]

    def value(*inner: Index) -> Expr:
        rest = iter(inner)
        return x(*(next(rest) if index is None else index for index in outer))

    kept = row([(f"j{n}" if n else "j", x.shape[a]) for n, a in enumerate(axes)], value)
    return compute(x.shape, x.dtype, lambda *i: kept(*(i[a] for a in axes)))


def is_costly(x: Tensor, outer: Sequence[Index | None]) -> bool:
    """Whether an element of ``x`` takes a math function, a division or a root to compute."""
    if x.buffer is not None:
        return False
    found = [of_atom(Axis("j", n)) if i is None else i for n, i in zip(x.shape, outer, strict=True)]
    return heavy(x(*found))


def as_data(index: IndexLike, dtype: DType) -> Expr:
    """An index as a value."""
    index = as_index(index)
    return const(index.const, dtype) if index.is_const else FromIndex(index, dtype)


def as_position(expr: Expr, extent: int) -> Index:
    """An integer as an index along an axis of ``extent``; negative ones count from the end.

    What is known only at run time may be anything: beyond either end it means the element at that
    end, so that no index leaves the memory it is meant for.
    """
    if isinstance(expr, Const):
        position = int(expr.value)
        return as_index(position + extent if position < 0 else position)
    least, most = int_range(expr.dtype)
    low, high = max(-extent, least), min(extent - 1, most)
    bounded = call("max", call("min", expr, const(high, expr.dtype)), const(low, expr.dtype))
    raw = elem(bounded, (low, high))
    if low == 0:
        return raw
    return choose(call("less", bounded, const(0, expr.dtype)), raw + extent, raw)


def inside(index: Index, extent: int) -> Expr:
    """0 <= index < extent."""
    return both(in_range(index), in_range(extent - 1 - index))


def broadcast(tensor: Tensor, indices: Sequence[Index], shape: Sequence[int]) -> Expr:
    """The element of ``tensor`` that numpy's broadcasting to ``shape`` puts at ``indices``."""
    start = len(shape) - tensor.rank
    picked = [
        as_index(0) if n == 1 else i for n, i in zip(tensor.shape, indices[start:], strict=True)
    ]
    return tensor(*picked)


def elementwise(fn: Callable[[Expr, Mapping[str, Any]], Expr]) -> ComputeRule:
    """The rule of an op whose output element is ``fn(input element, attributes)``."""

    def rule(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        x = present(inputs, 0)
        return (compute(x.shape, node.output.dtype, lambda *i: fn(x(*i), node.attrs), x.names),)

    return rule


def broadcasting(fn: Callable[..., Expr]) -> ComputeRule:
    """The rule of an op whose output element is ``fn(attributes, *input elements)`` after
    broadcasting.
    """

    def rule(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        shape = node.output.shape
        tensors = [t for t in inputs if t is not None]

        def element(*i: Index) -> Expr:
            return fn(node.attrs, *(broadcast(t, i, shape) for t in tensors))

        return (compute(shape, node.output.dtype, element),)

    return rule


def present(inputs: Sequence[Tensor | None], index: int) -> Tensor:
    """Input ``index``, which the op's type rule has made sure of."""
    tensor = inputs[index]
    if tensor is None:
        raise IndexError(f"input {index} is absent")
    return tensor


def optional(inputs: Sequence[Tensor | None], index: int) -> Tensor | None:
    return inputs[index] if index < len(inputs) else None


def window(
    position: Index, stride: int, pad: int, dilation: int, kernel: int, extent: int
) -> tuple[Index, Index, int]:
    """Bounds of k in which position * stride - pad + k * dilation lies within [0, extent)."""
    start = position * stride - pad
    lo = maximum(0, ceildiv(-start, dilation))
    hi = minimum(kernel, floordiv(as_index(extent - 1) - start, dilation) + 1)
    return lo, hi, kernel


def product_of(counts: Sequence[Index], dtype: DType) -> Expr:
    """The product of indices as a value; a literal when they are constant."""
    constant = math.prod(c.const for c in counts if c.is_const)
    varying = [as_data(c, dtype) for c in counts if not c.is_const]
    if not varying:
        return const(constant, dtype)
    out = varying[0]
    for factor in varying[1:]:
        out = out * factor
    return out if constant == 1 else out * constant
