"""Graph inputs: every dimension is bound to a number here, or the user is told which option binds
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

import onnx

from aotgen.errors import ModelError, Problem, ShapeError
from aotgen.frontend.emitter import MAX_TENSOR_BYTES
from aotgen.frontend.onnx.tensors import element_type, type_name, type_remedy
from aotgen.ir.types import TensorType

FileDim = int | str | None
"""A number, a symbol's name, or None: unnamed and unbound."""


@dataclass(frozen=True)
class Inputs:
    """The graph's true inputs (no initializers), in the file's order; ``problems`` have no type."""

    types: dict[str, TensorType]
    problems: tuple[Problem, ...]


def bind_inputs(
    graph: onnx.GraphProto,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
    label: str,
) -> Inputs:
    """Types of the graph's inputs, with symbols bound by ``shapes`` (whole inputs) and ``dims``
    (symbols).

    Raises:
        ShapeError: a dimension stays unbound, or a binding does not fit.
    """
    constants = {t.name for t in graph.initializer}
    inputs = [v for v in graph.input if v.name not in constants]
    declared = {v.name: _file_shape(v) for v in inputs}
    _check_names(declared, shapes, dims)
    symbols = _symbols(declared, shapes, dims)
    types: dict[str, TensorType] = {}
    problems: list[Problem] = []
    unbound: list[str] = []
    for value in inputs:
        kind = value.type.WhichOneof("value")
        if kind is None:
            raise ModelError(f"{label}: graph input {value.name!r} has no type")
        dtype = element_type(value.type.tensor_type.elem_type) if kind == "tensor_type" else None
        if dtype is None:
            what, remedy = kind, "give it the parts as tensors"
            if kind == "tensor_type":
                number = value.type.tensor_type.elem_type
                what, remedy = type_name(number), type_remedy(number)
            reason = f"its type ({what}) is not supported"
            problems.append(Problem(value.name, "graph input", reason, remedy))
            continue
        shape, missing = _bind(value.name, declared[value.name], shapes.get(value.name), symbols)
        unbound += missing
        types[value.name] = TensorType(dtype, shape)
        if not missing and types[value.name].nbytes > MAX_TENSOR_BYTES:
            raise ShapeError(
                f"input {value.name!r} ({types[value.name]}) has more than {MAX_TENSOR_BYTES} bytes"
            )
    if unbound:
        raise ShapeError("; ".join(unbound))
    return Inputs(types, tuple(problems))


def _file_shape(value: onnx.ValueInfoProto) -> tuple[FileDim, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    found: list[FileDim] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            found.append(int(dim.dim_value))
        else:
            found.append(str(dim.dim_param) or None)
    return tuple(found)


def _check_names(
    declared: Mapping[str, tuple[FileDim, ...] | None],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
) -> None:
    known = sorted({d for s in declared.values() for d in s or () if isinstance(d, str)})
    for name in shapes:
        if name not in declared:
            have = ", ".join(repr(n) for n in declared) or "none"
            raise ShapeError(f"a shape is given for {name!r}, but the model's inputs are: {have}")
    for name, size in dims.items():
        if name not in known:
            have = ", ".join(repr(n) for n in known) or "none"
            raise ShapeError(f"dimension {name!r} is given, but the model's symbols are: {have}")
        if size < 0:
            raise ShapeError(f"dimension {name!r} is given as {size}; it must not be negative")


def _symbols(
    declared: Mapping[str, tuple[FileDim, ...] | None],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int],
) -> dict[str, int]:
    """Values of the symbols; a given shape also binds the symbols in it, for other inputs."""
    symbols = dict(dims)
    for name, given in shapes.items():
        shape = declared[name]
        if shape is None:
            continue
        if len(shape) != len(given):
            raise ShapeError(
                f"input {name!r} has rank {len(shape)} ({_text(shape)}), but the given shape "
                f"{_text(given)} has rank {len(given)}"
            )
        for axis, (dim, size) in enumerate(zip(shape, given, strict=True)):
            if size < 0:
                raise ShapeError(
                    f"input {name!r}: the given shape {_text(given)} has a negative dimension"
                )
            if isinstance(dim, int) and dim != size:
                raise ShapeError(
                    f"input {name!r}: dimension {axis} is {dim} in the model, but {size} is given"
                )
            if isinstance(dim, str) and symbols.setdefault(dim, size) != size:
                raise ShapeError(
                    f"input {name!r}: dimension {axis} ({dim!r}) is given as {size}, "
                    f"but is {symbols[dim]} elsewhere"
                )
    return symbols


def _bind(
    name: str,
    shape: tuple[FileDim, ...] | None,
    given: tuple[int, ...] | None,
    symbols: Mapping[str, int],
) -> tuple[tuple[int, ...], list[str]]:
    """The bound shape (0 for what is missing) and one message when something is missing."""
    if shape is None and given is None:
        return (), [f"input {name!r} has no shape in the model; add --shape {name}=1x..."]
    if given is not None:
        return tuple(int(d) for d in given), []
    bound = [symbols.get(d) if isinstance(d, str) else d for d in shape or ()]
    missing = [axis for axis, dim in enumerate(bound) if dim is None]
    if not missing:
        return tuple(d for d in bound if d is not None), []
    which = ", ".join(
        f"{axis}" + (f" ({d!r})" if (d := (shape or ())[axis]) else "") for axis in missing
    )
    hint = "x".join("?" if d is None else str(d) for d in bound)
    names = dict.fromkeys((shape or ())[axis] for axis in missing)
    by_name = "" if None in names else "".join(f"--dim {quote(str(d))}=? " for d in names) + "or "
    plural, numbers = ("s", "numbers") if len(missing) > 1 else ("", "a number")
    message = (
        f"input {name!r} ({_text(shape or ())}): dimension{plural} {which} must be known; "
        f"add {by_name}--shape {name}={hint} with {numbers} in place of ?"
    )
    return tuple(d or 0 for d in bound), [message]


def _text(shape: tuple[FileDim, ...]) -> str:
    return "x".join("?" if d is None else str(d) for d in shape) or "scalar"
