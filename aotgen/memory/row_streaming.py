"""Runs of layers that compute by rows together, so that only the rows between them lie in memory.

The layers of a region run in a loop. A step computes some rows of the last layer, or one row in so
many steps, and of every other layer those rows that the layers behind it need for that; none is
computed twice. Between two layers stands a row buffer in place of the whole map: the rows that the
next step still reads are moved to its front, then the new ones are written behind them. In short
steps a buffer holds little more than the rows of one window. Patch-based inference (Lin et al.,
MCUNetV2, 2021) saves memory by computing the borders of patches again; with patches as wide as the
map there are none.

A kernel computes output rows [r0, r1) and reads an input by a pointer to its row 0, so that a
buffer that begins with row b is passed as a pointer b rows in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from aotgen.ir.graph import Group
from aotgen.memory.liveness import widened
from aotgen.memory.row_windows import Window
from aotgen.memory.storage import Placement, Storage
from aotgen.schedule.base import Kernel

STEPS = ((8, 1), (4, 1), (2, 1), (1, 1), (1, 2), (1, 4), (1, 8), (1, 16))
"""Rows of the last layer in how many steps: more rows, fewer calls of kernels, larger buffers."""

SINGLE_ROW = 1.08
"""What memory counts where a step has one row of the last layer: kernels prepare some of what they
read with each call, which costs time.
"""


@dataclass(frozen=True)
class Pace:
    """How far something has come: by the end of step t the first ``rows(t)`` of ``end`` rows, about
    ``slope`` rows in ``per`` steps.
    """

    slope: int
    offset: int
    per: int
    end: int

    def rows(self, step: int) -> int:
        return max(0, min(self.end, (self.slope * step + self.offset) // self.per))

    @property
    def start(self) -> int:
        """A step before which there are no rows, nor many steps before the first."""
        return -(self.offset // self.slope) - 1

    @property
    def is_single(self) -> bool:
        """Whether no step has more than a row."""
        return self.slope <= self.per

    def later(self, steps: int) -> Pace:
        """The same, so many steps later."""
        return replace(self, offset=self.offset - self.slope * steps)


@dataclass(frozen=True)
class Drop:
    """Which rows of a buffer are not read any more: by the end of step t the first ``stride`` *
    ``pace.rows(t)`` - ``pad``. ``pace`` is a reader's.
    """

    pace: Pace
    stride: int
    pad: int

    def rows(self, step: int) -> int:
        return self.stride * self.pace.rows(step) - self.pad

    @classmethod
    def least(cls, drops: Sequence[Drop]) -> Drop:
        """What is dropped where all of these readers have to be done; their slopes are the same."""
        if len({drop.stride for drop in drops}) > 1:
            drops = [drop.of_single_rows() for drop in drops]
        first = min(drops, key=lambda drop: drop.pace.offset).pace
        end = min(drop.pace.end for drop in drops)
        return cls(replace(first, end=end), drops[0].stride, max(drop.pad for drop in drops))

    def of_single_rows(self) -> Drop:
        """One of stride 1 that drops no more, and at most ``stride`` - 1 rows less."""
        p, n = self.pace, self.stride
        pace = Pace(n * p.slope, n * p.offset, p.per, n * p.end)
        return Drop(pace, 1, self.pad + n - 1)

    def later(self, steps: int) -> Drop:
        """The same, so many steps later."""
        return replace(self, pace=self.pace.later(steps))


@dataclass(frozen=True)
class RowBuffer:
    """A storage of which only some rows are kept.

    Attributes:
        row_bytes: from one row to the next.
        rows: most rows in the buffer at a time.
        written: the rows that its writers have finished by the end of a step.
        dropped: the rows that nothing reads any more by then.
    """

    row_bytes: int
    rows: int
    written: Pace
    dropped: Drop

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes

    def first_row(self, step: int) -> int:
        """The row at the buffer's front during a step."""
        return max(0, min(self.dropped.rows(step - 1), self.written.rows(step - 1)))

    def most_rows(self) -> int:
        """Most rows at a time: what is read behind the first dropped row repeats every ``per``
        steps, or the map ends.
        """
        most, behind = 0, 0
        step = self.written.start
        while behind <= self.written.per and self.written.rows(step - 1) < self.written.end:
            first = self.first_row(step)
            most = max(most, self.written.rows(step) - first)
            behind += first > 0
            step += 1
        return most

    def later(self, steps: int) -> RowBuffer:
        """The same, so many steps later."""
        return replace(self, written=self.written.later(steps), dropped=self.dropped.later(steps))


