"""Graph inputs of a .tflite file: open dimensions keep the file's own numbers unless the user binds
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotgen.errors import ShapeError
from aotgen.frontend.emitter import MAX_TENSOR_BYTES
from aotgen.frontend.tflite.reader import Model
from aotgen.frontend.tflite.tensors import Tensor
from aotgen.ir.types import TensorType


@dataclass(frozen=True)
class Inputs:
    """The inputs of the main subgraph.

    Attributes:
        shapes: by tensor number, in the file's order.
        changed: whether one differs from the file's, so that the shapes that the file declares for
            other tensors are stale.
    """

    shapes: dict[int, tuple[int, ...]]
    changed: bool


def bind_inputs(
    model: Model,
    names: Mapping[int, str],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
) -> Inputs:
    """Shapes of the inputs.

    Args:
        model: a sound model.
        names: of the inputs, by tensor number.
        shapes: what the user gives, by those names.
        dims: values of symbols, which TFLite has none of.

    Raises:
        ShapeError: a given shape does not fit, or names nothing.
    """
    if dims:
        raise ShapeError(
            f"dimension {next(iter(dims))!r} is given, but a .tflite file names no dimensions",
            remedy="give the whole shape with --shape NAME=1x...",
        )
    known = {names[number]: number for number in model.subgraphs[0].inputs}
    for name in shapes:
        if name not in known:
            have = ", ".join(repr(n) for n in known) or "none"
            raise ShapeError(f"a shape is given for {name!r}, but the model's inputs are: {have}")
    bound: dict[int, tuple[int, ...]] = {}
    for name, number in known.items():
        tensor = model.subgraphs[0].tensors[number]
        bound[number] = _bind(name, tensor, shapes[name]) if name in shapes else tensor.shape
        if tensor.dtype is None:
            continue
        kind = TensorType(tensor.dtype, bound[number])
        if kind.nbytes > MAX_TENSOR_BYTES:
            raise ShapeError(f"input {name!r} ({kind}) has more than {MAX_TENSOR_BYTES} bytes")
    changed = any(model.subgraphs[0].tensors[n].shape != shape for n, shape in bound.items())
    return Inputs(bound, changed)


def _bind(name: str, tensor: Tensor, given: tuple[int, ...]) -> tuple[int, ...]:
    fixed = tensor.signature or tensor.shape
    if len(given) != len(fixed):
        raise ShapeError(
            f"input {name!r} has rank {len(fixed)} ({_text(fixed)}), but the given shape "
            f"{_text(given)} has rank {len(given)}"
        )
    for axis, (dim, size) in enumerate(zip(fixed, given, strict=True)):
        if size < 0:
            raise ShapeError(
                f"input {name!r}: the given shape {_text(given)} has a negative dimension"
            )
        if dim not in (-1, size):
            raise ShapeError(
                f"input {name!r}: dimension {axis} is {dim} in the model, but {size} is given"
            )
    return tuple(int(d) for d in given)


def _text(shape: tuple[int, ...]) -> str:
    return "x".join("?" if d == -1 else str(d) for d in shape) or "scalar"
