"""What the op families share: errors naming the node, shape algebra, float64, sliding windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from aotgen.errors import ModelError
from aotgen.ir.graph import Node
from aotgen.ir.types import DType, Shape, TensorType, dim_max

AnyArray = npt.NDArray[Any]
Arrays = Sequence[AnyArray | None]


def fail(node: Node, message: str) -> NoReturn:
    """Raise ModelError about ``node``."""
    name = node.origin[0] if node.origin else node.name
    raise ModelError(f"{node.op} node {name!r}: {message}")


def type_of(node: Node, index: int = 0) -> TensorType:
    """Type of input ``index``; ModelError when it is absent."""
    value = node.optional(index)
    if value is None:
        fail(node, f"input {index} is missing")
    return value.type


def optional_type(node: Node, index: int) -> TensorType | None:
    value = node.optional(index)
    return None if value is None else value.type


def text(shape: Shape) -> str:
    """A shape as printed in messages."""
    return "x".join(str(d) for d in shape) or "scalar"


def expect_rank(node: Node, tensor: TensorType, low: int, high: int | None = None) -> None:
    """The rank must lie in [low, high]; ``high`` None means no limit."""
    if tensor.rank < low or (high is not None and tensor.rank > high):
        want = f"{low}" if low == high else f"at least {low}" if high is None else f"{low}..{high}"
        fail(node, f"has an input of rank {tensor.rank} ({text(tensor.shape)}), needs rank {want}")


def expect_axis(node: Node, axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        fail(node, f"axis {axis} is outside a tensor of rank {rank}")


def expect_axes(node: Node, axes: Sequence[int], rank: int) -> None:
    for axis in axes:
        expect_axis(node, axis, rank)
    if len(set(axes)) != len(axes):
        fail(node, f"axes {tuple(axes)} name an axis twice")


def expect_shape(node: Node, what: str, tensor: TensorType, shape: Sequence[int]) -> None:
    """``tensor`` must have exactly ``shape`` (symbols count at their maximum)."""
    if tensor.max_shape != tuple(shape):
        fail(node, f"{what} has shape {text(tensor.shape)}, needs {text(tuple(shape))}")


def expect_float(node: Node, tensor: TensorType) -> None:
    if not tensor.dtype.is_float:
        fail(node, f"needs a float input, not {tensor.dtype.value}")


def expect_same_dtype(node: Node, types: Sequence[TensorType]) -> DType:
    for tensor in types:
        if tensor.dtype is not types[0].dtype:
            fail(node, f"inputs differ in type: {', '.join(t.dtype.value for t in types)}")
    return types[0].dtype


def per_axis(node: Node, name: str, count: int) -> tuple[int, ...]:
    """Integer tuple attribute ``name`` with ``count`` entries."""
    value: tuple[int, ...] = tuple(node.attrs[name])
    if len(value) != count:
        fail(node, f"attribute {name} has {len(value)} entries, needs {count}")
    return value


def broadcast_shape(node: Node, shapes: Sequence[Shape]) -> Shape:
    """numpy's broadcast of ``shapes``; a symbol wins over a number equal to its maximum."""
    rank = max(len(s) for s in shapes)
    out: list[Any] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, start=rank - len(shape)):
            have = out[axis]
            if have == 1:
                out[axis] = dim
            elif dim == 1 or dim == have:
                continue
            elif dim_max(dim) != dim_max(have):
                fail(node, f"shapes {', '.join(text(s) for s in shapes)} do not broadcast")
            elif isinstance(have, int):
                out[axis] = dim
    return tuple(out)


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether numpy broadcasts ``shape`` to exactly ``target``."""
    aligned = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(
        d == 1 or dim_max(d) == dim_max(t) for d, t in zip(shape, aligned, strict=True)
    )


def wide(x: AnyArray) -> AnyArray:
    """float64 for floats; integers and bool as they are."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def in_float64(fn: Callable[..., AnyArray], *xs: AnyArray) -> AnyArray:
    """``fn`` of the operands as float64, rounded once to the first operand's type."""
    with np.errstate(all="ignore"):
        return np.asarray(fn(*(wide(x) for x in xs))).astype(xs[0].dtype)


def need(arrays: Arrays, index: int = 0) -> AnyArray:
    """Array ``index``, which must be present."""
    array = arrays[index]
    if array is None:
        raise IndexError(f"array {index} is absent")
    return array


def maybe(arrays: Arrays, index: int) -> AnyArray | None:
    return arrays[index] if index < len(arrays) else None


def pad_spatial(x: AnyArray, pads: Sequence[int], value: Any) -> AnyArray:
    """``x`` [N,*S,C] with ``pads`` (begins, then ends) of ``value`` around its spatial axes.

    Negative pads crop.
    """
    spatial = x.ndim - 2
    begins, ends = pads[:spatial], pads[spatial:]
    crop = tuple(
        slice(max(-b, 0), n - max(-e, 0))
        for b, e, n in zip(begins, ends, x.shape[1:-1], strict=True)
    )
    x = x[(slice(None),) + crop]
    width = [(0, 0), *((max(b, 0), max(e, 0)) for b, e in zip(begins, ends, strict=True)), (0, 0)]
    return np.pad(x, width, constant_values=value)


def window_extent(size: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    """Outputs along an axis of ``size`` elements and ``pad`` padding in all.

    Below 1 when the window does not fit.
    """
    return (size + pad - dilation * (kernel - 1) - 1) // stride + 1


def taps(
    x: AnyArray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    out: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], AnyArray]]:
    """For every kernel position k the view x[:, o*stride + k*dilation, :] of shape [N, *out, C].

    ``x`` is padded [N,*S,C]. Writing into the view scatters, as conv_transpose wants it.
    """
    for position in itertools.product(*(range(k) for k in kernel)):
        where = tuple(
            slice(k * d, k * d + s * (o - 1) + 1, s)
            for k, d, s, o in zip(position, dilations, strides, out, strict=True)
        )
        yield position, x[(slice(None),) + where]


def product(values: Sequence[int]) -> int:
    return math.prod(values)
