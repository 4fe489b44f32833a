"""Chains that compute shapes while the model runs, as exporters write them for dynamic dimensions.

Bound dimensions make every one of them constant: nothing of the chain may be left in the graph, and
the numbers must be onnxruntime's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from frontend.models import assert_as_onnxruntime, model, node, ramp
from onnx import TensorProto, helper, numpy_helper

from aotgen.frontend.onnx import check, load
from aotgen.ir.graph import Graph

I64 = TensorProto.INT64


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check_chain(
    nodes: Sequence[onnx.NodeProto],
    x: np.ndarray,
    left: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    output: int = TensorProto.FLOAT,
) -> Graph:
    """As onnxruntime computes it, with only the ops ``left`` in the graph."""
    dims = ["batch", *x.shape[1:]]
    kinds = {"x": helper.np_dtype_to_tensor_dtype(x.dtype), "y": output}
    proto = model(nodes, {"x": dims}, ["y"], constants, opset=opset, dtypes=kinds)
    assert_as_onnxruntime(proto, {"x": x}, dims={"batch": x.shape[0]})
    graph = load(proto, dims={"batch": x.shape[0]})
    assert [n.op for n in graph.nodes] == list(left)
    return graph


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("opset", [9, 12, 13, 17, 20])
def test_flatten_by_shape_gather_concat_reshape(batch: int, opset: int) -> None:
    """x.view(x.size(0), -1)."""
    unsqueeze = (
        [node("Unsqueeze", "n", "n1", axes=[0])] if opset < 13 else [node("Unsqueeze", "n a", "n1")]
    )
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s i", "n", axis=0),
            *unsqueeze,
            node("Concat", "n1 rest", "target", axis=0),
            node("Reshape", "x target"),
        ],
        ramp(batch, 3, 4),
        ["reshape"],
        {"i": np.array(0, np.int64), "rest": ints(-1)} | ({"a": ints(0)} if opset > 12 else {}),
        opset=opset,
    )


def test_flatten_by_slices_and_products() -> None:
    """reshape(x, [prod(shape[:2]), -1]) with arithmetic on scalars."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Slice", "s zero two", "head"),
            node("ReduceProd", "head", "product", keepdims=1),
            node("Concat", "product rest", "target", axis=0),
            node("Reshape", "x target"),
        ],
        ramp(2, 3, 4),
        ["reshape"],
        {"zero": ints(0), "two": ints(2), "rest": ints(-1)},
    )


def test_heads_of_attention() -> None:
    """[B, T, C] -> [B, H, T, C / H], with sizes computed by Cast, Div and Floor."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Split", "s", "b t c", axis=0),
            node("Cast", "c", "cf", to=TensorProto.FLOAT),
            node("Div", "cf heads", "d"),
            node("Floor", "d", "df"),
            node("Cast", "df", "di", to=I64),
            node("Concat", "b t h di", "target", axis=0),
            node("Reshape", "x target", "r"),
            node("Transpose", "r", perm=[0, 2, 1, 3]),
        ],
        ramp(2, 5, 8),
        ["reshape", "transpose"],
        {"heads": np.float32(4), "h": ints(4)},
        opset=12,
    )


def test_zeros_of_a_computed_shape() -> None:
    """The initial state of a recurrent cell: ConstantOfShape of parts of x's shape."""
    value = numpy_helper.from_array(np.array([0.5], np.float32))
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s i", "n", axis=0),
            node("Concat", "n w", "target", axis=0),
            node("ConstantOfShape", "target", "h", value=value),
            node("MatMul", "x h"),
        ],
        ramp(2, 4),
        ["matmul"],
        {"i": ints(1), "w": ints(3)},
    )


def test_expand_by_where_of_a_shape() -> None:
    """torch.expand with -1: Where(shape == -1, ones, shape)."""
    check_chain(
        [
            node("ConstantOfShape", "len", "ones", value=numpy_helper.from_array(ints(1))),
            node("Mul", "ones minus", "negative"),
            node("Equal", "want negative", "keep"),
            node("Where", "keep ones want", "target"),
            node("Expand", "x target"),
        ],
        ramp(2, 1, 4),
        ["expand"],
        {"len": ints(3), "minus": np.array(-1, np.int64), "want": ints(-1, 5, -1)},
    )


