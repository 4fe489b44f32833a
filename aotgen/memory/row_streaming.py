"""Runs of layers that compute by rows together, so that only the rows between them lie in memory.

The layers of a region run in a loop. A step computes ``rows`` rows of the last layer, and of every
other layer those rows that the layers behind it need for that; none is computed twice. Between two
layers stands a row buffer in place of the whole map: the rows that the next step still reads are
moved to its front, then the new ones are written behind them. Patch-based inference (Lin et al.,
MCUNetV2, 2021) saves the same memory by computing the borders of patches again; with patches as
wide as the map there are none.

A kernel computes output rows [r0, r1) and reads an input by a pointer to its row 0, so that a
buffer that begins with row b is passed as a pointer b rows in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from aotgen.ir.graph import Group, Node
from aotgen.memory.liveness import widened
from aotgen.memory.storage import Placement, Storage
from aotgen.ops.registry import OpPattern, op_def
from aotgen.schedule.base import Kernel

STEP_ROWS = (1, 2, 4, 8)
"""Rows of the last layer in a step: more rows, fewer calls of kernels, larger buffers."""

_WINDOWED = frozenset({"qconv", "qavg_pool", "max_pool"})


@dataclass(frozen=True)
class Pace:
    """How far something has come: by step t the first ``rows(t)`` rows."""

    slope: int
    offset: int
    end: int

    def rows(self, step: int) -> int:
        return 0 if step < 0 else max(0, min(self.end, self.slope * step + self.offset))


@dataclass(frozen=True)
class RowBuffer:
    """A storage of which only some rows are kept.

    Attributes:
        row_bytes: from one row to the next.
        rows: most rows in the buffer at a time.
        written: the rows that its writers have finished by the end of a step.
        dropped: the rows that nothing reads any more: by step t those of step t - 1.
    """

    row_bytes: int
    rows: int
    written: Pace
    dropped: Pace

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    def first_row(self, step: int) -> int:
        """The row at the buffer's front during a step."""
        return min(self.dropped.rows(step - 1), self.written.rows(step - 1))


@dataclass(frozen=True, eq=False)
class Region:
    """Layers [first, last] in a loop of ``steps``.

    Attributes:
        rows: of the last layer in a step.
        paces: of each of the layers, by its index.
        units: of the kernel's rows in a row of the map, by layer.
        buffers: the storages inside.
    """

    first: int
    last: int
    steps: int
    rows: int
    paces: Mapping[int, Pace]
    units: Mapping[int, int]
    buffers: Mapping[Storage, RowBuffer]

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer <= self.last


@dataclass(frozen=True)
class Window:
    """Rows of an input that output row r reads: [r * stride - pad, r * stride - pad + reach)."""

    stride: int
    pad: int
    reach: int


@dataclass(frozen=True, eq=False)
class RowLayer:
    """A layer as this module sees it.

    Attributes:
        group: None for a layout copy.
        kernel: rendered, for its rows.
        reads: where its activations lie.
        writes: where its outputs lie.
        scratch_bytes: of its kernel.
    """

    group: Group | None
    kernel: Kernel
    reads: tuple[Placement, ...]
    writes: tuple[Placement, ...]
    scratch_bytes: int


def window_of(group: Group) -> Window | None:
    """Which rows of its activations a Group's output rows read; None where that is not known, or
    where an output row is not a row of the input's map.
    """
    anchor = group.nodes[0]
    if any(len(v.shape) < 3 or v.shape[0] != 1 for v in (*group.activations, group.output)):
        return None
    if anchor.op in _WINDOWED and len(group.nodes) == 1:
        return _convolution(anchor)
    maps = {v.shape[1] for v in (*group.activations, group.output)}
    alike = len(maps) == 1 and all(
        op_def(n.op).pattern in (OpPattern.ELEMENTWISE, OpPattern.BROADCAST) for n in group.nodes
    )
    return Window(1, 0, 1) if alike else None


def _convolution(node: Node) -> Window:
    attrs = node.attrs
    taps = node.input(1).shape[1] if node.op == "qconv" else attrs["kernel"][0]
    reach = (int(taps) - 1) * int(attrs["dilations"][0]) + 1
    return Window(int(attrs["strides"][0]), int(attrs["pads"][0]), reach)


