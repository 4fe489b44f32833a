"""Groups that exercise the compute definition of every op, shapes with tails, views with gaps, and
fused nests.
"""

from __future__ import annotations

import math

import numpy as np
from te.nest_builders import RNG, case, chain, normal
from te.nest_cases_layout import anchors, indexing, movement, resizes
from te.nest_harness import Case

from aotgen.ir.types import DType


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
    small = RNG.integers(0, 100, (1, 6, 7, 5))
    out += [
        case("reduce_max", [small.astype(np.int8)], "i8", axes=(1, 2), keepdims=False),
        case("reduce_min", [small.astype(np.uint16)], "u16", axes=(3,), keepdims=False),
        case(
            "max_pool",
            [small.astype(np.uint8)],
            "u8",
            kernel=(2, 2),
            strides=(2, 2),
            pads=(0, 0, 0, 1),
            dilations=(1, 1),
            ceil_extra=(0, 0),
        ),
        case("reduce_sum", [RNG.standard_normal((5, 33))], "f64", axes=(1,), keepdims=False),
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
        case("lrn", [x], "even", size=4, alpha=1e-1, beta=0.5, bias=2.0, gap=3),
        case("lrn", [x], "wide", size=50, alpha=1e-2, beta=0.6, bias=1.0),
        *(
            case(
                "group_norm",
                [normal(2, 4, 5, 32), normal(32), normal(32)],
                f"{groups} groups",
                groups=groups,
                eps=1e-5,
                gap=3 * (groups == 8),
                consts=(1, 2) if groups < 8 else (),
                tolerance=1e-5,
            )
            for groups in (1, 2, 8, 32)
        ),
        case(
            "group_norm",
            [normal(1, 7, 33), normal(33), normal(33)],
            "in place",
            groups=11,
            eps=1e-5,
            inplace="in0",
            tolerance=1e-5,
        ),
    ]
    return out


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
            "add instance_norm",
            x,
            ("add", ["x", y], {}),
            ("instance_norm", ["x", scale, bias], {"eps": 1e-5}),
        ),
        chain(
            "gelu softmax",
            x,
            ("gelu", ["x"], {"approximate": "tanh"}),
            ("softmax", ["x"], {"axis": 3}),
        ),
        chain(
            "exp log_sum_exp",
            x,
            ("tanh", ["x"], {}),
            ("reduce_log_sum_exp", ["x"], {"axes": (3,), "keepdims": True}),
        ),
        chain(
            "tanh argmax",
            x,
            ("tanh", ["x"], {}),
            ("argmax", ["x"], {"axis": 3, "keepdims": True, "select_last": False}),
        ),
        chain(
            "add layer_norm of one",
            normal(3, 1),
            ("add", ["x", normal(3, 1)], {}),
            ("layer_norm", ["x", (normal(1),), None], {"axis": 1, "eps": 1e-5}),
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
        chain("150 times softsign", normal(100), *[("softsign", ["x"], {})] * 150),
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
