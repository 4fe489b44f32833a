"""Zero-copy views: a parent's memory read through the derived view is what numpy's op gives."""

from __future__ import annotations

import random

import numpy as np

from aotgen.ir.graph import Node, Value
from aotgen.ir.types import DType, TensorType
from aotgen.memory.relations import Link, reshape_strides
from aotgen.memory.storage import root_view
from aotgen.schedule.base import View


def value(name: str, shape: tuple[int, ...]) -> Value:
    return Value(name, TensorType(DType.F32, shape))


def read(memory: np.ndarray, view: View, offset: int) -> np.ndarray:
    strides = tuple(4 * s for s in view.strides)
    return np.lib.stride_tricks.as_strided(memory[offset:], view.shape, strides)


def filled(
    parent: Value, border: tuple[tuple[int, int], ...] = ()
) -> tuple[np.ndarray, View, int, np.ndarray]:
    """Memory of a bordered parent (zeros around), its view, origin and logical contents."""
    view, origin, elements = root_view(parent, border)
    memory = np.zeros(elements, np.float32)
    data = np.arange(1, parent.type.numel + 1, dtype=np.float32).reshape(parent.shape)
    read(memory, view, origin)[...] = data
    return memory, view, origin, data


def check(link: Link, expected: np.ndarray, memory: np.ndarray, view: View, origin: int) -> None:
    derived = link.derive(view)
    assert derived is not None
    np.testing.assert_array_equal(read(memory, derived[0], origin + derived[1]), expected)


def test_transpose_both_ways() -> None:
    x, y = value("x", (2, 3, 4)), value("y", (4, 2, 3))
    node = Node("transpose", [x], [y], {"perm": (2, 0, 1)})
    memory, view, origin, data = filled(x, ((0, 0), (1, 2), (0, 0)))
    check(Link(y, x, node, down=True), data.transpose(2, 0, 1), memory, view, origin)
    memory, view, origin, data = filled(y)
    check(Link(x, y, node, down=False), data.transpose(1, 2, 0), memory, view, origin)


def test_border_follows_transpose() -> None:
    x, y = value("x", (1, 3, 5, 6)), value("y", (1, 5, 6, 3))
    node = Node("transpose", [x], [y], {"perm": (0, 2, 3, 1)})
    wanted = ((0, 0), (1, 1), (2, 0), (0, 0))
    assert Link(y, x, node, down=True).lift(wanted) == ((0, 0), (0, 0), (1, 1), (2, 0))
    _memory, view, _origin, _data = filled(x, ((0, 0), (0, 0), (1, 1), (2, 0)))
    derived = Link(y, x, node, down=True).derive(view)
    assert derived is not None and derived[0].border == wanted


def test_slice_split_concat() -> None:
    x = value("x", (4, 6, 2))
    memory, view, origin, data = filled(x, ((1, 1), (0, 0), (0, 0)))
    y = value("y", (2, 3, 2))
    node = Node("slice", [x], [y], {"starts": (1, 0, 0), "ends": (3, 6, 2), "steps": (1, 2, 1)})
    check(Link(y, x, node, down=True), data[1:3, 0:6:2], memory, view, origin)
    parts = [value("a", (4, 1, 2)), value("b", (4, 5, 2))]
    split = Node("split", [x], parts, {"axis": 1, "sizes": (1, 5)})
    check(Link(parts[1], x, split, down=True, start=1), data[:, 1:], memory, view, origin)
    concat = Node("concat", list(parts), [x], {"axis": 1})
    check(Link(parts[1], x, concat, down=False, start=1), data[:, 1:], memory, view, origin)
    assert Link(parts[0], x, concat, down=False).lift(((1, 1), (0, 0), (0, 0))) == (
        (1, 1),
        (0, 0),
        (0, 0),
    )
    assert Link(parts[0], x, concat, down=False).lift(((0, 0), (0, 1), (0, 0))) is None


def test_reshape_follows_numpy() -> None:
    """Wherever numpy can reshape a strided array without a copy, so can we, with the same
    elements.
    """
    rng = random.Random(2)
    agreed = 0
    for _ in range(400):
        shape = tuple(rng.choice([1, 2, 3, 4]) for _ in range(rng.randrange(1, 5)))
        perm = list(range(len(shape)))
        if rng.random() < 0.4:
            rng.shuffle(perm)
        base = np.arange(int(np.prod(shape)) * 2, dtype=np.float32)
        array = base[: int(np.prod(shape))].reshape(shape).transpose(perm)
        flat = list(array.shape)
        new: list[int] = []
        total = array.size
        while total > 1:
            step = rng.choice([d for d in (2, 3, 4, 6, 8, total) if total % d == 0])
            new.append(step)
            total //= step
        rng.shuffle(new)
        new.insert(rng.randrange(len(new) + 1), 1)
        strides = reshape_strides(tuple(flat), tuple(s // 4 for s in array.strides), tuple(new))
        try:
            expected = array.view()
            expected.shape = tuple(new)
        except AttributeError:
            assert strides is None
            continue
        assert strides is not None
        got = np.lib.stride_tricks.as_strided(array, tuple(new), tuple(4 * s for s in strides))
        np.testing.assert_array_equal(got, expected)
        agreed += 1
    assert agreed > 100
