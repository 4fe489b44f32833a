"""Type rules: inconsistent inputs are a ModelError that names the node and the fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotgen.errors import InternalError, ModelError
from aotgen.ir.graph import Graph, Node, Value
from aotgen.ir.types import Array, DType, Shape, Sym, TensorType
from aotgen.ops.registry import op_def, op_names

CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
POOL = {"kernel": (3, 3), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
RESIZE = {
    "mode": "linear",
    "coord": "half_pixel",
    "nearest_mode": "floor",
    "sizes": (1, 4),
    "scales": (1.0, 2.0),
}


def make(op: str, *shapes: Shape | TensorType | None, **attrs: Any) -> Node:
    """A node named 'n' over float inputs of these shapes."""
    values: list[Value | None] = []
    for i, s in enumerate(shapes):
        t = TensorType(DType.F32, s) if isinstance(s, tuple) else s
        values.append(None if t is None else Value(f"x{i}", t))
    return Graph("g", [], [], []).make(op, values, name="n", **attrs)


def i64(*shape: int) -> TensorType:
    return TensorType(DType.I64, shape)


FAULTS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("add", "shapes 2x3, 4 do not broadcast", ((2, 3), (4,)), {}),
    ("add", "inputs differ in type: f32, i64", ((2, 3), i64(2, 3)), {}),
    ("add", "input 1 is missing", ((2, 3), None), {}),
    ("and", "needs bool", ((2,), (2,)), {}),
    ("sigmoid", "needs a float", (i64(3),), {}),
    ("prelu", "slope 2x4x3 does not broadcast", ((4, 3), (2, 4, 3)), {}),
    ("where", "must be bool", ((3,), (3,), (3,)), {}),
    ("conv", "rank 4", ((1, 8, 8, 3), (4, 3, 3), None), CONV),
    ("conv", "read 2 channels a group", ((1, 8, 8, 3), (4, 3, 3, 2), None), CONV),
    ("conv", "the bias has shape 5, needs 4", ((1, 8, 8, 3), (4, 3, 3, 3), (5,)), CONV),
    ("conv", "does not fit", ((1, 2, 8, 3), (4, 3, 3, 3), None), CONV),
    ("conv", "2 groups do not divide", ((1, 8, 8, 3), (4, 3, 3, 3), None), {**CONV, "groups": 2}),
    (
        "conv",
        "strides has 1 entries, needs 2",
        ((1, 8, 8, 3), (4, 3, 3, 3), None),
        {**CONV, "strides": (1,)},
    ),
    ("matmul", "5 columns against 4 rows", ((2, 5), (4, 3), None), {"trans_b": False}),
    ("matmul", "rank", ((5,), (5, 3), None), {"trans_b": False}),
    ("matmul", "do not broadcast", ((2, 4, 5), (3, 5, 6), None), {"trans_b": False}),
    ("max_pool", "does not fit", ((1, 2, 2, 3),), POOL),
    ("reduce_sum", "axis 2 is outside", ((2, 3),), {"axes": (2,), "keepdims": True}),
    ("reduce_sum", "twice", ((2, 3),), {"axes": (1, 1), "keepdims": True}),
    ("softmax", "axis -1 is outside", ((2, 3),), {"axis": -1}),
    ("layer_norm", "scale 4 does not broadcast", ((2, 3), (4,), None), {"axis": 1, "eps": 1e-5}),
    (
        "group_norm",
        "4 groups do not divide 6",
        ((1, 2, 2, 6), (6,), (6,)),
        {"groups": 4, "eps": 1e-5},
    ),
    ("reshape", "cannot reshape 2x3", ((2, 3),), {"shape": (4, 2)}),
    ("transpose", "not a permutation", ((2, 3),), {"perm": (0, 0)}),
    ("concat", "cannot join 2x3 and 3x3", ((2, 3), (3, 3)), {"axis": 1}),
    ("slice", "reads 0..3", ((3,),), {"starts": (0,), "ends": (4,), "steps": (1,)}),
    ("split", "do not add up", ((2, 3),), {"axis": 1, "sizes": (1, 1)}),
    ("pad", "mode is 'mirror'", ((3,),), {"pads": (1, 1), "mode": "mirror", "value": 0.0}),
    ("expand", "cannot expand 3 to 4", ((3,),), {"shape": (4,)}),
    ("gather", "must be i32 or i64", ((3,), (1,)), {"axis": 0}),
    ("gather_nd", "do not fit", ((3,), i64(2, 2)), {"batch_dims": 0}),
    (
        "scatter_nd",
        "updates has shape 3, needs 2",
        ((4,), i64(2, 1), (3,)),
        {"reduction": "none"},
    ),
    ("resize", "coord is 'half'", ((1, 2),), {**RESIZE, "coord": "half"}),
]


@pytest.mark.parametrize(("op", "message", "shapes", "attrs"), FAULTS)
def test_fault(op: str, message: str, shapes: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        make(op, *shapes, **attrs)
    assert f"{op} node 'n'" in str(caught.value)


def test_the_model_files_name_is_reported() -> None:
    x = Value("x", TensorType(DType.F32, (2,)))
    y = Value("y", TensorType(DType.F32, (3,)))
    with pytest.raises(ModelError, match="'/block/Add'"):
        Graph("g", [], [], []).make("add", [x, y], name="n", origin=("/block/Add",))


def test_symbols_pass_through() -> None:
    n = Sym("n", 4)
    assert make("relu", (n, 3)).output.type.shape == (n, 3)
    assert make("add", (n, 3), (1, 3)).output.type.shape == (n, 3)
    assert make("add", (4, 3), (n, 3)).output.type.shape == (n, 3)
    assert make("conv", (n, 8, 8, 3), (4, 3, 3, 3), None, **CONV).output.type.shape == (n, 6, 6, 4)
    assert make("matmul", (n, 5), (5, 2), None, trans_b=False).output.type.shape == (n, 2)
    assert make("reduce_sum", (n, 3), axes=(1,), keepdims=False).output.type.shape == (n,)
    assert make("concat", (n, 3), (n, 2), axis=1).output.type.shape == (n, 5)


def test_macs() -> None:
    conv = make("conv", (2, 8, 8, 4), (6, 3, 3, 2), None, **{**CONV, "groups": 2})
    assert op_def("conv").macs is not None
    assert op_def("conv").macs(conv) == 2 * 6 * 6 * 6 * (3 * 3 * 2)  # type: ignore[misc]
    matmul = make("matmul", (3, 4, 5), (5, 2), None, trans_b=False)
    assert op_def("matmul").macs(matmul) == 3 * 4 * 2 * 5  # type: ignore[misc]
    attrs = {**CONV, "output_padding": (0, 0)}
    up = make("conv_transpose", (1, 4, 4, 6), (8, 2, 2, 6), None, **attrs)
    assert op_def("conv_transpose").macs(up) == 4 * 4 * 6 * 2 * 2 * 8  # type: ignore[misc]


def test_a_bad_index_is_reported_when_it_is_read() -> None:
    node = make("gather", (3,), i64(1), axis=0)
    arrays: list[Array | None] = [np.zeros(3, np.float32), np.array([3])]
    with pytest.raises(ModelError, match="index 3 is outside 3 elements"):
        op_def("gather").numpy(node, arrays)


def test_registry() -> None:
    assert len(op_names()) == len(set(op_names()))
    with pytest.raises(InternalError, match="no op 'nope'"):
        op_def("nope")
