"""Groups of ops that move data, and of convolutions, products and pools as nests."""

from __future__ import annotations

import numpy as np
from te.nest_builders import RNG, case, normal
from te.nest_harness import Case


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
        case(
            "pad",
            [normal(1, 31, 1)],
            "one axis",
            pads=(0, 1, 0, 0, 0, 0),
            mode="reflect",
            value=0.0,
        ),
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
    for mode in ("linear", "cubic"):
        for sizes in ((1, 2, 4, 19), (1, 10, 2, 19), (1, 3, 6, 4)):
            out.append(
                case(
                    "resize",
                    [x],
                    f"antialiased {mode} {sizes}",
                    mode=mode,
                    sizes=sizes,
                    scales=tuple(o / i for o, i in zip(sizes, x.shape, strict=True)),
                    coord="half_pixel",
                    nearest_mode="floor",
                    antialias=True,
                    tolerance=1e-5,
                    **{**base, "exclude_outside": mode == "cubic"},
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
