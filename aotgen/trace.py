"""What the layers of a run computed, as run programs write it and boards send it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aotgen.errors import BoardError
from aotgen.ir.types import Array
from aotgen.manifest import Layer

Expected = Callable[[int, int, int], "Array | None"]
"""What (step, layer, number of its output) should compute, dense in its logical order; None where
nobody knows or asks.
"""


@dataclass(frozen=True)
class TraceRecord:
    """What one kernel call computed: ``data`` has its logical shape; it is empty where nobody asked
    for it.
    """

    layer: int
    step: int
    elem_bytes: int
    shape: tuple[int, ...]
    data: bytes


def parse_trace(data: bytes) -> list[TraceRecord]:
    """Read a trace file.

    A record is int32 layer, step, ndim, elem_bytes, dims[ndim], then the dense data.

    Raises:
        BoardError: it ends in the middle of a record.
    """
    records, at = [], 0
    while at < len(data):
        try:
            layer, step, ndim, elem_bytes = struct.unpack_from("<4i", data, at)
            shape = struct.unpack_from(f"<{ndim}i", data, at + 16)
        except struct.error:
            raise BoardError("the trace ends in the middle of a record") from None
        start = at + 16 + 4 * ndim
        end = start + elem_bytes * int(np.prod(shape, dtype=np.int64))
        if end > len(data):
            raise BoardError("the trace ends in the middle of a record")
        records.append(TraceRecord(layer, step, elem_bytes, shape, data[start:end]))
        at = end
    return records


def joined(records: Sequence[TraceRecord], layers: Sequence[Layer]) -> list[TraceRecord]:
    """The records with the pieces of each layer that computes by rows put together, where its first
    piece was.
    """
    whole: list[TraceRecord] = []
    place: dict[tuple[int, int], int] = {}
    for record in records:
        key = (record.step, record.layer)
        by_rows = 0 <= record.layer < len(layers) and layers[record.layer].by_rows
        if not by_rows or key not in place:
            place[key] = len(whole)
            whole.append(record)
            continue
        before = whole[place[key]]
        rows = before.shape[1] + record.shape[1]
        shape = (before.shape[0], rows, *before.shape[2:])
        whole[place[key]] = replace(before, shape=shape, data=before.data + record.data)
    return whole
