"""Arena offsets for allocations with known lifetimes.

Offset assignment is the NP-hard dynamic storage allocation problem. Several greedy orders (largest
first, longest first, TensorFlow Lite's "greedy by breadth": Pisarchyk and Lee, 2020) are tried with
first and best fit, then a seeded exchange search improves the best order while it is above the
lower bound; the smallest result wins.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aotgen.errors import InternalError

ALIGN = 64
"""Byte alignment of every allocation: a cache line, and at least the widest vector."""


@dataclass(frozen=True)
class Allocation:
    """Memory that must not overlap another's while both live.

    Attributes:
        name: unique.
        bytes: size.
        first: first step at which it holds data.
        last: last step at which it is read, inclusive.
    """

    name: str
    bytes: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Bytes rounded up to the alignment."""
        return -(-self.bytes // ALIGN) * ALIGN

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


def lower_bound(allocations: Sequence[Allocation]) -> tuple[int, int]:
    """(bytes, step) of the largest sum of live allocations."""
    best, at = 0, 0
    for step in sorted({a.first for a in allocations}):
        live = sum(a.size for a in allocations if a.first <= step <= a.last)
        if live > best:
            best, at = live, step
    return best, at


def check_overlap(allocations: Sequence[Allocation], offsets: dict[str, int]) -> None:
    """Raise InternalError when two allocations that live together share a byte, or one is
    misaligned.
    """
    for index, a in enumerate(allocations):
        if offsets[a.name] % ALIGN:
            raise InternalError(f"arena: {a.name} is not aligned to {ALIGN} bytes")
        for b in allocations[index + 1 :]:
            apart = (
                offsets[a.name] + a.size <= offsets[b.name]
                or offsets[b.name] + b.size <= offsets[a.name]
            )
            if a.meets(b) and not apart:
                raise InternalError(f"arena: {a.name} and {b.name} overlap")


class _Problem:
    """The allocations with their conflict lists."""

    def __init__(self, allocations: Sequence[Allocation]) -> None:
        self.items = list(allocations)
        self.conflicts = [
            [j for j, b in enumerate(self.items) if j != i and a.meets(b)]
            for i, a in enumerate(self.items)
        ]

    def place(self, order: Iterable[int], best_fit: bool) -> tuple[int, list[int]]:
        """Give each item in turn the lowest (or tightest) gap among the placed items that it
        meets.
        """
        offsets = [-1] * len(self.items)
        top = 0
        for i in order:
            size = self.items[i].size
            taken = sorted(
                (offsets[j], offsets[j] + self.items[j].size)
                for j in self.conflicts[i]
                if offsets[j] >= 0
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
        return top, offsets

    def orders(self) -> list[list[int]]:
        items, indices = self.items, range(len(self.items))
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda i: (-items[i].size, items[i].first),
            lambda i: (-items[i].size * (items[i].last - items[i].first + 1), items[i].first),
            lambda i: (-(items[i].last - items[i].first), -items[i].size),
            lambda i: (items[i].first, -items[i].size),
            lambda i: (-items[i].last, -items[i].size),
            lambda i: (-self.breadth(i), -items[i].size),
        ]
        return [sorted(indices, key=key) for key in keys]

    def breadth(self, index: int) -> int:
        """Most bytes live together with an item: it is placed early where memory is tight."""
        item = self.items[index]
        steps = {item.first} | {self.items[j].first for j in self.conflicts[index]}
        return max(
            sum(a.size for a in self.items if a.first <= s <= a.last)
            for s in steps
            if item.first <= s <= item.last
        )


def plan_arena(allocations: Sequence[Allocation], *, rounds: int = 400, seed: int = 1) -> ArenaMap:
    """Place all allocations; deterministic.

    Args:
        allocations: with unique names.
        rounds: exchanges tried when no greedy order reaches the lower bound.
        seed: of the exchange search.

    Raises:
        InternalError: two allocations that live together overlap (never, by construction; checked).
    """
    bound, peak = lower_bound(allocations)
    if not allocations:
        return ArenaMap({}, 0, 0, 0)
    problem = _Problem(allocations)
    results = [
        (*problem.place(order, best_fit), order, best_fit)
        for order in problem.orders()
        for best_fit in (False, True)
    ]
    top, offsets, order, best_fit = min(results, key=lambda r: r[0])
    rng = random.Random(seed)
    tries = 0 if len(allocations) < 3 else rounds
    while top > bound and tries > 0:
        tries -= 1
        trial = list(order)
        i, j = rng.randrange(len(trial)), rng.randrange(len(trial))
        trial.insert(i, trial.pop(j))
        found, places = problem.place(trial, best_fit)
        if found <= top:
            order = trial
            if found < top:
                top, offsets = found, places
    table = {a.name: offsets[i] for i, a in enumerate(allocations)}
    check_overlap(allocations, table)
    return ArenaMap(table, top, bound, peak)