def _units(layer: RowLayer, window: Window | None) -> int:
    """Of the kernel's rows in a row of the output's map; 0 where they are something else."""
    if layer.group is None or not layer.kernel.by_rows or len(layer.group.outputs) != 1:
        return 0
    shape = layer.group.output.shape
    if len(shape) < 3 or shape[0] != 1 or window is None:
        return 0
    units, rest = divmod(layer.kernel.rows, shape[1])
    return 0 if rest else units


def _height(layer: RowLayer) -> int:
    """Rows of the output's map, 0 where it is none."""
    shape = layer.group.output.shape if layer.group is not None else ()
    return int(shape[1]) if len(shape) >= 3 else 0


def _is_map(storage: Storage, external: Set[Storage]) -> bool:
    """Whether a row buffer can stand for the storage."""
    return (
        storage.kind == "arena"
        and storage not in external
        and not storage.has_border
        and storage.view.layout == "strided"
        and len(storage.view.shape) >= 3
        and storage.view.shape[0] == 1
    )


@dataclass
class _Found:
    """A candidate while its buffers and paces are worked out."""

    paces: dict[int, Pace] = field(default_factory=dict)
    buffers: dict[Storage, RowBuffer] = field(default_factory=dict)


class RowStreaming:
    """Finds regions for a list of layers."""

    def __init__(
        self,
        layers: Sequence[RowLayer],
        spans: Mapping[Storage, tuple[int, int]],
        external: Set[Storage],
        align: int,
    ) -> None:
        """
        Args:
            layers: in execution order.
            spans: first and last of them at which each storage is alive.
            external: storages of the graph's inputs and outputs.
            align: of each piece of memory, in bytes.
        """
        self.layers = layers
        self.spans = spans
        self.external = external
        self.align = align
        self.windows = [
            window_of(g) if (g := layer.group) is not None else None for layer in layers
        ]
        self.heights = [_height(layer) for layer in layers]
        self.units = [
            _units(layer, window) for layer, window in zip(layers, self.windows, strict=True)
        ]
        self.maps = {p.storage: _is_map(p.storage, self.external) for p in self._places()}
        self.readers = self._readers()
        self.beginning: dict[int, list[Storage]] = {}
        """Storages between layers, by the first layer that touches them."""
        for storage, (first, last) in self.spans.items():
            if last > first and storage not in self.external:
                self.beginning.setdefault(first, []).append(storage)

    def _places(self) -> Iterable[Placement]:
        for layer in self.layers:
            yield from (*layer.reads, *layer.writes)

    def regions(self) -> list[Region]:
        """Disjoint regions, in order, that lower the largest sum of live memory; one after the
        other, each where that sum is reached, while it falls.
        """
        chosen: list[Region] = []
        peak, where = self._peak(chosen)
        while True:
            best: tuple[int, int, int] | None = None
            found: Region | None = None
            for region in self._candidates(where, chosen):
                size, _ = self._peak([*chosen, region])
                score = (size, region.last - region.first, region.steps)
                if size < peak and (best is None or score < best):
                    best, found = score, region
            if found is None:
                return sorted(chosen, key=lambda r: r.first)
            chosen.append(found)
            peak, where = self._peak(chosen)

    def _candidates(self, where: int, chosen: Sequence[Region]) -> Iterable[Region]:
        """Regions around a layer that meet no other."""

        def free(index: int) -> bool:
            return bool(self.units[index]) and not any(index in r for r in chosen)

        if not free(where):
            return
        low = where
        while low > 0 and free(low - 1):
            low -= 1
        high = where
        while high + 1 < len(self.layers) and free(high + 1):
            high += 1
        for last in range(max(where, low + 1), high + 1):
            for rows in STEP_ROWS:
                if rows < self.heights[last]:
                    yield from self._regions(low, where, last, rows)

    def _regions(self, low: int, where: int, last: int, rows: int) -> Iterable[Region]:
        """Regions that end with layer ``last`` and begin with one of ``low`` to ``where``, as far
        as there are such: not with a layer whose output only layers outside read, nor where two
        readers have different paces, or nothing lies between the layers.
        """
        final = self.heights[last]
        steps = -(-final // rows)
        paces = {last: Pace(rows, rows, final)}
        buffers: dict[Storage, RowBuffer] = {}
        for first in range(last - 1, low - 1, -1):
            pace = self._demand(first, last, paces)
            if pace is None:
                return
            paces[first] = pace
            for storage in self.beginning.get(first, ()):
                if self.spans[storage][1] > last:
                    continue
                buffer = self._buffer(storage, first, last, steps, paces)
                if buffer is None:
                    return
                buffers[storage] = buffer
            if first <= where and buffers:
                units = {i: self.units[i] for i in range(first, last + 1)}
                yield Region(first, last, steps, rows, dict(paces), units, dict(buffers))

    def _readers(self) -> list[list[int]]:
        """Of each layer those behind it that read the storages which it writes."""
        by_storage: dict[Storage, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for storage in {place.storage for place in layer.reads}:
                by_storage.setdefault(storage, []).append(index)
        return [
            sorted(
                {
                    reader
                    for place in layer.writes
                    for reader in by_storage.get(place.storage, ())
                    if reader > index
                }
            )
            for index, layer in enumerate(self.layers)
        ]

    def _demand(self, index: int, last: int, paces: Mapping[int, Pace]) -> Pace | None:
        """The pace at which a layer must compute for its readers."""
        demands = []
        for reader in self.readers[index]:
            if reader > last:
                break
            window = self.windows[reader]
            assert window is not None
            pace = paces[reader]
            demands.append(
                Pace(
                    window.stride * pace.slope,
                    window.stride * (pace.offset - 1) + window.reach - window.pad,
                    window.stride * (pace.end - 1) + window.reach - window.pad,
                )
            )
        if not demands or len({d.slope for d in demands}) != 1:
            return None
        height = self.heights[index]
        end = min(height, max(d.end for d in demands))
        # What only later layers read, outside the region, must be whole.
        if self.spans[self.layers[index].writes[0].storage][1] > last:
            end = height
            if min(d.end for d in demands) < height:
                return None
        return Pace(demands[0].slope, max(d.offset for d in demands), end)

    def _buffer(
        self,
        storage: Storage,
        first: int,
        last: int,
        steps: int,
        paces: Mapping[int, Pace],
    ) -> RowBuffer | None:
        writers, dropped = [], []
        row = storage.view.strides[1]
        for index in range(first, last + 1):
            layer = self.layers[index]
            for place in layer.writes:
                if place.storage is storage:
                    if not self._fits(place, row):
                        return None
                    writers.append(paces[index])
            for place in layer.reads:
                if place.storage is storage:
                    if not self._fits(place, row):
                        return None
                    window, pace = self.windows[index], paces[index]
                    assert window is not None
                    dropped.append(
                        Pace(
                            window.stride * pace.slope,
                            window.stride * pace.offset - window.pad,
                            window.stride * pace.end - window.pad,
                        )
                    )
        if not writers or not dropped or len({p.slope for p in (*writers, *dropped)}) != 1:
            return None
        # Several writers, each of other channels: a row is there when the slowest has written it.
        if len({(p.offset, p.end) for p in writers}) != 1:
            return None
        least = min(dropped, key=lambda p: p.offset)
        buffer = RowBuffer(row * storage.root.dtype.size, 0, writers[0], least)
        rows = max(buffer.written.rows(step) - buffer.first_row(step) for step in range(steps))
        return RowBuffer(buffer.row_bytes, rows, buffer.written, least)

    def _fits(self, place: Placement, row: int) -> bool:
        """Whether a placement's rows are the storage's."""
        view = place.view
        return (
            self.maps[place.storage]
            and view.layout == "strided"
            and view.strides[1] == row
            and 0 <= place.offset < row
        )

    def _peak(self, regions: Sequence[Region]) -> tuple[int, int]:
        """(largest sum of live memory, a layer where it is reached) with these regions."""
        live = [layer.scratch_bytes for layer in self.layers]
        for storage, span in self.spans.items():
            if storage.kind == "state":
                continue
            size = storage.bytes
            for region in regions:
                if storage in region.buffers:
                    size = region.buffers[storage].bytes
                span = widened(span, region.first, region.last)
            size = -(-size // self.align) * self.align
            if storage in self.external and storage.kind in ("input", "output"):
                continue  # the caller's, in memory of its own
            for index in range(span[0], span[1] + 1):
                live[index] += size
        peak = max(live, default=0)
        return peak, live.index(peak) if live else 0
