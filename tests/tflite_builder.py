"""Writes .tflite models for tests: tensors, operators, options, subgraphs, from the schema.

    b = ModelBuilder()
    x = b.input("x", (1, 8, 8, 3), "int8", scale=0.1, zero=-3)
    w = b.const("w", weights, scale=[0.1, 0.2], zero=[0, 0], axis=0)
    y = b.op("CONV_2D", [x, w, None], out=("y", (1, 8, 8, 2), "int8", 0.5, 4),
             options={"padding": "SAME", "stride_w": 1, "stride_h": 1})
    b.output(y)
    data = b.finish()

Whatever is asked for is written, sound or not: what a reader must refuse can be built as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite
from flatbuffers import number_types

from aotgen.frontend.tflite.schema import ENUMS, SCALARS, TABLES, UNIONS, options_table

DTYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "float64": "FLOAT64",
    "int8": "INT8",
    "uint8": "UINT8",
    "int16": "INT16",
    "uint16": "UINT16",
    "int32": "INT32",
    "uint32": "UINT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "bool": "BOOL",
}
"""numpy's names of element types; the schema's own names ("RESOURCE", "INT4") work as well."""

_FLAGS = {
    "bool": number_types.BoolFlags,
    "int8": number_types.Int8Flags,
    "uint8": number_types.Uint8Flags,
    "int16": number_types.Int16Flags,
    "uint16": number_types.Uint16Flags,
    "int32": number_types.Int32Flags,
    "uint32": number_types.Uint32Flags,
    "int64": number_types.Int64Flags,
    "uint64": number_types.Uint64Flags,
    "float32": number_types.Float32Flags,
}

_ALIGN = 16  # TFLite Micro reads weights in place

Numbers = float | Sequence[float] | np.ndarray | None
"""One number or one a channel."""

Out = tuple[Any, ...]
"""(name, shape, dtype[, scale, zero[, axis]]) of a tensor that an operator writes."""


def write_table(b: flatbuffers.Builder, name: str, values: Mapping[str, Any]) -> int:
    """Write a table of the schema with its children; its offset.

    Args:
        b: the builder.
        name: a key of ``TABLES``.
        values: by field; enums by name or number, a union as (table, values), vectors as sequences,
            bytes for [uint8]. Fields that are left out keep the default.
    """
    fields = TABLES[name]
    unknown = set(values) - {f.name for f in fields}
    if unknown:
        raise KeyError(f"{name} has no field {sorted(unknown)}")
    scalars = dict(values)
    offsets: dict[int, int] = {}
    for slot, f in enumerate(fields):
        value = values.get(f.name)
        if value is None or f.kind == "scalar":
            continue
        if f.kind == "union":
            table, content = value
            scalars[fields[slot - 1].name] = UNIONS[f.type].index(table)
            offsets[slot] = write_table(b, table, content)
        elif f.kind == "table":
            offsets[slot] = write_table(b, f.type, value)
        elif f.kind == "string":
            offsets[slot] = b.CreateString(value)
        elif f.kind == "scalars":
            offsets[slot] = _write_scalars(b, f.type, value)
        else:
            parts = [
                b.CreateString(v) if f.kind == "strings" else write_table(b, f.type, v)
                for v in value
            ]
            b.StartVector(4, len(parts), 4)
            for part in reversed(parts):
                b.PrependUOffsetTRelative(part)
            offsets[slot] = b.EndVector()
    b.StartObject(len(fields))
    for slot, f in enumerate(fields):
        if slot in offsets:
            b.PrependUOffsetTRelativeSlot(slot, offsets[slot], 0)
        elif f.kind == "scalar" and f.name in scalars:
            value = scalars[f.name]
            if isinstance(value, str):
                value = ENUMS[f.enum].index(DTYPES.get(value, value))
            b.PrependSlot(_FLAGS[f.type], slot, value, f.default)
    return int(b.EndObject())


def _write_scalars(b: flatbuffers.Builder, kind: str, values: Any) -> int:
    code, size = SCALARS[kind]
    if isinstance(values, bytes):
        data, count = values, len(values)
    else:
        array = np.asarray(values, np.dtype("<" + code))
        data, count = array.tobytes(), array.size
    b.StartVector(size, count, _ALIGN if isinstance(values, bytes) else size)
    b.head = b.head - len(data)
    b.Bytes[b.head : b.head + len(data)] = data
    return int(b.EndVector())


def quantization(scale: Numbers, zero: Numbers, axis: int) -> dict[str, Any] | None:
    """Values of QuantizationParameters; None without a scale. Zero points default to 0."""
    if scale is None:
        return None
    scales = np.atleast_1d(np.asarray(scale, np.float64))
    zeros = np.zeros(scales.size, np.int64) if zero is None else np.atleast_1d(zero)
    return {"scale": scales, "zero_point": zeros, "quantized_dimension": axis}


@dataclass
class Subgraph:
    """One function of the model. Tensors are plain indices into it.

    Attributes:
        model: what it belongs to.
        name: of the subgraph.
        index: its number in the model.
    """

    model: ModelBuilder
    name: str
    index: int
    tensors: list[dict[str, Any]] = field(default_factory=list)
    operators: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self,
        name: str,
        shape: Sequence[int] | None,
        dtype: str,
        scale: Numbers = None,
        zero: Numbers = None,
        axis: int = 0,
        *,
        is_variable: bool = False,
        signature: Sequence[int] | None = None,
        data: bytes | None = None,
        **fields: Any,
    ) -> int:
        """A tensor; ``data`` makes it a constant, ``signature`` is the shape with -1 for open
        dimensions, ``fields`` are further fields of the schema's Tensor.
        """
        values: dict[str, Any] = {
            "name": name,
            "shape": shape,
            "type": dtype,
            "quantization": quantization(scale, zero, axis),
            "is_variable": is_variable,
            "shape_signature": signature,
            "buffer": 0 if data is None else self.model.buffer(data),
            "has_rank": True,
            **fields,
        }
        self.tensors.append({k: v for k, v in values.items() if v is not None})
        return len(self.tensors) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str, *args: Any, **kwargs: Any) -> int:
        """A graph input; further arguments are those of ``tensor``."""
        index = self.tensor(name, shape, dtype, *args, **kwargs)
        self.inputs.append(index)
        return index

    def const(
        self, name: str, array: Any, scale: Numbers = None, zero: Numbers = None, axis: int = 0
    ) -> int:
        """A constant with the dtype and shape of ``array``."""
        values = np.asarray(array)
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        data = little.tobytes()
        return self.tensor(name, values.shape, values.dtype.name, scale, zero, axis, data=data)

    def op(
        self,
        name: str,
        inputs: Sequence[int | None],
        *,
        out: Out | int | None = None,
        outs: Sequence[Out | int] = (),
        options: Mapping[str, Any] | None = None,
        version: int = 1,
        custom: bytes | None = None,
        custom_code: str | None = None,
        **fields: Any,
    ) -> Any:
        """An operator of the builtin ``name`` ("CUSTOM" with ``custom_code``).

        Args:
            name: of the builtin operator.
            inputs: tensors; None for one that is absent.
            out: its output as (name, shape, dtype[, scale, zero[, axis]]), or a tensor.
            outs: several outputs.
            options: fields of its options table; None writes the table with the defaults.
            version: of the operator.
            custom: custom options.
            custom_code: name of a custom operator.
            fields: further fields of the schema's Operator.

        Returns:
            The output tensor, or with ``outs`` their list.
        """
        wanted = list(outs) if out is None else [out]
        results = [o if isinstance(o, int) else self.tensor(*o) for o in wanted]
        values: dict[str, Any] = {
            "opcode_index": self.model.opcode(name, version, custom_code),
            "inputs": [-1 if i is None else i for i in inputs],
            "outputs": results,
            "custom_options": custom,
            **fields,
        }
        table = options_table(name)
        if table and table in UNIONS["BuiltinOptions"]:
            values["builtin_options"] = (table, dict(options or {}))
        elif table:
            values["builtin_options2"] = (table, dict(options or {}))
        elif options:
            raise KeyError(f"{name} has no options")
        self.operators.append({k: v for k, v in values.items() if v is not None})
        return results[0] if out is not None else results

    def output(self, *tensors: int) -> None:
        """Make tensors outputs of the subgraph."""
        self.outputs.extend(tensors)


class ModelBuilder:
    """A model under construction; the methods of its first subgraph are its own."""

    def __init__(self, description: str = "made for a test") -> None:
        self.description = description
        self.buffers: list[bytes] = [b""]
        self.opcodes: list[tuple[str, int, str | None]] = []
        self.subgraphs: list[Subgraph] = []
        self.signatures: list[dict[str, Any]] = []
        self.main = self.subgraph("main")
        self.tensor = self.main.tensor
        self.input = self.main.input
        self.const = self.main.const
        self.op = self.main.op
        self.output = self.main.output

    def subgraph(self, name: str) -> Subgraph:
        """A further subgraph, to be filled with the same methods."""
        self.subgraphs.append(Subgraph(self, name, len(self.subgraphs)))
        return self.subgraphs[-1]

    def buffer(self, data: bytes) -> int:
        """A new buffer; its index."""
        self.buffers.append(data)
        return len(self.buffers) - 1

    def opcode(self, name: str, version: int, custom_code: str | None) -> int:
        """Index of an operator code, shared by equal ones."""
        key = (name, version, custom_code)
        if key not in self.opcodes:
            self.opcodes.append(key)
        return self.opcodes.index(key)

    def signature(
        self,
        key: str,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        subgraph: int = 0,
    ) -> None:
        """A named entry point: tensors of ``subgraph`` by their names for a caller."""
        self.signatures.append(
            {
                "signature_key": key,
                "inputs": [{"name": n, "tensor_index": t} for n, t in inputs.items()],
                "outputs": [{"name": n, "tensor_index": t} for n, t in outputs.items()],
                "subgraph_index": subgraph,
            }
        )

    def finish(self) -> bytes:
        """The file."""
        b = flatbuffers.Builder(1 << 12)
        values = {
            "version": 3,
            "description": self.description,
            "operator_codes": [_opcode(*code) for code in self.opcodes],
            "subgraphs": [
                {
                    "name": s.name,
                    "tensors": s.tensors,
                    "inputs": s.inputs,
                    "outputs": s.outputs,
                    "operators": s.operators,
                }
                for s in self.subgraphs
            ],
            "buffers": [{"data": data} if data else {} for data in self.buffers],
            "signature_defs": self.signatures or None,
        }
        b.Finish(write_table(b, "Model", values), file_identifier=b"TFL3")
        return bytes(b.Output())


def _opcode(name: str, version: int, custom_code: str | None) -> dict[str, Any]:
    """Codes above 127 do not fit the first field, which older readers know alone."""
    code = getattr(tflite.BuiltinOperator, name)
    values = {"deprecated_builtin_code": min(code, 127), "builtin_code": code, "version": version}
    return values if custom_code is None else {**values, "custom_code": custom_code}
