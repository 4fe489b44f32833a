"""Arena offsets for allocations with known lifetimes.

Offset assignment is the NP-hard dynamic storage allocation problem. Several greedy orders (largest
first, longest first, TensorFlow Lite's "greedy by breadth": Pisarchyk and Lee, 2020) are tried with
first and best fit. While the smallest result is above the lower bound, a seeded search moves what
lies on top, or beside it, forward in that order; then it takes such items out with their neighbours
and puts them back in other orders, which also serves problems of thousands of items.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aotgen.errors import InternalError

ALIGN = 64
"""Byte alignment of an allocation unless it says another: see ``Target.align``."""

NEIGHBOURHOOD = 60
"""From so many items on, what is repacked together does not grow further."""

ROUND_VISITS = 40_000
"""Pairs of allocations that a round of each search may look at: the cost of a try is the pairs that
live together.
"""

MAX_TRIES = 100
"""Most tries of a round, for problems of a few allocations."""


@dataclass(frozen=True)
class Allocation:
    """Memory that must not overlap another's while both live.

    Attributes:
        name: unique.
        bytes: size.
        first: first step at which it holds data.
        last: last step at which it is read, inclusive.
        align: of its offset and size, in bytes; the same for all of a problem.
    """

    name: str
    bytes: int
    first: int
    last: int
    align: int = ALIGN

    @property
    def size(self) -> int:
        """Bytes rounded up to the alignment."""
        return -(-self.bytes // self.align) * self.align

    def meets(self, other: Allocation) -> bool:
        """Whether both live at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ArenaMap:
    """Where every allocation lies.

    Attributes:
        offsets: byte offset by name.
        bytes: size of the arena.
        lower_bound: largest sum of live allocations at a step; no placement can be smaller.
        peak_step: a step at which that sum is reached.
    """

    offsets: dict[str, int]
    bytes: int
    lower_bound: int
    peak_step: int


def live_bytes(allocations: Sequence[Allocation]) -> tuple[list[int], list[int]]:
    """The steps at which something begins to live, in order, and the bytes that live at each."""
    change: dict[int, int] = {}
    for a in allocations:
        change[a.first] = change.get(a.first, 0) + a.size
        change[a.last + 1] = change.get(a.last + 1, 0) - a.size
    begins = {a.first for a in allocations}
    steps, live, now = [], [], 0
    for step in sorted(change):
        now += change[step]
        if step in begins:
            steps.append(step)
            live.append(now)
    return steps, live


def lower_bound(allocations: Sequence[Allocation]) -> tuple[int, int]:
    """(bytes, step) of the largest sum of live allocations."""
    steps, live = live_bytes(allocations)
    most = max(live, default=0)
    return (most, steps[live.index(most)]) if most else (0, 0)


def conflict_lists(allocations: Sequence[Allocation]) -> list[list[int]]:
    """For each allocation those that live at a step with it, in one sweep over the steps."""
    found: list[list[int]] = [[] for _ in allocations]
    active: list[int] = []
    for i in sorted(range(len(allocations)), key=lambda i: allocations[i].first):
        active = [j for j in active if allocations[j].last >= allocations[i].first]
        for j in active:
            found[i].append(j)
            found[j].append(i)
        active.append(i)
    return found


def check_overlap(allocations: Sequence[Allocation], offsets: dict[str, int]) -> None:
    """Raise InternalError when two allocations that live together share a byte, or one is
    misaligned.
    """
    conflicts = conflict_lists(allocations)
    for index, a in enumerate(allocations):
        if offsets[a.name] % a.align:
            raise InternalError(f"arena: {a.name} is not aligned to {a.align} bytes")
        for b in (allocations[j] for j in conflicts[index] if j > index):
            apart = (
                offsets[a.name] + a.size <= offsets[b.name]
                or offsets[b.name] + b.size <= offsets[a.name]
            )
            if not apart:
                raise InternalError(f"arena: {a.name} and {b.name} overlap")


def place_behind(
    allocations: Sequence[Allocation], offsets: dict[str, int], late: Sequence[Allocation]
) -> dict[str, int]:
    """The offsets of all allocations, where all but the ``late`` ones keep theirs; a late one gets
    the lowest that is free while it lives, the largest first.
    """
    placed = dict(offsets)
    for item in sorted(late, key=lambda a: (-a.size, a.name)):
        start = 0
        busy = sorted(
            (placed[a.name], placed[a.name] + a.size)
            for a in allocations
            if a.name in placed and a.meets(item)
        )
        for low, high in busy:
            if start + item.size <= low:
                break
            start = max(start, high)
        placed[item.name] = start
    check_overlap(allocations, placed)
    return placed


