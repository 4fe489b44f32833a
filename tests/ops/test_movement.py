"""Ops that move elements, against onnxruntime: shapes, padding, indices, resize."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ops.test_numpy_semantics import close, normal, ours, theirs

I64 = np.int64


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [((0, 1), (4, 5), (1, 2)), ((3, 4), (-1, 0), (-1, -2)), ((2, 0), (2, 6), (1, 1))],
)
def test_slice(starts: Any, ends: Any, steps: Any) -> None:
    x = normal(4, 6)
    # ONNX counts -1 from the end; before the first element it wants a large negative number.
    onnx_ends = [-100 if e < 0 else e for e in ends]
    want = theirs("Slice", x, *(np.array(v, I64) for v in (starts, onnx_ends, (0, 1), steps)))[0]
    close(ours("slice", x, starts=starts, ends=ends, steps=steps)[0], want, 0)


def test_views() -> None:
    x = normal(2, 3, 4)
    close(ours("reshape", x, shape=(4, 6))[0], x.reshape(4, 6), 0)
    close(ours("transpose", x, perm=(2, 0, 1))[0], theirs("Transpose", x, perm=(2, 0, 1))[0], 0)
    y = normal(2, 2, 4)
    close(ours("concat", x, y, axis=1)[0], theirs("Concat", x, y, axis=1)[0], 0)
    want = theirs("Split", x, np.array([1, 3], I64), axis=2, outputs=2)
    for got, expected in zip(ours("split", x, axis=2, sizes=(1, 3)), want, strict=True):
        close(got, expected, 0)
    close(
        ours("expand", x[:, :1], shape=(5, 2, 3, 4))[0],
        theirs("Expand", x[:, :1], np.array([5, 2, 3, 4], I64))[0],
        0,
    )
    want = theirs("Tile", x, np.array([2, 1, 3], I64))
    close(ours("tile", x, repeats=(2, 1, 3))[0], want[0], 0)
    for upper in (0, 1):
        want = theirs("Trilu", x, np.array(1, I64), upper=upper)
        close(ours("trilu", x, upper=bool(upper), k=1)[0], want[0], 0)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 3), (2, 0, 1, 1)])
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    x = normal(4, 5)
    want = theirs("Pad", x, np.array(pads, I64), np.array(1.5, np.float32), mode=mode)[0]
    close(ours("pad", x, pads=pads, mode=mode, value=1.5)[0], want, 0)


def test_negative_pads_crop() -> None:
    x = normal(4, 5)
    want = theirs("Pad", x, np.array((-1, 2, 1, -2), I64), np.array(0.5, np.float32))[0]
    close(ours("pad", x, pads=(-1, 2, 1, -2), mode="constant", value=0.5)[0], want, 0)


def test_gather() -> None:
    x, i = normal(3, 4, 5), np.array([[0, -1], [2, 1]], I64)
    close(ours("gather", x, i, axis=1)[0], theirs("Gather", x, i, axis=1)[0], 0)
    one = np.array(1, I64)
    close(ours("gather", x, one, axis=0)[0], theirs("Gather", x, one, axis=0)[0], 0)
    e = np.array([[[0, 1, -1]], [[2, 2, 0]]], I64)
    want = theirs("GatherElements", x, e, axis=1)[0]
    close(ours("gather_elements", x, e, axis=1)[0], want, 0)
    for batch in (0, 1):
        nd = np.array([[[0, 1], [2, -1]]] * 3, I64)
        want = theirs("GatherND", x, nd, batch_dims=batch)[0]
        close(ours("gather_nd", x, nd, batch_dims=batch)[0], want, 0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    x = normal(4, 5)
    i, u = np.array([[0], [-1]], I64), normal(2, 5)
    want = theirs("ScatterND", x, i, u, reduction=reduction)[0]
    close(ours("scatter_nd", x, i, u, reduction=reduction)[0], want)
    i, u = np.array([[1, 2, 0], [3, 0, 2]], I64), normal(2, 3)
    want = theirs("ScatterElements", x, i, u, axis=1, reduction=reduction)[0]
    close(ours("scatter_elements", x, i, u, axis=1, reduction=reduction)[0], want)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_hot(axis: int) -> None:
    i, values = np.array([0, 3, -1, 7], I64), np.array([0.5, 2.0], np.float32)
    want = theirs("OneHot", i, np.array(4, I64), values, axis=axis)[0]
    close(ours("one_hot", i, values, axis=axis, depth=4)[0], want, 0)


def resize_both(x: np.ndarray, *, by_size: bool, target: Any, **attrs: Any) -> None:
    """Resize with given sizes or scales in both, and compare."""
    roi = attrs.get("roi", ())
    if by_size:
        sizes, scales = target, tuple(t / n for t, n in zip(target, x.shape, strict=True))
        inputs = [None, np.array(target, I64)]
    else:
        sizes = tuple(int(np.floor(n * s)) for n, s in zip(x.shape, target, strict=True))
        scales, inputs = target, [np.array(target, np.float32), None]
    if inputs[-1] is None:
        inputs.pop()
    onnx_roi = np.array(roi, np.float32) if roi else None
    want = theirs(
        "Resize",
        x,
        onnx_roi,
        *inputs,
        mode=attrs["mode"],
        coordinate_transformation_mode=attrs["coord"],
        nearest_mode=attrs.get("nearest_mode", "round_prefer_floor"),
        cubic_coeff_a=attrs.get("cubic_a", -0.75),
        exclude_outside=int(attrs.get("exclude_outside", False)),
        extrapolation_value=attrs.get("extrapolation", 0.0),
        antialias=int(attrs.get("antialias", False)),
    )[0]
    defaults = {
        "nearest_mode": "round_prefer_floor",
        "cubic_a": -0.75,
        "exclude_outside": False,
        "extrapolation": 0.0,
    }
    got = ours("resize", x, sizes=sizes, scales=scales, **{**defaults, **attrs})[0]
    close(got, want, 5e-6)


COORDS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
TARGETS = [
    (True, (1, 2, 9, 4)),
    (True, (1, 2, 3, 11)),
    (False, (1.0, 1.0, 2.0, 0.6)),
    (False, (1.0, 1.0, 0.8, 2.5)),
]


@pytest.mark.parametrize(("by_size", "target"), TARGETS)
@pytest.mark.parametrize("coord", COORDS)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_nearest(by_size: bool, target: Any, coord: str, rounding: str) -> None:
    x = normal(1, 2, 5, 7)
    resize_both(
        x, by_size=by_size, target=target, mode="nearest", coord=coord, nearest_mode=rounding
    )


@pytest.mark.parametrize(("by_size", "target"), TARGETS)
@pytest.mark.parametrize("coord", COORDS)
def test_resize_linear(by_size: bool, target: Any, coord: str) -> None:
    resize_both(normal(1, 2, 5, 7), by_size=by_size, target=target, mode="linear", coord=coord)


@pytest.mark.parametrize(("by_size", "target"), TARGETS)
@pytest.mark.parametrize("coord", COORDS)
@pytest.mark.parametrize("exclude", [False, True])
def test_resize_cubic(by_size: bool, target: Any, coord: str, exclude: bool) -> None:
    resize_both(
        normal(1, 2, 5, 7),
        by_size=by_size,
        target=target,
        mode="cubic",
        coord=coord,
        cubic_a=-0.5,
        exclude_outside=exclude,
    )


@pytest.mark.parametrize("coord", COORDS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [False, True])
def test_resize_antialiased(mode: str, coord: str, exclude: bool) -> None:
    """Shrinking reads more than the nearest elements; an axis that grows is as without."""
    for size in ((1, 2, 5, 4), (1, 2, 20, 2), (1, 2, 9, 9)):
        resize_both(
            normal(1, 2, 13, 9),
            by_size=True,
            target=size,
            mode=mode,
            coord=coord,
            exclude_outside=exclude,
            antialias=True,
        )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_a_region(mode: str) -> None:
    resize_both(
        normal(1, 2, 5, 7),
        by_size=True,
        target=(1, 2, 6, 6),
        mode=mode,
        coord="tf_crop_and_resize",
        roi=(0.0, 0.0, 0.2, -0.1, 1.0, 1.0, 1.2, 0.7),
        extrapolation=10.0,
    )


def test_transpose_of_a_scalar_stays_a_scalar() -> None:
    assert ours("transpose", np.array(2.5, np.float32), perm=())[0].shape == ()
