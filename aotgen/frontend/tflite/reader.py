"""From a path or bytes to plain records of a .tflite file that is known to be sound.

``verify`` proves the FlatBuffer, then the ``tflite`` package's accessors read it. What is proven
here, so that the importer need not ask: every index of a tensor, buffer, operator code and subgraph
exists; every tensor that an operator reads is defined before it, and none twice; constants have the
bytes that their type and shape ask for; quantization vectors fit their tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import tflite

from aotgen.errors import ModelError, UsageError
from aotgen.frontend.emitter import one_line
from aotgen.frontend.tflite.schema import ENUMS, TABLES, UNIONS, Field, options_table
from aotgen.frontend.tflite.tensors import DTYPES, Tensor, ints, read_tensor, text
from aotgen.frontend.tflite.verify import verify

Source = Path | str | bytes

MAX_FILE_BYTES = 1 << 33
"""A larger file is not read: no board of ours could hold it."""


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of a subgraph; the fields are those of ``TfliteNode``.

    Attributes:
        op: name of the builtin operator, "CUSTOM", or "" for a code that is newer than the package.
        code: its number.
        inputs: tensor numbers, None for one that is absent.
        outputs: tensor numbers.
        intermediates: tensor numbers whose quantization an LSTM needs.
    """

    op: str
    code: int
    version: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: Mapping[str, Any]
    custom: bytes
    custom_code: str


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A function: operators in execution order."""

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]

    def label(self, operator: Operator) -> str:
        """How messages call an operator: its first output, or its name."""
        first = next((self.tensors[o].name for o in operator.outputs), "")
        return first or operator.custom_code or operator.op or f"operator {operator.code}"


@dataclass(frozen=True)
class Signature:
    """A named entry point: a caller's names of tensors of one subgraph."""

    key: str
    subgraph: int
    inputs: Mapping[int, str]
    outputs: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Model:
    """A sound model; ``label`` is how messages call it, ``stem`` a name for it."""

    label: str
    stem: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]


def read(source: Source) -> Model:
    """Parse and prove ``source``.

    Raises:
        UsageError: the path cannot be read.
        ModelError: it is not a TFLite model, or a broken one.
    """
    if isinstance(source, bytes):
        return _Reader(source, "the model", "model").model()
    path = Path(source)
    return _Reader(_read_file(path), str(path), path.stem).model()


