"""Tasks: what a model is cut into for the tuner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotgen.options import CompileOptions
from aotgen.target.board import load_board
from aotgen.tune.run import Tunable
from aotgen.tune.task import key_of, memory_orders


def separable(channels: int = 32, size: int = 28, blocks: int = 2) -> onnx.ModelProto:
    """Depthwise 3x3 and 1x1 convolutions in turn, with the same shapes in every block."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(blocks):
        for kind, shape, group, pad in (
            ("d", (channels, 1, 3, 3), channels, 1),
            ("p", (channels, channels, 1, 1), 1, 0),
        ):
            array = rng.standard_normal(shape).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"w{kind}{i}"))
            nodes.append(
                helper.make_node(
                    "Conv", [x, f"w{kind}{i}"], [f"{kind}{i}"], group=group, pads=[pad] * 4
                )
            )
            x = f"{kind}{i}"
    dims = [1, channels, size, size]
    graph = helper.make_graph(
        nodes,
        "separable",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def tunable(tmp_path: Path) -> Tunable:
    path = tmp_path / "separable.onnx"
    onnx.save(separable(), path)
    return Tunable(path, load_board("rpi4"), CompileOptions())


def test_equal_layers_are_one_task(tunable: Tunable) -> None:
    """Whatever their weights; the first and the last one read or write the caller's memory."""
    graph = tunable.graph()
    orders = memory_orders(graph, tunable.target)
    keys = {key_of(group, tunable.target, orders) for group in graph.groups or []}
    single = [task for task in tunable.tasks if not task.is_chain]
    assert {task.key for task in single} <= keys
    convs = [task for task in single if task.title.startswith("conv")]
    assert sum(task.calls for task in convs) == 4 and len(convs) < 4


def test_chains_are_tasks_of_their_own(tunable: Tunable) -> None:
    """Their parts are in the list as well, so that they are marked."""
    chains = [task for task in tunable.tasks if task.is_chain]
    assert chains and all(len(task.group.nodes) > 1 for task in chains)
    macs = sum(t.macs * t.calls for t in tunable.tasks if not t.is_chain)
    assert macs == 2 * 28 * 28 * 32 * (9 + 32)


def test_the_task_computes_what_its_layer_does(tunable: Tunable) -> None:
    """Constants are the task's own: drawn from its key, the same every time."""
    again = {t.key: t for t in Tunable(tunable.model, tunable.board, tunable.options).tasks}
    for task in tunable.tasks:
        inputs = task.inputs()
        (first,) = task.expected(inputs)
        (second,) = again[task.key].expected(inputs)
        assert first.tobytes() == second.tobytes()
        assert first.shape == task.group.output.shape
