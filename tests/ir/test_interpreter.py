"""The interpreter: results by name, inputs checked, arrays freed after their last use."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from aotgen.errors import InternalError, UsageError
from aotgen.ir.graph import Graph, Value
from aotgen.ir.interpreter import run, run_values
from aotgen.ir.types import Array, DType, Sym, TensorType


def mlp() -> Graph:
    """y = relu(x @ w + b), z = y + y."""
    x = Value("x", TensorType(DType.F32, (2, 3)))
    g = Graph("mlp", [x], [], [])
    w = g.constant(np.arange(12, dtype=np.float32).reshape(3, 4) - 5, "w")
    b = g.constant(np.array([1, 2, 3, 4], np.float32), "b")
    h = g.add("matmul", [x, w, b], name="fc", trans_b=False)
    y = g.add("relu", [h], name="act")
    z = g.add("add", [y, y], name="twice")
    g.outputs, g.output_names = [y, z, x], ["y", "z", "x again"]
    return g


X = np.array([[1, -2, 3], [0, 1, -1]], np.float32)


def test_outputs_by_name() -> None:
    got = run(mlp(), {"x": X})
    w = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    y = np.maximum(X @ w + np.array([1, 2, 3, 4], np.float32), 0)
    assert list(got) == ["y", "z", "x again"]
    np.testing.assert_array_equal(got["y"], y)
    np.testing.assert_array_equal(got["z"], 2 * y)
    np.testing.assert_array_equal(got["x again"], X)


def test_output_names_default_to_the_values() -> None:
    g = mlp()
    g.output_names = []
    assert list(run(g, {"x": X})) == ["act.out", "twice.out", "x"]


def test_observer_sees_every_node_in_order() -> None:
    seen: list[str] = []
    run(mlp(), {"x": X}, observe=lambda value, array: seen.append(value.name))
    assert seen == ["fc.out", "act.out", "twice.out"]


def test_dead_intermediates_are_freed() -> None:
    g = mlp()
    alive: dict[str, weakref.ref[Array]] = {}
    freed: list[bool] = []

    def observe(value: Value, array: Array) -> None:
        gc.collect()
        if value.name == "twice.out":
            freed.append(alive["fc.out"]() is None)
            freed.append(alive["act.out"]() is None)
        alive[value.name] = weakref.ref(array)

    run(g, {"x": X}, observe=observe)
    assert freed == [True, False]  # fc.out is dead by then, act.out is an output


def test_run_values_computes_only_what_is_asked() -> None:
    g = mlp()
    # A node that cannot run: its index is outside the data.
    index = g.constant(np.array(99, np.int64), "i")
    g.add("gather", [g.nodes[0].output, index], name="bad", axis=0)
    got = run_values(g, {"x": X}, ["fc.out", "b", "x"])
    assert list(got) == ["fc.out", "b", "x"]
    np.testing.assert_array_equal(got["b"], [1, 2, 3, 4])
    with pytest.raises(UsageError, match="no value 'nope'"):
        run_values(g, {"x": X}, ["nope"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": X, "y": X}, "no input 'y'"),
        ({"x": X.astype(np.float64)}, "input 'x' is float64, must be float32"),
        ({"x": X[:1]}, "input 'x' has shape 1x3, must be 2x3"),
        ({"x": X[0]}, "input 'x' has shape 3, must be 2x3"),
    ],
)
def test_wrong_inputs(inputs: dict[str, Array], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(mlp(), inputs)


def test_symbolic_extents() -> None:
    n = Sym("n", 4)
    a, b = (Value(name, TensorType(DType.F32, (n, 3))) for name in "ab")
    g = Graph("sym", [a, b], [], [])
    g.outputs = [g.add("add", [a, b], name="sum")]
    assert g.outputs[0].type.shape == (n, 3)
    np.testing.assert_array_equal(run(g, {"a": X, "b": X})["sum.out"], 2 * X)
    with pytest.raises(UsageError, match="n = 1"):
        run(g, {"a": X, "b": X[:1]})
    with pytest.raises(UsageError, match="n<=4"):
        run(g, {"a": np.zeros((5, 3), np.float32), "b": X})


def test_a_value_read_too_early_is_an_internal_error() -> None:
    g = mlp()
    g.nodes.reverse()
    with pytest.raises(InternalError, match="before it is computed"):
        run(g, {"x": X})
