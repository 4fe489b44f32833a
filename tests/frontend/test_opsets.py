"""Operators whose meaning changed between opsets, each version against onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from frontend.models import assert_as_onnxruntime, model, node, onnxruntime_results, ramp
from onnx import TensorProto, helper, numpy_helper

from aotgen.errors import UnsupportedError
from aotgen.frontend.onnx import load
from aotgen.ir.interpreter import run

X = ramp(2, 3, 4, 5)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def compare(
    op: onnx.NodeProto,
    opset: int,
    x: np.ndarray = X,
    constants: Mapping[str, np.ndarray] | None = None,
) -> None:
    outputs = [o for o in op.output if o]
    dtypes = {"x": helper.np_dtype_to_tensor_dtype(x.dtype)}
    proto = model([op], {"x": x.shape}, outputs, constants, opset=opset, dtypes=dtypes)
    del proto.graph.output[:]
    inferred = onnx.shape_inference.infer_shapes(_with_outputs(proto, outputs))
    assert_as_onnxruntime(inferred, {"x": x})


def _with_outputs(proto: onnx.ModelProto, outputs: list[str]) -> onnx.ModelProto:
    """Outputs without a type: inference fills it in."""
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return proto


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_clip_by_attributes(opset: int) -> None:
    compare(node("Clip", "x", min=-0.5, max=0.25), opset)
    compare(node("Clip", "x"), opset)
    compare(node("Clip", "x", max=0.25), opset)


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 21])
def test_clip_by_inputs(opset: int) -> None:
    bounds = {"lo": np.float32(-0.5), "hi": np.float32(0.25)}
    for inputs in ("x lo hi", "x - hi", "x lo", "x"):
        compare(node("Clip", inputs), opset, constants=bounds)


def test_clip_of_integers() -> None:
    x = np.arange(-5, 5, dtype=np.int64)
    compare(node("Clip", "x lo hi"), 13, x, {"lo": np.int64(-2), "hi": np.int64((1 << 60) + 1)})


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("opset", [7, 11, 12, 13, 17])
def test_softmax(op: str, axis: int | None, opset: int) -> None:
    if axis is not None and axis < 0 and opset < 11:
        return
    compare(node(op, "x", **({} if axis is None else {"axis": axis})), opset)


@pytest.mark.parametrize("opset", [7, 12, 13])
def test_hardmax(opset: int) -> None:
    compare(node("Hardmax", "x", axis=1), opset)


@pytest.mark.parametrize("opset", [7, 9])
def test_slice_by_attributes(opset: int) -> None:
    compare(node("Slice", "x", starts=[1, -3], ends=[3, 1000], axes=[1, 3]), opset)
    compare(node("Slice", "x", starts=[0, 1], ends=[2, -1]), opset)


@pytest.mark.parametrize("opset", [10, 11, 13])
def test_slice_by_inputs(opset: int) -> None:
    given = {"s": ints(2, -1), "e": ints(0, -1000), "a": ints(1, 3), "t": ints(-1, -2)}
    compare(node("Slice", "x s e a t"), opset, constants=given)
    given = {"s": ints(1), "e": ints((1 << 63) - 1), "a": ints(2 if opset < 11 else -2)}
    compare(node("Slice", "x s e a"), opset, constants=given)
    compare(node("Slice", "x s e"), opset, constants={"s": ints(0, 1), "e": ints(9, 2)})


@pytest.mark.parametrize("opset", [7, 11, 12])
def test_squeeze_and_unsqueeze_by_attributes(opset: int) -> None:
    compare(node("Unsqueeze", "x", axes=[0, 5]), opset)
    compare(node("Squeeze", "x", axes=[0, 2]), opset, ramp(1, 2, 1, 3))
    compare(node("Squeeze", "x"), opset, ramp(1, 2, 1, 3))


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_squeeze_and_unsqueeze_by_inputs(opset: int) -> None:
    compare(node("Unsqueeze", "x a"), opset, constants={"a": ints(0, -1)})
    compare(node("Squeeze", "x a"), opset, ramp(1, 2, 1, 3), {"a": ints(0, -2)})
    compare(node("Squeeze", "x"), opset, ramp(1, 2, 1, 3))


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str) -> None:
    moved = 13 if op == "ReduceSum" else 18
    for opset in (7, 11, moved - 1):
        compare(node(op, "x", axes=[1, 3], keepdims=0), opset)
        compare(node(op, "x"), opset)
    for opset in (moved, 20):
        compare(node(op, "x a", keepdims=0), opset, constants={"a": ints(1, -1)})
        compare(node(op, "x"), opset)
        compare(node(op, "x a", noop_with_empty_axes=0), opset, constants={"a": ints()})


@pytest.mark.parametrize("opset", [7, 10])
def test_pad_by_attributes(opset: int) -> None:
    pads = [0, 0, 1, 2, 0, 0, 2, 1]
    for mode in ("constant", "reflect", "edge"):
        compare(node("Pad", "x", pads=pads, mode=mode, value=0.5), opset)


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_pad_by_inputs(opset: int) -> None:
    given = {"p": ints(0, 0, 1, 2, 0, 0, 2, 1), "v": np.float32(0.5)}
    for mode in ("constant", "reflect", "edge"):
        compare(node("Pad", "x p v", mode=mode), opset, constants=given)
    compare(node("Pad", "x p"), opset, constants={"p": ints(0, -1, 0, 0, 0, 0, -2, -1)})
    compare(node("Pad", "x p"), opset, constants={"p": ints(0, -1, 2, 0, 0, 0, -2, 1)})
    if opset >= 18:
        compare(node("Pad", "x p - a"), opset, constants={"p": ints(1, 2), "a": ints(-1)})


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(opset: int, mode: str) -> None:
    scales = [1.0, 1.0, 2.0, 1.5]
    if opset == 7:
        compare(node("Upsample", "x", mode=mode, scales=scales), opset)
    else:
        compare(node("Upsample", "x s", mode=mode), opset, constants={"s": floats(*scales)})


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_10(mode: str) -> None:
    for scales in ((1, 1, 2, 3), (1, 1, 0.5, 1.7)):
        compare(node("Resize", "x s", mode=mode), 10, constants={"s": floats(*scales)})


@pytest.mark.parametrize("opset", [11, 13, 18, 19])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coord", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
)
def test_resize(opset: int, mode: str, coord: str) -> None:
    given = {"coordinate_transformation_mode": coord, "mode": mode}
    for scales in ((1, 1, 2, 3), (1, 1, 0.5, 1.6)):
        inputs = "x r s" if opset < 13 else "x - s"
        constants = {"s": floats(*scales), "r": floats()}
        if coord == "align_corners" and scales[2] < 1:
            continue  # onnxruntime multiplies where ONNX's text has the whole number of outputs
        compare(node("Resize", inputs, **given), opset, constants=constants)
    inputs = "x r e z" if opset < 13 else "x - - z"
    constants = {"z": ints(2, 3, 7, 8), "r": floats(), "e": floats()}
    compare(node("Resize", inputs, **given), opset, constants=constants)


def test_resize_of_some_axes() -> None:
    op = node(
        "Resize", "x - - z", axes=[2, 3], mode="linear", keep_aspect_ratio_policy="not_larger"
    )
    compare(op, 18, constants={"z": ints(9, 9)})


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(opset: int) -> None:
    given = {k: ramp(3, seed=i) for i, k in enumerate("sbm")} | {"v": np.abs(ramp(3, seed=9))}
    compare(node("BatchNormalization", "x s b m v", epsilon=1e-3), opset, constants=given)


@pytest.mark.parametrize("opset", [7, 10, 12, 13])
def test_dropout(opset: int) -> None:
    compare(node("Dropout", "x"), opset)
    if opset >= 12:  # what the mask is without training was not said before
        compare(node("Dropout", "x", "y mask"), opset)
        given = {"r": np.float32(0.3), "t": np.array(False)}
        compare(node("Dropout", "x r t"), opset, constants=given)


def test_dropout_in_training_is_refused() -> None:
    given = {"r": np.float32(0.3), "t": np.array(True)}
    with pytest.raises(UnsupportedError, match="training"):
        load(model([node("Dropout", "x r t")], {"x": [2]}, constants=given))


@pytest.mark.parametrize("opset", [7, 9, 13, 19, 21])
def test_cast(opset: int) -> None:
    for to in (TensorProto.INT32, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.UINT8):
        compare(node("Cast", "x", to=to), opset, np.abs(3 * X))


@pytest.mark.parametrize("opset", [15, 19, 21])
def test_cast_like(opset: int) -> None:
    compare(node("CastLike", "x t"), opset, constants={"t": np.zeros(1, np.int32)})


def test_split() -> None:
    for opset in (7, 11):
        compare(node("Split", "x", "a b", axis=3, split=[2, 3]), opset)
        compare(node("Split", "x", "a b", axis=2), opset)
    for opset in (13, 18):
        compare(node("Split", "x s", "a b", axis=3), opset, constants={"s": ints(2, 3)})
    compare(node("Split", "x", "a b c", axis=-1, num_outputs=3), 18)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm(opset: int) -> None:
    x = ramp(3, 4)
    for inputs, c in (("x w c", (5,)), ("x w c", (3, 1)), ("x w c", (1,)), ("x w c", (3, 5))):
        given = {"w": ramp(5, 4), "c": ramp(*c, seed=3)}
        op = node("Gemm", inputs, alpha=0.5, beta=2.0, transB=1)
        compare(op, opset, x, given)
        compare(node("Gemm", inputs, transB=1), opset, x, given)
    compare(node("Gemm", "x w c", transA=1), opset, x, {"w": ramp(3, 2), "c": ramp(2)})
    if opset >= 11:
        compare(node("Gemm", "x w", transB=1), opset, x, {"w": ramp(5, 4)})


@pytest.mark.parametrize("opset", [7, 10, 11, 19, 22])
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
def test_pools(opset: int, auto_pad: str) -> None:
    given = {"kernel_shape": [2, 3], "strides": [2, 2], "auto_pad": auto_pad}
    for ceil in (0, 1) if opset >= 10 and auto_pad == "NOTSET" else (0,):
        extra = {"ceil_mode": ceil} if ceil else {}
        pads = {"pads": [1, 1, 0, 1]} if auto_pad == "NOTSET" else {}
        compare(node("MaxPool", "x", **given, **extra, **pads), opset)
        for count in (0, 1):
            op = node("AveragePool", "x", count_include_pad=count, **given, **extra, **pads)
            compare(op, opset)
    compare(node("LpPool", "x", p=3, **given), opset)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv(auto_pad: str, groups: int) -> None:
    given = {"w": ramp(8, 4 // groups, 3, 2), "b": ramp(8)}
    pads = {"pads": [1, 0, 2, 1]} if auto_pad == "NOTSET" else {}
    for strides, dilations in (([1, 1], [1, 1]), ([2, 3], [1, 1]), ([1, 2], [2, 1])):
        if auto_pad.startswith("SAME") and dilations != [1, 1]:
            continue
        shared = {"auto_pad": auto_pad, "group": groups, "strides": strides, "dilations": dilations}
        compare(node("Conv", "x w b", **shared, **pads), 11, ramp(2, 4, 9, 8), given)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_and_transpose_of_any_rank(rank: int) -> None:
    space = (5, 6, 4)[:rank]
    compare(node("Conv", "x w"), 17, ramp(1, 2, *space), {"w": ramp(3, 2, *(2,) * rank)})
    compare(node("ConvTranspose", "x w"), 17, ramp(1, 2, *space), {"w": ramp(2, 3, *(2,) * rank)})


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose(groups: int) -> None:
    given = {"w": ramp(4, 3, 3, 2), "b": ramp(3 * groups)}
    x = ramp(1, 4, 4, 5)
    for extra in (
        {},
        {"strides": [2, 3]},
        {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 0, 1, 1]},
        {"dilations": [2, 1], "pads": [0, 1, 2, 0]},
        {"strides": [2, 2], "output_shape": [9, 10]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "auto_pad": "VALID"},
    ):
        compare(node("ConvTranspose", "x w b", group=groups, **extra), 11, x, given)


def test_a_weight_that_is_computed() -> None:
    proto = model(
        [node("Conv", "x w", pads=[1, 1, 1, 1])], {"x": [1, 2, 4, 4], "w": [3, 2, 3, 3]}, opset=13
    )
    assert_as_onnxruntime(proto, {"x": ramp(1, 2, 4, 4), "w": ramp(3, 2, 3, 3)})


@pytest.mark.parametrize(("opset", "scale"), [(18, 2), (21, 4)])
def test_group_normalization(opset: int, scale: int) -> None:
    given = {"s": ramp(scale), "b": ramp(scale, seed=1)}
    compare(node("GroupNormalization", "x s b", num_groups=2), opset, ramp(2, 4, 3, 3), given)


def test_layer_normalization() -> None:
    given = {"s": ramp(4, 5), "b": ramp(4, 5, seed=1)}
    compare(node("LayerNormalization", "x s b", axis=2), 17, constants=given)
    compare(node("LayerNormalization", "x s", "y mean inv", axis=-2), 17, constants=given)


@pytest.mark.parametrize("op", ["InstanceNormalization", "LRN", "LpNormalization"])
def test_other_norms(op: str) -> None:
    given = {"s": ramp(3), "b": ramp(3, seed=1)}
    ops = {
        "InstanceNormalization": node("InstanceNormalization", "x s b", epsilon=1e-4),
        "LRN": node("LRN", "x", size=3, alpha=0.01, beta=0.6, bias=1.5),
        "LpNormalization": node("LpNormalization", "x", axis=1, p=1),
    }
    compare(ops[op], 13, constants=given)


def test_matmul_of_all_ranks() -> None:
    for a, b in (
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((4, 2, 3), (3,)),
        ((3,), (4, 3, 2)),
    ):
        compare(node("MatMul", "x b"), 13, ramp(*a), {"b": ramp(*b)})
    compare(node("MatMul", "x b"), 13, ramp(2, 1, 3, 4), {"b": ramp(5, 4, 2)})


def test_pow_of_mixed_types() -> None:
    for opset in (12, 13, 15):
        compare(node("Pow", "x e"), opset, np.abs(X), {"e": ints(2)})
        compare(node("Pow", "x e"), opset, np.arange(5, dtype=np.int64), {"e": floats(2.5)})


def test_integer_division_and_modulo() -> None:
    x = np.array([-7, 7, -7, 7, 0], np.int32)
    y = np.array([2, -2, -2, 2, 3], np.int32)
    compare(node("Div", "x b"), 14, x, {"b": y})
    compare(node("Mod", "x b"), 13, x, {"b": y})
    compare(node("Mod", "x b", fmod=1), 13, x, {"b": y})
    compare(node("Mod", "x b", fmod=1), 13, floats(-7.5, 7.5), {"b": floats(2, -2)})


def test_one_hot_and_eye() -> None:
    given = {"d": ints(4), "v": floats(-1, 2)}
    for axis in (-1, 0, 1):
        op = node("OneHot", "x d v", axis=axis)
        compare(op, 11, np.array([[0, 3], [-1, 7]], np.int64), given)
    compare(node("EyeLike", "x", k=1, dtype=TensorProto.INT64), 9, ramp(3, 4))


def test_gather_and_scatter() -> None:
    compare(node("Gather", "x i", axis=-2), 13, constants={"i": ints(0, -1, 2)})
    compare(
        node("GatherElements", "x i", axis=3), 13, constants={"i": ints(0, -1).reshape(1, 1, 1, 2)}
    )
    compare(
        node("GatherND", "x i", batch_dims=1), 13, constants={"i": ints(0, 1, 2, 3).reshape(2, 2)}
    )
    given = {"i": ints(0, 2).reshape(1, 1, 1, 2), "u": ramp(1, 1, 1, 2)}
    for opset, op in ((9, "Scatter"), (11, "ScatterElements"), (16, "ScatterElements")):
        compare(node(op, "x i u", axis=3), opset, constants=given)
    compare(node("ScatterElements", "x i u", axis=3, reduction="add"), 16, constants=given)
    given = {"i": ints(1, 0).reshape(2, 1), "u": ramp(2, 3, 4, 5)}
    compare(node("ScatterND", "x i u"), 11, constants=given)


def test_sequences_of_positions() -> None:
    x = ramp(4, 3, 2)
    compare(node("ReverseSequence", "x n", batch_axis=1, time_axis=0), 10, x, {"n": ints(4, 1, 2)})
    compare(
        node("ReverseSequence", "x n", batch_axis=0, time_axis=1), 10, x, {"n": ints(3, 1, 2, 3)}
    )
    compare(node("Compress", "x c", axis=1), 11, x, {"c": np.array([False, True, True])})
    compare(node("Compress", "x c"), 11, x, {"c": np.array([True, False, True, True])})
    compare(node("CumSum", "x a", exclusive=1, reverse=1), 14, x, {"a": np.array(-1)})


def test_space_and_depth() -> None:
    for mode in ("DCR", "CRD"):
        compare(node("DepthToSpace", "x", blocksize=2, mode=mode), 13, ramp(1, 8, 2, 3))
    compare(node("DepthToSpace", "x", blocksize=2), 7, ramp(1, 8, 2, 3))
    compare(node("SpaceToDepth", "x", blocksize=2), 13, ramp(1, 2, 4, 6))


UNARY = [
    "Abs",
    "Neg",
    "Exp",
    "Sigmoid",
    "Tanh",
    "Relu",
    "Sin",
    "Cos",
    "Tan",
    "Sinh",
    "Cosh",
    "Asinh",
    "Erf",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Softplus",
    "Softsign",
    "Elu",
    "Celu",
    "Selu",
    "LeakyRelu",
    "HardSigmoid",
    "ThresholdedRelu",
    "HardSwish",
    "Mish",
    "Identity",
    "Shrink",
]


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    opset = {"Mish": 18, "HardSwish": 14}.get(op, 13)
    compare(node(op, "x"), opset, 2 * X)


def test_unary_with_a_domain() -> None:
    x = np.abs(X) + 0.1
    for op in ("Log", "Sqrt", "Reciprocal", "Acosh"):
        compare(node(op, "x"), 13, x + (op == "Acosh"))
    compare(node("Atanh", "x"), 13, np.tanh(X))
    compare(node("Gelu", "x"), 20)
    compare(node("Gelu", "x", approximate="tanh"), 20)


EQUATIONS = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,kj->ik": ((2, 3), (4, 3)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bhij,bjhd->bihd": ((2, 3, 4, 5), (2, 5, 3, 6)),
    "bij,bjk": ((2, 3, 4), (2, 4, 5)),
    "i,j->ji": ((3,), (4,)),
    "i,i": ((3,), (3,)),
    "ij->ji": ((2, 3),),
    "ij->j": ((2, 3),),
    "ij": ((2, 3),),
    "ijk->": ((2, 3, 4),),
    "...ij,...jk->...ik": ((2, 3, 4), (1, 4, 5)),
    "...ii->...i": ((2, 3, 3),),
    "ijkl,k->ijl": ((2, 3, 4, 5), (4,)),
    "ab,bc,cd->ad": ((2, 3), (3, 4), (4, 5)),
    "ij,ij->ij": ((2, 3), (2, 3)),
    "bnd,nde->bne": ((2, 3, 4), (3, 4, 5)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str) -> None:
    arrays = [ramp(*shape, seed=i) for i, shape in enumerate(EQUATIONS[equation])]
    given = {f"c{i}": a for i, a in enumerate(arrays[1:])}
    op = node("Einsum", " ".join(["x", *given]), equation=equation)
    proto = model([op], {"x": arrays[0].shape}, constants=given)
    got = run(load(proto), {"x": arrays[0]})["y"]
    want = np.einsum(equation, *[a.astype(np.float64) for a in arrays])
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,jk->il", "ijk->i", "i1->i", "ij,jk", "ij->ii"])
def test_einsum_that_does_not_fit(equation: str) -> None:
    with pytest.raises(UnsupportedError):
        load(model([node("Einsum", "x", equation=equation)], {"x": [2, 3]}))


def microsoft(
    op: str, inputs: str, constants: Mapping[str, np.ndarray], **attributes: object
) -> None:
    n = node(op, inputs, **attributes)
    n.domain = "com.microsoft"
    proto = model([n], {"x": [2, 4, 6, 6]}, constants=constants)
    proto.opset_import.add(domain="com.microsoft", version=1)
    assert_as_onnxruntime(proto, {"x": ramp(2, 4, 6, 6)})


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.7]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_fused_conv(activation: str, parameters: list[float]) -> None:
    given = {"w": ramp(3, 4, 3, 3), "b": ramp(3), "z": ramp(2, 3, 4, 4)}
    extra = {"activation_params": parameters} if parameters else {}
    microsoft("FusedConv", "x w b", given, activation=activation, **extra)
    microsoft("FusedConv", "x w b z", given, activation="Relu")


def test_fused_matrix_products_and_activations() -> None:
    microsoft("FusedMatMul", "x w", {"w": ramp(2, 4, 5, 6)}, transA=1, transB=1, alpha=0.5)
    microsoft("BiasGelu", "x b", {"b": ramp(6)})
    microsoft("QuickGelu", "x", {}, alpha=1.5)
    microsoft("Gelu", "x", {})


def test_opset_before_7_is_converted() -> None:
    """A broadcast along an axis, which onnxruntime no longer runs: checked against numpy."""
    add = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=0)
    bias = numpy_helper.from_array(ramp(2, 3), "b")
    proto = model([add], {"x": X.shape, "b": [2, 3]}, opset=6)
    proto.graph.initializer.append(bias)
    got = run(load(proto), {"x": X})["y"]
    np.testing.assert_array_equal(got, X + ramp(2, 3).reshape(2, 3, 1, 1))


def test_onnxruntime_is_really_asked() -> None:
    """The comparison has two different programs behind it: a wrong one must fail."""
    proto = model([node("Relu", "x")], {"x": [2]})
    got = onnxruntime_results(proto, {"x": floats(-1, 2)})[0]
    np.testing.assert_array_equal(got, floats(0, 2))
    wrong = model([node("Neg", "x")], {"x": [2]})
    assert not np.array_equal(run(load(wrong), {"x": floats(-1, 2)})["y"], got)
