"""Groups that exercise the compute definition of every op, shapes with tails, views with gaps, and
fused nests.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from te.nest_harness import Case, single, value

from aotgen.ir.graph import Graph, Group, Value
from aotgen.ir.types import DType

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def case(
    op: str,
    arrays: list[Any],
    name: str = "",
    gap: int = 0,
    inplace: str | None = None,
    consts: tuple[int, ...] = (),
    tolerance: float = 2e-6,
    **attrs: Any,
) -> Case:
    """A one-node Group; ``arrays`` are its inputs in order (None absent), those in ``consts``
    constants.
    """
    inputs: dict[str, np.ndarray] = {}
    operands: list[Value | np.ndarray | None] = []
    for k, array in enumerate(arrays):
        if array is None or k in consts:
            operands.append(array)
            continue
        inputs[f"in{k}"] = array
        operands.append(value(f"in{k}", array.shape, DType.of(array.dtype)))
    label = f"{op} {name or ' '.join('x'.join(map(str, a.shape)) for a in arrays if a is not None)}"
    return Case(label, single(op, operands, **attrs), inputs, gap, inplace, tolerance)


def elementwise() -> list[Case]:
    out = []
    x = np.concatenate([normal(3, 5, 37).ravel(), np.float32([0.0, -0.0, 1.5, 2.5, -2.5])])
    special = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40])
    x = np.concatenate([x, special]).astype(np.float32)
    for op in [
        "identity",
        "relu",
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
        "round",
        "tanh",
        "sigmoid",
        "erf",
        "softsign",
        "isnan",
        "isinf",
    ]:
        out.append(case(op, [x], op))
    for op in ["exp", "sin", "cos", "softplus", "mish"]:
        out.append(case(op, [normal(3, 41)], op))
    for op in ["log", "sqrt", "rsqrt", "reciprocal"]:
        out.append(case(op, [np.abs(normal(3, 41)) + 0.01], op))
    out += [
        case("hard_swish", [x[:-6]]),
        case("hard_sigmoid", [x], alpha=0.2, beta=0.5),
        case("leaky_relu", [x], alpha=0.1),
        case("elu", [x], alpha=1.5),
        case("selu", [x], alpha=1.6732632, gamma=1.0507010),
        case("celu", [x[:-6]], alpha=0.7),
        case("thresholded_relu", [x], alpha=0.5),
        case("gelu", [x[:-6]], approximate="none"),
        case("gelu", [x[:-6]], approximate="tanh"),
        case("clip", [x], lo=-0.5, hi=0.75),
        case("clip", [x], "relu6", lo=0.0, hi=6.0),
        case("clip", [x], "lower", lo=-math.inf, hi=0.5),
        case("clip", [np.arange(-20, 20, dtype=np.int32)], lo=-3.5, hi=7.2),
        case("clip", [np.arange(-20, 20, dtype=np.int8)], lo=-300.0, hi=7.0),
        case("relu", [normal(2, 3, 4, 19)], gap=3),
        case("relu", [normal(2, 3, 4, 19)], gap=3, inplace="in0"),
        case("not", [RNG.random(33) > 0.5]),
        case("bit_not", [np.arange(9, dtype=np.uint8)]),
        case("neg", [np.arange(-5, 9, dtype=np.int64)]),
        case("abs", [np.int32([-(2**31), -1, 0, 7])]),
        case("sign", [np.int64([-5, 0, 9])]),
        case("sign", [np.uint8([0, 9])]),
        case("exp", [RNG.standard_normal(13)], "f64"),
        case("sigmoid", [RNG.standard_normal(13)], "f64"),
        case("isinf", [x], "positive", positive=True, negative=False),
    ]
    for to in DType:
        if to is DType.F16:
            continue
        out.append(
            case(
                "cast",
                [np.float32([-2.7, -1.0, 0.0, 0.5, 1.9, 100.4])],
                f"f32 to {to.value}",
                dtype=to,
            )
        )
        out.append(case("cast", [np.int64([-3, 0, 7, 120])], f"i64 to {to.value}", dtype=to))
        out.append(case("cast", [np.asarray([True, False, True])], f"bool to {to.value}", dtype=to))
        out.append(case("cast", [np.uint8([0, 3, 250])], f"u8 to {to.value}", dtype=to))
    return out


def broadcasts() -> list[Case]:
    a, b = normal(2, 3, 5, 21), normal(2, 3, 5, 21)
    out = []
    for op in [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "equal",
        "less",
        "greater",
        "less_equal",
        "greater_equal",
    ]:
        out.append(case(op, [a, b], op))
    c = normal(21)
    positive = np.abs(a) + 0.1
    ints, others = np.arange(-12, 12, dtype=np.int32).reshape(4, 6), np.int32([1, 2, 3, -4, 5, -6])
    out += [
        case("add", [a, c]),
        case("add", [a, c], "const", consts=(1,)),
        case("mul", [a, normal(5, 1)]),
        case("mul", [a, normal(2, 1, 1, 21)]),
        case("mul", [normal(3, 1, 1), a]),
        case("add", [a, b], "gap", gap=5),
        case("add", [a, b], "in place", inplace="in1"),
        case("add", [a, np.float32([[1.5]])], "scalar const", consts=(1,)),
        case("add", [a, normal(1)], "scalar activation"),
        case("pow", [positive, np.float32(2.0)], "square", consts=(1,)),
        case("pow", [positive, np.float32(3.0)], "cube", consts=(1,)),
        case("pow", [positive, np.float32(0.5)], "root", consts=(1,)),
        case("pow", [positive, np.float32(1.7)], "general", consts=(1,)),
        case("pow", [positive, b], "tensor"),
        case("pow", [ints, np.abs(others)], "int"),
        case("add", [ints, others]),
        case("sub", [np.uint8([3, 250]), np.uint8([5, 1])], "wraps"),
        case("mul", [np.int32([2**30, -5]), np.int32([5, 7])], "wraps"),
        case("mul", [np.uint16([65535, 5]), np.uint16([65535, 7])], "wraps"),
        case("div", [ints, others]),
        case("mod", [ints, others], fmod=False),
        case("mod", [ints, others], "fmod", fmod=True),
        case("mod", [a, b], fmod=False, tolerance=1e-5),
        case("mod", [a, b], "fmod", fmod=True),
        case("mod", [np.uint8([7, 9]), np.uint8([4, 5])], fmod=False),
        case("bit_and", [ints, others]),
        case("bit_or", [ints, others]),
        case("bit_xor", [ints, others]),
        case("shift_left", [np.uint32([1, 3, 7]), np.uint32([4, 31, 2])]),
        case("shift_right", [np.uint8([255, 3]), np.uint8([4, 1])]),
        case("prelu", [a, c]),
        case("prelu", [a, c], "const", consts=(1,)),
        case("where", [a > 0, a, b]),
        case("where", [RNG.random((5, 1)) > 0.5, a, b]),
        case("where", [a > 0, a, np.float32(-1e9)], "scalar", consts=(2,)),
        case("and", [a > 0, b > 0]),
        case("or", [a > 0, b > 0]),
        case("xor", [a > 0, b > 0]),
        case(
            "batch_norm",
            [a, normal(21), normal(21), normal(21), np.abs(normal(21))],
            axis=3,
            eps=1e-5,
        ),
        case(
            "batch_norm",
            [a, normal(3), normal(3), normal(3), np.abs(normal(3))],
            "axis 1",
            axis=1,
            eps=1e-5,
            consts=(1, 2, 3, 4),
        ),
    ]
    return out


def reductions() -> list[Case]:
    x = normal(2, 5, 6, 37)
    out = []
    for op in ["sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp"]:
        for axes in ((3,), (1, 2), (0, 1, 2, 3), (1, 3), (0,)):
            out.append(
                case(
                    f"reduce_{op}",
                    [x],
                    f"{op} {axes}",
                    axes=axes,
                    keepdims=op != "max",
                    tolerance=2e-5,
                )
            )
    out += [
        case("reduce_mean", [x], "gap", gap=3, axes=(1, 2), keepdims=True),
        case("reduce_sum", [normal(3, 300)], axes=(1,), keepdims=False, tolerance=1e-5),
        case("reduce_sum", [normal(300, 3)], axes=(0,), keepdims=False, tolerance=1e-5),
        case(
            "reduce_sum",
            [np.arange(24, dtype=np.int32).reshape(4, 6)],
            "i32",
            axes=(1,),
            keepdims=False,
        ),
        case(
            "reduce_max",
            [np.arange(24, dtype=np.int64).reshape(4, 6)],
            "i64",
            axes=(0,),
            keepdims=False,
        ),
        case("reduce_max", [RNG.random((4, 6)) > 0.8], "bool", axes=(1,), keepdims=False),
        case(
            "reduce_l2",
            [np.arange(24, dtype=np.int32).reshape(4, 6)],
            "i32",
            axes=(1,),
            keepdims=False,
        ),
        case(
            "reduce_max",
            [np.float32([[1, np.nan, 2] * 9, [3, 4, 5] * 9])],
            "nan",
            axes=(1,),
            keepdims=False,
        ),
        case("argmax", [x], axis=3, keepdims=False, select_last=False),
        case("argmax", [np.round(x)], "ties", axis=1, keepdims=True, select_last=False),
        case("argmin", [np.round(x)], "ties last", axis=1, keepdims=True, select_last=True),
        case(
            "argmax", [np.int32([[1, 5, 5], [7, 2, 7]])], axis=1, keepdims=False, select_last=True
        ),
    ]
    for exclusive in (False, True):
        for reverse in (False, True):
            out.append(
                case(
                    "cumsum",
                    [x],
                    f"{exclusive} {reverse}",
                    axis=2,
                    exclusive=exclusive,
                    reverse=reverse,
                )
            )
    out.append(
        case("cumsum", [np.arange(5, dtype=np.int64)], axis=0, exclusive=False, reverse=False)
    )
    return out


def norms() -> list[Case]:
    x, scale, bias = normal(2, 5, 6, 35), normal(35), normal(35)
    out = []
    for axis in range(4):
        out.append(case("softmax", [x], f"axis {axis}", axis=axis))
        out.append(case("log_softmax", [x], f"axis {axis}", axis=axis))
    for n in (1, 3, 8, 16, 19, 100):
        out.append(case("softmax", [normal(7, n) * 5], axis=1))
    out += [
        case("softmax", [x], "in place", axis=3, inplace="in0"),
        case("softmax", [x], "in place 1", axis=1, inplace="in0"),
        case("softmax", [x], "gap", axis=3, gap=4),
        case("log_softmax", [x], "in place", axis=3, inplace="in0"),
        case("layer_norm", [x, scale, bias], axis=3, eps=1e-5, tolerance=1e-5),
        case(
            "layer_norm", [x, scale, None], "no bias", axis=3, eps=1e-5, consts=(1,), tolerance=1e-5
        ),
        case(
            "layer_norm",
            [x, normal(6, 35), normal(6, 35)],
            "2 axes",
            axis=2,
            eps=1e-5,
            tolerance=1e-5,
        ),
        case(
            "layer_norm",
            [x, scale, bias],
            "in place",
            axis=3,
            eps=1e-5,
            consts=(1, 2),
            inplace="in0",
            tolerance=1e-5,
        ),
        case("rms_norm", [x, scale], axis=3, eps=1e-5, tolerance=1e-5),
        case("instance_norm", [x, scale, bias], eps=1e-5, tolerance=1e-5),
        case(
            "instance_norm", [x, scale, bias], "gap", eps=1e-5, gap=5, consts=(1, 2), tolerance=1e-5
        ),
        case("group_norm", [x, scale, bias], groups=5, eps=1e-5, tolerance=1e-5),
        case(
            "group_norm",
            [normal(2, 3, 64), normal(64), normal(64)],
            groups=4,
            eps=1e-5,
            consts=(1, 2),
            tolerance=1e-5,
        ),
        case("lp_norm", [x], "l2", axis=3, p=2),
        case(
            "lp_norm",
            [np.where(np.arange(5)[:, None] == 2, 0, normal(2, 5, 35)).astype(np.float32)],
            "l1 with zero",
            axis=2,
            p=1,
        ),
        case("lrn", [x], size=5, alpha=1e-2, beta=0.75, bias=1.0),
    ]
    return out


def movement() -> list[Case]:
    x = normal(2, 5, 6, 35)
    i8 = RNG.integers(-100, 100, (3, 4, 5)).astype(np.int8)
    out = [
        case("reshape", [x], shape=(10, 210)),
        case("reshape", [x], "gap", shape=(2, 30, 35), gap=3),
        case("reshape", [x], "regroup", shape=(7, 300), gap=2),
        case("reshape", [normal(4, 6)], "4x6 to 6x4", shape=(6, 4), gap=1),
        case("transpose", [x], perm=(0, 3, 1, 2)),
        case("transpose", [x], "gap", perm=(3, 2, 1, 0), gap=2),
        case("transpose", [i8], perm=(2, 0, 1)),
        case("concat", [x, normal(2, 5, 6, 8), normal(2, 5, 6, 1)], axis=3),
        case("concat", [x, normal(2, 2, 6, 35)], axis=1),
        case("concat", [normal(2, 3), normal(4, 3)], axis=0),
        case("concat", [i8, i8, i8], axis=1),
        case("slice", [x], starts=(0, 1, 0, 3), ends=(2, 5, 6, 34), steps=(1, 2, 1, 1)),
        case(
            "slice", [x], "strided", starts=(0, 0, 5, 1), ends=(2, 5, -1, 34), steps=(1, 1, -1, 3)
        ),
        case("split", [x], axis=3, sizes=(10, 20, 5)),
        case("split", [x], axis=1, sizes=(1, 4)),
        case("expand", [normal(5, 1, 35)], shape=(2, 5, 6, 35)),
        case("expand", [normal(1)], "scalar", shape=(2, 5)),
        case("tile", [x], repeats=(2, 1, 3, 1)),
        case("tile", [normal(3, 7)], repeats=(1, 4)),
        case("trilu", [normal(5, 7)], "upper", upper=True, k=1),
        case("trilu", [normal(5, 7)], "lower", upper=False, k=-1),
        case("pad", [x], pads=(0, 1, 2, 0, 0, 1, 1, 0), mode="constant", value=1.5),
        case("pad", [x], "all", pads=(1, 1, 2, 3, 0, 1, 1, 20), mode="constant", value=0.0),
        case("pad", [x], "crop", pads=(0, -1, 2, 0, 0, 1, -2, 0), mode="constant", value=0.0),
        case("pad", [i8], pads=(0, 1, 2, 0, 0, 3), mode="constant", value=7.0),
        case("pad", [x], "reflect", pads=(0, 2, 3, 0, 0, 1, 5, 4), mode="reflect", value=0.0),
        case("pad", [normal(3, 4)], "reflect far", pads=(5, 0, 4, 9), mode="reflect", value=0.0),
        case("pad", [x], "edge", pads=(0, 2, 3, 0, 0, 1, 5, 4), mode="edge", value=0.0),
        case("pad", [x], "wrap", pads=(0, 2, 3, 0, 0, 1, 5, 4), mode="wrap", value=0.0),
        case("pad", [normal(3, 4)], "wrap far", pads=(5, 0, 4, 9), mode="wrap", value=0.0),
    ]
    return out


def indexing() -> list[Case]:
    x = normal(6, 5, 19)
    ids = np.int64([[0, -1, 3], [5, -6, 2]])
    out = [
        case("gather", [x, ids], axis=0),
        case("gather", [x, ids], "const", axis=0, consts=(1,)),
        case("gather", [x, np.int32([4, -1, 0])], "axis 1", axis=1),
        case("gather", [x, np.int64(2)], "scalar const", axis=1, consts=(1,)),
        case(
            "gather", [x, np.int64([3, 18, -2, 0, 1, 2, 7, 9, 10])], "axis 2", axis=2, consts=(1,)
        ),
        case("gather", [x, ids], "const data", axis=0, consts=(0,)),
        case("gather_elements", [normal(3, 4), np.int64([[0, -1, 2], [1, 1, 3]])], axis=1),
        case("gather_nd", [x, np.int64([[0, 1], [-1, 4], [5, 0]])], batch_dims=0),
        case("gather_nd", [normal(2, 3, 7), np.int64([[1], [2]])], batch_dims=1),
        case(
            "gather_nd", [normal(2, 3, 7), np.int64([[1], [2]])], "const", batch_dims=1, consts=(1,)
        ),
        *scatters(),
        case("one_hot", [np.int64([0, 2, -1, 9]), np.float32([0.5, 2.0])], axis=1, depth=4),
    ]
    return out


def scatters() -> list[Case]:
    x, updates = normal(6, 5, 19), normal(3, 19)
    places = np.int64([[0, 1], [-1, 4], [0, 1]])
    columns = np.int64([[0, -1, 2, 0], [1, 1, 3, 1]])
    out = []
    for reduction in ("none", "add", "mul", "max", "min"):
        for consts in ((), (1,)):
            out += [
                case(
                    "scatter_nd",
                    [x, places, updates],
                    f"{reduction} {consts}",
                    consts=consts,
                    reduction=reduction,
                ),
                case(
                    "scatter_elements",
                    [normal(3, 4), columns, normal(2, 4)],
                    f"{reduction} {consts}",
                    consts=consts,
                    axis=1,
                    reduction=reduction,
                ),
            ]
    return out


def resizes() -> list[Case]:
    x = normal(1, 5, 6, 19)
    out = []
    base = {"cubic_a": -0.75, "exclude_outside": False, "extrapolation": 0.25, "roi": (0.0,) * 8}
    for mode in ("nearest", "linear", "cubic"):
        for sizes in ((1, 10, 12, 19), (1, 7, 9, 19), (1, 3, 4, 19)):
            for coord in ("half_pixel", "align_corners", "asymmetric"):
                scales = tuple(o / i for o, i in zip(sizes, x.shape, strict=True))
                out.append(
                    case(
                        "resize",
                        [x],
                        f"{mode} {coord} {sizes}",
                        mode=mode,
                        sizes=sizes,
                        scales=scales,
                        coord=coord,
                        nearest_mode="floor",
                        tolerance=1e-5,
                        **base,
                    )
                )
    roi = (0.0, 0.1, -0.2, 0.0, 1.0, 0.8, 1.3, 1.0)
    out.append(
        case(
            "resize",
            [x],
            "crop",
            mode="linear",
            sizes=(1, 4, 7, 19),
            scales=(1.0, 1.0, 1.0, 1.0),
            coord="tf_crop_and_resize",
            nearest_mode="floor",
            **{**base, "roi": roi},
            tolerance=1e-5,
        )
    )
    u8 = RNG.integers(0, 255, (1, 4, 4, 3)).astype(np.uint8)
    out.append(
        case(
            "resize",
            [u8],
            "u8",
            mode="linear",
            sizes=(1, 7, 9, 3),
            scales=(1.0, 1.75, 2.25, 1.0),
            coord="half_pixel",
            nearest_mode="floor",
            **base,
        )
    )
    return out


def anchors() -> list[Case]:
    out = []
    for groups, channels, filters in ((1, 5, 19), (1, 16, 3), (2, 6, 10), (8, 8, 8), (4, 4, 8)):
        for stride, dilation, pads in (
            (1, 1, (1, 1, 1, 1)),
            (2, 2, (2, 0, 1, 3)),
            (3, 1, (0, 0, 0, 0)),
        ):
            x, w = normal(2, 9, 8, channels), normal(filters, 3, 2, channels // groups)
            attrs = {
                "strides": (stride, 1),
                "pads": pads,
                "dilations": (dilation, 1),
                "groups": groups,
            }
            for consts in ((1, 2), ()):
                name = f"{groups} {channels} {filters} s{stride} d{dilation} {consts}"
                out.append(
                    case(
                        "conv",
                        [x, w, normal(filters)],
                        name,
                        consts=consts,
                        tolerance=1e-5,
                        **attrs,
                    )
                )
            crop = tuple(min(p, 1) for p in pads)
            transposed = {**attrs, "pads": crop, "output_padding": (stride - 1, 0)}
            out.append(
                case(
                    "conv_transpose",
                    [x, w, normal(filters)],
                    name,
                    consts=(1, 2),
                    tolerance=1e-5,
                    **transposed,
                )
            )
    out += [
        case(
            "conv",
            [normal(2, 20, 4), normal(6, 5, 4), None],
            "1-D",
            consts=(1,),
            strides=(2,),
            pads=(2, 2),
            dilations=(1,),
            groups=1,
            tolerance=1e-5,
        ),
        case(
            "conv",
            [normal(1, 4, 5, 6, 3), normal(4, 2, 3, 3, 3), None],
            "3-D",
            consts=(1,),
            strides=(1, 2, 1),
            pads=(1, 1, 1, 0, 1, 1),
            dilations=(1, 1, 1),
            groups=1,
            tolerance=1e-5,
        ),
        case(
            "conv_transpose",
            [normal(1, 5, 3), normal(4, 4, 3), None],
            "d2 s4",
            consts=(1,),
            strides=(4,),
            pads=(1, 0),
            dilations=(2,),
            groups=1,
            output_padding=(0,),
            tolerance=1e-5,
        ),
        case("matmul", [normal(7, 13), normal(13, 21), normal(21)], trans_b=False, tolerance=1e-5),
        case(
            "matmul",
            [normal(7, 13), normal(13, 21), None],
            "const",
            trans_b=False,
            consts=(1,),
            tolerance=1e-5,
        ),
        case(
            "matmul",
            [normal(7, 40), normal(21, 40), None],
            "transposed",
            trans_b=True,
            tolerance=1e-5,
        ),
        case(
            "matmul",
            [normal(7, 40), normal(21, 40), None],
            "transposed const",
            trans_b=True,
            consts=(1,),
            tolerance=1e-5,
        ),
        case("matmul", [normal(2, 3, 4, 5), normal(3, 5, 6), None], trans_b=False, tolerance=1e-5),
        case(
            "matmul", [normal(2, 1, 4, 5), normal(1, 3, 5, 6), None], trans_b=False, tolerance=1e-5
        ),
        case(
            "matmul",
            [
                np.arange(6, dtype=np.int32).reshape(2, 3),
                np.arange(12, dtype=np.int32).reshape(3, 4),
                None,
            ],
            "i32",
            trans_b=False,
        ),
    ]
    x = normal(2, 9, 10, 37)
    for op, extra in (
        ("max_pool", {}),
        ("avg_pool", {"count_include_pad": True}),
        ("avg_pool", {"count_include_pad": False}),
    ):
        for kernel, strides, pads, dilations, ceil in (
            ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), (0, 0)),
            ((2, 2), (2, 2), (0, 0, 1, 0), (1, 1), (1, 0)),
            ((3, 2), (1, 3), (1, 0, 2, 1), (2, 1), (1, 0)),
        ):
            out.append(
                case(
                    op,
                    [x],
                    f"{extra} {kernel} {strides}",
                    kernel=kernel,
                    strides=strides,
                    pads=pads,
                    dilations=dilations,
                    ceil_extra=ceil,
                    **extra,
                )
            )
    return out


def chain(
    name: str,
    x: np.ndarray,
    *steps: tuple[str, list[Any], dict[str, Any]],
    inplace: str | None = None,
    tolerance: float = 1e-5,
    gap: int = 0,
) -> Case:
    """A Group of several nodes, each reading the one before; arrays in a step are activations,
    Values constants.
    """
    graph = Graph("t", [], [], [])
    current = value("in0", x.shape, DType.of(x.dtype))
    inputs, nodes = {"in0": x}, []
    for op, operands, attrs in steps:
        values: list[Value | None] = []
        for operand in operands:
            if isinstance(operand, str):
                values.append(current)
            elif isinstance(operand, tuple):
                values.append(graph.constant(np.asarray(operand[0]), "c"))
            else:
                label = f"in{len(inputs)}"
                inputs[label] = operand
                values.append(value(label, operand.shape, DType.of(operand.dtype)))
        node = graph.make(op, values, **attrs)
        nodes.append(node)
        current = node.output
    return Case(f"chain {name}", Group(nodes, None, name), inputs, gap, inplace, tolerance)


def fused() -> list[Case]:
    x = normal(2, 5, 6, 35)
    y = normal(2, 5, 6, 35)
    scale, bias = (normal(35),), (normal(35),)
    layer = ("layer_norm", ["x", scale, bias], {"axis": 3, "eps": 1e-5})
    return [
        chain(
            "add relu mul", x, ("add", ["x", y], {}), ("relu", ["x"], {}), ("mul", ["x", scale], {})
        ),
        chain(
            "add relu mul in place",
            x,
            ("add", ["x", y], {}),
            ("relu", ["x"], {}),
            ("mul", ["x", scale], {}),
            inplace="in0",
        ),
        chain("add layer_norm", x, ("add", ["x", y], {}), layer),
        chain("add layer_norm in place", x, ("add", ["x", y], {}), layer, inplace="in0"),
        chain(
            "gelu layer_norm relu",
            x,
            ("gelu", ["x"], {"approximate": "none"}),
            layer,
            ("relu", ["x"], {}),
        ),
        chain(
            "mul softmax",
            x,
            ("mul", ["x", (np.float32(0.125),)], {}),
            ("softmax", ["x"], {"axis": 3}),
            ("mul", ["x", scale], {}),
        ),
        chain("add softmax axis 1", x, ("add", ["x", y], {}), ("softmax", ["x"], {"axis": 1})),
        chain(
            "strided exp",
            x,
            (
                "slice",
                ["x"],
                {"starts": (0, 0, 5, 1), "ends": (2, 5, -1, 34), "steps": (1, 1, -1, 1)},
            ),
            ("exp", ["x"], {}),
        ),
        chain(
            "strided columns exp",
            normal(3, 200),
            ("slice", ["x"], {"starts": (0, 199), "ends": (3, -1), "steps": (1, -3)}),
            ("exp", ["x"], {}),
        ),
        chain(
            "exp mean log",
            x,
            ("exp", ["x"], {}),
            ("reduce_mean", ["x"], {"axes": (1, 2), "keepdims": True}),
            ("log", ["x"], {}),
        ),
        chain(
            "pad relu",
            x,
            ("pad", ["x"], {"pads": (0, 1, 1, 0, 0, 1, 1, 0), "mode": "constant", "value": 0.0}),
            ("relu", ["x"], {}),
        ),
        chain(
            "conv relu add",
            normal(1, 7, 7, 5),
            (
                "conv",
                ["x", (normal(19, 3, 3, 5),), (normal(19),)],
                {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1},
            ),
            ("relu", ["x"], {}),
            ("add", ["x", normal(1, 7, 7, 19)], {}),
        ),
        chain(
            "gather add",
            normal(11, 20),
            ("gather", ["x", np.int64([[3, -1, 0, 7]])], {"axis": 0}),
            ("add", ["x", (normal(4, 20),)], {}),
        ),
        chain(
            "mod where",
            np.arange(30, dtype=np.int64),
            ("mod", ["x", (np.int64(7),)], {"fmod": False}),
            ("less", ["x", (np.int64(3),)], {}),
            ("where", ["x", normal(30), normal(30)], {}),
        ),
        chain("mish mish mish mish mish mish", normal(100), *[("mish", ["x"], {})] * 40),
    ]


def all_cases() -> list[Case]:
    return [
        *elementwise(),
        *broadcasts(),
        *reductions(),
        *norms(),
        *movement(),
        *indexing(),
        *resizes(),
        *anchors(),
        *fused(),
    ]
