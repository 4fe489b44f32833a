"""Operators that move, choose and count: the interpreter's bytes are those of both references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from aotgen.frontend import load
from aotgen.ir.interpreter import run
from aotgen.ir.verifier import verify
from tests.oracles import OracleLacks, litert, tflm
from tests.tflite_builder import ModelBuilder


@dataclass(frozen=True)
class Case:
    """One operator: a tuple among its inputs is a runtime input (shape, dtype), an array is a
    constant. ``quant`` is that of runtime inputs and outputs that are integers, ``top`` what the
    integers stay below.
    """

    op: str
    inputs: Sequence[Any]
    outs: Sequence[tuple[Sequence[int], str]]
    options: dict[str, Any] = field(default_factory=dict)
    quant: tuple[float, int] | None = (0.25, -5)
    top: int = 100
    version: int = 1


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


F, I8 = "float32", "int8"
X = ((2, 4, 6, 3), I8)
Y = ((2, 4, 6, 3), F)


def strided(begin: Any, end: Any, strides: Any, out: Any, x: Any = X, **options: Any) -> Case:
    inputs = [x, np.array(begin, np.int32), np.array(end, np.int32), np.array(strides, np.int32)]
    return Case("STRIDED_SLICE", inputs, [(out, x[1])], options)


CASES = [
    Case("RESHAPE", [X, i32(6, -1)], [((6, 24), I8)], {"new_shape": [6, -1]}),
    Case("RESHAPE", [X], [((144,), I8)], {"new_shape": [144]}),
    Case("SQUEEZE", [((1, 3, 1, 2), I8)], [((3, 2), I8)]),
    Case("SQUEEZE", [((1, 3, 1, 2), F)], [((1, 3, 2), F)], {"squeeze_dims": [-2]}),
    Case("EXPAND_DIMS", [((3, 2), I8), i32(-1)], [((3, 2, 1), I8)]),
    Case("TRANSPOSE", [X, i32(0, 3, 1, 2)], [((2, 3, 4, 6), I8)]),
    Case("PAD", [X, i32([0, 0], [1, 2], [0, 3], [0, 1])], [((2, 7, 9, 4), I8)]),
    Case("PAD", [Y, i32([1, 0], [1, 2], [0, 3], [0, 0])], [((3, 7, 9, 3), F)]),
    Case("PAD", [((2, 3), "int32"), i32([1, 0], [0, 2])], [((3, 5), "int32")], quant=None),
    Case(
        "PADV2",
        [X, i32([0, 0], [1, 2], [0, 3], [0, 1]), ("quantized", np.array([7], np.int8))],
        [((2, 7, 9, 4), I8)],
    ),
    Case(
        "PADV2", [Y, i32([0, 0], [1, 2], [0, 3], [0, 1]), np.float32([2.5])], [((2, 7, 9, 4), F)]
    ),
    Case(
        "MIRROR_PAD", [X, i32([0, 0], [3, 2], [0, 3], [0, 0])], [((2, 9, 9, 3), I8)],
        {"mode": "REFLECT"},
    ),
    Case(
        "MIRROR_PAD", [Y, i32([0, 0], [4, 2], [1, 6], [2, 3])], [((2, 10, 13, 8), F)],
        {"mode": "SYMMETRIC"},
    ),
    Case("SLICE", [X, i32(0, 1, 2, 0), i32(-1, 2, 3, 3)], [((2, 2, 3, 3), I8)]),
    strided([0, 1, 0, 0], [2, 4, 6, 3], [1, 1, 2, 1], (2, 3, 3, 3)),
    strided([0, -3, 5, 2], [2, -1, -7, -4], [1, 1, -2, -1], (2, 2, 3, 3), Y),
    strided([1, 9, 0, 1], [0, 0, 9, 2], [1, 1, 1, 1], (1, 4, 6), begin_mask=2, end_mask=7,
            shrink_axis_mask=8),
    strided([1, 1], [2, 3], [1, 1], (4, 6, 3), shrink_axis_mask=1, end_mask=2, begin_mask=2),
    strided([0, 0, 1], [0, 0, 2], [1, 1, 1], (2, 4, 6, 1), ellipsis_mask=1 << 1, begin_mask=1,
            end_mask=1),
    strided([0, 0, 0, 0], [0, 0, 2, 0], [1, 1, 1, 1], (1, 2, 2, 6, 3), new_axis_mask=1,
            begin_mask=2, end_mask=10),
    strided([3], [-5], [-1], (4,), ((4,), "int32"), end_mask=0),
    Case("SPLIT", [i32(2)[0], X], [((2, 4, 2, 3), I8)] * 3, {"num_splits": 3}),
    Case(
        "SPLIT_V", [X, i32(1, -1, 2), i32(2)[0]], [((2, 4, n, 3), I8) for n in (1, 3, 2)],
        {"num_splits": 3},
    ),
    Case("PACK", [X, X, X], [((2, 4, 6, 3, 3), I8)], {"values_count": 3, "axis": -1}),
    Case("PACK", [Y, Y], [((2, 2, 4, 6, 3), F)], {"values_count": 2, "axis": 1}),
    Case("UNPACK", [X], [((2, 6, 3), I8)] * 4, {"num": 4, "axis": 1}),
    Case("TILE", [((2, 3), F), i32(2, 3)], [((4, 9), F)]),
    Case("BROADCAST_TO", [((2, 1, 3), I8), i32(2, 2, 4, 3)], [((2, 2, 4, 3), I8)]),
    Case("SPACE_TO_DEPTH", [((2, 4, 6, 3), I8)], [((2, 2, 3, 12), I8)], {"block_size": 2}),
    Case("DEPTH_TO_SPACE", [((2, 2, 3, 12), I8)], [((2, 4, 6, 3), I8)], {"block_size": 2}),
    Case("SPACE_TO_BATCH_ND", [X, i32(2, 3), i32([1, 1], [2, 1])], [((12, 3, 3, 3), I8)]),
    Case("SPACE_TO_BATCH_ND", [((2, 5, 3), F), i32(2), i32([[1, 0]])[0]], [((4, 3, 3), F)]),
    Case("BATCH_TO_SPACE_ND", [((12, 3, 3, 3), I8), i32(2, 3), i32([1, 1], [2, 1])],
         [((2, 4, 6, 3), I8)]),
    Case("REVERSE_V2", [Y, i32(2)], [((2, 4, 6, 3), F)]),
    Case("REVERSE_SEQUENCE", [((3, 5, 2), F), i32(2, 5, 0)], [((3, 5, 2), F)],
         {"seq_dim": 1, "batch_dim": 0}),
    Case("REVERSE_SEQUENCE", [((5, 2, 3), F), ((3,), "int32")], [((5, 2, 3), F)],
         {"seq_dim": 0, "batch_dim": 2}, top=5),
    Case("GATHER", [X, i32(5, 0, 0, 2)], [((2, 4, 4, 3), I8)], {"axis": 2}),
    Case("GATHER", [Y, ((2, 2), "int32")], [((2, 4, 2, 2, 3), F)], {"axis": 2}, top=6),
    Case("GATHER", [((2, 3, 5), I8), i32([4, 0], [1, 1])], [((2, 3, 2), I8)],
         {"axis": 2, "batch_dims": 1}),
    Case("GATHER_ND", [X, i32([1, 3], [0, 2])], [((2, 6, 3), I8)]),
    Case("EMBEDDING_LOOKUP", [i32(2, 0, 1), ("plain", np.arange(12, dtype=F).reshape(4, 3))],
         [((3, 3), F)]),
    Case("EMBEDDING_LOOKUP",
         [i32(2, 0, 1), ("scaled", np.arange(-6, 6, dtype=np.int8).reshape(4, 3))], [((3, 3), F)]),
    Case("SCATTER_ND", [i32([4], [3], [4]), ((3, 2), F), i32(6, 2)], [((6, 2), F)]),
    Case("DYNAMIC_UPDATE_SLICE", [((4, 5), F), ((2, 3), F), i32(1, 4)], [((4, 5), F)]),
    Case("DYNAMIC_UPDATE_SLICE", [((4, 5), F), ((2, 3), F), ((2,), "int32")], [((4, 5), F)], top=6),
    Case("ONE_HOT", [((2, 3), "int32"), i32(4)[0], np.float32(2.0), np.float32(-1.0)],
         [((2, 3, 4), F)], {"axis": -1}, top=6),
    Case("ONE_HOT", [i32(-1, 2, 0), i32(3)[0], i32(5)[0], i32(1)[0]], [((3, 3), "int32")],
         {"axis": 0}),
    Case("SELECT", [((2,), "bool"), ((2, 3), I8), ((2, 3), I8)], [((2, 3), I8)]),
    Case("SELECT_V2", [((2, 1), "bool"), ((2, 3), F), ((1, 3), F)], [((2, 3), F)]),
    Case("TOPK_V2", [((3, 7), F), i32(4)[0]], [((3, 4), F), ((3, 4), "int32")]),
    Case("TOPK_V2", [((3, 7), I8), i32(4)[0]], [((3, 4), I8), ((3, 4), "int32")], top=2),
    Case("CAST", [((3, 7), F)], [((3, 7), "int32")]),
    Case("CAST", [((3, 7), "int32")], [((3, 7), F)], quant=None),
    Case("CAST", [((3, 7), "bool")], [((3, 7), F)]),
    Case("SHAPE", [X], [((4,), "int32")], {"out_type": "int32"}),
    Case("RANK", [X], [((), "int32")]),
    Case("FILL", [i32(2, 3), ((), F)], [((2, 3), F)]),
    Case("ZEROS_LIKE", [Y], [((2, 4, 6, 3), F)]),
    Case("RANGE", [np.float32(0.1), np.float32(2.0), np.float32(0.3)], [((7,), F)]),
    Case("BROADCAST_ARGS", [i32(2, 1, 4), i32(3, 1)], [((3,), "int32")]),
    Case("MATRIX_DIAG", [((2, 3), F)], [((2, 3, 3), F)]),
    Case("MATRIX_SET_DIAG", [((2, 3, 4), F), ((2, 3), F)], [((2, 3, 4), F)]),
]  # fmt: skip


def build(case: Case) -> tuple[bytes, list[np.ndarray]]:
    """The model, and elements for its runtime inputs in order."""
    rng = np.random.default_rng(7)
    b = ModelBuilder()
    feeds: list[np.ndarray] = []
    tensors: list[int | None] = []

    def quant(dtype: str) -> tuple[Any, ...]:
        return () if case.quant is None or dtype not in (I8, "int16", "uint8") else case.quant

    for i, item in enumerate(case.inputs):
        if isinstance(item, np.ndarray | np.generic):
            tensors.append(b.const(f"c{i}", item))
        elif isinstance(item[0], str):
            scales = (*case.quant, 0) if item[0] == "quantized" else (0.5,)
            tensors.append(b.const(f"c{i}", item[1], *(() if item[0] == "plain" else scales)))
        else:
            shape, dtype = item
            tensors.append(b.input(f"x{i}", shape, dtype, *quant(dtype)))
            if dtype == F:
                feeds.append(rng.uniform(-9, 9, shape).astype(F))
            elif dtype == "bool":
                feeds.append(rng.integers(0, 2, shape) == 1)
            else:
                low = -case.top if dtype == I8 else 0
                feeds.append(rng.integers(low, case.top, shape).astype(dtype))
    outs = [(f"y{i}", s, d, *quant(d)) for i, (s, d) in enumerate(case.outs)]
    if case.op == "TOPK_V2":
        outs[1] = outs[1][:3]
    b.output(*b.op(case.op, tensors, outs=outs, options=case.options, version=case.version))
    return b.finish(), feeds


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_equals_the_references(case: Case) -> None:
    data, feeds = build(case)
    heard = 0
    for mode, oracle in (("litert", litert), ("tflm", tflm)):
        graph = load(data, requant=mode)
        verify(graph)
        ours = run(graph, {v.name: f for v, f in zip(graph.inputs, feeds, strict=True)})
        assert [y.shape for y in ours.values()] == [tuple(shape) for shape, _ in case.outs]
        try:
            wanted = oracle(data, feeds)
        except OracleLacks as lacks:
            print(oracle.__name__, lacks)
            continue
        heard += 1
        for want, (name, have) in zip(wanted, ours.items(), strict=True):
            assert have.dtype == want.dtype, (oracle.__name__, name)
            np.testing.assert_array_equal(have, want, f"{oracle.__name__} {name}")
    assert heard, "no reference runs this model"
