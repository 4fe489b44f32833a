"""Spectra: DFT, STFT and mel weights, as products and convolutions with constant tables.

A table of n x n numbers is exact and, for the frame lengths of audio models, faster than it sounds:
it runs as one matrix product or strided convolution.
"""

from __future__ import annotations

import numpy as np

from aotgen.frontend.onnx.elementwise import target_type
from aotgen.frontend.onnx.node import OnnxNode
from aotgen.frontend.onnx.registry import converts
from aotgen.ir.graph import Value
from aotgen.ir.types import Array, DType

MAX_LENGTH = 4096
"""The longest transform that is made a table."""


def _basis(n: OnnxNode, length: int, bins: int, inverse: bool) -> Array:
    """e^(-+2 pi i k t / length), complex128 [length (t), bins (k)]; 1 / length when inverse."""
    if length > MAX_LENGTH:
        n.refuse(
            f"a transform of {length} points is longer than the limit of {MAX_LENGTH}",
            "use shorter frames",
        )
    turns = np.outer(np.arange(length), np.arange(bins)) % length / length
    basis: Array = np.exp((2j if inverse else -2j) * np.pi * turns)
    return basis / length if inverse else basis


def _real_matrix(basis: Array, complex_input: bool, complex_output: bool = True) -> Array:
    """The basis as real numbers: [t, (re, im), k, (re, im)], float64; without the parts that a real
    input or output lacks.
    """
    rows = np.stack([basis, 1j * basis], axis=1) if complex_input else basis[:, None]
    columns = np.stack([rows.real, rows.imag], axis=-1) if complex_output else rows.real[..., None]
    return columns.reshape(rows.shape[0] * rows.shape[1], -1)


