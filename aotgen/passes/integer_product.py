"""qconv and qmatmul with constant weights as sums over taps and channels, for passes that prove
something of their results.

A tap is a cell of a convolution's window; a product of matrices has one. Of a convolution with pads
some taps see pads, which hold the input's zero point, at some positions, some never see anything
else.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aotgen.ir.graph import Node
from aotgen.ops.common import window_extent
from aotgen.ops.quantized import accumulator

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """sum over taps t and channels c of (x[t, c] - x_zero) * weights[g, o, t, c], + bias.

    Attributes:
        weights: less their zero points, [groups, outputs a group, taps, inputs a group].
        weight_zero: by output [O].
        bias: by output [O], int64; zeros where there is none.
        x_zero: the input's zero point, None when it is known at run time only.
        inside: by tap, whether it sees an element of the input at some position.
        outside: by tap, whether it sees a pad at some position.
    """

    weights: npt.NDArray[np.int32]
    weight_zero: Ints
    bias: Ints
    x_zero: int | None
    inside: Mask
    outside: Mask

    @property
    def groups(self) -> int:
        return len(self.weights)

    def range(self, lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
        """The lowest and highest sum of each output [O], for inputs between ``lo`` and ``hi``
        ([C], with zero point 0: ``x_zero`` is subtracted here); before any wrap-around.

        Products of 16 and 8 bits and their sums are exact in float64.
        """
        assert self.x_zero is not None
        groups, outputs, _, depth = self.weights.shape
        low, high = (v.reshape(groups, 1, depth) - self.x_zero for v in (lo, hi))
        inside, outside = self.inside[:, None], self.outside[:, None]
        low = np.where(inside, np.where(outside, np.minimum(low, 0), low), 0)
        high = np.where(inside, np.where(outside, np.maximum(high, 0), high), 0)
        w = self.weights.reshape(groups, outputs, -1).astype(np.float64)
        ends = np.stack([low, high], axis=-1).reshape(groups, -1, 2).astype(np.float64)
        up, down = np.maximum(w, 0) @ ends, np.minimum(w, 0) @ ends
        least = (up[..., 0] + down[..., 1]).reshape(-1).astype(np.int64)
        most = (up[..., 1] + down[..., 0]).reshape(-1).astype(np.int64)
        return least + self.bias, most + self.bias

    def known_inputs(self, lo: Ints, hi: Ints) -> tuple[Mask, Ints]:
        """(whether what tap t sees in channel c is the same at all positions, that less the zero
        point, else 0), both [taps, C].
        """
        if self.x_zero is None:
            shape = (len(self.inside), len(lo))
            return np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
        value, constant = lo - self.x_zero, lo == hi
        inside, outside = self.inside[:, None], self.outside[:, None]
        known = ~inside | (constant & (~outside | (value == 0)))
        return known, np.where(known & inside, value, 0)


def integer_product(node: Node) -> IntegerProduct | None:
    """``node`` as a sum; None when it is no qconv or qmatmul with constant weights."""
    if node.op not in ("qconv", "qmatmul"):
        return None
    x, w, bias, x_zero, w_zero = (node.optional(i) for i in range(5))
    assert x is not None and w is not None
    known = all(v is None or v.is_const for v in (bias, w_zero))
    if w.const is None or not known or not x.type.is_static:
        return None
    if node.op == "qmatmul":
        if w.type.rank != 2:
            return None
        array = w.const if node.attrs["trans_b"] else w.const.T
        array, groups = array[:, None, :], 1
        inside, outside = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    else:
        groups = int(node.attrs["groups"])
        array = w.const.reshape(w.shape[0], -1, w.shape[-1])
        inside, outside = _views(node)
    outputs = len(array)
    zero = np.zeros(1) if w_zero is None or w_zero.const is None else w_zero.const.reshape(-1)
    zeros = np.broadcast_to(zero.astype(np.int64), (outputs,))
    weights = array.astype(np.int32) - zeros[:, None, None].astype(np.int32)
    given = None if bias is None else bias.const
    return IntegerProduct(
        weights.reshape(groups, outputs // groups, *weights.shape[1:]),
        zeros,
        np.zeros(outputs, np.int64) if given is None else given.astype(np.int64),
        0 if x_zero is None else None if x_zero.const is None else int(x_zero.const.reshape(-1)[0]),
        inside,
        outside,
    )


def _views(node: Node) -> tuple[Mask, Mask]:
    """By tap of a qconv's window: whether it sees elements, whether it sees pads."""
    x, kernel, attrs = node.input(0).shape[1:-1], node.input(1).shape[1:-1], node.attrs
    sees: list[tuple[Mask, Mask]] = []
    for i, n in enumerate(x):
        before, after = attrs["pads"][i], attrs["pads"][len(x) + i]
        stride, dilation = attrs["strides"][i], attrs["dilations"][i]
        out = window_extent(n, kernel[i], stride, dilation, before + after)
        place = np.arange(out)[None, :] * stride + np.arange(kernel[i])[:, None] * dilation - before
        within = (place >= 0) & (place < n)
        sees.append((within.any(axis=1), ~within.all(axis=1)))
    cells = list(itertools.product(*(range(k) for k in kernel)))
    inside = [all(sees[i][0][k] for i, k in enumerate(cell)) for cell in cells]
    outside = [any(sees[i][1][k] for i, k in enumerate(cell)) for cell in cells]
    return np.array(inside, np.bool_), np.array(outside, np.bool_)


def wrapped(sums: Ints, node: Node) -> npt.NDArray[np.int32] | Ints:
    """Sums as the accumulator of ``node`` holds them, which wraps around."""
    return sums.astype(accumulator(node.attrs["requant"]).numpy)
