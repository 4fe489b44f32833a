"""Lifetimes, and which storages may share memory."""

from __future__ import annotations

from aotgen.ir.graph import Value
from aotgen.ir.types import DType, TensorType
from aotgen.memory.liveness import Liveness, Step
from aotgen.memory.storage import Placement, Storage, root_view
from aotgen.schedule.base import Border

NONE: Border = ((0, 0), (0, 0))


def storage(name: str, shape: tuple[int, int], border: Border = NONE) -> Storage:
    value = Value(name, TensorType(DType.F32, shape))
    view, origin, elements = root_view(value, border)
    return Storage(value, "arena", view, origin, elements)


def placement(of: Storage) -> Placement:
    return Placement(of, of.origin, of.view)


def test_spans() -> None:
    x, a, y = storage("x", (2, 3)), storage("a", (2, 3)), storage("y", (2, 3))
    steps = [Step((), (a,)), Step((x,), (y,)), Step((a, y), (y,))]
    live = Liveness.of(steps, [x], [y])
    assert live.spans == {x: (0, 1), a: (0, 2), y: (1, 2)}


def test_overwrites_what_dies_here_and_is_laid_out_alike() -> None:
    a, b, c = storage("a", (2, 3)), storage("b", (2, 3)), storage("c", (2, 3))
    live = Liveness.of([Step((), (a,)), Step((a,), (b,)), Step((b,), (c,))], [], [c])
    assert live.can_overwrite(1, placement(a), placement(b))
    live.overwrite(a, b)
    assert live.can_overwrite(2, placement(b), placement(c))
    live.overwrite(b, c)
    allocations, names = live.allocations(64)
    assert [(x.bytes, x.first, x.last) for x in allocations] == [(24, 0, 2)]
    assert len(set(names.values())) == 1


def test_does_not_overwrite_what_is_read_later_or_twice() -> None:
    a, b, c = storage("a", (2, 3)), storage("b", (2, 3)), storage("c", (2, 3))
    later = Liveness.of([Step((), (a,)), Step((a,), (b,)), Step((a, b), (c,))], [], [c])
    assert not later.can_overwrite(1, placement(a), placement(b))
    twice = Liveness.of([Step((), (a,)), Step((a, a), (b,))], [], [b])
    assert not twice.can_overwrite(1, placement(a), placement(b))


def test_does_not_overwrite_another_border_of_the_same_size() -> None:
    a = storage("a", (3, 4), ((1, 0), (0, 0)))
    b = storage("b", (3, 4), ((1, 0), (0, 0)))
    below = storage("c", (3, 4), ((0, 1), (0, 0)))
    live = Liveness.of([Step((), (a,)), Step((a,), (b, below))], [], [])
    assert live.can_overwrite(1, placement(a), placement(b))
    assert not live.can_overwrite(1, placement(a), placement(below))


def test_scratch_has_a_name_that_no_value_can_take() -> None:
    tricky = storage("scratch 0", (2, 3))
    allocations, _ = Liveness.of([Step((), (tricky,), 100)], [], [tricky]).allocations(64)
    assert len({a.name for a in allocations}) == 2
