"""Values at run time that no well-behaved caller gives: results stay defined, accesses inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import aotgen
from support import require_tool
from tests.e2e.fuzz_models import info, session
from tests.e2e.quick_build import QuickModel, assert_close

FAR = (5, -6, 100, -100, 2**31 - 1, -(2**31), 2**40, -(2**40), 2**63 - 1, -(2**63))
"""Indices outside an axis of five elements."""


def built(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
    folder: Path,
    board: str = "host",
) -> tuple[onnx.ModelProto, QuickModel]:
    require_tool("gcc")
    graph = helper.make_graph(
        list(nodes),
        "hostile",
        [info(name, value) for name, value in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    project = aotgen.compile(path, board=board, output=folder / "project", weights="bin")
    return proto, QuickModel(project)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape, np.float32)


@pytest.mark.parametrize("board", ["host", "host-avx2", "host-scalar"])
def test_updates_that_meet_in_one_element(board: str, tmp_path: Path) -> None:
    """Each update is combined with what the one before it has left."""
    rng = np.random.default_rng(1)
    nodes, feeds, constants, outputs = [], {}, {}, []
    shapes = [((1, 4), 0), ((4, 1), 1), ((1, 1, 6, 6), 1), ((3, 1, 20), 1), ((2, 3, 17), 2)]
    for k, (shape, axis) in enumerate(shapes):
        many = list(shape)
        many[axis] = 4
        feeds[f"x{k}"] = floats(*shape)
        constants[f"i{k}"] = rng.integers(-shape[axis], shape[axis], many)
        constants[f"u{k}"] = floats(*many)
        for reduction in ("add", "mul", "max", "min", "none"):
            if reduction == "none" and shape[axis] > 1:
                continue
            names = [f"x{k}", f"i{k}", f"u{k}"]
            outputs.append(f"y{k}_{reduction}")
            attrs = {"axis": axis, "reduction": reduction}
            nodes.append(helper.make_node("ScatterElements", names, [outputs[-1]], **attrs))
    proto, model = built(nodes, feeds, outputs, constants, tmp_path, board)
    expected = session(proto).run(outputs, feeds)
    for name, got, want in zip(outputs, model.run(feeds), expected, strict=True):
        assert_close(got, want, name)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_indices_beyond_the_data(dtype: type, tmp_path: Path) -> None:
    """They mean the element at that end; onnxruntime, which refuses them, is asked for that."""
    feeds = {
        "x": floats(5, 3),
        "i": np.zeros((2, 3), dtype),
        "u": floats(2, 3),
        "rows": np.zeros((2, 1), np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["gather"]),
        helper.make_node("GatherElements", ["x", "i"], ["elements"]),
        helper.make_node("GatherND", ["x", "rows"], ["nd"]),
        helper.make_node("ScatterElements", ["x", "i", "u"], ["scatter"], reduction="add"),
        helper.make_node("ScatterND", ["x", "rows", "u"], ["scatter_nd"], reduction="max"),
    ]
    outputs = [node.output[0] for node in nodes]
    proto, model = built(nodes, feeds, outputs, {}, tmp_path)
    oracle = session(proto)
    limits = np.iinfo(dtype)
    for far in FAR:
        far = int(np.clip(far, limits.min, limits.max))
        for name in ("i", "rows"):
            feeds[name] = np.full_like(feeds[name], far)
            feeds[name][0] = 1
        near = {**feeds, **{n: np.clip(feeds[n], -5, 4) for n in ("i", "rows")}}
        for name, got, want in zip(
            outputs, model.run(feeds), oracle.run(outputs, near), strict=True
        ):
            assert_close(got, want, f"{name} at {far}")


def quotient(a: int, b: int) -> int:
    """Toward zero; 0 by 0."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_integer_division_by_anything(tmp_path: Path) -> None:
    """By 0 as numpy has it, which is 0; the least integer by -1 wraps around."""
    nodes, feeds, constants, outputs, expected = [], {}, {}, [], []
    for dtype in (np.int8, np.int32, np.int64, np.uint8, np.uint32):
        limits, name = np.iinfo(dtype), np.dtype(dtype).name
        values = [0, 1, 2, 3, 7, int(limits.max)]
        values += [int(limits.min), -1, -2, -7] if limits.min < 0 else []
        a, b = zip(*((p, q) for p in values for q in values), strict=True)
        feeds[f"a_{name}"] = np.array(a, dtype)
        feeds[f"b_{name}"] = constants[f"c_{name}"] = np.array(b, dtype)
        wanted = {
            "Div": [quotient(p, q) for p, q in zip(a, b, strict=True)],
            "Mod": [0 if q == 0 else p % q for p, q in zip(a, b, strict=True)],
        }
        for op, results in wanted.items():
            wrapped = np.array([r & (2**limits.bits - 1) for r in results], f"u{dtype().itemsize}")
            for divisor in ("b", "c"):
                outputs.append(f"{op}_{divisor}_{name}")
                names = [f"a_{name}", f"{divisor}_{name}"]
                nodes.append(helper.make_node(op, names, [outputs[-1]]))
                expected.append(wrapped.view(dtype))
    _, model = built(nodes, feeds, outputs, constants, tmp_path)
    for name, got, want in zip(outputs, model.run(feeds), expected, strict=True):
        assert_close(got, want, name)
