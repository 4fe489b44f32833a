"""Operators beyond the fuzzer's, compiled and compared with onnxruntime: many in one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.e2e.node_cases import RNG, Case, check, floats, refusal


def test_inverse_and_hyperbolic_functions(tmp_path: Path) -> None:
    inside = np.concatenate([np.linspace(-1, 1, 41), [1.5, np.nan]]).astype(np.float32)
    wide = np.concatenate([np.linspace(-6, 6, 41), [0.0, np.nan, np.inf]]).astype(np.float32)
    cases = [Case(op, [inside], domain="") for op in ("Asin", "Acos", "Atanh")]
    cases += [Case(op, [wide], domain="") for op in ("Atan", "Sinh", "Cosh", "Asinh", "Tan")]
    cases.append(Case("Acosh", [np.linspace(1, 9, 23).astype(np.float32)], domain=""))
    check(cases, tmp_path)


def test_grid_sample(tmp_path: Path) -> None:
    """All modes and paddings, coordinates far outside and on the seams included."""
    x, grid = floats(2, 3, 5, 4), RNG.uniform(-1.6, 1.6, (2, 6, 3, 2)).astype(np.float32)
    grid[0, 0] = [[-1, 1], [0, 0], [1, -1]]
    cases = [
        Case(
            "GridSample",
            [x, grid],
            {"mode": mode, "padding_mode": padding, "align_corners": align},
            domain="",
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ]
    check(cases, tmp_path, opset=16, tol=1e-5)


def test_grid_sample_of_volumes(tmp_path: Path) -> None:
    x, grid = floats(1, 2, 3, 4, 5), RNG.uniform(-1.2, 1.2, (1, 2, 3, 2, 3)).astype(np.float32)
    cases = [
        Case("GridSample", [x, grid], {"mode": mode, "padding_mode": padding}, domain="")
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border", "reflection")
    ]
    check(cases, tmp_path, opset=20, tol=1e-5)


def test_spectra(tmp_path: Path) -> None:
    real, pairs = floats(2, 12, 1), floats(2, 12, 2)
    size = np.array(16, np.int64)
    cases = [
        Case("DFT", [real], {"axis": 1}, domain=""),
        Case("DFT", [real], {"axis": 1, "onesided": 1}, domain=""),
        Case("DFT", [pairs], {"axis": 1}, domain=""),
        Case("DFT", [pairs], {"axis": 1, "inverse": 1}, domain=""),
        Case("DFT", [floats(7, 3, 2), size], {"axis": 0}, domain="", constants=(1,)),
        Case("DFT", [floats(7, 3, 1), size], {"axis": 0}, domain="", constants=(1,)),
        Case("DFT", [floats(20, 3, 1), size], {"axis": 0}, domain="", constants=(1,)),
    ]
    step, length = np.array(5, np.int64), np.array(16, np.int64)
    window = np.hanning(16).astype(np.float32)
    for signal, onesided in ((floats(2, 50, 1), 1), (floats(2, 50, 1), 0), (floats(1, 40, 2), 0)):
        cases.append(
            Case(
                "STFT",
                [signal, step, window, length],
                {"onesided": onesided},
                domain="",
                constants=(1, 2, 3),
            )
        )
    mel = [np.array(v, np.int64) for v in (8, 64, 8000)]
    mel += [np.array(v, np.float32) for v in (0.0, 4000.0)]
    cases.append(Case("MelWeightMatrix", mel, domain="", constants=(0, 1, 2, 3, 4)))
    check(cases, tmp_path, tol=1e-5)


def test_max_pool_positions(tmp_path: Path) -> None:
    """Of equal maxima the first; positions in the file's own layout, and back through MaxUnpool."""
    x = RNG.integers(-4, 5, (2, 3, 9, 8)).astype(np.float32)
    windows = [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [1, 0, 1, 1]},
        {"kernel_shape": [2, 3], "dilations": [2, 1], "storage_order": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ]
    cases = [Case("MaxPool", [x], w, outputs=2, domain="") for w in windows]
    cases += [
        Case("MaxPool", [x[:, :, 0]], {"kernel_shape": [3]}, outputs=2, domain=""),
        Case("MaxPool", [floats(1, 2, 4, 5, 6)], {"kernel_shape": [2, 2, 3]}, 2, domain=""),
        Case(
            "MaxUnpool",
            [floats(1, 1, 2, 2), np.array([5, 7, 13, 15], np.int64).reshape(1, 1, 2, 2)],
            {"kernel_shape": [2, 2], "strides": [2, 2]},
            domain="",
        ),
    ]
    check(cases, tmp_path)


@pytest.mark.parametrize("opset", [10, 16])
def test_roi_align(opset: int, tmp_path: Path) -> None:
    """Regions across the borders and outside of the image, and some without area."""
    x = floats(2, 3, 9, 7)
    rois = RNG.uniform(-3, 12, (8, 4)).astype(np.float32)
    rois[:, 2:] = rois[:, :2] + RNG.uniform(0, 6, (8, 2)).astype(np.float32)
    rois[0] = [2, 3, 2, 3]
    batch = RNG.integers(0, 2, 8).astype(np.int64)
    modes = [{}]
    if opset == 16:
        modes = [{"coordinate_transformation_mode": m} for m in ("half_pixel", "output_half_pixel")]
    cases = [
        Case(
            "RoiAlign",
            [x, rois, batch],
            {"mode": pool, "output_height": 3, "output_width": 2, "sampling_ratio": ratio}
            | {"spatial_scale": scale}
            | mode,
            domain="",
        )
        for mode in modes
        for pool, ratio, scale in (("avg", 2, 1.0), ("avg", 3, 0.5), ("max", 2, 0.75))
    ]
    check(cases, tmp_path, opset=opset, tol=1e-5)


def test_antialiased_integers_are_refused() -> None:
    """onnxruntime's fixed-point filters and ONNX's reference round differently."""
    sizes, none = np.array([1, 2, 4, 5], np.int64), np.zeros(0, np.float32)
    image = RNG.integers(0, 256, (1, 2, 11, 9)).astype(np.uint8)
    case = Case(
        "Resize",
        [image, none, none, sizes],
        {"mode": "linear", "antialias": 1},
        domain="",
        constants=(1, 2, 3),
    )
    assert "antialias=1 on element type u8" in refusal(case, opset=18)
