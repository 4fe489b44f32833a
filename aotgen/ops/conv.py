"""conv and conv_transpose on channels-last activations, any number of spatial axes.

Accumulated in float64 (integers in int64) and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aotgen.ir.graph import Node
from aotgen.ir.types import TensorType
from aotgen.ops.common import (
    AnyArray,
    Arrays,
    expect_rank,
    expect_same_dtype,
    expect_shape,
    fail,
    maybe,
    need,
    optional_type,
    pad_spatial,
    per_axis,
    product,
    taps,
    text,
    type_of,
    window_extent,
)
from aotgen.ops.registry import OpDef, OpPattern, register
from aotgen.te.compute import Tensor, compute, optional, present, reduce, window
from aotgen.te.expr import Expr
from aotgen.te.index import Index, as_index, floordiv, floormod, maximum, minimum

_PATCH_ELEMENTS = 1 << 23
"""Most elements of the patch matrix that conv builds at a time (64 MiB of float64)."""


def _check_operands(node: Node, out_channels: int) -> tuple[TensorType, TensorType]:
    """Types of x and w after the checks that conv and conv_transpose share."""
    x, w, bias = type_of(node, 0), type_of(node, 1), optional_type(node, 2)
    expect_rank(node, x, 3)
    expect_rank(node, w, x.rank, x.rank)
    expect_same_dtype(node, [x, w] if bias is None else [x, w, bias])
    groups, channels = int(node.attrs["groups"]), x.max_shape[-1]
    if groups < 1 or channels % groups or out_channels % groups:
        fail(node, f"{groups} groups do not divide {channels} and {out_channels} channels")
    if w.max_shape[-1] != channels // groups:
        fail(
            node,
            f"the weights {text(w.shape)} read {w.max_shape[-1]} channels a group, "
            f"the input {text(x.shape)} has {channels // groups}",
        )
    if bias is not None:
        expect_shape(node, "the bias", bias, [out_channels])
    return x, w


def _infer_conv(node: Node) -> list[TensorType]:
    w = type_of(node, 1)
    expect_rank(node, w, 3)
    x, w = _check_operands(node, w.max_shape[0])
    spatial = x.rank - 2
    strides, dilations = per_axis(node, "strides", spatial), per_axis(node, "dilations", spatial)
    pads = per_axis(node, "pads", 2 * spatial)
    kernel = w.max_shape[1:-1]
    extents = tuple(
        window_extent(n, kernel[i], strides[i], dilations[i], pads[i] + pads[spatial + i])
        for i, n in enumerate(x.max_shape[1:-1])
    )
    if min(extents) < 1:
        fail(node, f"the kernel {text(kernel)} does not fit into the padded input {text(x.shape)}")
    return [TensorType(x.dtype, (x.shape[0], *extents, w.max_shape[0]))]


def _accumulator(x: AnyArray) -> np.dtype[np.generic]:
    return np.dtype(np.float64 if x.dtype.kind == "f" else np.int64)


def _conv(node: Node, arrays: Arrays) -> list[AnyArray]:
    """y[n,o,f] = bias[f] + sum over k, c of x[n, o*stride + k*dilation - pad, c] * w[f,k,c]."""
    x, w, bias = need(arrays, 0), need(arrays, 1), maybe(arrays, 2)
    a, acc = node.attrs, _accumulator(need(arrays))
    groups, kernel = int(a["groups"]), w.shape[1:-1]
    padded = pad_spatial(x, a["pads"], 0).astype(acc)
    out = [
        window_extent(n, k, s, d, 0)
        for n, k, s, d in zip(padded.shape[1:-1], kernel, a["strides"], a["dilations"], strict=True)
    ]
    y = np.zeros((x.shape[0], *out, w.shape[0]), acc)
    weights = w.astype(acc)
    if w.shape[-1] == 1 and groups > 1:
        for position, view in taps(padded, kernel, a["strides"], a["dilations"], out):
            tap = weights[(slice(None),) + position + (0,)]
            y += np.repeat(view, w.shape[0] // groups, axis=-1) * tap
    else:
        _conv_patches(padded, weights, y, node)
    if bias is not None:
        y += bias
    return [y.astype(x.dtype)]


def _conv_patches(x: AnyArray, w: AnyArray, y: AnyArray, node: Node) -> None:
    """im2col and one matrix product a group, a block of output rows at a time."""
    strides, dilations = node.attrs["strides"], node.attrs["dilations"]
    groups = int(node.attrs["groups"])
    kernel, out, per_group = w.shape[1:-1], y.shape[1:-1], w.shape[-1]
    depth = product(kernel) * per_group
    matrix = w.reshape(groups, w.shape[0] // groups, depth).transpose(0, 2, 1)
    row_elements = product(out[1:]) * product(kernel) * x.shape[-1]
    step = max(1, _PATCH_ELEMENTS // max(1, row_elements))
    for image in range(x.shape[0]):
        for first in range(0, out[0], step):
            rows = min(step, out[0] - first)
            block = x[image : image + 1, first * strides[0] :]
            patches = np.empty((rows, *out[1:], groups, product(kernel), per_group), x.dtype)
            for i, (_, view) in enumerate(
                taps(block, kernel, strides, dilations, (rows, *out[1:]))
            ):
                patches[..., i, :] = view[0].reshape(rows, *out[1:], groups, per_group)
            target = y[image, first : first + rows].reshape(-1, groups, w.shape[0] // groups)
            columns = patches.reshape(-1, groups, depth)
            for g in range(groups):
                target[:, g] = columns[:, g] @ matrix[g]


def _conv_macs(node: Node) -> int:
    w = node.input(1).type.max_shape
    return node.output.type.numel * product(w[1:])


def _te_names(spatial: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Loop names of the output axes and of the kernel's axes."""
    letters = ("d", "h", "w")[-spatial:] if spatial <= 3 else tuple(map(str, range(spatial)))
    return ("n", *(f"o{s}" for s in letters), "oc"), tuple(f"k{s}" for s in letters)


