"""What a converter sees of one TFLite operator: its inputs as IR values, its options, and ways to
emit canonical ops.

Values are in the file's layout, which is the IR's own (channels last). A quantized value keeps its
integer element type; its type has the scale and zero point that the file declares. What a converter
cannot express it refuses with a reason and a remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aotgen.frontend.emitter import Refused
from aotgen.frontend.node import FileNode
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType, Quant, TensorType

if TYPE_CHECKING:
    from aotgen.frontend.tflite.importer import Importer
    from aotgen.frontend.tflite.reader import Operator
    from aotgen.frontend.tflite.tensors import Tensor

__all__ = ["Output", "Refused", "Resource", "TfliteNode"]

Mode = Literal["tflm", "litert"]

_QUANTIZED_RANGE = {
    DType.I8: (-128, 127),
    DType.U8: (0, 255),
    DType.I16: (-32768, 32767),
}


@dataclass(frozen=True)
class Resource:
    """What a RESOURCE tensor refers to, such as a variable: no value of the IR.

    Attributes:
        container: namespace of the name, often "".
        name: the same name is the same resource, in all subgraphs.
    """

    container: str
    name: str


Output = Value | Resource
"""What a converter may return for one output."""


class TfliteNode(FileNode):
    """One operator of the file during its conversion.

    Attributes:
        importer: the import that this is part of; state lives there.
        name: the name of its first output tensor.
        op: the builtin operator's name in the schema.
        mode: whose integer arithmetic the model gets, "tflm" or "litert".
        inputs: in the file's order; None for one that is absent, and for a resource.
        options: all fields of the operator's builtin options; defaults where the file has none.
            Enums are names ("SAME", "RELU6"), tensor types DTypes (None for one the IR lacks).
        custom: custom options.
    """

    def __init__(
        self,
        importer: Importer,
        operator: Operator,
        name: str,
        inputs: Sequence[Output | None],
        tensors: tuple[Sequence[Tensor | None], Sequence[Tensor]],
    ) -> None:
        super().__init__(
            importer.emitter, name, [v if isinstance(v, Value) else None for v in inputs]
        )
        self.importer = importer
        self.op: str = operator.op
        self.mode: Mode = importer.mode
        self.options: Mapping[str, Any] = operator.options
        self.custom: bytes = operator.custom
        self._bound = list(inputs)
        self._operator = operator
        self._input_tensors, self._output_tensors = tensors

    # inputs and outputs

    def input(self, index: int = 0) -> Value:
        """Input ``index``, which must be present."""
        value = self.optional(index)
        if value is None:
            raise Refused(f"input {index} is missing", "the model is malformed: export it again")
        return value

    def resource(self, index: int = 0) -> Resource:
        """What the RESOURCE tensor at input ``index`` refers to."""
        found = self._bound[index] if index < len(self._bound) else None
        if not isinstance(found, Resource):
            raise Refused(f"input {index} is not a resource", "the model is malformed")
        return found

    def maybe_const(self, index: int) -> Array | None:
        """The elements of input ``index`` when they are known while compiling, else None."""
        value = self.optional(index)
        return None if value is None else self.evaluate(value)

    def const(self, index: int, what: str) -> Array:
        """The elements of input ``index`` (``what`` it is for), which must be known while
        compiling.
        """
        value = self.input(index)
        array = self.evaluate(value)
        if array is None:
            self.refuse(
                f"{what} (input {index}, {value.name!r}) is known only at run time",
                f"make {what} a constant, or export with fixed input shapes",
            )
        return array

    def ints(self, index: int, what: str) -> tuple[int, ...]:
        """Like ``const``, flattened to Python ints."""
        return tuple(int(v) for v in self.const(index, what).reshape(-1))

    def input_is_variable(self, index: int) -> bool:
        """Whether input ``index`` is a variable tensor, which the operator may write."""
        tensor = self._input_tensors[index] if index < len(self._input_tensors) else None
        return tensor is not None and tensor.is_variable

    def set_variable(self, index: int, value: Value) -> None:
        """Let the variable tensor at input ``index`` hold ``value`` from here on, and at the start
        of the next run unless it is set again.
        """
        number = self._operator.inputs[index]
        if number is None or not self.input_is_variable(index):
            self.refuse(f"input {index} is not a variable tensor", "the model is malformed")
        self.importer.set_variable(number, value)

    def output_dtype(self, index: int = 0) -> DType:
        """Element type of output ``index``, which the IR must have."""
        return self.importer.dtype(self._output_tensor(index))

    def output_quant(self, index: int = 0) -> Quant | None:
        """Quantization of output ``index``, as the file declares it."""
        return self._output_tensor(index).quant

    def _output_tensor(self, index: int) -> Tensor:
        if index >= len(self._output_tensors):
            raise Refused(f"it has no output {index}", "the model is malformed: export it again")
        return self._output_tensors[index]

    # emitting

    def constant(self, array: Array, name: str = "const", quant: Quant | None = None) -> Value:
        """A constant of this operator's own."""
        values = np.asarray(array)
        kind = TensorType(DType.of(values.dtype), tuple(values.shape), quant)
        return self.importer.graph.constant(values, f"{self.name}.{name}", kind)

    def axis(self, axis: int, rank: int) -> int:
        """``axis`` normalised to 0 <= axis < rank; refused when it is out of range."""
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is out of range for rank {rank}")
        return axis % rank

    # fused activations

    @property
    def fused(self) -> str:
        """Name of the fused activation function, "NONE" where the operator has none."""
        return str(self.options.get("fused_activation_function", "NONE"))

    def activation(self, value: Value) -> Value:
        """``value``, a float, after the operator's fused activation."""
        if self.fused == "NONE":
            return value
        if self.fused == "RELU":
            return self.emit("relu", [value])
        if self.fused == "RELU6":
            return self.emit("clip", [value], lo=0.0, hi=6.0)
        if self.fused == "RELU_N1_TO_1":
            return self.emit("clip", [value], lo=-1.0, hi=1.0)
        if self.fused == "TANH":
            return self.emit("tanh", [value])
        self.refuse(f"fused activation {self.fused} is not supported", "use RELU or RELU6")

    def clamp(self, index: int = 0) -> tuple[int, int]:
        """Lowest and highest value of quantized output ``index`` after the fused activation, as
        TFLite's CalculateActivationRangeQuantized computes them.
        """
        dtype, quant = self.output_dtype(index), self.output_quant(index)
        if dtype not in _QUANTIZED_RANGE:
            self.refuse(
                f"its output {index} has element type {dtype.value}, which is not quantized"
            )
        low, high = _QUANTIZED_RANGE[dtype]
        if self.fused == "NONE":
            return low, high
        bounds = {"RELU": (0.0, None), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
        if self.fused not in bounds:
            self.refuse(f"fused activation {self.fused} is not supported on integers", "use RELU6")
        if quant is None or quant.axis is not None:
            self.refuse(f"its output {index} has no scale of its own", "quantize the model again")
        lo, hi = bounds[self.fused]
        if lo is not None:
            low = max(low, self._quantized(lo, quant))
        if hi is not None:
            high = min(high, self._quantized(hi, quant))
        return low, high

    def _quantized(self, real: float, quant: Quant) -> int:
        """zero_point + round(real / scale) in float32, halves away from zero."""
        ratio = np.float32(real) / np.float32(quant.scale[0])
        magnitude = np.floor(np.abs(np.float64(ratio)) + 0.5)
        if not math.isfinite(magnitude) or magnitude >= 2.0**31:
            self.refuse(f"scale {quant.scale[0]} is too small for its fused activation")
        return quant.zero_point[0] + int(math.copysign(magnitude, real))