def test_positions_by_range() -> None:
    """arange(T) as indices of an embedding."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "t", axis=0),
            node("Range", "zero t one", "positions"),
            node("Gather", "table positions", "e", axis=0),
            node("Add", "x e"),
        ],
        ramp(2, 5, 4),
        ["add"],
        {"one": np.array(1, np.int64), "zero": np.array(0, np.int64), "table": ramp(9, 4)},
    )


def test_a_causal_mask() -> None:
    """Range, Unsqueeze, Less and Where build the mask; NonZero and Size count it."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "t", axis=0),
            node("Range", "zero t one", "i"),
            node("Unsqueeze", "i first", "row"),
            node("Unsqueeze", "i last", "column"),
            node("Greater", "row column", "later"),
            node("Where", "later low none", "mask"),
            node("Add", "x mask", "masked"),
            node("Softmax", "masked", axis=-1),
        ],
        ramp(2, 4, 4),
        ["add", "softmax"],
        {
            "one": np.array(1, np.int64),
            "zero": np.array(0, np.int64),
            "first": ints(0),
            "last": ints(1),
            "low": np.float32(-1e9),
            "none": np.float32(0),
        },
    )


def test_indices_by_nonzero() -> None:
    """NonZero(ConstantOfShape(n)) is how old exporters wrote arange."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "t", axis=0),
            node("ConstantOfShape", "t", "ones", value=numpy_helper.from_array(ints(1))),
            node("NonZero", "ones", "n"),
            node("Squeeze", "n", "i", axes=[0]),
            node("Gather", "table i", "e", axis=0),
            node("Add", "x e"),
        ],
        ramp(2, 3, 4),
        ["add"],
        {"one": ints(1), "table": ramp(9, 4)},
        opset=11,
    )


def test_upsample_to_a_computed_size() -> None:
    """F.interpolate(x, scale_factor=2) as sizes: slices of the shape, times two, joined again."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Slice", "s zero two", "nc"),
            node("Slice", "s two four", "hw"),
            node("Cast", "hw", "hwf", to=TensorProto.FLOAT),
            node("Mul", "hwf twice", "big"),
            node("Cast", "big", "bigi", to=I64),
            node("Concat", "nc bigi", "sizes", axis=0),
            node(
                "Resize",
                "x - - sizes",
                mode="nearest",
                nearest_mode="floor",
                coordinate_transformation_mode="asymmetric",
            ),
        ],
        ramp(2, 3, 4, 5),
        ["resize"],
        {"zero": ints(0), "two": ints(2), "four": ints(4), "twice": np.float32(2)},
    )


def test_pads_computed_for_same_convolution() -> None:
    """Padding amounts from the input's size (mod and sub), as TensorFlow's exporter writes them."""
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s two", "h", axis=0),
            node("Mod", "h stride", "rest"),
            node("Sub", "stride rest", "missing"),
            node("Mul", "unit missing", "pads"),
            node("Pad", "x pads", "p"),
            node("Conv", "p w", strides=[2, 2]),
        ],
        ramp(1, 2, 5, 5),
        ["pad", "transpose", "conv", "transpose"],
        {
            "two": np.array(2, np.int64),
            "stride": np.array(2, np.int64),
            "unit": ints(0, 0, 0, 0, 0, 0, 1, 1),
            "w": ramp(3, 2, 2, 2),
        },
        opset=13,
    )


def test_reshape_with_zero_copies_a_dimension() -> None:
    check_chain([node("Reshape", "x t")], ramp(2, 3, 4), ["reshape"], {"t": ints(0, -1)})
    check_chain([node("Reshape", "x t")], ramp(2, 3, 4), ["reshape"], {"t": ints(-1, 0, 2, 2)})
    check_chain([node("Reshape", "x t")], ramp(2, 3, 4), [], {"t": ints(0, 0, 0)})


