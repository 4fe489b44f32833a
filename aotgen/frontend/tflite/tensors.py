"""Tensors of a .tflite file: type, shape, bytes and quantization, proven to fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from aotgen.frontend.emitter import MAX_TENSOR_BYTES
from aotgen.frontend.tflite.schema import ENUMS, UNIONS
from aotgen.ir.types import Array, DType, Quant

DTYPES = {
    "FLOAT32": DType.F32,
    "FLOAT16": DType.F16,
    "FLOAT64": DType.F64,
    "INT8": DType.I8,
    "UINT8": DType.U8,
    "INT16": DType.I16,
    "UINT16": DType.U16,
    "INT32": DType.I32,
    "UINT32": DType.U32,
    "INT64": DType.I64,
    "UINT64": DType.U64,
    "BOOL": DType.BOOL,
}
"""The IR's element types by their names in the schema; the others (INT4, STRING, ...) have none."""

Fail = Callable[[str], NoReturn]
"""Raises ModelError about the file."""

_REMEDIES = {
    "STRING": "encode strings as numbers before the model",
    "BFLOAT16": "use float32 or float16",
    "COMPLEX64": "give real and imaginary part as tensors of their own",
    "COMPLEX128": "give real and imaginary part as tensors of their own",
    "INT4": "quantize to 8 bits",
    "UINT4": "quantize to 8 bits",
    "INT2": "quantize to 8 bits",
    "FLOAT8_E4M3FN": "use float32 or float16",
    "FLOAT8_E5M2": "use float32 or float16",
}

_UNSIGNED = (DType.U8, DType.U16, DType.U32, DType.U64)

