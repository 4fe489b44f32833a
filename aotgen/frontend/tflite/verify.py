"""Proves that a .tflite file is a well formed FlatBuffer before anything of it is read.

FlatBuffers finds everything by offsets and lengths in the file, and its accessors trust them. Here
the whole file is walked with the tables of ``schema``: file identifier, root, every vtable, field
offset, string, vector, union and subtable lies inside the file and is aligned, as FlatBuffers'
own verifier (flatbuffers/verifier.h) has it. What several places share is visited once, and the
size that the content would have without sharing is bounded, so that a small file cannot ask for
much time or memory.
"""

from __future__ import annotations

import struct
from typing import NoReturn

from aotgen.errors import ModelError
from aotgen.frontend.tflite.schema import SCALARS, TABLES, UNIONS, Field

IDENTIFIER = b"TFL3"
"""At byte 4 of every file of schema 3."""

SHARING = 8
"""How many times its own size a file's content may have when nothing is shared. Writers share
little: equal strings and small vectors."""

_SLACK = 1 << 20

_UOFFSET = 4


def verify(data: bytes, label: str) -> None:
    """Walk the whole file.

    Args:
        data: the file.
        label: how messages call it.

    Raises:
        ModelError: what is wrong, and where in the file.
    """
    Verifier(data, label).run()


class Verifier:
    """One walk. Positions are bytes from the start of the file."""

    def __init__(self, data: bytes, label: str) -> None:
        self._data = data
        self._size = len(data)
        self._label = label
        self._path: list[str] = []
        self._sizes: dict[tuple[int, str], int] = {}
        self._limit = SHARING * len(data) + _SLACK

    def run(self) -> None:
        if self._size < 8 or self._data[4:8] != IDENTIFIER:
            raise ModelError(f"{self._label} is not a TFLite model: it does not start as one")
        self._table(self._u32(0), "Model")

    def _fail(self, what: str) -> NoReturn:
        where = "".join(self._path).lstrip(".")
        raise ModelError(
            f"{self._label} is malformed or truncated: {where + ' ' if where else ''}{what}"
        )

    def _u16(self, position: int) -> int:
        return int(struct.unpack_from("<H", self._data, position)[0])

    def _u32(self, position: int) -> int:
        return int(struct.unpack_from("<I", self._data, position)[0])

    def _inside(self, position: int, size: int, alignment: int, what: str) -> None:
        if position < 0 or position + size > self._size:
            self._fail(f"({what}) lies outside the file")
        if position % alignment:
            self._fail(f"({what}) is not aligned to {alignment} bytes")

    def _table(self, position: int, name: str) -> int:
        """The bytes of a table with all below it, as if nothing were shared."""
        known = self._sizes.get((position, name))
        if known is not None:
            return known
        self._inside(position, 4, 4, name)
        vtable = position - int(struct.unpack_from("<i", self._data, position)[0])
        self._inside(vtable, 4, 2, f"vtable of {name}")
        vtable_size, table_size = self._u16(vtable), self._u16(vtable + 2)
        if vtable_size < 4 or vtable_size % 2 or table_size < 4:
            self._fail(f"(vtable of {name}) has an impossible size")
        self._inside(vtable, vtable_size, 2, f"vtable of {name}")
        self._inside(position, table_size, 4, name)
        total = table_size
        fields = TABLES[name]
        # Slots beyond the schema's are of a newer writer; nothing reads them.
        for slot, field in enumerate(fields[: (vtable_size - 4) // 2]):
            offset = self._u16(vtable + 4 + 2 * slot)
            if offset == 0 or field.name == "-":
                continue
            self._path.append(f".{field.name}")
            width = SCALARS[field.type][1] if field.kind == "scalar" else _UOFFSET
            if offset < 4 or offset + width > table_size:
                self._fail(f"lies outside its table {name}")
            self._inside(position + offset, width, width, field.name)
            if field.kind == "union":
                tag = self._tag(position, vtable, vtable_size, table_size, slot - 1)
                total += self._union(position + offset, UNIONS[field.type], tag)
            elif field.kind != "scalar":
                total += self._child(position + offset, field, name)
            self._path.pop()
            self._bound(total)
        self._sizes[position, name] = total
        return total

    def _bound(self, total: int) -> None:
        if total > self._limit:
            self._fail("has parts that are shared too many times")

    def _tag(self, position: int, vtable: int, size: int, table_size: int, slot: int) -> int:
        """The type field of a union, which is the slot before it; it has been checked already."""
        where = 4 + 2 * slot
        offset = self._u16(vtable + where) if where < size else 0
        return self._data[position + offset] if 0 < offset < table_size else 0

    def _target(self, position: int, size: int, alignment: int, what: str) -> int:
        """Where an offset field points; ``size`` bytes must be there."""
        target = position + self._u32(position)
        self._inside(target, size, alignment, what)
        return target

    def _union(self, position: int, members: tuple[str, ...], tag: int) -> int:
        # The tables of a member that is newer than the schema are not read.
        if not 0 < tag < len(members):
            return 0
        return self._table(self._target(position, 4, 4, members[tag]), members[tag])

    def _child(self, position: int, field: Field, owner: str) -> int:
        if field.kind == "table":
            return self._table(self._target(position, 4, 4, field.type), field.type)
        if field.kind == "string":
            return self._string(position)
        start, count = self._vector(position, field)
        if field.kind == "scalars":
            # Weights are read where they are.
            weights = owner == "Buffer" and field.name == "data"
            return _UOFFSET if weights else _UOFFSET + count * SCALARS[field.type][1]
        total = _UOFFSET
        for index in range(count):
            self._path.append(f"[{index}]")
            element = start + _UOFFSET * index
            if field.kind == "strings":
                total += self._string(element)
            else:
                total += self._table(self._target(element, 4, 4, field.type), field.type)
            total += _UOFFSET
            self._path.pop()
            self._bound(total)
        return total

    def _vector(self, position: int, field: Field) -> tuple[int, int]:
        """Position of the first element and number of elements."""
        start = self._target(position, 4, 4, "vector")
        count = self._u32(start)
        size = SCALARS[field.type][1] if field.kind == "scalars" else _UOFFSET
        self._inside(start + 4, count * size, 1, f"{count} elements")
        if count:
            self._inside(start + 4, size, size, "vector")
        return start + 4, count

    def _string(self, position: int) -> int:
        start = self._target(position, 4, 4, "string")
        count = self._u32(start)
        self._inside(start + 4, count + 1, 1, f"string of {count} bytes")
        if self._data[start + 4 + count] != 0:
            self._fail("is a string without its final 0")
        try:
            self._data[start + 4 : start + 4 + count].decode()
        except UnicodeDecodeError:
            self._fail("is a string that is not UTF-8 text")
        return 4 + count
