"""When each storage is alive, and which storages share memory because one overwrites another.

Steps are the layers of a Program in execution order. Aliasing is decided here, before any kernel's
text is final, and the arena planner then sees merged storages as one allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aotgen.memory.planner import Allocation
from aotgen.memory.storage import Placement, Storage


@dataclass(frozen=True)
class Step:
    """What one layer touches.

    Attributes:
        reads: storages of its inputs, one entry a reader argument.
        writes: storages of its outputs.
        scratch_bytes: alive during this step alone.
    """

    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]
    scratch_bytes: int = 0


@dataclass
class Liveness:
    """Lifetimes of all storages.

    Attributes:
        steps: in execution order.
        spans: (first, last) step of every storage, those of merged ones united.
        merged: storage -> the storage whose memory it uses.
    """

    steps: list[Step]
    spans: dict[Storage, tuple[int, int]] = field(default_factory=dict)
    merged: dict[Storage, Storage] = field(default_factory=dict)

    @classmethod
    def of(
        cls, steps: Sequence[Step], inputs: Sequence[Storage], outputs: Sequence[Storage]
    ) -> Liveness:
        """Lifetimes from the steps; graph inputs live from the start, graph outputs to the end."""
        live = cls(list(steps))
        for index, step in enumerate(steps):
            for storage in (*step.reads, *step.writes):
                live._touch(storage, index)
        for storage in inputs:
            live._touch(storage, 0)
        for storage in outputs:
            live._touch(storage, max(len(steps) - 1, 0))
        return live

    def _touch(self, storage: Storage, step: int) -> None:
        first, last = self.spans.get(storage, (step, step))
        self.spans[storage] = (min(first, step), max(last, step))

    def owner(self, storage: Storage) -> Storage:
        """The storage whose memory ``storage`` uses."""
        while storage in self.merged:
            storage = self.merged[storage]
        return storage

    def starts_at(self, storage: Storage, step: int) -> bool:
        """Whether ``step`` is the first to touch an arena storage of its own."""
        alone = storage.kind == "arena" and storage not in self.merged
        return alone and self.spans[storage][0] == step

    def can_overwrite(self, step: int, source: Placement, output: Placement) -> bool:
        """Whether ``output`` may take the memory of ``source``, which must die at ``step``.

        Both must be laid out alike, borders included: a border is cleared once, when the first of
        them is written.
        """
        a, b = source.storage, output.storage
        alike = (
            a.kind == "arena"
            and a is not b
            and a.root.dtype is b.root.dtype
            and a.view == b.view
            and (source.offset, source.view) == (output.offset, output.view)
        )
        return alike and self.spans[a][1] == step and self.steps[step].reads.count(a) == 1

    def overwrite(self, source: Storage, output: Storage) -> None:
        """Let ``output`` use the memory of ``source``."""
        self.merged[output] = source
        span = (self.spans[source][0], self.spans[output][1])
        self.spans[source] = self.spans[output] = span

    def widen(self, first: int, last: int) -> None:
        """Let what is alive in any of these steps be so in all of them: they run in a loop."""
        for storage, span in self.spans.items():
            self.spans[storage] = widened(span, first, last)

    def allocations(
        self, align: int, sizes_of: Mapping[Storage, int] | None = None
    ) -> tuple[list[Allocation], dict[Storage, str]]:
        """What the arena must hold, and the allocation of each storage in it by name.

        Args:
            align: of each of them, in bytes.
            sizes_of: bytes of storages that are not kept whole.

        The scratch of a step is named ``scratch <step>``; a storage ``<number> <root value>``.
        """
        sizes: dict[Storage, tuple[int, int, int]] = {}
        for storage, (first, last) in self.spans.items():
            if storage.kind == "state":
                continue
            owner = self.owner(storage)
            size, a, b = sizes.get(owner, (0, first, last))
            own = (sizes_of or {}).get(storage, storage.bytes)
            sizes[owner] = (max(size, own), min(a, first), max(b, last))
        names = {s: f"{i} {s.root.name}" for i, s in enumerate(sizes)}
        found = [Allocation(names[s], size, a, b, align) for s, (size, a, b) in sizes.items()]
        found += [
            Allocation(scratch_name(i), step.scratch_bytes, i, i, align)
            for i, step in enumerate(self.steps)
            if step.scratch_bytes
        ]
        return found, {s: names[self.owner(s)] for s in self.spans if s.kind != "state"}


def widened(span: tuple[int, int], first: int, last: int) -> tuple[int, int]:
    """A span of steps, over all of [first, last] where it touches that."""
    if span[0] <= last and span[1] >= first:
        return min(span[0], first), max(span[1], last)
    return span


def scratch_name(step: int) -> str:
    """Name of a step's scratch among the allocations."""
    return f"scratch {step}"
