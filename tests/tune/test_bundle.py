"""Bundles: equal candidates are one case, contents are what a kernel must see."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.schedule.base import Config
from aotgen.target.board import load_board
from aotgen.tune.bundle import Buffer, Bundle, Bundler, files_of, table_source
from aotgen.tune.outcome import Candidate
from aotgen.tune.task import Point, kernel_hash
from tests.tune.planted import PlantedTask, conv_task, default_candidates, planted, planted_task

BOARD = load_board("host-scalar")
TARGET = BOARD.target()


def made(candidates: list[Candidate]) -> Bundle:
    bundle, failed = Bundler(BOARD).bundle(candidates)
    assert not failed
    return bundle


def memory(bundle: Bundle, buffer: Buffer, dtype: str = "float32") -> np.ndarray:
    return np.frombuffer(bundle.blobs[buffer.blob], dtype)


def test_equal_kernels_are_one_case() -> None:
    task = planted_task(TARGET)
    twin = Candidate(task, Point("planted", Config.of(body="right", twin=True)))
    bundle = made([*planted(task, "right", "wrong"), twin])
    assert bundle.members == (0, 1, 0)
    assert len(bundle.cases) == len(bundle.units) == 2
    template = task.templates()[0]
    kernel = task.kernel(template, twin.point.config)
    assert bundle.cases[0].kernel == kernel_hash(kernel)


def test_tasks_do_not_mix() -> None:
    """The same kernel with other numbers is another case, of one compiled unit."""
    bundle = made([c for key in ("1", "2") for c in planted(planted_task(TARGET, key), "right")])
    assert bundle.members == (0, 1)
    assert len(bundle.units) == 1


def test_contents() -> None:
    task = conv_task(TARGET)
    bundle = made(default_candidates(task))
    inputs = task.inputs()
    (x,) = inputs.values()
    (want,) = task.expected(inputs)
    for case in bundle.cases:
        by_role = {b.role: b for b in case.buffers}
        image = memory(bundle, by_role["input"])
        # Whatever the border, it is zero, and the elements are in order.
        assert np.array_equal(image[image != 0], x.reshape(-1))
        out = by_role["output"]
        assert out.element == "f32"
        assert np.array_equal(
            memory(bundle, out), np.ascontiguousarray(want).astype(np.float32).reshape(-1)
        )
        last = out.start + out.size * sum(
            (n - 1) * s for n, s in zip(out.shape, out.strides, strict=True)
        )
        assert np.prod(out.shape) == want.size and last + out.size <= out.bytes


def test_pickles_and_repeats() -> None:
    candidates = default_candidates(conv_task(TARGET))
    bundle = made(candidates)
    assert pickle.loads(pickle.dumps(bundle)) == bundle
    every = range(len(bundle.cases))
    assert table_source(bundle, every) == table_source(made(candidates), every)


def test_files() -> None:
    """Each blob is where the table says, large ones in files of their own."""
    bundle = made(default_candidates(conv_task(TARGET)))
    files, places = files_of(bundle, small=4096)
    assert len(files) == 1 + sum(len(data) >= 4096 for data in bundle.blobs.values())
    for name, data in bundle.blobs.items():
        file, at = places[name]
        assert files[file][at : at + len(data)] == data and at % 64 == 0


def test_a_config_that_is_not_legal() -> None:
    task = conv_task(TARGET)
    point = Point("conv2d_direct", Config.of(nonsense=1))
    good = planted(planted_task(TARGET), "right")
    bundle, failed = Bundler(BOARD).bundle([Candidate(task, point), *good])
    assert [(n, o.status) for n, o in failed] == [(0, "render")]
    assert failed[0][1].message and bundle.members == (None, 0)
    assert Bundler(BOARD).bundle([Candidate(task, Point("nowhere", Config()))])[1]


@pytest.mark.parametrize(("source", "element"), [(DType.F32, "near_i8"), (DType.I8, "exact")])
def test_integers(source: DType, element: str) -> None:
    """Those rounded from floats may be a step apart."""
    graph = Graph("case", [], [], [])
    node = graph.make("cast", [Value("x", TensorType(source, (4, 8)))], name="c", dtype=DType.I8)
    group = Group([node], node, "task")
    task = PlantedTask("ab", "cast", "cast", group, TARGET, ("a",))
    (case,) = made(planted(task, "right")).cases
    assert [b.element for b in case.buffers if b.role == "output"] == [element]