@converts("DFT", since=17)
def dft(n: OnnxNode) -> Value:
    """x [..., t, ..., 1 or 2] along an axis: [..., k, ..., 2], of a real x without the mirrored
    half when onesided (then the inverse takes that half, and is real).
    """
    x = n.x()
    n.need_float(x)
    rank = len(x.shape)
    if rank < 2 or x.shape[-1] not in (1, 2):
        n.refuse(f"the last axis of {list(x.shape)} is neither 1 (real) nor 2 (complex)")
    if n.opset >= 20:
        axis = n.need_ints(2, "axis")[0] if n.optional(2) is not None else -2
    else:
        axis = n.get_int("axis", 1)
    axis = n.normalise_axis(axis, rank)
    if axis == rank - 1:
        n.refuse("its axis is that of the real and imaginary parts")
    inverse, onesided = bool(n.get_int("inverse", 0)), bool(n.get_int("onesided", 0))
    given = x.shape[axis]
    full = (given - 1) * 2 if inverse and onesided else given
    length = n.need_ints(1, "dft_length")[0] if n.optional(1) is not None else full
    is_complex = x.shape[-1] == 2
    if inverse and onesided:
        if not is_complex:
            n.refuse("the half of a spectrum that onesided=1 inverts must be complex")
        matrix = _from_half(n, length)
    else:
        if onesided and is_complex:
            n.refuse("onesided=1 needs a real input")
        bins = length // 2 + 1 if onesided else length
        matrix = _real_matrix(_basis(n, length, bins, inverse), is_complex)
    last = 1 if inverse and onesided else 2
    order = (*(a for a in range(rank - 1) if a != axis), axis, rank - 1)
    moved = n.transpose(x, order)
    outer = moved.shape[:-2]
    needed = matrix.shape[0] // x.shape[-1]
    moved = _cut_or_filled(n, moved, needed)
    flat = n.reshape(moved, (int(np.prod(outer, dtype=np.int64)), needed * x.shape[-1]))
    table = n.constant(np.ascontiguousarray(matrix, x.dtype.numpy), "basis")
    y = n.emit("matmul", [flat, table, None], trans_b=False)
    y = n.reshape(y, (*outer, matrix.shape[1] // last, last))
    return n.transpose(y, tuple(int(a) for a in np.argsort(order)))


def _from_half(n: OnnxNode, length: int) -> Array:
    """The inverse of a one-sided spectrum [length / 2 + 1, (re, im)] to [length] real numbers: the
    bins between the ends count twice, for their mirrored ones.
    """
    bins = length // 2 + 1
    basis = _basis(n, length, length, True)[:bins]  # [k, t], symmetric in the two
    twice = np.full((bins, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    return _real_matrix(basis * twice, True, False)


def _cut_or_filled(n: OnnxNode, x: Value, length: int) -> Value:
    """The last axis but one as long as the transform: cut, or filled with zeros."""
    rank, have = len(x.shape), x.shape[-2]
    if have > length:
        return n.cut(x, rank - 2, 0, length)
    if have < length:
        zeros = np.zeros((*x.shape[:-2], length - have, x.shape[-1]), x.dtype.numpy)
        return n.emit("concat", [x, n.constant(zeros, "zeros")], axis=rank - 2)
    return x


@converts("STFT", since=17)
def stft(n: OnnxNode) -> Value:
    """signal [N, L, 1 or 2] to [N, frames, bins, 2]: a strided convolution with the basis times the
    window.
    """
    x = n.x(0)
    n.need_float(x)
    if len(x.shape) == 2:
        x = n.reshape(x, (*x.shape, 1))
    if len(x.shape) != 3 or x.shape[2] not in (1, 2):
        n.refuse(f"its signal has shape {list(x.shape)}, not [batch, length, 1 or 2]")
    step = n.need_ints(1, "frame_step")[0]
    window = None if n.optional(2) is None else n.need(2, "window").astype(np.float64)
    if n.optional(3) is not None:
        length = n.need_ints(3, "frame_length")[0]
    elif window is not None:
        length = len(window)
    else:
        n.refuse("it has neither a window nor a frame_length")
    if window is None:
        window = np.ones(length)
    is_complex, onesided = x.shape[2] == 2, bool(n.get_int("onesided", 1))
    if step < 1 or not 1 <= length <= x.shape[1] or len(window) > length:
        n.refuse(
            f"frames of {length} every {step} with a window of {len(window)} do not fit a signal "
            f"of {x.shape[1]}"
        )
    if len(window) < length:  # in the middle of the frame
        before = (length - len(window)) // 2
        window = np.pad(window, (before, length - len(window) - before))
    bins = length // 2 + 1 if onesided and not is_complex else length
    basis = _basis(n, length, bins, False) * window[:, None]
    matrix = _real_matrix(basis, is_complex).T.reshape(2 * bins, length, x.shape[2])
    weight = n.constant(np.ascontiguousarray(matrix, x.dtype.numpy), "basis")
    y = n.emit(
        "conv",
        [x, weight, None],
        strides=(step,),
        pads=(0, 0),
        dilations=(1,),
        groups=1,
    )
    return n.reshape(y, (*y.shape[:2], bins, 2))


@converts("MelWeightMatrix", since=17)
def mel_weight_matrix(n: OnnxNode) -> Value:
    """[dft_length / 2 + 1, mel bins]: triangles over the bins of a spectrum, all of it constant."""
    mels, length, rate = (
        n.need_ints(i, name)[0]
        for i, name in enumerate(("num_mel_bins", "dft_length", "sample_rate"))
    )
    low, high = (
        float(n.need(i, name).reshape(-1)[0])
        for i, name in ((3, "lower_edge_hertz"), (4, "upper_edge_hertz"))
    )
    bins = length // 2 + 1
    n.expect_small((bins, mels), DType.F32)
    # The text's own spacing: mels + 2 edges that are high - low over mels + 2 apart.
    edges = np.arange(mels + 2) * ((_mel(high) - _mel(low)) / (mels + 2)) + _mel(low)
    places = np.floor((length + 1) * (700 * (10 ** (edges / 2595) - 1)) / rate).astype(np.int64)
    weights = np.zeros((bins, mels))
    for m in range(mels):
        left, middle, right = places[m : m + 3]
        if middle == left:
            weights[middle, m] = 1
        else:
            for k in range(left, middle + 1):
                weights[k, m] = (k - left) / (middle - left)
        for k in range(middle, right):
            weights[k, m] = (right - k) / (right - middle)
    dtype = target_type(n, n.get_int("output_datatype", 1))
    return n.constant(weights.astype(dtype.numpy), "mel_weights")


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))
