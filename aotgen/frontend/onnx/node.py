"""What a converter sees of one ONNX node: its inputs as IR values, its attributes, and ways to emit
canonical ops.

A converter reads attributes through the typed accessors here, emits ops with ``emit`` and returns
the values of the node's outputs. What it cannot express it refuses with a reason and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto

from aotgen.frontend.emitter import Refused
from aotgen.frontend.node import FileNode
from aotgen.ir.graph import Value
from aotgen.ir.types import Array

if TYPE_CHECKING:
    from aotgen.frontend.onnx.importer import Importer


class OnnxNode(FileNode):
    """One node of the file during its conversion.

    Attributes:
        proto: the node as read.
        name: its name, or operator and first output.
        op: the operator.
        opset: version of the operator's domain in this model.
        inputs: None for an optional input that is absent; trailing ones may be missing altogether.
    """

    def __init__(
        self,
        importer: Importer,
        proto: onnx.NodeProto,
        name: str,
        opset: int,
        inputs: Sequence[Value | None],
    ) -> None:
        super().__init__(importer.emitter, name, inputs)
        self._importer = importer
        self._attributes = {a.name: a for a in proto.attribute}
        self.proto = proto
        self.op = str(proto.op_type)
        self.opset = opset

    @property
    def is_converted(self) -> bool:
        """Whether onnx converted the model from an opset before 7, where broadcasting differed."""
        return self._importer.is_converted

    # inputs and outputs

    def x(self, index: int = 0) -> Value:
        """Input ``index``, which must be present."""
        value = self.optional(index)
        if value is None:
            raise Refused(f"input {index} is missing", "the model is malformed: export it again")
        return value

    def is_used(self, index: int) -> bool:
        """Whether anything reads output ``index``."""
        outputs = self.proto.output
        return index < len(outputs) and self._importer.is_used(outputs[index])

    def only_first_output(self) -> None:
        """Refuse when a further output is used."""
        for index in range(1, len(self.proto.output)):
            if self.is_used(index):
                self.refuse(f"its output {index} ({self.proto.output[index]!r}) is not supported")

    def known(self, index: int) -> Array | None:
        """The values of input ``index`` when they are known while compiling, else None."""
        value = self.optional(index)
        return None if value is None else self.evaluate(value)

    def need(self, index: int, what: str) -> Array:
        """The values of input ``index``, which must be known while compiling."""
        self.x(index)
        array = self.known(index)
        if array is None:
            self.refuse(
                f"{what} (input {index}, {self.proto.input[index]!r}) is known only at run time",
                f"make {what} a constant, or export with fixed input shapes",
            )
        return array

    def need_ints(self, index: int, what: str) -> tuple[int, ...]:
        """Like ``need``, flattened to Python ints."""
        return tuple(int(v) for v in self.need(index, what).reshape(-1))

    def ints_input_or_attr(self, name: str, index: int, since: int) -> tuple[int, ...] | None:
        """Integers that are input ``index`` from opset ``since`` on and attribute ``name`` before;
        None when absent.
        """
        if self.opset >= since:
            return None if self.optional(index) is None else self.need_ints(index, name)
        return self.get_ints(name)

    # attributes

    def has(self, name: str) -> bool:
        return name in self._attributes

    def get_int(self, name: str, default: int | None = None) -> int:
        return int(self._get(name, AttributeProto.INT, default, lambda a: a.i))

    def get_float(self, name: str, default: float | None = None) -> float:
        """A float attribute; the default is rounded to float32 as the file's own would be."""
        value = self._get(name, AttributeProto.FLOAT, default, lambda a: a.f)
        return float(np.float32(value))

    def get_str(self, name: str, default: str | None = None) -> str:
        value = self._get(name, AttributeProto.STRING, default, lambda a: a.s)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def get_ints(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, None when absent."""
        if name not in self._attributes:
            return None
        return tuple(int(v) for v in self._get(name, AttributeProto.INTS, None, lambda a: a.ints))

    def get_floats(self, name: str) -> tuple[float, ...]:
        """A list of floats, empty when absent."""
        if name not in self._attributes:
            return ()
        return tuple(self._get(name, AttributeProto.FLOATS, None, lambda a: a.floats))

    def get_strings(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty when absent."""
        if name not in self._attributes:
            return ()
        values = self._get(name, AttributeProto.STRINGS, None, lambda a: a.strings)
        return tuple(v.decode("utf-8", "replace") for v in values)

    def get_tensor(self, name: str) -> Array | None:
        """A tensor attribute, None when absent."""
        if name not in self._attributes:
            return None
        proto = self._get(name, AttributeProto.TENSOR, None, lambda a: a.t)
        return self._importer.array(proto)

    def _get(
        self, name: str, kind: int, default: Any, read: Callable[[AttributeProto], Any]
    ) -> Any:
        attribute = self._attributes.get(name)
        if attribute is None:
            if default is None:
                raise Refused(
                    f"attribute {name!r} is missing", "the model is malformed: export it again"
                )
            return default
        if attribute.type != kind:
            raise Refused(
                f"attribute {name!r} has type {AttributeProto.AttributeType.Name(attribute.type)}, "
                f"not {AttributeProto.AttributeType.Name(kind)}"
            )
        return read(attribute)

    def axis(self, name: str, default: int | None, rank: int) -> int:
        """An axis attribute, normalised to 0 <= axis < rank."""
        return self.normalise_axis(self.get_int(name, default), rank)

    def normalise_axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0

    def get_graph(self, name: str) -> onnx.GraphProto:
        """A graph attribute."""
        graph: onnx.GraphProto = self._get(name, AttributeProto.GRAPH, None, lambda a: a.g)
        return graph

    def inline(self, name: str, inputs: Sequence[Value] = ()) -> list[Value | None]:
        """Convert the nodes of graph attribute ``name`` in place of this one, for these inputs; its
        outputs, None for those that could not be converted.
        """
        return self._importer.inline(self.get_graph(name), inputs)

    @property
    def written_out(self) -> int:
        """Nodes of subgraphs that have been converted so far, once for each time."""
        return self._importer.written_out

    # emitting

    def constant(self, array: Array, name: str = "const") -> Value:
        """A constant of this node's own."""
        return self._importer.constant(np.asarray(array), f"{self.name}.{name}")

    def to_channels_last(self, x: Value) -> Value:
        """[N, C, *S] -> [N, *S, C]; also a weight [O, C/g, *K] -> [O, *K, C/g]."""
        rank = len(x.shape)
        return self.transpose(x, (0, *range(2, rank), 1))

    def to_channels_first(self, x: Value) -> Value:
        """[N, *S, C] -> [N, C, *S]."""
        rank = len(x.shape)
        return self.transpose(x, (0, rank - 1, *range(1, rank - 1)))

    def need_float(self, x: Value) -> None:
        """Refuse an integer or boolean ``x``."""
        if not x.dtype.is_float:
            self.refuse(
                f"element type {x.dtype.value} is not supported here", "cast its input to float"
            )