def _te_conv(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    x, w, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
    a, spatial = node.attrs, x.rank - 2
    per_group, out_per_group = w.shape[-1], w.shape[0] // int(a["groups"])
    names, kernel_names = _te_names(spatial)
    begins = a["pads"][:spatial]

    def element(*i: Index) -> Expr:
        oc, position = i[-1], i[1:-1]
        first = floordiv(oc, out_per_group) * per_group
        parameters = zip(
            position,
            a["strides"],
            begins,
            a["dilations"],
            w.shape[1:-1],
            x.shape[1:-1],
            strict=True,
        )

        def product(*k: Index) -> Expr:
            where = (
                p * s - b + t * d
                for p, s, b, t, d in zip(
                    position, a["strides"], begins, k[:-1], a["dilations"], strict=True
                )
            )
            return x(i[0], *where, first + k[-1]) * w(oc, *k)

        taps_of = [(name, window(*p)) for name, p in zip(kernel_names, parameters, strict=True)]
        total = reduce("sum", [*taps_of, ("ic", per_group)], product)
        return total if bias is None else total + bias(oc)

    return (compute(node.output.shape, x.dtype, element, names),)


register(OpDef("conv", OpPattern.ANCHOR, _infer_conv, _conv, _te_conv, _conv_macs))


def _infer_conv_transpose(node: Node) -> list[TensorType]:
    w = type_of(node, 1)
    expect_rank(node, w, 3)
    x, w = _check_operands(node, w.max_shape[0])
    spatial = x.rank - 2
    strides, dilations = per_axis(node, "strides", spatial), per_axis(node, "dilations", spatial)
    pads = per_axis(node, "pads", 2 * spatial)
    extra = per_axis(node, "output_padding", spatial)
    extents = tuple(
        strides[i] * (n - 1)
        + dilations[i] * (w.max_shape[1 + i] - 1)
        + 1
        + extra[i]
        - pads[i]
        - pads[spatial + i]
        for i, n in enumerate(x.max_shape[1:-1])
    )
    if min(extents) < 1:
        fail(node, f"the pads {pads} leave nothing of the output ({text(extents)})")
    return [TensorType(x.dtype, (x.shape[0], *extents, w.max_shape[0]))]


def _conv_transpose(node: Node, arrays: Arrays) -> list[AnyArray]:
    """y[n, i*stride + k*dilation - pad, f] += x[n,i,c] * w[f,k,c], plus bias[f]."""
    x, w, bias = need(arrays, 0), need(arrays, 1), maybe(arrays, 2)
    a, acc, spatial = node.attrs, _accumulator(x), x.ndim - 2
    groups, kernel = int(a["groups"]), w.shape[1:-1]
    full = [
        s * (n - 1) + d * (k - 1) + 1
        for n, k, s, d in zip(x.shape[1:-1], kernel, a["strides"], a["dilations"], strict=True)
    ]
    y = np.zeros((x.shape[0], *full, w.shape[0]), acc)
    columns = np.moveaxis(x.astype(acc).reshape(-1, groups, x.shape[-1] // groups), 1, 0)
    weights = w.astype(acc).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for position, view in taps(y, kernel, a["strides"], a["dilations"], x.shape[1:-1]):
        tap = weights[(slice(None), slice(None)) + position]
        part = columns @ tap.transpose(0, 2, 1)
        view += np.moveaxis(part, 0, 1).reshape(view.shape)
    # Output padding adds rows at the end that no input reaches: a crop by a negative amount.
    crop = [-p for p in a["pads"]]
    for i, extra in enumerate(a["output_padding"]):
        crop[spatial + i] += extra
    y = pad_spatial(y, crop, 0)
    if bias is not None:
        y = y + bias
    return [y.astype(x.dtype)]


def _conv_transpose_macs(node: Node) -> int:
    w, groups = node.input(1).type.max_shape, int(node.attrs["groups"])
    return node.input(0).type.numel * product(w[:-1]) // groups


def _te_taps(
    t: Index, stride: int, dilation: int, kernel: int, extent: int
) -> tuple[Index, Index, int, Index, Index, int, int]:
    """The solutions (k, i) of i * stride + k * dilation = t along one axis.

    They are k = k0 + j * dk and i = i0 - j * di for j in [lo, hi): returns (lo, hi, most j, k0, i0,
    dk, di). With g = gcd(stride, dilation) there are none unless g divides t.
    """
    g = math.gcd(stride, dilation)
    s, d = stride // g, dilation // g
    whole = floordiv(t, g)
    k0 = floormod(whole * (pow(d, -1, s) if s > 1 else 0), s)
    i0 = floordiv(whole - k0 * d, s)
    # k0 + j s < kernel, and 0 <= i0 - j d < extent
    hi = minimum(floordiv(as_index(kernel - 1) - k0, s), floordiv(i0, d)) + 1
    lo = maximum(0, floordiv(i0 - extent, d) + 1)
    if g > 1:
        hi = hi - (kernel + extent) * minimum(floormod(t, g), 1)
    return lo, hi, -(-kernel // s), k0, i0, s, d


def _te_conv_transpose(node: Node, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The scatter turned round: each output element sums the taps that reach it."""
    x, w, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
    a, spatial = node.attrs, x.rank - 2
    per_group, out_per_group = w.shape[-1], w.shape[0] // int(a["groups"])
    names, kernel_names = _te_names(spatial)

    def element(*i: Index) -> Expr:
        oc = i[-1]
        first = floordiv(oc, out_per_group) * per_group
        parameters = zip(
            i[1:-1], a["pads"], a["strides"], a["dilations"], w.shape[1:-1], x.shape[1:-1],
            strict=False,
        )  # fmt: skip
        axes = [_te_taps(o + pad, s, d, k, n) for o, pad, s, d, k, n in parameters]

        def product(*j: Index) -> Expr:
            where = (i0 - t * di for t, (_, _, _, _, i0, _, di) in zip(j, axes, strict=False))
            kernel = (k0 + t * dk for t, (_, _, _, k0, _, dk, _) in zip(j, axes, strict=False))
            return x(i[0], *where, first + j[-1]) * w(oc, *kernel, j[-1])

        bounds = [
            (n, (lo, hi, most)) for n, (lo, hi, most, *_) in zip(kernel_names, axes, strict=True)
        ]
        total = reduce("sum", [*bounds, ("ic", per_group)], product)
        return total if bias is None else total + bias(oc)

    return (compute(node.output.shape, x.dtype, element, names),)


register(
    OpDef(
        "conv_transpose",
        OpPattern.ANCHOR,
        _infer_conv_transpose,
        _conv_transpose,
        _te_conv_transpose,
        macs=_conv_transpose_macs,
    )
)