_NO_VALUE = ("RESOURCE", "VARIANT")
"""Types of tensors that refer to something and hold no elements."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a subgraph.

    Attributes:
        index: its number in the subgraph.
        name: as in the file; may be empty, and need not be unique.
        type: the schema's name of the element type.
        dtype: the IR's, None when it has none.
        shape: as declared.
        signature: the shape with -1 for dimensions that the user may choose; None when all are
            fixed.
        data: bytes of a constant, else None.
        quant: None also where the file declares scales of a float.
        is_variable: it keeps its elements from run to run.
        trouble: (reason, remedy) when it is well formed and cannot be used, else None.
    """

    index: int
    name: str
    type: str
    dtype: DType | None
    shape: tuple[int, ...]
    signature: tuple[int, ...] | None
    data: memoryview | None
    quant: Quant | None
    is_variable: bool
    trouble: tuple[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """It has no elements, so that nothing need define them."""
        return self.dtype is not None and 0 in self.shape

    @property
    def array(self) -> Array:
        """A constant's elements, a copy.

        Raises:
            ValueError: it is no constant.
        """
        if self.data is None or self.dtype is None:
            raise ValueError(f"tensor {self.name!r} is no constant")
        if self.dtype is DType.BOOL:  # any byte but 0 is true
            flags: Array = np.frombuffer(self.data, np.uint8).reshape(self.shape) != 0
            return flags
        little = np.frombuffer(self.data, self.dtype.numpy.newbyteorder("<"))
        return np.array(little, self.dtype.numpy).reshape(self.shape)


def ints(table: Any, field: str) -> tuple[int, ...]:
    """A vector of integers of a ``tflite`` table by its accessor's name; () when it is absent."""
    if getattr(table, f"{field}IsNone")():
        return ()
    return tuple(getattr(table, f"{field}AsNumpy")().tolist())


def text(value: bytes | None) -> str:
    """A string of the file; ``verify`` has seen that it is UTF-8."""
    return "" if value is None else value.decode()


def read_tensor(table: Any, index: int, buffers: Sequence[memoryview], fail: Fail) -> Tensor:
    """The tensor that a ``tflite.Tensor`` describes.

    Args:
        table: the accessor.
        index: its number in the subgraph.
        buffers: of the file.
        fail: raises the error.

    Raises:
        ModelError: from ``fail``: its parts contradict one another.
    """
    name, number = text(table.Name()), table.Type()
    label = f"tensor {index} ({name!r})"
    names = ENUMS["TensorType"]
    kind = names[number] if 0 <= number < len(names) else f"number {number}"
    dtype, shape = DTYPES.get(kind), ints(table, "Shape")
    if any(d < 0 for d in shape):
        fail(f"{label} has a negative dimension: {list(shape)}")
    if table.Buffer() >= max(len(buffers), 1):
        fail(f"{label} has buffer {table.Buffer()}, which does not exist")
    buffer = buffers[table.Buffer()] if buffers else memoryview(b"")
    quant, trouble = _quantization(table.Quantization(), label, dtype, shape, fail)
    if table.Sparsity() is not None:
        trouble = ("sparse weights are not supported yet", "export the model without sparsity")
    elif dtype is None and kind not in _NO_VALUE:
        trouble = (
            f"element type {kind.lower()} is not supported yet",
            _REMEDIES.get(kind, "use float32, int8 or int16"),
        )
    data = buffer if len(buffer) else None
    if table.IsVariable() and data is not None:
        fail(f"{label} is a variable and a constant")
    if dtype is not None and trouble is None:
        nbytes = math.prod(shape) * dtype.size
        if data is not None and len(data) != nbytes:
            fail(
                f"{label} ({dtype.value}[{'x'.join(map(str, shape))}]) needs {nbytes} bytes, but "
                f"its buffer has {len(data)}"
            )
        if nbytes > MAX_TENSOR_BYTES:
            fail(f"{label} has {nbytes} bytes, more than the limit of {MAX_TENSOR_BYTES}")
    signature = ints(table, "ShapeSignature")
    fits = len(signature) == len(shape) and bool(shape)
    return Tensor(
        index=index,
        name=name,
        type=kind,
        dtype=dtype,
        shape=shape,
        signature=signature if fits else None,
        data=data,
        quant=quant,
        is_variable=bool(table.IsVariable()),
        trouble=trouble,
    )


def _quantization(
    table: Any, label: str, dtype: DType | None, shape: tuple[int, ...], fail: Fail
) -> tuple[Quant | None, tuple[str, str] | None]:
    """Scale, zero point and axis; and what keeps the tensor from being used, or None."""
    if table is None:
        return None, None
    details = table.DetailsType()
    if details:
        members = UNIONS["QuantizationDetails"]
        what = members[details] if details < len(members) else f"quantization details {details}"
        return None, (
            f"{what} of {label} is not supported",
            "quantize with one scale a tensor or a channel",
        )
    # Floats keep scales that quantization-aware training has left behind.
    if not table.ScaleLength() or dtype is None or not dtype.is_int:
        return None, None
    scales, zeros = table.ScaleAsNumpy(), ints(table, "ZeroPoint")
    count = len(scales)
    if not np.all(np.isfinite(scales) & (scales >= 0)):
        fail(f"{label} has a scale that is negative or not finite")
    if not zeros:
        zeros = (0,) * count
    if len(zeros) != count:
        fail(f"{label} has {count} scales and {len(zeros)} zero points")
    bits = 8 * min(dtype.size, 4)
    low, high = (
        (0, (1 << bits) - 1) if dtype in _UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)
    )
    wrong = next((z for z in zeros if not low <= z <= high), None)
    if wrong is not None:
        fail(f"{label} has zero point {wrong}, which {dtype.value} cannot hold")
    if not np.any(scales):
        return None, None
    if dtype is DType.U16:
        return None, (
            f"{label} is quantized to uint16, for which no runtime has arithmetic",
            "quantize to int8 or int16",
        )
    axis = None
    if count > 1:
        axis = table.QuantizedDimension()
        # Converters have left the filter's axis on the bias.
        if len(shape) == 1:
            axis = 0
        if not 0 <= axis < len(shape) or shape[axis] != count:
            fail(f"{label} has {count} scales, which do not fit axis {axis} of {list(shape)}")
    return Quant(tuple(scales.astype(np.float64).tolist()), zeros, axis), None
