"""Resize and Upsample. One canonical op works per axis, so no transposes are needed here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value


@dataclass(frozen=True)
class _Target:
    """Full rank: output extents and the scale that coordinates use."""

    sizes: tuple[int, ...]
    scales: tuple[float, ...]


def _by_scales(n: OnnxNode, shape: Sequence[int], scales: Sequence[float]) -> _Target:
    if len(scales) != len(shape) or any(s <= 0 for s in scales):
        n.refuse(f"scales {list(scales)} do not fit an input of shape {list(shape)}")
    sizes = tuple(math.floor(d * s) for d, s in zip(shape, scales, strict=True))
    return _Target(sizes, tuple(scales))


@converts("Upsample")
def upsample(n: OnnxNode) -> Value:
    """Opset 7 (scales are an attribute) and 9 (an input): output cell i reads i / scale."""
    x = n.x()
    if n.opset < 9:
        scales = list(n.get_floats("scales"))
    else:
        scales = [float(s) for s in n.need(1, "scales").reshape(-1)]
    return _resize(n, x, _by_scales(n, x.shape, scales), coord="asymmetric", nearest="floor")


@converts("Resize", since=10)
def resize_10(n: OnnxNode) -> Value:
    """Opset 10: as Upsample, but may also shrink."""
    x = n.x()
    scales = [float(s) for s in n.need(1, "scales").reshape(-1)]
    return _resize(n, x, _by_scales(n, x.shape, scales), coord="asymmetric", nearest="floor")


@converts("Resize", since=11)
def resize(n: OnnxNode) -> Value:
    """Inputs X, roi, scales, sizes; from opset 18 on some axes only, and with an aspect-ratio
    policy.
    """
    x = n.x()
    rank = len(x.shape)
    axes = tuple(n.normalise_axis(a, rank) for a in n.get_ints("axes") or range(rank))
    coord = n.get_str("coordinate_transformation_mode", "half_pixel")
    if n.get_int("antialias", 0):
        _expect_filter(n, x, coord)
    roi = _roi(n, rank, axes) if coord == "tf_crop_and_resize" else None
    target = _target(n, x.shape, axes)
    return _resize(
        n, x, target, coord=coord, nearest=n.get_str("nearest_mode", "round_prefer_floor"), roi=roi
    )


def _target(n: OnnxNode, shape: Sequence[int], axes: Sequence[int]) -> _Target:
    known_scales = n.known(2)
    if n.optional(3) is not None and not (known_scales is not None and known_scales.size):
        return _by_sizes(n, shape, axes, n.need_ints(3, "sizes"))
    scales = [1.0] * len(shape)
    given = n.need(2, "scales").reshape(-1)
    if len(given) != len(axes):
        n.refuse(f"{len(given)} scales for {len(axes)} axes")
    for axis, scale in zip(axes, given, strict=True):
        scales[axis] = float(scale)
    return _by_scales(n, shape, scales)


def _by_sizes(
    n: OnnxNode, shape: Sequence[int], axes: Sequence[int], sizes: Sequence[int]
) -> _Target:
    if len(sizes) != len(axes):
        n.refuse(f"{len(sizes)} sizes for {len(axes)} axes")
    out, scales = list(shape), [1.0] * len(shape)
    ratios = [s / shape[a] if shape[a] else 1.0 for a, s in zip(axes, sizes, strict=True)]
    policy = n.get_str("keep_aspect_ratio_policy", "stretch")
    if policy not in ("stretch", "not_larger", "not_smaller"):
        n.refuse(f"keep_aspect_ratio_policy={policy!r} is not known")
    for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
        if policy == "stretch":
            out[axis], scales[axis] = size, ratio
        else:
            common = min(ratios) if policy == "not_larger" else max(ratios)
            out[axis], scales[axis] = math.floor(shape[axis] * common + 0.5), common
    return _Target(tuple(out), tuple(scales))


def _expect_filter(n: OnnxNode, x: Value, coord: str) -> None:
    """Refuse what antialias=1 cannot be compiled with."""
    if coord == "tf_crop_and_resize":
        n.refuse("antialias=1 with tf_crop_and_resize is not supported", "export without a crop")
    if not x.dtype.is_float and n.get_str("mode", "nearest") != "nearest":
        n.refuse(
            f"antialias=1 on element type {x.dtype.value} is not supported: runtimes round "
            "differently",
            "cast its input to float",
        )


def _roi(n: OnnxNode, rank: int, axes: Sequence[int]) -> tuple[float, ...]:
    """Begins, then ends, full rank; axes that are not resized keep 0 and 1."""
    given = [float(v) for v in n.need(1, "roi").reshape(-1)]
    if len(given) != 2 * len(axes):
        n.refuse(f"a roi of {len(given)} numbers does not fit {len(axes)} axes")
    full = [0.0] * rank + [1.0] * rank
    for i, axis in enumerate(axes):
        full[axis], full[rank + axis] = given[i], given[len(axes) + i]
    return tuple(full)


def _resize(
    n: OnnxNode,
    x: Value,
    target: _Target,
    *,
    coord: str,
    nearest: str,
    roi: tuple[float, ...] | None = None,
) -> Value:
    mode = n.get_str("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        n.refuse(f"mode={mode!r} is not known", "use nearest, linear or cubic")
    identity = target.sizes == x.shape and all(s == 1.0 for s in target.scales)
    if identity and coord != "tf_crop_and_resize":
        return x
    return n.emit(
        "resize",
        [x],
        mode="linear" if mode == "bilinear" else mode,
        sizes=target.sizes,
        scales=target.scales,
        coord=coord,
        nearest_mode=nearest,
        cubic_a=n.get_float("cubic_coeff_a", -0.75),
        exclude_outside=bool(n.get_int("exclude_outside", 0)),
        extrapolation=n.get_float("extrapolation_value", 0.0),
        roi=roi,
        antialias=bool(n.get_int("antialias", 0)),
    )
