"""How ops look when the axes of their inputs are permuted: what transpose sinking needs to know.

With ``t = transpose(x, perm)`` (axis i of t is axis perm[i] of x), ``op(t)`` equals
``transpose(op'(x), out)``. ``permuted`` gives the attributes of op' and ``out``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from aotgen.ir.graph import Node
from aotgen.ir.types import Shape
from aotgen.ops.registry import OpPattern, op_def

Perm = tuple[int, ...]


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes ``perm``."""
    return tuple(perm.index(i) for i in range(len(perm)))


def compose(first: Perm, second: Perm) -> Perm:
    """transpose(transpose(x, first), second) = transpose(x, compose(first, second))."""
    return tuple(first[i] for i in second)


def is_identity(perm: Perm) -> bool:
    return perm == tuple(range(len(perm)))


def moves_only_units(shape: Sequence[int], perm: Perm) -> bool:
    """Transposing ``shape`` by ``perm`` moves no element in memory: only axes of extent 1 change
    places."""
    order = [axis for axis in perm if shape[axis] != 1]
    return order == sorted(order)


def pulled(values: Sequence[Any], perm: Perm) -> tuple[Any, ...]:
    """Per-axis values of t as per-axis values of x."""
    return tuple(values[i] for i in inverse(perm))


@dataclass(frozen=True)
class Permuted:
    """``op'``: its attributes, and the permutation from its outputs to the original ones."""

    attrs: dict[str, Any]
    out: Perm


_AXIS_OPS = frozenset(
    {"softmax", "log_softmax", "lp_norm", "cumsum", "concat", "split", "batch_norm"}
)
_ARG_OPS = frozenset({"argmax", "argmin"})


def broadcasts(node: Node) -> bool:
    """An element-wise op over all its inputs with numpy's broadcasting."""
    if node.op in ("batch_norm", "identity"):
        return node.op == "identity"
    return op_def(node.op).pattern in (OpPattern.ELEMENTWISE, OpPattern.BROADCAST)


def permuted(node: Node, perm: Perm) -> Permuted | None:
    """How ``node`` computes from inputs not yet transposed by ``perm``; None when it cannot.

    All data inputs have the rank of ``perm``.
    """
    attrs = dict(node.attrs)
    rank = len(perm)
    if broadcasts(node):
        if node.op in ("quantize", "dequantize") and attrs["quant"].axis is not None:
            attrs["quant"] = replace(attrs["quant"], axis=perm[attrs["quant"].axis])
        return Permuted(attrs, perm) if node.output.type.rank == rank else None
    if node.op in _AXIS_OPS:
        attrs["axis"] = perm[attrs["axis"]]
        return Permuted(attrs, perm)
    if node.op == "slice":
        for key in ("starts", "ends", "steps"):
            attrs[key] = pulled(attrs[key], perm)
        return Permuted(attrs, perm)
    if node.op == "pad":
        pads = attrs["pads"]
        attrs["pads"] = (*pulled(pads[:rank], perm), *pulled(pads[rank:], perm))
        return Permuted(attrs, perm)
    if node.op in ("expand", "tile", "resize"):
        return _resized(node, attrs, perm)
    if node.op == "layer_norm" or node.op == "rms_norm":
        axis = attrs["axis"]
        return Permuted(attrs, perm) if perm[axis:] == tuple(range(axis, rank)) else None
    if node.op == "gather":
        return _gathered(node, attrs, perm)
    if node.op in _ARG_OPS:
        axis = perm[attrs["axis"]]
        attrs["axis"] = axis
        return Permuted(attrs, perm if attrs["keepdims"] else _without(perm, (axis,)))
    if node.op.startswith("reduce_"):
        axes = tuple(sorted(perm[a] for a in attrs["axes"]))
        attrs["axes"] = axes
        return Permuted(attrs, perm if attrs["keepdims"] else _without(perm, axes))
    return None


