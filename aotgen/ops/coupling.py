"""pairwise_coupling: class probabilities from the probabilities of each class against each other.

The second method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by
Pairwise Coupling", JMLR 5 (2004): the probabilities p minimise sum over i < j of
(r_ji p_i - r_ij p_j)^2, found one coordinate after the other. As in libsvm and onnxruntime the
search ends at an error of 0.005 / classes or after 100 rounds, so that the result is not the
minimum itself but what everybody computes.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import AnyArray, Arrays, expect_rank, expect_shape, fail, need, type_of
from aotgen.ops.registry import OpDef, OpPattern, register

ROUNDS = 100
TOLERANCE = 0.005
LIMIT = 1e-7
"""Pairwise probabilities are kept so far from 0 and 1."""


def _infer(node: Node) -> list[TensorType]:
    """r [N, K (K - 1) / 2] f32, the pairs 0-1, 0-2 ..., 1-2 ..., each the probability of the first
    class; gives [N, K].
    """
    x, classes = type_of(node), int(node.attrs["classes"])
    expect_rank(node, x, 2, 2)
    if x.dtype is not DType.F32 or classes < 2:
        fail(node, "needs f32 and at least two classes")
    expect_shape(node, "input", x, (x.max_shape[0], classes * (classes - 1) // 2))
    return [x.with_shape((x.shape[0], classes))]


def _coupled(pairs: AnyArray, classes: int) -> AnyArray:
    """One row: probabilities [K] from pairs [K (K - 1) / 2], in float32."""
    one = np.float32(1)
    r = np.zeros((classes, classes), np.float32)
    upper = np.triu_indices(classes, 1)
    r[upper] = np.clip(pairs, np.float32(LIMIT), one - np.float32(LIMIT))
    r.T[upper] = one - r[upper]
    q = -r * r.T
    np.fill_diagonal(q, np.square(r).sum(axis=0, dtype=np.float32))
    p = np.full(classes, one / np.float32(classes), np.float32)
    for _ in range(ROUNDS):
        slope = q @ p
        mean = p @ slope
        if np.abs(slope - mean).max() < np.float32(TOLERANCE) / np.float32(classes):
            break
        for i in range(classes):
            step = (mean - slope[i]) / q[i, i]
            p[i] += step
            mean = (mean + step * (step * q[i, i] + 2 * slope[i])) / (one + step) / (one + step)
            slope = (slope + step * q[i]) / (one + step)
            p /= one + step
    return p


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    x, classes = need(arrays), int(node.attrs["classes"])
    found = np.zeros((len(x), classes), np.float32)
    for row, pairs in zip(found, x, strict=True):
        row[:] = _coupled(pairs, classes)
    return [found]


register(OpDef("pairwise_coupling", OpPattern.OPAQUE, _infer, _numpy))
