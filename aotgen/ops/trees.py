"""tree_ensemble: what the leaves say that decision trees lead a row to, over all trees.

The trees lie in one list of nodes, each in preorder: the child of a true test stands right behind
its parent, the other one ``skips`` nodes further on, so that a walk only moves forward and ends.
"""

from __future__ import annotations

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import DType, TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_rank,
    expect_shape,
    fail,
    maybe,
    need,
    optional_type,
    type_of,
)
from aotgen.ops.registry import OpDef, OpPattern, register

LEAF = -1
"""The feature of a leaf."""

MODES = ("leq", "lt", "gte", "gt", "eq", "neq")
"""The tests of a branch, by the low bits of its mode: feature <op> threshold."""

NAN_IS_TRUE = 8
"""The bit of a mode that sends a missing value, a NaN, to the true child."""

_COMPARE = {
    "leq": np.less_equal,
    "lt": np.less,
    "gte": np.greater_equal,
    "gt": np.greater,
    "eq": np.equal,
    "neq": np.not_equal,
}

AGGREGATES = ("sum", "min", "max")


def _infer(node: Node) -> list[TensorType]:
    """Inputs, with M nodes, T trees, L leaves and E entries of leaves:

    0. x [N, F] f32 or f64
    1. values [M], type of x: a branch's threshold; a leaf's number when each leaf has one
    2. features [M] i32: of a branch; ``LEAF`` for a leaf
    3. skips [M] i32: of a branch, from it to its false child; of a leaf its target when each leaf
       has one number, else which leaf it is
    4. modes [M] u8: index into ``MODES``, plus ``NAN_IS_TRUE``
    5. roots [T] i32
    6. starts [L + 1] i32, 7. targets [E] i32, 8. weights [E], type of x: the numbers of leaf l are
       entries starts[l] to starts[l + 1]; all absent when each leaf has one number, in ``values``

    Attributes: ``targets`` (K), ``aggregate`` of ``AGGREGATES``, ``hits``: needed by a minimum or
    maximum unless K is 1 and each leaf has one number.

    Outputs: scores [N, K], type of x; with ``hits`` also which of them some leaf spoke of, bool
    [N, K]. The others are 0.
    """
    x = type_of(node)
    expect_rank(node, x, 2, 2)
    if x.dtype not in (DType.F32, DType.F64):
        fail(node, f"needs f32 or f64 features, not {x.dtype.value}")
    nodes = type_of(node, 1).max_shape
    for index, name, dtype in ((1, "values", x.dtype), (2, "features", DType.I32)):
        expect_shape(node, name, type_of(node, index), nodes)
        if type_of(node, index).dtype is not dtype:
            fail(node, f"{name} must be {dtype.value}")
    expect_shape(node, "skips", type_of(node, 3), nodes)
    expect_shape(node, "modes", type_of(node, 4), nodes)
    expect_rank(node, type_of(node, 5), 1, 1)
    if optional_type(node, 6) is not None:
        expect_shape(node, "weights", type_of(node, 8), type_of(node, 7).max_shape)
    if node.attrs["aggregate"] not in AGGREGATES:
        fail(node, f"aggregate {node.attrs['aggregate']!r} is not known")
    one_number = int(node.attrs["targets"]) == 1 and optional_type(node, 6) is None
    if node.attrs["aggregate"] != "sum" and not (node.attrs["hits"] or one_number):
        fail(node, "a minimum or maximum of several targets needs hits")
    scores = TensorType(x.dtype, (x.shape[0], int(node.attrs["targets"])))
    return [scores, scores.with_dtype(DType.BOOL)] if node.attrs["hits"] else [scores]


def _leaves(x: AnyArray, root: int, arrays: Arrays) -> AnyArray:
    """The node, a leaf, that each row of ``x`` reaches from ``root``; [N] integers."""
    values, features, skips, modes = (need(arrays, i) for i in range(1, 5))
    rows = np.arange(len(x))
    at = np.full(len(x), root, np.int64)
    while True:
        branch = features[at] != LEAF
        if not branch.any():
            return at
        seen = x[rows, np.where(branch, features[at], 0)]
        holds = np.isnan(seen) & ((modes[at] & NAN_IS_TRUE) != 0)
        for number, mode in enumerate(MODES):
            chosen = (modes[at] & 7) == number
            if chosen.any():
                holds |= chosen & _COMPARE[mode](seen, values[at])
        at = np.where(branch, at + np.where(holds, 1, skips[at]), at)


def _numpy(node: Node, arrays: Arrays) -> list[AnyArray]:
    """Tree by tree, in the type of x, as runtimes sum them: labels depend on ties."""
    x, values, skips, roots = need(arrays), need(arrays, 1), need(arrays, 3), need(arrays, 5)
    starts, aggregate = maybe(arrays, 6), node.attrs["aggregate"]
    scores = np.zeros((len(x), int(node.attrs["targets"])), x.dtype)
    hits = np.zeros(scores.shape, bool)

    def join(row: AnyArray, target: AnyArray, number: AnyArray) -> None:
        old = scores[row, target]
        if aggregate == "sum":
            new = old + number
        else:
            better = number < old if aggregate == "min" else number > old
            new = np.where(better | ~hits[row, target], number, old)
        scores[row, target] = new
        hits[row, target] = True

    everyone = np.arange(len(x))
    for root in roots:
        leaves = _leaves(x, int(root), arrays)
        if starts is None:
            join(everyone, skips[leaves], values[leaves])
            continue
        targets, weights = need(arrays, 7), need(arrays, 8)
        first, last = starts[skips[leaves]], starts[skips[leaves] + 1]
        for k in range(int((last - first).max(initial=0))):
            row = everyone[first + k < last]
            entry = (first + k)[row]
            join(row, targets[entry], weights[entry])
    return [scores, hits] if node.attrs["hits"] else [scores]


register(OpDef("tree_ensemble", OpPattern.OPAQUE, _infer, _numpy))
