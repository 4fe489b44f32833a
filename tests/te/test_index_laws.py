"""Laws of index arithmetic: the value stays, ranges hold, and known forms vanish."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from aotgen.te.index import (
    Axis,
    Div,
    Index,
    Mod,
    as_index,
    atoms_of,
    ceildiv,
    evaluate,
    flatten,
    maximum,
    minimum,
    of_atom,
    unflatten,
)
from aotgen.te.simplify import Rewriter

Point = dict[Axis, int]
Plain = Callable[[Point], int]


def grow(rng: random.Random, axes: list[Axis], depth: int) -> tuple[Index, Plain]:
    """A random index and the same arithmetic in plain Python."""
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.3:
            constant = rng.randint(-9, 9)
            return as_index(constant), lambda p: constant
        axis = rng.choice(axes)
        return of_atom(axis), lambda p: p[axis]
    a, fa = grow(rng, axes, depth - 1)
    kind = rng.randrange(7)
    k = rng.randint(1, 8)
    if kind == 0:
        return a * (k - 4), lambda p: fa(p) * (k - 4)
    if kind == 1:
        return a // k, lambda p: fa(p) // k
    if kind == 2:
        return a % k, lambda p: fa(p) % k
    b, fb = grow(rng, axes, depth - 1)
    if kind == 3:
        return a - b, lambda p: fa(p) - fb(p)
    if kind == 4:
        return minimum(a, b), lambda p: min(fa(p), fb(p))
    if kind == 5:
        return maximum(a, b), lambda p: max(fa(p), fb(p))
    return a + b, lambda p: fa(p) + fb(p)


@pytest.mark.parametrize("seed", range(40))
def test_simplified_index_has_the_value_of_the_plain_one(seed: int) -> None:
    rng = random.Random(seed)
    axes = [Axis("i", 6), Axis("j", 4), Axis("k", 12, lo=-3)]
    for _ in range(25):
        index, plain = grow(rng, axes, 5)
        lo, hi = index.range
        for _ in range(12):
            point = {a: rng.randint(a.lo, a.hi - 1) for a in axes}
            value = evaluate(index, point.__getitem__)
            assert value == plain(point)
            assert lo <= value <= hi


@pytest.mark.parametrize("seed", range(20))
def test_substitution_keeps_the_value(seed: int) -> None:
    rng = random.Random(seed)
    axes = [Axis("i", 6), Axis("j", 4)]
    outer, inner = Axis("io", 3), Axis("ii", 2)
    table = {axes[0]: of_atom(outer) * 2 + of_atom(inner)}
    for _ in range(20):
        index, plain = grow(rng, axes, 5)
        split = Rewriter(table).index(index)
        for io in range(3):
            for ii in range(2):
                for j in range(4):
                    point = {axes[0]: io * 2 + ii, axes[1]: j}
                    assert evaluate(split, {outer: io, inner: ii, axes[1]: j}.__getitem__) == plain(
                        point
                    )


def has_division(index: Index) -> bool:
    return any(isinstance(a, Div | Mod) for a in atoms_of(index))


def test_known_forms_vanish() -> None:
    i, j, k = (of_atom(Axis(n, e)) for n, e in (("i", 6), ("j", 4), ("k", 5)))
    flat = (i * 4 + j) * 5 + k
    assert unflatten(flat, (6, 4, 5)) == (i, j, k)
    assert unflatten(flat, (24, 5)) == (i * 4 + j, k)
    assert (i * 4 + j) // 4 == i
    assert (i * 8 + j * 2) // 4 == i * 2 + j // 2
    assert (i // 2) * 2 + i % 2 == i
    assert (i // 2) // 3 == as_index(0)
    assert minimum(j, 3) == j
    assert maximum(j - 3, 0) == as_index(0)
    assert ceildiv(j + 1, 8) == as_index(1)
    assert not has_division(flatten(unflatten(flat, (6, 20)), (20, 1)))
