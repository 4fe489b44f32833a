"""Types of the IR: element type, dimension, quantization, tensor type.

Scale, zero point and axis are part of a value's type, so that every pass and template sees them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class DType(enum.Enum):
    """Element type. The value is the name used in printed IR and in symbol names."""

    F32 = "f32"
    F64 = "f64"
    F16 = "f16"
    I8 = "i8"
    U8 = "u8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy dtype with the same values."""
        return np.dtype(_NUMPY[self])

    @property
    def c(self) -> str:
        """The C99 type that holds one element in generated code (bool is one byte, 0 or 1)."""
        return _C[self]

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F64, DType.F16)

    @property
    def is_int(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """The DType of a numpy dtype.

        Raises:
            KeyError: there is none (strings, complex numbers, ...).
        """
        return _FROM_NUMPY[np.dtype(dtype).name]


_NUMPY = {
    DType.F32: "float32",
    DType.F64: "float64",
    DType.F16: "float16",
    DType.I8: "int8",
    DType.U8: "uint8",
    DType.I16: "int16",
    DType.U16: "uint16",
    DType.I32: "int32",
    DType.U32: "uint32",
    DType.I64: "int64",
    DType.U64: "uint64",
    DType.BOOL: "bool",
}
_FROM_NUMPY = {name: dtype for dtype, name in _NUMPY.items()}
_C = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "uint16_t",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.I16: "int16_t",
    DType.U16: "uint16_t",
    DType.I32: "int32_t",
    DType.U32: "uint32_t",
    DType.I64: "int64_t",
    DType.U64: "uint64_t",
    DType.BOOL: "uint8_t",
}


@dataclass(frozen=True)
class Sym:
    """A dimension known only when the model runs, at most ``max``."""

    name: str
    max: int

    def __str__(self) -> str:
        return f"{self.name}<={self.max}"


Dim = int | Sym
Shape = tuple[Dim, ...]


def dim_max(dim: Dim) -> int:
    """The largest value of a dimension: what buffers are sized for."""
    return dim if isinstance(dim, int) else dim.max


@dataclass(frozen=True)
class Quant:
    """Affine quantization: ``real = scale * (q - zero_point)``.

    Attributes:
        scale: one, or one per index along ``axis``.
        zero_point: as many as scales.
        axis: the quantized axis, None when per tensor.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise ValueError("Quant needs as many zero points as scales, and at least one")
        if self.axis is None and len(self.scale) != 1:
            raise ValueError("a per-tensor Quant has exactly one scale")


@dataclass(frozen=True)
class Requant:
    """How an integer op brings its int32 accumulator to the output's type.

    Attributes:
        kind: which arithmetic, byte for byte: the fixed points of TFLite Micro or of TFLite with
            single rounding, LiteRT's float64 scale ("real"), or onnxruntime's float32 scale.
        multiplier: Q31 multipliers (tflm, litert), one or one per output channel; else empty.
        shift: left shifts that go with them; else empty.
        scale: float32 (onnx) or float64 (real), one or one per output channel; else empty.
        zero_point: of the output.
        lo: lowest output value, after the fused activation.
        hi: highest output value.
        wide: the accumulator is an int64, as with TFLite's int16 activations and int64 bias; not
            for onnx.
    """

    kind: Literal["tflm", "litert", "real", "onnx"]
    multiplier: tuple[int, ...]
    shift: tuple[int, ...]
    scale: tuple[float, ...]
    zero_point: int
    lo: int
    hi: int
    wide: bool = False


@dataclass(frozen=True)
class TensorType:
    """Element type, shape and quantization of a value; activations are channels-last in the IR."""

    dtype: DType
    shape: Shape
    quant: Quant | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape with every symbol at its maximum."""
        return tuple(dim_max(d) for d in self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def numel(self) -> int:
        """Number of elements, with every symbol at its maximum."""
        n = 1
        for d in self.max_shape:
            n *= d
        return n

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.size

    def with_shape(self, shape: Shape) -> TensorType:
        return replace(self, shape=tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return replace(self, dtype=dtype, quant=None)

    def __str__(self) -> str:
        dims = "x".join(str(d) for d in self.shape) or "scalar"
        if self.quant is None:
            return f"{self.dtype.value}[{dims}]"
        q = self.quant
        if q.axis is None:
            return f"{self.dtype.value}[{dims}] q({q.scale[0]:.9g}, {q.zero_point[0]})"
        return f"{self.dtype.value}[{dims}] q(axis {q.axis}, {len(q.scale)} scales)"