class _Problem:
    """The allocations with their conflict lists."""

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        self.items = list(allocations)
        self.sizes = [a.size for a in self.items]
        self.conflicts = conflict_lists(self.items)

    def place(
        self,
        order: Iterable[int],
        best_fit: bool,
        limit: int | None = None,
        placed: list[int] | None = None,
    ) -> tuple[int, list[int]] | None:
        """Give each item in turn the lowest (or tightest) gap among the placed items that it meets.

        Args:
            order: the items to place.
            best_fit: the tightest gap rather than the lowest.
            limit: give up when an item ends above it.
            placed: offsets of items that stay where they are, -1 for the others.

        Returns:
            (where the highest item of ``order`` ends, offsets of all), or None above the limit.
        """
        sizes = self.sizes
        offsets = [-1] * len(sizes) if placed is None else placed
        top = 0
        for i in order:
            size = sizes[i]
            taken = sorted(
                [(offsets[j], offsets[j] + sizes[j]) for j in self.conflicts[i] if offsets[j] >= 0]
            )
            chosen, slack, end = -1, 0, 0
            for start, stop in taken:
                gap = start - end
                if gap >= size and (chosen < 0 or (best_fit and gap < slack)):
                    chosen, slack = end, gap
                    if not best_fit:
                        break
                end = max(end, stop)
            offsets[i] = chosen if chosen >= 0 else end
            top = max(top, offsets[i] + size)
            if limit is not None and top > limit:
                return None
        return top, offsets

    def orders(self) -> list[list[int]]:
        items, sizes, indices = self.items, self.sizes, range(len(self.items))
        steps, live = live_bytes(items)
        # Most bytes live together with an item: it is placed early where memory is tight.
        breadth = [
            max(live[bisect_left(steps, a.first) : bisect_right(steps, a.last)]) for a in items
        ]
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda i: (-sizes[i], items[i].first),
            lambda i: (-sizes[i] * (items[i].last - items[i].first + 1), items[i].first),
            lambda i: (-(items[i].last - items[i].first), -sizes[i]),
            lambda i: (items[i].first, -sizes[i]),
            lambda i: (-items[i].last, -sizes[i]),
            lambda i: (-breadth[i], -sizes[i]),
        ]
        return [sorted(indices, key=key) for key in keys]

    def highest(self, offsets: list[int], top: int) -> list[int]:
        """The items that end at ``top``."""
        return [i for i, at in enumerate(offsets) if at + self.sizes[i] == top]

    def moved(
        self, order: list[int], top: int, offsets: list[int], rng: random.Random
    ) -> list[int]:
        """A neighbour of ``order``: an item that ends at the top, or one that it meets, comes
        earlier; now and then anywhere.
        """
        item = rng.choice(self.highest(offsets, top))
        if self.conflicts[item] and rng.random() < 0.5:
            item = rng.choice(self.conflicts[item])
        trial = list(order)
        at = trial.index(item)
        del trial[at]
        trial.insert(rng.randrange(at if at and rng.random() < 0.8 else len(order)), item)
        return trial

    def repacked(self, top: int, offsets: list[int], rng: random.Random) -> list[int] | None:
        """Offsets where an item at the top and some of what it meets have been taken out and put
        back in another order, none above ``top``; None when they do not fit.

        Costs what the neighbourhood holds, not what the whole problem does.
        """
        item = rng.choice(self.highest(offsets, top))
        near = {item, *self.conflicts[item]}
        for _ in range(rng.randrange(3)):
            if len(near) < NEIGHBOURHOOD:
                near.update([m for j in near for m in self.conflicts[j]])
        order = [j for j in sorted(near) if j == item or rng.random() < 0.85]
        kind = rng.random()
        if kind < 0.4:
            rng.shuffle(order)
        elif kind < 0.7:
            weight = {j: self.sizes[j] * (0.5 + rng.random()) for j in order}
            order.sort(key=lambda j: -weight[j])
        else:
            height = {j: offsets[j] + 0.3 * top * rng.random() for j in order}
            height[item] -= self.sizes[item]
            order.sort(key=lambda j: height[j])
        placed = list(offsets)
        for j in order:
            placed[j] = -1
        found = self.place(order, rng.random() < 0.5, top, placed)
        return None if found is None else found[1]


def plan_arena(allocations: Sequence[Allocation], *, rounds: int = 400, seed: int = 1) -> ArenaMap:
    """Place all allocations; deterministic.

    Args:
        allocations: with unique names.
        rounds: how long to search when no greedy order reaches the lower bound; a round takes some
            milliseconds.
        seed: of the search.

    Raises:
        InternalError: two allocations that live together overlap (never, by construction; checked).
    """
    bound, peak = lower_bound(allocations)
    if not allocations:
        return ArenaMap({}, 0, 0, 0)
    problem = _Problem(allocations)
    results = [
        (*found, order, best_fit)
        for order in problem.orders()
        for best_fit in (False, True)
        for found in [problem.place(order, best_fit)]
        if found is not None
    ]
    top, offsets, order, best_fit = min(results, key=lambda r: r[0])
    rng = random.Random(seed)
    visits = sum(1 + len(met) for met in problem.conflicts)
    tries = min(rounds * ROUND_VISITS // visits, rounds * MAX_TRIES)
    for _ in range(tries):
        if top <= bound:
            break
        trial = problem.moved(order, top, offsets, rng)
        found = problem.place(trial, best_fit, limit=top)
        if found is not None:
            order, (top, offsets) = trial, found
    for _ in range(tries):
        if top <= bound:
            break
        repacked = problem.repacked(top, offsets, rng)
        if repacked is not None:
            offsets = repacked
            top = max(at + size for at, size in zip(offsets, problem.sizes, strict=True))
    table = {a.name: offsets[i] for i, a in enumerate(allocations)}
    check_overlap(allocations, table)
    return ArenaMap(table, top, bound, peak)
