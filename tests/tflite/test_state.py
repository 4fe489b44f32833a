"""State variables: what a run leaves is what the next one reads, in the interpreter and in C."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import aotgen
from aotgen.codegen.project import generate
from aotgen.errors import InternalError, UnsupportedError
from aotgen.ir.graph import Graph, Value
from aotgen.ir.interpreter import Instance
from aotgen.ir.printer import print_graph
from aotgen.ir.types import DType, TensorType
from aotgen.ir.verifier import verify
from aotgen.options import CompileOptions
from aotgen.passes.pipeline import run_passes
from aotgen.project import Project
from aotgen.target.board import load_board
from tests.e2e.quick_build import QuickModel, assert_close
from tests.oracles import ORACLES
from tests.tflite.recurrent_models import variable_model

F32 = DType.F32


def new_graph(shape: tuple[int, ...]) -> tuple[Graph, Value]:
    x = Value("x", TensorType(F32, shape))
    return Graph("model", [x], [], []), x


def counter() -> Graph:
    """y = total + x; total starts at 1, 2, 3 and keeps y."""
    g, x = new_graph((3,))
    total = g.add_state("total", x.type, np.array([1, 2, 3], np.float32))
    y = g.add("add", [total.value, x])
    total.update = y
    g.outputs, g.output_names = [y], ["y"]
    return g


def delay_line() -> Graph:
    """Two variables in a row: y = what x was two steps ago, z what it was in the last one."""
    g, x = new_graph((2,))
    a = g.add_state("a", x.type, np.array([5, 6], np.float32))
    b = g.add_state("b", x.type, np.zeros(2, np.float32))
    a.update, b.update = x, a.value
    g.outputs, g.output_names = [b.value, a.value], ["y", "z"]
    return g


def swap() -> Graph:
    """Two variables change places, one of them by way of views; y is their difference plus x."""
    g, x = new_graph((2, 3))
    a = g.add_state("a", x.type, np.arange(6, dtype=np.float32).reshape(2, 3))
    b = g.add_state("b", TensorType(F32, (3, 2)), np.ones((3, 2), np.float32))
    a.update = g.add("reshape", [b.value], shape=(2, 3))
    b.update = g.add("reshape", [a.value], shape=(3, 2))
    y = g.add("add", [g.add("sub", [a.value, a.update]), x])
    g.outputs, g.output_names = [y], ["y"]
    return g


def window() -> Graph:
    """A sliding window of four frames, as streaming models keep it: y is the sum over it."""
    g, x = new_graph((1, 1, 5))
    kept = g.add_state("kept", TensorType(F32, (1, 3, 5)), np.full((1, 3, 5), 2, np.float32))
    frames = g.add("concat", [kept.value, x], axis=1)
    kept.update = g.add("slice", [frames], starts=(0, 1, 0), ends=(1, 4, 5), steps=(1, 1, 1))
    y = g.add("reduce_sum", [frames], axes=(1,), keepdims=False)
    g.outputs, g.output_names = [y], ["y"]
    return g


def read_late() -> Graph:
    """The new value is ready long before the old one is read for the last time."""
    g, x = new_graph((4,))
    s = g.add_state("s", x.type, np.array([1, 2, 3, 4], np.float32))
    s.update = g.add("softmax", [x], axis=0)
    summed = g.add("reduce_sum", [s.update], axes=(0,), keepdims=True)
    y = g.add("mul", [g.add("softmax", [s.value], axis=0), summed])
    g.outputs, g.output_names = [y, s.update], ["y", "same"]
    return g


GRAPHS = {f.__name__: f for f in (counter, delay_line, swap, window, read_late)}


def sequences(graph: Graph) -> list[list[dict[str, np.ndarray]]]:
    """Inputs of two sequences of steps."""
    rng = np.random.default_rng(3)
    x = graph.inputs[0]
    return [[{"x": rng.standard_normal(x.shape).astype(np.float32)} for _ in range(4)]] * 2


def project_of(graph: Graph, folder: Path) -> Project:
    """The C project of a graph; its model file is no model."""
    board = load_board("host")
    run_passes(graph, verify=True)
    folder.mkdir()
    generate(graph, board, board.target(), CompileOptions(weights="bin"), folder, b"none")
    return Project(folder, board)


def test_a_step_reads_what_the_last_one_left() -> None:
    model = Instance(counter())
    for _ in range(2):
        assert model.step({"x": np.ones(3, np.float32)})["y"].tolist() == [2, 3, 4]
        assert model.step({"x": np.full(3, 2, np.float32)})["y"].tolist() == [4, 5, 6]
        model.reset()


def test_all_variables_are_set_at_once() -> None:
    model = Instance(delay_line())
    found = [model.step({"x": np.full(2, k, np.float32)}) for k in (7, 8, 9)]
    assert [r["z"].tolist() for r in found] == [[5, 6], [7, 7], [8, 8]]
    assert [r["y"].tolist() for r in found] == [[0, 0], [5, 6], [7, 7]]


@pytest.mark.parametrize("name", GRAPHS)
def test_passes_keep_the_state(name: str) -> None:
    graph, before = GRAPHS[name](), Instance(GRAPHS[name]())
    run_passes(graph, verify=True)
    after = Instance(graph)
    for steps in sequences(graph):
        for feeds in steps:
            want, got = before.step(feeds), after.step(feeds)
            for output in want:
                np.testing.assert_allclose(got[output], want[output], rtol=1e-5)
        before.reset()
        after.reset()


@pytest.mark.parametrize("name", GRAPHS)
def test_generated_code_keeps_the_state(name: str, tmp_path: Path) -> None:
    expected = Instance(GRAPHS[name]())
    graph = GRAPHS[name]()
    model = QuickModel(project_of(graph, tmp_path / "project"))
    # A window's variable also holds its new row: 5 rows of 20 bytes.
    rows = 2 if name == "window" else len(model.manifest["states"])
    assert model.manifest["state_bytes"] == 64 * rows > 0
    for steps in sequences(graph):
        for feeds in steps:
            want = expected.step(feeds)
            for output, got in zip(want, model.run(feeds), strict=True):
                np.testing.assert_allclose(got, want[output], rtol=1e-5, err_msg=output)
        expected.reset()
        model.reset()


def test_instances_have_a_state_each(tmp_path: Path) -> None:
    project = project_of(counter(), tmp_path / "project")
    one, two = project.instance(), project.instance()
    x = np.ones(3, np.float32)
    assert one.step({"x": x})["y"].tolist() == [2, 3, 4]
    assert one.step({"x": x})["y"].tolist() == [3, 4, 5]
    assert two.step({"x": x})["y"].tolist() == [2, 3, 4]
    one.reset()
    assert one.step({"x": x})["y"].tolist() == [2, 3, 4]


def test_from_the_file_to_the_numbers(tmp_path: Path) -> None:
    data, steps = variable_model()
    (tmp_path / "window.tflite").write_bytes(data)
    project = aotgen.compile(tmp_path / "window.tflite", "host", tmp_path / "project")
    want = ORACLES["tflm"](data, [x for step in steps for x in step], len(steps))
    fed = [{"x": step[0]} for step in steps]
    for runner in (None, "local"):
        for got, right in zip(project.run_steps(fed, runner), want, strict=True):
            np.testing.assert_array_equal(got["every"], right)
    for inputs in (None, fed):
        report = project.validate(inputs, per_layer=True)
        assert report.ok
        assert {layer.ok for layer in report.layers} == {True}
    test = subprocess.run([project.build().program("test")], capture_output=True, text=True)
    assert test.returncode == 0, test.stdout + test.stderr
    assert "8 cases, 0 failed" in test.stdout


def test_a_variable_that_nothing_sets_is_a_constant() -> None:
    g, x = new_graph((3,))
    s = g.add_state("s", x.type, np.array([1, 2, 3], np.float32))
    g.outputs, g.output_names = [g.add("mul", [x, s.value])], ["y"]
    run_passes(g, verify=True)
    assert not g.states
    assert Instance(g).step({"x": np.ones(3, np.float32)})["y"].tolist() == [1, 2, 3]


def test_a_variable_that_no_output_needs_goes() -> None:
    g, x = new_graph((3,))
    g.outputs, g.output_names = [g.add("neg", [x])], ["y"]
    a = g.add_state("a", x.type, np.zeros(3, np.float32))
    b = g.add_state("b", x.type, np.zeros(3, np.float32))
    a.update, b.update = g.add("add", [a.value, b.value]), g.add("exp", [x])
    run_passes(g, verify=True)
    assert not g.states
    assert [node.op for node in g.nodes] == ["neg"]


def test_a_variable_that_another_one_needs_stays() -> None:
    g = delay_line()
    g.outputs, g.output_names = g.outputs[:1], ["y"]
    run_passes(g, verify=True)
    assert [s.value.name for s in g.states] == ["a", "b"]


def test_printed_and_verified() -> None:
    g = counter()
    assert "state %total: f32[3] from {1, 2, 3} to %add.out" in print_graph(g)
    g.states[0].initial = np.zeros(2, np.float32)
    with pytest.raises(InternalError, match="starts from"):
        verify(g)


def test_no_state_on_a_gpu(tmp_path: Path) -> None:
    board = load_board("host")
    graph = run_passes(counter())
    options = CompileOptions(device="gpu")
    with pytest.raises(UnsupportedError, match="state"):
        generate(graph, board, board.target(device="gpu"), options, tmp_path, b"none")


BOX = (2, 3, 4)


def random_graph(seed: int) -> Graph:
    """Five variables that element-wise ops, views and windows mix, and that may be each other."""
    rng = np.random.default_rng(seed)
    g, x = new_graph(BOX)
    first = [rng.standard_normal(BOX).astype(np.float32) * (k % 2) for k in range(5)]
    states = [g.add_state(f"s{k}", x.type, array) for k, array in enumerate(first)]
    pool = [x, *(s.value for s in states)]

    def cut(value: Value, axis: int, start: int, size: int) -> Value:
        starts, ends = [0, 0, 0], list(value.shape)
        starts[axis], ends[axis] = start, start + size
        return g.add("slice", [value], starts=tuple(starts), ends=tuple(ends), steps=(1, 1, 1))

    for _ in range(18):
        a, b = (pool[rng.integers(len(pool))] for _ in range(2))
        axis = int(rng.integers(3))
        kind = rng.integers(7)
        if kind == 0:
            value = g.add("add", [a, b])
        elif kind == 1:
            value = g.add("mul", [a, g.add("sigmoid", [b])])
        elif kind == 2:
            value = g.add("softmax", [a], axis=2)
        elif kind == 3:
            value = g.add("reshape", [g.add("reshape", [a], shape=(6, 4))], shape=BOX)
        elif kind == 4:  # a window that moves by one
            parts = [cut(a, axis, 1, BOX[axis] - 1), cut(b, axis, 0, 1)]
            value = g.add("concat", parts, axis=axis)
        elif kind == 5:  # a piece of both
            both = g.add("concat", [a, b], axis=axis)
            value = cut(both, axis, int(rng.integers(BOX[axis] + 1)), BOX[axis])
        else:
            halves = g.add("reshape", [a], shape=(2, 3, 2, 2))
            turned = g.add("transpose", [halves], perm=(0, 1, 3, 2))
            value = g.add("reshape", [turned], shape=BOX)
        pool.append(value)
    for state in states:
        state.update = pool[rng.integers(len(pool))]
    g.outputs = [pool[rng.integers(len(pool))] for _ in range(2)]
    g.output_names = ["y0", "y1"]
    return g


def check_random(seeds: range, folder: Path) -> None:
    for seed in seeds:
        expected, graph = Instance(random_graph(seed)), random_graph(seed)
        model = QuickModel(project_of(graph, folder / str(seed)))
        for steps in sequences(graph):
            for feeds in steps:
                want = expected.step(feeds)
                for output, got in zip(want, model.run(feeds), strict=True):
                    assert_close(got, want[output], f"seed {seed}, {output}")
            expected.reset()
            model.reset()


def test_random_states(tmp_path: Path) -> None:
    check_random(range(4), tmp_path)


@pytest.mark.slow
def test_many_random_states(tmp_path: Path) -> None:
    check_random(range(4, 80), tmp_path)