@dataclass(frozen=True, eq=False)
class Region:
    """Layers [first, last] in a loop of ``steps``.

    Attributes:
        paces: of each of the layers, by its index.
        units: of the kernel's rows in a row of the map, by layer.
        buffers: the storages inside.
    """

    first: int
    last: int
    steps: int
    paces: Mapping[int, Pace]
    units: Mapping[int, int]
    buffers: Mapping[Storage, RowBuffer]

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer <= self.last


@dataclass(frozen=True, eq=False)
class RowLayer:
    """A layer as this module sees it.

    Attributes:
        group: None for a layout copy.
        kernel: rendered, for its rows.
        reads: where each of its activations lies, and the windows through which its output rows
            read it (``windows_of``); no windows where they are not known.
        writes: where its outputs lie.
        scratch_bytes: of its kernel.
    """

    group: Group | None
    kernel: Kernel
    reads: tuple[tuple[Placement, tuple[Window, ...]], ...]
    writes: tuple[Placement, ...]
    scratch_bytes: int


def _units(layer: RowLayer) -> int:
    """Of the kernel's rows in a row of the output's map; 0 where they are something else."""
    if layer.group is None or not layer.kernel.by_rows or len(layer.group.outputs) != 1:
        return 0
    shape = layer.group.output.shape
    if len(shape) < 3 or shape[0] != 1 or not all(windows for _, windows in layer.reads):
        return 0
    units, rest = divmod(layer.kernel.rows, shape[1])
    if units > 1 and any(node.op == "conv" for node in layer.group.nodes):
        return 0  # pieces of pixels, which may be uneven
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
        self.heights = [_height(layer) for layer in layers]
        self.units = [_units(layer) for layer in layers]
        self.maps = {p.storage: _is_map(p.storage, self.external) for p in self._places()}
        self.readers = self._readers()
        self.beginning: dict[int, list[Storage]] = {}
        """Storages between layers, by the first layer that touches them."""
        for storage, (first, last) in self.spans.items():
            if last > first and storage not in self.external:
                self.beginning.setdefault(first, []).append(storage)

    def _places(self) -> Iterable[Placement]:
        for layer in self.layers:
            yield from (*(place for place, _ in layer.reads), *layer.writes)

    def regions(self) -> list[Region]:
        """Disjoint regions, in order, that lower the largest sum of live memory: of those chosen
        with and without regard to ``SINGLE_ROW`` the first, unless it costs more than that.
        """
        usual, least = self._search(SINGLE_ROW), self._search(1.0)
        chosen = usual if self._peak(usual)[0] <= SINGLE_ROW * self._peak(least)[0] else least
        return sorted(chosen, key=lambda r: r.first)

    def _search(self, single_row: float) -> list[Region]:
        """Regions one after the other, each where the largest sum is reached, while it falls."""
        chosen: list[Region] = []
        peak, where = self._peak(chosen)
        while True:
            best: tuple[float, int, int] | None = None
            found: Region | None = None
            for region in self._candidates(where, chosen):
                size, _ = self._peak([*chosen, region])
                weight = single_row if region.paces[region.last].is_single else 1.0
                score = (size * weight, region.last - region.first, region.steps)
                if size < peak and (best is None or score < best):
                    best, found = score, region
            if found is None:
                return chosen
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
            for rows, per in STEPS:
                if rows < self.heights[last]:
                    yield from self._regions(low, where, last, rows, per)

    def _regions(self, low: int, where: int, last: int, rows: int, per: int) -> Iterable[Region]:
        """Regions that end with layer ``last`` and begin with one of ``low`` to ``where``, as far
        as there are such: not with a layer whose output only layers outside read, nor where two
        readers have different paces, or nothing lies between the layers; nor where the first layer
        is slower than a row a step.

        Times count from the step in which the last layer has its first ``rows``, or would have if
        it computed parts of rows. The others begin as many steps before as it takes none more rows
        than usual to do so.
        """
        final = self.heights[last]
        paces = {last: Pace(rows, rows, per, final)}
        buffers: dict[Storage, RowBuffer] = {}
        for first in range(last - 1, low - 1, -1):
            pace = self._demand(first, last, paces)
            if pace is None:
                return
            paces[first] = pace
            for storage in self.beginning.get(first, ()):
                if self.spans[storage][1] > last:
                    continue
                buffer = self._buffer(storage, first, last, paces)
                if buffer is None:
                    return
                buffers[storage] = buffer
            if first <= where and buffers and pace.slope >= per:
                early = max(0, *(-p.start for p in paces.values()))
                yield Region(
                    first,
                    last,
                    -(-final * per // rows) + early,
                    {i: p.later(early) for i, p in paces.items()},
                    {i: self.units[i] for i in range(first, last + 1)},
                    {s: b.later(early) for s, b in buffers.items()},
                )

    def _readers(self) -> list[list[int]]:
        """Of each layer those behind it that read the storages which it writes."""
        by_storage: dict[Storage, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for storage in {place.storage for place, _ in layer.reads}:
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
        written = {place.storage for place in self.layers[index].writes}
        for reader in self.readers[index]:
            if reader > last:
                break
            pace = paces[reader]
            for place, windows in self.layers[reader].reads:
                if place.storage in written:
                    demands += [
                        Pace(
                            window.stride * pace.slope,
                            window.stride * pace.offset
                            + (window.reach - window.pad - window.stride) * pace.per,
                            pace.per,
                            window.stride * (pace.end - 1) + window.reach - window.pad,
                        )
                        for window in windows
                    ]
        if not demands or len({d.slope for d in demands}) != 1:
            return None
        height = self.heights[index]
        end = min(height, max(d.end for d in demands))
        # What only later layers read, outside the region, must be whole.
        if self.spans[self.layers[index].writes[0].storage][1] > last:
            end = height
            if min(d.end for d in demands) < height:
                return None
        return replace(demands[0], offset=max(d.offset for d in demands), end=end)

    def _buffer(
        self,
        storage: Storage,
        first: int,
        last: int,
        paces: Mapping[int, Pace],
    ) -> RowBuffer | None:
        writers: list[Pace] = []
        dropped: list[Drop] = []
        row = storage.view.strides[1]
        for index in range(first, last + 1):
            layer = self.layers[index]
            for place in layer.writes:
                if place.storage is storage:
                    if not self._fits(place, row):
                        return None
                    writers.append(paces[index])
            pace = paces[index]
            for place, windows in layer.reads:
                if place.storage is storage:
                    if not self._fits(place, row):
                        return None
                    dropped += [Drop(pace, w.stride, w.pad) for w in windows]
        if not writers or not dropped:
            return None
        slopes = {p.slope for p in writers} | {d.stride * d.pace.slope for d in dropped}
        if len(slopes) != 1:
            return None
        # Several writers, each of other channels: a row is there when the slowest has written it.
        if len({(p.offset, p.end) for p in writers}) != 1:
            return None
        buffer = RowBuffer(row * storage.root.dtype.size, 0, writers[0], Drop.least(dropped))
        return replace(buffer, rows=buffer.most_rows())

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
