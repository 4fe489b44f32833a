"""TensorProto to numpy array: sizes are proven against the claim before any memory is asked for.

External data is read here, relative to the model's folder and never from outside it.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from aotgen.errors import ModelError
from aotgen.frontend.emitter import MAX_TENSOR_BYTES, one_line
from aotgen.ir.types import Array, DType

ONNX_DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: DType.F32,
    TensorProto.DOUBLE: DType.F64,
    TensorProto.FLOAT16: DType.F16,
    TensorProto.INT8: DType.I8,
    TensorProto.UINT8: DType.U8,
    TensorProto.INT16: DType.I16,
    TensorProto.UINT16: DType.U16,
    TensorProto.INT32: DType.I32,
    TensorProto.UINT32: DType.U32,
    TensorProto.INT64: DType.I64,
    TensorProto.UINT64: DType.U64,
    TensorProto.BOOL: DType.BOOL,
}

_TYPED_FIELDS = {
    DType.F32: "float_data",
    DType.F64: "double_data",
    DType.I64: "int64_data",
    DType.U32: "uint64_data",
    DType.U64: "uint64_data",
}


def type_name(elem_type: int) -> str:
    """ONNX's own name of an element type, in lower case."""
    try:
        return str(TensorProto.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"number {elem_type}"


def type_remedy(elem_type: int) -> str:
    """What to do about an element type that the IR has none for; empty for a number that is no type
    of ONNX.
    """
    name = type_name(elem_type)
    if name == "string":
        return "encode strings as numbers before the model"
    if name.startswith(("int", "uint")):
        return "quantize to 8 or 16 bits"
    if name.startswith(("bfloat", "float")):
        return "use float32 or float16"
    return ""


def element_type(elem_type: int) -> DType | None:
    """The DType of an ONNX element type; None when the IR has none (strings, bfloat16, ...)."""
    return ONNX_DTYPES.get(elem_type)


def to_array(tensor: TensorProto, folder: Path | None) -> Array:
    """The values of a tensor whose element type ``element_type`` knows.

    Args:
        tensor: an initializer or an attribute's tensor.
        folder: where the model file lies, for external data; None when the model came from memory.

    Raises:
        ModelError: wrong size, a claim above MAX_TENSOR_BYTES, or unreadable external data.
    """
    label = f"tensor {tensor.name!r}"
    dtype = ONNX_DTYPES[tensor.data_type]
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{label} has a negative dimension: {list(shape)}")
    nbytes = math.prod(shape) * dtype.size
    if nbytes > MAX_TENSOR_BYTES:
        raise ModelError(
            f"{label} claims {nbytes} bytes, more than the limit of {MAX_TENSOR_BYTES}"
        )
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = _read_external(tensor, folder, nbytes, label)
        return np.frombuffer(raw, dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(shape)
    _check_size(tensor, dtype, math.prod(shape), label)
    try:
        array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(f"{label} cannot be decoded: {one_line(error)}") from None
    return array.reshape(shape)


def _check_size(tensor: TensorProto, dtype: DType, numel: int, label: str) -> None:
    if tensor.HasField("raw_data"):
        have, want, unit = len(tensor.raw_data), numel * dtype.size, "bytes"
    else:
        have = len(getattr(tensor, _TYPED_FIELDS.get(dtype, "int32_data")))
        want, unit = numel, "elements"
    if have != want:
        shape = "x".join(map(str, tensor.dims)) or "scalar"
        raise ModelError(
            f"{label} ({dtype.value}[{shape}]) needs {want} {unit} but the file has {have}"
        )


def _read_external(tensor: TensorProto, folder: Path | None, nbytes: int, label: str) -> bytes:
    entries = {str(e.key): str(e.value) for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(
            f"{label} lies in external file {location!r}, but the model was given without a folder",
            remedy="load the model by its path",
        )
    path = _inside(folder, location, label)
    offset, length = _span(entries, nbytes, label)
    try:
        size = path.stat().st_size
        if offset + length > size:
            raise ModelError(
                f"{label} needs bytes {offset}..{offset + length} of external file {location!r}, "
                f"which has {size}"
            )
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ModelError(
            f"{label}: external file {location!r} cannot be read: {why}",
            remedy="keep the weight files beside the .onnx file",
        ) from None


def _inside(folder: Path, location: str, label: str) -> Path:
    """The external file's path, which must stay in the model's folder also after symbolic links."""
    if not location or "\0" in location:
        raise ModelError(f"{label} names no valid external file ({location!r})")
    root = folder.resolve()
    try:
        path = (root / location).resolve()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{label}: external file {location!r}: {one_line(error)}") from None
    if (
        Path(location).is_absolute()
        or ".." in Path(location).parts
        or not path.is_relative_to(root)
    ):
        raise ModelError(
            f"{label}: external file {location!r} lies outside the model's folder",
            remedy="keep the weight files beside the .onnx file",
        )
    if path.exists() and not path.is_file():
        raise ModelError(f"{label}: external file {location!r} is not a regular file")
    return path


def _span(entries: dict[str, str], nbytes: int, label: str) -> tuple[int, int]:
    try:
        offset = int(entries.get("offset", "0") or "0")
        length = int(entries.get("length", "") or nbytes)
    except ValueError:
        raise ModelError(f"{label}: external offset or length is not a number") from None
    if offset < 0 or length != nbytes:
        raise ModelError(
            f"{label} needs {nbytes} bytes, but its external data says offset {offset}, "
            f"length {length}"
        )
    return offset, length


def is_external(model: onnx.ModelProto) -> bool:
    """Whether an initializer of ``model`` lies in another file."""
    return any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer)