def _without(perm: Perm, axes: Sequence[int]) -> Perm:
    """``perm`` after the axes (of x) have been removed."""
    kept = [a for a in perm if a not in axes]
    return tuple(sorted(kept).index(a) for a in kept)


def _resized(node: Node, attrs: dict[str, Any], perm: Perm) -> Permuted | None:
    if node.output.type.rank != len(perm):
        return None
    for key in ("shape", "repeats", "sizes", "scales"):
        if attrs.get(key) is not None:
            attrs[key] = pulled(attrs[key], perm)
    roi = attrs.get("roi")
    if roi:
        rank = len(perm)
        attrs["roi"] = (*pulled(roi[:rank], perm), *pulled(roi[rank:], perm))
    return Permuted(attrs, perm)


def _gathered(node: Node, attrs: dict[str, Any], perm: Perm) -> Permuted:
    """The gathered axis becomes as many axes as the indices have."""
    axis, extra = perm[attrs["axis"]], node.input(1).type.rank
    attrs["axis"] = axis
    out: list[int] = []
    for a in perm:
        if a == axis:
            out.extend(range(axis, axis + extra))
        else:
            out.append(a if a < axis else a + extra - 1)
    return Permuted(attrs, tuple(out))


@dataclass(frozen=True)
class ReshapeSplit:
    """``transpose(reshape(transpose(x, before), inner), after)`` as a transpose and reshape."""

    before: Perm
    inner: Shape
    after: Perm


def split_reshape(
    source: tuple[int, ...], perm: Perm, target: tuple[int, ...]
) -> ReshapeSplit | None:
    """How much of a transpose of x (shape ``source``) can move behind a reshape to ``target``.

    The reshape joins, splits or keeps blocks of axes; the order of whole blocks can be restored
    behind it, the order within a block cannot. Axes of extent 1 go with a neighbour.
    """
    blocks = _blocks(tuple(source[a] for a in perm), target)
    if blocks is None:
        return None
    placed = [(tuple(perm[i] for i in ins), outs) for ins, outs in blocks]
    rank = len(source)
    # A block sits where its first axis is in x; blocks of unit output axes alone come first.
    order = sorted(range(len(placed)), key=lambda b: (min(placed[b][0], default=-1), b))
    used = [a for b in order for a in placed[b][0]]
    units = [a for a in range(rank) if a not in used]
    before = _with_units(used, units)
    flat = [o for b in order for o in placed[b][1]]
    inner = tuple(target[o] for o in flat)
    after = tuple(flat.index(o) for o in range(len(target)))
    return ReshapeSplit(before, inner, after)


def _with_units(axes: list[int], units: list[int]) -> Perm:
    """Put axes of extent 1 back in front of the first larger axis, so that an ordered list gives
    the identity."""
    result = list(axes)
    for unit in units:
        place = next((i for i, a in enumerate(result) if a > unit), len(result))
        result.insert(place, unit)
    return tuple(result)


def _blocks(
    source: tuple[int, ...], target: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Smallest runs of axes of equal product on both sides, less source's 1s."""
    if math.prod(source) == 0 or math.prod(source) != math.prod(target):
        return None
    ins = [i for i, n in enumerate(source) if n != 1]
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    o = 0
    leading = tuple(itertools.takewhile(lambda i: target[i] == 1, range(len(target))))
    if leading:
        blocks.append(((), leading))
        o = len(leading)
    i = 0
    while i < len(ins):
        first_i, first_o = i, o
        have, want = source[ins[i]], 1
        i += 1
        while want != have or want == 1:
            if want < have:
                want *= target[o]
                o += 1
            else:
                have *= source[ins[i]]
                i += 1
        blocks.append((tuple(ins[first_i:i]), tuple(range(first_o, o))))
    if o < len(target):
        if not blocks:
            return None
        last_in, last_out = blocks[-1]
        blocks[-1] = (last_in, (*last_out, *range(o, len(target))))
    return blocks
