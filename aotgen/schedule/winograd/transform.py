"""Winograd's minimal filtering F(m x m, 3 x 3): the transform matrices, transformed weights and the
rounding error to expect.

The algorithm: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015. How its
points decide about errors: Barabasz, Anderson, Soodhalter and Gregg, "Error Analysis and Improving
the Accuracy of Winograd Convolution for Deep Neural Networks", 2020.

A tile of m x m outputs is A^T [(G g G^T) * (B^T d B)] A of its 3 x 3 weights g and
(m + 2) x (m + 2) inputs d. ``templates/kernels/conv2d_winograd.c.j2`` has B^T and A^T as sums;
their matrices are here for the estimate of the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.schedule.packing import F32

F64 = npt.NDArray[np.float64]

SIZES = (2, 4)
"""Outputs of a tile along an axis that there are transforms for."""

CHUNK = 64
"""Output channels whose weights are transformed at a time: bounds the memory that takes."""


@dataclass(frozen=True, eq=False)
class Transform:
    """A^T [m, m + 2], B^T [m + 2, m + 2] and G [m + 2, 3]."""

    at: F64
    bt: F64
    g: F64


def _matrix(*rows: tuple[float, ...]) -> F64:
    return np.array(rows, np.float64)


NEAR, FAR = 0.5**0.5, 2**0.5
"""Points of F(4, 3), with their negatives, 0 and infinity: about those that make errors least, four
times smaller than with Lavin's 1 and 2. The template's sums rely on NEAR * FAR = 1, FAR^2 = 2.
Entries of A^T and B^T are exact in float32 but for a factor sqrt(2), whose rounding is one more
among those of the sums.
"""


def _transform_of_4() -> Transform:
    """Toom and Cook's construction: evaluate at the points, multiply, interpolate."""
    a, b = NEAR, FAR
    a2, b2 = a * a, b * b
    at_a, at_b = 2 * a2 * (a2 - b2), 2 * b2 * (b2 - a2)
    return Transform(
        at=_matrix(
            (1, 1, 1, 1, 1, 0),
            (0, a, -a, b, -b, 0),
            (0, a2, a2, b2, b2, 0),
            (0, a * a2, -a * a2, b * b2, -b * b2, 1),
        ),
        bt=_matrix(
            (a2 * b2, 0, -a2 - b2, 0, 1, 0),
            (0, -a * b2, -b2, a, 1, 0),
            (0, a * b2, -b2, -a, 1, 0),
            (0, -b * a2, -a2, b, 1, 0),
            (0, b * a2, -a2, -b, 1, 0),
            (0, a2 * b2, 0, -a2 - b2, 0, 1),
        ),
        g=_matrix(
            (1 / (a2 * b2), 0, 0),
            (1 / at_a, a / at_a, a2 / at_a),
            (1 / at_a, -a / at_a, a2 / at_a),
            (1 / at_b, b / at_b, b2 / at_b),
            (1 / at_b, -b / at_b, b2 / at_b),
            (0, 0, 1),
        ),
    )


TRANSFORMS = {
    2: Transform(
        at=_matrix((1, 1, 1, 0), (0, 1, -1, -1)),
        bt=_matrix((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        g=_matrix((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    ),
    4: _transform_of_4(),
}


def transform_weights(weights: F32, m: int) -> F32:
    """G g G^T of every kernel, computed in float64 and rounded once.

    Args:
        weights: [outputs, kernel depth, 3, 3, channels].
        m: outputs of a tile along an axis.

    Returns:
        [(m + 2)^2, outputs, kernel depth * channels], points row by row.
    """
    outputs, depth, _, _, channels = weights.shape
    points = (m + 2) ** 2
    made = np.empty((points, outputs, depth * channels), np.float32)
    g = _both(TRANSFORMS[m].g)
    for first in range(0, outputs, CHUNK):
        part = weights[first : first + CHUNK].astype(np.float64)
        taps = np.moveaxis(part.reshape(-1, depth, 9, channels), 2, 0).reshape(9, -1)
        made[:, first : first + CHUNK] = (g @ taps).reshape(points, -1, depth * channels)
    return made


def _both(one: F64) -> F64:
    """The matrix that does to a flattened square what ``one`` does along both of its axes."""
    return np.kron(one, one).astype(np.float64)


def expected_error(weights: F32, m: int) -> float:
    """About the largest error of a layer relative to its largest output, for inputs that do not
    depend on one another.

    An output sums n products at every point. Each partial sum is rounded: a random error of
    u sqrt(n / 6) of the sum's own spread (u = 2^-24; half an ulp is uniform, partial sums grow like
    a square root). The output transform adds the points' errors with A's factors. The spread of a
    point's products, from the transformed weights and the rows of B^T, over that of the output,
    from the weights, is the amplification: 7.1 for F(4, 3) and 1.7 for F(2, 3) where weights do not
    depend on one another either. This is the standard deviation of the error of the worst output of
    a tile over that of outputs; largest errors and largest outputs are about as many of theirs, so
    the ratio holds.

    Args:
        weights: [outputs, kernel depth, 3, 3, channels].
        m: outputs of a tile along an axis.
    """
    t = TRANSFORMS[m]
    outputs, depth, _, _, channels = weights.shape
    steps = depth * channels
    kernels = weights.reshape(outputs, depth, 9, channels)
    taps = np.moveaxis(kernels, 2, 1).reshape(outputs, 9, steps)
    gram = (taps @ taps.swapaxes(1, 2)).astype(np.float64)
    largest = np.trace(gram, axis1=1, axis2=2).max()
    if not largest > 0 or not np.isfinite(largest):
        return 0.0
    g = _both(t.g)
    spread = np.einsum("pi,oij,pj->op", g, gram, g, optimize=True)
    spread = np.maximum(spread, 0).reshape(outputs, m + 2, m + 2)
    gain = t.at**2 * (t.bt**2).sum(axis=1)
    amplified = gain @ spread @ gain.T
    return float(2.0**-24 * np.sqrt(steps / 6) * np.sqrt(amplified.max() / largest))