def test_the_shape_itself_is_an_output() -> None:
    graph = check_chain([node("Shape", "x")], ramp(2, 3), [], output=I64)
    assert graph.outputs[0].is_const
    check_chain([node("Size", "x")], ramp(2, 3), [], output=I64)
    check_chain([node("Shape", "x", start=-1)], ramp(2, 3), [], output=I64)


def test_shape_of_a_computed_value_needs_no_computation() -> None:
    """Only the type of the convolution's output is asked for: the convolution itself goes."""
    check_chain(
        [
            node("Conv", "x w", "c", strides=[2, 2]),
            node("Shape", "c", "s"),
            node("Slice", "s two four", "hw"),
            node("Concat", "nc hw", "sizes", axis=0),
            node("Resize", "x - - sizes", mode="linear"),
        ],
        ramp(1, 2, 8, 8),
        ["resize"],
        {"w": ramp(3, 2, 2, 2), "two": ints(2), "four": ints(4), "nc": ints(1, 2)},
    )


def test_large_constants_are_computed_only_on_demand() -> None:
    """4 MB made by ConstantOfShape stay an expand node; a sum that a shape needs folds."""
    proto = model(
        [
            node(
                "ConstantOfShape", "s", "w", value=numpy_helper.from_array(np.ones(1, np.float32))
            ),
            node("MatMul", "x w"),
        ],
        {"x": [1, 1024]},
        constants={"s": ints(1024, 1024)},
    )
    assert [n.op for n in load(proto).nodes] == ["expand", "matmul"]
    counted = model(
        [
            node("ConstantOfShape", "s", "w", value=numpy_helper.from_array(ints(1))),
            node("ReduceSum", "w", "n", keepdims=0),
            node("Reshape", "n one", "target"),
            node("Expand", "x target"),
        ],
        {"x": [1]},
        constants={"s": ints(100, 100), "one": ints(1)},
    )
    graph = load(counted)
    assert [n.op for n in graph.nodes] == ["expand"]
    assert graph.outputs[0].shape == (10000,)


def test_unused_parts_of_a_folded_chain_are_dropped() -> None:
    graph = check_chain(
        [node("Shape", "x", "s"), node("Reshape", "x s", "r"), node("Relu", "r")],
        ramp(2, 3),
        ["relu"],
    )
    assert [v.name for v in graph.values()] == ["x", "y"]


def branch(name: str, op: str) -> onnx.GraphProto:
    """A subgraph that applies ``op`` to the outer x; both branches use the same inner names."""
    nodes = [node(op, "x", "inner", name="same"), node("Mul", "inner factor", "out")]
    factor = numpy_helper.from_array(np.float32(2 if name == "then" else 3), "factor")
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [output], [factor])


@pytest.mark.parametrize(("batch", "ops"), [(1, ["exp", "mul"]), (2, ["neg", "mul"])])
def test_an_if_on_shapes_becomes_the_branch_it_takes(batch: int, ops: list[str]) -> None:
    check_chain(
        [
            node("Shape", "x", "s"),
            node("Gather", "s i", "n", axis=0),
            node("Equal", "n one", "c"),
            node("If", "c", then_branch=branch("then", "Exp"), else_branch=branch("else", "Neg")),
        ],
        ramp(batch, 3),
        ops,
        {"i": np.array(0, np.int64), "one": np.array(1, np.int64)},
    )


def test_branches_may_repeat_names_and_have_problems() -> None:
    def two(op: str) -> onnx.ModelProto:
        choose = {"then_branch": branch("then", op), "else_branch": branch("else", "Neg")}
        nodes = [node("If", "t", "a", **choose), node("If", "f", "b", **choose), node("Add", "a b")]
        constants = {"t": np.array(True), "f": np.array(False)}
        return model(nodes, {"x": ["batch", 3]}, constants=constants)

    assert_as_onnxruntime(two("Exp"), {"x": ramp(2, 3)}, dims={"batch": 2})
    problems = check(two("TopK3"), dims={"batch": 2})
    assert [(p.node, p.op) for p in problems] == [("same", "TopK3")]