def _read_file(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder", remedy="give the path of a .tflite file")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{path} has {size} bytes, more than the limit of {MAX_FILE_BYTES}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or one_line(error)
        raise UsageError(f"cannot read {str(path)!r}: {why}") from None


_BUILTIN_CODE_SLOT = [f.name for f in TABLES["OperatorCode"]].index("builtin_code")


@lru_cache(maxsize=1)
def _operator_names() -> dict[int, str]:
    codes = vars(tflite.BuiltinOperator)
    return {v: k for k, v in codes.items() if isinstance(v, int) and not k.startswith("_")}


def _accessor(field: str) -> str:
    """flatc's name of a field's accessor: stride_w -> StrideW."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_"))


def _builtin_code(entry: Any) -> int:
    """The field builtin_code as it stands; the package's accessor drops it below 127."""
    table = entry._tab
    offset = table.Offset(4 + 2 * _BUILTIN_CODE_SLOT)
    return struct.unpack_from("<i", table.Bytes, table.Pos + offset)[0] if offset else 0


def _decoded(field: Field, value: Any) -> Any:
    """An option as converters see it: enums by name, element types as DTypes."""
    if field.enum == "TensorType":
        return DTYPES.get(ENUMS["TensorType"][value])
    if field.enum:
        return ENUMS[field.enum][value]
    if field.kind == "string":
        return ""
    return () if field.kind in ("scalars", "strings", "tables") else value


class _Reader:
    """Reads one file."""

    def __init__(self, data: bytes, label: str, stem: str) -> None:
        if not data:
            raise ModelError(f"{label} is empty")
        verify(data, label)
        self._data = data
        self._view = memoryview(data)
        self._label = label
        self._stem = stem
        self._file = tflite.Model.GetRootAs(data, 0)
        self._buffers = [self._buffer(i) for i in range(self._file.BuffersLength())]

    def _fail(self, what: str) -> NoReturn:
        raise ModelError(f"{self._label} is malformed: {what}")

    def model(self) -> Model:
        file = self._file
        if file.Version() != 3:
            self._fail(f"it says schema version {file.Version()}, which must be 3")
        count = file.SubgraphsLength()
        if not count:
            self._fail("it has no subgraph: there is nothing to compute")
        subgraphs = tuple(self._subgraph(file.Subgraphs(i), i) for i in range(count))
        if not subgraphs[0].outputs:
            raise ModelError(f"{self._label} has no outputs: there is nothing to compute")
        signatures = tuple(
            self._signature(file.SignatureDefs(i), subgraphs)
            for i in range(file.SignatureDefsLength())
        )
        return Model(self._label, self._stem, subgraphs, signatures)

    def _buffer(self, index: int) -> memoryview:
        """The bytes of a buffer: in the FlatBuffer, or behind it in a file of more than 2 GB."""
        buffer = self._file.Buffers(index)
        offset, size = buffer.Offset(), buffer.Size()
        if offset > 1:  # 0 and 1 stand for none
            return self._span(offset, size, f"buffer {index}")
        if buffer.DataIsNone():
            return self._view[:0]
        table = buffer._tab
        start = table.Vector(table.Offset(4))
        return self._view[start : start + buffer.DataLength()]

    def _span(self, offset: int, size: int, what: str) -> memoryview:
        if offset + size > len(self._data):
            self._fail(
                f"{what} takes bytes {offset}..{offset + size} of a file of {len(self._data)}"
            )
        return self._view[offset : offset + size]

    def _signature(self, table: Any, subgraphs: tuple[Subgraph, ...]) -> Signature:
        key, index = text(table.SignatureKey()), table.SubgraphIndex()
        if index >= len(subgraphs):
            self._fail(f"signature {key!r} is of subgraph {index}, which does not exist")
        count = len(subgraphs[index].tensors)

        def names(entry: Any, length: int) -> Mapping[int, str]:
            found = {}
            for i in range(length):
                number = entry(i).TensorIndex()
                if number >= count:
                    self._fail(f"signature {key!r} names tensor {number}, which does not exist")
                found[number] = text(entry(i).Name())
            return MappingProxyType(found)

        inputs = names(table.Inputs, table.InputsLength())
        return Signature(key, index, inputs, names(table.Outputs, table.OutputsLength()))

    # subgraphs

    def _subgraph(self, table: Any, index: int) -> Subgraph:
        where = f"subgraph {index}"
        tensors = tuple(
            read_tensor(table.Tensors(i), i, self._buffers, self._fail)
            for i in range(table.TensorsLength())
        )
        count = len(tensors)
        inputs = self._indices(table, "Inputs", count, where)
        outputs = self._indices(table, "Outputs", count, where)
        operators = tuple(
            self._operator(table.Operators(i), count, f"operator {i} of {where}")
            for i in range(table.OperatorsLength())
        )
        found = Subgraph(index, text(table.Name()), tensors, inputs, outputs, operators)
        self._check_order(found)
        return found

    def _indices(self, table: Any, field: str, count: int, where: str) -> tuple[int, ...]:
        """A vector of tensor numbers, all of which exist."""
        found = ints(table, field)
        wrong = next((i for i in found if not 0 <= i < count), None)
        if wrong is not None:
            self._fail(f"{where} names tensor {wrong} among its {field.lower()}; it has {count}")
        return found

    def _check_order(self, subgraph: Subgraph) -> None:
        """Everything that is read is defined once, before it is read."""
        where = f"subgraph {subgraph.index}"
        tensors = subgraph.tensors
        if len(set(subgraph.inputs)) < len(subgraph.inputs):
            self._fail(f"{where} has an input twice")
        defined = set(subgraph.inputs)
        for tensor in tensors:
            if tensor.data is not None or tensor.is_variable:
                if tensor.index in defined:
                    self._fail(
                        f"input {tensor.name!r} of {where} is a constant or a variable as well"
                    )
                defined.add(tensor.index)
        for operator in subgraph.operators:
            label = subgraph.label(operator)
            for number in operator.inputs:
                if number is not None and number not in defined and not tensors[number].is_empty:
                    self._fail(
                        f"{operator.op} node {label!r} reads tensor {number} "
                        f"({tensors[number].name!r}), which is not computed before it"
                    )
            for number in operator.outputs:
                if number in defined:
                    self._fail(
                        f"{operator.op} node {label!r} writes tensor {number} "
                        f"({tensors[number].name!r}), which has been defined before"
                    )
                defined.add(number)
        for number in subgraph.outputs:
            if number not in defined and not tensors[number].is_empty:
                self._fail(f"output {tensors[number].name!r} of {where} is not computed")

    # operators

    def _operator(self, table: Any, count: int, where: str) -> Operator:
        code_index = table.OpcodeIndex()
        if code_index >= self._file.OperatorCodesLength():
            self._fail(f"{where} has operator code {code_index}, which does not exist")
        entry = self._file.OperatorCodes(code_index)
        code = max(entry.DeprecatedBuiltinCode(), _builtin_code(entry))
        if code < 0:
            self._fail(f"{where} has operator code {code}")
        op = _operator_names().get(code, "")
        reads = ints(table, "Inputs")
        wrong = next((i for i in reads if not -1 <= i < count), None)
        if wrong is not None:
            self._fail(f"{where} reads tensor {wrong}; its subgraph has {count}")
        return Operator(
            op=op,
            code=code,
            version=entry.Version(),
            inputs=tuple(None if i < 0 else i for i in reads),
            outputs=self._indices(table, "Outputs", count, where),
            intermediates=self._indices(table, "Intermediates", count, where),
            options=MappingProxyType(self._options(table, op, where)),
            custom=self._custom(table, where),
            custom_code=text(entry.CustomCode()) if op == "CUSTOM" else "",
        )

    def _custom(self, table: Any, where: str) -> bytes:
        offset = table.LargeCustomOptionsOffset()
        if offset > 1:
            size = table.LargeCustomOptionsSize()
            return bytes(self._span(offset, size, f"custom options of {where}"))
        return b"" if table.CustomOptionsIsNone() else table.CustomOptionsAsNumpy().tobytes()

    def _options(self, table: Any, op: str, where: str) -> dict[str, Any]:
        """Fields of the operator's options by the schema's names."""
        name = options_table(op)
        if not name:
            return {}
        second = name in UNIONS["BuiltinOptions2"]
        tag = table.BuiltinOptions2Type() if second else table.BuiltinOptionsType()
        fields = TABLES[name]
        if tag and UNIONS["BuiltinOptions2" if second else "BuiltinOptions"].index(name) != tag:
            if not fields:
                return {}
            self._fail(f"{where} ({op}) has the options of another operator")
        content = None
        if tag:
            content = table.BuiltinOptions2() if second else table.BuiltinOptions()
        if content is None:
            return {f.name: _decoded(f, f.default) for f in fields if f.name != "-"}
        options = getattr(tflite, name)()
        options.Init(content.Bytes, content.Pos)
        return {f.name: self._option(options, f, where) for f in fields if f.name != "-"}

    def _option(self, options: Any, field: Field, where: str) -> Any:
        name = _accessor(field.name)
        if not hasattr(options, name):  # newer than the package
            return _decoded(field, field.default)
        if field.kind == "scalar":
            value = getattr(options, name)()
            if field.enum and not 0 <= value < len(ENUMS[field.enum]):
                self._fail(f"{where} has an option {field.name} of {value}")
            return _decoded(field, value)
        if field.kind == "string":
            return text(getattr(options, name)())
        if getattr(options, name + "IsNone")():
            return ()
        return tuple(getattr(options, name + "AsNumpy")().tolist())
