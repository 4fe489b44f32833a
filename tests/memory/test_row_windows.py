"""Which rows a Group reads, against what it computes: a row of the output changes with no row of an
input outside its windows, and with the first and last of those inside.
"""

from __future__ import annotations

import numpy as np
import pytest

from aotgen.ir import interpreter
from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType, TensorType
from aotgen.memory.row_windows import Window, windows_of


def conv(graph: Graph, x: Value, rng: np.random.Generator, **attrs: tuple[int, ...]) -> Value:
    channels = x.shape[-1]
    w = rng.standard_normal((channels, *attrs.pop("kernel"), channels)).astype(np.float32)
    axes = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), **attrs}
    return add(graph, "conv", [x, graph.constant(w, "w"), None], groups=1, **axes)


def add(graph: Graph, op: str, args: list[Value | None], **attrs: object) -> Value:
    node = graph.make(op, args, **attrs)
    graph.nodes.append(node)
    return node.output


def random_group(seed: int) -> tuple[Graph, Group]:
    """Convolutions, pools, pads, negations; a product with what was read at first if it fits."""
    rng = np.random.default_rng(seed)
    x = Value("x", TensorType(DType.F32, (1, 19, 6, 2)))
    graph = Graph("group", [x], [], [])
    y = x
    for _ in range(int(rng.integers(1, 4))):
        kind = rng.choice(["conv", "pool", "pad", "neg"])
        taps, stride = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        pads = (int(rng.integers(taps)), taps // 2, int(rng.integers(taps)), taps // 2)
        if kind == "conv":
            dilation = int(rng.integers(1, 3))
            y = conv(graph, y, rng, kernel=(taps, 1), strides=(stride, 1), dilations=(dilation, 1),
                     pads=(pads[0], 0, pads[2], 0))  # fmt: skip
        elif kind == "pool":
            y = add(graph, "avg_pool", [y], kernel=(taps, taps), strides=(stride, 1), pads=pads,
                    dilations=(1, 1), ceil_extra=(0, 0), count_include_pad=False)  # fmt: skip
        elif kind == "pad":
            around = (0, pads[0], 0, 0, 0, pads[2], 0, 0)
            y = add(graph, "pad", [y], pads=around, mode="constant", value=0.0)
        else:
            y = add(graph, "neg", [y])
    if y.shape == x.shape:
        y = add(graph, "mul", [y, x])
    graph.outputs = [y]
    return graph, Group(list(graph.nodes), None, "group")


@pytest.mark.parametrize("seed", range(40))
def test_rows_outside_the_windows_do_not_matter(seed: int) -> None:
    graph, group = random_group(seed)
    x = graph.inputs[0]
    found = windows_of(group)
    assert graph.nodes and found is not None
    rng = np.random.default_rng(seed + 1000)
    data = rng.standard_normal(x.shape).astype(np.float32)
    (usual,) = interpreter.run(graph, {"x": data}).values()
    reads = np.zeros((usual.shape[1], x.shape[1]), bool)
    for row in range(x.shape[1]):
        changed = data.copy()
        changed[:, row] += 3.0
        (other,) = interpreter.run(graph, {"x": changed}).values()
        reads[:, row] = (usual != other).any(axis=(0, 2, 3))
    for output in range(usual.shape[1]):
        starts = [output * w.stride - w.pad for w in found[x]]
        ends = [start + w.reach for start, w in zip(starts, found[x], strict=True)]
        inside = {row for a, b in zip(starts, ends, strict=True) for row in range(a, b)}
        assert set(np.flatnonzero(reads[output])) <= inside
        if min(starts) >= 0 and max(ends) <= x.shape[1] - 8:  # far from the edges of any map
            assert reads[output, min(starts)]
            assert reads[output, max(ends) - 1]


def test_windows_of_a_residual_block() -> None:
    """What is read through two 3x3 convolutions is five rows; the sum reads the same row again."""
    rng = np.random.default_rng(0)
    x = Value("x", TensorType(DType.F32, (1, 8, 8, 2)))
    graph = Graph("block", [x], [], [])
    y = conv(graph, x, rng, kernel=(3, 3), pads=(1, 1, 1, 1))
    y = conv(graph, y, rng, kernel=(3, 3), pads=(1, 1, 1, 1))
    add(graph, "add", [y, x])
    found = windows_of(Group(list(graph.nodes), None, "block"))
    assert found == {x: (Window(1, 0, 1), Window(1, 2, 5))}


def test_what_reads_all_rows_has_no_windows() -> None:
    x = Value("x", TensorType(DType.F32, (1, 8, 8, 2)))
    graph = Graph("mean", [x], [], [])
    add(graph, "reduce_mean", [x], axes=(1,), keepdims=True)
    assert windows_of(Group(list(graph.nodes), None, "mean")) is None
    graph = Graph("pad", [x], [], [])
    around = (0, 1, 0, 0, 0, 1, 0, 0)
    add(graph, "pad", [x], pads=around, mode="reflect", value=0.0)
    assert windows_of(Group(list(graph.nodes), None, "pad")) is None
